"""Scales of codes, and samples of rows."""

import pytest

from npucmp.errors import UnsupportedError
from npucmp.model import Payload, TensorRef
from npucmp.relations.weights.parts import scaled_matrix


@pytest.mark.parametrize(
    "codes, shape, more, words",
    [
        ((4, 6), (2, 2, 2), {}, "a scale of shape"),
        ((4,), (4,), {}, "codes of shape"),
        ((4, 6), (3, 6), {}, "scales of 4 places"),
        ((4, 6), (4,), {"problem": "cut"}, "cannot be read: cut"),
        ((4, 6), None, {}, "without values"),
        ((4, 6), (4,), {"strides": (2,)}, "strided"),
    ],
)
def test_scales_of_other_shapes_are_refused(tmp_path, codes, shape, more, words):
    strides = more.pop("strides", ())
    payload = None if shape is None else Payload("scale", "float32", shape, 0, strides)
    ref = TensorRef("scale", "float32", shape or (), payload=payload, **more)
    with pytest.raises(UnsupportedError, match=words):
        scaled_matrix(Payload("codes", "int8", codes, 0), ref, None)
