"""Read msprobe (mindstudio-probe) dumps of PyTorch and MindSpore, levels L0, L1 and mix; also debug.json.

    {root}/step{N}/{rank{M} | rank | proc{pid} | pid{pid}}/          and the other spellings of readers/names.py
        dump.json        {"task", "level", "framework", "dump_data_dir", "data": {operator: record}}
        stack.json       {"0": [[operators], [frames]]}  or, older, {operator: [frames]}
        construct.json   {operator: parent module | [parent, …] | null}
        dump_tensor_data/{data_name}     .pt (PyTorch) or .npy (MindSpore)

"data" is in execution order. A record holds trees of values under input_args, input_kwargs, output and
parameters (forward), input and output (backward), or parameter names (parameters_grad). A leaf is a tensor
{"type", "dtype", "shape", "Max", "Min", "Mean", "Norm"[, "md5"][, "data_name"]} or {"type", "value"}.
Task nan_check omits the figures and writes "is_nan" (true, false or null) to the record instead: the status register
after the operator. This flag becomes an additional output, with NaN as figures if it is set.
The files are JSON in Python's dialect: NaN and Infinity are not quoted.

Source: public documentation and output of mindstudio-probe 26.2 and older; docs/formats.md.
"""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence

from msgspec import MsgspecError
from msgspec.json import decode

from npucmp.dump.limits import ANYWHERE, ReadContext, is_countable
from npucmp.dump.readers.msprobe_files import (
    DATA_FOLDER,
    MsprobeFiles,
    dump_files,
    files_at,
    files_of,
    starts_like_a_dump,
)
from npucmp.dump.readers.msprobe_record import (
    RepeatedKeys,
    argument_of,
    call_of,
    is_tensor,
    leaves,
    loads,
    may_repeat,
    module_path,
    parse_msprobe_name,
    reads_recorded,
    repeated_in,
)
from npucmp.dump.readers.msprobe_structure import FIGURES, SplitText, Structure, cache_structure, known_structure
from npucmp.dump.readers.names import unnamed_files
from npucmp.dump.readers.text import read_bytes, text_of
from npucmp.errors import DumpError
from npucmp.model import Call, Operator, Run, RunHeader, Statistics, TensorRef, first_of
from npucmp.model.dtypes import PACKED_SUFFIX, canonical
from npucmp.model.network import StructuredOperators

NAME = "msprobe"
GRAPHS = None

_DIGITS = 300  # of an integer; a float has up to 309
_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
_ENDLESS = b"0" * (_DIGITS + 1)
_ENCODINGS = {".pt": "torch_pt", ".npy": "npy"}
_ENDINGS = tuple(_ENCODINGS)
_SIZES = {int}  # types allowed in a shape: True and 1.0 are not sizes
_ELSEWHERE = re.compile(r"[/\\\0]")
_STATISTICS = ("Max", "Min", "Mean", "Norm")
_CUT = {*_STATISTICS}
_FLAG = "is_nan"
_FAILED = "dump_error_info.log"
_NOWHERE = ("-1", "")
_FLAGGED, _UNFLAGGED = Statistics(*[math.nan] * 4), Statistics(*[0.0] * 4)
_NO_ARGUMENTS: dict[str, Any] = {}  # shared by all operators without arguments
_FLOATS, _NOTHING = {float}, [None] * 4


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a path is a dump.json or debug.json, or a folder with one within six levels."""
    if path.is_file():
        return path.suffix == ".json" and starts_like_a_dump(path)
    return next(dump_files(path), None) is not None


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per dump.json. Raises DumpError for a file that is incomplete JSON, or of another kind."""
    files = files_of(path)
    if len(files) == 1:
        return [_open_all(files[0], context)]
    return [_open_one_of_many(file, context) for file in files]


def heads(path: Path, context: ReadContext = ANYWHERE) -> list[RunHeader]:
    """Return one Head per dump.json, or per step and rank of micro batches, from the names of their folders."""
    return [RunHeader(str(path), NAME, one.step, one.rank, str(one.path)) for one in files_of(path)]


def open_head(head: RunHeader, context: ReadContext) -> Run:
    return _open_one_of_many(files_at(head.path), context)


def _open_one_of_many(files: MsprobeFiles, context: ReadContext) -> Run:
    """Open one run; a malformed dump.json becomes a run with a problem, so that other runs stay readable."""
    try:
        return _open_all(files, context)
    except DumpError as error:
        return Run(str(files.path), NAME, (), files.step, files.rank, problem=str(error))


def _open_all(files: MsprobeFiles, context: ReadContext) -> Run:
    runs = [(batch, _open(file, files.step, files.rank, context)) for batch, file in files.batches]
    if not runs[0][0]:
        return runs[0][1]
    from npucmp.dump.overlay import join_batches

    return join_batches(str(files.path), runs)


def _tree(path: Path, data: bytes) -> Any:
    if _ENDLESS not in data.translate(_ALIKE):
        with suppress(MsgspecError, ValueError, RecursionError):  # json parses texts that msgspec refuses (NaN)
            found = decode(data)
            if not may_repeat(data, found):
                return found
    text = text_of(path, data)
    try:
        found = json.loads(text, parse_int=_whole_number)
        return loads(text, _whole_number) if may_repeat(data, found) else found
    except json.JSONDecodeError as error:
        raise DumpError(
            path,
            f"is not complete JSON ({error.msg}); the run that wrote it was probably interrupted",
            len(text[: error.pos].encode("utf-8", "surrogatepass")),
        ) from None
    except (RecursionError, ValueError) as error:
        raise DumpError(path, f"is not JSON that can be read: {type(error).__name__}") from None


def _open(path: Path, step: Optional[int], rank: Optional[int], context: ReadContext) -> Run:
    data = read_bytes(path, "json_bytes", context)
    beside = [_sidecar_files(path, name, context) for name in ("stack.json", "construct.json")]
    opened = _by_structure(path, data, beside) or _all_operators(path, data, beside)
    return Run(str(path), NAME, opened.operators, step, rank, detail=opened.detail, notes=opened.notes)


class _DumpFiles(NamedTuple):
    """The content of a dump.json and of the files beside it."""

    operators: tuple[Operator, ...]
    detail: str
    notes: tuple[str, ...]


def _all_operators(path: Path, data: bytes, beside: Sequence[_Beside]) -> _DumpFiles:
    """Parse the whole text."""
    top = _tree(path, data)
    if not isinstance(top, dict) or not isinstance(top.get("data"), dict):
        raise DumpError(path, 'is JSON, but no msprobe dump: it has no "data" object')
    if "data" in _repeated_keys(top):
        raise DumpError(path, 'contains "data" more than once')
    (stacks, notes), (scopes, more) = _read_companion(beside[0], _stacks), _read_companion(beside[1], _scopes)
    folder = path.parent / DATA_FOLDER
    unclear = _unclear(top)
    repeats = [*_repeated_keys(top), *(" ".join(filter(None, one)) for one in unclear.items())]
    dump = _DumpFolders(f"{folder}{os.sep}", folder.is_dir(), stacks, scopes, {}, [], unclear, repeats)
    operators = tuple(_operator(name, record, order, dump) for order, (name, record) in enumerate(top["data"].items()))
    notes = *notes, *more, *_of_files(path, dump, operators, _names_files(operators))
    return _DumpFiles(operators, _detail(_heading(top), operators), notes)


def _by_structure(path: Path, data: bytes, beside: Sequence[_Beside]) -> Optional[_DumpFiles]:
    """Parse a file whose structure is known or separable from its figures; None for other files."""
    cut = SplitText.of(data)
    if cut is None or any(one.because for one in beside):
        return None
    figures = cut.numbers()
    try:
        statistics = [] if figures is not None and not cut.checksums else cut.statistics()
    except ValueError:
        return None
    digest = cut.digest(*(one.data or b"" for one in beside))
    structure = known_structure(digest) or _structure(path, cut, beside)
    if structure is None:
        return None
    cache_structure(digest, structure)
    folder = path.parent / DATA_FOLDER
    is_there = folder.is_dir()
    dump = _DumpFolders(f"{folder}{os.sep}", is_there, {}, {}, {}, [], {}, [])
    if figures is not None and not cut.checksums and structure.has_statistics_alone:
        operators: Any = StructuredOperators(structure.without_figures, figures)
        with_values: Sequence[Operator] = ()  # no tensor has a file or a checksum
    else:
        with_values = operators = structure.fill(statistics or cut.statistics(), cut.checksums, dump.folder, is_there)
    notes = (*_of_files(path, dump, with_values, structure.names_files),)
    return _DumpFiles(operators, _detail(structure.heading, with_values), notes)


def _structure(path: Path, cut: SplitText, beside: Sequence[_Beside]) -> Optional[Structure]:
    """Return the structure of a file, parsed for the first time; None if the file has irregular content."""
    text = cut.with_numbers()
    try:
        top = None if _ENDLESS in text.translate(_ALIKE) else decode(text)
    except (MsgspecError, ValueError, RecursionError):
        return None
    if not isinstance(top, dict) or not isinstance(top.get("data"), dict) or may_repeat(text, top):
        return None
    (stacks, notes), (scopes, more) = _read_companion(beside[0], _stacks), _read_companion(beside[1], _scopes)
    figures = [Statistics() for _ in range(cut.tensors)]
    dump = _DumpFolders("", True, stacks, scopes, {}, [], {}, [], figures)
    try:
        operators = [_operator(name, record, order, dump) for order, (name, record) in enumerate(top["data"].items())]
    except _UncutStatistics:
        return None
    if notes or more or dump.others or dump.repeats:
        return None
    return Structure.of(cut, operators, figures, _heading(top), _names_files(operators))


class _UncutStatistics(Exception):
    """The record of a tensor has figures beside the ones that were cut out."""


def _repeated_keys(tree: Any) -> tuple[str, ...]:
    """Return the repeated keys of an object."""
    return tree.keys_repeated if isinstance(tree, RepeatedKeys) else ()


def _unclear(top: Mapping[str, Any]) -> dict[str, str]:
    """Return operators with a repeated record ("") or a repeated key in it, each with that key.

    Repeated keys of a tensor affect only that tensor and are not included.
    """
    data = top["data"]
    if not isinstance(top, RepeatedKeys):
        return {}
    found = {
        name: one.keys_repeated[0] for name, record in data.items() for one in repeated_in(record) if not is_tensor(one)
    }
    return {**found, **dict.fromkeys(_repeated_keys(data), "")}


def _of_files(path: Path, dump: _DumpFolders, operators: Sequence[Operator], names_files: bool) -> Iterator[str]:
    """Yield notes on files: unnamed files, missing files, and what msprobe failed to collect.

    `names_files` is whether any tensor has the name of a file.
    """
    tensors = [tensor for one in operators for tensor in one.tensors]
    yield from unnamed_files(dump.folder, chain(map(attrgetter("file"), tensors), dump.others))
    if dump.repeats:
        yield f"{path}: duplicate keys make their operator or tensor unreadable: {first_of(dump.repeats, 3)}"
    if dump.others:
        yield f"{path}: arrays of text are compared only by type and shape: {first_of(dump.others, 3)}"
    if names_files and not dump.is_there:
        yield f"{dump.folder}: no such folder; statistics of dump.json are compared instead, which prove less"
    if path.with_name(_FAILED).is_file():
        yield f"{path.with_name(_FAILED)}: msprobe could not collect all requested data"


def _names_files(operators: Sequence[Operator]) -> bool:
    return any(tensor.label.endswith(_ENDINGS) for one in operators for tensor in one.tensors)


def calls(run: Run, context: ReadContext = ANYWHERE) -> dict[str, Call]:
    """Return the calls in the records of a run, by operator."""

    found: dict[str, Call] = {}
    for batch, file in files_at(run.path).batches:
        top = _tree(file, read_bytes(file, "json_bytes", context))
        framework = str(top.get("framework") or _framework(top["data"]))
        unclear = _unclear(top)
        known = ((name, record) for name, record in top["data"].items() if name not in unclear)
        recorded = ((name, call_of(name, record, framework)) for name, record in known)
        found.update((f"{batch}/{name}" if batch else name, call) for name, call in recorded if call is not None)
    return found


def _whole_number(digits: str) -> int | float:
    """Return an integer; infinity if no float can hold it, because later code may convert arguments and figures to
    float."""
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def _heading(top: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return framework, level and task in the words of a dump.json."""
    framework = top.get("framework") or _framework(top["data"])
    return str(framework) if framework else "", str(top.get("level", "")), str(top.get("task", ""))


def _detail(heading: tuple[str, str, str], operators: Sequence[Operator]) -> str:
    framework, level, task = heading
    tensors = [tensor for operator in operators for tensor in operator.tensors]
    if any(map(attrgetter("file"), tensors)):
        task = "tensor"
    elif any(map(attrgetter("checksum"), tensors)):
        task = "checksums" if any(tensor.digest for tensor in tensors) else "XOR checksums"
    return " · ".join(filter(None, (framework, f"{level} {task}".strip())))


def _framework(data: Mapping[str, Any]) -> str:
    """Return the framework of an old file, which only the "type" of its first tensors names."""
    with suppress(RecursionError):
        found = re.search(r'"(torch|mindspore)\.', json.dumps(list(data.values())[:20]))
        return {"torch": "pytorch", "mindspore": "mindspore"}[found.group(1)] if found else ""
    return ""


class _Beside(NamedTuple):
    """An optional file beside dump.json: if it is malformed, the run is read with a note.

    `data` is None if the file does not exist, or cannot be read for the reason `because`.
    """

    path: Path
    data: Optional[bytes] = None
    because: str = ""


def _sidecar_files(path: Path, name: str, context: ReadContext) -> _Beside:
    file = path.parent / name
    if not file.exists():
        return _Beside(file)
    try:
        return _Beside(file, read_bytes(file, "json_bytes", context))
    except DumpError as error:
        return _Beside(file, None, error.because)


def _read_companion(one: _Beside, parse: Callable[[Any], Mapping[str, Any]]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the content of a companion file, and a note on ignored parts."""
    file, data, because = one
    if data is None:
        return {}, (f"{file}: ignored, {because}",) if because else ()
    try:
        tree = _tree(file, data)
        found, repeats = parse(tree), _repeated_keys(tree)
        note = f"{file}: duplicate keys are ignored: {first_of(repeats, 3)}"
        return {key: value for key, value in found.items() if key not in repeats}, (note,) if repeats else ()
    except (DumpError, TypeError, ValueError, AttributeError) as error:
        return {}, (f"{file}: ignored, {getattr(error, 'because', 'not as expected')}",)


def _stacks(top: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    stacks: dict[str, tuple[str, ...]] = {}
    for key, value in top.items():
        shared = len(value) == 2 and all(isinstance(part, list) for part in value)
        names, frames = value if shared else ([key], value)
        text = tuple(str(frame) for frame in frames)
        stacks.update((str(name), text) for name in names)
    return stacks


def _scopes(top: Mapping[str, Any]) -> dict[str, str]:
    scopes = {}
    for key, value in top.items():
        parent = value[0] if isinstance(value, list) and value else value
        if isinstance(parent, str) and parent:
            scopes[key] = parent
    return scopes


class _DumpFolders(NamedTuple):
    """Common state of the records of a dump.json: its tensor folder, companion files, parsed shapes by text.

    Without a folder only statistics are used. others are files of leaves that are not tensors. unclear maps operators
    whose records have a repeated key to that key; repeats names all repeated keys. `figures` are those that were cut
    out, by number.
    """

    folder: str
    is_there: bool
    stacks: Mapping[str, tuple[str, ...]]
    scopes: Mapping[str, str]
    shapes: dict[str, tuple[int, ...]]
    others: list[str]
    unclear: Mapping[str, str]
    repeats: list[str]
    figures: Sequence[Statistics] = ()


def _operator(name: str, record: Any, order: int, dump: _DumpFolders) -> Operator:
    parts = parse_msprobe_name(name)
    tensors: list[TensorRef] = []
    arguments: dict[str, Any] = {}
    for slot, leaf in leaves(record, parts):
        if is_tensor(leaf):
            tensors.append(_tensor(name, slot, leaf, dump))
        else:
            arguments[slot] = argument_of(leaf)
            if leaf.get("data_name"):
                dump.others.append(str(leaf["data_name"]))
    if name in dump.unclear:
        tensors = _unreadable(name, tensors, dump.unclear[name])
    flag = record.get(_FLAG) if isinstance(record, dict) else None
    if isinstance(flag, bool):
        label, figures = f"{name}.{_FLAG}", _FLAGGED if flag else _UNFLAGGED
        tensors.append(TensorRef(f"output:{_FLAG}", "bool", (), statistics=figures, label=label))
    forward = f"{parts.call}.forward" if not parts.unique else name.replace(".backward.", ".forward.")
    return Operator(
        name=name,
        op_type=parts.op_type,
        kind=parts.kind,
        phase=parts.phase,
        order=order,
        tensors=tuple(tensors),
        scope=dump.scopes.get(name, ""),
        path=module_path(parts) if parts.unique and ".debug" not in parts.kind else "",
        arguments=arguments or _NO_ARGUMENTS,
        stack=dump.stacks.get(name) or dump.stacks.get(forward, ()),
        unique=parts.unique,
        call=parts.call,
        reads_recorded=reads_recorded(record),
    )


def _unreadable(name: str, tensors: list[TensorRef], key: str) -> list[TensorRef]:
    """Return the tensors of an operator with a problem, because its record, or a key in it, is repeated."""
    what = f"a key {key!a:.60}" if key else "its operator"
    problem = f"dump.json contains {what} more than once"
    return [one._replace(problem=problem) for one in tensors] or [TensorRef("", "", (), problem=problem, label=name)]


def _tensor(name: str, slot: str, leaf: Mapping[str, Any], dump: _DumpFolders) -> TensorRef:
    data_name = leaf.get("data_name")
    file, problem, shape = "", "", dump.shapes.get(key := repr(leaf["shape"]))
    number = leaf.get(FIGURES)
    statistics = _statistics(leaf) if number is None else dump.figures[number]
    if number is not None and not _CUT.isdisjoint(leaf):
        raise _UncutStatistics
    if shape is None:
        shape = dump.shapes[key] = tuple(leaf["shape"]) if _is_shape(leaf["shape"]) else ()
    if shape and str(leaf["dtype"]).endswith(PACKED_SUFFIX):
        shape = (*shape[:-1], 2 * shape[-1])
    if not shape and key != "[]":
        problem = f"dump.json gives it the shape {key:.60}"
    if data_name is not None and str(data_name) not in _NOWHERE:
        file, trouble = _inside(dump, data_name)
        problem = problem or trouble
        file = file if dump.is_there or statistics is None else ""
    if isinstance(leaf, RepeatedKeys):
        problem = f"dump.json gives its {leaf.keys_repeated[0]!a:.60} more than once"
        dump.repeats.append(f"{name} {slot} {leaf.keys_repeated[0]}")
    label = str(data_name) if data_name else f"{name}.{slot.replace(':', '.')}"
    encoding = _ENCODINGS[file[file.rindex(".") :]] if file else ""
    checksum = leaf.get("md5")
    if isinstance(checksum, (int, float)):  # summary_mode xor writes the value of a 0-d tensor, which is not a checksum
        statistics = Statistics.recorded(*[float(checksum)] * 4) if statistics is None and key == "[]" else statistics
    checksum = checksum if isinstance(checksum, str) else ""
    dtype = canonical(str(leaf["dtype"]))
    wanted = leaf.get("requires_grad")
    trainable = wanted if isinstance(wanted, bool) else None
    return TensorRef(slot, dtype, shape, file, encoding, statistics, checksum, "", problem, label, trainable=trainable)


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and {*map(type, shape)} <= _SIZES
        and (not shape or min(shape) >= 0)
        and is_countable(shape)
    )


def _inside(dump: _DumpFolders, data_name: Any) -> tuple[str, str]:
    """Return the file that a record names. It must be in the dump's own tensor folder: dumps are untrusted."""
    if not isinstance(data_name, str) or _ELSEWHERE.search(data_name):
        return "", f"refused: dump.json names a file outside its {DATA_FOLDER}"
    if not data_name.endswith(_ENDINGS) or data_name in _ENDINGS:
        return "", f"dump.json names {data_name!r:.60}, which is neither .pt nor .npy"
    return f"{dump.folder}{data_name}", ""


def _number_in(value: Any) -> Optional[float]:
    """Return a JSON number as float; None for other values."""
    return float(value) if isinstance(value, (int, float)) else None


def _statistics(leaf: Mapping[str, Any]) -> Optional[Statistics]:
    figures = [*map(leaf.get, _STATISTICS)]
    if not _FLOATS.issuperset(map(type, figures)):
        figures = [*map(_number_in, figures)]
        if figures == _NOTHING:
            return None
    return Statistics.recorded(*figures)
