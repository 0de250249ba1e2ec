"""summary.json: one object that scripts read. Keys are only ever added; NaN and infinities are strings in it."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, Sequence

from npucmp import __version__
from npucmp.model import Report
from npucmp.report import coverage
from npucmp.report.status import exit_status
from npucmp.report.tables import root_rows

NAME = "json"
ROOTS = 50


def render(report: Report, extra: Sequence[str] = ()) -> "dict[str, str]":
    """The one file."""
    return {"summary.json": json.dumps(strict(summary(report)), indent=1, ensure_ascii=True) + "\n"}


def summary(report: Report) -> "dict[str, Any]":
    """What summary.json holds, as Python values."""
    return {
        "npucmp": __version__,
        "command": report.command,
        "argv": list(report.argv),
        "target": _side(report, "target"),
        "golden": _side(report, "golden"),
        **({"runs": list(report.runs)} if report.runs else {}),
        "aligned": coverage.aligned(report),
        "verdicts": dict(Counter(finding.verdict.value for finding in report.findings)),
        "causes": dict(Counter(root.cause.value for root in report.roots)),
        "roots": list(root_rows(report))[:ROOTS],
        "rules": [row.__dict__ for row in report.rules],
        "notes": coverage.notes(report),
        "passes": [effect._asdict() for effect in report.passes],
        "unpaired": [
            {"side": side, "path": run.path, "step": run.step, "rank": run.rank} for side, run in report.unpaired
        ],
        "broken": [{"side": side, "path": run.path, "because": run.problem} for side, run in report.broken],
        "seconds": round(report.seconds, 3),
        "bytes_read": report.bytes_read,
        "partial": report.partial,
        "exit_status": exit_status(report),
    }


def _side(report: Report, side: str) -> "dict[str, Any]":
    runs = [getattr(comparison, side) for comparison in report.comparisons]
    first = runs[0]
    return {
        "path": getattr(report, f"{side}_path"),
        "format": first.format,
        "detail": first.detail,
        "step": first.step,
        "rank": first.rank,
        "operators": sum(len(run.operators) for run in runs),
        "tensors": sum(run.tensors for run in runs),
        "bytes": coverage.bytes_of(runs),
        "runs": [{"path": run.path, "step": run.step, "rank": run.rank, "notes": list(run.notes)} for run in runs],
    }


def strict(value: Any) -> Any:
    """JSON has no NaN and no infinity; a reader that is not Python must be able to parse the file."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {key: strict(below) for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(below) for below in value]
    return value
