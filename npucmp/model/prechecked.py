"""What `npucmp precheck` finds: whether two runs are the same experiment, row by row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Optional

from npucmp.model.cause import Root
from npucmp.model.dump import Run
from npucmp.model.result import Result

if TYPE_CHECKING:
    from npucmp.model.symptom import Logged


class Status(str, Enum):
    """What a row came to. The words are those of precheck.csv."""

    SAME = "same"
    CLOSE = "close"  # within round-off or 1 %
    DIFFERS = "DIFFERS"
    UNKNOWN = "unknown"  # neither dump tells
    NOT_APPLICABLE = "n/a"


SEVERITIES = ("error", "warning", "note")  # of what differs, the worst first
DECISIVE = ("network.operators",), ("input", "tokens"), ("weights",)  # one of each, or nobody can call runs comparable


class Told(NamedTuple):
    """One row of precheck.csv; None where a figure does not apply.

    severity        of the difference, were there one: "error" (numbers of the two runs mean nothing before it is
                    cleared), "warning" (it wants an explanation), "note"
    target, golden  what each side has, in words
    places, first   how many were looked at or, of what differs, differ; and the first of these
    value, limit    the figure that decided, and its limit
    because, remedy the finding, and what to do about it, each in one sentence
    """

    row: str
    status: Status
    severity: str = "error"
    because: str = ""
    remedy: str = ""
    target: str = ""
    golden: str = ""
    places: Optional[int] = None
    first: str = ""
    value: Optional[float] = None
    limit: Optional[float] = None

    @property
    def forbids(self) -> bool:
        """Whether numbers of the two runs must not be compared before it is cleared."""
        return self.status is Status.DIFFERS and self.severity == "error"


class Relation(NamedTuple):
    """What one input of the target is of the same input of the golden run; one row of inputs.csv.

    kind      "same bits", "same statistics", "close", "rounded", "shuffled", "normalised", "channels reversed",
              "layout", "shape", "differs", "unknown"
    a, b      target = a·golden + b; one number, or one per channel
    residual  rel_l2 of what the relation leaves
    """

    kind: str
    words: str = ""
    a: tuple[float, ...] = ()
    b: tuple[float, ...] = ()
    residual: Optional[float] = None


class InputRow(NamedTuple):
    """A network input of a step and rank, by the first operator that reads it; `role` is "input", "labels" or
    "tokens". `certain` is False where the network may have made it of what differs before."""

    step: Optional[int]
    rank: Optional[int]
    op: str
    slot: str
    role: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    relation: Relation
    certain: bool = True


class CurvePair(NamedTuple):
    """A figure that both runs logged, as far as a drawing shows it; all windows, those of curves.csv: (first step, last
    step, mean of target, mean of golden, relative difference, its error, whether they part)."""

    name: str
    words: str
    target: Logged
    golden: Logged
    windows: tuple[tuple[int, int, float, float, float, float, bool], ...]


@dataclass(frozen=True, repr=False)
class Precheck(Result):
    """What `npucmp precheck` found; paths are target and golden, "-" for one that was not given. strict: what wants an
    explanation makes the runs not comparable too."""

    command = "precheck"

    rows: tuple[Told, ...] = ()
    inputs: tuple[InputRow, ...] = ()
    targets: tuple[Run, ...] = ()
    goldens: tuple[Run, ...] = ()
    curves: tuple[CurvePair, ...] = ()
    strict: bool = False

    @property
    def roots(self) -> tuple[Root, ...]:
        """None: nothing is said of operators."""
        return ()

    @property
    def statuses(self) -> Counter[Status]:
        return Counter(row.status for row in self.rows)

    @property
    def reservations(self) -> tuple[Told, ...]:
        """What differs and wants an explanation."""
        return tuple(row for row in self.rows if row.status is Status.DIFFERS and row.severity == "warning")

    @property
    def differs(self) -> bool:
        return any(row.forbids for row in self.rows) or (self.strict and bool(self.reservations))

    @property
    def is_decided(self) -> bool:
        """Whether the network, its inputs and its weights were held against each other; of files alone, whether
        anything was."""
        known = {row.row: row.status not in (Status.UNKNOWN, Status.NOT_APPLICABLE) for row in self.rows}
        if not self.targets:
            return any(known.values())
        asked = [[known[name] for name in names if name in known] for names in DECISIVE]
        return not self.broken and any(known.values()) and all(any(some) for some in asked if some)
