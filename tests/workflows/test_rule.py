"""`npucmp rule`: every rule has a page, found by name or glob."""

from __future__ import annotations

import json

import pytest

import npucmp
from npucmp.comparability.registry import NAMES
from npucmp.errors import UsageError
from npucmp.health.rules import RULES as CHECK_RULES
from npucmp.localise.rules import RULES
from tests.command import npucmp as run


@pytest.fixture(scope="module")
def pages():
    return npucmp.rule()


def test_every_rule_has_a_page(pages):
    of = {
        command: {page.name for page in pages if page.command == command}
        for command in ("compare", "check", "precheck")
    }
    assert {rule.name for rule in RULES} <= of["compare"]
    assert of["check"] == {rule.name for rule in CHECK_RULES} and of["precheck"] == {*NAMES}
    assert {page.command for page in pages} == {*of, "overflow", "rerun-diff", "parity"}


def test_every_page_says_what_the_rule_does(pages):
    assert [page.name for page in pages if len(page.sentence) < 4] == []
    silent = [page.name for page in pages if len(page.text.split()) < 4 and page.command in ("compare", "check")]
    assert [name for name in silent if "." not in name] == []


def test_a_rule_has_its_reasons_and_constants():
    (growth,) = npucmp.rule("growth")
    assert "2.1 times the incoming error" in " ".join(growth.text.split())
    assert ("GROWTH", "8.0") in {(one.name, one.value) for one in growth.constants}
    assert all(one.unit and one.source for one in growth.constants)


def test_a_rule_of_check_has_only_the_constants_that_it_reads():
    (zero,) = npucmp.rule("weight.zero")
    assert dict(zero.facts)["advice"] == "initialise it randomly (Xavier, He)" and not zero.constants


def test_names_may_be_globs():
    assert {page.name.partition(".")[0] for page in npucmp.rule(["weight.*", "copy"])} == {"weight", "copy"}


@pytest.mark.parametrize(("name", "near"), [("growht", "growth"), ("zero", "loss.zero")])
def test_an_unknown_name_gets_the_nearest(name, near):
    with pytest.raises(UsageError, match=f"no rule '{name}'.*{near}"):
        npucmp.rule(name)


def test_the_command_prints_pages_and_the_list(pages):
    got = run("rule", "weight.zero", "input")
    assert got.returncode == 0 and got.stdout.splitlines()[:2] == [
        "weight.zero  check  warning", "a weight starts at zero",
    ]  # fmt: skip
    listed = run("rule").stdout
    assert all(f"  {page.name} " in listed for page in pages)
    assert run("rule", "growht").returncode == 2


def test_the_command_writes_json():
    found = json.loads(run("rule", "growth", "--json").stdout)
    assert found["command"] == "rule" and found["exit_status"] == 0
    assert found["rules"][0]["constants"][0].keys() == {"module", "name", "value", "unit", "source"}


def test_sentences_are_translated():
    got = run("--lang", "zh", "rule", "weight.zero")
    assert "a weight starts at zero" not in got.stdout and "initialise it" not in got.stdout
