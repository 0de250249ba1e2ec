"""The result of `npucmp parity`: the class of the difference between two engines, and its first bad token."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional

from npucmp.model.cause import Root
from npucmp.model.result import Result
from npucmp.model.token_batch import Floats, Integers


class TokenClass(str, Enum):
    """The class of a difference, in the words of parity.csv and summary.json."""

    SUM_MEAN = "sum_mean"
    NAN = "nan"
    PADDING = "padding"
    MASK = "mask"
    TOKENS = "tokens"
    SHIFT = "shift"
    TOP_P = "top_p"
    CLEAN = "clean"
    ROUTER = "router"
    TEMPERATURE = "temperature"
    WEIGHTS = "weights"
    CONTEXT = "context"
    LOGITS = "logits"
    RECORD = "record"
    DIFFERS = "differs"
    UNDECIDED = "undecided"


def percent(share: float) -> str:
    """Return a share in per cent: "4.2 %"; a share above 0 is never "0 %", one below 1 never "100 %"."""
    return f"{min(100 * share, 99):.2g} %" if share < 1 else "100 %"


class ParityFinding(NamedTuple):
    """The class of one step and its first token; None where a class has no request, position or margin.

    margin   the difference at the token in units of its noise
    because  one fact a sentence, the deciding one first
    """

    token_class: TokenClass
    step: Optional[int]
    request: Optional[int]
    position: Optional[int]
    margin: Optional[float]
    because: tuple[str, ...]


class CandidateFit(NamedTuple):
    """A model of the difference, fitted to the tokens of a step.

    remains  what it leaves, in units of the noise, of all tokens but 1 %; None for a cause that may leave anything
    refuted  facts against it
    lacks    what is missing to prove it, "" if nothing is; it is then neither accepted nor refuted
    because  one fact a sentence, the deciding one first
    shows    whether the data show it even if no token is beyond noise
    proven   whether a number that no other candidate predicts is as it says
    explains share of the tokens beyond noise that it brings within; 0 for a cause that may leave anything
    """

    name: str
    token_class: TokenClass
    remains: Optional[float]
    refuted: tuple[str, ...]
    because: tuple[str, ...]
    lacks: str = ""
    shows: bool = False
    proven: bool = False
    explains: float = 0.0


MOST_LEFT = 3.0  # times the noise: definition, a token beyond it is beyond noise


def state_of(fit: CandidateFit) -> str:
    """Return "accepted", "refuted" by a fact, "leaves more" than noise, or "open": neither proven nor refuted."""
    if fit.refuted:
        return "refuted"
    if fit.remains is not None and fit.remains > MOST_LEFT:
        return "leaves more"
    return "open" if fit.lacks or fit.remains is None else "accepted"


class ParityFigures(NamedTuple):
    """Figures over tokens; NaN without tokens. d is rollout minus trainer, p the probability.

    k1, k3     estimates of the KL divergence of rollout from trainer, d clamped to ±10: mean d, mean exp(-d) - 1 + d
    prob_diff  mean |p - p'|, rollout_probs_diff_mean of verl
    pearson    correlation of the probabilities
    floor      the noise of a logit that the median token shows
    """

    tokens: int
    mean_abs: float
    max_abs: float
    k1: float
    k3: float
    prob_diff: float
    pearson: float
    share_beyond: float
    floor: float


class RequestParity(NamedTuple):
    """A row of parity.csv: a request, or a step if `request` is None. The token is the first beyond noise, else the one
    with the largest margin; `token` is its id, None if it is not recorded."""

    step: Optional[int]
    request: Optional[int]
    position: Optional[int]
    token: Optional[int]
    target: Optional[float]
    golden: Optional[float]
    difference: Optional[float]
    noise: Optional[float]
    beyond: int
    token_class: str
    tokens: int
    margin: Optional[float]
    mean_abs: float
    max_abs: float
    k1: float
    k3: float


class TokenMap(NamedTuple):
    """Tokens by request and position, and those beyond noise, in cells (down, across); `requests` and `positions` are
    how many the cells hold."""

    requests: int
    positions: int
    tokens: Integers
    beyond: Integers


class StepParity(NamedTuple):
    """A step: its finding, figures and rows. `positions` and `mean_abs` are a curve over positions for a drawing, `map`
    shows which requests and positions are clean."""

    step: Optional[int]
    finding: ParityFinding
    figures: ParityFigures
    requests: int
    rows: tuple[RequestParity, ...]
    positions: Integers
    mean_abs: Floats
    pairing: str
    trend: str = ""
    fits: tuple[CandidateFit, ...] = ()
    map: Optional[TokenMap] = None


@dataclass(frozen=True, repr=False)
class ParityResult(Result):
    """The result of `npucmp parity`. Paths are rollout and trainer; one path if a file holds both.

    findings    the finding that decides first; at most one for each step
    open        sentences on what was not compared: requests, steps, files, numbers that are not computed
    trend       the trend of mean |d| over steps, in words
    floor       error of a logit that counts as noise
    """

    command = "parity"

    steps: tuple[StepParity, ...] = ()
    findings: tuple[ParityFinding, ...] = ()
    figures: Optional[ParityFigures] = None
    open: tuple[str, ...] = ()
    trend: str = ""
    floor: float = 0.0
    names: tuple[str, str] = ("", "")
    batches: tuple[str, str] = ("", "")

    @property
    def roots(self) -> tuple[Root, ...]:
        """Empty: operators are not evaluated."""
        return ()

    @property
    def token_class(self) -> TokenClass:
        """The class of the first finding; undecided or clean without one."""
        if self.findings:
            return self.findings[0].token_class
        return TokenClass.CLEAN if self.is_decided else TokenClass.UNDECIDED

    @property
    def differs(self) -> bool:
        return bool(self.findings)

    @property
    def is_decided(self) -> bool:
        """Whether every token of both sides was compared and every step is clean."""
        every = all(one.finding.token_class is TokenClass.CLEAN for one in self.steps)
        return bool(self.steps) and every and not self.open
