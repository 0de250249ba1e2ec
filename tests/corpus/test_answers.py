"""What npucmp answers to some pairs has not changed: the exit status, each row, each reason. Nothing in it is explained
by what agrees (agreement.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.agreement import violations
from tests.corpus.answers import PAIRS, answer_of, compared, kept


@pytest.mark.parametrize("name", PAIRS)
def test_the_answer_is_the_kept_one(tmp_path: Path, name: str) -> None:
    """`python -m tests.corpus.answers > tests/corpus/sheets/answers.txt` keeps others, after you have read them."""
    report = compared(name, tmp_path)
    assert answer_of(report, tmp_path).splitlines() == kept()[name].splitlines()
    assert [broken for one in getattr(report, "comparisons", ()) for broken in violations(one)] == []


def test_each_kept_answer_is_of_a_pair() -> None:
    assert [*kept()] == [*PAIRS]
