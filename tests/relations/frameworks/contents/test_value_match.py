"""Pairs of contents by their values: which are equal, how certain that is, and which candidates count."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.model import Statistics
from npucmp.model.relation import SAME_ORDER
from npucmp.relations.frameworks.contents.value_match import match_values
from tests.relations.frameworks.contents.small_runs import Step, pairs_of, seeded

FIGURES = "recorded statistics of no other tensor of this size are near"


def steps(*outputs):
    """An operator for each tensor, so that contents have the numbers of their operators."""
    return tuple(Step("exp", (), (one,)) for one in outputs)


def matched(target, golden, noise=1e-3):
    pairs = pairs_of(target, golden, noise)
    match_values(pairs)
    assert all(one.via == "content" for one in pairs)
    return pairs


# Recorded statistics


def figures(share=0.0, **more):
    return Statistics(*(one * (1 + share) for one in (3.0, -1.0, 0.5, 8.0)))._replace(**more)


def with_figures(values):
    """Values and statistics of one tensor of 16 elements."""
    norm = float(np.linalg.norm(values))
    return Statistics(float(values.max()), float(values.min()), float(values.mean()), norm)


VALUES = seeded(4, 4, 4)


@pytest.mark.parametrize("target, golden", [
    (figures(), figures()), (figures(9e-4), figures()), (VALUES, with_figures(VALUES)), (with_figures(VALUES), VALUES),
])  # fmt: skip
def test_equal_statistics_are_an_uncertain_pair(target, golden):
    (pair,) = matched(steps(target), steps(golden))
    assert pair == (0, 0, "content", 0.9, FIGURES, SAME_ORDER, None)
