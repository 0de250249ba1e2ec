"""Matches of operators, pairs of tensors that should agree, the measurement of a pair and the verdict on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Optional

from npucmp.model.dump import FiguresAt, Operator, Statistics, TensorRef
from npucmp.model.moments import Moments


class Match(NamedTuple):
    """Two operators that were aligned. `via` is the matcher, `confidence` from 0 to 1.

    For a fused operator, `golden` is synthetic, with tensors of several operators of the golden run; `inside` are the
    orders of all operators inside it. In a `settled` match, tensors are paired only by slot.
    """

    target: Operator
    golden: Operator
    via: str
    confidence: float
    inside: tuple[int, ...] = ()
    settled: bool = False


class Pair(NamedTuple):
    """Two tensors that should agree, or one without a partner.

    If a side is missing, `via` is empty and `note` has the reason. `order` is the position in the merged graph order of
    both runs, the same for all pairs of an operator.
    """

    order: int
    slot: str
    target_op: Optional[Operator]
    golden_op: Optional[Operator]
    target: Optional[TensorRef]
    golden: Optional[TensorRef]
    via: str = ""
    confidence: float = 0.0
    note: str = ""

    @property
    def operator(self) -> Operator:
        """The target's operator, or the golden's if the target has none."""
        operator = self.target_op or self.golden_op
        assert operator is not None
        return operator

    @property
    def golden_shape(self) -> tuple[int, ...]:
        """The shape of the golden's tensor; () without one."""
        return self.golden.shape if self.golden is not None else ()

    @property
    def elements(self) -> int:
        """The number of elements of the golden's tensor; 0 without one."""
        return math.prod(self.golden.shape) if self.golden is not None else 0

    @property
    def is_inside(self) -> bool:
        """Whether the tensor is internal to the compiler's result and has no counterpart in the network. The target's
        tensor decides if it exists, else the golden's."""
        tensor, operator = (self.target, self.target_op) if self.target else (self.golden, self.golden_op)
        if tensor is None or operator is None:
            return False
        return operator.inserted or (bool(operator.originals) and not tensor.origin)


class Verdict(str, Enum):
    """The verdict on a tensor pair, in the words of tensors.csv."""

    MATCH = "match"
    DIVERGED = "diverged"
    NONFINITE = "nonfinite"  # NaN or Inf on one side only
    SHAPE = "shape"
    DTYPE = "dtype"  # cannot be compared, e.g. text against numbers
    MISSING = "missing"  # no partner on the other side
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"  # statistics or checksums cannot decide


BY_CONTENT = frozenset(("content", "structure", "pattern", "similar", "copy"))  # matchers of align/contents/ alone
FOUND_BY_CONTENT = {"npucmp": "content"}  # the entry of a mapping that an alignment by contents wrote
# the note of an input of the target without a partner, if the tensors from which it is computed have none either
UNBOUNDED = "the golden run has no such tensor, and none from which it is computed"
MEANINGLESS = ("meaningless", "overwritten")  # rules for tensors whose values need not be equal
OTHER_NODE = "another autograd node"  # the rule for two outputs that are different tensors, neither of them wrong
DIFFERS = frozenset((Verdict.DIVERGED, Verdict.NONFINITE, Verdict.SHAPE))  # verdicts for sides that are not the same


class _Measured(NamedTuple):
    pair: Pair
    moments: Optional[Moments] = None
    bound: Optional[float] = None
    same: Optional[bool] = None
    problem: str = ""
    unlike: str = ""
    shapes_differ: bool = False
    statistics: tuple[Optional[Statistics], Optional[Statistics]] = (None, None)
    bytes_read: int = 0
    settled: Optional[float] = None


class Measurement(_Measured):
    """A pair and the result of its measurement.

    `moments` is None if nothing was measured. `bound` is a proven lower bound of rel_l2 from recorded statistics,
    `same` the result of checksums; each is None if the dump does not decide. `problem` names the unreadable side and
    the reason; `unlike` is the reason why two readable sides cannot be compared, and `shapes_differ` whether the shapes
    are the reason. `settled` is the rel_l2 of the rows of a layer norm that rounding does not decide, if rounding
    decides others and their error is within its bound.
    """

    __slots__ = ()

    def recorded(self, side: int) -> Optional[Statistics]:
        """The recorded statistics of the target's tensor (side 0), or of the golden's (1)."""
        tensor = self.pair.golden if side else self.pair.target
        found = None if tensor is None else tensor.statistics
        return self.statistics[side] if isinstance(found, FiguresAt) else found

    def tensor(self, side: int) -> Optional[TensorRef]:
        """The target's tensor (side 0), or the golden's (1), with its statistics."""
        tensor = self.pair.golden if side else self.pair.target
        if tensor is None or not isinstance(tensor.statistics, FiguresAt):
            return tensor
        return tensor._replace(statistics=self.statistics[side])

    @property
    def unreadable(self) -> Optional[TensorRef]:
        """The tensor to which `problem` refers, by the side at its beginning."""
        sides = {"target": self.pair.target, "golden": self.pair.golden}
        return sides.get(self.problem.partition(":")[0])


@dataclass(frozen=True)
class Tolerance:
    """One row of the rules: the limit of a metric, the tensors to which it applies, and the reason."""

    metric: str
    limit: float
    dtype: str = ""
    op_type: str = ""
    why: str = ""


class _Judged(NamedTuple):
    measurement: Measurement
    verdict: Verdict
    because: str
    error: Optional[float] = None
    limit: float = 0.0
    metric: str = ""
    rule: str = ""
    explained_by: str = ""
    explained_limit: float = 0.0
    working: float = 0.0
    row: int = -1
    cache: Any = None


class Finding(_Judged):
    """A measured pair with the verdict on it.

    `error` is the rel_l2 that the rules used: 0 for proven equality, inf for NaN/Inf on one side, NaN for a proven
    difference of unknown size, None if unknown. `limit` is the limit of the error, `rule` the rule that decided.
    `explained_by` is the rule by which the errors of the inputs explain the error, and `explained_limit` the largest
    error that it explains. `working` is the coarsest unit round-off in the computation of the values. `row` is the
    number of its row in the table, -1 outside of one; in a search over several ranks all numbers are different. `cache`
    belongs to that search.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        fields = (f"{name}={value!r}" for name, value in zip(self._fields[:-2], self))
        return f"Finding({', '.join(fields)})"

    @property
    def pair(self) -> Pair:
        return self.measurement.pair

    @property
    def has_elements(self) -> bool:
        """Whether the tensor has elements; agreement of empty tensors is no evidence."""
        tensor = self.pair.target or self.pair.golden
        return tensor is not None and 0 not in tensor.shape

    @property
    def can_be_shown(self) -> bool:
        """Whether it diverged and its values were measured, so that details are available."""
        return self.verdict in (Verdict.DIVERGED, Verdict.NONFINITE) and self.measurement.moments is not None

    @property
    def is_undecided(self) -> bool:
        """Whether both sides have the tensor and it should be equal, but statistics or checksums alone are known, which
        prove nothing. Tensors with meaningless values or of another autograd node, and errors that the inputs explain,
        are not undecided."""
        if self.verdict is not Verdict.UNKNOWN or self.explained_by or self.rule in (*MEANINGLESS, OTHER_NODE):
            return False
        if self.measurement.moments is not None or self.measurement.shapes_differ:
            return False
        pair = self.measurement.pair
        return pair.target is not None and pair.golden is not None and 0 not in pair.target.shape
