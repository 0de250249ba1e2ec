"""Which names are trusted, and which are not."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from npucmp.align.name import longest_increasing


def longest_by_trying(values) -> int:
    for size in range(len(values), 0, -1):
        for chosen in combinations(values, size):
            if all(a < b for a, b in zip(chosen, chosen[1:])):
                return size
    return 0


@given(st.lists(st.integers(0, 9), max_size=9))
def test_longest_increasing(values):
    chain = longest_increasing(values)
    chosen = [values[i] for i in chain]
    assert all(a < b for a, b in zip(chain, chain[1:])) and all(a < b for a, b in zip(chosen, chosen[1:]))
    assert len(chain) == longest_by_trying(values)
