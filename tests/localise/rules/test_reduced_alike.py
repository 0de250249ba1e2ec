"""Products of both runs that keep 11 bits: what an operand makes of an error that crosses a step of them."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from npucmp.localise.rules import Rulebook
from tests.localise.rules.craft import RuleContract, case, drawn, spelled
from tests.synthetic import write_run

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
