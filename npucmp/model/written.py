"""A report that `-o` wrote, read back, and what became of one report in the next.

Cells are text as the files have it: the names of dumps as they were made harmless for a spreadsheet, the same in both.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Optional

from npucmp.model.cause import Root
from npucmp.model.result import Result

SOUND = "match"  # of Seen: nothing is wrong with it
DIFFERENT = frozenset(("diverged", "nonfinite", "shape"))  # of Seen: it is wrong
ALONE = "missing"  # of Seen: it has no partner
# Two repeats of one faulty run (3,971 tensors beyond their limit, matrix products summed in other orders, float32 and
# bfloat16): errors of tensors of 64 elements and more are at most 1.5 times as large in one as in the other, of 4
# elements 2.1 times, and of single numbers, whose errors may cancel, thousands of times. Of errors that are nothing but
# noise the F distribution says as much: at 16 elements one in 30,000 is beyond 3.
RUN_TO_RUN = 3.0  # times that an error of one report may be that of the other, and still be the same
FEW = 16  # elements: fewer tell nothing by the size of their error

TENSORS = re.compile(r"(tensors(?:-\d+){0,3})\.(csv|parquet)")  # of all steps and ranks, or of one
# What the columns of that table hold where it has types; the others, figures and metrics, are floating.
WHOLE = frozenset(
    (
        "step rank order elements max_abs_index max_rel_index nonfinite_mismatch target_nan target_inf golden_nan "
        "golden_inf masked"
    ).split(" ")
)
TEXT = frozenset(
    (
        "op op_type phase slot verdict because matched_by target_op golden_op target_tensor golden_tensor target_dtype "
        "golden_dtype target_shape golden_shape target_layout golden_layout stack cause rule explained_by max_abs_at "
        "max_rel_at golden_slot relation match_reason estimator"
    ).split(" ")
)
BOOL = frozenset(("allclose",))


class Key(NamedTuple):
    """What a row of two reports is paired by; "" where it has none. `rule` tells findings of one place apart."""

    step: str
    rank: str
    op: str
    slot: str
    rule: str = ""


class Place(NamedTuple):
    """What a report accuses; `counts` if it is that which its exit status 1 is made of, and not a hint."""

    key: Key
    cause: str
    because: str
    value: Optional[float] = None
    stack: str = ""
    counts: bool = True


class Seen(NamedTuple):
    """One thing that was looked at: SOUND, one of DIFFERENT, or another word where nothing was decided. error is inf
    where no number says how wrong it is, NaN where it is not known, None where nothing was measured."""

    verdict: str
    error: Optional[float] = None
    limit: float = 0.0
    elements: Optional[int] = None

    @property
    def differs(self) -> bool:
        return self.verdict in DIFFERENT

    def beyond(self, other: Seen) -> bool:
        """Whether this is worse than the other by more than noise: by more than RUN_TO_RUN times, and than the limits,
        which are what rounding alone may make. Of FEW elements only NaN and Inf on one side are."""
        if not self.differs or self.error is None or (other.error is None and other.verdict != SOUND):
            return False
        if math.isnan(self.error) or math.isinf(self.error):
            return not other.differs if math.isnan(self.error) else other.error != math.inf
        if self.elements is not None and self.elements < FEW:
            return False
        return self.error > RUN_TO_RUN * max(other.error or 0.0, self.limit, other.limit)


@dataclass(frozen=True)
class Written:
    """A report: its folder, the command that made it, what its summary.json holds, and what its tables accuse and
    saw. operators are the names of all that it looked at, none where its tables do not list them; lacking is how many
    rows the summary counts that are not there."""

    path: str
    command: str
    summary: Mapping[str, Any]
    places: Mapping[Key, Place]
    seen: Mapping[Key, Seen]
    operators: frozenset[str] = frozenset()
    lacking: int = 0

    @property
    def is_decided(self) -> bool:
        """Whether what it does not accuse was looked at: no interrupted report, none that lacks rows, and none that
        could not decide."""
        is_whole = self.summary.get("partial") is not True and not self.lacking
        return is_whole and self.summary.get("exit_status") in (0, 1)


class Change(NamedTuple):
    """A place, or something seen, in two reports; None in the one that does not have it."""

    key: Key
    before: Optional[Place | Seen]
    after: Optional[Place | Seen]


@dataclass(frozen=True)
class Difference(Result):
    """What `npucmp diff` found; paths are the earlier report and the later one.

    new     places, and things seen in a step and rank that has no place, which the earlier report does not accuse
    worse   seen in both, and worse by more than noise; `better` likewise
    gone    places that the later report looked at and found sound; `open` are those that it did not look at, or that
            pass on the error of another now
    same    places of both
    """

    command = "diff"

    before: Optional[Written] = None
    after: Optional[Written] = None
    new: tuple[Change, ...] = ()
    gone: tuple[Change, ...] = ()
    same: tuple[Change, ...] = ()
    open: tuple[Change, ...] = ()
    worse: tuple[Change, ...] = ()
    better: tuple[Change, ...] = ()

    @property
    def roots(self) -> tuple[Root, ...]:
        return ()

    @property
    def differs(self) -> bool:
        return bool(self.new or self.worse)

    @property
    def is_decided(self) -> bool:
        return not self.open and self.after is not None and self.after.is_decided
