"""Steps and ranks of two runs that belong together, as the questions to two runs see them."""

from __future__ import annotations

from typing import NamedTuple, Optional, Protocol, Sequence

from npucmp.align import Alignment
from npucmp.model import Match, Pair, Run


class Together(NamedTuple):
    """A step and rank of both runs; without an alignment where they are no two runs of one network, which `problem`
    says."""

    target: Run
    golden: Run
    alignment: Optional[Alignment]
    pairs: tuple[Pair, ...]
    problem: str = ""

    @property
    def matches(self) -> tuple[Match, ...]:
        return self.alignment.matches if self.alignment is not None else ()


class Partners(Protocol):
    """Two runs, lined up."""

    @property
    def together(self) -> Sequence[Together]:
        """Each step and rank that both have, in order."""

    def agree(self, pair: Pair) -> Optional[bool]:
        """Return whether two tensors of floats agree within rounding; None where that is not known."""
