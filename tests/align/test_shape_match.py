"""The shapes that two operators have in common."""

import pytest

from npucmp.align.shape_match import (
    shape_pair,
)
from npucmp.model import Operator, Pair, Payload, TensorRef


def operator(*tensors):
    refs = (TensorRef(slot, "float32", shape, **more) for slot, shape, more in tensors)
    return Operator("op.0", "op", "op", "forward", 0, tuple(refs))


SHAPE = (2, 5, 3, 4)


def raw(count, layout=""):
    """Raw bytes, of which no file gives a shape."""
    payload = Payload("raw", "float16", (count,), 0, unshaped=True)
    return TensorRef("output:0", "float16", (count,), "raw", "npy", layout=layout, payload=payload)


def shaped(shape=SHAPE, slot="output:0", **more):
    payload = Payload("file", "float16", shape, 0)
    return TensorRef(slot, "float16", shape, "file", "npy", payload=payload, **more)


@pytest.mark.parametrize(
    "one, other, stored, problem",
    [
        (raw(120), shaped(), SHAPE, ""),
        (raw(121), shaped(), None, ""),  # the numbers of elements are reported
        (raw(384, "NC1HWC0"), shaped(), (2, 1, 3, 4, 16), ""),
        (raw(385, "NC1HWC0"), shaped(), None, "385 elements in NC1HWC0"),
        (raw(384, "NC1HWC0"), shaped(layout="NCHW"), None, "384 elements in NC1HWC0"),
        (raw(1024, "FRACTAL_NZ"), shaped((20, 20)), (2, 2, 16, 16), ""),
        (raw(120, "unknown"), shaped(), None, "120 elements in unknown"),
        (raw(120), shaped(slot=""), None, ""),
        (raw(120), shaped(problem="cannot be read"), None, ""),
    ],
)
def test_raw_bytes_have_the_shape_of_their_partner(one, other, stored, problem):
    op = operator()
    found = shape_pair(Pair(0, "output:0", op, op, one, other))
    turned = shape_pair(Pair(0, "output:0", op, op, other, one))
    assert (turned.golden, turned.target) == (found.target, found.golden) and found.golden == other
    assert found.target.problem.startswith(problem) and bool(found.target.problem) is bool(problem)
    if stored is None:
        assert found.target.is_unshaped and found.target.shape == one.shape
    else:
        assert found.target.stored_shape == stored and found.target.shape == other.shape
        assert found.target.payload.shape == other.shape and found.target.payload.device == found.target.device


@pytest.mark.parametrize("one, other", [("", ""), ("NC1HWC0", "NC1HWC0"), ("", "NC1HWC0"), ("NC1HWC0", "")])
def test_raw_bytes_of_both_sides_need_one_layout(one, other):
    op = operator()
    pair = Pair(0, "output:0", op, op, raw(24, one), raw(24, other))
    found = shape_pair(pair)
    assert (found == pair) is (one == other)
    assert one == other or f"in {one or 'plain order'}, the other in {other or 'plain order'}" in found.target.problem
