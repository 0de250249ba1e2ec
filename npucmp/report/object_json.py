"""The JSON objects of commands without a Result: show, formats, plan, extract and ticket."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

from npucmp.model import Measurement, Operator, Run, TensorPreview
from npucmp.model.stack import source_line
from npucmp.report.answer import Row
from npucmp.report.json import strict
from npucmp.version import SCHEMA_VERSION, __version__

if TYPE_CHECKING:
    from pathlib import Path

    from npucmp.dump.catalogue import Producer
    from npucmp.model import ReplayedOutput
    from npucmp.model.ticket import Ticket
    from npucmp.plans.plan_result import Planned
    from npucmp.plans.sufficiency import MissingData

Seen = tuple[Measurement, Optional[TensorPreview]]


def object_text(command: str, facts: Row, status: int = 0) -> str:
    """Return the object of a command as JSON text."""
    head = {"schema_version": SCHEMA_VERSION, "npucmp": __version__, "command": command}
    return json.dumps(strict({**head, **facts, "exit_status": status}), indent=1, ensure_ascii=True) + "\n"


def contents_object(
    runs: Sequence[tuple[Run, Sequence[tuple[Operator, Sequence[Seen]]]]], notes: Sequence[str], top: Optional[int]
) -> Row:
    """Return the content of a dump; at most `top` operators of each run, all for None."""
    return {"runs": [_run(run, rows, top) for run, rows in runs], "notes": [*notes]}


def _run(run: Run, rows: Sequence[tuple[Operator, Sequence[Seen]]], top: Optional[int]) -> Row:
    return {
        "path": run.path, "format": run.format, "detail": run.detail, "step": run.step, "rank": run.rank,
        "operators": len(rows), "tensors": run.tensors, "notes": [*run.notes],
        "listed": [_operator(operator, measured) for operator, measured in rows[:top]],
    }  # fmt: skip


def _operator(operator: Operator, measured: Sequence[Seen]) -> Row:
    tensors: list[Row] = [_tensor(one, peek) for one, peek in measured]
    if not measured:
        tensors = [
            {"slot": one.slot, "dtype": one.dtype, "shape": [*one.shape], "problem": one.problem}
            for one in operator.tensors
        ]
    return {
        "order": operator.order, "op": operator.name, "op_type": operator.op_type, "phase": operator.phase,
        "source": source_line(operator), "arguments": {slot: repr(value) for slot, value in operator.arguments.items()},
        "tensors": tensors,
    }  # fmt: skip


def _tensor(one: Measurement, peek: Optional[TensorPreview]) -> Row:
    tensor = one.pair.target
    assert tensor is not None
    found: Row = {
        "slot": tensor.slot, "dtype": tensor.dtype, "shape": [*tensor.shape], "problem": one.problem,
        "checksum": tensor.checksum,
    }  # fmt: skip
    if one.moments is not None:
        side = one.moments.target
        finite = one.moments.elements - side.nan - side.inf
        found.update(nan=side.nan, inf=side.inf)
        if finite:
            found.update(min=side.minimum, max=side.maximum, mean=side.total / finite, l2=math.sqrt(side.squares))
    elif one.statistics[0] is not None:
        found.update(one.statistics[0]._asdict())
    if peek is not None:
        found["values"] = {
            "histogram": peek.values._asdict(),
            "largest": [*map(list, peek.largest)],
            "smallest": [*map(list, peek.smallest)],
            "zeros": peek.zeros,
            "elements": [*map(list, peek.elements)],
        }
    return found


def missing_object(run: Run, question: str, lacks: Sequence[MissingData]) -> Row:
    """Return what a dump lacks for a question."""
    return {
        "path": run.path, "step": run.step, "rank": run.rank, "question": question,
        "missing": [one._asdict() for one in lacks],
    }  # fmt: skip


def formats_object(producers: Sequence[Producer], names: Sequence[str]) -> Row:
    """Return the formats by producer, and the names of --format."""
    found: list[dict[str, Any]] = [
        {"producer": one.name, "trees": [tree._asdict() for tree in one.trees]} for one in producers
    ]
    return {"producers": found, "formats": [*names]}


def plan_object(found: Planned, paths: Sequence[Path]) -> Row:
    """Return a plan whose files were written."""
    return {
        "framework": found.framework,
        "files": [str(path) for path in paths],
        "script": [line._asdict() for line in found.script],
        "run": [*found.run],
        "other": found.other,
        "then": [*found.then],
        "size": None if found.size is None else found.size._asdict(),
        "notes": [*found.notes],
        "unverified": [*found.unverified],
        "warnings": [*found.warnings],
    }


def case_object(
    operator: Operator, rows: Sequence[ReplayedOutput], folder: Path, files: Sequence[str],
    cut: Optional[tuple[int, int]], redacted: Mapping[str, str],
) -> Row:  # fmt: skip
    """Return an extracted case; `redacted` says what was done to each tensor of a redacted one."""
    outputs = [
        {"slot": row.slot, "verdict": row.verdict.value, "status": row.status, "rms_ratio": row.rms_ratio,
         "rel_l2": row.rel_l2, "explanation": row.explanation}
        for row in rows
    ]  # fmt: skip
    return {
        "op": operator.name, "folder": str(folder), "files": [*files], "outputs": outputs,
        "rows": None if cut is None else {"kept": cut[0], "of": cut[1]}, "redacted": {**redacted},
    }  # fmt: skip


def ticket_object(found: Ticket, file: str, names: Sequence[str]) -> Row:
    """Return a ticket that was written."""
    row = found.row
    name = row.get("op") or row.get("parameter") or row.get("row") or row.get("rule") or ""
    return {"file": file, "files": [*names], "cause": row.get("cause", ""), "op": name, "slot": row.get("slot", "")}
