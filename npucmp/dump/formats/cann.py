"""Read raw dumps of an Ascend device: one file per executed operator.

    {time}/{device}/{model}/{model id}/{step}/   any part of it, or step_{N} and rank_{M} folders
        {type}.{name}.{task}.{time}                                        the first generation
        {type}.{name}.{task}.{stream}.{time}                               the second
        {type}.{name}.{task}.{stream}.{time}.4.{context}.{thread}.{device} FFTS+: one file per slice
        {any of these}.csv                                                 statistics instead of values
        {digits}                                                           a name too long: see mapping.csv
        Opdebug.Node_OpDebug.…                                             overflow records, no operator

Escaped names lose "/" and "."; DumpData.op_name keeps them and is preferred. Layouts of the bytes:
readers/cann_raw.py. Files are sorted by their times, or by the order of the graph if one is found.
Source: public sources of CANN's runtime and of msaccucmp; docs/formats.md.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.file_per_tensor import Place, PlaceContents, kinds_met_once, run_of
from npucmp.dump.graphs.graph import GraphSource
from npucmp.dump.layouts import DEVICE_LAYOUTS, fits, origins
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers import cann_raw, cann_slices, statistics_csv
from npucmp.dump.readers.cann_enums import RawDump, RawTensor
from npucmp.dump.readers.folders import executions, first_names, folders, folders_at
from npucmp.dump.readers.mindspore_files import kind
from npucmp.dump.readers.names import MAPPING, file_name_of, long_names, place_of, skipped_files_note
from npucmp.dump.readers.overflow_records import DEBUG, overflow_records
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import DumpError, SystemFailure
from npucmp.model import Device, DeviceTask, Operator, Payload, Run, TensorRef
from npucmp.model.optypes import op_type

NAME = "cann"
WALKS = True
GRAPHS = GraphSource(of_device=True)

_NAME = re.compile(
    r"(?P<type>(?=[\w-]*[a-zA-Z])[\w-]+)\.(?P<name>[\w-]+)"
    r"\.(?P<task>\d{1,10})(?:\.(?P<stream>\d{1,10}))?\.(?P<time>\d{1,255})"
    r"(?:\.(?P<kind>\d)\.(?P<context>\d{1,10})\.(?P<thread>\d{1,10})\.\d{1,10})?(?P<csv>\.csv)?",
    re.ASCII,
)
_SNIFFED = 1000  # maximum number of folders searched for a mapping.csv
_UNUSUAL = re.compile(r"(?P<type>(?=[\w-]*[a-zA-Z])[\w-]+)\..+\.(?P<time>\d{9,255})", re.ASCII)
_DIGITS = re.compile(r"\d+(\.csv)?", re.ASCII)
_TIME_FOLDER = re.compile(r"\d{14}")


class CannName(NamedTuple):
    """The parts of a file name; op_name is escaped. thread is -1 for an operator that was not cut into slices."""

    op_type: str
    op_name: str
    task: int
    stream: int
    time: int
    context: int
    thread: int
    csv: bool


class Record(NamedTuple):
    """One file: its parsed name, and its header or the reason why the header cannot be read."""

    path: str
    name: CannName
    op_name: str
    op_type: str
    slice: int
    dump: Optional[RawDump]
    problem: str = ""


@dataclass
class CannContents(PlaceContents[Record]):
    """The content of the folders of one place, and the dumped models that they name."""

    models: set[str] = field(default_factory=set)


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a file has such a name or is a nano dump, or a folder holds such a file within sixteen levels.

    A folder of numbered files is recognised by the real names in its mapping.csv.
    """
    if path.is_file():
        return parse_cann_name(path.name) is not None or _is_dump(path, context)
    named = (Path(folder, MAPPING) for folder, names in islice(folders(path), _SNIFFED) if MAPPING in names)
    real = (name for file in named for name in long_names(file, [], context).values())
    return any(map(parse_cann_name, chain(first_names(path), real)))


def _is_dump(path: Path, context: ReadContext) -> bool:
    """Return whether a file with another name is a dump, judged by its bytes."""
    try:
        return bool(_header(str(path), context).tensors)
    except SystemFailure:
        raise
    except DumpError:
        return False


def parse_cann_name(name: str) -> Optional[CannName]:
    """Parse a file name; None if it is not of this format."""
    match = _NAME.fullmatch(name)
    if match is None or match["kind"] not in (None, "0", "1", "2", "3", "4", "5"):
        return None
    if match["stream"] is None and len(match["time"]) < 9:  # {op}.{output}.{n} of another format
        return None
    number = {key: int(match[key]) if match[key] else -1 for key in ("task", "stream", "context", "thread")}
    return CannName(match["type"], match["name"], time=int(match["time"]), csv=bool(match["csv"]), **number)


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per (dump, step, rank). Only headers are read; a malformed file becomes one unreadable tensor."""
    seen: dict[Place, CannContents] = defaultdict(CannContents)
    runs: dict[Place, CannContents] = {}
    strangers: list[str] = []
    for folder, names in folders_at(path):
        where = _step_and_rank(Path(folder))
        contents = seen[where]
        files = _records(folder, names, contents.notes, path.is_file(), context)
        contents.records += overflow_records(folder, names)
        if files or contents.records:
            runs[where] = contents
            contents.files += files
            contents.models.add(_model(Path(folder)))
        elif not contents.notes:
            strangers += (os.path.relpath(os.path.join(folder, name), path) for name in names)
    for first in [*runs.values()][:1]:
        first.notes += filter(None, [skipped_files_note(path, strangers)])
    return [_run(where, contents, context) for where, contents in runs.items()]


def _step_and_rank(folder: Path) -> Place:
    """Return step and rank of the folders above: step_N and rank_M, else the folders below the time of the dump.

    Only models of one step share a place; a path that differs in another part is another dump.
    """
    parts = folder.absolute().parts
    times = [i for i, part in enumerate(parts) if _TIME_FOLDER.fullmatch(part)]
    step = rank = None
    root = len(parts)
    if times:
        root = times[-1] + 1
        below = parts[root:]
        if below and below[0].isdecimal():
            rank = int(below[0])
        if len(below) >= 3 and below[-1].isdecimal():
            step = int(below[-1])
    elif len(parts) >= 3 and parts[-1].isdecimal() and parts[-2].isdecimal() and not parts[-3].isdecimal():
        step = int(parts[-1])
        rank = int(parts[-4]) if len(parts) >= 4 and parts[-4].isdecimal() else None
        root = len(parts) - 3
    labels = place_of(parts)
    step, rank = step if labels.step is None else labels.step, rank if labels.rank is None else labels.rank
    return Place(os.path.join(*parts[: max(root, labels.depth)]), step, rank)


def labels(folder: str, name: str) -> tuple[Optional[int], Optional[int]]:
    """Return step and rank of a file, from its folders."""
    return _step_and_rank(Path(folder))[1:]


def _model(folder: Path) -> str:
    """Return the name of the dumped model, "" if the folders do not contain it."""
    parts = folder.absolute().parts
    times = [i for i, part in enumerate(parts) if _TIME_FOLDER.fullmatch(part)]
    below = parts[times[-1] + 2 :] if times else ()
    return next((part for part in below[:1] if not part.isdecimal()), "")


def _records(folder: str, names: Sequence[str], notes: list[str], any_name: bool, context: ReadContext) -> list[Record]:
    real = long_names(Path(folder, MAPPING), notes, context)
    found = []
    others = []
    nameless = 0
    for name in names:
        path = os.path.join(folder, name)
        numbered = _DIGITS.fullmatch(name) is not None
        parsed = _parse_mapping(name, real) if numbered else parse_cann_name(name) or _unusual(name, path, context)
        nameless += numbered and parsed is None
        if parsed is None and (any_name or (numbered and _is_dump(Path(path), context))):
            parsed = CannName("", Path(name).stem, -1, -1, 0, -1, -1, False)
        if parsed is not None and parsed.op_type != DEBUG:
            found.append(_record(path, parsed, context))
        elif parsed is None and not numbered:
            others.append(name)
    if found:
        notes += filter(None, [skipped_files_note(folder, others)])
    if nameless:
        notes.append(f"{folder}: {nameless} numbered files that {MAPPING} does not name")
    return found


def _unusual(name: str, path: str, context: ReadContext) -> Optional[CannName]:
    """Parse {type}.{any}.{time}, with at least nine digits, for dumps without an operator name or with dots in it."""
    match = _UNUSUAL.fullmatch(name)
    if match is None or not _is_dump(Path(path), context):
        return None
    return CannName(match["type"], Path(name).stem, -1, -1, int(match["time"]), -1, -1, False)


def _parse_mapping(name: str, real: Mapping[str, str]) -> Optional[CannName]:
    """Parse the real name of a numbered file; the .csv of statistics may be in either column of mapping.csv."""
    stem, csv, _ = name.partition(".csv")
    whole = real.get(name) or real.get(stem) or ""
    return parse_cann_name((whole[:-4] if whole.endswith(".csv") else whole) + csv)


def _record(path: str, name: CannName, context: ReadContext) -> Record:
    dump: Optional[RawDump] = None
    problem = ""
    if not name.csv:
        try:
            dump = _header(path, context)
        except DumpError as error:
            problem = error.because
    op_name, op_type = dump.op_name if dump and dump.op_name else name.op_name, name.op_type
    if dump and dump.op_name and file_name_of(dump.op_name) == name.op_type != name.op_name:
        op_type = name.op_name  # MindSpore writes {name}.{type} for operators of the newer operator library
    op_name, number = cann_slices.whole_name(op_name)
    return Record(path, name, op_name, op_type, number if number >= 0 else name.thread, dump, problem)


def _header(path: str, context: ReadContext) -> RawDump:
    with open_regular(path, context) as file:
        file.prefetch(0, 4096)
        return cann_raw.read_nano(file) if cann_raw.is_nano(file) else cann_raw.read_raw(file)


def _run(where: Place, contents: CannContents, context: ReadContext) -> Run:
    groups = executions(
        contents.files,
        operator=lambda record: record.op_name,
        slot=lambda record: (record.slice, record.name.csv),
        age=lambda record: (record.name.time, record.path),
        within=lambda record: (record.name.csv, record.slice),
        position=_position,
    )
    single = kinds_met_once(kind, (record.op_name for record in contents.files))
    operators = [_operator(order, group, single, contents.notes, context) for order, group in enumerate(groups)]
    models = " · ".join(sorted(filter(None, contents.models)))
    return run_of(where, NAME, operators, models, contents.notes, records=contents.records)


def _position(group: list[Record]) -> tuple[int, int, str]:
    first = min(group, key=lambda record: (record.name.time, record.path))
    return first.name.time, first.name.task, first.path


def _operator(
    order: int, group: Sequence[Record], single: set[str], notes: list[str], context: ReadContext
) -> Operator:
    first = group[0]
    tensors = _statistics(group, context) if first.name.csv else _tensors(group, notes)
    return Operator(
        name=first.op_name,
        op_type=first.op_type,
        kind=kind(first.op_name),
        phase="",
        order=order,
        tensors=tensors,
        call=first.op_name,
        unique=kind(first.op_name) in single,  # MindSpore numbers the kernels of one type in one scope
        reads_recorded=any(not tensor.is_output for tensor in tensors),
        inserted=op_type(first.op_type).has("inserted"),
        tasks=tuple(DeviceTask(one.name.task, one.name.stream, one.name.context, one.name.thread) for one in group),
    )


def _statistics(group: Sequence[Record], context: ReadContext) -> tuple[TensorRef, ...]:
    first = group[0]
    try:
        tensors = statistics_csv.read_statistics(first.path, context)
    except DumpError as error:
        return (_unreadable_tensor(first, error.because),)
    if len(group) > 1:
        problem = f"computed in {len(group)} slices; statistics of slices do not give those of the whole tensor"
        return tuple(tensor._replace(problem=problem) for tensor in tensors)
    return tensors


def _unreadable_tensor(record: Record, problem: str) -> TensorRef:
    return TensorRef("", "", (), file=record.path, problem=problem, label=os.path.basename(record.path))


def _tensors(group: Sequence[Record], notes: list[str]) -> tuple[TensorRef, ...]:
    """Return the tensors of one execution, from its only file or joined from its slices."""
    records = [record for record in group if not record.name.csv]
    broken = next((record for record in records if record.dump is None), None)
    if broken is not None:
        return (_unreadable_tensor(broken, broken.problem),)
    dumps = [record.dump for record in records if record.dump is not None]
    slots = [dict(_slots(dump)) for dump in dumps]
    cuts = cann_slices.cuts(dumps[0].attributes)
    if cuts is not None and cuts.slices not in (0, len(dumps)):
        notes.append(f"{records[0].op_name}: {len(dumps)} of {cuts.slices} slices were dumped")
    found = []
    for role, index in dict.fromkeys(slot for one in slots for slot in one):
        parts = [(record.path, one[role, index]) for record, one in zip(records, slots) if (role, index) in one]
        path, raw = parts[0]
        axis = None if cuts is None else cuts.axis(role, index)
        made = max(len(dumps), cuts.slices) if cuts is not None and axis is not None else len(dumps)
        whole = cann_slices.join([part for _, part in parts], axis, made)
        payload = Payload(path, raw.dtype, whole.shape, raw.offset)
        if whole.shape != raw.shape and not whole.problem:
            places = tuple(Payload(path, part.dtype, part.shape, part.offset) for path, part in parts)
            payload = payload._replace(parts=places, axis=axis or 0)
        found.append(_tensor(f"{role}:{index}", whole, payload, f"{os.path.basename(path)}:{role}.{index}"))
    return tuple(found)


def _slots(dump: RawDump) -> Iterator[tuple[tuple[str, int], RawTensor]]:
    seen: Counter[str] = Counter()
    for tensor in dump.tensors:
        yield (tensor.role, seen[tensor.role]), tensor
        seen[tensor.role] += 1


def _tensor(slot: str, raw: RawTensor, payload: Payload, label: str) -> TensorRef:
    """Return the tensor in its logical shape, if header and layout determine it."""
    made = TensorRef(
        slot, raw.dtype, raw.shape, payload.path, layout=raw.layout, problem=raw.problem, label=label, origin=raw.origin
    )
    if raw.problem:
        return made._replace(shape=raw.original or raw.shape)
    if raw.layout not in DEVICE_LAYOUTS:
        as_many = raw.original is not None and math.prod(raw.original) == math.prod(raw.shape)
        plain = raw.original if raw.original is not None and as_many else raw.shape
        return made._replace(shape=plain, payload=payload._replace(shape=plain))
    device = Device(raw.layout, raw.shape, "", raw.groups)
    if raw.original is None or (not raw.original and math.prod(raw.shape) > 1):
        return made._replace(payload=payload._replace(device=device))
    logical = raw.original
    fitting = [order for order in origins(raw.layout) if fits(raw.shape, raw.layout, order, logical, raw.groups)]
    if not fitting:
        words = f"layout {raw.layout} of stored shape {list(raw.shape)} cannot hold shape {list(logical)}"
        return made._replace(shape=logical, problem=words)
    device = device._replace(origin=fitting[0] if len(fitting) == 1 else "")
    return made._replace(shape=logical, payload=payload._replace(shape=logical, device=device))
