"""A folder of .npy files, one tensor each. The names tell operator, output and time:

    {operator}.{output index}.{microseconds}.npy     tfdbg by precision_tool, msquickcmp for TF and ONNX, Caffe
    {operator}.{input|output}.{index}.npy            tensor folders of msprobe without their dump.json
    {anything}.npy                                   plain: one operator with one output

A file whose name was too long for the file system has a number for a name; mapping.csv beside it tells the real one.
Files with a time are executed in that order; the others in the natural order of their names, and the run says so.
Several times for one (operator, index) are several executions.
Source: public behaviour of msaccucmp and precision_tool; docs/formats.md.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Mapping, NamedTuple, Optional

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.dump.graphs.graph import GraphSource
from npucmp.dump.readers.executions import executions
from npucmp.dump.readers.folders import some_names
from npucmp.dump.readers.long_names import MAPPING, long_names
from npucmp.dump.readers.names import left_out, may_be_tensor, natural, type_of_name
from npucmp.dump.readers.tensors import tensor_of
from npucmp.model import Operator, Run, first_of

NAME = "npy"
ABOUT = "a folder of .npy files: {op}.{output}.{time}.npy (tfdbg, ONNX), {op}.{input|output}.{n}.npy, or {name}.npy"
GRAPHS = GraphSource()

_TIMED = re.compile(r"(?P<op>.+)\.(?P<index>[0-9]{1,6})\.(?P<time>[0-9]{10,20})")
_SLOTTED = re.compile(r"(?P<op>.+)\.(?P<role>input|output)\.(?P<index>[0-9]+(?:\.\w+)*)")


class NpyFile(NamedTuple):
    """What one file's name says."""

    operator: str
    slot: str
    time: int
    path: str


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """A .npy file, or a folder that directly holds one."""
    if not path.is_dir():
        return path.is_file() and path.suffix == ".npy"
    with os.scandir(path) as entries:
        return any(entry.name.endswith(".npy") for entry in entries)


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """One Run. Headers are read, payloads are not; a broken header makes an operator with one unreadable tensor."""
    notes: list[str] = []
    real = {} if path.is_file() else long_names(path / MAPPING, notes, context)
    names = [path] if path.is_file() else [Path(path, name) for name in sorted(os.listdir(path))]
    files = [parse_npy_name(file, real.get(file.name, "")) for file in names if _is_tensor(file, real)]
    others = (file.name for file in names if not _is_tensor(file, real) and not file.is_dir())
    notes += filter(None, [left_out(path, others), _below(names)])
    groups = _executions(files)
    operators = tuple(_operator(order, group, context) for order, group in enumerate(groups))
    timed = all(group[0].time for group in groups)
    outputs = all(file.slot.startswith("output") for file in files)
    if not timed:
        notes.append("not every file name holds a time: operators with no time stand in the order of their names")
    return [
        Run(
            path=str(path),
            format=NAME,
            operators=operators,
            detail="outputs only" if outputs else "",
            notes=tuple(notes),
            ordered=timed,
        )
    ]


def _below(names: "list[Path]") -> "Optional[str]":
    """The note on folders beside the files, whose tensors nobody reads; None if there are none."""
    found = [path.name for path in names if path.is_dir() and any(map(may_be_tensor, some_names(path)))]
    if not found:
        return None
    return f"{names[0].parent}: folders beside the files are not read: {first_of(found, 3)}"


def _is_tensor(file: Path, real: Mapping[str, str]) -> bool:
    return file.suffix == ".npy" or file.name in real


def parse_npy_name(file: Path, long_name: str = "") -> NpyFile:
    """Operator, slot and time from a file name, or from the long name it stands for; see the table at the top."""
    name = long_name or file.name
    stem = name[: -len(".npy")] if name.endswith(".npy") else name
    timed = _TIMED.fullmatch(stem)
    if timed:
        return NpyFile(timed["op"], f"output:{int(timed['index'])}", int(timed["time"]), str(file))
    slotted = _SLOTTED.fullmatch(stem)
    if slotted:
        return NpyFile(slotted["op"], f"{slotted['role']}:{slotted['index']}", 0, str(file))
    return NpyFile(stem, "output:0", 0, str(file))


def _executions(files: list[NpyFile]) -> list[list[NpyFile]]:
    """Files of one execution of one operator together, in order of time, then of name."""
    groups = executions(files, lambda file: file.operator, lambda file: file.slot, lambda file: file.time)
    return sorted((sorted(group, key=lambda file: natural(file.slot)) for group in groups), key=_position)


def _position(group: list[NpyFile]) -> tuple[int, list[object]]:
    return min(file.time for file in group), natural(group[0].operator)


def _operator(order: int, files: list[NpyFile], context: ReadContext) -> Operator:
    name = files[0].operator
    return Operator(
        name=name,
        op_type=type_of_name(name),
        kind=name,
        phase="backward" if name.endswith(".backward") else "",
        order=order,
        tensors=tuple(tensor_of(file.slot, file.path, "npy", context=context) for file in files),
        call=name,
        reads_recorded=any(not file.slot.startswith("output") for file in files),
    )
