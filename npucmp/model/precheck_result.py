"""The result of `npucmp precheck`: whether two runs are the same experiment, check by check."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Optional

from npucmp.model.cause import Root
from npucmp.model.dump import Run
from npucmp.model.item_result import ItemResult, Status
from npucmp.model.result import Result

if TYPE_CHECKING:
    from npucmp.model.check_finding import LoggedCurve


SEVERITIES = ("error", "warning", "note")  # of differences, the worst first
DECISIVE = ("network.operators",), ("input", "tokens"), ("weights",)  # needed: one of each group


class InputRelation(NamedTuple):
    """The relation of a target input to the same input of the golden run; one row of inputs.csv.

    kind      "same bits", "same statistics", "close", "rounded", "shuffled", "normalised", "channels reversed",
              "layout", "shape", "differs", "unknown"
    a, b      target = a·golden + b; one number, or one per channel
    residual  rel_l2 of the rest that the relation does not explain
    """

    kind: str
    words: str = ""
    a: tuple[float, ...] = ()
    b: tuple[float, ...] = ()
    residual: Optional[float] = None


class InputRow(NamedTuple):
    """A network input of a step and rank, by the first operator that reads it. `role` is "input", "labels" or "tokens".
    `certain` is False if the network may have computed it from an earlier difference."""

    step: Optional[int]
    rank: Optional[int]
    op: str
    slot: str
    role: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    relation: InputRelation
    certain: bool = True


class CurvePair(NamedTuple):
    """A quantity that both runs logged, thinned for a drawing. `windows` has all windows, as in curves.csv: (first
    step, last step, mean of target, mean of golden, relative difference, its error, whether they part)."""

    name: str
    words: str
    target: LoggedCurve
    golden: LoggedCurve
    windows: tuple[tuple[int, int, float, float, float, float, bool], ...]


@dataclass(frozen=True, repr=False)
class Precheck(Result):
    """The result of `npucmp precheck`. Paths are target and golden, "-" for one that was not given. If `strict`,
    differences that require an explanation also make the runs not comparable."""

    command = "precheck"

    rows: tuple[ItemResult, ...] = ()
    inputs: tuple[InputRow, ...] = ()
    targets: tuple[Run, ...] = ()
    goldens: tuple[Run, ...] = ()
    curves: tuple[CurvePair, ...] = ()
    strict: bool = False

    @property
    def roots(self) -> tuple[Root, ...]:
        """Empty: operators are not evaluated."""
        return ()

    @property
    def statuses(self) -> Counter[Status]:
        return Counter(row.status for row in self.rows)

    @property
    def reservations(self) -> tuple[ItemResult, ...]:
        """Differences that require an explanation."""
        return tuple(row for row in self.rows if row.status is Status.DIFFERS and row.severity == "warning")

    @property
    def differs(self) -> bool:
        return any(row.forbids for row in self.rows) or (self.strict and bool(self.reservations))

    @property
    def is_decided(self) -> bool:
        """Whether the network, its inputs and its weights were compared; without dumps, whether any row was decided."""
        known = {row.row: row.status not in (Status.UNKNOWN, Status.NOT_APPLICABLE) for row in self.rows}
        if not self.targets:
            return any(known.values())
        decisive = [[known[name] for name in names if name in known] for names in DECISIVE]
        return not self.broken and any(known.values()) and all(any(results) for results in decisive if results)
