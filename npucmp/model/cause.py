"""Which operator bears the error, and why it is said to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional

from npucmp.model.pair import Pair


class Cause(str, Enum):
    """What an operator has to do with the error that it shows. Best suspects first."""

    BORN = "BORN"  # inputs agree, an output does not
    GAP = "GAP"  # an input differs although everything dumped upstream agrees
    WORSENED = "WORSENED"  # inputs differ, outputs far more than that explains
    UNKNOWN = "UNKNOWN"  # inputs were not dumped or cannot be compared
    PROPAGATED = "PROPAGATED"  # passes on what it got


@dataclass(frozen=True)
class Root:
    """An operator that diverged and what it has to do with it; one row of roots.csv.

    input_error and output_error are the largest errors over its inputs and outputs (None: unknown).
    """

    place: int
    pair: Pair
    cause: Cause
    slot: str
    metric: str
    value: Optional[float]
    limit: float
    input_error: Optional[float]
    output_error: Optional[float]
    evidence: str

    @property
    def growth(self) -> Optional[float]:
        """output_error / input_error; None when one is unknown or there is no input error."""
        if self.input_error is None or self.output_error is None or not self.input_error:
            return None
        return self.output_error / self.input_error
