"""Corresponding steps and ranks of two runs, as checks of two runs read them."""

from __future__ import annotations

from typing import NamedTuple, Optional, Protocol, Sequence

from npucmp.align import Alignment
from npucmp.model import Match, Pair, Run


class Together(NamedTuple):
    """A step and rank of both runs. If the runs cannot be aligned, `alignment` is None and `problem` has the reason."""

    target: Run
    golden: Run
    alignment: Optional[Alignment]
    pairs: tuple[Pair, ...]
    problem: str = ""

    @property
    def matches(self) -> tuple[Match, ...]:
        return self.alignment.matches if self.alignment is not None else ()


class AlignedRuns(Protocol):
    """Two aligned runs."""

    @property
    def together(self) -> Sequence[Together]:
        """Each common step and rank, in order."""

    def agree(self, pair: Pair) -> Optional[bool]:
        """Return whether two float tensors agree within rounding; None if unknown."""
