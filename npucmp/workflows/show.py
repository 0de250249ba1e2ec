"""What is in a dump: the operators of one run and, for those a pattern names, the figures of their tensors."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Optional

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.measure.pairs import measure
from npucmp.model import Measurement, Operator, Pair, Run


def inspect(
    run: Run, pattern: Optional[str] = None, context: ReadContext = ANYWHERE
) -> "list[tuple[Operator, list[Measurement]]]":
    """Operators of a run with their measured tensors; without a pattern all operators, nothing measured."""
    if pattern is None:
        return [(operator, []) for operator in run.operators]
    return [
        (operator, _measured(operator, context)) for operator in run.operators if fnmatchcase(operator.name, pattern)
    ]


def _measured(operator: Operator, context: ReadContext) -> "list[Measurement]":
    return [measure(Pair(operator.order, t.slot, operator, None, t, None), context=context) for t in operator.tensors]
