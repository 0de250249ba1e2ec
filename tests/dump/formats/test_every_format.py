"""Of every format: three operators of which the second is wrong, written as documents say, and the same without fault.

The writers know nothing of the readers. Whatever records inputs (or has a graph that tells them) must call the second
BORN; where only outputs are known it comes first, and is UNKNOWN.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import npucmp
from npucmp import open_runs
from npucmp.dump.formats import FORMATS
from npucmp.dump.readers import hdf5 as hdf5_reader
from npucmp.report.sanitise import visible
from tests.dump.formats import test_hdf5, test_tfdbg
from tests.dump.formats.pt_files import pt_file, save_pt
from tests.dump.formats.test_atb import write_atb
from tests.dump.formats.test_fx import write_fx
from tests.dump.formats.test_npz import write_npz
from tests.dump.formats.test_safetensors import packed, write_safetensors
from tests.dump.formats.test_saved import write_saved
from tests.dump.formats.three import second_is_first, three
from tests.dump.readers import craft_cann
from tests.reports import screen

NAMES, TYPES = ("product", "bent", "sum"), ("MatMul", "Tanh", "Add")
TIME = 1_767_225_600_000_000


def msprobe(folder: Path, wrong: bool) -> None:
    """dump.json in the order of execution; one .npy file for each tensor, as MindSpore's."""
    place = folder / "step0" / "rank0"
    (place / "dump_tensor_data").mkdir(parents=True)
    data = {}
    for name, one in zip(("Mint.matmul.0.forward", "Mint.tanh.0.forward", "Mint.add.0.forward"), three(wrong)):
        leaves = {}
        for role, arrays in (("input", one.inputs), ("output", one.outputs)):
            for n, values in enumerate(arrays):
                np.save(place / "dump_tensor_data" / f"{name}.{role}.{n}.npy", values)
            leaves[role] = [
                {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [*values.shape], "Max": None, "Min": None,
                 "Mean": None, "Norm": None, "data_name": f"{name}.{role}.{n}.npy"}
                for n, values in enumerate(arrays)
            ]  # fmt: skip
        data[name] = {"input_args": leaves["input"], "input_kwargs": {}, "output": leaves["output"]}
    whole = {"task": "tensor", "level": "L1", "framework": "mindspore", "dump_data_dir": None, "data": data}
    (place / "dump.json").write_text(json.dumps(whole))


def cann(folder: Path, wrong: bool) -> None:
    """Version 2: the length of the header, DumpData, the values."""
    place = folder / "20260101000000" / "0" / "net" / "1" / "0"
    for number, (name, kind, one) in enumerate(zip(NAMES, TYPES, three(wrong))):
        arrays = ([craft_cann.tensor(values) for values in some] for some in (one.inputs, one.outputs))
        craft_cann.save(place, **{f"{kind}.{name}.{number}.3.{TIME + number}": craft_cann.v2(*arrays, op_name=name)})


def mindspore(folder: Path, wrong: bool) -> None:
    place = folder / "rank_0" / "Net" / "0" / "0"
    place.mkdir(parents=True)
    for number, (name, kind, one) in enumerate(zip(NAMES, TYPES, three(wrong))):
        for role, arrays in (("input", one.inputs), ("output", one.outputs)):
            for n, values in enumerate(arrays):
                file = f"{kind}.Default_{name}-op{number}.0.0.{TIME + number}.{role}.{n}.DefaultFormat.Float32.npy"
                np.save(place / file, values)


def tfdbg(folder: Path, wrong: bool) -> None:
    """Outputs as Events, and the graph that tells what each node reads."""
    product, bent, last = three(wrong)
    x, w = product.inputs
    nodes = [
        ("x", "Placeholder", [], x), ("w", "Const", [], w), ("product", "MatMul", ["x", "w"], product.outputs[0]),
        ("bent", "Tanh", ["product"], bent.outputs[0]), ("b", "Const", [], last.inputs[1]),
        ("sum", "AddV2", ["bent", "b"], last.outputs[0]),
    ]  # fmt: skip
    for number, (name, _, _, values) in enumerate(nodes):
        data = test_tfdbg.event(1, values.shape, values.tobytes())
        test_tfdbg.dump(folder, [f"{name}_0_DebugIdentity_{TIME + number}"], data)
    graph = b""
    for name, kind, reads, _ in nodes:
        words = [b"\x0a", name, b"\x12", kind, *(part for read in reads for part in (b"\x1a", read))]
        node = b"".join(one if isinstance(one, bytes) else bytes([len(one)]) + one.encode() for one in words)
        graph += b"\x0a" + bytes([len(node)]) + node
    kept = test_tfdbg.messages()["Event"](graph_def=graph).SerializeToString()
    test_tfdbg.dump(folder, [f"_tfdbg_graph_hash5_{TIME}"], kept)


def hdf5(folder: Path, wrong: bool) -> None:
    folder.mkdir(parents=True)
    with test_hdf5.h5py.File(folder / "dump.h5", "w") as file:
        for number, (kind, one) in enumerate(zip(("mm", "tanh", "add"), three(wrong)), 1):
            for n, values in enumerate(one.inputs):
                test_hdf5.tensor(file, f"/{kind}/{number}/input/input_{n}", values)
            test_hdf5.tensor(file, f"/{kind}/{number}/output/result", one.outputs[0])


def monitor(folder: Path, wrong: bool) -> None:
    """Statistics of activations, with six decimals."""
    place = folder / "Nov22_19-23-13-rank0-1ace2694"
    place.mkdir(parents=True)
    lines = ["vpp_stage,name,step,micro_step,min,max,mean,norm,nans,shape,dtype"]
    for module, one in enumerate(three(wrong)):
        for role, values in (("input", one.inputs[0]), ("output", one.outputs[0])):
            figures = (values.min(), values.max(), values.mean(), np.sqrt((values.astype(float) ** 2).sum()))
            text = ",".join(f"{figure:.6f}" for figure in figures)
            lines.append(f'0,{module}.{role},0,0,{text},0,"{[*values.shape]}",torch.float32')
    (place / "actv_0-1.csv").write_text("\n".join(lines) + "\n")


def npy(folder: Path, wrong: bool) -> None:
    """As msit dumps ONNX: what a node reads, then what it writes."""
    folder.mkdir(parents=True)
    for number, (name, one) in enumerate(zip(NAMES, three(wrong))):
        for head, arrays in (("input_", one.inputs), ("", one.outputs)):
            for n, values in enumerate(arrays):
                np.save(folder / f"{head}{name}.{n}.{TIME + number}.npy", values)


def pt(folder: Path, wrong: bool) -> None:
    """msprobe's AclGraphDumper; names in their natural order are the order."""
    place = folder / "step0" / "rank0" / "dump_tensor_data"
    for number, one in enumerate(three(wrong)):
        for role, arrays in (("input", one.inputs), ("output", one.outputs)):
            for n, values in enumerate(arrays):
                save_pt(place / f"Module.layers.{number}.Layer.0.{role}.{n}.pt", values)


WRITERS = {
    "msprobe": msprobe, "cann": cann, "mindspore": mindspore, "tfdbg": tfdbg, "hdf5": hdf5, "monitor": monitor,
    "fx": write_fx, "atb": write_atb, "saved": write_saved, "npy": npy, "pt": pt, "safetensors": write_safetensors,
    "npz": write_npz,
}  # fmt: skip
UNREAD = {"saved", "monitor"}  # nothing tells what reads a variable; the monitor does not see all that a module reads
STATISTICS = {"monitor"}
SECOND = {"tfdbg": 3}  # two placeholders stand before


def test_every_format_is_here():
    assert {*WRITERS} == {*FORMATS}


@pytest.mark.parametrize("name", FORMATS)
def test_the_second_of_three_is_wrong_and_a_copy_agrees(tmp_path, name, monkeypatch):
    monkeypatch.setattr(hdf5_reader, "ISOLATED", False)
    for side in ("target", "golden"):
        WRITERS[name](tmp_path / side, side == "target")
    found = {run.format for side in ("target", "golden") for run in open_runs(tmp_path / side)}
    cause = "UNKNOWN" if name in UNREAD else "BORN"
    sides = tmp_path / "target", tmp_path / "golden"
    second_is_first(*sides, cause, SECOND.get(name, 1), trust_statistics=name in STATISTICS)
    assert found == {name}


FILES = {  # where a name of an operator stands in the name of a file, and what such a file holds
    "atb": ("data/0_1/0/0_{}/after/outtensor0.bin", b"dtype=0\ndims=2\n$Object.data=0,8\n$End=1\n" + bytes(8)),
    "mindspore": ("Add.{}.0.0.1735011096427368.output.0.ND.FLOAT", bytes(8)),
    "pt": ("step0/rank0/{}.output.0.pt", pt_file(np.zeros(2, np.float32))),
    "safetensors": ("{}.safetensors", packed({"x": np.zeros(2, np.float32)})),
}


@pytest.mark.parametrize("text", ["=1+1", "\x1b[31m", "<script>", "a b", "७", "-", "a\nb", "\u202e", "x" * 180])
@pytest.mark.parametrize("name", FILES)
def test_hostile_names_are_harmless(tmp_path, name, text):
    for side in ("target", "golden"):
        place = tmp_path / side / FILES[name][0].format(text)
        place.parent.mkdir(parents=True)
        place.write_bytes(FILES[name][1])
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    assert [one.target.format for one in report.comparisons] == [name] and report.exit_status == 0
    shown = screen(report) + "\n".join(visible(one.pair.operator.name) for one in report.findings)
    assert not {*shown} & {"\x1b", "\u202e"} and "a\nb" not in shown
