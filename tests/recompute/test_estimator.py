"""compare --recompute: what float64 of recorded inputs decides in the search, by numpy alone."""

import numpy as np
import pytest

from npucmp import compare
from npucmp.model import Cause
from npucmp.recompute.estimator import SAMPLE
from tests.recompute import kernels
from tests.recompute.craft import pair

F32 = np.float32


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


X = normal(8, 32)
SOFT = kernels.softmax(X)


def soft(out, x=X, at=0):
    return f"Functional.softmax.{at}.forward", [x], [out], {"dim": -1}


def roots(report):
    return [(root.pair.operator.name, root.cause, root.rule) for root in report.roots]


def test_the_evidence_tells_that_the_golden_is_wrong(tmp_path):
    (root,) = compare(*pair(tmp_path, [soft(SOFT)], [soft(SOFT * F32(1.01))])).roots
    assert root.cause is Cause.BORN
    assert "golden output:0 differs from float64 of its recorded inputs" in root.because


@pytest.mark.parametrize("factor", [1.000003, 1.0005, 1.1])
def test_a_wrong_formula_of_all_operators_of_a_kind_is_one_fault(factor, tmp_path):
    """The factor may be within what the errors that came in explain."""
    inputs = [normal(8, 32, seed=at) for at in range(20)]
    noisy = [(x * (1 + 3e-7 * normal(8, 32, seed=100 + at))).astype(F32) for at, x in enumerate(inputs)]
    target = [soft((kernels.softmax(x) * F32(factor)).astype(F32), x, at) for at, x in enumerate(noisy)]
    report = compare(*pair(tmp_path, target, [soft(kernels.softmax(x), x, at) for at, x in enumerate(inputs)]),
                     skip_rules=("law", "scaled"))  # fmt: skip
    first, *others = sorted(report.roots, key=lambda root: root.place)
    assert (first.pair.operator.name, first.cause) == ("Functional.softmax.0.forward", Cause.BORN)
    assert "all 9 Functional.softmax.forward output:0 exceed their budget" in first.because
    assert "recompute" not in {root.rule for root in others}
    assert all("as Functional.softmax.0.forward: all 9" in root.because for root in others if root.cause is Cause.BORN)


def layer_norm(eps, saved, wrong=0.0, dtype=F32, noise=0.0):
    """Records of a layer_norm that is told `eps`, with elements that are wrong by a share, and whose gradient is made
    of a root of `saved`; `noise` came in with the input. The gradients are float32."""
    x = normal(16, 32) * (1 + noise * normal(16, 32, seed=3))
    x, dy = x.astype(dtype).astype(float), normal(16, 32, seed=2).astype(float)

    def parts(eps):
        root = 1 / np.sqrt(x.var(-1, keepdims=True) + eps)
        return root, (x - x.mean(-1, keepdims=True)) * root

    root, normed = parts(saved)
    dx = root * (dy - dy.mean(-1, keepdims=True) - normed * (dy * normed).mean(-1, keepdims=True))
    y = parts(eps)[1] * (1 + wrong * np.where(np.arange(32) % 2, 1, -1))
    x, y, dy, dx = (one.astype(kind) for one, kind in ((x, dtype), (y, dtype), (dy, F32), (dx, F32)))
    return [
        ("Functional.layer_norm.0.forward", [x, [32], None, None, eps], [y], {}),
        ("Functional.layer_norm.0.backward", [dy], [dx], {}),
    ]


def phases(report):
    return [(root.pair.operator.phase, root.cause, root.rule) for root in report.roots]


@pytest.mark.parametrize("saved, phase", [(1e-5, "forward"), (6e-3, "backward")])
def test_a_gradient_by_the_arguments_of_the_golden_accuses_the_forward(saved, phase, tmp_path):
    """The error of the forward is excused by that of its input; its gradient is one of the operators of the sample."""
    before = [(f"Torch.clone.{at}.forward", [X], [X], {}) for at in range(SAMPLE // 2 - 1)]
    sides = [[*before, *layer_norm(told, root, dtype=np.float16, noise=noise)]
             for told, root, noise in ((3e-3, saved, 2e-3), (1e-5, 1e-5, 0.0))]  # fmt: skip
    report = compare(*pair(tmp_path, *sides))
    assert ("recompute", phase) in {(rule, where) for where, cause, rule in phases(report) if cause is Cause.BORN}
    words = "the gradient of this call matches a float64 recomputation with the arguments of the golden"
    assert (words in report.roots[0].because) == (phase == "forward")
