"""The content of a ticket: one operator of a report, with all facts about it from the report's files; and facts that
its rows lack, the call and the vendor's statistics of its outputs.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional


class AscendCriteria(NamedTuple):
    """One output by the vendor's rules for single operators, target against golden.

    dtype        the coarser type of both sides, which selects the limits
    compared     elements that are finite on both sides; `mismatched` are NaN or infinite on one side only
    mere, mare   mean and largest |x - y| / (|y| + 1e-7)
    inside       share of elements within atol + rtol·|y|; `largest` is the largest |x - y|
    small        elements of the golden below the vendor's bound for small values; `small_wrong` of them fail
    mixed, mere_mare   whether it passes the mixed tolerance, and the older rule of mean and largest relative error
    limits       of the type, by name: rtol, atol, most, mean, small, small_error
    """

    slot: str
    dtype: str
    compared: int
    mismatched: int
    mere: float
    mare: float
    inside: float
    largest: float
    small: int
    small_wrong: int
    mixed: bool
    mere_mare: bool
    limits: Mapping[str, float]


class ArgumentDifference(NamedTuple):
    """A non-tensor argument in words, by name; None on a side that lacks it."""

    name: str
    target: Optional[str]
    golden: Optional[str]


class TicketFacts(NamedTuple):
    """An operator that bears error, by its priority, step and rank. `evidence` has its reasons, one sentence each.
    `stack` has the frames of its call, innermost first, from either dump. `unread` lists outputs without statistics by
    the vendor's rules, because they could not be read again or are too large."""

    place: int
    step: Optional[int]
    rank: Optional[int]
    op: str
    evidence: tuple[str, ...] = ()
    arguments: tuple[ArgumentDifference, ...] = ()
    stack: tuple[str, ...] = ()
    vendor: tuple[AscendCriteria, ...] = ()
    unread: tuple[str, ...] = ()


Cells = Mapping[str, str]  # a row of a table by column; "" for a missing cell
Files = Iterator[tuple[str, Iterator[bytes]]]  # name and content, piece by piece


class Ticket(NamedTuple):
    """One suspect of a report.

    command  that made the report, whose summary.json is `summary`
    row      accuses it, in `file`; `place` is its number among the suspects, `others` are its further rows
    rows     of its tensors or events, in `table`
    accused  further facts from summary.json: arguments, call stack, the vendor's statistics
    case     files of the case that `npucmp extract` made of it, empty if there is none
    files    reads the other content of an archive: the tables of the report, and the case
    names    the original of each pseudonym; empty for a ticket with its own names
    """

    command: str
    summary: Mapping[str, Any]
    place: int
    file: str
    row: Cells
    others: tuple[Cells, ...]
    table: str
    rows: tuple[Cells, ...]
    accused: Mapping[str, Any]
    case: tuple[str, ...] = ()
    files: Callable[[], Files] = lambda: iter(())
    names: Callable[[], Mapping[str, str]] = dict

    def __repr__(self) -> str:
        name = next((self.row[key] for key in ("op", "parameter", "row", "rule") if self.row.get(key)), "")
        return f"<ticket of {self.command}, place {self.place}: {self.row.get('cause', '')} {ascii(name[:80])[1:-1]}>"
