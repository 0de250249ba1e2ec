"""Read tables of msprobe's training monitor: statistics of parameters, gradients and activations, step by step.

    {time}-rank{R}-{id}/{kind}_{first step}-{last step}.csv     vpp_stage, name, step[, micro_step], figures
    rank_{R}/{kind}_step{first}-{last}.csv                      monitor v2: vpp_stage, step, module_name, scope, figures

Kinds are param_origin, param_updated, grad_unreduced, grad_reduced, exp_avg, exp_avg_sq, actv, actv_grad and others.
Figures are columns by name: max, min, mean and norm are read, and shape and dtype if a release writes them. The older
monitor rounds figures to a number of decimals (6 unless configured); smaller differences are not used.
Names of activations end in .input or .output, with _grad in backward tables, and _{n} if there are several.

Source: public documentation and writers of mindstudio-probe 26.2; docs/formats.md.
"""

from __future__ import annotations

import csv
import re
from itertools import islice
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, Optional

from npucmp.dump.file_per_tensor import operator_by_name
from npucmp.dump.limits import ANYWHERE, ReadContext, is_countable
from npucmp.dump.readers.folders import folders
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.text import read_text
from npucmp.errors import DumpError, SystemFailure
from npucmp.model import Operator, Run, Statistics, TensorRef
from npucmp.model.dtypes import DTYPES, canonical

NAME = "monitor"
WALKS = True
GRAPHS = None

COARSEST = "bfloat16"  # of the training types: if a table records no type, no rounding is reported as a difference
EXACT = 12  # figures with so many decimals are not rounded
_TURNS = {"param_origin": 0, "grad": 2, "actv": 1, "exp_avg": 3, "param": 4}  # the first word in a kind counts
_DEPTH, _LOOKED_AT = 4, 20  # folders below a path; tables whose head is read to recognise a dump
_FIGURES = ("max", "min", "mean", "norm")
_OF_TENSORS = ("shape", "dtype", "nans")  # "nan" in a row that is not a tensor
_FILE = re.compile(r"(?P<kind>.+?)(?:_(?:step)?[0-9]+-[0-9]+)?\.csv")
_RANK = re.compile(r"(?:.*-)?rank_?([0-9]{1,9})(?:-.*)?")
_STEP = re.compile("[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?[0-9]*\.?(?P<decimals>[0-9]*)(?:[eE](?P<power>[-+]?[0-9]{1,4}))?")
_ACTIVATION = re.compile(r"(?P<op>.*)\.(?P<role>input|output)(?P<grad>_grad)?(?:_(?P<number>[0-9]{1,9}))?")


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a path is a table of the monitor, or a folder with one within four levels."""
    return any(_is_table(file, context) for file in islice(_tables(path), _LOOKED_AT))


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per folder and step. An unreadable table adds a note."""
    found: dict[tuple[str, int], list[_FigureRow]] = {}
    notes: list[str] = []
    for file in _tables(path):
        if _is_table(file, context):
            for row in _rows(file, notes, context):
                found.setdefault((str(file.parent), row.step), []).append(row)
    if not found:
        raise DumpError(path, "; ".join(notes) or "contains no table of msprobe's monitor")
    return [_run(folder, step, rows, tuple(notes)) for (folder, step), rows in found.items()]


def _tables(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield from [path] if path.suffix == ".csv" else []
        return
    for folder, names in folders(path, _DEPTH):
        yield from (Path(folder, name) for name in names if name.endswith(".csv"))


def _is_table(file: Path, context: ReadContext) -> bool:
    try:
        with open_regular(str(file), context) as opened:
            head = opened.read(0, min(4096, opened.size)).decode("utf-8-sig", "replace")
    except SystemFailure:
        raise
    except DumpError:
        return False
    columns = head.partition("\n")[0].strip().split(",")
    return {"vpp_stage", "step"}.issubset(columns) and bool({"name", "module_name"}.intersection(columns))


class _FigureRow(NamedTuple):
    """One row: its operator and its only tensor."""

    step: int
    operator: str
    kind: str
    tensor: TensorRef


def _rows(file: Path, notes: list[str], context: ReadContext) -> list[_FigureRow]:
    kind = _FILE.fullmatch(file.name)
    try:
        table = list(csv.DictReader(read_text(file, "statistics_bytes", context).splitlines()))
    except (DumpError, csv.Error) as error:
        notes.append(f"{file}: ignored, {getattr(error, 'because', error)}")
        return []
    texts = [{key: value or "" for key, value in line.items() if isinstance(value, str)} for line in table]
    rounding = _rounding(line.get(name, "") for line in texts for name in _FIGURES)
    lines = (line for line in texts if all(line.get(name) != "nan" for name in _OF_TENSORS))
    rows = [_row(kind["kind"] if kind else file.stem, line, rounding) for line in lines]
    lost = rows.count(None)
    if lost:
        notes.append(f"{file}: {lost} rows name no tensor and are skipped")
    return [row for row in rows if row]


def _rounding(figures: Iterator[str]) -> float:
    """Return half a unit of the last decimal of the figures; 0 if they have so many decimals that none was rounded."""
    found = (_NUMBER.fullmatch(text) for text in figures)
    decimals = max((len(one["decimals"]) - int(one["power"] or 0) for one in found if one), default=0)
    return 0.5 * 10.0**-decimals if 0 <= decimals < EXACT else 0.0


def _row(kind: str, line: Mapping[str, str], rounding: float) -> Optional[_FigureRow]:
    name, step = line.get("name") or line.get("module_name") or "", line.get("step", "")
    if not name or not _STEP.fullmatch(step):
        return None
    kind = f"{kind}.{line['scope']}" if line.get("scope") else kind
    name, slot = _operator_and_slot(kind, name)
    operator = f"{kind}.{line.get('vpp_stage', '')}:{name}"
    operator += f".micro_step{line['micro_step']}" if line.get("micro_step") else ""
    shape, dtype = _shape(line.get("shape", "")), canonical(line.get("dtype", ""))
    statistics = Statistics.recorded(*map(_figure, map(line.get, _FIGURES)))
    tensor = TensorRef(
        slot,
        dtype if dtype in DTYPES else COARSEST,
        shape or (),
        statistics=statistics if any(figure is not None for figure in statistics) else None,
        problem="" if shape is not None else f"the table gives it the shape {line['shape']!r:.60}",
        label=f"{operator}.{slot.replace(':', '.')}",
        rounding=rounding,
    )
    return _FigureRow(int(step), operator, kind, tensor)


def _operator_and_slot(kind: str, name: str) -> tuple[str, str]:
    """Return (module or parameter, slot). The gradient of an input is an output of a backward."""
    found = _ACTIVATION.fullmatch(name)
    if found is None:
        role = "param" if _turn(kind) == 0 else "grad" if "grad" in kind else "output"
        return name, f"{role}:{name.rpartition('.')[2]}"
    flows_in = (found["role"] == "input") is not bool(found["grad"])
    return found["op"], f"{'input' if flows_in else 'output'}:{found['number'] or 0}"


def _turn(kind: str) -> int:
    """Return when in a step a kind is recorded: parameters, activations, gradients, averages, updated parameters."""
    return next((turn for word, turn in _TURNS.items() if word in kind), 2)


def _figure(text: Optional[str]) -> Optional[float]:
    try:
        return float(text or "")
    except ValueError:
        return None


def _shape(text: str) -> Optional[tuple[int, ...]]:
    """Parse "[4, 8]" or "torch.Size([4, 8])"; () if a table has no shape, as for a scalar; None if malformed."""
    sizes = re.findall("[0-9]+", text)
    if any(len(size) > 18 for size in sizes) or len(sizes) > 64:
        return None
    shape = tuple(map(int, sizes))
    return shape if is_countable(shape) else None


def _run(folder: str, step: int, rows: list[_FigureRow], notes: tuple[str, ...]) -> Run:
    made: dict[str, dict[str, _FigureRow]] = {}
    for row in sorted(rows, key=lambda row: _turn(row.kind)):
        made.setdefault(row.operator, {})[row.tensor.slot] = row
    twice = len(rows) - sum(map(len, made.values()))
    if twice:
        notes = (*notes, f"{folder}: {twice} rows of step {step} occur twice; the last ones are read")
    ranks = (_RANK.fullmatch(part) for part in reversed(Path(folder).absolute().parts))
    rank = next((int(found.group(1)) for found in ranks if found), None)
    operators = tuple(_operator(name, order, list(slots.values())) for order, (name, slots) in enumerate(made.items()))
    return Run(folder, NAME, operators, step, rank, "statistics", notes, ordered=False)


def _operator(name: str, order: int, rows: list[_FigureRow]) -> Operator:
    kind = rows[0].kind
    phase = "backward" if "grad" in kind else ""
    return operator_by_name(name, order, (row.tensor for row in rows), phase=phase)._replace(op_type=kind)
