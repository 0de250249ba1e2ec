"""msprobe (mindstudio-probe) dumps of PyTorch and MindSpore, levels L0, L1 and mix; also debug.json.

    {root}/step{N}/{rank{M} | rank | proc{pid} | pid{pid}}/          also step_{N}/rank_{M}/ (verl)
        dump.json        {"task", "level", "framework", "dump_data_dir", "data": {operator: record}}
        stack.json       {"0": [[operators], [frames]]}  or, older, {operator: [frames]}
        construct.json   {operator: parent module | [parent, …] | null}
        dump_tensor_data/{data_name}     .pt (PyTorch) or .npy (MindSpore)

"data" is in execution order. A record holds trees of values under input_args, input_kwargs, output and
parameters (forward), input and output (backward), or parameter names (parameters_grad). A leaf is a tensor
{"type", "dtype", "shape", "Max", "Min", "Mean", "Norm"[, "md5"][, "data_name"]} or {"type", "value"}.
Task nan_check leaves the figures out and has "is_nan" (true, false or null) in the record instead: what a status
register told of the operator. It becomes an output of its own, with NaN for figures where it is set.
The files are JSON in Python's dialect: NaN and Infinity stand bare.

Source: public documentation and output of mindstudio-probe 26.2 and older; docs/formats.md.
"""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional

from msgspec import MsgspecError
from msgspec.json import decode

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.dump.limits import is_countable
from npucmp.dump.readers.msprobe_call import call_of
from npucmp.dump.readers.msprobe_files import DATA_FOLDER, dump_files, files_of, place_of, starts_like_a_dump
from npucmp.dump.readers.msprobe_names import MsprobeName, module_path, parse_msprobe_name
from npucmp.dump.readers.names import unnamed
from npucmp.dump.readers.text import read_bytes, text_of
from npucmp.errors import DumpError
from npucmp.model import Call, Group, Head, Operator, Run, Statistics, TensorRef
from npucmp.model.dtypes import canonical

NAME = "msprobe"
ABOUT = "msprobe / mindstudio-probe dumps: a dump.json (tensor, statistics or md5), alone or below step*/rank*|proc*"
GRAPHS = None

_DIGITS = 300  # of a whole number; a float has up to 309
_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
_ENDLESS = b"0" * (_DIGITS + 1)
_NESTING = 64
_ENCODINGS = {".pt": "torch_pt", ".npy": "npy"}
_ENDINGS = tuple(_ENCODINGS)
_TREES = (  # of a record, and how their slots begin
    ("input_args", "input:"),
    ("input", "input:"),
    ("input_kwargs", "input:"),
    ("parameters", "param:"),
    ("output", "output:"),
)
_READ = tuple(key for key, word in _TREES if word != "output:")
_SIZES = {int}  # what a shape is made of: True and 1.0 are no sizes
_ELSEWHERE = re.compile(r"[/\\\0]")
_STATISTICS = ("Max", "Min", "Mean", "Norm")
_FLAG = "is_nan"
_FLAGGED, _UNFLAGGED = Statistics(*[math.nan] * 4), Statistics(*[0.0] * 4)
_FLOATS, _NOTHING = {float}, [None] * 4


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """A dump.json or debug.json, or a folder with one at most six levels down."""
    if path.is_file():
        return path.suffix == ".json" and starts_like_a_dump(path)
    return next(dump_files(path), None) is not None


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """One Run per dump.json. Raises DumpError for a file that is not complete JSON, or is another thing."""
    files = files_of(path)
    if len(files) == 1:
        return [_open(files[0], context)]
    return [_open_one_of_many(file, context) for file in files]


def heads(path: Path, context: ReadContext = ANYWHERE) -> "list[Head]":
    """One per dump.json, by the names of its folders."""
    return [Head(str(path), NAME, *place_of(file), str(file)) for file in files_of(path)]


def open_head(head: Head, context: ReadContext = ANYWHERE) -> Run:
    return _open_one_of_many(Path(head.path), context)


def _open_one_of_many(file: Path, context: ReadContext) -> Run:
    """A broken dump.json costs its own step and rank, not the others."""
    try:
        return _open(file, context)
    except DumpError as error:
        return Run(str(file), NAME, (), *place_of(file), problem=str(error))


def _load(path: Path, context: ReadContext) -> Any:
    data = read_bytes(path, "json_bytes", context)
    if _ENDLESS not in data.translate(_ALIKE):
        with suppress(MsgspecError, ValueError, RecursionError):  # what it refuses, as NaN, is read as Python does
            return decode(data)
    text = text_of(path, data)
    try:
        return json.loads(text, parse_int=_whole_number)
    except json.JSONDecodeError as error:
        raise DumpError(
            path,
            f"is not complete JSON ({error.msg}); the run that wrote it was probably interrupted",
            len(text[: error.pos].encode("utf-8", "surrogatepass")),
        ) from None
    except (RecursionError, ValueError) as error:
        raise DumpError(path, f"is not JSON that can be read: {type(error).__name__}") from None


def _open(path: Path, context: ReadContext) -> Run:
    top = _load(path, context)
    if not isinstance(top, dict) or not isinstance(top.get("data"), dict):
        raise DumpError(path, 'is JSON, but no msprobe dump: it has no "data" object')
    stacks, notes = _beside(path, "stack.json", _stacks, context)
    scopes, more = _beside(path, "construct.json", _scopes, context)
    dump = _Dump(f"{path.parent / DATA_FOLDER}{os.sep}", stacks, scopes, {})
    operators = [_operator(name, record, order, dump) for order, (name, record) in enumerate(top["data"].items())]
    step, rank = place_of(path)
    return Run(
        path=str(path),
        format=NAME,
        operators=tuple(operators),
        step=step,
        rank=rank,
        detail=_detail(top, operators),
        notes=(*notes, *more, *unnamed(dump.folder, (tensor.file for one in operators for tensor in one.tensors))),
    )


def calls(run: Run, context: ReadContext = ANYWHERE) -> "dict[str, Call]":
    """The calls that the records of a run tell, by operator."""
    top = _load(Path(run.path), context)
    framework = str(top.get("framework") or _framework(top["data"]))
    found = ((name, call_of(name, record, framework)) for name, record in top["data"].items())
    return {name: call for name, call in found if call is not None}


def _whole_number(digits: str) -> "int | float":
    """One that no float can hold is infinite: whatever works with an argument or a figure may make it one."""
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def _detail(top: Mapping[str, Any], operators: list[Operator]) -> str:
    tensors = [tensor for operator in operators for tensor in operator.tensors]
    task = top.get("task", "")
    if any(tensor.file for tensor in tensors):
        task = "tensor"
    elif any(tensor.checksum for tensor in tensors):
        task = "checksums"
    framework = top.get("framework") or _framework(top["data"])
    return " · ".join(str(word) for word in (framework, f"{top.get('level', '')} {task}".strip()) if word)


def _framework(data: Mapping[str, Any]) -> str:
    """Old files do not name it; the "type" of the first tensor does."""
    with suppress(RecursionError):
        found = re.search(r'"(torch|mindspore)\.', json.dumps(list(data.values())[:20]))
        return {"torch": "pytorch", "mindspore": "mindspore"}[found.group(1)] if found else ""
    return ""


def _beside(path: Path, name: str, parse: Any, context: ReadContext) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A companion file is a help, not a need: if it is broken, the run goes on with a note."""
    file = path.parent / name
    if not file.exists():
        return {}, ()
    try:
        return parse(_load(file, context)), ()
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


class _Dump(NamedTuple):
    """What the records of a dump.json share: its tensor folder, its companion files, the shapes read so far as text."""

    folder: str
    stacks: Mapping[str, tuple[str, ...]]
    scopes: Mapping[str, str]
    shapes: dict[str, tuple[int, ...]]


def _operator(name: str, record: Any, order: int, dump: _Dump) -> Operator:
    parts = parse_msprobe_name(name)
    tensors: list[TensorRef] = []
    arguments: dict[str, Any] = {}
    for slot, leaf in _leaves(record, parts):
        if "dtype" in leaf and "shape" in leaf:
            tensors.append(_tensor(name, slot, leaf, dump))
        else:
            arguments[slot] = _argument(leaf)
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
        arguments=arguments,
        stack=dump.stacks.get(name) or dump.stacks.get(forward, ()),
        unique=parts.unique,
        call=parts.call,
        reads_recorded=_reads_recorded(record),
    )


def _argument(leaf: "dict[str, Any]") -> Any:
    """What a leaf that is no tensor holds."""
    ranks = leaf.get("group_ranks")
    if isinstance(ranks, list) and all(type(one) is int for one in ranks):
        return Group(ranks)
    return leaf.get("value", leaf.get("format"))


def _reads_recorded(record: Any) -> bool:
    """Whether a record tells the inputs; backward records of gradients that nobody asked for hold [null]."""
    if not isinstance(record, dict):
        return False
    trees = [record[key] for key in _READ if key in record]
    return trees.count([None]) < len(trees)


_Leaves = list[tuple[str, dict[str, Any]]]


def _leaves(record: Any, parts: MsprobeName) -> _Leaves:
    """(slot, leaf) of a record, inputs before parameters before outputs."""
    found: _Leaves = []
    if parts.kind.endswith(".debug"):
        _walk("output:", record, _NESTING, found)
    elif not isinstance(record, dict):
        pass
    elif parts.kind.endswith(".parameters_grad"):
        for key, tree in record.items():
            single = isinstance(tree, list) and len(tree) == 1
            _walk(f"grad:{key}", tree[0] if single else tree, _NESTING, found)
    else:
        for key, word in _TREES:
            if key in record:
                _walk(word, record[key], _NESTING, found)
    return found


def _walk(slot: str, value: Any, depth: int, found: _Leaves) -> None:
    """Leaves of a tree of lists and objects; the path to a leaf is joined with dots."""
    if depth == 0:
        found.append((slot, {"type": "str", "value": f"nested deeper than {_NESTING}, not read"}))
        return
    items: Any
    if isinstance(value, dict):
        if _is_leaf(value):
            found.append((slot, value))
            return
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return
    start = slot if slot.endswith(":") else f"{slot}."
    for key, below in items:
        if depth > 1 and isinstance(below, dict) and _is_leaf(below):  # most are
            found.append((f"{start}{key}", below))
        else:
            _walk(f"{start}{key}", below, depth - 1, found)


def _is_leaf(value: "dict[str, Any]") -> bool:
    return "type" in value and ("shape" in value or "value" in value or "format" in value or "group_ranks" in value)


def _tensor(name: str, slot: str, leaf: Mapping[str, Any], dump: _Dump) -> TensorRef:
    data_name = leaf.get("data_name")
    file, problem, shape = "", "", dump.shapes.get(key := repr(leaf["shape"]))
    if shape is None:
        shape = dump.shapes[key] = tuple(leaf["shape"]) if _is_shape(leaf["shape"]) else ()
    if not shape and key != "[]":
        problem = f"dump.json gives it the shape {key:.60}"
    if data_name is not None and str(data_name) != "-1":
        file, trouble = _inside(dump, data_name)
        problem = problem or trouble
    label = str(data_name) if data_name else f"{name}.{slot.replace(':', '.')}"
    encoding = _ENCODINGS[file[file.rindex(".") :]] if file else ""
    checksum = str(leaf.get("md5") or "")
    dtype = canonical(str(leaf["dtype"]))
    wanted = leaf.get("requires_grad")
    trainable = wanted if isinstance(wanted, bool) else None
    return TensorRef(
        slot, dtype, shape, file, encoding, _statistics(leaf), checksum, "", problem, label, trainable=trainable
    )


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and {*map(type, shape)} <= _SIZES
        and (not shape or min(shape) >= 0)
        and is_countable(shape)
    )


def _inside(dump: _Dump, data_name: Any) -> tuple[str, str]:
    """The file a record names. It must lie in the dump's own tensor folder: dumps are untrusted."""
    if not isinstance(data_name, str) or _ELSEWHERE.search(data_name):
        return "", f"refused: dump.json names a file outside its {DATA_FOLDER}"
    if not data_name.endswith(_ENDINGS) or data_name in _ENDINGS:
        return "", f"dump.json names {data_name!r:.60}, which is neither .pt nor .npy"
    return f"{dump.folder}{data_name}", ""


def _number_in(value: Any) -> Optional[float]:
    """A JSON number; None for anything else."""
    return float(value) if isinstance(value, (int, float)) else None


def _statistics(leaf: Mapping[str, Any]) -> Optional[Statistics]:
    figures = [*map(leaf.get, _STATISTICS)]
    if not _FLOATS.issuperset(map(type, figures)):
        figures = [*map(_number_in, figures)]
        if figures == _NOTHING:
            return None
    return Statistics.recorded(*figures)
