"""Values that a measurement reads: headers against the dump, kinds that can be compared, records beside values."""

from __future__ import annotations

import pytest

from npucmp.measure import pairs
from npucmp.measure.pairs import (
    allclose_bars,
)


@pytest.mark.parametrize(
    "types, given, expected",
    [
        (("float32", "bfloat16"), (None, None), (1.6e-2, 1e-5)),
        (("float16", "float32"), (None, None), (1e-3, 1e-5)),
        (("int8", "int64"), (None, None), (0.0, 0.0)),
        (("odd", "float32"), (None, None), (0.0, 0.0)),
        (("float32", "odd"), (None, None), (0.0, 0.0)),
        (("float32", "float32"), (0.5, None), (0.5, 0.0)),
        (("float32", "float32"), (None, 0.5), (0.0, 0.5)),
        (("float32", "float32"), (0.0, 0.0), (0.0, 0.0)),
    ],
)
def test_the_bars_of_the_user_replace_those_of_the_narrower_type(types, given, expected):
    assert allclose_bars(*types, pairs.Closeness(*given)) == expected
