"""Gradients of softmax and of norms: means are subtracted from what arrives, so that little may be left of it."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from tests.synthetic import write_run

random = np.random.default_rng(31)
X = random.standard_normal((16, 24)).astype(np.float32)
W = (1 + 0.1 * random.standard_normal(24)).astype(np.float32)
NEAR = (1 + 0.01 * random.standard_normal(X.shape)).astype(np.float32)  # a gradient that is nearly the same everywhere


def softmax(x, g, w):
    y = np.exp(x - x.max(-1, keepdims=True))
    y /= y.sum(-1, keepdims=True)
    return y, y * (g - (g * y).sum(-1, keepdims=True))


def layer_norm(x, g, w):
    deviation = x.std(-1, keepdims=True)
    y, h = (x - x.mean(-1, keepdims=True)) / deviation, g * w
    return y * w, (h - h.mean(-1, keepdims=True) - y * (h * y).mean(-1, keepdims=True)) / deviation


KINDS = {"softmax": (softmax, [X]), "layer_norm": (layer_norm, [X, W])}


def dump(folder, kind, g, factor=1.0):
    """Forward and backward, computed in float64 from inputs in float32."""
    formula, inputs = KINDS[kind]
    y, dx = formula(X.astype(np.float64), g.astype(np.float64), W.astype(np.float64) if kind == "layer_norm" else None)
    name = f"Functional.{kind}.0"
    return write_run(folder, {
        f"{name}.forward": {"in": inputs, "out": [y.astype(np.float32)]},
        f"{name}.backward": {"in": [g], "out": [(factor * dx).astype(np.float32)]},
    })  # fmt: skip


def arriving(kind):
    """A gradient of which little is left: for a norm the weights are taken out of it."""
    return (NEAR / W).astype(np.float32) if kind == "layer_norm" else NEAR


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_of_what_arrives_is_no_fault(kind, tmp_path):
    g = arriving(kind)
    rounded = np.nextafter(g, np.where(random.random(g.shape) < 0.5, np.float32(9), np.float32(-9)))
    target, golden = dump(tmp_path / "t", kind, rounded), dump(tmp_path / "g", kind, g)
    report = npucmp.compare(target, golden, jobs=1)
    errors = {
        one.pair.slot: one.error for one in report.comparisons[0].findings if "backward" in one.pair.operator.name
    }
    assert errors["input:0"] < 4.8e-7 < errors["output:0"]  # beyond the limit, and not what 8 times its input gives
    assert report.exit_status == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_is_a_fault_all_the_same(kind, tmp_path):
    g = arriving(kind)
    target, golden = dump(tmp_path / "t", kind, g, 1.01), dump(tmp_path / "g", kind, g)
    report = npucmp.compare(target, golden, jobs=1)
    assert report.exit_status == 1
    assert report.roots[0].pair.operator.name == f"Functional.{kind}.0.backward"


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
