"""What becomes of rules: each has its row, a failing one costs no other, and what follows stands under its cause."""

from __future__ import annotations

from fnmatch import fnmatchcase
from graphlib import TopologicalSorter

import numpy as np
import pytest

from npucmp import check, open_runs
from npucmp.dump.readers import values
from npucmp.errors import UsageError
from npucmp.health import gather as building
from npucmp.health.evaluate import FOLLOWS, LATER, examine, order_symptoms
from npucmp.health.gather import build
from npucmp.health.rule import NEEDS, Found, rule
from npucmp.health.rules import RULES
from npucmp.health.settings import CheckSettings, RuleSettings
from npucmp.measure import tensor_stats
from npucmp.model import TensorRef
from npucmp.model.check_finding import Symptom
from tests.health.craft import Training, checked

W = "layers.1.weight"


@rule("own.broken", needs="tensors")
def broken(health, limit):
    yield Found(None, "before it breaks")
    raise KeyError("what nobody expected")


@rule("own.two", severity="hint", needs="parameters", limit=1.0, remedy="mend it")
def two(health, limit):
    for one in health.parameters[:3]:
        yield Found(one, f"limit {limit:g}", severity="error" if one.name == W else "")


@pytest.fixture
def healths(tmp_path):
    return build(str(tmp_path), open_runs(Training(steps=2).write(tmp_path)))


def test_a_rule_that_raises_costs_its_row(healths, as_installed):
    got = examine(healths, (broken, two))
    assert [one.rule for one in got.symptoms] == ["own.two", "own.two"]
    failed, fine = got.decisions
    assert (failed.decided, failed.failed) == ("no", True) and failed.why_not.startswith("rule failed: KeyError")
    assert (fine.decided, fine.failed, fine.found) == ("yes", False, 3)


def test_places_of_one_severity_are_folded(healths):
    grave, light = examine(healths, (two,)).symptoms
    assert (grave.severity, grave.where, grave.places, grave.remedy) == ("error", W, 1, "mend it")
    assert (light.severity, light.where, light.places) == ("hint", "layers.0.weight", 2)
    assert light.also == ("layers.0.bias",) and light.follows == grave.place == 1


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (RuleSettings(limit=7.0), [("error", "limit 7"), ("hint", "limit 7")]),
        (RuleSettings(severity="warning"), [("warning", "limit 1")]),
        (RuleSettings(exclude=("layers.1.*",)), [("hint", "limit 1")]),
        (RuleSettings(include=("layers.1.*",)), [("error", "limit 1")]),
    ],
)
def test_what_a_user_changes(own, expected, healths):
    got = examine(healths, (two,), CheckSettings(own={"own.two": own}))
    assert [(one.severity, one.because) for one in got.symptoms] == expected
    assert got.decisions[0].limit_from == ("file" if own.limit else "default")


def test_rules_left_out_have_rows(healths):
    got = examine(healths, (broken, two), CheckSettings(only=("own.*",), skip=("own.b*",)))
    assert [(one.rule, one.decided, one.why_not) for one in got.decisions] == [
        ("own.broken", "no", "skipped by --skip"),
        ("own.two", "yes", ""),
    ]


def test_a_range_is_judged_where_one_is_set(healths):
    rules = [one for one in RULES if one.name == "weight.range"]
    assert examine(healths, rules).symptoms == ()
    (one,) = examine(healths, rules, CheckSettings(own={"weight.range": RuleSettings(more={"max_gt": 0.5})})).symptoms
    assert one.value is not None and one.value > 0.5 == one.limit


@pytest.mark.parametrize(
    "given", [{"only": ("weight.zerro",)}, {"skip": ("w*.zerro",)}, {"own": {"x": RuleSettings()}}]
)
def test_names_that_no_rule_has(given):
    with pytest.raises(UsageError, match="no rule is called"):
        CheckSettings(**given).require_known(RULES)


def test_names_needs_and_sources_of_rules():
    names = [one.name for one in RULES]
    assert len(names) == len({*names}) and all("." in name for name in names)
    for one in RULES:
        assert one.says and one.source, one.name
        assert set(one.needs) <= set(NEEDS)


def test_nothing_explains_itself_round_a_circle():
    """But for what only an earlier step explains."""
    rules = [*FOLLOWS]
    graph = {
        name: {other for other in rules for glob in globs if fnmatchcase(other, glob) and other != name}
        for name, globs in FOLLOWS.items()
        if name not in LATER
    }
    assert [*TopologicalSorter(graph).static_order()]


def symptom(rule: str, severity: str = "error", step: int | None = None, rank: int = 0) -> Symptom:
    return Symptom(0, severity, rule, "because", "", step=step, rank=rank)


def test_a_hint_that_explains_a_warning_is_one():
    made = order_symptoms(
        [symptom("loss.above_chance", "error"), symptom("input.scale", "hint"), symptom("x.y", "hint")]
    )
    assert [(one.rule, one.severity) for one in made] == [
        ("input.scale", "warning"), ("loss.above_chance", "error"), ("x.y", "hint")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("symptoms", "expected"),
    [
        ([symptom("grad.zero"), symptom("weight.zero")], [("weight.zero", 0), ("grad.zero", 1)]),
        ([symptom("weight.zero", "hint"), symptom("grad.zero")], [("grad.zero", 0), ("weight.zero", 0)]),
        ([symptom("grad.zero", "hint"), symptom("weight.zero", "hint")], [("weight.zero", 0), ("grad.zero", 1)]),
        ([symptom("grad.zero"), symptom("weight.zero", rank=1)], [("weight.zero", 0), ("grad.zero", 0)]),
        (
            [symptom("weight.nonfinite", step=1), symptom("grad.nonfinite", step=0)],
            [("grad.nonfinite", 0), ("weight.nonfinite", 1)],
        ),
        (
            [symptom("grad.nonfinite", step=0), symptom("weight.nonfinite", step=0)],
            [("weight.nonfinite", 0), ("grad.nonfinite", 1)],
        ),
        (  # an odd scale is as grave as what comes of it
            [symptom("loss.above_chance", "warning"), symptom("input.scale", "hint")],
            [("input.scale", 0), ("loss.above_chance", 1)],
        ),
        (  # a chain stands under its root
            [symptom("weights.none_change"), symptom("grad.zero"), symptom("relu.dead"), symptom("weight.zero")],
            [("weight.zero", 0), ("relu.dead", 1), ("grad.zero", 1), ("weights.none_change", 1)],
        ),
    ],
)
def test_causes_stand_first(symptoms, expected):
    assert [(one.rule, one.follows) for one in order_symptoms(symptoms)] == expected
    assert [one.place for one in order_symptoms(symptoms)] == [*range(1, len(symptoms) + 1)]


def test_a_file_that_cannot_be_read_is_no_health(tmp_path):
    training = Training()
    training.write(tmp_path)
    victim = next(tmp_path.glob("step1/rank0/dump_tensor_data/Module.layers.1.Linear.forward.0.weight.npy"))
    victim.write_bytes(victim.read_bytes()[:-9])
    result = check(tmp_path, jobs=1)
    assert result.exit_status in (1, 2) and len(result.unreadable) == 1
    assert "layers.1" in result.unreadable[0]
    rows = [one for one in result.parameters if one.parameter == W]
    assert [one.rms is None for one in rows] == [False, True, False]


def test_a_bad_file_does_not_hide_a_fault(tmp_path):
    training = Training()
    training.weights["layers.2.weight"] = [training.weights["layers.2.weight"][0]] * 3
    training.write(tmp_path)
    for file in tmp_path.glob("step*/rank0/dump_tensor_data/Module.layers.1.Linear.forward.0.weight.npy"):
        file.write_bytes(b"")
    result = check(tmp_path, jobs=1, only=("weight.not_changed",))
    assert [(one.rule, one.where) for one in result.symptoms] == [("weight.not_changed", "layers.2.weight")]
    assert result.exit_status == 1


def test_every_file_is_read_once(tmp_path, monkeypatch):
    seen = []
    read = values.blocks

    def watched(payload, *more, **words):
        seen.append(payload.path)
        return read(payload, *more, **words)

    monkeypatch.setattr(values, "blocks", watched)
    training = Training()
    checked(training, tmp_path)
    files = [*tmp_path.glob("step*/rank0/dump_tensor_data/*.npy")]
    assert len(files) > 50 and sorted(seen) == sorted(map(str, files))


def test_workers_find_the_same(tmp_path):
    runs = open_runs(Training().write(tmp_path))
    (one,), (two,) = (build(str(tmp_path), runs, jobs=jobs) for jobs in (1, 2))
    assert [p.weights for p in one.parameters] == [p.weights for p in two.parameters]
    assert [p.moves for p in one.parameters] == [p.moves for p in two.parameters]


def test_long_runs_are_not_opened_all_at_once(tmp_path, monkeypatch):
    """Between two parts nothing is known of the move; all the others are."""
    monkeypatch.setattr(building, "SIDE_BY_SIDE", 2)
    (health,) = build(str(tmp_path), open_runs(Training(steps=5).write(tmp_path)))
    assert [(a, b) for a, b, _ in health.by_name[W].moves] == [(0, 1), (2, 3)]


def test_figures_are_those_of_plain_arithmetic(tmp_path):
    random = np.random.default_rng(3)
    for dtype in ("float32", "float16", "float64", "int32"):
        numbers = random.normal(0, 100, 70_001).astype(dtype)
        numbers[5:50] = 0
        np.save(tmp_path / f"{dtype}.npy", numbers)
        ref = TensorRef("input:0", dtype, numbers.shape, file=str(tmp_path / f"{dtype}.npy"), encoding="npy")
        x = tensor_stats.figures_of(tensor_stats.StatsTask((ref,))).figures[0]
        wide = numbers.astype("float64")
        assert (x.elements, x.extremes.zeros, x.counted) == (70_001, int((wide == 0).sum()), True)
        assert (x.minimum, x.maximum) == (wide.min(), wide.max())
        assert x.mean == pytest.approx(wide.mean(), rel=1e-9, abs=1e-9)
        assert x.rms == pytest.approx(np.sqrt((wide**2).mean()), rel=1e-12)
        assert x.mean_abs == pytest.approx(np.abs(wide).mean(), rel=1e-12)
        assert x.std == pytest.approx(wide.std(), rel=1e-6)
