"""The shapes that two operators have in common."""

import pytest

from npucmp.align.shape_match import output_shapes, same_but_for_rows, same_shapes
from npucmp.model import Operator, Payload, TensorRef


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
