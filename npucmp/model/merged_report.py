"""The result of `npucmp merge`: rows of several reports in their files, and roots in a new order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from npucmp.model.cause import Cause, Root
from npucmp.model.finding import DIFFERS
from npucmp.model.result import Result

Numbers = tuple[Optional[int], Optional[int]]  # step and rank, None if the dump has none


class FileRange(NamedTuple):
    """A part of a file, in bytes."""

    path: Path
    start: int
    stop: int


class SourceReport(NamedTuple):
    """A report: its folder, its summary.json, and the rows of its matrix.csv."""

    path: str
    summary: Mapping[str, Any]
    shards: Sequence[Numbers]
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
        return self.summary["exit_status"] == 0 and any(some.get(name) for some in counts for name in differing)


@dataclass(frozen=True, repr=False)
class Merged(Result):
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
    spool: Any = None

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
        if self.spool is not None:
            self.spool.remove()
