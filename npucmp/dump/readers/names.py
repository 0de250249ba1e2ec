"""Names of operators, files and tensors, and the labels in paths, common to all formats.

mapping.csv has the real names of files whose names were too long for the file system:

    {name of the file in this folder},{its real name}     one per line; a header row and repeated rows may occur
Source: public sources of CANN's runtime, MindSpore and tfdbg_ascend, which use the same form.

The folders of a path give step, rank and process of a run, in the spellings of all tools:

    step{N}  step_{N}  token_{N}                     step
    {npu|cuda|gpu|cpu}{D}_{pid}/{N}                  step N, a token, of device D (msit, MindIE)
    rank{M}  rank_{M}  worldsize{W}_global_rank{M}   rank; a global rank takes precedence
    mp_rank_{M}                                      rank of a checkpoint of Megatron without stages
    pid{P}  pid_{P}  proc{P}  rank                   a process without a rank
    micro_batch_{K}  micro_step{K}  microbatch{K}    a micro batch, which is a part of its step

Source: documents and sources of msprobe, msit, verl and torchair; docs/formats.md.

Names of single tensors are parsed from the right, because a module's path may contain digits and dots:

    {operator}.{input|input_kwargs|kwargs|output|parameters|parameters_grad}[.{path}]    a slot of an operator
    {operator}: … .{call} | … .forward | … .backward | … .forward.{call} | anything      msprobe and others

A path that begins with a word ("output.logits") is recognised in the names of msprobe's tools: other tools dump names
like "encoder.0.output.dense", which is a module. An input or parameter by a word ("attn.input.attention_mask") belongs
to an operator of which the dump names a numbered slot too.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Iterable, Iterator, Mapping, NamedTuple, Optional

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.msprobe_record import PHASES, module_path, parse_msprobe_name
from npucmp.dump.readers.text import read_text
from npucmp.errors import DumpError
from npucmp.model import Operator, TensorRef, first_of
from npucmp.model.optypes import names_weight, op_type

OTHER_ENDINGS = (  # endings of files beside tensors, or of separately read files: tables, texts, graphs
    ".csv", ".json", ".txt", ".pbtxt", ".prototxt", ".pb", ".ir", ".om", ".onnx", ".log", ".md", ".html", ".py", ".sh",
    ".yaml", ".yml", ".toml",
)  # fmt: skip

_ESCAPES = str.maketrans(dict.fromkeys(" ./\\", "_"))
_FED = re.compile(r"_arg_(.+)_(\d+)_\d+")  # TensorFlow's placeholder for a tensor that is fed to a session


def file_name_of(name: str) -> str:
    """Return a name as in dump files: blank, ".", "/" and "\\" become "_". Several names may become equal."""
    return name.translate(_ESCAPES)


def fed_tensor(name: str) -> str:
    """Return the fed tensor of a placeholder, "{operator}:{index}"; "" for other operators."""
    match = _FED.fullmatch(name)
    return f"{match[1]}:{match[2]}" if match else ""


def skipped_files_note(folder: object, names: Iterable[str]) -> Optional[str]:
    """Return a note on files that became no operator although they may hold a tensor; None if there are none."""
    found = [name for name in names if may_be_tensor(name)]
    if not found:
        return None
    if len(found) == 1:
        return f"{folder}: 1 file has an unknown name and is skipped: {found[0]}"
    return f"{folder}: {len(found)} files have unknown names and are skipped, for example {found[0]}"


def unnamed_files(folder: str, known: Iterable[str]) -> Iterator[str]:
    """Yield a note on files of a tensor folder that no record names.

    A run that ended before it wrote its last records leaves such files.
    """
    try:
        there = os.listdir(folder)
    except OSError:
        return
    names = {os.path.basename(file) for file in known}
    left = sorted(name for name in there if name not in names and may_be_tensor(name))
    if left:
        yield f"{folder}: {len(left)} files that no record names are skipped: {first_of(left)}"


def may_be_tensor(name: str) -> bool:
    """Return whether a file may hold numbers, judged by its name."""
    return not name.lower().endswith(OTHER_ENDINGS) and not os.path.basename(name).startswith(".")


def natural(text: str) -> list[object]:
    """Return a sort key that orders numbers in names by value: "conv2" before "conv10".

    Digits are split into groups of eighteen, because Python does not convert thousands of digits to a number.
    """
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]{1,18})", text))]


_LETTER = re.compile(r"[a-zA-Z][0-9]*")
_UNIQUE = re.compile(r"(?<=.)_token_[0-9]+$")  # ONNX Runtime's end of a name that several nodes would have
GRADIENTS = ("backward", "grad")  # name parts that make the preceding part a gradient


def type_of_name(name: str) -> str:
    """Return the operator type in a node's name: its last part that is not an index.

    The type is "MatMul" for "layer1/MatMul_3" and "layer1_MatMul_3". If the last part marks a gradient, the part before
    is included: "linear_backward" for "layer1.linear_backward_0". If no operator has the name of the last part, the
    part before counts if that is one and a letter distinguishes several ("MatMul_b"), or if it is a random operator.
    """
    parts = [part for part in re.split(r"[/_.]", _UNIQUE.sub("", name)) if not re.fullmatch(r"[0-9]*", part)]
    if len(parts) > 1 and parts[-1].lower() in GRADIENTS:
        return "_".join(parts[-2:])
    last = parts[-1] if parts else name
    for at in range(len(parts) - 2, -1, -1):
        if op_type(parts[at + 1]).traits and not _LETTER.fullmatch(parts[at + 1]):
            break
        found = op_type(parts[at])
        is_labelled = bool(found.traits) and all(map(_LETTER.fullmatch, parts[at + 1 :]))
        if is_labelled or (found.has("random") and not names_weight(name)):
            return parts[at]
    return last


def made_of(name: str, keys: Mapping[str, object], lengths: Sequence[int]) -> list[str]:
    """Split a name into known names, the longest first if several fit; [] if it cannot be split."""
    made: dict[int, list[str]] = {len(name): []}
    for start in range(len(name) - 1, -1, -1):
        for length in lengths:
            rest = made.get(start + length)
            if rest is not None and name[start : start + length] in keys:
                made[start] = [name[start : start + length], *rest]
                break
    return made.get(0, [])


MAPPING = "mapping.csv"


def long_names(file: Path, notes: list[str], context: ReadContext = ANYWHERE) -> dict[str, str]:
    """Return file name → real name; empty without the file, empty with a note if the file cannot be read."""
    if not file.exists():
        return {}
    try:
        rows = list(csv.reader(read_text(file, "table_bytes", context).splitlines()))
    except (DumpError, csv.Error) as error:
        notes.append(f"{file}: ignored, {getattr(error, 'because', error)}")
        return {}
    return {row[0].strip(): row[1].strip() for row in rows if len(row) >= 2 and row[1].strip()}


_STEP = re.compile(r"(?:step|token)_?([0-9]{1,18})")
_RANK = re.compile(r"(?:mp_)?rank_?([0-9]{1,9})")
_GLOBAL = re.compile(r"world_?size_?[0-9]+_global_rank_?([0-9]{1,9})")
_DEVICE = re.compile(r"(?:npu|cuda|gpu|cpu)([0-9]{0,9})_[0-9]+")
_PROCESS = re.compile(r"(?:pid|proc)_?[0-9]+|rank")
_MICRO = re.compile(r"micro_?(?:batch|step)_?([0-9]{1,9})")
_TOKEN = re.compile(r"([0-9]{1,9})")


class PathLabels(NamedTuple):
    """Step and rank of a path. `depth` is the number of path parts up to the last that names step, rank or process."""

    step: Optional[int] = None
    rank: Optional[int] = None
    depth: int = 0


def place_of(parts: Sequence[str]) -> PathLabels:
    """Return step and rank of a path; the last part with a number decides, but a global rank takes precedence."""
    step = rank = whole = None
    depth = 0
    for at, part in enumerate(parts, 1):
        is_token = at > 1 and _DEVICE.fullmatch(parts[at - 2])
        if found := _STEP.fullmatch(part) or (is_token and _TOKEN.fullmatch(part)):
            step = int(found[1])
        elif found := _GLOBAL.fullmatch(part):
            whole = int(found[1])
        elif found := _RANK.fullmatch(part) or _DEVICE.fullmatch(part):
            rank = int(found[1]) if found[1] else rank
        elif not _PROCESS.fullmatch(part):
            continue
        depth = at
    return PathLabels(step, rank if whole is None else whole, depth)


def is_process(folder: str) -> bool:
    """Return whether a folder is that of a process without a rank in its name."""
    return folder != "rank" and _PROCESS.fullmatch(folder) is not None


def micro_of(folder: str) -> Optional[int]:
    """Return the micro batch of a folder; None if it has none."""
    found = _MICRO.fullmatch(folder)
    return int(found[1]) if found else None


_ROLES = {
    "input": "input", "input_kwargs": "input", "kwargs": "input", "output": "output",
    "parameters": "param", "parameters_grad": "grad",
}  # fmt: skip
_SLOT = re.compile(rf"(?P<op>.+)\.(?P<role>{'|'.join(sorted(_ROLES, reverse=True))})(?:\.(?P<path>.+))?", re.DOTALL)
_PLACED = re.compile(r"[0-9]+(?:\.\w+)*")
_CALL = re.compile(r"(?P<head>.+)\.(?P<call>[0-9]{1,18})", re.DOTALL)
_TOOLS = ("Module", "Aten", "NPU", "Torch", "Functional", "Tensor", "VF", "Distributed", "Mint")
_LAST: list[object] = ["\U0010ffff"]


class ParsedName(NamedTuple):
    """The operator of a tensor, its slot, and the call number at the end of the operator's name; -1 without."""

    operator: str
    slot: str
    call: int = -1


def parse_tensor_name(name: str, of_msprobe: bool = False) -> ParsedName:
    """Parse the name of a tensor. `of_msprobe`: its folder shows that a tool of msprobe wrote it."""
    found = _SLOT.fullmatch(name)
    if found is None:
        return ParsedName(name, "output:0")
    role, path, operator = _ROLES[found["role"]], found["path"] or "0", found["op"]
    if not _PLACED.fullmatch(path) and not of_msprobe and operator.partition(".")[0] not in _TOOLS:
        return ParsedName(name, "output:0")
    if role == "grad":
        operator = f"{operator}.parameters_grad"
    call = _CALL.fullmatch(parse_msprobe_name(operator).call)
    return ParsedName(operator, f"{role}:{path}", int(call["call"]) if call else -1)


def parse_tensor_names(names: Iterable[str]) -> dict[str, ParsedName]:
    """Parse the names of the tensors of one dump: a slot that is a word belongs to an operator with a numbered slot."""
    found = {name: parse_tensor_name(name) for name in names}
    numbered = {one.operator for name, one in found.items() if one.operator != name}
    for name, own in found.items():
        if own.operator == name:
            by_word = parse_tensor_name(name, of_msprobe=True)
            if by_word.operator in numbered and not by_word.slot.startswith("output"):
                found[name] = by_word
    return found


def operator_of(name: str, order: int, tensors: tuple[TensorRef, ...], scope: str = "") -> Operator:
    """Return an operator known only by its name and its tensors."""
    parts = parse_msprobe_name(name)
    op_type, kind, path, unique = type_of_name(name), name, "", True
    called = _CALL.fullmatch(name)
    if parts.phase:
        op_type, kind, unique = parts.op_type, parts.kind, parts.unique
        path = module_path(parts) if unique else ""
    elif called and name.partition(".")[0] in _TOOLS:
        kind, unique = called["head"], False
        op_type, path = _type_and_path(kind)
    return Operator(
        name=name,
        op_type=op_type,
        kind=kind,
        phase=parts.phase or next((word for word in PHASES if name.endswith(f".{word}")), ""),
        order=order,
        tensors=tensors,
        scope=scope,
        path=path,
        unique=unique,
        call=parts.call,
        reads_recorded=any(not tensor.is_output for tensor in tensors),
    )


def _type_and_path(kind: str) -> tuple[str, str]:
    """Return type and module path of a name of AclGraphDumper: Module.{path}.{class}, Aten.{op}[.{overload}], …"""
    prefix, *rest = kind.split(".")
    if prefix == "Module":
        return rest[-1] if rest else prefix, ".".join([prefix, *rest[:-1]])
    at = 1 if prefix == "Torch" and len(rest) > 1 else 0
    return rest[at] if rest else prefix, ""


def by_module(name: str) -> list[list[object]]:
    """Return a sort key: names in natural order, part by part, and a module after everything it contains."""
    return [*map(natural, name.split(".")), _LAST]
