"""The stages of an alignment by contents: which anchors count, and what a report says."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.model import Match
from npucmp.relations.frameworks.contents.content_alignment import align_contents
from tests.align.craft import run_with_values
from tests.relations.frameworks.contents.small_runs import drawn, seeded

X, Y = seeded(1, 4, 6), seeded(2, 4, 6)


# Whole alignments


@pytest.fixture
def runs(tmp_path):
    """A function that makes two runs of operators that write these values, and read none or those of `reads`."""

    def make(target, golden, reads=()):
        found = []
        for side, outputs in (("target", target), ("golden", golden)):
            inputs = dict(reads) if side == "golden" else {}
            calls = [(f"Torch.rand.{at}.forward", inputs.get(at, []), [one]) for at, one in enumerate(outputs)]
            found.append(run_with_values(tmp_path / side, calls))
        return found

    return make


def partners(target, golden, *anchors):
    """How operators were paired: the golden operator, stage, confidence and reason, by the target's operator. An anchor
    is a stage and the numbers of two operators."""
    matches = [Match(target.operators[one], golden.operators[other], via, 0.7) for via, one, other in anchors]
    found = align_contents(target, golden, matches, ANYWHERE).pairs
    graphs = found.target, found.golden
    return {
        graphs[0].contents[one.target].first: (
            graphs[1].contents[one.golden].first,
            one.via,
            one.confidence,
            one.reason,
        )
        for one in found
    }


def test_outputs_of_another_size_and_constants_are_anchored_by_nothing(runs):
    target, golden = runs([X, np.ones((4, 6), np.float32)], [drawn(4, 7), drawn(4, 6)])
    assert partners(target, golden, ("graph", 0, 0), ("graph", 1, 1)) == {}
    assert partners(golden, target, ("graph", 0, 0), ("graph", 1, 1)) == {}


def uncertain(runs):
    """The last two golden operators write what they read, so that the first target operator has two partners."""
    return runs([X, drawn(4, 6), Y], [drawn(9), X, X, Y], {2: [X]}.items())


@pytest.mark.parametrize("anchor, expected", [
    (("mapping", 0, 2), {0: (2, "mapping"), 2: (3, "content")}),  # another partner
    (("mapping", 0, 1), {0: (1, "content"), 2: (3, "content")}),  # the partner by value
    (("graph", 0, 2), {0: (1, "content"), 2: (3, "content")}),
    (("mapping", 1, 1), {1: (1, "mapping"), 2: (3, "content")}),  # the partner of another operator
    (("mapping", 1, 3), {0: (1, "content"), 2: (3, "content")}),  # a certain pair stays
    (("mapping", 2, 2), {0: (1, "content"), 2: (3, "content")}),
])  # fmt: skip
def test_a_mapping_replaces_uncertain_pairs(runs, anchor, expected):
    found = partners(*uncertain(runs), anchor)
    assert {one: other[:2] for one, other in found.items()} == expected
