"""What npucmp answers to a case, graded."""

from __future__ import annotations

from typing import NamedTuple, Optional

import npucmp
from npucmp.model import Root
from tests.corpus.tokens.cases import Case

GRADES = ("silent", "refused", "accused", "found", "operator only", "elsewhere", "undecided", "false agrees", "caught")


class Graded(NamedTuple):
    """The grade of a case, and what was said."""

    case: Case
    grade: str
    said: str


def graded(case: Case) -> Graded:
    """Compare the dumps of a case and grade the answer."""
    try:
        report = npucmp.compare(case.target, case.golden, progress=None)
    except npucmp.NpucmpError as error:
        return Graded(case, _grade(case, 2, None), f"2 {error}")
    first = next(iter(report.roots), None)
    status = report.exit_status
    if first is None:
        return Graded(case, _grade(case, status, None), f"{status} {str(report)[-300:]}")
    said = f"{status} {first.pair.operator.name} {first.slot} {first.cause.value} {first.request}/{first.position}"
    said += f" {first.because[:200]}"
    return Graded(case, _grade(case, status, first), said)


def _grade(case: Case, status: int, first: Optional[Root]) -> str:
    if case.trap:
        return "caught" if status else "false agrees"
    if case.truth is None:
        return {0: "silent", 1: "accused"}.get(status, "refused")
    if status != 1:
        return "false agrees" if status == 0 else "undecided"
    path, request, position = case.truth
    last = path.split(".", 3)[-1] if path.startswith("model.layers") else path
    if first is None or first.pair.golden_op is None:
        return "elsewhere"
    named = f"{first.pair.golden_op.name} {first.slot}"
    layer = path.split(".")[2] if path.startswith("model.layers") else ""
    if last.rpartition(".")[2] not in named or (layer and f"layers.{layer}." not in named):
        return "elsewhere"
    return "found" if (first.request, first.position) == (request, position) else "operator only"
