"""Settings of check and precheck: what a file says, and what is said of a slip in it."""

import importlib.metadata

import pytest

from npucmp.errors import UsageError
from npucmp.health import Found, rule
from npucmp.health.rule import own_rules
from npucmp.health.settings import load_settings


@rule("weight.change_large", limit=1.0)
def change_large(health, limit):
    yield Found(None, "large")


@rule("tensor.range", off=True, words="max_gt range_percentage_lt")
def tensor_range(health, limit):
    yield Found(None, "beyond")


RULES = (change_large, tensor_range)
FILE = """
fail_on = "hint"
skip = ["input.*", "weight.update*"]
start = "trained"
[rule."weight.change_large"]
limit = 0.5
severity = "hint"
exclude = ["*lora_B*", "*.cls_token"]
[rule."tensor.range"]
include = ["*sigmoid*"]
max_gt = 1e4
range_percentage_lt = 0.1
[expect]
frozen = ["backbone.*"]
shared = [["wte.weight", "lm_head.weight"]]
repeated_input = true
[row."hyperparameters"]
ignore = ["output_dir", "*port*"]
"""


def load(tmp_path, text, **more):
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    return load_settings(tmp_path / "own.toml", RULES, **more)


def test_what_a_file_says(tmp_path):
    found = load(tmp_path, FILE)
    assert (found.fail_on, found.start, found.phase) == ("hint", "trained", "auto")
    change = found.of(change_large)
    assert (change.limit, change.severity, found.limit(change_large)) == (0.5, "hint", 0.5)
    assert change.wants("a.weight") and not change.wants("x.lora_B.weight") and not change.wants("vit.cls_token")
    assert found.limit(tensor_range) == {"max_gt": 1e4, "range_percentage_lt": 0.1}
    assert found.of(tensor_range).wants("my_sigmoid_1") and not found.of(tensor_range).wants("relu")
    assert found.expect == {"frozen": ("backbone.*",), "shared": (("wte.weight", "lm_head.weight"),),
                            "repeated_input": True}  # fmt: skip
    assert found.rows["hyperparameters"].more["ignore"] == ("output_dir", "*port*")


SLIPS = [
    ('fail_on = "never"', "fail_on: expected one of hint, warning, error, not 'never'"),
    ('fail_no = "hint"', "unknown word 'fail_no'; nearest: fail_on"),
    ("skip = 1", "skip: expected a list of names, not 1"),
    ('skip = ["weight.change_lrge"]', "unknown rule 'weight.change_lrge'; nearest: weight.change_large"),
    ('[rule."weight.chang_large"]', "unknown rule 'weight.chang_large'; nearest: weight.change_large"),
    ('[rule."weight.change_large"]\nlimt = 1', "unknown word 'limt'; nearest: limit"),
    ('[rule."weight.change_large"]\nlimit = "1"', "limit: expected a number, not '1'"),
    ('[rule."weight.change_large"]\nlimit = nan', "expected a number"),
    ('[rule."weight.change_large"]\nlimit = true', "expected a number"),
    ('[rule."weight.change_large"]\nmax_gt = 1', "unknown word 'max_gt'"),
    ('[rule."tensor.range"]\nlimit = 1', "unknown word 'limit'"),
    ('[rule."tensor.range"]\nmax_gt = "a"', "max_gt: expected a number"),
    ("rule = 3", "rule: expected a table"),
    ("[rule]\n'weight.change_large' = 3", "expected a table"),
    ('[expect]\nfroze = ["a"]', "unknown word 'froze'; nearest: frozen"),
    ('[expect]\nshared = ["a", "b"]', "shared: expected a list of lists of names, not ['a', 'b']"),
    ("[expect]\nrepeated_input = 1", "repeated_input: expected true or false"),
    ("[row.x]\nignore = 1", "ignore: expected a list of names"),
    ("fail_on = ", "not TOML"),
]


@pytest.mark.parametrize("text, says", SLIPS)
def test_slips_are_said_with_the_file(tmp_path, text, says):
    with pytest.raises(UsageError) as error:
        load(tmp_path, text)
    assert says in str(error.value) and "own.toml" in str(error.value)


def test_rows_are_held_against_those_that_there_are(tmp_path):
    assert load(tmp_path, "[row.inputs]").rows
    with pytest.raises(UsageError, match="unknown row 'inputs'; nearest: input"):
        load(tmp_path, "[row.inputs]", rows=("input", "weights"))
    with pytest.raises(UsageError, match="unknown rule 'inputs'; nearest: input"):
        load(tmp_path, 'skip = ["inputs"]', rows=("input", "weights"))


OWN = """
from npucmp.health import Found, rule

@rule("mine.second", says="b")
def second(health, limit):
    yield Found(None, "b")

@rule("mine.first", limit=3, says="a")
def first(health, limit):
    yield Found(None, "a", value=limit)
"""


def test_own_rules_of_a_file(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    found = own_rules([tmp_path / "own.py"], known=RULES)
    assert [one.name for one in found] == ["mine.second", "mine.first"]
    assert next(found[1].find(None, 3)).value == 3


BAD = [
    ("1 / 0", "ZeroDivisionError: division by zero"),
    ("a = 1", "holds no rule"),
    ("def", "SyntaxError"),
    (OWN.replace("mine.first", "weight.change_large"), "rule weight.change_large already exists in npucmp"),
    (OWN.replace("mine.first", "mine.second"), "rule mine.second already exists in"),
    (OWN.replace('says="b"', 'needs="b"'), "unknown need or severity"),
]


@pytest.mark.parametrize("text, says", BAD)
def test_files_that_hold_no_rule(tmp_path, text, says):
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(UsageError) as error:
        own_rules([tmp_path / "own.py"], known=RULES)
    assert says in str(error.value) and "own.py" in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"own\.py: no such file"):
        own_rules([tmp_path / "own.py"])


class Point:
    name, value = "router", "package.rules"

    def __init__(self, held):
        self.held = held

    def load(self):
        if isinstance(self.held, Exception):
            raise self.held
        return self.held


@pytest.mark.parametrize("held", [change_large, [change_large], (change_large,)])
def test_own_rules_of_a_package(monkeypatch, held):
    class Points(dict):
        def select(self, group):
            return [Point(held)] if group == "npucmp.rules" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", Points)
    assert own_rules([]) == (change_large,)
    assert own_rules([], installed=False) == ()


def test_a_package_that_cannot_be_loaded_is_said(monkeypatch):
    points = type("Points", (), {"select": lambda self, group: [Point(ImportError("no router"))]})
    monkeypatch.setattr(importlib.metadata, "entry_points", points)
    with pytest.raises(UsageError, match=r"entry point router .*no router; --no-plugins skips it"):
        own_rules([])
