"""Which files of a dump belong to one execution: an operator that ran several times wrote each of its slots again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

Item = TypeVar("Item")


def executions(
    items: Iterable[Item],
    operator: Callable[[Item], Hashable],
    slot: Callable[[Item], Hashable],
    age: Callable[[Item], Any],
) -> list[list[Item]]:
    """The items of one execution of one operator together.

    `age` sorts the items of one slot, oldest first. They are counted from the newest, as two runs are paired: of slots
    that were written less often than others, the first executions are missing.
    """
    slots: dict[tuple[Hashable, Hashable], list[Item]] = defaultdict(list)
    for item in items:
        slots[operator(item), slot(item)].append(item)
    groups: dict[tuple[Hashable, int], list[Item]] = defaultdict(list)
    for (name, _), same in slots.items():
        newest_first = sorted(same, key=age)[::-1]
        for back, item in enumerate(newest_first):
            groups[name, back].append(item)
    return list(groups.values())
