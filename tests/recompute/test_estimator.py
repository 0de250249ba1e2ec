"""compare --recompute: what float64 of recorded inputs decides in the search, by numpy alone."""

import csv

import numpy as np
import pytest

from npucmp import compare, write_reports
from npucmp.model import Cause, Verdict
from npucmp.recompute.estimator import SAMPLE
from tests.recompute import kernels
from tests.recompute.craft import pair

F32 = np.float32
UNSEEN = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [8, 32]}  # neither values nor statistics


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


X = normal(8, 32)
SOFT = kernels.softmax(X)


def soft(out, x=X, at=0):
    return f"Functional.softmax.{at}.forward", [x], [out], {"dim": -1}


def roots(report):
    return [(root.pair.operator.name, root.cause, root.rule) for root in report.roots]


@pytest.mark.parametrize("scale, cause, words", [
    (1.01, Cause.BORN, "times the expected rounding"),
    (1.0, Cause.PROPAGATED, "the outputs match float64 of the recorded inputs"),
])  # fmt: skip
def test_an_operator_whose_golden_inputs_are_unknown_is_judged_by_its_own(scale, cause, words, tmp_path):
    dumps = pair(tmp_path, [soft(SOFT * F32(scale))], [soft(kernels.softmax(X * F32(0.9)), UNSEEN)])
    plain, report = compare(*dumps, recompute="none"), compare(*dumps)
    assert [root.cause for root in plain.roots] == [Cause.UNKNOWN]
    assert [root.cause for root in report.roots] == [cause]
    assert words in report.roots[0].because and report.exit_status == plain.exit_status == 1
    assert "recomputed 1 of 1 operators by numpy, in float64 from their recorded inputs" in report.notes


def test_the_evidence_tells_that_the_golden_is_wrong(tmp_path):
    (root,) = compare(*pair(tmp_path, [soft(SOFT)], [soft(SOFT * F32(1.01))])).roots
    assert root.cause is Cause.BORN
    assert "golden output:0 differs from float64 of its recorded inputs" in root.because


def test_an_operator_that_was_given_another_argument_bears_the_difference(tmp_path):
    records = [[(*soft(x)[:2], [x], {"dim": dim})] for x, dim in ((SOFT, -1), (kernels.softmax(X.T).T, 0))]
    (root,) = compare(*pair(tmp_path, *records)).roots
    assert root.cause is Cause.BORN and "argument" in root.because


def difference(wrong):
    """What is left of two products that nearly cancel, where rounding of the inputs may make any error."""
    a, b = normal(64, 64, seed=2), normal(64, 64, seed=3)
    sides = []
    for block, off in ((1, wrong), (16, 1.0)):
        first, second = kernels.matmul(a, b, block), kernels.matmul(a, b, block + 7)
        left = (first - second) * F32(off)
        sides.append([
            ("Torch.matmul.0.forward", [a, b], [first], {}),
            ("Torch.clone.0.forward", [second], [second], {}),
            ("Torch.sub.0.forward", [first, second], [left], {}),
        ])  # fmt: skip
    return sides


def test_a_fault_that_cancellation_excuses_is_found(tmp_path):
    dumps = pair(tmp_path, *difference(1.5))
    excused = compare(*dumps, recompute="none")
    assert not excused.roots and excused.exit_status == 0
    found = compare(*dumps)
    assert roots(found) == [("Torch.sub.0.forward", Cause.BORN, "recompute")]
    finding = next(one for one in found.comparisons[0].findings
                   if (one.pair.operator.name, one.pair.slot) == ("Torch.sub.0.forward", "output:0"))  # fmt: skip
    assert finding.verdict is Verdict.DIVERGED and found.exit_status == 1


def test_what_cancellation_leaves_of_right_operators_agrees(tmp_path):
    assert compare(*pair(tmp_path, *difference(1.0))).exit_status == 0


def test_a_setting_of_all_operators_of_a_kind_is_no_birth_by_recomputation(tmp_path):
    def coarse(x):
        return kernels.softmax(x, lambda one: np.exp(one.astype("f2")).astype(F32))

    inputs = [normal(8, 32, seed=at) for at in range(5)]
    dumps = pair(tmp_path, *([soft(kernel(x), x, at) for at, x in enumerate(inputs)] for kernel in
                             (coarse, kernels.softmax)))  # fmt: skip
    report = compare(*dumps)
    assert report.roots and "recompute" not in {root.rule for root in report.roots}


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


def eleven_bits(x):
    m, e = np.frexp(x)
    return np.ldexp(np.round(m * 2**11) / 2**11, e).astype(F32)


def test_operands_of_11_bits_in_all_products_are_no_fault_of_the_first(tmp_path):
    """The wrong weight of the second product hides what the others add to the errors that they read."""
    weights = [normal(32, 32, seed=at) for at in range(20, 24)]
    sides = []
    for rounded, wrong in ((eleven_bits, 1.2), (lambda one: one, 1.0)):
        x, records = X, []
        for at, w in enumerate(weights):
            w = w * F32(wrong) if at == 1 else w
            y = kernels.matmul(rounded(x), rounded(w))
            records.append((f"Torch.matmul.{at}.forward", [x, w], [y], {}))
            x = y / F32(np.abs(y).max())
            records.append((f"Torch.div.{at}.forward", [y, float(np.abs(y).max())], [x], {}))
        sides.append(records)
    report = compare(*pair(tmp_path, *sides))
    first = min(report.roots, key=lambda root: root.place)
    assert (first.pair.operator.name, first.cause) == ("Torch.matmul.1.forward", Cause.GAP)


def test_statistics_are_not_recomputed(tmp_path):
    figures = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [8, 32], "Max": 1.0, "Min": 0.0,
               "Mean": 0.5, "Norm": 3.0}  # fmt: skip
    record = "Functional.softmax.0.forward", [figures], [figures], {"dim": -1}
    report = compare(*pair(tmp_path, [record], [record]), trust_statistics=True)
    assert report.exit_status == 0 and not any("recomputed" in note for note in report.notes)


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


RIGHT = layer_norm(1e-5, 1e-5)
BELOW = 4.7e-7  # the limit of a float32 tensor, and beyond the rounding of one result


def phases(report):
    return [(root.pair.operator.phase, root.cause, root.rule) for root in report.roots]


def test_a_forward_that_its_gradient_betrays_bears_the_error(tmp_path):
    report = compare(*pair(tmp_path, layer_norm(1e-5, 1e-2, BELOW), RIGHT))
    assert phases(report) == [("forward", Cause.BORN, "recompute"), ("backward", Cause.PROPAGATED, "recompute")]
    assert "the forward pass of this call produces the error" in report.roots[1].because


def test_a_gradient_alone_is_to_blame_where_its_forward_is_right(tmp_path):
    assert [one[:2] for one in phases(compare(*pair(tmp_path, layer_norm(1e-5, 1e-2), RIGHT)))] == [
        ("backward", Cause.BORN)
    ]
    assert compare(*pair(tmp_path / "below", layer_norm(1e-5, 1e-5, BELOW), RIGHT)).exit_status == 0


def rms_norm(scale, wrong=0.0):
    """Records of an rms_norm whose first row is small, and came with another scale; its gradient is as much larger."""
    x, dy, w = normal(16, 32), normal(16, 32, seed=2), normal(32, seed=4).astype(float)
    x[0] *= F32(1e-2 * scale)
    root = 1 / np.sqrt(np.square(x.astype(float)).mean(-1, keepdims=True) + 1e-12)
    normed = x * root
    dx = root * (dy * w - normed * (dy * w * normed).mean(-1, keepdims=True)) * (1 + wrong)
    y, dx, dw, w = (one.astype(F32) for one in (normed * w, dx, (dy * normed).sum(0), w))
    return [
        ("Functional.rms_norm.0.forward", [x, [32], w, 1e-12], [y], {}),
        ("Functional.rms_norm.0.backward", [dy], [dx, dw], {}),
    ]


def test_an_output_that_agrees_needs_no_explanation(tmp_path):
    """The gradient of the weight differs by its own rounding alone, that of the input by what came in."""
    assert compare(*pair(tmp_path, rms_norm(1 + 2e-5), rms_norm(1.0))).exit_status == 0
    (root,) = compare(*pair(tmp_path / "wrong", rms_norm(1.0, 2e-5), rms_norm(1.0))).roots
    assert (root.pair.operator.phase, root.cause) == ("backward", Cause.BORN)


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


def test_tables_tell_what_recomputation_decided(tmp_path):
    """An error that rounding of the inputs makes, beyond what bounds expect; and a cause that it changed."""
    golden = X * F32(1.001)
    sides = [x.astype(float) for x in (X, X * (1 + 1e-7 * normal(8, 32, seed=4)).astype(F32))]
    losses = []
    for wide in sides:
        x, loss = wide.astype(F32), np.asarray(np.square(wide - golden).mean(), F32)
        copy = "Torch.clone.0.forward", [x], [x], {}
        losses.append([copy, ("Functional.mse_loss.0.forward", [x, golden], [loss], {})])
    bound, report = (compare(*pair(tmp_path / how, *losses), recompute=how) for how in ("none", "auto"))
    assert [root.rule for root in bound.roots] == ["round_off"] and not report.roots
    write_reports(report, tmp_path / "report")
    with open(tmp_path / "report" / "tensors.csv", newline="") as file:
        row = [*csv.DictReader(file)][-1]
    assert (row["verdict"], row["explained_by"]) == ("match", "recompute") and row["explained_limit"] == row["rel_l2"]
    assert phases(compare(*pair(tmp_path / "unseen", [soft(SOFT)], [soft(kernels.softmax(X * F32(0.9)), UNSEEN)]))) == [
        ("forward", Cause.PROPAGATED, "recompute")
    ]
