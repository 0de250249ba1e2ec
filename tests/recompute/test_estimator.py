"""compare --recompute: what float64 of recorded inputs decides in the search, by numpy alone."""

import numpy as np
import pytest

from npucmp import compare
from npucmp.model import Cause, Verdict
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
    (1.01, Cause.BORN, "times the rounding that is due away from float64 of its own inputs"),
    (1.0, Cause.PROPAGATED, "the outputs are float64 of the recorded inputs"),
])  # fmt: skip
def test_an_operator_whose_golden_inputs_are_unknown_is_judged_by_its_own(scale, cause, words, tmp_path):
    dumps = pair(tmp_path, [soft(SOFT * F32(scale))], [soft(kernels.softmax(X * F32(0.9)), UNSEEN)])
    plain, report = compare(*dumps, recompute="none"), compare(*dumps)
    assert [root.cause for root in plain.roots] == [Cause.UNKNOWN]
    assert [root.cause for root in report.roots] == [cause]
    assert words in report.roots[0].because and report.exit_status == plain.exit_status == 1
    assert "numpy recomputed 1 operator in float64 from recorded inputs" in report.comparisons[0].notes


def test_the_evidence_tells_that_the_golden_is_wrong(tmp_path):
    (root,) = compare(*pair(tmp_path, [soft(SOFT)], [soft(SOFT * F32(1.01))])).roots
    assert root.cause is Cause.BORN
    assert "golden output:0 is" in root.because and "away from float64 of its own inputs" in root.because


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
    assert "all 9 Functional.softmax.forward output:0 lie beyond their budget" in first.because
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
    assert report.exit_status == 0 and not any("recomputed" in note for note in report.comparisons[0].notes)
