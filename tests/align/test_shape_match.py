"""The shapes that two operators have in common."""

import pytest

from npucmp.align.shape_match import (
    alike,
    merge_leading_axes,
    output_shapes,
    same_but_for_rows,
    same_shapes,
    shape_pair,
)
from npucmp.model import Operator, Pair, Payload, TensorRef


def operator(*tensors):
    refs = (TensorRef(slot, "float32", shape, **more) for slot, shape, more in tensors)
    return Operator("op.0", "op", "op", "forward", 0, tuple(refs))


OUT, READ = ("output:0", (1, 4, 8), {}), ("input:0", (4, 1), {})
UNKNOWN = {"payload": Payload("file", "float32", (4,), 0, unshaped=True)}  # raw bytes


@pytest.mark.parametrize(
    "tensors, shapes",
    [
        ([OUT], ((4, 8),)),
        ([READ, OUT], ((4, 8),)),
        ([READ], ((4,),)),
        ([READ, ("output:0", (4, 8), {"layout": "ND"})], ((4, 8),)),
        ([OUT, ("output:1", (4, 8), {"layout": "FRACTAL_NZ"})], ()),
        ([OUT, ("", (4, 8), {})], ()),
        ([("", (4, 8), {})], ()),
        ([OUT, ("output:1", (4,), UNKNOWN)], ()),
        ([], ()),
    ],
)
def test_output_shapes_are_known_or_empty(tensors, shapes):
    assert output_shapes(operator(*tensors)) == shapes


@pytest.mark.parametrize(
    "target, golden, same, rows",
    [
        ([OUT], [OUT], True, True),
        ([OUT], [("output:0", (1, 5, 8), {})], False, True),
        ([OUT], [("output:0", (2, 5, 8), {})], False, False),
        ([OUT], [("output:0", (4, 8), {})], False, False),
        ([OUT, READ], [OUT, ("input:0", (5, 1), {})], False, True),
        ([("output:0", (4,), {})], [("output:0", (5,), {})], False, False),  # one axis may be any
        ([("output:0", (4,), {})], [("output:0", (4,), UNKNOWN)], True, False),
        ([OUT, READ], [OUT, ("input:0", (4,), UNKNOWN)], True, False),
        ([], [], True, False),
        ([READ], [], True, False),
        ([READ], [OUT], False, False),
        ([OUT], [("output:1", (1, 4, 8), {})], True, False),
    ],
)
def test_common_slots_have_one_shape_or_differ_along_one_axis(target, golden, same, rows):
    for one, other in ((target, golden), (golden, target)):
        assert same_shapes(operator(*one), operator(*other)) is same
        assert same_but_for_rows(operator(*one), operator(*other)) is rows


@pytest.mark.parametrize(
    "one, other, same, merged",
    [
        ((2, 3, 4), (2, 3, 4), True, (6, 4)),
        ((2, 1, 3, 4), (2, 3, 4, 1), True, (6, 4)),
        ((6, 4), (2, 3, 4), True, (6, 4)),
        ((2, 12), (2, 3, 4), False, (2, 12)),
        ((5, 4), (2, 3, 4), False, (5, 4)),
        ((2, 3, 4, 5), (6, 4, 5), True, (2, 3, 4, 5)),
    ],
)
def test_batch_and_sequence_may_be_one_axis(one, other, same, merged):
    assert alike(one, other) is alike(other, one) is same
    assert merge_leading_axes(one) == merged


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


@pytest.mark.parametrize(
    "one, other",
    [
        (shaped((120,)), shaped()),  # as many elements, but the file gives the shape
        (shaped(), shaped()),
        (None, raw(120)),
        (raw(120), None),
        (None, shaped()),
    ],
)
def test_pairs_without_raw_bytes_or_without_a_partner_keep_their_shapes(one, other):
    op = operator()
    pair = Pair(0, "output:0", op, op, one, other)
    assert shape_pair(pair) == pair and shape_pair(pair._replace(target=other, golden=one)).golden == one
