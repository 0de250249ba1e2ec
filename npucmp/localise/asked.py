"""Against which noise the operators of the ranks of a step are held, where each rank is walked by itself."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache, cached_property
from typing import Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.localise.history import Before, Contribution, History, Level
from npucmp.localise.nodes import Place
from npucmp.localise.noise_facts import Facts
from npucmp.localise.suspects import Candidate

Added = Sequence["tuple[object, Optional[Contribution]]"]  # by operator: its kind, and what it adds to the noise


class Asked(NamedTuple):
    """What the noise was before each operator of a rank. It grows until operator number `until`, which stands behind
    what stands out first, at `clock`; of those behind, the ones of that `name` are held against it as it is then."""

    facts: Facts
    before: Sequence[Before]
    until: int
    name: str = ""
    clock: float = math.inf


class StepNoise:
    """The noise of a step: what each operator adds, in the order in which operators of all ranks are asked."""

    def __init__(
        self, facts: Facts, added: Mapping[int, Added], order: Sequence[Place], clocks: Sequence[Sequence[int]]
    ) -> None:
        self._facts, self._added, self._order, self._clocks = facts, added, order, clocks
        self._history = History()
        self._latest: tuple[int, dict[int, Asked]] = -1, {}  # a place, and what is asked where it is the first

    @cached_property
    def _all(self) -> dict[int, Asked]:
        """Where nothing stands out."""
        before: dict[int, list[Before]] = {rank: [] for rank in self._added}
        for place in self._order:
            kind, one = self._added[place.rank][place.at]
            now = self._history.before(kind)
            before[place.rank].append(now)
            if one is not None:
                self._history.add(one, now)
        return {rank: Asked(self._facts, some, len(some)) for rank, some in before.items()}

    def asked(self, some: Iterable[Candidate]) -> tuple[Optional[int], Mapping[int, Asked]]:
        """Which place in the order is the first of those that stand out, None if none does; and of each rank what is
        asked then: that operator is no noise, and nothing behind it but the same one is held against any."""
        out = {(one.rank, one.clock): one.pair.operator.name for one in some if one.standing}
        if not out:
            return None, self._all
        keys = ((one.rank, self._clocks[one.rank][one.at]) for one in self._order)
        start, key = next((at, key) for at, key in enumerate(keys) if key in out)
        if self._latest[0] != start:
            self._latest = start, self._until(start, out[key])
        return start, self._latest[1]

    def _until(self, start: int, name: str) -> dict[int, Asked]:
        place, then = self._order[start], self._then(start)
        kinds = self._history.kinds(then.seen)
        frozen = cache(lambda kind: then._replace(kind=kinds.get(kind, Level())))
        until = Counter(one.rank for one in self._order[:start])
        clock = self._clocks[place.rank][place.at]
        return {
            rank: Asked(
                self._facts,
                [*one.before[: until[rank]], *(frozen(kind) for kind, _ in self._added[rank][until[rank] :])],
                until[rank],
                name,
                clock,
            )
            for rank, one in self._all.items()
        }

    def movements(self, start: int) -> list[float]:
        """Those that are noise, in ascending order."""
        return sorted(self._history.largest[: self._then(start).seen])

    def _then(self, start: int) -> Before:
        place = self._order[start]
        return self._all[place.rank].before[place.at]
