"""Read folders of .pt and .pth files without a dump.json, one tensor each, as users of LLM frameworks dump them:

    step{N}/{rank{M} | pid{P}}/dump_tensor_data/{name}.{call}.{input|input_kwargs|output}[.{path}].pt   AclGraphDumper
    {given}_{n}.pt                                                                                       acl_save
    {npu|cuda}{D}_{pid}/{token}/root.{module}/{input|output}[_{i}[_{j}…]].pth                            msit, MindIE
    {npu|cuda}{D}_{pid}/weights/root.{parameter}.pth
    {any order of forward_pass_id={N} | step={N}, rank={M}, name={name}, dump_index={n}, k=v}.pt         SGLang
        joined by ___ (older: __); the tensor itself, or {"value": tensor, "meta": …}
    {anything}.pt                                                                                        one output

readers/folders.py reads step and rank from folders, readers/names.py parses other names. Only dump_index gives the
order of execution. Otherwise operators are sorted by the write times of their files, if these are reliable
(readers/folders.py), else by call number, then by name, with each module after its children; the run then has a
note.

Source: public documents and sources of msprobe (aclgraph_dumper.py), msit (dump_hook.py), SGLang (debug_utils).
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Iterator, NamedTuple, Optional

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers import folders
from npucmp.dump.readers.folders import (
    DATA,
    RunFiles,
    WrittenOperator,
    executions,
    files_of,
    first_names,
    has_ending,
    is_module,
    write_order,
)
from npucmp.dump.readers.names import (
    by_module,
    natural,
    operator_of,
    parse_tensor_name,
    place_of,
    skipped_files_note,
)
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.torch_pt import entries
from npucmp.errors import DumpError
from npucmp.model import Operator, Run, TensorRef, first_of

NAME = "pt"
WALKS = True
GRAPHS = None

ALONE = "file"
ENDINGS = (".pt", ".pth")
_HOOKED = re.compile(r"(?P<role>input|output)(?P<path>(?:_[0-9]+)*)")
_SERIAL = re.compile(r".+_([0-9]{1,18})")
_FIELD = re.compile(r"___?(?=[A-Za-z0-9]+(?:_[A-Za-z0-9]+)*=)")
_GUESSED = "order: guessed, the files do not record it; operators are sorted by call number, then by name"
_STEPS = ("forward_pass_id", "step")
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


class PtFile(NamedTuple):
    """The parts of a file name: `call` is the call number, `turn` the position in the order of execution."""

    folder: str
    operator: str
    slot: str
    path: str
    call: int = -1
    turn: int = -1


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a path is a .pt or .pth file, or a folder with one among the first names below it."""
    return has_ending(path, ENDINGS, first_names(path))


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per step and rank of each dump. Only headers are read; a malformed file is one tensor."""
    runs = [run for found in files_of(path, ENDINGS) for run in _runs(found, context)]
    return [_alone(run) for run in runs] if path.is_file() else _with_weights(runs)


def _with_weights(runs: list[Run]) -> list[Run]:
    """Add the weights beside the tokens of a device to the modules of the first token, so that they are read once."""
    weights = {run.path: run for run in runs if run.step is None and all(map(_is_weights, run.operators))}
    first: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.step or 0):
        if os.path.dirname(run.path) in weights:
            first.setdefault(os.path.dirname(run.path), run)
    joined = {id(run): _with_parameters(run, weights[owner]) for owner, run in first.items()}
    return [joined.get(id(run), run) for run in runs if run.path not in first]


def _with_parameters(run: Run, weights: Run) -> Run:
    """Return a run with weights added to operators of the same names; the others follow at its end."""
    left = {operator.name: operator for operator in weights.operators}
    own = [one._replace(tensors=(*one.tensors, *left.pop(one.name).tensors)) if one.name in left else one
           for one in run.operators]  # fmt: skip
    return replace(run, operators=tuple(one._replace(order=at) for at, one in enumerate([*own, *left.values()])))


def _is_weights(operator: Operator) -> bool:
    return all(tensor.slot.startswith("param:") or tensor.problem for tensor in operator.tensors)


def _runs(found: RunFiles, context: ReadContext) -> list[Run]:
    of_msprobe = any(f"{os.sep}{word}{os.sep}" in found.paths[0][2] for word in DATA)
    runs: dict[tuple[Optional[int], Optional[int]], list[PtFile]] = defaultdict(list)
    for folder, name, file in found.paths:
        stem = name[: name.rindex(".")]
        fields = fields_of(stem)
        step, rank = (_number(fields, _STEPS, found.step), _number(fields, ("rank",), found.rank))
        runs[step, rank].append(_pt_file(fields, file) if fields else parse_pt_name(folder, stem, file, of_msprobe))
    notes = tuple(filter(None, [skipped_files_note(found.path, found.others)]))
    return [_run(found.path, *at, files, notes, context) for at, files in runs.items()]


def fields_of(stem: str) -> dict[str, str]:
    """Return the fields of a name of SGLang's dumper; {} for any other name."""
    parts = [part.partition("=") for part in _FIELD.split(stem)]
    fields = {key: value for key, equals, value in parts if equals}
    is_one = len(fields) == len(parts) and "name" in fields and any(key in fields for key in _STEPS)
    return fields if is_one else {}


def labels(folder: str, name: str) -> tuple[Optional[int], Optional[int]]:
    """Return step and rank of a file, from the fields of its name, else from its folders."""
    place, fields = place_of(Path(folder).absolute().parts), fields_of(os.path.splitext(name)[0])
    return _number(fields, _STEPS, place.step), _number(fields, ("rank",), place.rank)


def _number(fields: dict[str, str], keys: tuple[str, ...], otherwise: Optional[int]) -> Optional[int]:
    text = next((fields[key] for key in keys if key in fields), "")
    return int(text) if _NUMBER.fullmatch(text) else otherwise


def _pt_file(fields: dict[str, str], file: str) -> PtFile:
    index = _number(fields, ("dump_index",), None)
    more = [f"{key}={value}" for key, value in fields.items() if key not in ("name", "rank", "dump_index", *_STEPS)]
    operator, slot, call = parse_tensor_name(fields["name"])
    return PtFile("", "___".join([operator, *more]), slot, file, call, -1 if index is None else index)


def parse_pt_name(folder: str, stem: str, file: str, of_msprobe: bool = False) -> PtFile:
    """Return operator and slot from a file name and the folders between it and its run; see the module docstring."""
    before, _, last = folder.rpartition("/")
    hooked = _HOOKED.fullmatch(stem)
    if hooked and folder:
        return PtFile(before, last, f"{hooked['role']}:{hooked['path'][1:].replace('_', '.') or 0}", file)
    if last == "weights" and is_module(stem):
        operator, _, parameter = stem.rpartition(".")
        return PtFile(before, operator, f"param:{parameter}", file)
    operator, slot, call = parse_tensor_name(stem, of_msprobe)
    return PtFile(folder, operator, slot, file, call)


def _run(
    path: str,
    step: Optional[int],
    rank: Optional[int],
    files: list[PtFile],
    notes: tuple[str, ...],
    context: ReadContext,
) -> Run:
    ordered = all(file.turn >= 0 for file in files)
    uncalled = _modules_uncalled(files)
    files = files if ordered else _number_calls(uncalled)
    groups = executions(
        files,
        operator=lambda file: (file.folder, file.operator),
        slot=lambda file: file.slot,
        age=lambda file: (file.turn, file.path),
        within=lambda file: natural(file.slot),
        position=lambda group: (group[0].turn if ordered else 0, *_position(group[0])),
    )
    if not ordered:
        order = write_order([*map(_operator_record, groups)]) if files is uncalled else None
        groups = [groups[at] for at in order] if order else groups
        notes = (*notes, folders.NOTE if order else _GUESSED)
    modules = {_module(group[0]): _name(group[0]) for group in groups}
    operators = [_operator(order, group, modules, context) for order, group in enumerate(groups)]
    if texts := [operator.name for operator in operators if not operator.tensors]:
        operators = [operator for operator in operators if operator.tensors]
        operators = [operator._replace(order=order) for order, operator in enumerate(operators)]
        notes = (*notes, f"files that hold texts and no tensor are not compared: {first_of(texts)}")
    outputs = all(file.slot.startswith("output:") for file in files)
    return Run(path, NAME, tuple(operators), step, rank, "outputs only" if outputs else "", notes, ordered)


def _modules_uncalled(files: list[PtFile]) -> list[PtFile]:
    """Drop call numbers that are parts of module paths: other names extend them ("layers.1", "layers.1.mlp")."""
    above = {file.operator[:at] for file in files for at, letter in enumerate(file.operator) if letter == "."}
    return [file._replace(call=-1) if file.operator in above else file for file in files]


def _number_calls(files: list[PtFile]) -> list[PtFile]:
    """Use the numbers of acl_save as call numbers. It counts all saved tensors, so all numbers must be distinct."""
    found = [_SERIAL.fullmatch(file.operator) for file in files]
    numbers = [int(one[1]) for one in found if one]
    if len({*numbers}) < len(files) or any(file.slot != "output:0" for file in files):
        return files
    return [file._replace(call=number) for file, number in zip(files, numbers)]


def _position(file: PtFile) -> tuple[list[object], int, list[list[object]]]:
    return natural(file.folder), file.call, by_module(file.operator)


def _operator_record(files: list[PtFile]) -> WrittenOperator:
    first = files[0]
    name = first.operator[: -len(f".{first.call}")] if first.operator.endswith(f".{first.call}") else first.operator
    return WrittenOperator([file.path for file in files], _path(first.operator)[0] or name, first.folder, first.call)


def _name(file: PtFile) -> str:
    return f"{file.folder}/{file.operator}" if file.folder else file.operator


def _path(operator: str) -> tuple[str, str]:
    """Return the path of a module in the model, and its call; ("", …) for other names."""
    if is_module(operator):
        return operator, ""
    head, _, call = operator.rpartition(".")
    return (head.rpartition(".")[0], call) if operator.startswith("Module.") and call.isdigit() else ("", "")


def _module(file: PtFile) -> tuple[str, str]:
    """Return module path and call; a name without a call is the module path that a user's hook wrote."""
    path, call = _path(file.operator)
    return (path, call) if path or file.call >= 0 else (file.operator, "")


def _operator(order: int, files: list[PtFile], modules: dict[tuple[str, str], str], context: ReadContext) -> Operator:
    tensors = tuple(tensor for file in files for tensor in _tensors(file, context))
    path = _path(files[0].operator)[0]
    (above, call), scope = _module(files[0]), ""
    while above and not scope:
        above = above.rpartition(".")[0]
        scope = modules.get((above, call), "") if above else ""
    made = operator_of(_name(files[0]), order, tensors, scope)
    return made._replace(path=path) if path else made


def _tensors(file: PtFile, context: ReadContext) -> Iterator[TensorRef]:
    """Yield the tensor of a file, or the tensors of a container in it, as parts of the file's slot."""
    label = os.path.basename(file.path)
    try:
        with open_regular(file.path, context) as opened:
            found = entries(opened)
    except DumpError as error:
        found = {"": error.because}
    for name, one in found.items():
        about = f"{label}: {name}" if name else label
        if isinstance(one, str):
            yield TensorRef("", "", (), file.path, "torch_pt", problem=one, label=about)
        elif name:
            slot = f"{file.slot}.{name}"
            yield TensorRef(slot, one.dtype, one.shape, file.path, "torch_pt", label=about, payload=one)
        else:
            yield TensorRef(file.slot, one.dtype, one.shape, file.path, "torch_pt", label=about)


def _alone(run: Run) -> Run:
    """Return the run of a single given file: two such files are partners with any names."""
    if not run.operators:
        raise DumpError(run.path, "holds texts and no tensor")
    (operator,) = run.operators
    return replace(run, operators=(operator._replace(op_type=ALONE, kind=ALONE),), notes=(), ordered=True)
