"""What becomes of rules: each has its row, a failing one costs no other, and what follows stands under its cause."""

from __future__ import annotations

from fnmatch import fnmatchcase
from graphlib import TopologicalSorter

import pytest

from npucmp import check, open_runs
from npucmp.errors import UsageError
from npucmp.health.evaluate import FOLLOWS, LATER, examine
from npucmp.health.gather import build
from npucmp.health.rule import NEEDS, Found, rule
from npucmp.health.rules import RULES
from npucmp.health.settings import CheckSettings, RuleSettings
from tests.health.craft import Training

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


def test_a_bad_file_does_not_hide_a_fault(tmp_path):
    training = Training()
    training.weights["layers.2.weight"] = [training.weights["layers.2.weight"][0]] * 3
    training.write(tmp_path)
    for file in tmp_path.glob("step*/rank0/dump_tensor_data/Module.layers.1.Linear.forward.0.weight.npy"):
        file.write_bytes(b"")
    result = check(tmp_path, jobs=1, only=("weight.not_changed",))
    assert [(one.rule, one.where) for one in result.symptoms] == [("weight.not_changed", "layers.2.weight")]
    assert result.exit_status == 1
