"""Values that several tensors share (an output, and the same tensor as the input of another) are read once."""

from __future__ import annotations

from typing import Callable, Hashable, Iterator, Optional, Sequence, TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")


def once(
    items: Sequence[Item],
    values: Callable[[Item], Optional[Hashable]],
    read: Callable[[Sequence[Item]], Iterator[Found]],
) -> Iterator[tuple[Item, Found, bool]]:
    """(item, what was found, whether that was for an earlier one), in the order of the items.

    `values` tells the values of an item from those of all others, None of one that shares none. `read` gets the first
    items of each and finds something for each, in their order.
    """
    places: dict[Hashable, int] = {}
    firsts = [  # the place of the first item with the same values
        at if key is None else places.setdefault(key, at) for at, key in enumerate(map(values, items))
    ]
    shared = {first for at, first in enumerate(firsts) if first != at}
    found = read([item for at, item in enumerate(items) if firsts[at] == at])
    kept: dict[int, Found] = {}
    for at, item in enumerate(items):
        first = firsts[at]
        if first != at:
            yield item, kept[first], True
            continue
        one = next(found)
        if at in shared:
            kept[at] = one
        yield item, one, False
