"""A report that `-o` wrote, read back; the difference of two reports; and the result of `npucmp merge`, which is the
rows of several reports in their files, and roots in a new order.

Cells are text as in the files: names of dumps in the form that is safe for a spreadsheet, the same in both reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from npucmp.model.cause import Cause, Root
from npucmp.model.finding import DIFFERS
from npucmp.model.report_files import FileRange
from npucmp.model.result import Result

SOUND = "match"  # a verdict of SavedRow: no difference
DIFFERENT = frozenset(("diverged", "nonfinite", "shape"))  # verdicts of SavedRow: a difference
NO_PARTNER = "missing"  # a verdict of SavedRow: no partner
# Two repeats of one faulty run (3,971 tensors beyond their limit, matrix products summed in other orders, float32 and
# bfloat16): errors of tensors of 64 elements and more are at most 1.5 times as large in one as in the other, of 4
# elements 2.1 times, and of single numbers, whose errors may cancel, thousands of times. For errors that are only
# noise, the F distribution agrees: at 16 elements one in 30,000 is beyond 3.
RUN_TO_RUN = 3.0  # largest ratio of errors in two reports that counts as the same error
MIN_ELEMENTS = 16  # elements: the size of an error in fewer elements is not reliable


class Key(NamedTuple):
    """The key that pairs rows of two reports; "" for a missing part. `rule` distinguishes findings of one place."""

    step: str
    rank: str
    op: str
    slot: str
    rule: str = ""


class SavedSuspect(NamedTuple):
    """A suspect of a report. `counts` is True if it causes exit status 1, False for a hint."""

    key: Key
    cause: str
    because: str
    value: Optional[float] = None
    stack: str = ""
    counts: bool = True


class SavedRow(NamedTuple):
    """The state of one tensor or finding: SOUND, one of DIFFERENT, or another word if undecided. `error` is inf if no
    number measures it, NaN if it is unknown, None if nothing was measured."""

    verdict: str
    error: Optional[float] = None
    limit: float = 0.0
    elements: Optional[int] = None

    @property
    def differs(self) -> bool:
        return self.verdict in DIFFERENT

    def beyond(self, other: SavedRow) -> bool:
        """Whether this is worse than the other by more than noise: by more than RUN_TO_RUN times, and beyond the
        limits, which are the errors of rounding alone. With fewer than FEW elements, only NaN and Inf on one side
        count."""
        if not self.differs or self.error is None or (other.error is None and other.verdict != SOUND):
            return False
        if math.isnan(self.error) or math.isinf(self.error):
            return not other.differs if math.isnan(self.error) else other.error != math.inf
        if self.elements is not None and self.elements < MIN_ELEMENTS:
            return False
        return self.error > RUN_TO_RUN * max(other.error or 0.0, self.limit, other.limit)


@dataclass(frozen=True)
class SavedReport:
    """A report: its folder, its command, the content of its summary.json, and the suspects and states in its tables.
    `operators` are the names of all operators it examined, empty if its tables do not list them. `lacking` is the
    number of rows that the summary counts and the tables lack."""

    path: str
    command: str
    summary: Mapping[str, Any]
    places: Mapping[Key, SavedSuspect]
    seen: Mapping[Key, SavedRow]
    operators: frozenset[str] = frozenset()
    lacking: int = 0

    @property
    def is_decided(self) -> bool:
        """Whether everything without a suspect was examined: the report was not interrupted, lacks no rows, and could
        decide."""
        is_whole = self.summary.get("partial") is not True and not self.lacking
        return is_whole and self.summary.get("exit_status") in (0, 1)


class Change(NamedTuple):
    """A suspect or a state in two reports; None in a report without it."""

    key: Key
    before: Optional[SavedSuspect | SavedRow]
    after: Optional[SavedSuspect | SavedRow]


@dataclass(frozen=True)
class Difference(Result):
    """The result of `npucmp diff`; paths are the earlier report and the later one.

    new     suspects that the earlier report does not have, and states in a step and rank without a suspect
    worse   in both reports, and worse by more than noise; `better` likewise
    gone    suspects that the later report examined and found sound; `open` are those that it did not examine, or
            that now pass on the error of another operator
    same    suspects of both reports
    """

    command = "diff"

    before: Optional[SavedReport] = None
    after: Optional[SavedReport] = None
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


Numbers = tuple[Optional[int], Optional[int]]  # step and rank, None if the dump has none


class SourceReport(NamedTuple):
    """A report: its folder, its summary.json, and the rows of its matrix.csv."""

    path: str
    summary: Mapping[str, Any]
    step_ranks: Sequence[Numbers]
    matrix: Sequence[Mapping[str, str]] = ()
    paired: bool = False  # every open item is a step and rank that another report compared

    @property
    def status(self) -> int:
        """Its exit status, ignoring a baseline."""
        return 1 if self.is_excused else 0 if self.paired else int(self.summary["exit_status"])

    @property
    def is_excused(self) -> bool:
        """Whether it differs and its exit status does not show this."""
        counts = self.summary["verdicts"], self.summary["causes"]
        differing = [*(one.value for one in DIFFERS), Cause.SUSPECT.value]
        return self.summary["exit_status"] == 0 and any(counted.get(name) for counted in counts for name in differing)


@dataclass(frozen=True, repr=False)
class MergedReport(Result):
    """Several reports as one; paths are their folders.

    columns  of tensors.csv; `rows` are its lines in order of step and rank
    ranked   the rows of roots.csv in their new order
    spool    the folder of rows that were not CSV, if any; it is removed with this result
    """

    command = "merge"

    sources: tuple[SourceReport, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[FileRange, ...] = ()
    ranked: Sequence[Mapping[str, str]] = ()
    scratch: Any = None

    @property
    def roots(self) -> tuple[Root, ...]:
        """Empty: only rows of roots exist."""
        return ()

    @property
    def differs(self) -> bool:
        return any(one.status == 1 for one in self.sources)

    @property
    def is_decided(self) -> bool:
        return all(one.status == 0 for one in self.sources)

    def close(self) -> None:
        if self.scratch is not None:
            self.scratch.remove()
