"""Gradients of softmax and of norms: means are subtracted from what arrives, so that little may be left of it."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp

random = np.random.default_rng(31)


@pytest.mark.parametrize("factor, status", [(1.0, 0), (1.5, 1)])
def test_a_larger_tensor_before_it_is_not_what_a_softmax_gradient_sums(factor, status, tmp_path):
    """Outputs alone, in float16: what was written just before is presumed to be read."""
    large, left = random.standard_normal((480, 24)), 0.01 * random.standard_normal((16, 24))
    for side, scale in (("t", factor), ("g", 1.0)):
        (tmp_path / side).mkdir()
        for place, (name, values) in enumerate([("MatMulV2Grad", large), ("SoftmaxGrad", scale * left)]):
            file = f"gradients_attn_{name}.0.{1_767_225_600_000_000 + 100 * place}.npy"
            np.save(tmp_path / side / file, values.astype(np.float16))
    assert npucmp.compare(tmp_path / "t", tmp_path / "g", jobs=1).exit_status == status
