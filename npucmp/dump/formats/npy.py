"""Read folders of .npy files, one tensor each, flat or below step and rank folders (readers/names.py).

The names contain operator, output and time:

    {operator}.{output index}.{microseconds}.npy     tfdbg by precision_tool, msquickcmp for TF and ONNX, Caffe
    input_{operator}.{index}.{microseconds}.npy      inputs, in dumps of ONNX by msprobe and msit
    {operator}.{input|output}.{index}.npy            tensor folders of msprobe without their dump.json
    {operator}.input.{word}.npy                      an input by its name, beside numbered slots of the operator
    {anything}.npy                                   plain: one operator with one output

If a name was too long for the file system, the file has a number as name, and mapping.csv beside it has the real name.
Files with a time in their names are sorted by that time. Other files are sorted by write time if the times are reliable
(readers/folders.py), else in the natural order of their names, with a note in the run. Several times for one
(operator, index) are several executions.
Source: public behaviour of msaccucmp and precision_tool; docs/formats.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Mapping, NamedTuple, Optional

from npucmp.dump.file_per_tensor import operator_by_name
from npucmp.dump.graphs.graph import GraphSource
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.named_tensors import tensor_of
from npucmp.dump.overlay import join_batches
from npucmp.dump.readers.folders import (
    NOTE,
    SNIFFED,
    WrittenOperator,
    executions,
    first_names,
    labelled_folders,
    write_order,
)
from npucmp.dump.readers.names import (
    MAPPING,
    long_names,
    may_be_tensor,
    micro_of,
    natural,
    parse_tensor_name,
    place_of,
    skipped_files_note,
)
from npucmp.model import Operator, Run, first_of

NAME = "npy"
GRAPHS = GraphSource()

_READ = "input_"
_TIMED = re.compile(r"(?P<op>.+)\.(?P<index>[0-9]{1,6})\.(?P<time>[0-9]{10,20})")
_SLOTTED = re.compile(r"(?P<op>.+)\.(?P<role>input|output)\.(?P<index>[0-9]+(?:\.\w+)*)")


class NpyFile(NamedTuple):
    """The parts of a file name."""

    operator: str
    slot: str
    time: int
    path: str


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a path is a .npy file, or a folder with one directly or in folders that name step, rank or
    process."""
    if not path.is_dir():
        return path.is_file() and path.suffix == ".npy"
    return next(labelled_folders(path, (".npy",), SNIFFED), None) is not None


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per step and rank. Only headers are read.

    A malformed header becomes an operator with one unreadable tensor.
    """
    if path.is_file():
        return [_run(path, [path], context)]
    found = [*labelled_folders(path, (".npy",))]
    read = {above for folder in found for above in (folder, *folder.parents)}
    runs: dict[str, list[tuple[str, Run]]] = {}
    for folder in found:
        below = folder.relative_to(path).parts
        micro = [part for part in below if micro_of(part) is not None]
        where = path.joinpath(*(part for part in below if part not in micro))
        one = _run(folder, sorted(folder.iterdir()), context, read)
        runs.setdefault(str(where if micro else folder), []).append(("/".join(micro), one))
    return [join_batches(where, batches) if batches[0][0] else batches[0][1] for where, batches in runs.items()]


def _run(path: Path, names: list[Path], context: ReadContext, read: Optional[set[Path]] = None) -> Run:
    """Return the run of a file, or of a folder with these names; `read` are the folders that become runs."""
    notes: list[str] = []
    real = {} if read is None else long_names(path / MAPPING, notes, context)
    files = _of_words([parse_npy_name(file, real.get(file.name, "")) for file in names if _is_tensor(file, real)])
    others = (file.name for file in names if not _is_tensor(file, real) and not file.is_dir())
    notes += filter(None, [skipped_files_note(path, others), _below(path, names, read or set())])
    groups = executions(
        _read_of_them(files),
        operator=lambda file: file.operator,
        slot=lambda file: file.slot,
        age=lambda file: file.time,
        within=lambda file: natural(file.slot),
        position=_position,
    )
    timed = all(group[0].time for group in groups)
    written = [WrittenOperator([file.path for file in group], group[0].operator) for group in groups]
    order = None if timed else write_order(written)
    groups = [groups[at] for at in order] if order else groups
    operators = tuple(_operator(at, group, context) for at, group in enumerate(groups))
    outputs = all(file.slot.startswith("output") for group in groups for file in group)
    if order:
        notes.append(NOTE)
    elif not timed:
        notes.append("some file names have no time; their operators are sorted by name")
    step, rank, _ = place_of((path.parent if read is None else path).absolute().parts)
    about = "outputs only" if outputs else ""
    return Run(str(path), NAME, operators, step, rank, about, tuple(notes), ordered=timed)


def _read_of_them(files: list[NpyFile]) -> list[NpyFile]:
    """Rename the inputs of ONNX nodes, which are dumped as "input_Add_100" beside "Add_100", to input slots.

    A tool that writes inputs does so for every node: if only few nodes have such a file, it is the name of an operator.
    """
    named = {file.operator for file in files if file.time}
    twins = {name for name in named if name.startswith(_READ) and name[len(_READ) :] in named}
    if 2 * len(twins) < len(named - twins) or not twins:
        return files
    return [
        file._replace(operator=file.operator[len(_READ) :], slot=f"input{file.slot[len('output') :]}")
        if file.operator in twins
        else file
        for file in files
    ]


def _of_words(files: list[NpyFile]) -> list[NpyFile]:
    """Give an input by a word ("attn.input.attention_mask") to the operator of which a numbered slot is there."""
    numbered = {file.operator for file in files if Path(file.path).name != f"{file.operator}.npy" and not file.time}
    found = []
    for file in files:
        by_word = parse_tensor_name(file.operator, of_msprobe=True)
        if by_word.operator in numbered and not by_word.slot.startswith("output"):
            file = file._replace(operator=by_word.operator, slot=by_word.slot)
        found.append(file)
    return found


def _below(folder: Path, names: list[Path], read: set[Path]) -> Optional[str]:
    """Return the note on folders beside the files, which are not read; None if they hold no tensors."""
    unread = (path for path in names if path not in read and path.is_dir())
    found = [path.name for path in unread if any(map(may_be_tensor, first_names(path)))]
    if not found:
        return None
    return f"{folder}: folders next to the files are not read: {first_of(found, 3)}"


def _is_tensor(file: Path, real: Mapping[str, str]) -> bool:
    return file.suffix == ".npy" or file.name in real


def parse_npy_name(file: Path, long_name: str = "") -> NpyFile:
    """Return operator, slot and time of a file name, or of its real name from mapping.csv; see the module docstring."""
    name = long_name or file.name
    stem = name[: -len(".npy")] if name.endswith(".npy") else name
    timed = _TIMED.fullmatch(stem)
    if timed:
        return NpyFile(timed["op"], f"output:{int(timed['index'])}", int(timed["time"]), str(file))
    slotted = _SLOTTED.fullmatch(stem)
    if slotted:
        return NpyFile(slotted["op"], f"{slotted['role']}:{slotted['index']}", 0, str(file))
    return NpyFile(stem, "output:0", 0, str(file))


def _position(group: list[NpyFile]) -> tuple[int, list[object]]:
    return min(file.time for file in group), natural(group[0].operator)


def _operator(order: int, files: list[NpyFile], context: ReadContext) -> Operator:
    name = files[0].operator
    tensors = (tensor_of(file.slot, file.path, "npy", context=context) for file in files)
    reads = any(not file.slot.startswith("output") for file in files)
    return operator_by_name(name, order, tensors, reads, "backward" if name.endswith(".backward") else "")
