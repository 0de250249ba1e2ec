"""The noise that operators of which only statistics were recorded are held against: how far all before them moved."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from typing import NamedTuple

QUANTILE = 0.9


class Level(NamedTuple):
    """How far extremes and sums (norm, mean) moved, relative to the tensor's size as if elements moved alone."""

    extremes: float = 0.0
    sums: float = 0.0

    def most(self, other: "Level") -> "Level":
        return Level(max(self.extremes, other.extremes), max(self.sums, other.sums))

    def times(self, factor: float) -> "Level":
        return Level(self.extremes * factor, self.sums * factor)


class Contribution(NamedTuple):
    """What an operator adds to the noise that others are held against.

    came  the most that came in; is_open: it read what was not recorded, which is as large as is usual there
    """

    kind: object
    highest: Level
    came: float
    is_open: bool
    still: bool
    sums: bool


class Before(NamedTuple):
    """The noise before an operator: what is usual, what was last, whether anything moved, what its kind did."""

    levels: float = 0.0
    sums: float = 0.0
    last: float = 0.0  # of the last eight
    latest: float = 0.0  # of the last four
    seen: int = 0
    moved: bool = False
    still: int = 0
    kind: Level = Level()

    @property
    def unseen(self) -> float:
        """What stands for something that was not recorded."""
        return max(self.levels, self.latest) if self.seen else 0.0


class History:
    """The movements seen so far, of all ranks of a step, in order of execution."""

    def __init__(self) -> None:
        self._levels: list[float] = []
        self._sums: list[float] = []
        self._kinds: dict[object, Level] = defaultdict(Level)
        self._still = 0
        self._moved = False
        self.largest: list[float] = []

    def before(self, kind: object) -> Before:
        last, latest = max(self.largest[-8:], default=0.0), max(self.largest[-4:], default=0.0)
        usual = _usual(self._levels), _usual(self._sums)
        return Before(*usual, last, latest, len(self.largest), self._moved, self._still, self._kinds[kind])

    def add(self, one: Contribution, before: Before) -> None:
        insort(self._levels, one.highest.extremes)
        insort(self._sums, one.highest.sums)
        self.largest.append(max(one.highest))
        if max(one.highest) > max(one.came, before.unseen if one.is_open else 0.0):  # else it passed on what it got
            self._kinds[one.kind] = self._kinds[one.kind].most(one.highest)
        self._moved |= not one.still
        self._still += one.still and one.sums


def _usual(some: "list[float]") -> float:
    return some[int(QUANTILE * (len(some) - 1))] if some else 0.0
