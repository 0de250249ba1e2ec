"""Operators with what they read, and the cache of results of rows."""

import pickle

from npucmp.flow.operators import RowCache


def test_caches_of_the_same_rows_are_equal_and_lose_their_results_when_pickled():
    one = RowCache(2, 3)
    one.results("f")[1] = "known"
    other = pickle.loads(pickle.dumps(one))
    assert one == other and hash(one) == hash(other)
    assert one.results("f")[1] == "known" != other.results("f")[1] and len(other.results("f")) == 3
    assert len({one, other, RowCache(2, 4), RowCache(3, 3)}) == 3 and one != (2, 3)
    assert repr(one) == "<cache of 3 rows>"
