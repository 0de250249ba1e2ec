"""Read dumps of TorchAir's FX graph, run eagerly: a .npy file per input and output of every node.

    {root}/worldsize{W}_global_rank{R}/{graph}/{step}/      any part of it
    {root}/data_dump/{step + 1}/gm_{time}_dump/             older releases
        {node}-{aten operator}.{INPUT|OUTPUT}.{index}.{time}.npy        add_1-aten.add.Tensor.OUTPUT.0.2025….npy

The aten operator has dots; the time is YYYYMMDDhhmmss and six digits, and gives the order.
Source: public documentation and sources of TorchAir and msprobe; docs/formats.md.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.named_tensors import tensor_of
from npucmp.dump.readers.folders import executions, folders, some_names
from npucmp.dump.readers.names import MAPPING, left_out, long_names, place_of
from npucmp.model import Operator, Run

NAME = "fx"
WALKS = True
GRAPHS = None

_NAME = re.compile(r"(?P<op>.+)\.(?P<role>INPUT|OUTPUT)\.(?P<index>[0-9]{1,6})\.(?P<time>[0-9]{10,20})\.npy")
_GRAPH = re.compile(r"graph_?[0-9]{1,9}")
_OLDER = re.compile(r"gm_[0-9]+_dump")
_NUMBER = re.compile(r"[0-9]{1,9}")
_INDEX = re.compile(r"_[0-9]+$")


class FxFile(NamedTuple):
    """One tensor: the parts of its file name, and its place."""

    operator: str
    slot: str
    time: int
    path: str
    folder: str


class FxPlace(NamedTuple):
    """The run that a folder belongs to; graphs of one step and rank are one run."""

    dump: str
    step: Optional[int]
    rank: Optional[int]


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a file has such a name, or a folder holds one within sixteen levels."""
    names = [path.name] if path.is_file() else some_names(path)
    return any(map(_NAME.fullmatch, names))


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per (dump, step, rank). Only headers are read; a malformed file becomes one unreadable tensor."""
    found: dict[FxPlace, list[FxFile]] = defaultdict(list)
    notes: list[str] = []
    for folder, names in [(str(path.parent), [path.name])] if path.is_file() else folders(path):
        real = long_names(Path(folder, MAPPING), notes, context) if MAPPING in names else {}
        files = {name: parse_fx_name(real.get(name, name), os.path.join(folder, name)) for name in names}
        if any(files.values()):
            found[_step_and_rank(Path(folder))] += filter(None, files.values())
        notes += filter(None, [left_out(folder, (name for name, file in files.items() if file is None))])
    return [_run(place, files, notes if i == 0 else [], context) for i, (place, files) in enumerate(found.items())]


def parse_fx_name(name: str, path: str) -> Optional[FxFile]:
    """Parse a file name; None if it is not of this format."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    slot = f"{match['role'].lower()}:{int(match['index'])}"
    return FxFile(match["op"], slot, int(match["time"]), path, os.path.dirname(path))


def _step_and_rank(folder: Path) -> FxPlace:
    """Return step and rank of the folders: {graph}/{step} below a rank, {step + 1}/gm_… of older releases."""
    parts = folder.absolute().parts
    step, rank, _ = place_of(parts)
    root, number = len(parts), len(parts) > 2 and _NUMBER.fullmatch(parts[-1])
    if number and (_GRAPH.fullmatch(parts[-2]) or place_of(parts[-3:-2]).rank is not None):
        step, root = int(parts[-1]), len(parts) - 2
    elif len(parts) > 1 and _OLDER.fullmatch(parts[-1]) and _NUMBER.fullmatch(parts[-2]):
        step, root = int(parts[-2]) - 1, len(parts) - 2
    return FxPlace(os.path.join(*parts[:root]), step, rank)


def _run(place: FxPlace, files: Sequence[FxFile], notes: Sequence[str], context: ReadContext) -> Run:
    groups = executions(files, lambda one: (one.folder, one.operator), lambda one: one.slot, lambda one: one.time)
    groups = sorted((sorted(group, key=_slot) for group in groups), key=_position)
    kinds = Counter(map(_kind, {file.operator for file in files}))
    reads = any(file.slot.startswith("input") for file in files)
    return Run(
        path=place.dump,
        format=NAME,
        operators=tuple(_operator(order, group, kinds, reads, context) for order, group in enumerate(groups)),
        step=place.step,
        rank=place.rank,
        detail="" if reads else "outputs only",
        notes=tuple(notes),
    )


def _slot(file: FxFile) -> tuple[str, int]:
    role, _, index = file.slot.partition(":")
    return role, int(index)


def _position(group: Sequence[FxFile]) -> tuple[int, str, str]:
    return min(file.time for file in group), group[0].folder, group[0].operator


def _kind(name: str) -> str:
    """Return the common part of nodes of one operator: "add-aten.add.Tensor" for "add_1-aten.add.Tensor"."""
    node, dash, target = name.partition("-")
    return f"{_INDEX.sub('', node)}{dash}{target}"


def _operator(
    order: int, group: Sequence[FxFile], kinds: Mapping[str, int], reads: bool, context: ReadContext
) -> Operator:
    name = group[0].operator
    kind = _kind(name)
    return Operator(
        name=name,
        op_type=_type(name),
        kind=kind,
        phase="",
        order=order,
        tensors=tuple(tensor_of(one.slot, one.path, "npy", context=context) for one in group),
        call=name,
        unique=kinds[kind] == 1,  # an additional node shifts the numbers of later nodes
        reads_recorded=reads,
    )


def _type(name: str) -> str:
    """Return the operator type of a node: "add" for "add_1-aten.add.Tensor"; without a namespace, the whole target."""
    node, _, target = name.partition("-")
    parts = (target or node).split(".")
    return parts[1] if len(parts) > 1 and parts[1] else parts[0]
