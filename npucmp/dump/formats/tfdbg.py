"""Read raw dumps of the TensorFlow debugger, tfdbg v1 (DumpingDebugWrapperSession, DumpingDebugHook).

    {root}/run_{microseconds}_{count}/          one call of Session.run
        _tfdbg_device_,job_localhost,…,device_CPU_0/    since TF 1.5; before, files are directly below run_*
            {scope}/{scope}/{base}_{slot}_{debug op}_{microseconds}[-{k}]
            _tfdbg_graph_[hash{n}_]{microseconds}       Event.4: the GraphDef that ran on the device
        _tfdbg_core_metadata_*, _tfdbg_fetches_info_, _tfdbg_feed_keys_info_    Event.6: text

The slashes of a node's name are folders; its last part is parsed from the right of the file name. -{k} distinguishes
files of one microsecond. DebugIdentity is the tensor itself; other debug ops (DebugNanCount …) are numbers about it.
A file is one serialized Event, without the framing of TFRecord:

    Event        1 wall_time double · 4 graph_def bytes · 5 summary · 6 log_message
    Summary      1 value, exactly one
    Value        1 tag · 7 node_name "{node}:{slot}:{debug op}" · 8 tensor · 9 metadata
    TensorProto  1 dtype (_DTYPES) · 2 shape · 4 tensor_content: the values in C order, little endian
                 5 float_val · 6 double_val · 9 scomplex_val · 12 dcomplex_val · 18 float8_val (UNVERIFIED): raw values
                 7 int_val · 10 int64_val · 11 bool_val · 13 half_val · 16 uint32_val · 17 uint64_val: varints
                 8 string_val · 14 resource_handle_val · 15 variant_val
    Shape        2 dim {1 size} · 3 unknown_rank

A run holds only outputs; the inputs of an operator come from the graph. Source: TensorFlow's event.proto,
summary.proto, tensor.proto, tensor_shape.proto, types.proto and debug_data.py; a dump of TensorFlow 2.21.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

from npucmp.dump.file_per_tensor import operator_by_name
from npucmp.dump.graphs.apply_graph import annotate
from npucmp.dump.graphs.graph import Graph, GraphSource
from npucmp.dump.graphs.graphdef import from_wire
from npucmp.dump.limits import ANYWHERE, Limits, ReadContext, tensor_size
from npucmp.dump.readers.folders import executions
from npucmp.dump.readers.names import natural
from npucmp.dump.readers.protobuf import Cursor, WireField, to_signed
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import DumpError, raise_system_failure
from npucmp.model import Payload, Run, TensorRef
from npucmp.model.dtypes import DTYPES

NAME = "tfdbg"

_RUN = "run_"
_META = "_tfdbg_"
_DEVICE = "_tfdbg_device_"
_GRAPH = "_tfdbg_graph_"
_TENSOR_OP = "DebugIdentity"  # and its later versions, DebugIdentityV2 …
_DEPTH = 40  # every name scope of a node is a folder

_NAME = re.compile(
    r"(?P<base>.+)_(?P<slot>[0-9]{1,6})_(?P<op>[A-Za-z][A-Za-z0-9]*)_(?P<time>[0-9]{1,20})(?:-(?P<again>[0-9]{1,9}))?",
    re.DOTALL,
)

# types.proto. Quantised types are read as the integers that store them.
_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64", 9: "int64", 10: "bool",
    11: "int8", 12: "uint8", 13: "int32", 14: "bfloat16", 15: "int16", 16: "uint16", 17: "uint16", 18: "complex128",
    19: "float16", 22: "uint32", 23: "uint64", 24: "float8_e5m2", 25: "float8_e4m3fn",
}  # fmt: skip
_TEXT = 7
_HANDLES = (20, 21)  # resource, variant: they point to a variable or hold an object of the process
_UNREAD = {
    26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz", 28: "float8_e5m2fnuz", 29: "int4", 30: "uint4", 31: "int2",
    32: "uint2",
}  # fmt: skip
_REFERENCE = 100  # 101 … are the reference types of 1 …
_CONTENT = 4
_RAW = {"float32": 5, "float64": 6, "complex64": 9, "complex128": 12, "float8_e5m2": 18, "float8_e4m3fn": 18}
_VARYING = (7, 10, 11, 13, 16, 17)

Fields = dict[int, list[WireField]]


class TfdbgFile(NamedTuple):
    """The parts of a file's name and folders. `again` distinguishes files of one microsecond."""

    node: str
    slot: int
    op: str
    time: int
    again: int
    device: str = ""
    path: str = ""
    label: str = ""


_HANDLE = "outputs are left out: handles of variables or objects, not numbers"
_STRANGER = "files are left out: not named as the debugger names a tensor"
_DEEP = f"folders are left out: more than {_DEPTH} levels deep"
_LINK = "folders are left out: links are not followed"
_CLOSED = "folders cannot be opened"


class RunContents(NamedTuple):
    """The content of one run's folder; counts of skipped files by debug op and by the reasons above."""

    files: list[TfdbgFile]
    others: Counter[str]
    left: Counter[str]

    def notes(self) -> Iterator[str]:
        if self.others:
            ops = ", ".join(sorted(self.others)[:5])
            yield f"{sum(self.others.values())} files of debug ops other than {_TENSOR_OP} are left out: {ops}"
        yield from (f"{self.left[why]} {why}" for why in (_HANDLE, _STRANGER, _DEEP, _LINK, _CLOSED) if self.left[why])


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a folder has _tfdbg_* entries, or run_* folders that have them."""
    return any(_run_folders(path))


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per run_* folder, in order of time; headers are read, payloads are not.

    An unreadable file becomes an operator with one unreadable tensor. Raises DumpError if sniff returns False.
    """
    folders = sorted(_run_folders(path), key=lambda folder: natural(os.path.basename(folder)))
    if not folders:
        raise DumpError(path, "no dump of the TensorFlow debugger: neither it nor a run_* folder in it holds _tfdbg_*")
    return [_run(folder, step if len(folders) > 1 else None, context) for step, folder in enumerate(folders)]


def stored_graphs(path: Path, notes: list[str], context: ReadContext = ANYWHERE) -> list[Graph]:
    """Return the graphs stored in a dump, one per device and run; a malformed graph adds a note."""
    found = []
    for file in sorted(file for folder in _run_folders(path) for file in _graph_files(folder)):
        try:
            with open_regular(file, context) as opened:
                cursor = Cursor(opened)
                for one in cursor.fields(0, opened.size):
                    if one.number == 4 and one.wire == 2:
                        found.append(from_wire(cursor, one.start, one.end, file))
        except DumpError as error:
            notes.append(f"{file}: graph ignored, {error.because}")
    return found


GRAPHS = GraphSource(own=stored_graphs)


def _graph_files(run: str) -> list[str]:
    entries = _entries(run) or []
    devices = [entry.path for entry in entries if entry.name.startswith(_DEVICE) and _is_folder(entry)]
    return [entry.path for place in (run, *devices) for entry in _entries(place) or () if entry.name.startswith(_GRAPH)]


def parse_tfdbg_name(name: str, scope: str = "") -> Optional[TfdbgFile]:
    """Parse node, slot, debug op and time from a file name below the folders `scope`; None for other names."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    slot, time, again = int(found["slot"]), int(found["time"]), int(found["again"] or 0)
    return TfdbgFile(scope + found["base"], slot, found["op"], time, again)


def _run_folders(path: Path) -> Iterator[str]:
    """Yield the path itself if it is a run, else the runs directly below it."""
    entries = _entries(os.fspath(path))
    if entries is None:
        return
    if path.name.startswith(_DEVICE) or _is_run(entries):
        yield os.fspath(path)
        return
    for entry in entries:
        if entry.name.startswith(_RUN) and _is_folder(entry) and _is_run(_entries(entry.path) or []):
            yield entry.path


def _entries(folder: str) -> Optional[list[os.DirEntry[str]]]:
    """Return the entries of a folder; None if the path is not a folder or cannot be opened."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise_system_failure(error)
        return None
    except ValueError:  # a name that no file can have
        return None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError as error:
        raise_system_failure(error)
        return False


def _is_run(entries: list[os.DirEntry[str]]) -> bool:
    return any(entry.name.startswith(_META) for entry in entries)


def _run(folder: str, step: Optional[int], context: ReadContext) -> Run:
    """Return the run with the inputs and types of its own graph."""
    notes: list[str] = []
    known = stored_graphs(Path(folder), notes, context)
    contents = _contents(folder)
    tensors = [(file, tensor) for file in contents.files for tensor in _tensor(file, context)]
    contents.left[_HANDLE] = len(contents.files) - len(tensors)
    groups = executions(
        tensors,
        operator=lambda one: (one[0].device, one[0].node),
        slot=lambda one: one[0].slot,
        age=lambda one: (one[0].time, one[0].again, one[0].path),
        within=lambda one: one[0].slot,
        position=_position,
    )
    operators = tuple(
        operator_by_name(group[0][0].node, order, (tensor for _, tensor in group)) for order, group in enumerate(groups)
    )
    run = Run(folder, NAME, operators, step, detail="outputs only", notes=(*contents.notes(), *notes))
    return annotate(run, known)


def _contents(run: str) -> RunContents:
    """Collect all tensor files of a run, over its devices. Links to folders are not followed: they may be cyclic."""
    found = RunContents([], Counter(), Counter())
    waiting = [(run, "", "", 0)]
    while waiting:
        folder, device, scope, depth = waiting.pop()
        entries = _entries(folder)
        found.left[_CLOSED] += entries is None
        for entry in entries or []:
            if not _is_folder(entry):
                _take(found, entry, device, scope)
            elif not scope and not device and entry.name.startswith(_DEVICE):
                waiting.append((entry.path, entry.name, "", 0))
            elif depth < _DEPTH:
                waiting.append((entry.path, device, f"{scope}{entry.name}/", depth + 1))
            else:
                found.left[_DEEP] += 1
    return found


def _take(found: RunContents, entry: os.DirEntry[str], device: str, scope: str) -> None:
    file = parse_tfdbg_name(entry.name, scope)
    if entry.is_symlink() and os.path.isdir(entry.path):
        found.left[_LINK] += 1
    elif not scope and entry.name.startswith(_META):
        return  # the graph and other facts about the run
    elif file is None:
        found.left[_STRANGER] += 1
    elif file.op.startswith(_TENSOR_OP):
        found.files.append(file._replace(device=device, path=entry.path, label=scope + entry.name))
    else:
        found.others[file.op] += 1


def _position(group: list[tuple[TfdbgFile, TensorRef]]) -> tuple[int, int, list[object], str]:
    first = min((file for file, _ in group), key=lambda file: (file.time, file.again))
    return first.time, first.again, natural(first.node), first.device


def _tensor(file: TfdbgFile, context: ReadContext) -> Iterator[TensorRef]:
    """Yield the tensor of one file; nothing for a handle."""
    try:
        with open_regular(file.path, context) as opened:
            cursor = Cursor(opened)
            number, shape, fields = _header(cursor)
            if number not in _HANDLES:
                yield _tensor_of(file, number, shape, fields, context.limits)
    except DumpError as error:
        yield TensorRef("", "", (), file=file.path, problem=error.because, label=file.label)


def _header(cursor: Cursor) -> tuple[int, tuple[int, ...], Fields]:
    """Return the number of the element type, the shape, and the fields of the TensorProto."""
    event = _fields(cursor, WireField(0, 2, 0, 0, cursor.file.size))
    summary = _fields(cursor, _message(cursor, event, 5, "summary"))
    value = _fields(cursor, _message(cursor, summary, 1, "value"))
    tensor = _fields(cursor, _message(cursor, value, 8, "tensor"))
    number = tensor[1][-1].value if 1 in tensor else 0
    shape = _shape(cursor, tensor[2][-1]) if 2 in tensor else ()
    return number - _REFERENCE if number > _REFERENCE else number, shape, tensor


def _fields(cursor: Cursor, message: WireField) -> Fields:
    """Return the fields of a message by number; the whole message is walked, to find damage after the tensor."""
    found: Fields = defaultdict(list)
    for one in cursor.fields(message.start, message.end):
        found[one.number].append(one)
    return found


def _message(cursor: Cursor, fields: Fields, number: int, word: str) -> WireField:
    for one in fields.get(number, ()):
        if one.wire == 2:
            return one
    raise DumpError(cursor.file.path, f"contains no tensor of the TensorFlow debugger: no {word}")


def _shape(cursor: Cursor, message: WireField) -> tuple[int, ...]:
    """Return the logical shape. Raises DumpError for an unknown rank or an impossible size."""
    limits = cursor.file.limits
    limits.require(cursor.file.path, "header_bytes", message.end - message.start, "a shape of {:,} bytes")
    fields = _fields(cursor, message)
    if any(one.value for one in fields.get(3, ())):
        raise DumpError(cursor.file.path, "a shape of unknown rank")
    dims = fields.get(2, [])
    limits.require(cursor.file.path, "ndim", len(dims), "{} dimensions")
    shape = tuple(_size(cursor, dim) for dim in dims)
    tensor_size(cursor.file.path, shape, 1, limits)
    return shape


def _size(cursor: Cursor, dim: WireField) -> int:
    """Return the size of a dimension; a size of 0 is omitted in the file."""
    sizes = [one.value for one in cursor.fields(dim.start, dim.end) if one.number == 1] if dim.wire == 2 else []
    return to_signed(sizes[-1]) if sizes else 0


def _tensor_of(file: TfdbgFile, number: int, shape: tuple[int, ...], fields: Fields, limits: Limits) -> TensorRef:
    """Return the TensorRef of a parsed file, with a problem if its values cannot be read."""
    dtype = _DTYPES.get(number, "")
    word = dtype or ("string" if number == _TEXT else _UNREAD.get(number, f"DT_{number}"))
    bare = TensorRef(f"output:{file.slot}", word, shape, file=file.path, label=file.label)
    if number == _TEXT:
        return bare._replace(problem="text, not numbers")
    if number in _UNREAD:
        return bare._replace(problem=f"elements of type {word}: not read")
    if not dtype:
        return bare._replace(problem=f"elements of an unknown type, TensorFlow's number {number}")
    try:
        offset = _offset(file.path, dtype, shape, fields, limits)
    except DumpError as error:
        return bare._replace(problem=error.because)
    return bare._replace(payload=Payload(file.path, dtype, shape, offset))


def _offset(path: str, dtype: str, shape: tuple[int, ...], fields: Fields, limits: Limits) -> int:
    """Return the offset of the values in the file, after checking that they match the shape exactly."""
    size = tensor_size(path, shape, DTYPES[dtype].itemsize, limits)
    pieces = [one for one in fields.get(_CONTENT, ()) if one.wire == 2 and one.end > one.start][-1:]
    pieces = pieces or [one for one in fields.get(_RAW.get(dtype, 0), ()) if one.wire and one.end > one.start]
    if len(pieces) == 1:
        held = pieces[0].end - pieces[0].start
        if held != size:
            raise DumpError(path, f"holds {held} bytes of values, a shape of {list(shape)} needs {size}")
        return pieces[0].start
    if pieces:
        raise DumpError(path, "values in several pieces: not read")
    if any(number in fields for number in _VARYING):
        raise DumpError(path, "values as numbers of varying length: not read")
    if size:
        raise DumpError(path, "uninitialised when it was dumped")
    return 0
