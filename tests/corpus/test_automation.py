"""The cases for automated callers can be solved: the output of one command answers each question."""

from __future__ import annotations

import json
import re

import pytest

from tests.command import npucmp
from tests.corpus.automation import CASES, solved, write_cases

PAIR = ("compare", "npu", "gpu")
CALLS = (
    PAIR, PAIR, PAIR, PAIR, PAIR, PAIR, PAIR, PAIR, PAIR, PAIR, ("overflow", "npu"),
    ("overflow", "npu", "--golden", "gpu"), ("fusion-diff", "on", "off"), ("rerun-diff", "run1", "run2", "run3"),
    ("parity", "rollout", "trainer"), ("replay", "npu"), ("precheck", "npu", "gpu"),
    ("plan", "compare", "--framework", "pytorch", "--steps", "3", "--ranks", "0", "-o", "cfg"),
    ("diff", "report_monday", "report_today"), ("show", "npu", "--fit", "replay"),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("automation") / "cases"
    write_cases(path)
    return path


@pytest.mark.few(4)
@pytest.mark.parametrize("number, words", [*enumerate(CALLS, 1)])
def test_one_command_answers_each_question(folder, number, words):
    place = folder / f"{number:02}"
    got = npucmp(*words, cwd=place)
    more = [file.read_text() for file in (place / "cfg").glob("*.json")]
    answer = re.sub(r"is the type|the type is", "TYPE", " ".join([got.stdout, *more]))
    assert len(got.stdout) < 15_000 * 3  # a third of what a caller may read
    assert [*solved({place.name: answer})] == [place.name]


def test_an_empty_answer_solves_nothing():
    assert solved({}) == []
    assert solved(dict.fromkeys((f"{at:02}" for at in range(1, 21)), "I do not know")) == []
    assert len(CASES) == 20 and json.dumps([one.truth for one in CASES])
