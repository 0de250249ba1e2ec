"""A few generated pairs of each layout: none is accused, none agrees wrongly."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.corpus.tokens.cases import KINDS, cases
from tests.corpus.tokens.score import graded


@pytest.mark.large
def test_generated_pairs_are_graded_right():
    every = [graded(one) for one in cases(9, len(KINDS), len(KINDS), 6)]
    found = Counter(one.grade for one in every)
    assert not found["accused"] and not found["false agrees"]
    proven = {one.grade for one in every if " clean " in one.case.name and " extras " in one.case.name}
    assert found["silent"] + found["refused"] == len(KINDS) and proven == {"silent"}
    assert found["found"] >= 14 and found["caught"] == 6
