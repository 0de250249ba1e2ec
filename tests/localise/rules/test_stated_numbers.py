"""The numbers that --list-rules and docs/localisation.md state are those that the rules compute with."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from npucmp.cli import npucmp
from npucmp.judge.precision import STEP_BITS
from npucmp.judge.tolerance import FACTOR
from npucmp.localise import parameter_drift, seen_errors
from npucmp.localise.rule_context import FLIPPING, STANDS_OUT
from npucmp.localise.rules import (
    choice,
    condition,
    gradual,
    growth,
    long_sums,
    reduced,
    round_off,
    routed,
)

DOCS = (Path(__file__).parents[3] / "docs" / "localisation.md").read_text(encoding="utf-8")
LISTED = [  # rule, the words with "#" for the number, the constant
    ("round_off", "# unit round-offs of the coarsest", FACTOR),
    ("long_sums", "√K/# times", long_sums.SHORT),
    ("reduced", "keep # bits", -math.log2(reduced.REDUCED)),
    ("quantised", "a step of # bits", STEP_BITS),
    ("growth", "up to # times the incoming error", growth.GROWTH),
    ("condition", "times # times the condition number", condition.CONDITIONED),
    ("non_smooth", "up to # √e", math.sqrt(FLIPPING)),
    ("choice", "up to # √e", choice.SHARE),
    ("routed", "up to # √s", routed.ROWS),
    ("inherited", "at most # times that of the previous step", parameter_drift.GREW),
    ("inherited", "plus # √e", parameter_drift.UPDATE),
    ("inherited", "plus # steps of the optimizer", parameter_drift.REACH),
    ("arguments", "more than # times", STANDS_OUT),
    ("gradual", "more than # √u", gradual.HOPELESS),
    ("background", "# % quantile of the errors", 100 * seen_errors.QUANTILE),
]
WRITTEN = [  # of docs/localisation.md
    ("limit (`round_off`) | # u", FACTOR),
    ("limit (`round_off`) | 8 u, at most #", round_off.UNRELATED),
    ("× max(1, √K/#)", long_sums.SHORT),
    ("| # e (`growth`)", growth.GROWTH),
    ("| # κ e (`condition`)", condition.CONDITIONED),
    ("| # √e, or two elements (`non_smooth`)", math.sqrt(FLIPPING)),
    ("a share of # √e of the elements", choice.SHARE),
    ("| # √s, or another number of rows (`routed`)", routed.ROWS),
    ("| # times the error of the step before", parameter_drift.GREW),
    ("the step before + # √e_g", parameter_drift.UPDATE),
    ("+ # steps of the optimizer", parameter_drift.REACH),
]


def stated(words, text):
    found = re.search(re.escape(words).replace(r"\#", r"([\d.]+)").replace("#", r"([\d.]+)"), text)
    assert found, words
    return float(found[1])


@pytest.fixture(scope="module")
def listed():
    got = CliRunner().invoke(npucmp, ["compare", "--list-rules"])
    return {line.split()[1]: line for line in got.output.splitlines()}


@pytest.mark.parametrize(("rule", "words", "number"), LISTED)
def test_list_rules_states_the_constants(listed, rule, words, number):
    assert stated(words, listed[rule]) == pytest.approx(number)


@pytest.mark.parametrize(("words", "number"), WRITTEN)
def test_the_page_on_localisation_states_the_constants(words, number):
    assert stated(words, DOCS) == number
