"""Parts: a content that is a slice of the last axis of a content of the other run."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.contents.slices import ContentSlice, find_slices
from tests.align.contents.memory import NOISE, drawn, pairs_in_memory, recorded

X, W = drawn(0, 5, 8), drawn(1, 8, 12)
WHOLE = drawn(2, 5, 12)
FUSED = [("matmul", [X, W], [WHOLE])]  # contents 0, 1 and 2


def piece(start, stop, values=WHOLE):
    return np.ascontiguousarray(values[..., start:stop])


def apart(*parts, x=X):
    """A run that computes parts one by one. The input is content 0, weights are odd and parts even numbers."""
    return [("matmul", [x, drawn(30 + at, 8, 4)], [part]) for at, part in enumerate(parts)]


def slices(whole, parts, known=(0,), of_golden=False, noise=NOISE):
    both = (parts, whole) if of_golden else (whole, parts)
    known = [one[::-1] if isinstance(one, tuple) and of_golden else one for one in known]
    pairs = pairs_in_memory(*both, known, noise)
    return [one for one in find_slices(pairs) if one.of_golden == of_golden]


@pytest.mark.parametrize("of_golden", [False, True])
def test_parts_are_found_with_their_columns(of_golden):
    found = slices(FUSED, apart(piece(0, 4), piece(7, 12)), of_golden=of_golden)
    assert found == [ContentSlice(2, 2, 0, 4, of_golden), ContentSlice(2, 4, 7, 5, of_golden)]
    assert [one.words for one in found] == ["slice(last axis, 0-3)", "slice(last axis, 7-11)"]


@pytest.mark.parametrize("of_golden", [False, True])
@pytest.mark.parametrize(
    "parts, known",
    [
        ((piece(0, 3),), [0]),  # too narrow
        ((WHOLE,), [0]),  # the whole
        ((drawn(9, 5, 4),), [0]),  # other values
        ((piece(0, 4)[:4],), [0]),  # of other rows
        ((piece(0, 4).reshape(20),), [0]),  # without columns
        ((piece(0, 4),), [0, (3, 2)]),  # it has a partner
        ((piece(0, 4),), [0, (2, 4)]),  # the whole has one
        ((piece(0, 4),), []),  # computed from nothing in common
    ],
)
def test_other_contents_are_no_parts(parts, known, of_golden):
    whole = [*FUSED, ("relu", [drawn(8, 7)], [drawn(7, 8)])]
    assert slices(whole, [*apart(*parts), ("relu", [drawn(6, 7)], [drawn(5, 9)])], known, of_golden) == []


@pytest.mark.parametrize("of_golden", [False, True])
def test_the_common_ancestor_is_the_same_on_both_sides(of_golden):
    """Each run reads two inputs, of which the first ones are partners."""
    other = drawn(3, 5, 8)
    whole, parts = [("relu", [other], []), *FUSED], [("relu", [other], []), *apart(piece(0, 4))]
    assert slices(whole, parts, [0], of_golden) == []
    assert slices(whole, parts, [1], of_golden) == [ContentSlice(3, 3, 0, 4, of_golden)]
    assert slices(whole, parts, [(0, 1), (1, 0)], of_golden) == []


@pytest.mark.parametrize("of_golden", [False, True])
def test_weights_are_no_parts(of_golden):
    assert slices([("relu", [WHOLE], [])], apart(piece(0, 4)), [(0, 0)], of_golden) == []
    assert slices(FUSED, [("relu", [X], []), ("relu", [piece(0, 4)], [])], [0], of_golden) == []


@pytest.mark.parametrize("of_golden", [False, True])
def test_both_are_computed_from_weights_or_from_what_is(of_golden):
    """A relu of an activation has no weight, a sum behind a product has one."""
    h = drawn(3, 5, 8)
    start = [("relu", [X], [h])]
    plain_whole, plain_part = [*start, ("exp", [h], [WHOLE])], [*start, ("exp", [h], [piece(0, 4)])]
    far_whole = [*start, ("sin", [h], [drawn(4, 5, 8)]), ("exp", [drawn(4, 5, 8)], [WHOLE])]
    far_part = [*start, ("sin", [h], [drawn(5, 5, 8)]), ("exp", [drawn(5, 5, 8)], [piece(0, 4)])]
    assert slices(plain_whole, plain_part, [0, 1], of_golden) == [ContentSlice(2, 2, 0, 4, of_golden)]
    assert slices(far_whole, far_part, [0, 1], of_golden) == []
    assert slices(far_whole, plain_part, [0, 1], of_golden) == []
    assert slices(plain_whole, far_part, [0, 1], of_golden) == []


@pytest.mark.parametrize("of_golden", [False, True])
@pytest.mark.parametrize("factor, found", [(1 + 1.4e-3, True), (1 + 1.6e-3, False)])
def test_a_part_agrees_within_half_more_than_the_noise(factor, found, of_golden):
    whole = WHOLE.astype(np.float64)
    fused = [("matmul", [X, W], [whole])]
    assert bool(slices(fused, apart(piece(2, 6, whole * factor) / 1), of_golden=of_golden)) is found


def test_the_limit_is_relative_to_the_part():
    part = np.arange(20.0).reshape(5, 4) + 1
    fused = [("matmul", [X, W], [np.hstack([2 * part, np.full((5, 8), 99.0)])])]  # as far away as the part is large
    assert slices(fused, apart(part), noise=2 / 3) == []
    assert [one.start for one in slices(fused, apart(part), noise=0.667)] == [0]


@pytest.mark.parametrize("of_golden", [False, True])
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_vector_is_no_row(of_golden, is_whole):
    row = drawn(3, 1, 12)
    whole = row.reshape(12) if is_whole else row
    part = row[:, :8] if is_whole else row[0, :8]
    assert slices([("matmul", [X, W], [whole])], apart(part), of_golden=of_golden) == []
    assert slices([("matmul", [X, W], [row])], apart(row[:, :8]), of_golden=of_golden)


def test_a_slice_begins_where_rows_agree_best():
    whole = np.hstack([WHOLE[:, :4] * np.float32(1.001), WHOLE[:, :4]])
    fused = [("matmul", [X, W], [whole])]
    assert [one.start for one in slices(fused, apart(piece(0, 4)))] == [4]


def test_the_first_rows_decide_for_tensors_of_several_axes():
    rows = drawn(4, 3, 4, 12)
    other = rows.copy()
    other[2] += 1  # beyond the first 16 rows
    more, fused = drawn(5, 3, 4, 8), drawn(6, 4, 8, 12)
    rows, other = np.concatenate([rows, rows]), np.concatenate([rows, other])
    found = slices([("matmul", [more, fused], [rows])], [("matmul", [more, drawn(7, 8, 4)], [piece(4, 8, other)])])
    assert found == [ContentSlice(2, 2, 4, 4, False)]


def test_rows_of_zeros_show_no_slice():
    more, whole = drawn(4, 20, 8), drawn(5, 20, 12)
    whole[:16] = 0
    fused = [("matmul", [more, W], [whole])]
    assert slices(fused, [("matmul", [more, drawn(7, 8, 4)], [piece(2, 6, whole)])]) == []


@pytest.mark.parametrize("of_golden", [False, True])
def test_recorded_statistics_have_no_parts(of_golden):
    assert slices([("matmul", [X, W], [recorded(WHOLE)])], apart(piece(0, 4)), of_golden=of_golden) == []
    assert slices(FUSED, apart(recorded(piece(0, 4))), of_golden=of_golden) == []


def test_two_parts_may_hold_the_same_columns():
    h = drawn(3, 5, 4)
    parts = [*apart(piece(0, 4)), ("relu", [piece(0, 4)], [h]), ("matmul", [h, drawn(9, 4, 6)], [piece(0, 6)])]
    assert [(one.part, one.width) for one in slices(FUSED, parts)] == [(2, 4), (5, 6)]
