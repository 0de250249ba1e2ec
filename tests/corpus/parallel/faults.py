"""The kinds of fault, and the places that it is right to name for each: (scope, kind of operator, phase)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Optional

Place = tuple[str, str, str]


@dataclass(frozen=True)
class Fault:
    """kind, "" for none; scope: the layer or parameter that it strikes; rank: where, None everywhere; size: of the
    error."""

    kind: str = ""
    scope: str = ""
    rank: Optional[int] = None
    step: int = 0
    size: float = 0.0
    after: bool = False  # from this step on

    def strikes(self, kind: str, scope: str, rank: Optional[int], step: int) -> bool:
        here = rank is None or self.rank is None or rank == self.rank
        return kind == self.kind and here and step == self.step and scope.endswith(self.scope)


class Truth(NamedTuple):
    """Places that are right to name first, the ranks, and what kind of fault it is."""

    places: tuple[Place, ...]
    ranks: Optional[tuple[int, ...]] = None  # None: any
