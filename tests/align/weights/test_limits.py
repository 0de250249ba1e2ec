"""The difference of single elements that the types of two parameters allow, written out from the formats."""

import pytest

from npucmp.align.weights.limits import limit_of
from npucmp.align.weights.part import Part
from npucmp.align.weights.role import Role

COPY, BFLOAT16, FLOAT16, FLOAT8 = 2e-7, 2.0**-8, 2.0**-11, 2.0**-4
TINY = 2.0**-25


def part(dtype, scale=""):
    return Part(Role(0, "q", "weight"), None, "q", "", dtype, scale_dtype=scale)


@pytest.mark.parametrize(
    "one, other, limit",
    [
        (part("float32"), part("float32"), (COPY, 0.0, 0.0)),
        (part("float64"), part("float32"), (COPY, 0.0, 0.0)),
        (part("bfloat16"), part("float32"), (BFLOAT16, 0.0, 0.0)),
        (part("float16"), part("float32"), (FLOAT16, TINY, 0.0)),
        (part("float16"), part("bfloat16"), (BFLOAT16, TINY, 0.0)),
        (part("int64"), part("int64"), (0.0, 0.0, 0.0)),
        (part("float8_e4m3fn"), part("float32"), (FLOAT8, 0.0, 0.0)),  # without a scale
        (part("float8_e4m3fn", "float32"), part("float32"), (1.05 * FLOAT8, 0.0, 2.0**-10)),
        (part("float8_e4m3fn", "float32"), part("bfloat16"), (1.05 * FLOAT8, 0.0, 2.0**-10)),
        (part("float8_e4m3fn", "float32"), part("float16"), (1.05 * FLOAT8, TINY, 2.0**-10)),
        (part("float8_e5m2", "float32"), part("float32"), (1.05 * 2.0**-3, 0.0, 2.0**-10)),
        (part("int8", "float32"), part("float32"), (0.0, 0.0, 0.51 + 127 * 2.0**-24)),
        (part("int8", "bfloat16"), part("float32"), (0.0, 0.0, 0.51 + 127 * 2.0**-8)),
        (part("int8", "float32"), part("bfloat16"), (BFLOAT16, 0.0, 0.51 + 127 * 2.0**-24)),
        (part("int8", "float32"), part("int8", "float32"), (COPY, 0.0, 0.0)),
        (part("float8_e4m3fn", "float32"), part("float8_e4m3fn", "float32"), (COPY, 0.0, 0.0)),
    ],
)
def test_limits_of_two_types(one, other, limit):
    for found in (limit_of(one, other), limit_of(other, one)):
        assert found == pytest.approx(limit, rel=1e-12, abs=0.0)
        assert found.is_quantised is (limit[2] > 0.0)
