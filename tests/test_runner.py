"""Who executes the work does not change what comes out."""

from __future__ import annotations

import pytest

from npucmp.runner import BATCH, WEIGHT, batches, run


@pytest.mark.parametrize("jobs", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, BATCH, 3 * BATCH + 1])
@pytest.mark.parametrize("weight", [None, lambda item: 0, lambda item: item % 7 * WEIGHT // 4])
def test_results_keep_the_order_of_the_items(jobs, count, weight):
    assert list(run(lambda item: item * item, range(count), jobs, weight)) == [item * item for item in range(count)]


@pytest.mark.parametrize(
    "weights, sizes",
    [
        ([], []),
        ([0] * (BATCH + 1), [BATCH, 1]),
        ([WEIGHT, 1, WEIGHT - 1, 5], [1, 2, 1]),
        ([WEIGHT * 100] * 3, [1, 1, 1]),
    ],
)
def test_batches_are_many_light_items_or_enough_bytes(weights, sizes):
    assert [len(batch) for batch in batches(weights, lambda item: item)] == sizes


def test_without_a_weight_items_go_alone():
    assert list(batches("abc")) == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_arrives_where_its_item_stood(jobs):
    results = run(lambda item: 1 // (item - 3), range(10), jobs)
    assert [next(results) for _ in range(3)] == [-1, -1, -1]
    with pytest.raises(ZeroDivisionError):
        next(results)
