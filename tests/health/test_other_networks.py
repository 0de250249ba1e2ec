"""What sound networks of other kinds hold, and what would look like a fault by a hasty rule."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp import check
from tests.health.craft import Writer

RANDOM = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(0, 1, shape).astype("float32")


@pytest.mark.parametrize(("weight", "bias", "expected"), [(0, 0, "hint"), (1, 0, "warning"), (0, 1, None)])
def test_a_norm_that_starts_at_zero(weight, bias, expected, tmp_path):
    """The last norm of a residual branch may, with its bias. A norm of ones that writes zeros has read odd things."""
    writer = Writer(tmp_path / "step0" / "rank0", values=True)
    x = normal(6, 8)
    gamma, beta = (np.full(8, value, "float32") for value in (weight, bias))
    written = np.zeros((6, 8), "float32") + beta
    writer.record("Functional.linear.0.forward", [x, writer.wanted(normal(8, 8))], [normal(6, 8)])
    read = [writer.wanted(one) for one in (normal(6, 8), gamma, beta)]
    writer.record("Functional.layer_norm.0.forward", [read[0], [8], *read[1:], 1e-5], [written])
    writer.write("L1")
    result = check(tmp_path, jobs=1, only=("tensor.zero",))
    assert [one.severity for one in result.symptoms] == ([expected] if expected else [])
