"""Group dumped items by execution: an operator that ran several times wrote each of its slots several times.

Executions are counted from the newest, as when two runs are paired: missing executions are the earliest ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")


def executions(
    items: Iterable[Item],
    operator: Callable[[Item], Hashable],
    slot: Callable[[Item], Hashable],
    age: Callable[[Item], Any],
) -> list[list[Item]]:
    """Group the items of one execution of one operator. `age` sorts the items of one slot, oldest first."""
    slots: dict[tuple[Hashable, Hashable], list[Item]] = defaultdict(list)
    for item in items:
        slots[operator(item), slot(item)].append(item)
    groups: dict[tuple[Hashable, int], list[Item]] = defaultdict(list)
    for (name, _), same in slots.items():
        newest_first = sorted(same, key=age)[::-1]
        for back, item in enumerate(newest_first):
            groups[name, back].append(item)
    return list(groups.values())


def from_newest(items: Sequence[Item], key: Callable[[Item], Hashable]) -> list[tuple[Item, int]]:
    """Return each item with the number of later items of the same key."""
    later: Counter[Hashable] = Counter()
    found = []
    for item in reversed(items):
        found.append((item, later[key(item)]))
        later[key(item)] += 1
    return found[::-1]
