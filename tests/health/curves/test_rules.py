"""`check --loss`: rules of curves, each on a log that has its fault, and on one that has not."""

import math

import numpy as np
import pytest

from npucmp import check
from npucmp.errors import UsageError
from tests.health.calls import classes, entropy, normal, symptoms, write

drawn = np.random.default_rng(3)
SOUND = 2.3 * np.exp(-np.arange(300) / 100) * (1 + 0.1 * drawn.normal(size=300)) + 0.2
CALLS = [entropy(normal(8, 10), classes(8, 10))]
SCALES = 2.0 ** np.repeat([16, 17, 16, 17], 75)


def text(loss=SOUND, scale=SCALES, validation=2.3):
    rows = ["step,loss,loss_scale,eval_loss"]
    for step, (a, b) in enumerate(zip(loss, scale)):
        rows.append(
            f"{step},{a},{b},{SOUND[max(0, step - 50) : step + 1].mean() * validation if step % 50 == 49 else ''}"
        )
    return "\n".join(rows)


def put(step, value):
    return np.where(np.arange(300) == step, value, SOUND)


MUST = [
    ("curve.nonfinite", "error", text(put(200, math.nan)), "loss is nan from step 200 on"),
    ("curve.flat", "warning", text([math.log(10)] * 300), "the loss of random guessing"),
    ("curve.spike", "hint", text(put(200, 30)), "at step 200"),
    ("curve.rising", "warning", text(SOUND[::-1]), "rises from"),
    ("curve.oscillating", "warning", text(SOUND * (1 + 0.2 * (-1) ** np.arange(300))), "reverses by more than 5%"),
    ("curve.validation_apart", "hint", text(validation=1.5), "eval_loss is"),
    ("curve.loss_scale", "warning", text(scale=2.0 ** np.repeat([16, 15, 14], 100)), "loss_scale falls"),
    ("curve.loss_scale", "error", text(scale=2.0 ** np.repeat([2, 0], 150)), "to 1"),
]


@pytest.mark.parametrize("rule, severity, log, says", MUST, ids=[f"{one[0]} {one[1]}" for one in MUST])
def test_must_fire(tmp_path, rule, severity, log, says):
    (tmp_path / "log.csv").write_text(log)
    found = symptoms(tmp_path / "dump", rule, CALLS, loss=tmp_path / "log.csv")
    assert [(one.rule, one.severity) for one in found] == [(rule, severity)]
    assert says in found[0].because


def test_a_sound_curve_is_silent(tmp_path):
    (tmp_path / "log.csv").write_text(text(validation=1.0))
    result = check(write(tmp_path / "dump", [CALLS]), jobs=1, only=("curve.*",), loss=tmp_path / "log.csv")
    assert not result.symptoms
    assert [one.decided for one in result.decisions if one.rule.startswith("curve.")] == ["yes"] * 4 + ["no"] + [
        "yes"
    ] * 2
    assert [one.name for one in result.curves] == ["loss", "eval_loss"]


def test_a_column_by_its_name(tmp_path):
    (tmp_path / "log.csv").write_text("step,a,b\n0,1,nan\n1,1,2\n")
    dump = write(tmp_path / "dump", [CALLS])
    with pytest.raises(UsageError, match="which column is the loss"):
        check(dump, jobs=1, loss=tmp_path / "log.csv")
    found = check(dump, jobs=1, only=("curve.*",), loss=tmp_path / "log.csv", column="b")
    assert [one.rule for one in found.symptoms] == ["curve.nonfinite"]
    assert found.curves[0].name == "b"


def test_a_long_curve_is_drawn_with_its_peaks(tmp_path):
    values = np.ones(20_000)
    values[[777, 10_001]] = 99, math.nan
    (tmp_path / "log").write_text("\n".join(map(str, values)))
    found = check(write(tmp_path / "dump", [CALLS]), jobs=1, loss=tmp_path / "log").curves[0]
    assert len(found.steps) < 3000 and max(v for v in found.values if v == v) == 99
    assert found.values[found.steps.index(777)] == 99 and math.isnan(found.values[found.steps.index(10_001)])


def test_what_a_dump_tells_explains_its_curve(tmp_path):
    """The curve runs away because of what was born in the dumped step."""
    (tmp_path / "log.csv").write_text(text(put(299, math.nan)))
    calls = [*CALLS, entropy(normal(8, 10), classes(8, 10), math.nan)]
    found = check(write(tmp_path / "dump", [calls]), jobs=1, loss=tmp_path / "log.csv").symptoms
    by_rule = {one.rule: one for one in found}
    assert by_rule["curve.nonfinite"].follows and not found[0].rule.startswith("curve.")


def test_the_page_draws_the_curve(tmp_path):
    from npucmp.report import answer_of, html

    (tmp_path / "log.csv").write_text(text(put(200, math.nan)))
    found = check(write(tmp_path / "dump", [CALLS]), jobs=1, loss=tmp_path / "log.csv")
    page = html.render(answer_of(found))["report.html"].decode()
    assert "<polyline" in page and "eval_loss" in page and "✗ not finite" in page
