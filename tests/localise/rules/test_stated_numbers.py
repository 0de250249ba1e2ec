"""The numbers that `npucmp rule` and docs/localisation.md state are those that the rules compute with."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from npucmp.cli import npucmp
from npucmp.judge.precision import STEP_BITS
from npucmp.judge.tolerance import FACTOR
from npucmp.localise import parameter_drift
from npucmp.localise.rule_context import FLIP_SHARE, OUTLIER_FACTOR, QUANTILE
from npucmp.localise.rules import accusations, explanations, limits
from npucmp.workflows.rule import rule

PAGE = Path(__file__).parents[3] / "docs" / "localisation.md"
LISTED = [  # rule, the words with "#" for the number, the constant
    ("round_off", "# unit round-offs of the coarsest", FACTOR),
    ("long_sums", "√K/# times", limits.SHORT),
    ("reduced", "keep # bits", -math.log2(limits.REDUCED_ROUND_OFF)),
    ("quantised", "quantised to # bits", STEP_BITS),
    ("growth", "up to # times the incoming error", explanations.GROWTH),
    ("condition", "times # times the condition number", explanations.CONDITION_FACTOR),
    ("non_smooth", "up to # √e", math.sqrt(FLIP_SHARE)),
    ("choice", "up to # √e", explanations.CHOICE_SHARE),
    ("routed", "up to # √s", explanations.ROWS),
    ("inherited", "may grow # times in each step", parameter_drift.ERROR_GROWTH),
    ("inherited", "plus # √e", parameter_drift.UPDATE),
    ("inherited", "plus # optimizer steps", parameter_drift.UPDATE_FACTOR),
    ("arguments", "more than # times", OUTLIER_FACTOR),
    ("gradual", "exceed # √u", accusations.ERROR_LIMIT),
    ("background", "# % of the earlier tensors", 100 * QUANTILE),
]
WRITTEN = [  # in docs/localisation.md, or in docstrings, which `npucmp rule NAME` prints
    ("floats (`round_off`) | # u", FACTOR),
    ("floats (`round_off`) | 8 u, at most #", limits.UNRELATED_ERROR),
    ("× max(1, √K/#)", limits.SHORT),
    ("an operator may enlarge an error # times (`growth`)", explanations.GROWTH),
    ("by # times its condition number (`condition`)", explanations.CONDITION_FACTOR),
    ("is assumed to flip at most, so rel_l2 is # √e", math.sqrt(FLIP_SHARE)),
    ("A share of # √e of the elements may differ", explanations.CHOICE_SHARE),
    ("The bound is # √s, and none", explanations.ROWS),
    ("The bound is # times the error of the step before", parameter_drift.ERROR_GROWTH),
    ("the error of the step before, plus # √e_g", parameter_drift.UPDATE),
    ("# steps of the optimizer replace", parameter_drift.UPDATE_FACTOR),
    ("A share of # e is assumed to flip", FLIP_SHARE),
]


def stated(words, text):
    found = re.search(re.escape(words).replace(r"\#", r"(\d+(?:\.\d+)?)").replace("#", r"(\d+(?:\.\d+)?)"), text)
    assert found, words
    return float(found[1])


@pytest.fixture(scope="module")
def listed():
    got = CliRunner().invoke(npucmp, ["compare", "--list-rules"])
    return {line.split()[1]: line for line in got.output.partition("\n\n")[2].splitlines()}


@pytest.fixture(scope="module")
def pages():
    texts = PAGE.read_text(encoding="utf-8"), *(page.text for page in rule())
    return " ".join(word for text in texts for word in text.split())


@pytest.mark.parametrize(("rule", "words", "number"), LISTED)
def test_list_rules_states_the_constants(listed, rule, words, number):
    assert stated(words, listed[rule]) == pytest.approx(number)


@pytest.mark.parametrize(("words", "number"), WRITTEN)
def test_the_pages_state_the_constants(pages, words, number):
    assert stated(words, pages) == number
