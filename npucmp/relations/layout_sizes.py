"""Sizes of a parallel layout that the user states, and whether the recorded groups and sends agree with them."""

from __future__ import annotations

import math
import re
from typing import Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.errors import UsageError
from npucmp.model.relation import ranks_in_words

MOST_RANKS = 2**18  # of a layout: work: more devices than a cluster has
ORDER = ("tp", "cp", "ep", "dp", "pp")  # fastest first, as Megatron numbers ranks
_ITEM = re.compile(r"(tp|cp|ep|dp|pp)=([0-9]{1,6})")


class LayoutSizes(NamedTuple):
    """The size of each axis, fastest first."""

    sizes: tuple[tuple[str, int], ...]

    @property
    def ranks(self) -> int:
        return math.prod(size for _, size in self.sizes)

    @property
    def words(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.sizes if size > 1) or "1 rank"

    def size(self, axis: str) -> int:
        return dict(self.sizes).get(axis, 1)

    def at(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank."""
        found = {}
        for name, size in self.sizes:
            rank, found[name] = divmod(rank, size)
        return found

    def replica(self, number: int) -> list[int]:
        """The ranks of one data-parallel replica."""
        return [rank for rank in range(self.ranks) if self.at(rank).get("dp", 0) == number]

    def is_replica(self, ranks: Iterable[int]) -> bool:
        """Whether these are the ranks of one data-parallel replica."""
        found = sorted(ranks)
        return bool(found) and found[0] < self.ranks and found == self.replica(self.at(found[0]).get("dp", 0))

    def within_stage(self, of_replica: bool = False) -> list[int]:
        """The sizes of the axes of one stage, or of one data-parallel replica of it."""
        without = ("pp", "dp") if of_replica else ("pp",)
        return [size for name, size in self.sizes if name not in without and size > 1]

    def contradiction(self, groups: Sequence[Sequence[int]], stages: Mapping[int, int]) -> Optional[str]:
        """Return a contradiction between the layout and the records; None if they agree."""
        for group in groups:
            places = [self.at(rank) for rank in group]
            free = {name for name, _ in self.sizes if len({place[name] for place in places}) > 1}
            fixed = {name: place for name, place in places[0].items() if name not in free}
            meant = [rank for rank in range(self.ranks) if fixed.items() <= self.at(rank).items()]
            if sorted(group) != meant:
                said = " and ".join(sorted(free))
                own, other = map(ranks_in_words, (group, meant))
                return f"a collective has the group of ranks {own}, {said} of this layout {other}"
        count = max(stages.values(), default=0) + 1
        if count > 1 and count != self.size("pp"):
            return f"sends lead through {count} pipeline stages, this layout has {self.size('pp')}"
        return None


def parse_layout(text: str) -> LayoutSizes:
    """The layout of `tp=2,pp=2` or `order=tp-pp-dp,tp=2,pp=2`. Raises ValueError for other text."""
    order: tuple[str, ...] = ORDER
    sizes: dict[str, int] = {}
    for item in text.replace(" ", "").split(","):
        name, _, value = item.partition("=")
        if name == "order":
            order = tuple(value.split("-"))
            continue
        found = _ITEM.fullmatch(item)
        if found is None or found[1] in sizes or not int(found[2]):
            raise ValueError(item)
        sizes[found[1]] = int(found[2])
    if len({*order}) < len(order) or not {*order} <= {*ORDER} or not sizes or not {*sizes} <= {*order}:
        raise ValueError(text)
    return LayoutSizes(tuple((name, sizes.get(name, 1)) for name in order))


def stated_layout(name: str, text: Optional[str]) -> Optional[LayoutSizes]:
    """The layout that an option states. The UsageError names the option and the mistake."""
    if text is None:
        return None
    try:
        sizes = parse_layout(text)
    except ValueError as error:
        raise UsageError(
            f"--{name} {text}: {error} is no size of tp, cp, ep, dp or pp, as in --{name} tp=2,pp=2"
        ) from None
    if sizes.ranks > MOST_RANKS:
        raise UsageError(f"--{name} {text}: {sizes.ranks:,} ranks; at most {MOST_RANKS:,} in a layout")
    return sizes


def subset(target: LayoutSizes, golden: LayoutSizes, rank: int) -> Optional[list[int]]:
    """The ranks of the target whose parts make those of one golden rank; None if an axis of the golden is not a part of
    the target's."""
    at = golden.at(rank)
    for name in {name for name, _ in (*target.sizes, *golden.sizes)}:
        if target.size(name) % golden.size(name):
            return None

    def belongs(one: int) -> bool:
        places = target.at(one).items()
        return all(place // (target.size(name) // golden.size(name)) == at.get(name, 0) for name, place in places)

    return [*filter(belongs, range(target.ranks))]
