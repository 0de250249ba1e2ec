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
from functools import partial
from pathlib import Path
from typing import NamedTuple, Optional

from npucmp.dump.file_per_tensor import Place, contents_by_place, kinds_met_once, operator_by_name, run_of
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.named_tensors import tensor_of
from npucmp.dump.readers.folders import executions, first_names
from npucmp.dump.readers.names import MAPPING, long_names, natural, place_of, skipped_files_note
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


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a file has such a name, or a folder holds one within sixteen levels."""
    names = [path.name] if path.is_file() else first_names(path)
    return any(map(_NAME.fullmatch, names))


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per (dump, step, rank). Only headers are read; a malformed file becomes one unreadable tensor."""
    found = contents_by_place(path, partial(_read, context=context))
    return [_run(place, one.files, one.notes, context) for place, one in found.items()]


def _read(folder: str, names: list[str], notes: list[str], context: ReadContext) -> tuple[Place, list[FxFile]]:
    real = long_names(Path(folder, MAPPING), notes, context) if MAPPING in names else {}
    files = {name: parse_fx_name(real.get(name, name), os.path.join(folder, name)) for name in names}
    notes += filter(None, [skipped_files_note(folder, (name for name, file in files.items() if file is None))])
    return _step_and_rank(Path(folder)), [file for file in files.values() if file]


def parse_fx_name(name: str, path: str) -> Optional[FxFile]:
    """Parse a file name; None if it is not of this format."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    slot = f"{match['role'].lower()}:{int(match['index'])}"
    return FxFile(match["op"], slot, int(match["time"]), path, os.path.dirname(path))


def _step_and_rank(folder: Path) -> Place:
    """Return step and rank of the folders: {graph}/{step} below a rank, {step + 1}/gm_… of older releases.

    Graphs of one step and rank are one run.
    """
    parts = folder.absolute().parts
    step, rank, _ = place_of(parts)
    root, number = len(parts), len(parts) > 2 and _NUMBER.fullmatch(parts[-1])
    if number and (_GRAPH.fullmatch(parts[-2]) or place_of(parts[-3:-2]).rank is not None):
        step, root = int(parts[-1]), len(parts) - 2
    elif len(parts) > 1 and _OLDER.fullmatch(parts[-1]) and _NUMBER.fullmatch(parts[-2]):
        step, root = int(parts[-2]) - 1, len(parts) - 2
    return Place(os.path.join(*parts[:root]), step, rank)


def labels(folder: str, name: str) -> tuple[Optional[int], Optional[int]]:
    """Return step and rank of a file, from its folders."""
    return _step_and_rank(Path(folder))[1:]


def _run(place: Place, files: list[FxFile], notes: list[str], context: ReadContext) -> Run:
    groups = executions(
        files,
        operator=lambda file: (file.folder, file.operator),
        slot=lambda file: file.slot,
        age=lambda file: file.time,
        within=lambda file: natural(file.slot),
        position=_position,
    )
    single = kinds_met_once(_kind, (file.operator for file in files))
    reads = any(file.slot.startswith("input") for file in files)
    operators = (_operator(order, group, single, reads, context) for order, group in enumerate(groups))
    return run_of(place, NAME, operators, "" if reads else "outputs only", notes)


def _position(group: list[FxFile]) -> tuple[int, str, str]:
    return min(file.time for file in group), group[0].folder, group[0].operator


def _kind(name: str) -> str:
    """Return the common part of nodes of one operator: "add-aten.add.Tensor" for "add_1-aten.add.Tensor"."""
    node, dash, target = name.partition("-")
    return f"{_INDEX.sub('', node)}{dash}{target}"


def _operator(order: int, group: list[FxFile], single: set[str], reads: bool, context: ReadContext) -> Operator:
    name = group[0].operator
    tensors = (tensor_of(file.slot, file.path, "npy", context=context) for file in group)
    return operator_by_name(name, order, tensors, reads)._replace(
        op_type=_type(name),
        kind=_kind(name),
        unique=_kind(name) in single,  # an additional node shifts the numbers of later nodes
    )


def _type(name: str) -> str:
    """Return the operator type of a node: "add" for "add_1-aten.add.Tensor"; without a namespace, the whole target."""
    node, _, target = name.partition("-")
    parts = (target or node).split(".")
    return parts[1] if len(parts) > 1 and parts[1] else parts[0]
