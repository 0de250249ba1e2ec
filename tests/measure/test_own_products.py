"""The distance of a recorded product from the product of its recorded operands."""

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.measure import own_products
from npucmp.measure.own_products import own_product
from tests.measure.craft import stored

CHANCE = np.random.default_rng(5)
A, B, VECTOR = CHANCE.standard_normal((6, 10)), CHANCE.standard_normal((10, 4)), CHANCE.standard_normal(4)
Y = A @ B


def found(folder, a, b, y, *addends):
    a, b, y, *others = (stored(folder, np.asarray(one)) for one in (a, b, y, *addends))
    return own_product((a, b), others, y, ANYWHERE)


def rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


@pytest.mark.parametrize("a", [A, A.T])
@pytest.mark.parametrize("b", [B, B.T])
@pytest.mark.parametrize("batch", [False, True])
def test_operands_may_be_transposed_and_the_first_matrix_counts(tmp_path, a, b, batch):
    sides = [np.stack([one, one * 7]) for one in (a, b, Y * 1.004)] if batch else [a, b, Y * 1.004]
    one = found(tmp_path, *sides)
    assert one.operands == pytest.approx((rms(A), rms(B))) and one.output == pytest.approx(rms(Y))
    assert (one.terms, one.elements, one.error) == (10, 24, pytest.approx(0.004))


def test_vectors_are_added(tmp_path):
    assert found(tmp_path, A, B, Y + VECTOR, VECTOR).error == pytest.approx(0.0, abs=1e-12)
    assert found(tmp_path, A, B, Y + 3 * VECTOR, VECTOR, 2 * VECTOR).error == pytest.approx(0.0, abs=1e-12)
    assert found(tmp_path, A, B, Y + VECTOR) is None


def test_leading_axes_of_one_operand_are_rows(tmp_path):
    one = found(tmp_path, A.reshape(2, 3, 10), B, Y.reshape(2, 3, 4))
    assert (one.terms, one.elements) == (10, 24) and one.error < 1e-12


def test_the_orientation_with_the_smaller_distance_counts(tmp_path):
    square, other = A[:4, :4], B[:4]
    for left, right in ((square, other), (square.T, other), (square.T, other.T)):
        assert found(tmp_path, square, other, left @ right).error < 1e-12


@pytest.mark.parametrize("factor, known", [(1.0099, True), (1.0101, False)])
def test_a_tensor_that_is_farther_away_is_another_product(tmp_path, factor, known):
    assert (found(tmp_path, A, B, Y * factor) is not None) is known


def test_other_tensors_are_no_product(tmp_path):
    assert found(tmp_path, A, B, Y.T) is None
    assert found(tmp_path, A, B[:9], Y) is None
    assert found(tmp_path, A[:0], B, Y[:0]) is None
    assert found(tmp_path, A * 0, B, Y * 0) is None
    sides = [stored(tmp_path, one) for one in (A, B, Y)]
    gone = sides[1]._replace(file=f"{tmp_path}/none.npy")
    assert own_product((sides[0], gone), (), sides[2], ANYWHERE) is None


def test_a_block_of_a_large_product_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(own_products, "BLOCK", 3)
    y = Y.copy()
    y[3:], y[:, 3:] = 0.0, 0.0
    one = found(tmp_path, A, B, y)
    assert (one.elements, one.terms) == (9, 10) and one.error < 1e-12
    assert one.operands == pytest.approx((rms(A[:3]), rms(B[:, :3]))) and one.output == pytest.approx(rms(Y[:3, :3]))
    monkeypatch.setattr(own_products, "MOST", 60)
    assert found(tmp_path, A, B, y) is not None
    monkeypatch.setattr(own_products, "MOST", 59)
    assert found(tmp_path, A, B, y) is None
    assert own_products.UNLIKE == 0.01


def test_at_most_64_rows_and_columns_are_computed(tmp_path):
    a, b = CHANCE.standard_normal((70, 2)), CHANCE.standard_normal((2, 80))
    assert found(tmp_path, a, b, a @ b).elements == 64 * 64
