"""Products that one run computes at once and the other separately: evidence, and the views that are compared."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.relations.frameworks.by_name.weight_match import matches_of
from tests.relations.frameworks.by_name.craft import Files, W, Y, group, values


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


# Matches


def test_each_part_is_compared_with_its_share_of_a_whole_of_the_golden(files):
    one = group(files, turned=True)
    found, unsure = matches_of([one], ANYWHERE)
    assert [each.target for each in found] == [*one.parts] and unsure == []
    assert {(each.via, each.confidence, each.inside, each.settled) for each in found} == {
        ("parts", 0.9, (one.whole.order,), True)
    }
    for each, weight, output in zip(found, W, Y):
        theirs = {tensor.slot: tensor for tensor in each.golden.tensors}
        assert [*theirs] == ["input:0", "param:weight", "output:0"]
        assert np.array_equal(values(theirs["param:weight"]), weight)
        assert np.array_equal(values(theirs["output:0"]), output)
