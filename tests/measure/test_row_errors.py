"""The errors of rows and of columns, against sums over Python's own numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.measure.pairs import payload_of
from npucmp.measure.row_errors import column_errors, row_errors
from npucmp.model import Pair, TensorRef

INF, NAN = math.inf, math.nan


def pair(folder, target, golden):
    """A pair of .npy files; None is a side without a tensor."""
    refs = []
    for name, values in (("target", target), ("golden", golden)):
        if values is not None:
            np.save(folder / f"{name}.npy", values)
            one = TensorRef("output:0", str(values.dtype), values.shape, str(folder / f"{name}.npy"), "npy")
            refs.append(one._replace(payload=payload_of(one)))
        else:
            refs.append(None)
    return Pair(0, "output:0", None, None, *refs)


def size(row):
    return math.sqrt(math.fsum(abs(one) ** 2 for one in row))


@pytest.mark.parametrize("kinds", [("f4", "f4"), ("f2", "f8"), ("c8", "c8"), ("c8", "f4"), ("f4", "c16")])
def test_rows_and_columns_are_those_of_a_loop(tmp_path, kinds):
    """The imaginary part counts on either side."""
    random = np.random.default_rng(4)
    target, golden = (random.standard_normal((5, 2, 3)).astype(kind) for kind in kinds)
    for side in (target, golden):
        side[2] = 1.5
        if side.dtype.kind == "c":
            side[3:] += 1j * random.standard_normal((2, 2, 3)).astype(side.real.dtype)
    own = pair(tmp_path, target, golden)
    x, y = ([[complex(one) for one in row] for row in side.reshape(5, 6)] for side in (target, golden))
    away = [[abs(a - b) for a, b in zip(*rows)] for rows in zip(x, y)]
    found, marked = row_errors(own, ANYWHERE), np.array([True, False, False, True, True])
    assert found.error == pytest.approx([*map(size, away)]) and found.norm == pytest.approx([*map(size, y)])
    assert found.relative == pytest.approx([size(a) / size(b) for a, b in zip(away, y)])
    assert found.equal.tolist() == [a == b for a, b in zip(x, y)]
    norm = math.sqrt(math.fsum(size(y[at]) ** 2 for at in (0, 3, 4)) / 6)
    columns = [size([away[at][column] for at in (0, 3, 4)]) / norm for column in range(6)]
    assert column_errors(own, marked, ANYWHERE) == pytest.approx(columns)


ROWS = [  # target, golden, norm of the difference, relative error, equal bits
    ([NAN, 1.0], [NAN, 1.0], 0.0, 0.0, True),
    ([NAN, 1.0], [2.0, 1.0], NAN, INF, False),
    ([2.0, 1.0], [NAN, 1.0], NAN, INF, False),
    ([INF, 1.0], [INF, 1.0], 0.0, 0.0, True),
    ([INF, 1.0], [-INF, 1.0], INF, INF, False),
    ([0.0, 3.0], [0.0, 0.0], 3.0, INF, False),
    ([0.0, -0.0], [0.0, 0.0], 0.0, 0.0, False),
    ([3.0, 4.0], [3.0, 3.0], 1.0, 1 / math.sqrt(18), False),
]


@pytest.mark.parametrize(("target", "golden", "error", "relative", "equal"), ROWS)
def test_rows_of_other_numbers(tmp_path, target, golden, error, relative, equal):
    """NaN or Inf on one side is an infinite error, on both sides none. Zeros of two signs have other bits."""
    found = row_errors(pair(tmp_path, np.array([target]), np.array([golden])), ANYWHERE)
    assert found.error.tolist() == [pytest.approx(error, nan_ok=True)]
    assert found.relative.tolist() == [pytest.approx(relative)] and found.equal.tolist() == [equal]


@pytest.mark.parametrize(
    ("kinds", "error"), [(("i8", "i8"), 1.0), (("u8", "i8"), 1.0), (("i8", "f8"), 0.0), (("f8", "u8"), 0.0)]
)
def test_integers_that_differ_have_an_error_beyond_the_resolution_of_float64(tmp_path, kinds, error):
    """A float on one side has no such numbers: the integer is rounded to it."""
    target, golden = np.array([[2**60 + 1, 7]], kinds[0]), np.array([[2**60, 7]], kinds[1])
    found = row_errors(pair(tmp_path, target, golden), ANYWHERE)
    assert found.error.tolist() == [error]


@pytest.mark.parametrize("kinds", [("i4", "f4"), ("f4", "i4")])
def test_an_integer_may_differ_from_a_float_by_less_than_one(tmp_path, kinds):
    numbers = {"i4": 7, "f4": 7.25}
    own = pair(tmp_path, *(np.array([[numbers[kind]]], kind) for kind in kinds))
    assert row_errors(own, ANYWHERE).error.tolist() == [0.25]
    assert column_errors(own, np.array([True]), ANYWHERE).tolist() == [0.25 / numbers[kinds[1]]]


def test_rows_without_numbers_have_no_columns(tmp_path):
    """No marked row, or marked rows of zeros: an error relative to them is unknown."""
    own = pair(tmp_path, np.ones((2, 3)), np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 2.0]]))
    assert column_errors(own, np.array([True, False]), ANYWHERE) is None
    assert column_errors(own, np.array([False, False]), ANYWHERE) is None
    both = column_errors(own, np.array([True, True]), ANYWHERE)
    assert both == pytest.approx(np.sqrt([1.0, 2.0, 2.0]) / math.sqrt(3.0))


@pytest.mark.parametrize(
    ("target", "golden"),
    [
        (None, np.ones((2, 3))),
        (np.ones((2, 3)), None),
        (np.ones((2, 3)), np.ones((2, 4))),
        (np.ones((2, 3)), np.ones((3, 2))),
        (np.ones(()), np.ones(())),
        (np.ones((0, 3)), np.ones((0, 3))),
        (np.ones((3, 0)), np.ones((3, 0))),
    ],
)
def test_sides_without_rows_of_one_shape_have_no_errors(tmp_path, target, golden):
    own = pair(tmp_path, target, golden)
    assert row_errors(own, ANYWHERE) is None and column_errors(own, np.array([True] * 3), ANYWHERE) is None


def test_rows_may_have_other_inner_shapes(tmp_path):
    found = row_errors(pair(tmp_path, np.ones((2, 3, 2)), np.ones((2, 6))), ANYWHERE)
    assert found.error.tolist() == [0.0, 0.0] and found.norm == pytest.approx([math.sqrt(6)] * 2)
