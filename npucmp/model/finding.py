"""One pair of tensors, measured and judged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Optional

from npucmp.model.dump import ELSEWHERE, Statistics, TensorRef
from npucmp.model.moments import Moments
from npucmp.model.pair import Pair


class Verdict(str, Enum):
    """What a tensor pair turned out to be. The words are those of tensors.csv."""

    MATCH = "match"
    DIVERGED = "diverged"
    NONFINITE = "nonfinite"  # NaN or Inf on one side only
    SHAPE = "shape"
    DTYPE = "dtype"  # cannot be compared, e.g. text against numbers
    MISSING = "missing"  # no partner on the other side
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"  # statistics or checksums cannot decide


MEANINGLESS = ("meaningless", "overwritten")  # rules by which what a tensor holds need not be the same
OTHER_NODE = "another autograd node"  # the rule by which two outputs are two tensors of which neither is wrong
DIFFERS = frozenset((Verdict.DIVERGED, Verdict.NONFINITE, Verdict.SHAPE))  # the two sides are not the same


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
    """A pair and what came of measuring it.

    moments is None when there was nothing to measure. `bound` is a proven lower bound of rel_l2 from
    recorded statistics, `same` what checksums say; each None where the dump cannot tell.
    `problem` says which side cannot be read and why; `unlike` why two readable sides cannot be compared, and
    `shapes_differ` whether it is for their shapes. `settled` is the rel_l2 of the rows of a layer norm that rounding
    does not decide, if it decides others and these are within it.
    """

    __slots__ = ()

    def recorded(self, side: int) -> Optional[Statistics]:
        """What the dump recorded of the values of the target's tensor (side 0), or of the golden's (1)."""
        tensor = self.pair.golden if side else self.pair.target
        found = None if tensor is None else tensor.statistics
        return self.statistics[side] if found is ELSEWHERE else found

    def tensor(self, side: int) -> Optional[TensorRef]:
        """The target's tensor (side 0), or the golden's (1), with its figures."""
        tensor = self.pair.golden if side else self.pair.target
        if tensor is None or tensor.statistics is not ELSEWHERE:
            return tensor
        return tensor._replace(statistics=self.statistics[side])

    @property
    def unreadable(self) -> Optional[TensorRef]:
        """The tensor that `problem` speaks of, by the side that it begins with."""
        sides = {"target": self.pair.target, "golden": self.pair.golden}
        return sides.get(self.problem.partition(":")[0])


@dataclass(frozen=True)
class Tolerance:
    """One row of the rules: which metric may be how large, for whom, and why."""

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

    error is the rel_l2 the rules saw: 0 for proven equality, inf for NaN/Inf on one side, NaN for a proven
    difference of unknown size, None if nothing is known. `limit` is what it was held against, `rule` the rule that
    decided, `explained_by` the one that says that the errors of the inputs make an error of this size, and
    `explained_limit` the largest error that they make by it.
    `working` is the coarsest unit round-off that its values went through. `row` is the number of its row in the table,
    -1 outside of one; in a search over several ranks no two findings have one number. `cache` is of that search.
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
        """Whether there is anything in the tensor; agreement of empty ones says nothing of two runs."""
        tensor = self.pair.target or self.pair.golden
        return tensor is not None and 0 not in tensor.shape

    @property
    def can_be_shown(self) -> bool:
        """Whether it diverged, and its values were measured, so that they can be looked at again."""
        return self.verdict in (Verdict.DIVERGED, Verdict.NONFINITE) and self.measurement.moments is not None

    @property
    def is_undecided(self) -> bool:
        """Whether both sides have the tensor and nothing tells that it is the same, though it should be: what is known
        to mean nothing is no question, nor is an error that the inputs explain."""
        if self.verdict is not Verdict.UNKNOWN or self.explained_by or self.rule in MEANINGLESS:
            return False
        pair = self.measurement.pair
        return pair.target is not None and pair.golden is not None and 0 not in pair.target.shape
