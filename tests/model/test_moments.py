"""Hashes of blocks together."""

from hypothesis import given
from hypothesis import strategies as st

from npucmp.model.moments import add_hashes, repeated_hash


@given(st.integers(0, 2**64 - 1), st.integers(2, 9))
def test_the_hash_of_repeated_elements_is_that_of_as_many_blocks(one, times):
    found = one
    for _ in range(times - 1):
        found = add_hashes(found, one)
    assert repeated_hash(one, times) == found
