"""What npucmp answers to the kept pairs has not changed."""

from __future__ import annotations

from typing import Iterator

import pytest

from tests.corpus.answers.sheets import asked, difference, here, kept

TOGETHER = 12  # pairs of one test
LARGE = ("bench/", "layouts/", "planted/", "tokens/")  # a seventh of the pairs, more than half of the time


def parts(is_large: bool) -> Iterator[object]:
    """Yield the pairs of each test; those of LARGE are asked by .ci/run corpus."""
    names = [name for name in here() if name.startswith(LARGE) is is_large]
    for at in range(0, len(names), TOGETHER):
        yield pytest.param(names[at : at + TOGETHER], marks=[pytest.mark.large] * is_large, id=names[at])


@pytest.mark.parametrize("names", [*parts(False), *parts(True)])
def test_answers_are_the_kept_ones(names: list[str]) -> None:
    """`python -m tests.corpus.answers --accept PATTERN` keeps other answers, after you have read the difference."""
    before, lines = kept(), []
    for name in names:
        changed = [*difference(before[name], asked(name))]
        lines += [f"== {name}", *changed] if changed else []
    assert not lines, "\n".join(lines)
