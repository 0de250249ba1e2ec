"""Rules of parameters, their updates and gradients: each on a training that has its fault, and on one that has not."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest

from tests.health.craft import OWN, Training, checked, found

W = "layers.1.weight"


class Case(NamedTuple):
    """A change of a sound training: what rule speaks of what, how gravely, and of how many places."""

    rule: str
    severity: str
    change: Callable[[Training], Any]
    where: str = W
    places: int = 1
    value: Any = None
    only: tuple[str, ...] = ()


def still(t: Training, name: str = W) -> None:
    t.weights[name] = [t.weights[name][0]] * t.steps


def zero_for_ever(t: Training) -> None:
    t.start(W, 0)
    t.gradients[W] = [np.zeros_like(one) for one in t.gradients[W]]
    still(t)


def by_depth(factor: float) -> Callable[[Training], None]:
    """Gradients that are so many times as large from one layer to the one before it."""

    def change(t: Training) -> None:
        for depth, name in enumerate(reversed(t.layers)):
            t.gradients[f"{name}.weight"] = [one * factor**depth for one in t.gradients[f"{name}.weight"]]

    return change


def put(name: str, step: int, value: float) -> Callable[[Training], None]:
    def change(t: Training) -> None:
        t.weights[name][step] = t.weights[name][step].copy()
        t.weights[name][step].flat[3] = value

    return change


def faster(factor: float) -> Callable[[Training], None]:
    """Weights that move by so many times the usual step."""

    def change(t: Training) -> None:
        for name, some in t.weights.items():
            moves = [after - before for before, after in zip(some, some[1:])]
            t.weights[name] = [some[0] + factor * sum(moves[:n], np.zeros_like(some[0])) for n in range(len(some))]

    return change


def bad_gradient(t: Training) -> None:
    t.gradients[W][1] = np.full_like(t.gradients[W][1], math.nan)


def outlier(t: Training) -> None:
    t.beside("table", t.random.normal(0, 1, (200, 100)))
    t.weights["table.weight"][0].flat[3] = 1e4


def one_start(t: Training) -> None:
    t.start("layers.2.weight", t.weights[W][0])


def tied(t: Training) -> None:
    for some in (t.weights, t.gradients):
        some["layers.2.weight"] = some[W]


def rounded(t: Training) -> None:
    """Updates far below half a unit of float16 at 1."""
    t.add(W, np.where(np.eye(8) > 0, 1.0, 0.5), "float16")
    t.weights[W] = [t.weights[W][0]] * t.steps
    for name, some in t.weights.items():
        if name != W:
            t.weights[name] = [some[0] - np.float32(1e-6 * n) * np.sign(t.gradients[name][0]) for n in range(t.steps)]


MUST_FIRE = [
    Case("weight.nonfinite", "error", put(W, 1, math.inf)),
    Case("weight.zero", "error", zero_for_ever),
    Case("weight.zero", "warning", lambda t: t.start(W, 0)),
    Case("weight.zero", "hint", lambda t: t.beside("head", np.zeros((3, 8))), "head.weight"),
    Case("weight.constant", "warning", lambda t: t.start(W, 0.02), value=0.02),
    Case("weight.scale_large", "warning", lambda t: t.start(W, 30 * t.weights[W][0])),
    Case("weight.scale_small", "warning", lambda t: t.start(W, 1e-3 * t.weights[W][0])),
    Case("weight.unlike_peers", "warning", lambda t: t.start(W, 5 * t.weights[W][0])),
    Case("weight.outlier", "warning", outlier, "table.weight", only=("weight.outlier",)),
    Case("weight.shared", "hint", tied),
    Case("weight.equal_then_apart", "warning", one_start, "layers.2.weight"),
    Case("weight.not_changed", "error", still),
    Case("weights.none_change", "warning", lambda t: [still(t, name) for name in t.weights], ""),
    Case("weight.below_resolution", "hint", rounded),
    Case("weight.frozen", "hint", lambda t: t.frozen.update((W, "layers.2.weight")), places=2),
    Case("weight.change_large", "warning", lambda t: t.start(W, 2e-3 * t.weights[W][0])),
    Case("weights.change_large", "warning", faster(20), ""),
    Case("weights.change_small", "hint", faster(1e-6), ""),
    Case("optimizer.uphill", "error", faster(-1), "layers.0.weight", 4, 1.0),
    Case("grad.missing", "error", lambda t: t.gradients.update({W: [None] * 3})),
    Case("grad.zero", "warning", lambda t: t.gradients.update({W: [np.zeros((8, 8), "float32")] * 3})),
    Case("grad.zero", "hint", lambda t: t.gradients.update({"layers.1.bias": [np.zeros(8, "float32")] * 3}),
         "layers.1.bias"),
    Case("grad.vanishing", "warning", by_depth(0.03), "layers.0.weight"),
    Case("grad.exploding", "warning", by_depth(30), "layers.0.weight"),
    Case("grad.nonfinite", "error", bad_gradient),
]  # fmt: skip


@pytest.mark.few(8)
@pytest.mark.parametrize("case", MUST_FIRE, ids=lambda case: f"{case.rule}-{case.severity}")
def test_must_fire(case, tmp_path):
    training = Training()
    case.change(training)
    got = found(checked(training, tmp_path, only=case.only or OWN)).get(case.rule)
    assert got is not None
    assert (got.severity, got.where, got.places) == (case.severity, case.where, case.places)
    assert case.value is None or got.value == pytest.approx(case.value, abs=1e-6)
    assert got.because and got.because == got.because.strip()


STATISTICS = {  # what statistics alone tell of the same faults
    "weight.zero": ("error", zero_for_ever),
    "weight.constant": ("warning", lambda t: t.start(W, 0.02)),
    "weight.not_changed": ("warning", still),
    "weights.none_change": ("warning", lambda t: [still(t, name) for name in t.weights]),
    "grad.missing": ("error", lambda t: t.gradients.update({W: [None] * 3})),
    "grad.vanishing": ("warning", by_depth(0.03)),
    "weight.nonfinite": ("error", put(W, 1, math.nan)),
}


@pytest.mark.parametrize("rule", STATISTICS)
def test_statistics_will_do(rule, tmp_path):
    severity, change = STATISTICS[rule]
    training = Training()
    change(training)
    got = found(checked(training, tmp_path, values=False))
    assert got[rule].severity == severity


def test_the_start_can_be_told(tmp_path):
    training = Training(norm=False)
    training.start(W, 30 * training.weights[W][0])
    assert found(checked(training, tmp_path, start="fresh"))["weight.scale_large"].severity == "warning"


def test_an_index_beyond_its_table(tmp_path):
    for high, expected in ((19, []), (20, ["embedding.index_range"])):
        training = Training()
        training.add("embed.weight", training.random.normal(0, 1, (20, 8)))
        training.embedding = np.array([0, 3, high, 5, 6, 7])
        result = checked(training, tmp_path / str(high), only=("embedding.*",))
        assert [one.rule for one in result.symptoms] == expected


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("dead", "expected"), [(5, ["embedding.dead_rows"]), (2, [])])
def test_rows_of_a_table_that_are_zero(dead, expected, steps, tmp_path):
    training = Training(steps)
    table = training.random.normal(0, 1, (20, 8))
    table[3 : 3 + dead] = 0
    training.add("embed.weight", table)
    training.embedding = np.array([0, 3, 4, 5, 6, 7])
    result = checked(training, tmp_path, only=("embedding.*",))
    assert [one.rule for one in result.symptoms] == expected
    assert [one.value for one in result.symptoms] == [0.25] * len(expected)


def test_what_is_frozen_can_be_expected(tmp_path):
    from npucmp import open_runs
    from npucmp.health.evaluate import examine
    from npucmp.health.gather import build
    from npucmp.health.rules.updates import frozen

    training = Training()
    training.frozen.add(W)
    runs = open_runs(training.write(tmp_path))

    def said(**expect: Any) -> list[tuple[str, str]]:
        found = examine(build(str(tmp_path), runs, expect=expect), (frozen,)).symptoms
        return [(one.severity, one.where) for one in found]

    assert said() == [("hint", W)]
    assert said(frozen=[W]) == []
    assert said(frozen=["layers.0.*"]) == [("error", "layers.0.weight")]
    assert said(trained=["layers.*"]) == [("error", W)]


def last_layer(training: Training, name: str) -> None:
    """Another name of the last layer, by which it is no peer of the others, and a gradient of a millionth."""
    old = training.layers[-1]
    training.layers[-1] = name
    for some in (training.weights, training.gradients):
        for word in ("weight", "bias"):
            some[f"{name}.{word}"] = some.pop(f"{old}.{word}")
    training.gradients[f"{name}.weight"] = [one * np.float32(1e-6) for one in training.gradients[f"{name}.weight"]]


@pytest.mark.parametrize(("gate", "factor", "expected"), [(1e-6, 1, False), (0.5, 1, True), (1e-6, 30, True)])
def test_gradients_behind_a_gate_are_small_by_right(gate, factor, expected, tmp_path):
    """Where a factor starts near zero, a layer is compared with its peers alone, of which those before may explode."""
    training = Training(layers=6)
    last_layer(training, "branch")
    training.beside("scale", np.full(8, gate))
    if factor > 1:
        for depth, name in enumerate(reversed(training.layers[:-1])):
            training.gradients[f"{name}.weight"] = [one * factor**depth for one in training.gradients[f"{name}.weight"]]
    assert ("grad.exploding" in found(checked(training, tmp_path))) is expected
