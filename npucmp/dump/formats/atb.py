"""Read dumps of ATB (MindIE, ascend-transformer-boost): a file per tensor of every layer, operation and kernel.

    {root}/data/{device}_{pid}/{execution}/{id}_{layer}/{id}_{operation}/{id}_{kernel}/   any part, any depth
        before/intensor{n}[_{name}].bin     its inputs
        after/outtensor{n}[_{name}].bin     its outputs; also inputs that were saved after the execution
        op_param.json                       its arguments
    {root}/data/{device}_{pid}/{execution}/statistic.csv      a row per tensor, beside the files or instead of them

The operators that an operator contains run before it ends, so children precede it. A file may name another file with
the same content.
Layouts: readers/atb.py.
Source: public sources and documentation of msprobe and msit; docs/formats.md.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from npucmp.dump.file_per_tensor import Place, kinds_met_once, operator_by_name, run_of
from npucmp.dump.layouts import DEVICE_LAYOUTS
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.atb import STATISTIC, AtbTensor, is_atb, is_table, read_atb, rows
from npucmp.dump.readers.folders import folders, folders_at
from npucmp.dump.readers.names import natural, place_of, skipped_files_note
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.text import json_object, read_text
from npucmp.errors import DumpError, SystemFailure
from npucmp.model import Operator, Run, TensorRef

NAME = "atb"
WALKS = True
GRAPHS = None

_TENSOR = re.compile(r"(?P<role>in|out)tensor(?P<index>[0-9]{1,6})(?:_.*)?\.bin", re.IGNORECASE)
_OPERATOR = re.compile(r"([0-9]{1,9})_(.*[^0-9_].*)")
_PROCESS = re.compile(r"([0-9]{1,9})_[0-9]+")
_NUMBER = re.compile(r"[0-9]{1,9}")
_LINK = re.compile(r"(?P<ids>[0-9]{1,9}(?:_[0-9]{1,9})*)_(?P<file>(?:in|out)tensor.*)", re.IGNORECASE)
_SUFFIX = re.compile(r"(?<=.)(?:Operation|Kernel)$")
_TIMES = ("before", "after")
_PARAMETERS = "op_param.json"
_SNIFFED = 5000  # maximum number of searched folders

Chain = tuple[tuple[int, str], ...]  # (id, name) of the enclosing operators and of the operator, outermost first


@dataclass
class ExecutionFiles:
    """The content of one execution: by operator, the files of its slots and the recorded statistics."""

    files: dict[Chain, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    recorded: dict[Chain, dict[str, TensorRef]] = field(default_factory=lambda: defaultdict(dict))
    parameters: dict[Chain, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def link_targets(self) -> dict[tuple[tuple[int, ...], str], str]:
        """Map the names used by links to files: the ids of the operator, and the name of the file."""
        return {
            (_ids(chain), os.path.basename(file)): file
            for chain, slots in self.files.items()
            for file in slots.values()
        }


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a file has an ATB header, or a folder holds such files or their table within sixteen levels."""
    if path.is_file():
        return is_table(path, context) if path.name == STATISTIC else _is_tensor(path, context)
    looked_at = islice(folders(path), _SNIFFED)
    return any(_holds(folder, names) or (STATISTIC in names and is_table(Path(folder, STATISTIC), context))
               for folder, names in looked_at)  # fmt: skip


def _is_tensor(path: Path, context: ReadContext) -> bool:
    try:
        with open_regular(str(path), context) as file:
            return is_atb(file)
    except SystemFailure:
        raise
    except DumpError:
        return False


def _holds(folder: str, names: Sequence[str]) -> bool:
    return os.path.basename(folder) in _TIMES and any(map(_TENSOR.fullmatch, names))


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per (process, execution). Only headers are read; a malformed file is one unreadable tensor."""
    if path.is_file() and path.name != STATISTIC:
        return [_single(path, context)]
    found: dict[Place, ExecutionFiles] = defaultdict(ExecutionFiles)
    for folder, names in folders_at(path):
        holds = _holds(folder, names)
        if not (holds or STATISTIC in names or _PARAMETERS in names):
            continue
        when = os.path.basename(folder)
        chain, place = _chain_and_step(os.path.dirname(folder) if when in _TIMES else folder)
        if holds:
            _enter(found[place].files[chain], folder, names, when)
            strangers = (name for name in names if not _TENSOR.fullmatch(name))
            found[place].notes += filter(None, [skipped_files_note(folder, strangers)])
        if STATISTIC in names and is_table(Path(folder, STATISTIC), context):
            for row in rows(Path(folder, STATISTIC), found[place].notes, context):
                found[place].recorded[row.chain][row.tensor.slot] = row.tensor
        if _PARAMETERS in names:
            found[place].parameters[chain] = os.path.join(folder, _PARAMETERS)
    return [_run(place, one, context) for place, one in found.items() if one.files or one.recorded]


def _enter(slots: dict[str, str], folder: str, names: Sequence[str], when: str) -> None:
    """Collect the files of one folder; inputs saved before the execution take precedence."""
    for name in names:
        match = _TENSOR.fullmatch(name)
        if match and (match["role"].lower(), when) != ("out", "before"):  # not written yet
            slot = f"{match['role'].lower()}put:{int(match['index'])}"
            if when == "before" or slot not in slots or match["role"].lower() == "out":
                slots[slot] = os.path.join(folder, name)


def _chain_and_step(folder: str) -> tuple[Chain, Place]:
    """Return the operators that enclose a folder, and the execution and device above them."""
    chain: list[tuple[int, str]] = []
    folder = folder if os.path.isabs(folder) else str(Path(folder).absolute())
    above, name = folder, os.path.basename(folder)
    while match := _OPERATOR.fullmatch(os.path.basename(above)):
        chain.insert(0, (int(match[1]), match[2]))
        above = os.path.dirname(above)
    return tuple(chain) or ((0, name),), _execution(above)


def labels(folder: str, name: str) -> tuple[Optional[int], Optional[int]]:
    """Return step and rank of a file, from its folders."""
    chain = os.path.dirname(folder) if os.path.basename(folder) in _TIMES else folder
    return _chain_and_step(chain)[1][1:]


@lru_cache(maxsize=64)
def _execution(folder: str) -> Place:
    """Return the execution and device named by a folder above operators."""
    parts = Path(folder).absolute().parts
    step = rank = None
    if len(parts) > 1 and _NUMBER.fullmatch(parts[-1]) and re.fullmatch(r"[0-9]+(_[0-9]+)?", parts[-2]):
        process = _PROCESS.fullmatch(parts[-2])
        labels = place_of(parts[:-2])
        rank = (
            labels.rank if labels.rank is not None else int(process[1]) if process else None
        )  # each may see one device
        step, parts = int(parts[-1]), parts[:-1]
    return Place(os.path.join(*parts), step, rank)


def _ids(chain: Chain) -> tuple[int, ...]:
    return tuple(number for number, _ in chain)


def _name(chain: Chain) -> str:
    return "/".join(f"{number}_{name}" for number, name in chain)


def _kind(chain: Chain) -> str:
    return "/".join(name for _, name in chain)


def _position(chain: Chain) -> tuple[float, ...]:
    """Return a sort key: children precede their container, which ends after them."""
    return (*_ids(chain), math.inf)


def _single(path: Path, context: ReadContext) -> Run:
    tensors = [_tensor("output:0", str(path), None, {}, context)]
    return Run(str(path), NAME, (operator_by_name(path.stem, 0, tensors)._replace(op_type=path.stem),))


def _run(place: Place, contents: ExecutionFiles, context: ReadContext) -> Run:
    chains = sorted({*contents.files, *contents.recorded}, key=lambda chain: (_position(chain), chain))
    single = kinds_met_once(_kind, chains)
    around = {chain[:end] for chain in chains for end in range(1, len(chain))}
    linked = contents.link_targets()
    notes = list(contents.notes)
    operators = tuple(
        _operator(order, chain, contents, linked, single, around, notes, context) for order, chain in enumerate(chains)
    )
    return run_of(place, NAME, operators, "" if contents.files else "statistics", notes)


def _operator(
    order: int,
    chain: Chain,
    contents: ExecutionFiles,
    linked: Mapping[tuple[tuple[int, ...], str], str],
    single: set[str],
    around: set[Chain],
    notes: list[str],
    context: ReadContext,
) -> Operator:
    files, recorded = contents.files.get(chain, {}), contents.recorded.get(chain, {})
    slots = sorted({*files, *recorded}, key=natural)
    tensors = (
        _tensor(slot, files[slot], recorded.get(slot), linked, context) if slot in files else recorded[slot]
        for slot in slots
    )
    scopes = [chain[:end] for end in range(len(chain) - 1, 0, -1)]
    scope = next((one for one in scopes if one in contents.files or one in contents.recorded), ())
    parameters = contents.parameters.get(chain)
    return Operator(
        name=_name(chain),
        op_type=_SUFFIX.sub("", chain[-1][1]),
        kind=_kind(chain),
        phase="",
        order=order,
        tensors=tuple(tensors),
        scope=_name(scope) if scope else "",
        path=_name(chain).replace("/", ".") if chain in around else "",
        arguments=_arguments(parameters, notes, context) if parameters else {},
        unique=_kind(chain) in single,  # ids shift when an operator is inserted
        call=_name(chain),
        reads_recorded=any(slot.startswith("input") for slot in slots),
    )


def _arguments(file: str, notes: list[str], context: ReadContext) -> dict[str, Any]:
    """Return the plain values of an operator's parameters; an unreadable file adds a note."""
    try:
        values = json_object(read_text(file, "record_bytes", context), file, "parameters", digits=40)
    except DumpError as error:
        notes.append(f"{file}: ignored, {error.because}")
        return {}
    return {key: value for key, value in values.items() if isinstance(value, (bool, int, float, str))}


def _tensor(
    slot: str,
    file: str,
    recorded: Optional[TensorRef],
    linked: Mapping[tuple[tuple[int, ...], str], str],
    context: ReadContext,
) -> TensorRef:
    label = "/".join(Path(file).parts[-3:])
    try:
        found = _read(file, context)
        payload = found.payload
        other = _other(found.link, linked) if payload is None else None
        if other is not None:
            payload = _read(other, context).payload
            if payload is not None and (payload.dtype, payload.shape) != (found.dtype, found.shape):
                raise DumpError(
                    file, f"names {found.link[:80]!r}, which contains {payload.dtype} {list(payload.shape)}"
                )
    except DumpError as error:
        return TensorRef("", "", (), file=file, problem=error.because, label=label)
    return TensorRef(
        slot=slot,
        dtype=found.dtype,
        shape=found.shape,
        file=payload.path if payload is not None else "",
        statistics=recorded.statistics if recorded else None,
        rounding=recorded.rounding if recorded else 0.0,
        layout=found.layout if found.layout in DEVICE_LAYOUTS else "",
        label=label,
        payload=payload,
    )


def _read(file: str, context: ReadContext) -> AtbTensor:
    with open_regular(file, context) as opened:
        return read_atb(opened)


def _other(link: str, linked: Mapping[tuple[tuple[int, ...], str], str]) -> Optional[str]:
    """Return the file of this execution that a link names, None if there is none: then no values were saved."""
    match = _LINK.fullmatch(link)
    return linked.get((tuple(map(int, match["ids"].split("_"))), match["file"])) if match else None
