"""Rules of parameters, their updates and gradients: each on a training that has its fault, and on one that has not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest

from npucmp import check
from tests.health.craft import OWN, RATE, Training, Writer, checked, found

W = "layers.1.weight"
RANDOM = np.random.default_rng(6)


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


MUST_NOT_FIRE = {
    "sound": lambda t: None,
    "a bias starts at zero": lambda t: t.start("layers.1.bias", 0),
    "a bias has no gradient worth the name": lambda t: t.gradients.update(
        {"layers.1.bias": [np.full(8, 1e-12, "float32")] * 3}
    ),
    "twice the spread": lambda t: t.start(W, 2 * t.weights[W][0]),
    "He's start": lambda t: t.start(W, t.random.normal(0, math.sqrt(2 / 8), (8, 8))),
    "one step without gradient": lambda t: t.gradients[W].__setitem__(0, np.zeros((8, 8), "float32")),
    "large weights, moving as they should": lambda t: t.start("norm.weight", 1),
    "gradients that shrink a little": by_depth(0.3),
    "gradients that grow a little": by_depth(3),
    "a bias larger than its step": lambda t: t.start("layers.0.bias", 100),
}


@pytest.mark.few(8)
@pytest.mark.parametrize("words", MUST_NOT_FIRE)
@pytest.mark.parametrize("values", [True, False], ids=["values", "statistics"])
def test_must_not_fire(words, values, tmp_path):
    training = Training()
    MUST_NOT_FIRE[words](training)
    result = checked(training, tmp_path, values)
    assert result.symptoms == () and result.exit_status == 0


@pytest.mark.parametrize("level", ["L0", "L1"])
@pytest.mark.parametrize("values", [True, False], ids=["values", "statistics"])
def test_other_levels_of_a_sound_run_are_silent(level, values, tmp_path):
    result = checked(Training(), tmp_path, values, level)
    assert result.symptoms == () and len(result.parameters) == 3 * (8 if level == "L1" else 10)


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


def test_what_statistics_do_not_tell_is_said(tmp_path):
    result = checked(Training(), tmp_path, values=False)
    decided = {one.rule: one for one in result.decisions}
    for rule in ("weights.change_large", "optimizer.uphill", "grad.underflow16"):
        assert decided[rule].decided == "no" and "needs values" in decided[rule].why_not
    assert decided["weight.shared"].why_not == "needs values or checksums"
    assert decided["grad.rank_differs"].decided == "no"


def test_one_step_tells_nothing_of_updates(tmp_path):
    result = checked(Training(steps=1), tmp_path)
    why = {one.rule: one.why_not for one in result.decisions}
    assert why["weight.not_changed"] == "needs two dumped steps" and not result.symptoms


def test_a_warm_up_that_begins_at_zero_is_a_hint(tmp_path):
    training = Training(steps=2)
    for name in training.weights:
        still(training, name)
    assert found(checked(training, tmp_path))["weights.none_change"].severity == "hint"


def test_a_trained_net_is_not_judged_by_its_scales(tmp_path):
    training = Training()
    training.start(W, 30 * training.weights[W][0])
    training.start("norm.weight", np.linspace(0.5, 1.5, 8))
    result = checked(training, tmp_path)
    assert result.starts == "trained" and "weight.scale_large" not in found(result)


def test_without_norms_a_scale_is_a_hint(tmp_path):
    training = Training(norm=False)
    for name in training.layers:
        training.start(f"{name}.weight", 30 * training.weights[f"{name}.weight"][0])
    assert found(checked(training, tmp_path))["weight.scale_large"].severity == "hint"


def test_the_start_can_be_told(tmp_path):
    training = Training(norm=False)
    training.start(W, 30 * training.weights[W][0])
    assert found(checked(training, tmp_path, start="fresh"))["weight.scale_large"].severity == "warning"


def test_uphill_is_a_matter_of_the_first_step_and_of_most(tmp_path):
    training = Training()
    some = training.weights[W]
    training.weights[W] = [some[0], some[0] + RATE * training.gradients[W][0], some[2]]  # one of four goes uphill
    assert "optimizer.uphill" not in found(checked(training, tmp_path))


def test_update_ratio_is_mean_move_over_mean_size(tmp_path):
    training = Training()
    result = checked(training, tmp_path)
    row = next(one for one in result.parameters if (one.parameter, one.step) == (W, 0))
    before, after, gradient = (one.astype("float64") for one in (*training.weights[W][:2], training.gradients[W][0]))
    assert row.update_ratio == pytest.approx(np.abs(after - before).mean() / np.abs(before).mean(), rel=1e-6)
    assert row.update_cosine == pytest.approx(1, abs=1e-4)  # descent without momentum
    assert row.grad_over_weight == pytest.approx(np.sqrt((gradient**2).mean() / (before**2).mean()), rel=1e-6)
    assert row.gain == pytest.approx(before.std() * math.sqrt(8), rel=1e-6)


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


@pytest.mark.parametrize("values", [True, False], ids=["values", "statistics"])
@pytest.mark.parametrize(("times", "expected"), [(1, False), (30, True)])
def test_a_head_that_starts_as_its_table_has_no_scale(times, expected, values, tmp_path):
    """T5 draws its table, and the head that is tied to it, with a deviation of 1."""
    training = Training(width=64)
    table = training.random.normal(0, 1, (40, 64))
    training.embedding = np.arange(6)
    training.add("embed.weight", table)
    training.beside("head", table[::-1] * times)
    result = checked(training, tmp_path, values=values)
    assert ("weight.scale_large" in found(result)) is expected


def write_calls(folder: Path, calls: list[tuple[str, list[Any], list[Any]]]) -> Path:
    for step in range(2):
        dump = Writer(folder / f"step{step}" / "rank0", values=True)
        for name, read, written in calls:
            dump.record(name, read, written)
        dump.write("L1")
    return folder


def test_calls_that_read_one_weight_have_one_gradient(tmp_path):
    """At level L1: a forward that is computed again reads the weight whose backward has another number, and the first
    turn of a loop reads a state of zeros."""
    x, w, v = RANDOM.normal(0, 1, (6, 8)), RANDOM.normal(0, 1, (8, 8)), RANDOM.normal(0, 1, (8, 8))
    x, w, v = (one.astype("f4") for one in (x, w, v))
    first, other = {"array": w, "trainable": True}, {"array": v, "trainable": True}
    loss = ("Functional.mse_loss.0.backward", [x], [x])
    forward, again = ((f"Functional.linear.{n}.forward", [x, first], [x]) for n in (0, 2))
    behind = ("Functional.linear.1.forward", [x, other], [x])
    back = [(f"Functional.linear.{n}.backward", [x], [x, w.T.copy()]) for n in (1, 2)]

    def missing(name: str, calls: list[tuple[str, list[Any], list[Any]]], rule: str) -> list[str]:
        result = check(write_calls(tmp_path / name, calls), jobs=1, only=(rule,))
        return [one.where for one in result.symptoms]

    assert missing("a", [forward, behind, loss, back[0], again, back[1]], "grad.missing") == []
    assert missing("b", [forward, behind, loss, back[0]], "grad.missing") == ["Functional.linear.0.weight"]
    dead = ("Functional.linear.0.backward", [x], [x, 0 * w])
    second = ("Functional.linear.2.forward", [x, first], [x])
    assert missing("c", [forward, behind, second, loss, *back[::-1], dead], "grad.zero") == []
    assert missing("d", [forward, behind, loss, back[0], dead], "grad.zero") == ["Functional.linear.0.weight"]


@pytest.mark.parametrize(("frozen", "expected"), [(True, False), (False, True)])
def test_a_teacher_starts_as_its_student_does(frozen, expected, tmp_path):
    training = Training()
    one_start(training)
    training.frozen |= {W} if frozen else set()
    assert ("weight.equal_then_apart" in found(checked(training, tmp_path))) is expected
