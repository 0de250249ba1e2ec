"""What npucmp answers to the kept pairs has not changed."""

from __future__ import annotations

import pytest

from tests.corpus.answers.sheets import asked, difference, here, kept

TOGETHER = 12  # pairs of one test
NAMES = here()


@pytest.mark.parametrize(
    "names", [NAMES[at : at + TOGETHER] for at in range(0, len(NAMES), TOGETHER)], ids=lambda names: names[0]
)
def test_answers_are_the_kept_ones(names: list[str]) -> None:
    """`python -m tests.corpus.answers --accept PATTERN` keeps other answers, after you have read the difference."""
    before, lines = kept(), []
    for name in names:
        changed = [*difference(before[name], asked(name))]
        lines += [f"== {name}", *changed] if changed else []
    assert not lines, "\n".join(lines)
