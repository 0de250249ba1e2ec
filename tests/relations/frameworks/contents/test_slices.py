"""Parts: a content that is a slice of the last axis of a content of the other run."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.relations.frameworks.contents.slices import ContentSlice, find_slices
from tests.relations.frameworks.contents.memory import NOISE, drawn, pairs_in_memory

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
