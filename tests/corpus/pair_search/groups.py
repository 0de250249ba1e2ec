"""Groups of formats: the layouts of each, and what is known of a tensor that a dump of it holds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from tests.corpus.trace import Record, Run
from tests.corpus.writers import cann, fx, hdf5, keyed, mindspore, msprobe, npy, torch_files
from tests.corpus.writers.msprobe import Style
from tests.corpus.writers.slots import module_names

ALL = {"all": 0.55, "outputs": 0.12, "inputs": 0.1, "forward": 0.13, "backward": 0.1}
OUTPUTS = {"outputs": 0.8, "forward": 0.2}
WEIGHTS = {"weights": 1.0}
FLOATS = ("float32", "float16", "bfloat16", "float64")
EVERY = (*FLOATS, "int32", "int64", "bool", "complex64")


class Layout(NamedTuple):
    """One way of writing a run.

    holds: "values", "statistics", "md5" or "xor".
    parts: what may be recorded of a run, and how often it is.
    recipe: fields of the Recipe that the format decides.
    types: element types that it can hold.
    flow: whether who reads what is known although inputs were not recorded, by a graph.
    only_outputs: whether nothing but outputs is written, whatever was recorded.
    counts: whether operators of one kind stand in the order of their calls, so that one more shifts their names.
    ordered: whether the order of execution is known.
    tells_types: whether the type of bfloat16 values is told.
    """

    name: str
    write: Callable[[Path, Sequence[Run]], None]
    names: Callable[[Run], dict[Record, str]]
    holds: str = "values"
    parts: Mapping[str, float] = ALL
    recipe: Mapping[str, Any] = MappingProxyType({})
    types: tuple[str, ...] = EVERY
    flow: bool = False
    only_outputs: bool = False
    counts: bool = False
    ordered: bool = False
    tells_types: bool = True


def _msprobe(name: str, style: Style, **more: Any) -> Layout:
    levels = {"modules": True} if style.level == "mix" else {}
    return Layout(
        name,
        lambda folder, runs: msprobe.write(folder, runs, style),
        lambda run: msprobe.names(run, style),
        holds="values" if style.task == "tensor" else style.task,
        recipe=levels,
        parts={"all": 1.0} if style.level == "mix" else ALL,
        counts=True,
        ordered=True,
        **more,
    )


def _without_graph(folder: Path, runs: Sequence[Run]) -> None:
    cann.write(folder, runs)
    for file in folder.glob("ge_proto_*"):
        file.unlink()


def _keyed(ending: str, whole: bool, parts: Mapping[str, float] = ALL) -> Layout:
    name = f"{ending} of {'slots' if whole else 'weights' if parts is WEIGHTS else 'outputs'}"
    return Layout(
        name,
        partial(keyed.write, ending=ending, whole=whole),
        partial(keyed.names, ending=ending, whole=whole),
        parts=parts,
        only_outputs=not whole,
        tells_types=ending != "npz",
    )


def _three(ending: str) -> list[Layout]:
    return [_keyed(ending, True), _keyed(ending, False, OUTPUTS), _keyed(ending, False, WEIGHTS)]


def _torch(tree: str) -> Layout:
    write, names = partial(torch_files.write, tree=tree), partial(torch_files.names, tree=tree)
    return Layout(f"pt files by {tree}", write, names, ordered=tree == "fields")


NODES: dict[str, Any] = {"captures_all": True}

GROUPS: dict[str, list[Layout]] = {
    "npy": [
        Layout(
            "npy with times",
            partial(npy.write_trees, timed=True),
            npy.names,
            parts=OUTPUTS,
            only_outputs=True,
            ordered=True,
            tells_types=False,
        ),
        Layout("npy of slots", partial(npy.write_trees, timed=False), module_names, tells_types=False),
    ],
    "npz": _three("npz"),
    "safetensors": _three("safetensors"),
    "msprobe": [
        _msprobe("msprobe pt", Style()),
        _msprobe("msprobe npy", Style(mint=True)),
        _msprobe("msprobe mix", Style(level="mix")),
    ],
    "statistics": [
        _msprobe("msprobe statistics", Style("statistics")),
        _msprobe("msprobe mix of statistics", Style("statistics", "mix")),
        _msprobe("msprobe statistics of mint", Style("statistics", mint=True)),
    ],
    "checksums": [
        _msprobe("msprobe md5", Style("md5")),
        _msprobe("msprobe xor", Style("xor")),
        _msprobe("msprobe mix of md5", Style("md5", "mix")),
        _msprobe("msprobe mix of xor", Style("xor", "mix")),
    ],
    "cann": [
        Layout("cann with graph", cann.write, cann.names, recipe=NODES, flow=True, counts=True, ordered=True),
        Layout("cann", _without_graph, cann.names, recipe=NODES, counts=True, ordered=True),
    ],
    "mindspore": [Layout("mindspore", mindspore.write, mindspore.names, recipe=NODES, counts=True, ordered=True)],
    "hdf5": [
        Layout(
            "hdf5 of PyTorch 1.5",
            partial(hdf5.write, plain=False),
            partial(hdf5.names, plain=False),
            types=("float32", "float16", "bfloat16", "int32", "int64", "bool"),
            ordered=True,
            tells_types=False,
        ),
        Layout("hdf5", partial(hdf5.write, plain=True), partial(hdf5.names, plain=True), tells_types=False),
    ],
    "pt": [_torch("calls"), _torch("fields"), _torch("modules"), _torch("records"), _keyed("pt", False, WEIGHTS)],
    "fx": [Layout("fx", fx.write, fx.names, recipe=NODES, counts=True, ordered=True, tells_types=False)],
}
