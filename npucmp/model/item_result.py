"""A row of precheck.csv, which the warning of compare is made of too."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Optional


class Status(str, Enum):
    """The status of a row, in the words of precheck.csv."""

    SAME = "same"
    CLOSE = "close"  # within round-off or 1 %
    DIFFERS = "DIFFERS"
    UNKNOWN = "unknown"  # neither dump has the information
    NOT_APPLICABLE = "n/a"


class ItemResult(NamedTuple):
    """One row of precheck.csv; None if a number does not apply.

    severity        of a difference in this row: "error" (comparisons of the two runs are meaningless until it is
                    resolved), "warning" (it requires an explanation), "note"
    target, golden  the state of each side, in words
    places, first   number of places checked, or of differences if there are any; and the first of these
    value, limit    the number that decided, and its limit
    because, remedy the finding and the remedy, each in one sentence
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
        """Whether numbers of the two runs must not be compared before the difference is resolved."""
        return self.status is Status.DIFFERS and self.severity == "error"
