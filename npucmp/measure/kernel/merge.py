"""Merge of the Moments of two neighbouring blocks: associative, and exact in every count and index.

Each field declares its merge (model/moments.py). Sums are added in the order of the blocks, so a result does not depend
on the process that measured a block.
"""

from __future__ import annotations

from typing import Any, Callable, Union

from npucmp.model import Moments, Side
from npucmp.model.moments import FIELDS, SIDE_FIELDS, Merge, add_hashes

Record = Union[Moments, Side]


def merge(a: Moments, b: Moments) -> Moments:
    """The Moments of block a followed by block b. If maxima are equal, the earlier index is kept."""
    return Moments._make([_HOW[field.merge](field.name, a, b) for field in FIELDS])


def merge_sides(a: Side, b: Side) -> Side:
    """Merge one side's half."""
    return Side._make([_HOW[field.merge](field.name, a, b) for field in SIDE_FIELDS])


def _sum(name: str, a: Record, b: Record) -> Any:
    return getattr(a, name) + getattr(b, name)


def _sums(name: str, a: Record, b: Record) -> tuple[Any, ...]:
    return tuple(x + y for x, y in zip(getattr(a, name), getattr(b, name)))


def _word_sums(name: str, a: Record, b: Record) -> int:
    return add_hashes(getattr(a, name), getattr(b, name))


def _best(choose: Callable[[Any, Any], Any]) -> Callable[[str, Record, Record], Any]:
    def of(name: str, a: Record, b: Record) -> Any:
        x, y = getattr(a, name), getattr(b, name)
        if x is None or x != x:
            return y
        return x if y is None or y != y else choose(x, y)

    return of


def _worst_element(name: str, a: Record, b: Record) -> Any:
    largest = name[: -len("_index")]
    return getattr(b if getattr(b, largest) > getattr(a, largest) else a, name)


def _half(name: str, a: Record, b: Record) -> Side:
    return merge_sides(getattr(a, name), getattr(b, name))


_HOW: dict[Merge, Callable[[str, Record, Record], Any]] = {
    Merge.SUM: _sum,
    Merge.SUMS: _sums,
    Merge.WORD_SUMS: _word_sums,
    Merge.LEAST: _best(min),
    Merge.MOST: _best(max),
    Merge.MOST_WIDE: _best(max),
    Merge.PLACE: _worst_element,
    Merge.HALF: _half,
}
