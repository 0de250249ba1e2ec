"""Values are read once, however many tensors share them, and each item gets what was found for its own."""

from __future__ import annotations

from typing import Iterator, Optional, Sequence

from hypothesis import given
from hypothesis import strategies as st

from npucmp.measure.executor import read_distinct


@given(st.lists(st.tuples(st.integers(), st.none() | st.integers(0, 5))))
def test_each_item_gets_what_was_found_for_the_first_of_its_values(items: list[tuple[int, Optional[int]]]) -> None:
    asked: list[tuple[int, Optional[int]]] = []

    def read(firsts: Sequence[tuple[int, Optional[int]]]) -> Iterator[tuple[int, Optional[int]]]:
        asked.extend(firsts)
        return iter(firsts)

    met: dict[int, tuple[int, Optional[int]]] = {}
    expected = []
    for item in items:
        key = item[1]
        again = key in met
        first = item if key is None else met.setdefault(key, item)
        expected.append((item, first, again))
    assert list(read_distinct(items, lambda item: item[1], read)) == expected
    assert asked == [item for item, _, again in expected if not again]
