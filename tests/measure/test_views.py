"""Golden tensors against views of the target's, and gradients of broadcast operands."""

import math

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.measure import views
from npucmp.measure.views import AxisSlice, Views
from npucmp.model import Device, Payload
from tests.measure.craft import paired, stored

CHANCE = np.random.default_rng(5)
X = CHANCE.standard_normal((4, 6))
SQUARE = CHANCE.standard_normal((5, 5))
VIEWS = Views(ANYWHERE)


def error(folder, target, golden, part=None, **more):
    return VIEWS.rel_l2(paired(stored(folder, target), stored(folder, golden), **more), part)


def plain(x, y):
    return pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(y))


@pytest.mark.parametrize(
    "target, golden, view",
    [
        (X * 1.5, X, X * 1.5),
        (X.T * 1.5, X, X * 1.5),
        (np.asfortranarray(X) * 1.5, X, X * 1.5),
        (SQUARE.T * 1.01, SQUARE, SQUARE * 1.01),
        (SQUARE * 1.01, SQUARE, SQUARE * 1.01),
        (np.stack([X.T, X.T]) * 1.5, np.stack([X, X]), np.stack([X, X]) * 1.5),
    ],
)
def test_the_last_two_axes_may_be_exchanged(tmp_path, target, golden, view):
    """The orientation of square matrices with the smaller error counts."""
    assert error(tmp_path, target, golden) == plain(view, golden)


def test_a_square_weight_is_not_turned(tmp_path):
    pair = paired(stored(tmp_path, SQUARE.T.copy()), stored(tmp_path, SQUARE), "fc.weight", reads_recorded=False)
    assert VIEWS.rel_l2(pair) == plain(SQUARE.T, SQUARE)
    assert VIEWS.rel_l2(pair._replace(target_op=pair.target_op._replace(name="fc"))) == 0.0
    flat = paired(stored(tmp_path, X.T.copy()), stored(tmp_path, X), "fc.weight", reads_recorded=False)
    assert VIEWS.rel_l2(flat) == 0.0


@pytest.mark.parametrize(
    "axis, start, golden",
    [(0, 1, X[1:3]), (1, 2, X[:, 2:5]), (1, 0, X[:, :1]), (0, 3, X[3:])],
)
def test_a_slice_of_the_target_is_compared(tmp_path, axis, start, golden):
    part = AxisSlice(axis, start)
    assert error(tmp_path, X, golden, part) == 0.0
    assert error(tmp_path, np.asfortranarray(X), golden, part) == 0.0
    assert error(tmp_path, X.astype(np.float32), golden.astype(np.float32) * 2, part) == pytest.approx(0.5)


def test_what_is_no_view_has_no_error(tmp_path):
    assert error(tmp_path, X, X[:3]) is None and error(tmp_path, X.reshape(6, 4), X.reshape(2, 12)) is None
    assert error(tmp_path, X[0], X[0, :3]) is None
    one = paired(stored(tmp_path, X.T.copy()), stored(tmp_path, X))
    for side in ("target", "golden"):
        tensor = getattr(one, side)
        for other in (None, tensor._replace(file=""), tensor._replace(file=f"{tmp_path}/none.npy")):
            assert VIEWS.rel_l2(one._replace(**{side: other})) is None


def test_nan_on_one_side_is_an_infinite_error(tmp_path):
    odd = X.copy()
    odd[1, 2] = math.nan
    assert error(tmp_path, odd.T.copy(), X) == math.inf and error(tmp_path, odd.T.copy(), odd) == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"device": Device("NC1HWC0", (6, 4))},
        {"parts": (Payload("x", "float64", (6, 4), 0),)},
        {"dataset": "x"},
        {"shape": (4, 6)},
    ],
)
def test_values_that_are_not_in_plain_order_are_not_turned(tmp_path, change):
    values = X.T.copy()
    values.tofile(tmp_path / "x")
    payload = Payload(str(tmp_path / "x"), "float64", (6, 4), 0)
    tensor = stored(tmp_path, values)._replace(payload=payload)
    golden = stored(tmp_path, X)
    assert VIEWS.rel_l2(paired(tensor, golden)) == 0.0
    other = tensor._replace(payload=payload._replace(**change), problem="unread" if "parts" in change else "")
    assert VIEWS.rel_l2(paired(other, golden)) is None or "shape" in change


def summed(folder, own, whole):
    return VIEWS.sum_error(stored(folder, own), stored(folder, whole))


WHOLE = CHANCE.standard_normal((3, 4, 6))


@pytest.mark.parametrize(
    "shape, axes",
    [((6,), (0, 1)), ((4, 1), (0, 2)), ((1, 4, 6), (0,)), ((3, 1, 1), (1, 2)), ((), (0, 1, 2)), ((3, 4, 1), (2,))],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_gradient_of_a_broadcast_operand_is_a_sum(tmp_path, shape, axes, sign):
    total = WHOLE.sum(axis=axes).reshape(shape)
    off = np.zeros(shape)
    off.reshape(-1)[0] = 0.25
    assert summed(tmp_path, sign * total, WHOLE) == pytest.approx(0.0, abs=1e-15)
    assert summed(tmp_path, np.array(sign * total + off), WHOLE) == pytest.approx(0.25 / np.linalg.norm(WHOLE))


@pytest.mark.parametrize(
    "own, whole",
    [
        (np.ones(5), WHOLE),
        (np.ones((2, 6)), WHOLE),
        (np.ones((3, 4, 6)), WHOLE),
        (np.ones((1, 3, 4, 6)), WHOLE),
        (np.ones(6, np.complex64), WHOLE),
        (np.ones(6), WHOLE.astype(np.complex64)),
        (np.zeros(6), np.zeros((3, 4, 6))),
    ],
)
def test_tensors_that_are_no_sum_have_no_error(tmp_path, own, whole):
    assert summed(tmp_path, own, whole) is None


def test_a_tensor_is_summed_up_to_a_number_of_elements(tmp_path, monkeypatch):
    sides = stored(tmp_path, WHOLE.sum(axis=(0, 1))), stored(tmp_path, WHOLE)
    monkeypatch.setattr(views, "MOST", WHOLE.size)
    assert VIEWS.sum_error(*sides) is not None
    monkeypatch.setattr(views, "MOST", WHOLE.size - 1)
    assert VIEWS.sum_error(*sides) is None
    monkeypatch.undo()
    assert VIEWS.sum_error(sides[0], sides[1]._replace(file=f"{tmp_path}/none.npy")) is None
