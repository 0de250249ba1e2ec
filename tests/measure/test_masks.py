"""What is left out as "minus infinity", and what never is: numbers that merely lie near it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npucmp.measure.pairs import measure
from npucmp.model import Operator, Pair, TensorRef
from npucmp.model.dtypes import numpy_dtype

OPERATOR = Operator("add.0", "add", "add", "forward", 0, ())
LARGEST = {"float32": 3.4028234663852886e38, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}


def measured(folder, x, y, dtypes=("float32", "float32")):
    """Moments of two tensors, bfloat16 kept in float32 files as MindSpore does."""
    refs = []
    for name, values, dtype in zip("xy", (x, y), dtypes):
        stored = np.asarray(values, np.float64).astype(numpy_dtype(dtype))
        stored = stored.astype(np.float32) if dtype == "bfloat16" else stored
        np.save(folder / f"{name}.npy", stored)
        refs.append(TensorRef("output:0", dtype, stored.shape, str(folder / f"{name}.npy"), "npy"))
    found = measure(Pair(0, "output:0", OPERATOR, OPERATOR, *refs))
    assert found.moments is not None, found.problem
    return found.moments


NEAR = st.sampled_from([-1e4, -9984.0, -9992.0, -10048.0, -65504.0, -1e5, -1e9, -32752.0, -33000.0, -3.4e38, 0.0, 1.0])


def rounded(value, dtype):
    """As a type holds it, by numpy alone."""
    with np.errstate(over="ignore"):
        return float(np.float64(value).astype(np.float32).astype(numpy_dtype(dtype)))


def own(dtype):
    """The masks that a type has beside those of another type."""
    return {-LARGEST[dtype], -LARGEST[dtype] / 2, *(rounded(v, dtype) for v in (-1e4, -1e5, -1e9))} - {-math.inf}


def is_mask(a, b, dtypes):
    """The rule, one position at a time: docs/metrics.md."""
    coarse = max(dtypes, key=("float32", "float16", "bfloat16").index)
    sizes = (1e4, 65504.0, 1e5, 1e6, 1e8, 1e9, 1e10, 1e12, 1e15, 1e20, 1e30)
    if a == b:
        return a <= -LARGEST[coarse] / 2 or a in [rounded(-size, coarse) for size in sizes]
    return dtypes[0] != dtypes[1] and a in own(dtypes[0]) and b in own(dtypes[1])


@given(
    st.tuples(st.sampled_from(sorted(LARGEST)), st.sampled_from(sorted(LARGEST))),
    hnp.arrays(np.float64, st.integers(1, 6), elements=NEAR),
    st.data(),
)
def test_norms_are_those_of_what_is_no_mask(tmp_path_factory, dtypes, y, data):
    """Against plain float64: an error at a position that is no mask is never lost, and all positions count for bits."""
    x = data.draw(hnp.arrays(np.float64, len(y), elements=NEAR))
    x = np.where(data.draw(hnp.arrays(bool, len(y))), x, y)
    x, y = ([rounded(v, dtype) for v in values] for values, dtype in zip((x, y), dtypes))
    x, y = zip(*((max(a, -LARGEST[dtypes[0]]), max(b, -LARGEST[dtypes[1]])) for a, b in zip(x, y)))
    found = measured(tmp_path_factory.mktemp("masks"), x, y, dtypes)
    masks = [is_mask(a, b, dtypes) for a, b in zip(x, y)]
    if sum(masks) < 2 or all(masks):
        masks = [False] * len(masks)
    kept = [(a, b) for a, b, mask in zip(x, y, masks) if not mask]
    assert (found.masked, found.compared) == (sum(masks), len(kept))
    assert found.equal == sum(a == b for a, b in zip(x, y))
    assert found.max_abs == max(abs(a - b) for a, b in kept)
    assert found.sum_dd == pytest.approx(sum((a - b) ** 2 for a, b in kept), rel=1e-12)
    assert found.yy == pytest.approx(sum(b * b for _, b in kept), rel=1e-12)
