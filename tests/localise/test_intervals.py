"""What is known of the error of a tensor that an operator reads, and the cause and evidence that follow."""

import json

import numpy as np
import pytest

import npucmp
from tests.synthetic import chain, with_statistics, write_run

random = np.random.default_rng(11)
LINEAR = "Functional.linear.{}.forward".format
USUAL = "about 95 % of the errors before it that descend from no root are at most"


def first(folder, target, golden, of_figures=False):
    """Place 1 of two runs: the operator, the cause, the evidence."""
    paths = [write_run(folder / name, run) for name, run in (("t", target), ("g", golden))]
    report = npucmp.compare(*(with_statistics(one, alone=True) for one in paths) if of_figures else paths)
    root = min(report.roots, key=lambda one: one.place)
    return root.pair.operator.name, root.cause.value, root.because


def without(operators, *slots, of=None):
    """The same run, in which operators (all, or one) recorded no inputs ("in") or outputs ("out")."""
    return {name: {key: value for key, value in operator.items() if key not in slots or (of and name != of)}
            for name, operator in operators.items()}  # fmt: skip


@pytest.mark.parametrize("of_figures, alike", [(False, "bit for bit"), (True, "as far as statistics tell")])
def test_what_agrees_by_values_or_by_figures_leaves_the_operator_the_error(tmp_path, of_figures, alike):
    found = first(tmp_path, chain({3: 1.05}), chain(), of_figures)
    assert found[:2] == (LINEAR(3), "BORN") and f"inputs agree ({alike})" in found[2]


def test_figures_behind_a_root_bound_nothing(tmp_path):
    """The error of operator 2 descends from operator 1; figures that agree by chance make it no second root."""
    report = npucmp.compare(*(with_statistics(write_run(tmp_path / name, run), alone=True)
                              for name, run in (("t", chain({1: 1.5})), ("g", chain()))))  # fmt: skip
    causes = [root.cause.value for root in sorted(report.roots, key=lambda one: one.place)]
    assert causes[0] == "BORN" and set(causes[1:]) <= {"PROPAGATED"}


def test_without_inputs_the_errors_before_decide_and_the_evidence_prints_them(tmp_path):
    paths = [
        write_run(tmp_path / name, run) for name, run in (("t", chain({4: 1.05}, noise=1e-7, seed=3)), ("g", chain()))
    ]
    for file in (file for one in paths for file in one.rglob("dump.json")):
        dump = json.loads(file.read_text())
        for record in dump["data"].values():
            del record["input_args"], record["input_kwargs"]
        file.write_text(json.dumps(dump))
    root = min(npucmp.compare(*paths).roots, key=lambda one: one.place)
    assert (root.pair.operator.name, root.cause.value) == (LINEAR(4), "UNKNOWN")
    printed = float(root.because.partition(f"{USUAL} ")[2].split(";")[0])
    assert 1e-8 < printed < 1e-6


def test_an_input_that_nothing_wrote_is_held_against_the_errors_before_it(tmp_path):
    target, golden = chain({3: 1.05}, noise=1e-7, seed=3), chain()
    target, golden = (without(run, "out", of=LINEAR(3)) for run in (target, golden))
    for run in (target, golden):
        run[LINEAR(3)] = {"in": [random.standard_normal(4)], "out": []}
    golden[LINEAR(3)] = target[LINEAR(3)]
    name, cause, because = first(tmp_path, target, golden)
    assert (name, cause) == (LINEAR(4), "GAP") and USUAL in because


@pytest.mark.parametrize("figures_of_mask", [-np.inf, -1e9], ids=["-inf", "-1e9"])
def test_a_mask_hides_no_noise_from_a_softmax(tmp_path, figures_of_mask):
    """Scores are off by rounding to 16 bits; the mask swallows it in the figures of what the softmax reads."""

    def attention(noise):
        draw = np.random.default_rng(5)
        x = draw.standard_normal((4, 64, 64)).astype(np.float32) * 4
        scores = (x * (1 + noise * np.random.default_rng(9).standard_normal(x.shape))).astype(np.float32)
        masked = np.where(np.tril(np.ones((64, 64), bool)), scores, np.float32(figures_of_mask)).astype(np.float32)
        e = np.exp(masked.astype(np.float64) - masked.max(-1, keepdims=True))
        share = (e / e.sum(-1, keepdims=True)).astype(np.float32)
        return {
            "Tensor.__mul__.0.forward": {"in": [x, 1.0], "out": [scores]},
            "Tensor.masked_fill.0.forward": {"in": [scores], "out": [masked]},
            "Functional.softmax.0.forward": {"in": [masked], "out": [share]},
        }

    paths = [with_statistics(write_run(tmp_path / name, attention(noise)), alone=True)
             for name, noise in (("t", 3e-7), ("g", 0.0))]  # fmt: skip
    report = npucmp.compare(*paths)
    assert not [root for root in report.roots if root.pair.operator.name.startswith("Functional.softmax")]
