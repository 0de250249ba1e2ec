"""The noise baseline of operators with recorded statistics only: how far all operators before them shifted."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from npucmp.localise.seen_errors import QUANTILE, RECENT
from npucmp.localise.stat_shift import Level


class Contribution(NamedTuple):
    """The contribution of an operator to the noise baseline.

    came  the largest incoming shift; is_open: it read unrecorded tensors, whose shift is assumed to be the usual one
    """

    kind: object
    highest: Level
    came: float
    is_open: bool
    still: bool
    sums: bool


class NoiseBaseline(NamedTuple):
    """The noise before an operator: the usual shift, the latest, whether any tensor shifted, and the shift of its
    kind."""

    levels: float = 0.0
    sums: float = 0.0
    last: float = 0.0  # the largest of the RECENT
    seen: int = 0
    moved: bool = False
    still: int = 0
    kind: Level = Level()

    @property
    def unseen(self) -> float:
        """The assumed shift of a tensor that was not recorded."""
        return max(self.levels, self.last) if self.seen else 0.0


class History:
    """The shifts seen so far, of all ranks of a step, in order of execution."""

    def __init__(self) -> None:
        self._levels, self._sums = _Usual(), _Usual()
        self._kinds: dict[object, Level] = {}
        self._now = NoiseBaseline()  # for an operator of an unseen kind
        self.largest: list[float] = []

    def before(self, kind: object) -> NoiseBaseline:
        return NoiseBaseline(*self._now[:-1], self._kinds[kind]) if kind in self._kinds else self._now

    def add(self, one: Contribution, before: NoiseBaseline) -> None:
        self.largest.append(max(one.highest))
        if max(one.highest) > max(one.came, before.unseen if one.is_open else 0.0):  # otherwise it propagated its input
            self._kinds[one.kind] = self._kinds.get(one.kind, Level()).most(one.highest)
        usual = self._levels.with_(one.highest.extremes), self._sums.with_(one.highest.sums)
        last = max(self.largest[-RECENT:])
        moved, still = self._now.moved or not one.still, self._now.still + (one.still and one.sums)
        self._now = NoiseBaseline(*usual, last, len(self.largest), moved, still)


class _Usual:
    """The quantile of the added numbers: of n numbers in ascending order the one at int(QUANTILE * (n - 1)). One heap
    holds the numbers up to the quantile, the other heap holds the rest."""

    def __init__(self) -> None:
        self._low: list[float] = []  # negated, because heaps have the smallest first
        self._high: list[float] = []

    def with_(self, one: float) -> float:
        """Add a number and return the quantile."""
        low, high = self._low, self._high
        if low and one < -low[0]:
            heappush(low, -one)
        else:
            heappush(high, one)
        count = int(QUANTILE * (len(low) + len(high) - 1)) + 1
        if len(low) < count:
            heappush(low, -heappop(high))
        elif len(low) > count:
            heappush(high, -heappop(low))
        return -low[0]
