"""Operators that one side executed a second time. If activations are not kept, a forward is recomputed in the backward
pass (checkpointing), and its records follow the others. Equal outputs identify such operators.

A constant or a single number alone does not identify an operator. An operator without other outputs ran again if its
values equal those of an earlier operator of its type, and the operators around it ran again.
"""

from __future__ import annotations

from itertools import groupby
from typing import Hashable, Iterator, NamedTuple, Optional, Sequence

from npucmp.flow.contents import content_of, target_content_of
from npucmp.model import Finding, Operator
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_output


class _Execution(NamedTuple):
    """An operator of one side. `figures` of all its tensors are None if one is unknown. `again` is None for an operator
    whose outputs are not conclusive."""

    order: int
    alone: bool
    again: Optional[bool]
    figures: Optional[Hashable]


def ran_again(findings: Sequence[Finding]) -> frozenset[int]:
    """The places, in merged graph order, of operators without a partner whose outputs equal those of an earlier
    operator of the same type on that side."""
    if not any(finding.pair.target_op is None or finding.pair.golden_op is None for finding in findings):
        return frozenset()
    found = set()
    for of_target in (True, False):
        executions = [*_executions(findings, of_target)]
        found |= {one.order for one in executions if one.again and one.alone}
        found |= {*_between(executions)}
    return frozenset(found)


def _executions(findings: Sequence[Finding], of_target: bool) -> Iterator[_Execution]:
    seen: dict[str, set[int]] = {}
    for order, group in groupby(findings, key=lambda finding: finding.pair.order):
        rows = list(group)
        pair = rows[0].pair
        operator = pair.target_op if of_target else pair.golden_op
        outputs = [finding for finding in rows if is_output(finding.pair)]
        if operator is None or not outputs:
            continue
        alone = pair.target_op is None or pair.golden_op is None
        known = seen.setdefault(_kind(operator), set())
        contents = [*filter(None, map(target_content_of if of_target else content_of, outputs))]
        again = known.issuperset(contents) if contents else None
        known.update(contents)
        yield _Execution(order, alone, again, None if contents else _figures(operator, rows, of_target))


def _between(executions: Sequence[_Execution]) -> Iterator[int]:
    """The places of operators with inconclusive outputs whose values equal those of an earlier operator of their type,
    between operators that ran again."""
    held: set[Hashable] = set()
    before = False
    waiting: list[int] = []
    for one in executions:
        if one.again is not None:
            before = one.again and one.alone
            if before:
                yield from waiting
            waiting = []
        elif one.figures is not None:
            if before and one.alone and one.figures in held:
                waiting.append(one.order)
            held.add(one.figures)


def _kind(operator: Operator) -> str:
    return operator.op_type if op_type_of(operator).name else operator.kind


def _figures(operator: Operator, rows: Sequence[Finding], of_target: bool) -> Optional[Hashable]:
    """The type of an operator and the statistics of its tensors; None if values were not read."""
    figures = []
    for row in rows:
        moments, tensor = row.measurement.moments, row.pair.target if of_target else row.pair.golden
        if tensor is None or moments is None:
            return None
        side = moments.target if of_target else moments.golden
        figures.append((row.pair.slot, tensor.shape, side.minimum, side.maximum, side.total))
    return _kind(operator), tuple(figures)
