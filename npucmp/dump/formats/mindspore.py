"""Read MindSpore's own dumps: a file per tensor, or a table of statistics, of every kernel of a graph.

    {root}/rank_{r}/{net}/{graph}/{iteration}/      CPU, GPU, Ascend O0 and O1; any folder of it, or such files alone
    {root}/{step}/{time}/{device}/{model}/{model id}/{iteration}/     Ascend O2; {time} has 14 digits
    {root}/rank_{r}/{time}/step_{n}/                                  msprobe, level L2
        {type}.{name}.{task}.{stream}.{microseconds}.{input|output}.{n}….npy      readers/mindspore_files.py
        {the same}.{format}.{DTYPE}[.bin]       only bytes                        readers/mindspore_files.py
        statistic.csv       a row per tensor, beside the files or instead of them
        mapping.csv         {digits}.npy → the name that was too long
        Opdebug.Node_OpDebug.{task}.{stream}.{microseconds}.output.0.json         overflow records, no operators
    {root}/rank_{r}/debug_files/{iteration}/                                  overflow records of the same step
    {root}/rank_{r}/execution_order/ms_execution_order_graph_{graph}.csv      full names of kernels, a line each
    {root}/rank_{r}/graphs/ms_output_trace_code_graph_{graph}.ir              full names, constants and source lines

If a tensor of a kernel has several times, the kernel was executed several times. Parameter.{name} are not kernels but
weights and network inputs, dumped at the end of the step with the values that the optimizer wrote; they count as
reads at the end of the step. Task and stream are 0 or 65535 everywhere if MindSpore does not know them.
Source: MindSpore's public documentation, sources and output (2.10 on CPU); docs/formats.md.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.file_per_tensor import PlaceContents, kinds_met_once
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.named_tensors import tensor_of
from npucmp.dump.readers.folders import executions, first_files, folders
from npucmp.dump.readers.mindspore_files import (
    STATISTIC,
    MindsporeName,
    StatisticRow,
    device_layout,
    is_table,
    kind,
    parse_mindspore_name,
    parse_raw_name,
    raw_tensor,
    raw_type,
    rows,
)
from npucmp.dump.readers.mindspore_ir import Companions
from npucmp.dump.readers.names import MAPPING, long_names, place_of, skipped_files_note
from npucmp.dump.readers.overflow_records import DEBUG, overflow_records
from npucmp.model import DeviceTask, Operator, Run, TensorRef

NAME = "mindspore"
WALKS = True
GRAPHS = None

_DEPTH = 8
_SNIFFED = 5000  # maximum number of file names read while sniffing
_NO_OPERATORS = {"constants", ".dump_metadata", "graphs", "execution_order"}
_DEBUG_FILES = "debug_files"
_NO_TASK = (65535, 65535)

_RAW = re.compile(r"[\w-]+\.[\w-]+(\.[0-9]+){2,7}")  # formats/cann.py reads these
_RECORD = re.compile(rf"{DEBUG}\.[\w-]+(\.[0-9]+){{2,7}}\.output\.[0-9]+\.json")
_TIME_FOLDER = re.compile(r"[0-9]{14}")
_NUMBER = re.compile(r"[0-9]{1,9}")


class DumpedTensor(NamedTuple):
    """One tensor with the name that it was dumped under, and the folder of its graph."""

    name: MindsporeName
    tensor: TensorRef
    folder: str


class MindsporePlace(NamedTuple):
    """The run that a folder belongs to. step_folder and iteration both count steps; only O2 dumps have both."""

    dump: str
    step_folder: Optional[int]
    iteration: Optional[int]
    rank: Optional[int]


Contents = PlaceContents[DumpedTensor]


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a path is, or a folder holds within eight levels, a .npy file or record of such a name or a
    statistic.csv."""
    if path.is_file():
        return _is_named(path.name) or (path.name == STATISTIC and is_table(path, context))
    return any(
        _holds_some(Path(folder), names, context) for folder, names in first_files(_dump_folders(path), _SNIFFED)
    )


def _holds_some(folder: Path, names: Sequence[str], context: ReadContext) -> bool:
    if any(map(_is_named, names)):
        return True
    if STATISTIC in names and not any(map(_RAW.fullmatch, names)):  # raw dumps contain more than the table
        return is_table(folder / STATISTIC, context)
    real = long_names(folder / MAPPING, [], context) if MAPPING in names else {}
    return any(_is_named(_real_name(name, real)) for name in names if real)


def _is_named(name: str) -> bool:
    raw = parse_raw_name(name)
    return parse_mindspore_name(name) is not None or bool(raw and raw_type(raw)) or _RECORD.fullmatch(name) is not None


def _dump_folders(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield folders that may hold operators or records; links to folders are not followed."""
    base = len(path.parts)
    for folder, names in folders(path, _DEPTH):
        below = Path(folder).parts[base:]
        if _NO_OPERATORS.isdisjoint(below):
            yield folder, [name for name in names if _DEBUG_FILES not in below or name.startswith(f"{DEBUG}.")]


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per (dump, step, rank). Only headers are read; a malformed file becomes one unreadable tensor."""
    places: dict[MindsporePlace, Contents] = defaultdict(Contents)
    strangers: list[str] = []
    for folder, names in [(str(path.parent), [path.name])] if path.is_file() else _dump_folders(path):
        notes: list[str] = []
        entries = list(_entries(Path(folder), names, notes, context))
        records = overflow_records(folder, names)
        if entries or records or notes:
            found = places[_step_and_rank(Path(folder))]
            found.files += entries
            found.records += records
            found.notes += notes
        else:
            strangers += (os.path.relpath(os.path.join(folder, name), path) for name in names)
    if places:
        next(iter(places.values())).notes += filter(None, [skipped_files_note(path, strangers)])
    steps = _steps(list(places))
    _join_records(places, steps)
    beside: dict[Path, Companions] = {}  # the runs of one rank share it
    runs = []
    for place, found in places.items():
        where = _graph_folder(Path(found.files[0].folder)) if found.files else path
        about = beside.setdefault(where, Companions(where, context))
        runs.append(_run(place, steps[place], found, about))
    return runs


def _step_and_rank(folder: Path) -> MindsporePlace:
    """Return step and rank of a path: step_N and rank_M, folders around a time, else {graph}/{iteration} at its end."""
    parts = folder.absolute().parts
    step, rank, depth = place_of(parts)
    root = len(parts)
    iteration: Optional[int] = None
    times = [i for i, part in enumerate(parts) if _TIME_FOLDER.fullmatch(part)]
    below = parts[times[-1] + 1 :] if times else ()
    if step is not None:
        root = depth
    elif below and _NUMBER.fullmatch(below[0]):
        step = _as_number(parts[times[-1] - 1])
        rank = int(below[0]) if rank is None else rank
        iteration = _as_number(below[-1]) if len(below) > 2 else None
        root = times[-1] + 2
    elif len(parts) > 3 and _NUMBER.fullmatch(parts[-1]) and re.fullmatch(rf"[0-9]{{1,9}}|{_DEBUG_FILES}", parts[-2]):
        iteration = int(parts[-1])
        root = len(parts) - 2
    return MindsporePlace(os.path.join(*parts[:root]), step, iteration, rank)


def labels(folder: str, name: str) -> tuple[Optional[int], Optional[int]]:
    """Return step and rank of a file, from its folders. Iterations of a graph in one step folder are one step here."""
    _, step, iteration, rank = _step_and_rank(Path(folder))
    return iteration if step is None else step, rank


def _as_number(text: str) -> Optional[int]:
    return int(text) if _NUMBER.fullmatch(text) else None


def _steps(places: Sequence[MindsporePlace]) -> dict[MindsporePlace, Optional[int]]:
    """Return the step of each run: the step folder, unless it holds several iterations of the graph."""
    steps = {place: place.iteration if place.step_folder is None else place.step_folder for place in places}
    if len({(steps[place], place.rank) for place in places}) < len(places):
        return {place: place.step_folder if place.iteration is None else place.iteration for place in places}
    return steps


def _join_records(places: dict[MindsporePlace, Contents], steps: Mapping[MindsporePlace, Optional[int]]) -> None:
    """Move records stored apart from the operators of their step and rank to that run."""
    for place in [place for place, found in places.items() if found.records and not found.files]:
        same = [
            other
            for other, found in places.items()
            if found.files and (steps[other], other.rank) == (steps[place], place.rank)
        ]
        if len(same) == 1:
            apart = places.pop(place)
            places[same[0]].records += apart.records
            places[same[0]].notes += apart.notes


def _real_name(name: str, real: Mapping[str, str]) -> str:
    """Return the real name of a file; mapping.csv only renames files."""
    return real.get(name) or real.get(name[: -len(".npy")] if name.endswith(".npy") else name) or name


def _entries(folder: Path, names: Sequence[str], notes: list[str], context: ReadContext) -> Iterator[DumpedTensor]:
    """Yield the tensors of one folder: files with their statistics if recorded, and statistics without files."""
    real = long_names(folder / MAPPING, notes, context) if MAPPING in names else {}
    named = [(name, parse_mindspore_name(_real_name(name, real))) for name in names if not name.startswith(f"{DEBUG}.")]
    files = [(parsed, os.path.join(folder, name)) for name, parsed in named if parsed]
    recorded = rows(folder / STATISTIC, notes, context) if STATISTIC in names else []
    others = [name for name, parsed in named if parsed is None]
    raw = {name: parsed for name in others if (parsed := parse_raw_name(_real_name(name, real)))}
    there = {(one.key, one.time) for one, _ in files}
    bare = {
        os.path.join(folder, name): parsed for name, parsed in raw.items() if (parsed.key, parsed.time) not in there
    }
    if not (files or recorded or any(map(raw_type, bare.values()))):
        return
    notes += filter(None, [skipped_files_note(folder, (name for name in others if name not in raw))])
    for file, row in _paired_files([*files, *((parsed, path) for path, parsed in bare.items())], recorded):
        if file:
            yield DumpedTensor(file[0], _tensor(*file, row, file[1] in bare, context), str(folder))
        elif row:
            yield DumpedTensor(*row, str(folder))


def _paired_files(
    files: Sequence[tuple[MindsporeName, str]], recorded: Sequence[StatisticRow]
) -> Iterator[tuple[Optional[tuple[MindsporeName, str]], Optional[StatisticRow]]]:
    """Pair files and rows of one tensor: by time, the remaining ones from the newest on."""
    left: dict[tuple[str, str, int], dict[int, StatisticRow]] = defaultdict(dict)
    for row in recorded:
        left[row.name.key][row.name.time] = row
    waiting = defaultdict(list)
    for file in files:
        row_of_it = left[file[0].key].pop(file[0].time, None)
        if row_of_it:
            yield file, row_of_it
        else:
            waiting[file[0].key].append(file)
    for key in {**waiting, **left}:
        newest = sorted(waiting.get(key, ()), reverse=True)
        yield from zip_longest(newest, [row for _, row in sorted(left.get(key, {}).items(), reverse=True)])


def _tensor(
    name: MindsporeName, file: str, row: Optional[StatisticRow], is_raw: bool, context: ReadContext
) -> TensorRef:
    if is_raw:
        return raw_tensor(name, file, row.tensor if row else None, context)
    found = tensor_of(name.slot, file, "npy", name.dtype or (row.tensor.dtype if row else ""), context)
    if found.problem:
        return found
    layout = device_layout(name.layout)
    return found._replace(
        statistics=row.tensor.statistics if row else None,
        checksum=row.tensor.checksum if row else "",
        layout=layout if len(found.shape) >= 5 or layout.startswith("FRACTAL_") else "",
    )


def _run(place: MindsporePlace, step: Optional[int], found: Contents, beside: Companions) -> Run:
    entries, notes = found.files, found.notes
    groups = executions(
        entries,
        operator=lambda entry: (entry.folder, entry.name.op_name),
        slot=lambda entry: entry.name.key,
        age=lambda entry: (entry.name.time, entry.tensor.label),
        within=lambda entry: entry.name.key,  # inputs first
    )
    order = _recorded_order(groups, beside)
    groups.sort(key=lambda group: (group[0].name.is_parameter, order.get(id(group), (0, 0)), *_position(group)))
    single = kinds_met_once(kind, (entry.name.op_name for entry in entries))
    timed = bool(order) or all(group[0].name.time for group in groups)
    if not timed:
        notes.append("some tensors have no time; their operators are sorted by name")
    operators = [_operator(number, group, single, beside) for number, group in enumerate(groups)]
    if not any(set(operator.tasks) - {DeviceTask(0, 0)} for operator in operators):
        operators = [operator._replace(tasks=()) for operator in operators]
    return Run(
        path=os.path.commonpath({entry.folder for entry in entries}) if entries else place.dump,
        format=NAME,
        operators=tuple(operators),
        step=step,
        rank=place.rank,
        detail=_detail(place, entries),
        notes=tuple(dict.fromkeys(notes + beside.notes)),
        ordered=timed,
        problem="" if entries or found.records else "; ".join(notes),
        records=tuple(found.records),
    )


def _detail(place: MindsporePlace, entries: Sequence[DumpedTensor]) -> str:
    graph = os.path.basename(place.dump) if place.step_folder is None and place.iteration is not None else ""
    task = "statistics" if entries else ""
    task = "checksums" if any(entry.tensor.checksum for entry in entries) else task
    task = "tensor" if any(entry.tensor.file for entry in entries) else task
    return " · ".join(filter(None, (graph, task)))


def _position(group: Sequence[DumpedTensor]) -> tuple[int, str, str]:
    return min(entry.name.time for entry in group), group[0].name.op_name, group[0].folder


def _recorded_order(groups: Sequence[Sequence[DumpedTensor]], beside: Companions) -> dict[int, tuple[int, int]]:
    """Return positions by execution_order/; {} unless it lists each operator once, then times decide the order.

    A list that lacks an operator does not determine its position, and a time among positions may precede its producers.
    """
    kernels: dict[str, list[Sequence[DumpedTensor]]] = defaultdict(list)
    for group in groups:
        if not group[0].name.is_parameter:
            kernels[group[0].folder].append(group)
    places: dict[int, tuple[int, int]] = {}
    for folder, members in kernels.items():
        found = beside.launch_order(Path(folder).absolute().parent.name, [group[0].name.op_name for group in members])
        if not found:
            return {}
        start = min(_position(group)[0] for group in members)
        places.update((id(group), (start, place)) for group, place in zip(members, found))
    return places


def _operator(order: int, group: Sequence[DumpedTensor], single: set[str], beside: Companions) -> Operator:
    name = group[0].name
    tensors = tuple(entry.tensor for entry in group)
    node = beside.node(name.op_name)
    scalars = {tensor.slot: tensor.dtype for tensor in tensors if tensor.shape == ()}
    tasks = dict.fromkeys(entry.name.task for entry in group if not name.is_parameter)
    return Operator(
        name=name.op_name,
        op_type=name.op_type,
        kind=kind(name.op_name),
        # Names do not distinguish forward and optimizer. A backward kernel has all its operands among its own
        # inputs, so no `call` ties it to its forward.
        phase="backward" if name.op_name.startswith("Gradients") else "",
        order=order,
        tensors=tensors,
        # constants were dumped as tensors too, whose type must be equal
        arguments={slot: value for slot, (dtype, value) in node.constants.items() if scalars.get(slot) == dtype},
        stack=node.stack,
        # "-op1" counts the kernels of one type in one scope, so an additional kernel shifts later ones. A name without
        # such neighbours has only scope and type, which come from the network.
        unique=kind(name.op_name) in single,
        call=name.op_name,
        reads_recorded=any(not tensor.is_output for tensor in tensors),
        tasks=tuple(task for task in tasks if task.task >= 0 and task[:2] != _NO_TASK),
        attributes=node.attributes,
    )


def _graph_folder(folder: Path) -> Path:
    """Return the folder of graphs/ and execution_order/ according to the path: rank_N, or where it would be."""
    folder = folder.absolute()
    for parent in (folder, *folder.parents):
        if place_of([parent.name]).rank is not None:
            return parent
    return folder.parents[2] if _NUMBER.fullmatch(folder.name) and len(folder.parents) > 2 else folder
