"""The noise that operators of which only statistics were recorded are held against: how far all before them moved."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from npucmp.localise.seen_errors import QUANTILE, RECENT
from npucmp.localise.stat_shift import Level


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


class NoiseBaseline(NamedTuple):
    """The noise before an operator: what is usual, what was last, whether anything moved, what its kind did."""

    levels: float = 0.0
    sums: float = 0.0
    last: float = 0.0  # of the RECENT
    seen: int = 0
    moved: bool = False
    still: int = 0
    kind: Level = Level()

    @property
    def unseen(self) -> float:
        """What stands for something that was not recorded."""
        return max(self.levels, self.last) if self.seen else 0.0


class History:
    """The movements seen so far, of all ranks of a step, in order of execution."""

    def __init__(self) -> None:
        self._levels, self._sums = _Usual(), _Usual()
        self._kinds: dict[object, Level] = {}
        self._now = NoiseBaseline()  # of an operator of no kind
        self.largest: list[float] = []

    def before(self, kind: object) -> NoiseBaseline:
        return NoiseBaseline(*self._now[:-1], self._kinds[kind]) if kind in self._kinds else self._now

    def add(self, one: Contribution, before: NoiseBaseline) -> None:
        self.largest.append(max(one.highest))
        if max(one.highest) > max(one.came, before.unseen if one.is_open else 0.0):  # else it passed on what it got
            self._kinds[one.kind] = self._kinds.get(one.kind, Level()).most(one.highest)
        usual = self._levels.with_(one.highest.extremes), self._sums.with_(one.highest.sums)
        last = max(self.largest[-RECENT:])
        moved, still = self._now.moved or not one.still, self._now.still + (one.still and one.sums)
        self._now = NoiseBaseline(*usual, last, len(self.largest), moved, still)


class _Usual:
    """The quantile of what was added: of n numbers in ascending order the one at int(QUANTILE * (n - 1)). It is the
    last of those up to it, which are one heap; the others are another."""

    def __init__(self) -> None:
        self._low: list[float] = []  # with the other sign, as heaps have the smallest first
        self._high: list[float] = []

    def with_(self, one: float) -> float:
        """With one more."""
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
