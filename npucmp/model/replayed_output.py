"""The row of an output that was recomputed in float64 from its operator's inputs."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Optional

from npucmp.model.tensor_detail import DifferenceMap


class ReplayVerdict(str, Enum):
    """The verdict on an output, given its own operator's inputs."""

    CLEAN = "CLEAN"  # within the budget of rounding
    GUILTY = "GUILTY"  # beyond it: this operator computes a different result
    AMPLIFIER = "AMPLIFIER"  # beyond it too, but so is every kernel of this type, or every operator of the kind
    UNKNOWN = "UNKNOWN"  # it could not be replayed; `status` has the reason


GUILTY_ABOVE = {"rms_ratio": (3.0, 2.0), "max_ratio": (8.0, 4.0), "bias": (0.25, 0.25)}  # limits: float32, 16 bits
REPLAYED = "replayed"
STATUSES = (
    REPLAYED, "not in table", "no data", "random", "overwritten", "container", "shape", "another autograd node",
    "crashed", "too large",
)  # fmt: skip

# the explanation of a clean output whose operator has several formulas under one name
VERSIONS = "this is the nearest of several versions of the formula"

# results that are not the nearest: evidence: so many errors of one sign are no chance (2^-20 of as many fair ones)
SIDED_RESULTS = 24
# of the results that need rounding: definition: one-sided rounding misses the nearest number in half of them
SIDED_SHARE = 0.25
ONE_SIDE = 0.95  # of these results: chosen: noise of the sums before the rounding decides the others, not measured


DIRECTIONS = {
    "zero": "truncated toward zero instead of rounded to nearest",
    "away": "rounded away from zero instead of to nearest",
    "up": "rounded upward instead of to nearest",
    "down": "rounded downward instead of to nearest",
}


class RoundingCounts(NamedTuple):
    """Results that need rounding, those that are not the nearest number of their type, and the sides on which these
    lie. `far` of them are a unit in the last place off or more, which no rounding of a result makes."""

    inexact: int = 0
    missed: int = 0
    toward_zero: int = 0
    upward: int = 0
    far: int = 0

    def plus(self, other: RoundingCounts) -> RoundingCounts:
        """Return the counts of both."""
        return RoundingCounts(*(a + b for a, b in zip(self, other)))

    @property
    def direction(self) -> str:
        """The side to which the results are rounded, a key of DIRECTIONS; "" if they are rounded to nearest, or to both
        sides."""
        if self.far > (1 - ONE_SIDE) * self.missed or self.missed <= SIDED_SHARE * self.inexact:
            return ""
        sides = self.toward_zero, self.missed - self.toward_zero, self.upward, self.missed - self.upward
        return next((name for name, count in zip(DIRECTIONS, sides) if count >= ONE_SIDE * self.missed), "")

    @property
    def is_one_sided(self) -> bool:
        """Whether the results are rounded to one side, by more than chance."""
        return self.missed >= SIDED_RESULTS and bool(self.direction)

    def words(self) -> str:
        """Return the direction, and what shows it."""
        how, missed, inexact = DIRECTIONS[self.direction], f"{self.missed:,}", f"{self.inexact:,}"
        return f"{how}: {missed} of {inexact} results that need rounding are not the nearest number"


class FarElements(NamedTuple):
    """The number of elements that differ by more than rounding, of all; the largest distance, in units in the last
    place of the type of the values."""

    far: int
    elements: int
    most: float
    dtype: str


class ReplayedOutput(NamedTuple):
    """One output of one operator; None for a number that does not apply or is unknown.

    order, slot   of the output
    status        one of STATUSES; `explanation` has the reason in words, or a possible explanation of a guilty
                  output
    rms_ratio     error in units of the budget: rms over rms; max_ratio is the largest over elements
    bias          mean error toward zero, in unit round-offs
    rel_l2, mere, mare, rmse, max_abs_err   the error itself; rel_l2_u is rel_l2 in unit round-offs
    nonfinite     elements that are NaN or infinite where float64 is not, or the other way round
    vendor_mixed, vendor_mere_mare   whether the vendor's rules for single operators pass it
    golden_mare_ratio, golden_mere_ratio, golden_rmse_ratio   the error over that of the golden's own call, if that
                  was replayed too and has the same type; vendor_level is the result of the vendor's double benchmark
    same_dtype_ratio   rms error over that of the same call on a CPU in the recorded types
    budget        its kind: walk, noise, rounding or exact
    sampled       share of the elements that were examined, "" for all of them
    treated       changes made to arguments: "autocast bfloat16"
    where         the box of elements that are beyond the budget
    picture       for a guilty output: the elements with errors beyond rounding
    explained_by  the hypothesis of `explanation` alone: "eps 0.01 instead of 1e-05"
    rounding      the direction of its rounding; None if it was not examined
    """

    order: int
    slot: str
    status: str = REPLAYED
    verdict: ReplayVerdict = ReplayVerdict.UNKNOWN
    explanation: str = ""
    rms_ratio: Optional[float] = None
    max_ratio: Optional[float] = None
    bias: Optional[float] = None
    rel_l2: Optional[float] = None
    rel_l2_u: Optional[float] = None
    mere: Optional[float] = None
    mare: Optional[float] = None
    rmse: Optional[float] = None
    max_abs_err: Optional[float] = None
    max_abs_index: Optional[int] = None
    nonfinite: Optional[int] = None
    vendor_mixed: Optional[bool] = None
    vendor_mere_mare: Optional[bool] = None
    same_dtype_ratio: Optional[float] = None
    golden_mare_ratio: Optional[float] = None
    golden_mere_ratio: Optional[float] = None
    golden_rmse_ratio: Optional[float] = None
    vendor_level: str = ""
    budget: str = ""
    sampled: str = ""
    treated: str = ""
    where: str = ""
    seconds: Optional[float] = None
    explained_by: str = ""
    picture: Optional[DifferenceMap] = None
    rounding: Optional[RoundingCounts] = None
