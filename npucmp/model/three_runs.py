"""The errors of a target and of its golden against a third run of higher precision, the truth."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

WORSE, BETTER, SAME, CARRIED, UNDECIDED = "worse", "better", "no worse", "carried", "undecided"
GOLDEN = "golden worse"


class ErrorRatio(NamedTuple):
    """A ratio of two errors with its confidence interval of 95 %. Each end is NaN if too few elements show it."""

    value: float
    low: float
    high: float


class ThreeRunRow(NamedTuple):
    """An output of an operator, over all steps of a rank.

    steps           steps that were added up; `elements` over all of them
    target_error, golden_error   ‖x - truth‖ / ‖truth‖
    ratio           of both errors; input_ratio: the largest ratio of an input; None if no input was recorded, or none
                    has an error
    own_target, own_golden, own   the errors that the operator adds, against float64 of its own inputs, and their ratio;
                    None if it was not recomputed; kind_own: the median of `own` of its kind
    target_gain, golden_gain   Σ error·truth / Σ truth²: the relative scale error
    target_bias, golden_bias   mean error in units of its root mean square
    overlap         of the distributions of both errors, 0 to 1 (Bhattacharyya)
    largest         ratio of the largest errors
    mare, mere, rmse   ratios of the vendor's double benchmark, and the level that they pass
    verdict         worse, golden worse (each by what the operator adds), carried, better, no worse or undecided
    shares          of the signed errors of target and golden in bins of an eighth of the golden's error, as float32;
                    own_shares: of the errors that the operator adds
    """

    rank: Optional[int]
    order: int
    op: str
    op_type: str
    phase: str
    slot: str
    steps: int
    elements: int
    target_error: float
    golden_error: float
    ratio: ErrorRatio
    input_ratio: Optional[float] = None
    own_target: Optional[float] = None
    own_golden: Optional[float] = None
    own: Optional[ErrorRatio] = None
    kind_own: Optional[float] = None
    target_gain: Optional[float] = None
    golden_gain: Optional[float] = None
    target_bias: Optional[float] = None
    golden_bias: Optional[float] = None
    overlap: Optional[float] = None
    largest: Optional[float] = None
    mare: Optional[float] = None
    mere: Optional[float] = None
    rmse: Optional[float] = None
    level: str = ""
    verdict: str = UNDECIDED
    because: str = ""
    stack: str = ""
    shares: bytes = b""
    own_shares: bytes = b""


class ThreeRuns(NamedTuple):
    """The result of a comparison with a truth.

    truth     path of the third run, or "recompute"; `what` describes it
    verdict   worse, better, no worse or undecided; `because` in one sentence
    rows      outputs in the order of execution; `worse`: places in it of the operators that are worse by themselves
    whole     ratio of the errors at the end of the network
    cleared   whether each tensor that differs from the golden is no worse than it, so that the difference is noise
    golden    places of operators in which the golden adds more error than the target
    """

    truth: str
    what: str
    verdict: str
    because: str
    rows: Sequence[ThreeRunRow] = ()
    worse: tuple[int, ...] = ()
    golden: tuple[int, ...] = ()
    whole: Optional[ErrorRatio] = None
    cleared: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_worse(self) -> bool:
        return self.verdict == WORSE

    @property
    def decides(self) -> bool:
        """Whether the verdict replaces that of the two runs alone."""
        return self.verdict == WORSE or (self.verdict in (SAME, BETTER) and self.cleared)
