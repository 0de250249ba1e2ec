"""MindSpore's own dumps: a file per tensor, or a table of statistics, of every kernel of a graph.

    {root}/rank_{r}/{net}/{graph}/{iteration}/      CPU, GPU, Ascend O0 and O1; any folder of it, or such files alone
    {root}/{step}/{time}/{device}/{model}/{model id}/{iteration}/     Ascend O2; {time} has 14 digits
    {root}/rank_{r}/{time}/step_{n}/                                  msprobe, level L2
        {type}.{name}.{task}.{stream}.{microseconds}.{input|output}.{n}[.{format}[.{dtype}]].npy
        {type}.{name}.{task}.{stream}.{microseconds}.{input|output}.{n}[.{A}x{B}x{C}].npy    converted raw dumps
        statistic.csv       a row per tensor, beside the files or instead of them
        mapping.csv         {digits}.npy → the name that was too long
    {root}/rank_{r}/execution_order/ms_execution_order_graph_{graph}.csv      full names of kernels, a line each
    {root}/rank_{r}/graphs/ms_output_trace_code_graph_{graph}.ir              full names, constants and source lines

{name} is the full name ("Default/network-Net/fc-Dense/MatMul-op0") with "_" for "/", older: its last part. Kernels with
several times for one tensor were executed several times. Parameter.{name} are no kernels: weights and network inputs,
dumped when the step is over, with the values that the optimizer left; they count as reads at the end of the step.
Source: MindSpore's public documentation, sources and output (2.10 on CPU); docs/formats.md.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.dtypes import canonical, lookup
from npucmp.errors import DumpError
from npucmp.model import Operator, Run, Statistics, TensorRef
from npucmp.readers import npy
from npucmp.readers.folders import folders
from npucmp.readers.long_names import MAPPING, long_names
from npucmp.readers.text import read_text

NAME = "mindspore"
ABOUT = "MindSpore dumps: {type}.{name}.{task}.{stream}.{time}.{input|output}.{n}….npy or statistic.csv, in rank_*/…"

STATISTIC = "statistic.csv"
PARAMETER = "Parameter"
_DEPTH = 8
_SNIFFED = 5000  # file names that sniffing looks at
_TABLE_BYTES, _ORDER_BYTES, _GRAPH_BYTES = 256 << 20, 64 << 20, 64 << 20
_GRAPH_FILES = 16
_FRAMES = 64  # of one node
_NAME_LENGTH = 4096
_NO_OPERATORS = {"constants", ".dump_metadata", "graphs", "execution_order", "debug_files"}

_NAME = re.compile(
    r"(?P<type>[^.]+)\.(?P<op>[^.]+)\.(?P<numbers>[0-9]{1,20}(?:\.[0-9]{1,20}){1,6})"
    r"\.(?P<role>input|output)\.(?P<number>[0-9]{1,9})(?P<tail>(?:\.[^.]+)*)\.npy"
)
_RAW = re.compile(r"[\w-]+\.[\w-]+(\.[0-9]+){2,7}")  # formats/cann.py reads these
_TIME_FOLDER = re.compile(r"[0-9]{14}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_DEVICE_LAYOUT = re.compile(r"FRACTAL_\w+|\w*C1\w*C0\w*|C1HWNCoC0")
_NUMBERED = re.compile(r"-op[0-9]+$")
_SHAPE = re.compile(r"[0-9x,()\[\]\s]*")
_FULL_NAME = re.compile(r"[#:]\s*full_?name_?\s*_?with_?\s*_?scope:?\s*\((?P<name>[^()\s]+)\)", re.IGNORECASE)
_CALL = re.compile(r"% ?\w+\(.*?\) = [\w.]+\((?P<inputs>.*)")
_CONSTANT = re.compile(r"(?P<type>Bool|[IUF][0-9]{1,2})\((?P<value>[^()]{1,40})\)")
_FRAME = re.compile(
    r"# In file (?P<path>.+?)(?::|\()(?P<line>[0-9]{1,9})(?:~[0-9]+, [0-9~]+|, [0-9~]+|\))/(?P<code>.*)"
)
_DEFINITION = re.compile(r"\s*(?:async )?def (?P<name>\w+)")


class Name(NamedTuple):
    """What a file name says. `layout` and `dtype` are the dump's words, "" where it has none."""

    op_type: str
    op_name: str
    role: str
    number: int
    time: int
    layout: str = ""
    dtype: str = ""


class Row(NamedTuple):
    """A row of statistic.csv."""

    name: Name
    shape: tuple[int, ...]
    statistics: Optional[Statistics]
    checksum: str
    problem: str


class Entry(NamedTuple):
    """One tensor with the name that it was dumped under, and the folder of its graph."""

    name: Name
    tensor: TensorRef
    folder: str


class Place(NamedTuple):
    """Which run a folder belongs to. step_folder and iteration both count steps; only O2 dumps have both."""

    dump: str
    step_folder: Optional[int]
    iteration: Optional[int]
    rank: Optional[int]


class GraphNode(NamedTuple):
    """What the IR tells of a kernel: constants by input index, as (dtype, value), and "# In file" lines."""

    constants: Mapping[int, "tuple[str, Any]"]
    lines: list[str]


def sniff(path: Path) -> bool:
    """A .npy file with such a name, a statistic.csv, or a folder with one at most eight levels down."""
    try:
        if path.is_file():
            return parse_name(path.name) is not None or (path.name == STATISTIC and _is_table(path))
        return path.is_dir() and any(_holds_some(Path(folder), names) for folder, names in _looked_at(path))
    except (OSError, ValueError):  # a name that no file can have
        return False


def _looked_at(path: Path) -> "Iterator[tuple[str, list[str]]]":
    left = _SNIFFED
    for folder, names in _dump_folders(path):
        yield folder, names[:left]
        left -= len(names) + 1
        if left <= 0:
            return


def _holds_some(folder: Path, names: Sequence[str]) -> bool:
    if any(parse_name(name) for name in names):
        return True
    if STATISTIC in names and not any(_RAW.fullmatch(name) for name in names):  # raw dumps hold more than the table
        return _is_table(folder / STATISTIC)
    if MAPPING not in names:
        return False
    real = long_names(folder / MAPPING, [])
    return any(parse_name(_real_name(name, real)) for name in names)


def _is_table(file: Path) -> bool:
    with open(file, "rb") as stream:
        head = stream.read(4096).decode("utf-8-sig", "replace").lower()
    return all(word in head for word in ("op name", "slot", "data type", "shape"))


def _dump_folders(path: Path) -> "Iterator[tuple[str, list[str]]]":
    """Folders that may hold operators; links to folders are not followed."""
    base = len(path.parts)
    for folder, names in folders(path, _DEPTH):
        if _NO_OPERATORS.isdisjoint(Path(folder).parts[base:]):
            yield folder, names


def open_runs(path: Path) -> list[Run]:
    """One Run per (dump, step, rank). Headers are read, payloads are not; a broken file is one unreadable tensor."""
    entries: dict[Place, list[Entry]] = defaultdict(list)
    notes: dict[Place, list[str]] = defaultdict(list)
    for folder, names in [(str(path.parent), [path.name])] if path.is_file() else _dump_folders(path):
        told: list[str] = []
        some = list(_entries(Path(folder), names, told))
        if some or told:
            place = _place(Path(folder))
            entries[place] += some
            notes[place] += told
    steps = _steps(list(entries))
    beside: dict[Path, _Beside] = {}  # the runs of one rank share it
    runs = []
    for place, found in entries.items():
        where = _beside(Path(found[0].folder)) if found else path
        about = beside.setdefault(where, _Beside(where))
        runs.append(_run(place, steps[place], found, about, notes[place]))
    return runs


def _place(folder: Path) -> Place:
    """Step and rank from the path: step_N and rank_M, what is around a time, else {graph}/{iteration} at its end."""
    parts = folder.absolute().parts
    rank, step = _numbered(parts, "rank"), _numbered(parts, "step")
    root = len(parts)
    iteration: Optional[int] = None
    times = [i for i, part in enumerate(parts) if _TIME_FOLDER.fullmatch(part)]
    below = parts[times[-1] + 1 :] if times else ()
    if step is not None:
        root = max(i for i, part in enumerate(parts) if re.fullmatch(r"step_?[0-9]+", part)) + 1
    elif below and _NUMBER.fullmatch(below[0]):
        step = _as_number(parts[times[-1] - 1])
        rank = int(below[0]) if rank is None else rank
        iteration = _as_number(below[-1]) if len(below) > 2 else None
        root = times[-1] + 2
    elif len(parts) > 3 and _NUMBER.fullmatch(parts[-1]) and _NUMBER.fullmatch(parts[-2]):
        iteration = int(parts[-1])
        root = len(parts) - 2
    return Place(os.path.join(*parts[:root]), step, iteration, rank)


def _numbered(parts: Sequence[str], word: str) -> Optional[int]:
    found = [match for part in parts if (match := re.fullmatch(word + r"_?([0-9]{1,9})", part))]
    return int(found[-1][1]) if found else None


def _as_number(text: str) -> Optional[int]:
    return int(text) if _NUMBER.fullmatch(text) else None


def _steps(places: Sequence[Place]) -> dict[Place, Optional[int]]:
    """The step of each run: that of the step folder, unless it holds several iterations of the graph."""
    steps = {place: place.iteration if place.step_folder is None else place.step_folder for place in places}
    if len({(steps[place], place.rank) for place in places}) < len(places):
        return {place: place.step_folder if place.iteration is None else place.iteration for place in places}
    return steps


def parse_name(name: str) -> Optional[Name]:
    """A file name taken apart; None if it is not one of this format."""
    match = _NAME.fullmatch(name) if len(name) <= _NAME_LENGTH else None
    if match is None:
        return None
    numbers = match["numbers"].split(".")  # task, stream, time, then what FFTS+ appends
    if len(numbers) == 2 and len(numbers[1]) < 10:  # {task}.{time} of the first CANN releases; a time is no index
        return None
    words = [*match["tail"].split("."), "", ""][1:3]
    time = int(numbers[2] if len(numbers) > 2 else numbers[1])
    return Name(match["type"], match["op"], match["role"], int(match["number"]), time, *words)


def _real_name(name: str, real: Mapping[str, str]) -> str:
    """The name that a file stands for; mapping.csv only renames, it names no other file."""
    return real.get(name) or real.get(name[: -len(".npy")] if name.endswith(".npy") else name) or name


def _entries(folder: Path, names: Sequence[str], notes: list[str]) -> Iterator[Entry]:
    """The tensors of one folder: files, with their statistics where there are some, and statistics alone."""
    real = long_names(folder / MAPPING, notes) if MAPPING in names else {}
    named = [(name, parse_name(_real_name(name, real))) for name in names]
    files = [(parsed, os.path.join(folder, name)) for name, parsed in named if parsed]
    rows = _rows(folder / STATISTIC, notes) if STATISTIC in names else []
    others = [name for name, parsed in named if parsed is None and name.endswith(".npy")]
    if others and (files or rows):
        notes.append(f"{folder}: {len(others)} .npy files have no operator's name and are left out, as {others[0]}")
    for file, row in _joined(files, rows):
        if file:
            yield Entry(file[0], _tensor(*file, row), str(folder))
        elif row:
            yield Entry(row.name, _recorded(row), str(folder))


def _joined(
    files: "Sequence[tuple[Name, str]]", rows: Sequence[Row]
) -> "Iterator[tuple[Optional[tuple[Name, str]], Optional[Row]]]":
    """Files and rows of one tensor together: by time, what is left from the newest on."""
    left: dict[tuple[str, str, int], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        left[_slot_key(row.name)][row.name.time] = row
    waiting = defaultdict(list)
    for file in files:
        row_of_it = left[_slot_key(file[0])].pop(file[0].time, None)
        if row_of_it:
            yield file, row_of_it
        else:
            waiting[_slot_key(file[0])].append(file)
    for key in {**waiting, **left}:
        newest = sorted(waiting.get(key, ()), reverse=True)
        yield from zip_longest(newest, [row for _, row in sorted(left.get(key, {}).items(), reverse=True)])


def _slot_key(name: Name) -> "tuple[str, str, int]":
    return name.op_name, name.role, name.number


def _slot(name: Name) -> str:
    role = "input" if name.op_type == PARAMETER else name.role
    return f"{role}:{name.number}"


def _tensor(name: Name, file: str, row: Optional[Row]) -> TensorRef:
    label = os.path.basename(file)
    try:
        header = npy.header(file)
    except DumpError as error:
        return TensorRef("", "", (), file=file, encoding="npy", problem=error.because, label=label)
    device = _DEVICE_LAYOUT.fullmatch(name.layout) and (len(header.shape) >= 5 or name.layout.startswith("FRACTAL_"))
    return TensorRef(
        slot=_slot(name),
        dtype=_dtype(name.dtype or (row.name.dtype if row else ""), header.dtype),
        shape=header.shape,
        file=file,
        encoding="npy",
        statistics=row.statistics if row else None,
        checksum=row.checksum if row else "",
        layout=name.layout if device else "",
        label=label,
    )


def _dtype(word: str, stored: str) -> str:
    """The type that the run computed in, if NPY has none for it and the file holds a wider float; else the file's."""
    named, held = lookup(_canonical(word)), lookup(stored)
    if named and held and named.kind == held.kind == "f" and named.round_off > held.round_off:
        return named.name
    return stored


def _canonical(word: str) -> str:
    return canonical(word[3:] if word.upper().startswith("DT_") else word)


def _recorded(row: Row) -> TensorRef:
    return TensorRef(
        slot=_slot(row.name),
        dtype=_canonical(row.name.dtype),
        shape=row.shape,
        statistics=row.statistics,
        checksum=row.checksum,
        problem=row.problem,
        label=f"{row.name.op_type}.{row.name.op_name}.{row.name.time}.{row.name.role}.{row.name.number}",
    )


def _rows(file: Path, notes: list[str]) -> list[Row]:
    """The rows of a statistic.csv, by the names in its header; a row that names no tensor costs a note."""
    try:
        table = csv.reader(read_text(file, _TABLE_BYTES).splitlines())
        header = [word.strip().lower() for word in next(table, [])]
        found = [_row(dict(zip(header, (cell.strip() for cell in cells)))) for cells in table if cells]
    except (DumpError, csv.Error) as error:
        notes.append(f"{file}: ignored, {getattr(error, 'because', error)}")
        return []
    lost = found.count(None)
    if lost or not found:
        notes.append(f"{file}: {lost} rows do not name a tensor and are left out" if lost else f"{file}: has no rows")
    return [row for row in found if row]


def _row(cells: Mapping[str, str]) -> Optional[Row]:
    role = (cells.get("io") or cells.get("input/output") or "").lower()
    index, op_name = cells.get("slot", ""), cells.get("op name", "")
    if role not in ("input", "output") or not op_name or not _NUMBER.fullmatch(index):
        return None
    time = cells.get("timestamp", "")
    shape = _shape(cells.get("shape", ""))
    return Row(
        name=Name(
            cells.get("op type", ""),
            op_name,
            role,
            int(index),
            int(time) if re.fullmatch(r"[0-9]{1,20}", time) else 0,
            dtype=cells.get("data type", ""),
        ),
        shape=shape or (),
        statistics=_statistics(cells),
        checksum=cells.get("md5") or cells.get("md5 value") or "",
        problem=f"{STATISTIC} gives it the shape {cells.get('shape', '')!r:.60}" if shape is None else "",
    )


def _shape(text: str) -> "Optional[tuple[int, ...]]":
    """ "(2, 3)", "2x3", "()", "-" for none; None for anything else."""
    sizes = re.findall(r"[0-9]+", text)
    if (text != "-" and not _SHAPE.fullmatch(text)) or len(sizes) > 64 or any(len(size) > 18 for size in sizes):
        return None
    return tuple(map(int, sizes))


def _statistics(cells: Mapping[str, str]) -> Optional[Statistics]:
    """NaN and Inf, which MindSpore leaves out of the figures and counts, are put back where they belong."""
    if _figure(cells, "nan count"):
        return Statistics(math.nan, math.nan, math.nan, math.nan)
    largest, smallest = _figure(cells, "max value"), _figure(cells, "min value")
    mean, norm = _figure(cells, "avg value", "mean value"), _figure(cells, "l2norm value", "l2 value", "l2norm")
    above, below = _figure(cells, "positive inf count"), _figure(cells, "negative inf count")
    if above or below:
        largest, smallest = math.inf if above else largest, -math.inf if below else smallest
        mean = norm = None
    found = Statistics(largest, smallest, mean, norm)
    return found if any(value is not None for value in found) else None


def _figure(cells: Mapping[str, str], *names: str) -> Optional[float]:
    text = next((cells[name] for name in names if name in cells), "")
    try:
        return float({"true": "1", "false": "0"}.get(text.lower(), text))
    except ValueError:  # "null" where nothing is finite, "NA" where a type has no such figure
        return None


def _run(place: Place, step: Optional[int], entries: Sequence[Entry], beside: "_Beside", notes: list[str]) -> Run:
    groups = _executions(entries)
    order = _recorded_order(groups, beside)
    groups.sort(key=lambda group: (_is_parameter(group), order.get(id(group), (0, 0)), *_position(group)))
    nodes = [beside.node(group[0].name.op_name) for group in groups]
    names: dict[str, set[str]] = defaultdict(set)
    for group in groups:
        names[_kind(group[0].name.op_name)].add(group[0].name.op_name)
    alone = {kind for kind, same in names.items() if len(same) == 1}
    timed = bool(order) or all(group[0].name.time for group in groups)
    if not timed:
        notes.append("not every tensor has a time: operators without one stand in the order of their names")
    return Run(
        path=os.path.commonpath({entry.folder for entry in entries}) if entries else place.dump,
        format=NAME,
        operators=tuple(_operator(*one, alone) for one in zip(range(len(groups)), groups, nodes)),
        step=step,
        rank=place.rank,
        detail=_detail(place, entries),
        notes=tuple(dict.fromkeys(notes + beside.notes)),
        ordered=timed,
        problem="" if entries else "; ".join(notes),
    )


def _detail(place: Place, entries: Iterable[Entry]) -> str:
    held = [(bool(entry.tensor.file), entry.tensor.statistics is not None, entry.tensor.checksum) for entry in entries]
    task = "tensor" if any(file for file, _, _ in held) else "statistics"
    task = "checksums" if task == "statistics" and any(checksum for _, _, checksum in held) else task
    graph = place.step_folder is None and place.iteration is not None
    return " · ".join(filter(None, (os.path.basename(place.dump) if graph else "", task)))


def _executions(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Tensors of one execution of one operator together, inputs first."""
    slots: dict[tuple[str, tuple[str, str, int]], list[Entry]] = defaultdict(list)
    for entry in entries:
        slots[entry.folder, _slot_key(entry.name)].append(entry)
    groups: dict[tuple[str, str, int], list[Entry]] = defaultdict(list)
    for (folder, (op_name, _, _)), same in slots.items():
        same.sort(key=lambda entry: (entry.name.time, entry.tensor.label))
        for back, entry in enumerate(reversed(same)):  # counted from the newest: that is how they are paired
            groups[folder, op_name, back].append(entry)
    return [sorted(group, key=lambda entry: _slot_key(entry.name)) for group in groups.values()]


def _is_parameter(group: Sequence[Entry]) -> bool:
    return group[0].name.op_type == PARAMETER


def _position(group: Sequence[Entry]) -> "tuple[int, str, str]":
    return min(entry.name.time for entry in group), group[0].name.op_name, group[0].folder


def _kind(op_name: str) -> str:
    """A name without the number among kernels of its scope and type."""
    return _NUMBERED.sub("", op_name)


def _operator(order: int, group: Sequence[Entry], node: Optional[GraphNode], alone: "set[str]") -> Operator:
    name = group[0].name
    tensors = tuple(entry.tensor for entry in group)
    return Operator(
        name=name.op_name,
        op_type=name.op_type,
        kind=_kind(name.op_name),
        # Of forward and optimizer nothing tells them apart. A backward kernel has all that it reads among its own
        # inputs, so that no `call` ties it to its forward.
        phase="backward" if name.op_name.startswith("Gradients") else "",
        order=order,
        tensors=tensors,
        arguments=_arguments(tensors, node.constants) if node else {},
        stack=_stack(node.lines) if node else (),
        # "-op1" counts the kernels of one type in one scope, so that one more shifts those after it. A name without
        # such neighbours says scope and type alone, and these are the network's own.
        unique=_kind(name.op_name) in alone,
        call=name.op_name,
        reads_recorded=any(not tensor.is_output for tensor in tensors),
    )


def _arguments(tensors: Sequence[TensorRef], constants: Mapping[int, "tuple[str, Any]"]) -> dict[str, Any]:
    """Inputs that the graph holds as constants. They were dumped as tensors too, whose type must be the same."""
    dumped = {tensor.slot: tensor.dtype for tensor in tensors if tensor.shape == ()}
    return {f"input:{i}": value for i, (dtype, value) in constants.items() if dumped.get(f"input:{i}") == dtype}


def _beside(folder: Path) -> Path:
    """The folder that holds graphs/ and execution_order/, as far as the path tells: rank_N, or where it would be."""
    folder = folder.absolute()
    for parent in (folder, *folder.parents):
        if re.fullmatch(r"rank_?[0-9]+", parent.name):
            return parent
    return folder.parents[2] if _NUMBER.fullmatch(folder.name) and len(folder.parents) > 2 else folder


class _Index:
    """Finds full names ("Default/network/fc-Dense/MatMul-op0") by the spelling of file names."""

    def __init__(self, full_names: Iterable[str]) -> None:
        self._spellings: dict[str, dict[str, str]] = {}
        for full in full_names:
            escaped = re.sub(r"[/.\\ ]", "_", full)
            # the number last: a compiler pass that replaces a kernel counts it anew, after the order was written
            for spelling in (escaped, full.rpartition("/")[2], _kind(escaped)):
                self._spellings.setdefault(spelling, {})[full] = spelling

    def find(self, op_name: str) -> str:
        """The one full name that can be meant, "" if there is none or there are several."""
        for spelling in (op_name, _kind(op_name)):
            found = self._spellings.get(spelling, {})
            if len(found) == 1:
                return next(iter(found))
        return ""


class _Beside:
    """The companions of a rank's dump, each file read once. A broken one costs a note."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self._orders: dict[str, dict[str, int]] = {}
        self._nodes: Optional[dict[str, GraphNode]] = None
        self._index = _Index(())

    def order(self, graph: str) -> dict[str, int]:
        """Place of each full name in the order in which a graph's kernels are launched; empty if not recorded."""
        if graph not in self._orders:
            text = self._read(self.folder / "execution_order" / f"ms_execution_order_graph_{graph}.csv", _ORDER_BYTES)
            lines = [line.strip() for line in text.splitlines()[1:]]  # the first is a header
            self._orders[graph] = {line: i for i, line in enumerate(lines) if line}
        return self._orders[graph]

    def node(self, op_name: str) -> Optional[GraphNode]:
        """What the .ir files tell of a kernel."""
        if self._nodes is None:
            self._nodes = {}
            for file in sorted(self.folder.glob("graphs/ms_output_trace_code_graph_*.ir"))[:_GRAPH_FILES]:
                for name, node in _graph_nodes(self._read(file, _GRAPH_BYTES)):
                    self._nodes.setdefault(name, node)
            self._index = _Index(self._nodes)
        return self._nodes.get(self._index.find(op_name))

    def _read(self, file: Path, most: int) -> str:
        try:
            return read_text(file, most) if file.exists() else ""
        except (DumpError, OSError) as error:
            self.notes.append(f"{file}: ignored, {getattr(error, 'because', error)}")
            return ""


def _recorded_order(groups: Sequence[Sequence[Entry]], beside: _Beside) -> "dict[int, tuple[int, int]]":
    """Places by execution_order/, where that knows each operator and each was executed once; else none: times decide.

    A list that lacks an operator cannot say where it belongs, and a time among places may put it before what it reads.
    """
    kernels: dict[str, list[Sequence[Entry]]] = defaultdict(list)
    for group in groups:
        if not _is_parameter(group):
            kernels[group[0].folder].append(group)
    places: dict[int, tuple[int, int]] = {}
    for folder, some in kernels.items():
        lines = beside.order(Path(folder).absolute().parent.name)
        index = _Index(lines)
        start = min(_position(group)[0] for group in some)
        found = [index.find(group[0].name.op_name) for group in some]
        if "" in found or len(set(found)) < len(found):
            return {}
        places.update((id(group), (start, lines[name])) for group, name in zip(some, found))
    return places


def _graph_nodes(text: str) -> "Iterator[tuple[str, GraphNode]]":
    """(full name, node) in one pass: the call, then indented lines of types, of the name and of source lines."""
    call, node = "", None
    for line in map(str.strip, text.splitlines()):
        if not line.startswith(("#", ":")):
            call, node = line, None
        elif node is None and (found := _FULL_NAME.match(line)):
            node = GraphNode(_constants(call), [])
            yield found["name"], node
        elif node is not None and line.startswith("# In file ") and len(node.lines) < _FRAMES:
            node.lines.append(line)


def _constants(call: str) -> "dict[int, tuple[str, Any]]":
    """Scalars among the inputs of "%16(y) = PrimFunc_LayerNorm(%13, %14, %15, I64(-1), I64(-1), F32(1e-07)) {…}"."""
    match = _CALL.match(call[:_NAME_LENGTH])
    found = {}
    for i, text in enumerate(_inputs(match["inputs"]) if match else ()):
        scalar = _CONSTANT.fullmatch(text)
        if scalar:
            word, value = scalar["type"], scalar["value"]
            try:
                found[i] = _constant(word, value)
            except ValueError:
                continue
    return found


def _constant(word: str, value: str) -> "tuple[str, Any]":
    if word == "Bool":
        return "bool", value in ("1", "true", "True")
    kind = {"I": "int", "U": "uint", "F": "float"}[word[0]]
    return kind + word[1:], float(value) if kind == "float" else int(value)


def _inputs(text: str) -> list[str]:
    """The inputs of a call up to its closing bracket, split at commas that no bracket encloses."""
    found, depth, start = [], 0, 0
    for i, sign in enumerate(text):
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        if depth < 0 or (depth == 0 and sign == ","):
            found.append(text[start:i].strip())
            start = i + 1
        if depth < 0:
            break
    return found


def _stack(lines: Iterable[str]) -> tuple[str, ...]:
    """Frames, innermost first, spelt as msprobe does (npucmp/stack.py).

    The IR has the outermost first, and for each function the line of its definition before the line within it.
    """
    frames: list[str] = []
    functions: dict[str, str] = {}
    for line in lines:
        match = _FRAME.match(line)
        if match is None:
            continue
        path, code = match["path"], match["code"].partition("/<~~")[0].rstrip("/")
        definition = _DEFINITION.match(code)
        if definition:
            functions[path] = definition["name"]
            continue
        frame = f"File {path}, line {match['line']}, in {functions.get(path, '?')}, \n {code.strip()}"
        if frame not in frames[-1:]:
            frames.append(frame)
    return tuple(reversed(frames))
