"""Products of both runs that keep 11 bits: what an operand makes of an error that crosses a step of them."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

import npucmp
from npucmp.localise.rules import Rulebook
from tests.localise.rules.craft import RuleContract, case, drawn, rule, spelled
from tests.synthetic import write_run

ALIKE = rule("reduced_alike")

normal, noisy = drawn(__name__)
X, W, Y = normal(64, 64), normal(64, 64, size=1 / 8), normal(64, 64)
READ = [(noisy(X, 1e-7), X), (W, W)]
SMALL = [(noisy(X[:4, :8], 1e-7), X[:4, :8]), (W, W)]


class TestReducedAlike(RuleContract):
    name = "reduced_alike"
    fires = {
        **spelled("linear", lambda op: case(op, READ, (noisy(Y, 5e-5), Y))),
        "one element": case("linear", SMALL, (noisy(Y, 5e-4), Y)),
        "its gradient": case(
            "linear", READ[:1], (noisy(Y, 5e-5), Y), [("input:0", READ[0]), ("input:1", READ[1])], phase="backward"
        ),
    }
    silent = {
        "no product": case("relu", READ[:1], (noisy(Y, 5e-5), Y)),
        "the same operands": case("linear", [(X, X), (W, W)], (noisy(Y, 5e-5), Y)),
        "more than that": case("linear", READ, (noisy(Y, 1e-3), Y)),
        "more than 11 bits round": case("linear", [(noisy(X, 1e-3), X), (W, W)], (noisy(Y, 1e-1), Y)),
        "a coarser type": case("linear", READ, (noisy(Y, 5e-5), Y, "float64")),
    }

    @pytest.fixture
    def rules(self):
        return Rulebook(alike=True)


def eleven_bits(x):
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(fraction * 2**11), exponent - 11)


def chain(seed, target=False, held=eleven_bits, fault=0.0, width=64):
    """Six products with a tanh between each two; the target rounds each tanh otherwise, and adds a fault to one
    product."""
    draw, off = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    x, run = draw.standard_normal((192, width)).astype(np.float32), {}
    for n in range(6):
        w = (draw.standard_normal((width, width)) / width**0.5).astype(np.float32)
        y = (held(x) @ held(w).T).astype(np.float32)
        if target and n == 3:
            y = (y * (1 + fault * off.standard_normal(y.shape))).astype(np.float32)
        run[f"Functional.linear.{n}.forward"] = {"in": [x, w], "out": [y]}
        z = np.tanh(y.astype(np.float64))
        x = (z * (1 + 1e-7 * off.standard_normal(y.shape) * target)).astype(np.float32)
        run[f"Torch.tanh.{n}.forward"] = {"in": [y], "out": [x]}
    return run


def compared(folder, target, golden):
    return npucmp.compare(write_run(folder / "target", target), write_run(folder / "golden", golden))


def places(report):
    return [(root.pair.operator.name, root.cause.value) for root in report.roots if root.cause.value != "PROPAGATED"]


@pytest.mark.parametrize("seed", range(3))
def test_both_runs_round_alike(tmp_path, seed):
    report = compared(tmp_path, chain(seed, True), chain(seed))
    assert report.roots == () and report.exit_status == 0
    assert any("both runs keep 11 bits" in note for one in report.comparisons for note in one.notes)
    assert "reduced_alike" in {finding.explained_by for finding in report.findings}


def test_a_fault_in_one_product_of_such_runs_is_seen(tmp_path):
    report = compared(tmp_path, chain(0, True, fault=5e-3), chain(0))
    assert places(report) == [("Functional.linear.3.forward", "BORN")]


def test_the_same_error_in_runs_of_float32_is_a_fault(tmp_path):
    report = compared(tmp_path, chain(0, True, np.float64, fault=5e-5), chain(0, held=np.float64))
    assert places(report) == [("Functional.linear.3.forward", "BORN")]
    assert not any("11 bits" in note for one in report.comparisons for note in one.notes)


def test_one_side_alone_rounds_nothing_alike(tmp_path):
    report = compared(tmp_path, chain(0, True), chain(0, held=np.float64))
    assert not any("both runs keep" in note for one in report.comparisons for note in one.notes)


EVEN = (np.ones((64, 64)), np.ones((64, 64)))
PEAK = (
    np.full((4, 4), 4.0) * (np.arange(16).reshape(4, 4) == 0),
    np.full((4, 4), 4.0) * (np.arange(16).reshape(4, 4) == 0),
)
ZERO = (np.zeros((4, 4)), np.zeros((4, 4)))
STEP = 2.0**-10  # of 11 bits


@pytest.mark.parametrize("read, error, bound", [
    ([EVEN, EVEN], 2.0**-20, 8 * sqrt(STEP * 2.0**-20)),  # the probability that an element crosses a step
    ([EVEN, EVEN], 2.0**-22, 8 * sqrt(STEP * 2.0**-22)),
    ([EVEN, EVEN], 2.0**-40, 3 * STEP / 64),  # three elements of 4096
    ([EVEN, PEAK], 2.0**-40, 3 * STEP), ([PEAK, EVEN], 2.0**-40, 3 * STEP),
    ([EVEN, ZERO], 2.0**-40, 3 * STEP / 64),
    ([EVEN, EVEN], 2.0**-8, 8 * STEP / 2), ([], 2.0**-40, 8 * sqrt(STEP * 2.0**-40)),
])  # fmt: skip
def test_the_bound_counts_the_elements_that_cross_a_step(read, error, bound):
    """At most eight round-offs of 11 bits."""
    size = 100.0 * np.ones((64, 64))  # larger than sums of terms of random signs
    assert ALIKE.bound(case("linear", read, (size, size), input_error=error)) == pytest.approx(bound, rel=1e-9)


def test_operands_of_the_forward_cross_steps_too():
    forward = [("input:0", EVEN), ("input:1", PEAK)]
    one = case("linear", [EVEN], EVEN, forward, phase="backward", input_error=2.0**-40)
    assert ALIKE.bound(one) == pytest.approx(3 * STEP * max(1.0, one.terms.spread))


@pytest.mark.parametrize("size, times", [(16.0, 1), (8.0, 1), (4.0, 2), (1.0, 8)])
def test_products_that_cancel_enlarge_the_bound(size, times):
    """64 terms of size 1 give 8 if their signs are random."""
    wrote = (size * np.ones((64, 64)), size * np.ones((64, 64)))
    one = case("linear", [EVEN, EVEN], wrote, input_error=2.0**-20)
    assert ALIKE.bound(one) == pytest.approx(times * 8 * sqrt(STEP * 2.0**-20))


def test_a_product_that_is_zero_is_not_enlarged():
    one = case("linear", [EVEN, EVEN], (np.zeros((64, 64)), np.zeros((64, 64))), input_error=2.0**-20)
    assert ALIKE.bound(one) == pytest.approx(8 * sqrt(STEP * 2.0**-20))


@pytest.mark.parametrize("types, error, applies", [
    ((), 1e-7, True), ((), 0.0, False), (("float64",), 1e-7, False), (("bfloat16",), 1e-7, False),
    (("float32", "int32"), 1e-7, False), (("bfloat16", "float32"), 1e-7, False),
    (("float32", "float64"), 1e-7, True),
])  # fmt: skip
def test_operands_of_float32_alone_are_rounded_to_11_bits(types, error, applies):
    assert ALIKE.applies(case("linear", [EVEN, EVEN], (*EVEN, *types), input_error=error)) == applies
    assert not ALIKE.applies(case("linear", [EVEN, EVEN], (*EVEN, *types), input_error=error, node=False))
    assert not ALIKE.applies(case("tanh", [EVEN], (*EVEN, *types), input_error=error))
