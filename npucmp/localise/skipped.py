"""Outputs that were written but not compared: their files are missing or broken, or the user excluded them.

An input without a compared producer may be one of these. Its consumer is not accused, because the error may exist
before it. The golden side identifies the output: the number of elements, the type, and the extremes if recorded; the
latest matching output is taken.
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
LEFT_OUT = "was excluded by --include or --exclude"


class Writer(NamedTuple):
    """The name of an output that was not compared, and the reason."""

    name: str
    why: str = NOT_DUMPED

    @property
    def is_dumped(self) -> bool:
        """Whether the output was dumped."""
        return self.why != NOT_DUMPED


class Uncompared:
    """The outputs before the operator that is visited; outputs of excluded operators are known from the start."""

    def __init__(self, left_out: Sequence[Pair] = ()) -> None:
        self._left_out = {pair.order: pair for pair in left_out}
        self._outputs: dict[Hashable, list[Pair]] = defaultdict(list)
        self._named: dict[tuple[str, str], Pair] = {}  # by side and by the tensor's name in a graph
        for pair in left_out:
            self._add(pair)

    def remember(self, node: OperatorFindings) -> None:
        """Add an operator that was visited."""
        for finding in node.outputs:
            if finding.error is None and finding.verdict is Verdict.UNREADABLE:
                self._add(finding.pair)

    def _add(self, pair: Pair) -> None:
        if not is_output(pair) or is_meaningless(pair):
            return
        for side, operator in (("target", pair.target_op), ("golden", pair.golden_op)):
            if operator is not None:
                self._named[side, escaped(f"{operator.name}:{pair.slot.partition(':')[2]}")] = pair
        if pair.golden is not None and (pair.golden.shape or not pair.golden.problem):  # otherwise its shape is unknown
            self._outputs[_kind(pair.golden)].append(pair)

    @staticmethod
    def told(finding: Finding) -> Writer:
        """An output that has a row without an error."""
        why = NOT_DUMPED if finding.verdict is Verdict.MISSING else UNREADABLE
        return Writer(f"{finding.pair.operator.name} {finding.pair.slot}", why)

    def writer(self, finding: Finding) -> Optional[Writer]:
        """The output that most likely is the input; None if no earlier output matches."""
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
        """The name of a gradient's forward, if the user excluded it; "" otherwise."""
        calls = (pair.operator for pair in self._left_out.values())
        return next((one.name for one in calls if one.phase == "forward" and one.call == node.operator.call), "")

    def left_out(self, start: int, end: int) -> list[Pair]:
        """The operators that the user excluded between two places in the graph, the latest first."""
        return [pair for order, pair in reversed(self._left_out.items()) if start < order < end]


def _kind(tensor: TensorRef) -> Hashable:
    return math.prod(tensor.shape), tensor.dtype


def _may_be(one: TensorRef, other: TensorRef) -> bool:
    """Whether the recorded statistics allow that two tensors are the same."""
    a, b = one.statistics, other.statistics
    if a is None or b is None or None in (a.max, a.min, b.max, b.min):
        return True
    return repr((a.max, a.min)) == repr((b.max, b.min))  # NaN among them
