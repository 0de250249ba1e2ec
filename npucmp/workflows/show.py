"""What is in a dump: the operators of its runs and, for those a pattern names, the figures of their tensors."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Optional

from npucmp.dump.context import ReadContext
from npucmp.errors import UsageError
from npucmp.measure.pairs import measure
from npucmp.model import Measurement, Operator, Pair, Run
from npucmp.workflows.misfits import unfit_globs
from npucmp.workflows.runs import Choice, StrPath

Rows = list[tuple[Operator, list[Measurement]]]


def inspect(
    dump: StrPath, pattern: Optional[str] = None, choice: Optional[Choice] = None
) -> "tuple[list[tuple[Run, Rows]], list[str]]":
    """The runs that are meant, their operators with their measured tensors (without a pattern nothing is measured), and
    notes on globs that fit nothing.

    Raises NpucmpError when nothing fits.
    """
    choice = choice or Choice()
    context = choice.context(dump)
    runs = choice.runs(dump, context)
    notes = unfit_globs(choice, runs)
    if pattern is not None:
        unfit_globs(replace(choice, include=(pattern,), exclude=()), runs, "")
    found = [(run, [*_rows(run, pattern, choice, context)]) for run in runs]
    if not any(rows for _, rows in found) and not any(run.problem for run, _ in found):
        raise UsageError(f"{dump}: no operator passes --include and --exclude")
    return found, notes


def _rows(run: Run, pattern: Optional[str], choice: Choice, context: ReadContext) -> Rows:
    return [
        (operator, _measured(operator, context) if pattern is not None else [])
        for operator in choice.chosen(run)
        if pattern is None or fnmatchcase(operator.name, pattern)
    ]


def _measured(operator: Operator, context: ReadContext) -> "list[Measurement]":
    return [measure(Pair(operator.order, t.slot, operator, None, t, None), context=context) for t in operator.tensors]
