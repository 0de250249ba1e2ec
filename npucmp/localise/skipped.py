"""Outputs that were written and could not be compared: their files are missing or broken, or the user left them out.

An input that nothing compared wrote may be one of these. Whoever reads it is not accused: its error may have been there
before. Which one it is, is told by the golden side: the number of elements, the type, and the extremes where they were
recorded; the latest of those that fit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Hashable, NamedTuple, Optional, Sequence

from npucmp.dump.readers.name_rules import escaped
from npucmp.flow.operators import OperatorFindings
from npucmp.model import Finding, Pair, TensorRef, Verdict
from npucmp.model.roles import is_meaningless, is_output, is_parameter

NOT_DUMPED = "was not dumped or cannot be compared"
UNREADABLE = "could not be compared"
LEFT_OUT = "was left out by --include or --exclude"


class Writer(NamedTuple):
    """An output that was not compared, by name, and why."""

    name: str
    why: str = NOT_DUMPED

    @property
    def is_dumped(self) -> bool:
        """Whether there was something to compare."""
        return self.why != NOT_DUMPED


class Uncompared:
    """The outputs before the operator that is visited; those of operators that were left out are known beforehand."""

    def __init__(self, left_out: Sequence[Pair] = ()) -> None:
        self._left_out = {pair.order: pair for pair in left_out}
        self._outputs: dict[Hashable, list[Pair]] = defaultdict(list)
        self._named: dict[tuple[str, str], Pair] = {}  # by side and by the name that a graph has for a tensor
        for pair in left_out:
            self._add(pair)

    def remember(self, node: OperatorFindings) -> None:
        """An operator that was visited."""
        for finding in node.outputs:
            if finding.error is None and finding.verdict is Verdict.UNREADABLE:
                self._add(finding.pair)

    def _add(self, pair: Pair) -> None:
        if not is_output(pair) or is_meaningless(pair):
            return
        for side, operator in (("target", pair.target_op), ("golden", pair.golden_op)):
            if operator is not None:
                self._named[side, escaped(f"{operator.name}:{pair.slot.partition(':')[2]}")] = pair
        if pair.golden is not None and (pair.golden.shape or not pair.golden.problem):  # else its shape is not known
            self._outputs[_kind(pair.golden)].append(pair)

    @staticmethod
    def told(finding: Finding) -> Writer:
        """An output that has a row, without an error."""
        why = NOT_DUMPED if finding.verdict is Verdict.MISSING else UNREADABLE
        return Writer(f"{finding.pair.operator.name} {finding.pair.slot}", why)

    def writer(self, finding: Finding) -> Optional[Writer]:
        """The output that an input most likely is; None if none of those before it fits."""
        pair = self._writer(finding)
        if pair is None:
            return None
        why = LEFT_OUT if pair.order in self._left_out else UNREADABLE
        return Writer(f"{pair.operator.name} {pair.slot}", why)

    def _writer(self, finding: Finding) -> Optional[Pair]:
        golden = finding.measurement.tensor(1)
        for side, tensor in (("target", finding.pair.target), ("golden", golden)):
            if tensor is not None and tensor.source:
                return self._named.get((side, escaped(tensor.source)))
        if golden is None or is_parameter(finding.pair):
            return None
        fits = [
            pair
            for pair in self._outputs.get(_kind(golden), ())
            if pair.order < finding.pair.order and pair.golden is not None and _may_be(pair.golden, golden)
        ]
        return max(fits, key=lambda pair: pair.order, default=None)

    def forward_of(self, node: OperatorFindings) -> str:
        """The forward of a gradient, if that was left out; "" elsewhere."""
        calls = (pair.operator for pair in self._left_out.values())
        return next((one.name for one in calls if one.phase == "forward" and one.call == node.operator.call), "")

    def left_out(self, start: int, end: int) -> list[Pair]:
        """Operators that the user left out, between two places in the graph, the latest first."""
        return [pair for order, pair in reversed(self._left_out.items()) if start < order < end]


def _kind(tensor: TensorRef) -> Hashable:
    return math.prod(tensor.shape), tensor.dtype


def _may_be(one: TensorRef, other: TensorRef) -> bool:
    """Whether what was recorded of two tensors beside their values lets them be one."""
    a, b = one.statistics, other.statistics
    if a is None or b is None or None in (a.max, a.min, b.max, b.min):
        return True
    return repr((a.max, a.min)) == repr((b.max, b.min))  # NaN among them
