"""Values that several tensors share (an output, and the same tensor as the input of another) are read once."""

from __future__ import annotations

from collections import Counter
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
    keys = [values(item) for item in items]
    times = Counter(keys)
    places = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1)))  # where each stands first
    found = read([item for at, (item, key) in enumerate(zip(items, keys)) if key is None or places[key] == at])
    kept: dict[Hashable, Found] = {}
    for item, key in zip(items, keys):
        if key in kept:
            yield item, kept[key], True
            continue
        one = next(found)
        if key is not None and times[key] > 1:
            kept[key] = one
        yield item, one, False
