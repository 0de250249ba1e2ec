"""What is left out as "minus infinity", and what never is: numbers that merely lie near it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import npucmp
from npucmp.measure.pairs import measure
from npucmp.model import Operator, Pair, TensorRef
from npucmp.model.dtypes import numpy_dtype
from tests.synthetic import write_run

OPERATOR = Operator("add.0", "add", "add", "forward", 0, ())
LARGEST = {"float32": 3.4028234663852886e38, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}
random = np.random.default_rng(5)


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


def around(value, spread, shape=(10, 100)):
    return (value + spread * random.standard_normal(shape)).astype(np.float32)


HALF = random.uniform(-63000, -33000, (64, 64)).astype(np.float16)
FALSE_AGREEMENTS = {
    "values around -1e4": (around(-1e4, 20), around(-1e4, 20)),
    "values around -1e5": (around(-1e5, 300), around(-1e5, 300)),
    "values around -1e9": (around(-1e9, 3e6), around(-1e9, 3e6)),
    "values around -1e4, some of them the same": (FIRST := around(-1e4, 20), np.where(FIRST > -1e4, FIRST, FIRST - 9)),
    "a loss": (np.float32(-9930), np.float32(-10070)),
    "a loss of one element": (np.float32([-1e4]), np.float32([-10070])),
    "masks of one type": (np.float32([-1e4, -1e4, 1, 2]), np.float32([-1e9, -1e9, 1, 2])),
    "the lower half of float16": (HALF, (HALF * 0.7 - 15000).astype(np.float16)),
    "the lower half of float32": (around(-3e38, 1e37), around(-3e38, 1e37)),
    "the lower half of float64": (np.full(9, -1.7e308), np.full(9, -1.6e308)),
}


@pytest.mark.parametrize("x, y", FALSE_AGREEMENTS.values(), ids=FALSE_AGREEMENTS)
@pytest.mark.parametrize("bars", [{}, {"rtol": 0.0, "atol": 0.0}], ids=["by default", "by rtol 0"])
def test_different_values_are_no_masks_and_no_match(tmp_path, x, y, bars):
    x, y = np.asarray(x), np.asarray(y)
    target = write_run(tmp_path / "t", {"Torch.add.0.forward": {"in": [1.0], "out": [x]}})
    golden = write_run(tmp_path / "g", {"Torch.add.0.forward": {"in": [1.0], "out": [y]}})
    report = npucmp.compare(target, golden, **bars)
    assert report.exit_status == 1
    assert {finding.verdict.value for finding in report.findings} == {"diverged"}


@pytest.mark.parametrize(
    "x, masked",
    [
        ([-1e9, -1e9, 1.0], 2),
        ([-1e9, 1.0, 2.0], 0),  # once
        ([-1e9, -1e9, -1e9], 0),  # nothing beside them
        ([-1e9, -1e9, math.nan], 0),
        ([-1e9], 0),
        ([-1e9, -1e4, 1.0], 2),  # two of a tensor, whatever they are
        ([-9999.0, -9999.0, 1.0], 0),
    ],
)
def test_masks_stand_more_than_once_and_beside_values(tmp_path, x, masked):
    found = measured(tmp_path, x, x)
    finite = [value for value in x if math.isfinite(value)]
    assert (found.masked, found.compared, found.equal) == (masked, len(finite) - masked, len(x))
    kept = [value for value in finite if not masked or value > -1e4]
    assert found.yy == pytest.approx(sum(value * value for value in kept))


def test_masks_of_a_tensor_are_counted_over_all_its_blocks(tmp_path):
    """One at either end of a tensor that is read in blocks: two of the tensor, one of each block."""
    x = np.ones(200_000, np.float32)
    x[0] = x[-1] = -1e9
    assert measured(tmp_path, x, x).masked == 2
    x[-1] = 1.0
    found = measured(tmp_path, x, x)
    assert (found.masked, found.compared, found.yy) == (0, 200_000, 1e18 + 199_999)
    assert measured(tmp_path, np.full(200_000, -1e9), np.full(200_000, -1e9)).masked == 0


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


@settings(max_examples=80, deadline=None)
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
