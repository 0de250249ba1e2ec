"""The axes of tokens of a tensor, against the same values taken by numpy."""

import numpy as np
import pytest

from npucmp.align.token_axes import TokenShape, token_axes, token_shape
from npucmp.model import Operator, Run, TensorRef

BATCH, PACKED = (3, 7), (18,)


@pytest.mark.parametrize(
    "tokens, shape, lane, place, width",
    [
        (TokenShape(BATCH), (3, 7, 16), 0, 1, 16),
        (TokenShape(BATCH), (3, 7), 0, 1, 1),
        (TokenShape(BATCH), (3, 2, 7, 5), 0, 2, 10),  # heads stand between
        (TokenShape(BATCH), (3, 2, 7), None, None, 0),
        (TokenShape(BATCH), (3, 7, 7, 5), None, None, 0),  # as many heads as tokens
        (TokenShape(BATCH), (3, 7, 7), 0, 1, 7),
        (TokenShape(BATCH), (4, 7, 16), None, None, 0),
        (TokenShape(BATCH), (), None, None, 0),
        (TokenShape((7, 3), True), (7, 3, 16), 1, 0, 16),
        (TokenShape((1, 7)), (1, 7, 16), None, 1, 16),
        (TokenShape((7, 1)), (7, 1, 16), None, 0, 16),
        (TokenShape(PACKED), (18, 16), None, 0, 16),
        (TokenShape(PACKED), (18,), None, 0, 1),
        (TokenShape(PACKED), (1, 18, 16), None, 1, 16),
        (TokenShape(PACKED), (4, 18, 16), None, 1, 64),
        (TokenShape(PACKED), (1, 4, 18, 16), None, 2, 64),
        (TokenShape(PACKED), (4, 18), None, None, 0),
        (TokenShape(PACKED), (18, 18, 16), None, None, 0),
        (TokenShape(PACKED), (), None, None, 0),
        (TokenShape(PACKED), (17, 16), None, None, 0),
    ],
)
def test_tokens_of_a_tensor(tokens, shape, lane, place, width):
    found = token_axes(shape, (), tokens)
    assert (found is None) is (place is None)
    if found is not None:
        values = np.arange(np.prod(shape)).reshape(shape)
        first = values[None] if lane is None else np.moveaxis(values, lane, 0)
        at = place + 1 if lane is None else place + (lane > place)
        expected = np.moveaxis(first, at, 1).reshape(*[found.lanes, found.places], -1)
        assert found.width == width == expected.shape[2]
        assert np.array_equal(taken(values.reshape(-1), found), expected)


def taken(flat, axes):
    """The values of each token of each lane, by the strides."""
    rest = np.zeros((), int)
    for size, stride in zip(axes.rest, axes.rest_strides):
        rest = rest[..., None] + stride * np.arange(size)
    lanes, places = axes.lane_stride * np.arange(axes.lanes), axes.place_stride * np.arange(axes.places)
    return flat[lanes[:, None, None] + places[None, :, None] + rest.reshape(-1)]


def test_packed_rows_of_a_run_with_a_batch():
    found = token_axes((21, 16), (), TokenShape(BATCH))
    values = np.arange(21 * 16)
    assert np.array_equal(taken(values, found), values.reshape(3, 7, 16))
    assert token_axes((1, 21, 16), (), TokenShape(BATCH)) == found
    assert token_axes((2, 21, 16), (), TokenShape(BATCH)) is None
    assert token_axes((20, 16), (), TokenShape(BATCH)) is None


@pytest.mark.parametrize(
    "tensors, found",
    [
        ([("input:0", (3, 7, 16)), ("output:0", (3, 7, 16)), ("output:0", (3, 5))], TokenShape(BATCH)),
        ([("input:0", (18, 16)), ("output:0", (18, 16)), ("input:0", (3, 7, 16))], TokenShape(PACKED)),
        ([("input:0", (18, 16)), ("input:0", (3, 7, 16))], TokenShape(BATCH)),  # of as many, the longer one
        ([("param:weight", (16, 16)), ("input:0", (18, 16))], TokenShape(PACKED)),
        ([("input:0", (0, 16)), ("input:0", (18,)), ("input:0", (2, 3, 4, 5))], None),
        ([], None),
    ],
)
def test_the_shape_of_tokens_is_that_of_most_activations(tensors, found):
    operators = [
        Operator(f"f.{at}", "f", "f", "forward", at, (TensorRef(slot, "float32", shape),))
        for at, (slot, shape) in enumerate(tensors)
    ]
    whole = Operator("ids", "ids", "ids", "forward", 9, (TensorRef("input:0", "int64", (5, 16)),) * 4)
    assert token_shape(Run("dump", "msprobe", (*operators, whole))) == found
