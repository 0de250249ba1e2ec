"""Which tensors of a run are the same by their content."""

import math

import ml_dtypes
import numpy as np
import pytest

from npucmp.flow.contents import (
    content_of,
    golden_content,
    is_computed,
    is_few,
    is_vector,
    target_content,
    target_content_of,
)
from npucmp.measure.kernel.native import measure_block
from npucmp.measure.kernel.numpy_kernel import bars_for, content_hash
from npucmp.model import Finding, Measurement, Moments, Pair, Side, Statistics, TensorRef, Verdict

X = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
SHORT = X.astype(ml_dtypes.bfloat16)


def content(golden, target=None):
    """The content of a golden tensor, measured beside itself or a target."""
    sides = golden if target is None else target, golden
    refs = [TensorRef("output:0", one.dtype.name, one.shape, file="x.npy") for one in sides]
    flat = [np.ascontiguousarray(one).reshape(-1) for one in sides]
    moments = measure_block(*flat, bars_for(refs[0].dtype, refs[1].dtype, 0.0, 0.0))
    one = Measurement(Pair(0, "output:0", None, None, *refs), moments)
    assert target_content(one) == golden_content(one) or target is not None
    return golden_content(one)


def changed(x, by):
    y = x.copy()
    y.flat[3] = np.nextafter(y.flat[3], np.float32(by))
    return y


@pytest.mark.parametrize(
    "other", [X.T, X[::-1], X.reshape(3, 16), X.astype(np.float64), np.where(X < 9, X, np.float32(0))]
)
def test_the_same_elements_are_the_same_tensor(other):
    assert content(other) == content(X) == content(X, changed(X, 9)) != 0


def test_a_cast_is_the_same_tensor_if_nothing_was_lost():
    assert content(SHORT.astype(np.float32)) == content(SHORT) != content(X)
    whole = np.arange(40, dtype=np.int64) * 1_000_003
    assert content(whole) == content(whole.astype(np.float64)) != content(whole.astype(np.float32))


@pytest.mark.parametrize("other", [changed(X, 9), changed(X, -9), -X, X[:5], np.append(X, np.float32(0))])
def test_another_element_is_another_tensor(other):
    assert content(other) not in (0, content(X))


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(9, np.float32),
        np.ones(9, np.float32),
        np.full(9, np.nan, np.float32),
        np.array([0.5, 2.0]),
        np.zeros((0, 3), np.float32),
    ],
)
def test_what_dumps_hold_by_chance_alike_has_no_content(other):
    assert content(other) == 0


def test_few_computed_numbers_have_one():
    assert content(X[0, :2]) not in (0, content(X[0, 1:3]))


FIGURES = Statistics(2.3, -1.1, 0.7, 5.9)


@pytest.mark.parametrize(
    "shape, change, known",
    [
        ((4,), {}, True),
        ((3,), {}, True),
        ((3,), {"max": 2.0, "min": -1.0, "mean": 0.5, "norm": 4.0}, False),  # simple numbers
        ((4,), {"max": 2.0, "min": -1.0, "mean": 0.5, "norm": 4.0}, True),
        ((4,), {"min": 2.3}, False),  # a constant
        ((3,), {"min": 2.3}, True),
        ((0, 4), {}, False),
        ((4,), {"max": None}, False),
        ((4,), {"min": None}, False),
        ((4,), {"mean": None}, False),
        ((4,), {"norm": None}, False),
        ((4,), {"norm": math.nan}, False),
    ],
)
def test_figures_are_a_content_if_all_are_known(shape, change, known):
    one = TensorRef("output:0", "float32", shape, statistics=FIGURES._replace(**change))
    other = TensorRef("output:0", "float32", (4,), statistics=FIGURES._replace(mean=0.71))
    measured = Measurement(Pair(0, "output:0", None, None, one, other))
    found = target_content(measured)
    assert (bool(found), found == golden_content(measured)) == (known, False)
    assert golden_content(measured._replace(pair=Pair(0, "output:0", None, None, other, one))) == found


@pytest.mark.parametrize("count, known", [(3, True), (4, False), (5, False)])
def test_simple_numbers_identify_no_tensor_of_few_elements(count, known):
    """Nor does a constant identify a larger one; its error does."""
    constant = np.full(count, np.float32(0.1))
    assert bool(content(constant)) == known and content(constant, constant + np.float32(0.2)) != 0
    assert bool(content(np.arange(count, dtype=np.float32))) != known


@pytest.mark.parametrize("checksum, shape, known", [("1f", (4,), True), ("1f", (3,), False), ("", (4,), False)])
def test_a_checksum_is_a_content_of_at_least_four_elements(checksum, shape, known):
    one = Measurement(Pair(0, "output:0", None, None, None, TensorRef("output:0", "float32", shape, checksum=checksum)))
    assert bool(golden_content(one)) == known and target_content(one) == 0


@pytest.mark.parametrize("step", [1.0, 2.0**-9, 2.0**-20])
def test_no_two_pairs_of_neighbouring_numbers_have_equal_hashes(step):
    """By their sums alone, most of them would."""
    hashes = np.array([content_hash(np.array([1.0 + step * place])) for place in range(700)], np.uint64)
    low, high = hashes.astype(np.uint32), (hashes >> np.uint64(32)).astype(np.uint32)
    one, other = np.triu_indices(len(hashes))
    both = np.stack([low[one] + low[other], high[one] + high[other]], axis=1)
    assert len(np.unique(both, axis=0)) == len(both)


@pytest.mark.parametrize(
    "value, computed",
    [
        (None, False), (math.nan, False), (math.inf, False), (0.0, False), (1.0, False), (15.0, False), (17.0, True),
        (-17.0, True), (-12.0, False), (0.1, True), (0.9375, False), (0.96875, True), (2.0**-30, False),
    ],
)  # fmt: skip
def test_a_number_of_more_than_four_bits_was_computed(value, computed):
    assert is_computed(value) is computed


@pytest.mark.parametrize(
    "shape, few, vector",
    [((), True, True), ((3,), True, True), ((4,), False, True), ((1, 3), True, False), ((2, 2), False, False)],
)
def test_the_shape_of_the_golden_is_that_of_few_elements_or_of_a_vector(shape, few, vector):
    ref = TensorRef("output:0", "float32", shape)
    one = Finding(Measurement(Pair(0, "output:0", None, None, None, ref)), Verdict.MATCH, "")
    assert (is_few(one), is_vector(one)) == (few, vector)
    target = one._replace(measurement=Measurement(Pair(0, "output:0", None, None, ref, None)))
    assert (is_few(target), is_vector(target)) == (False, False)


@pytest.mark.parametrize(
    "minimum, maximum, total", [(0.1, 0.5, 0.5), (0.5, 0.1, 0.5), (0.5, 0.5, 0.1), (0.5, 0.5, 0.5)]
)
def test_any_computed_figure_identifies_few_elements(minimum, maximum, total):
    ref = TensorRef("output:0", "float32", (3,))
    side = Side(minimum=minimum, maximum=maximum, total=total, hash=7)
    measured = Measurement(Pair(0, "output:0", None, None, ref, ref), Moments(3, Side(minimum=0.1, hash=9), side))
    one = Finding(measured, Verdict.MATCH, "")
    assert bool(golden_content(measured)) is (0.1 in (minimum, maximum, total))
    assert content_of(one) == golden_content(measured) != target_content_of(one) == target_content(measured) != 0
    assert 0 < target_content(measured) < 2**64
