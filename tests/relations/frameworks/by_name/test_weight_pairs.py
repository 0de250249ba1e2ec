"""Operators that share a weight, and weights that consist of several."""

from __future__ import annotations

import math

import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.model import Statistics, TensorRef
from npucmp.relations.frameworks.by_name.weight_match import same, weights_of
from tests.relations.frameworks.by_name.craft import Files, drawn


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


# One weight of two operators

M, N = drawn(10, 6, seed=1), drawn(10, 6, seed=2)


def readers(files, *weights, what="", kind="Linear"):
    return weights_of([files.neutral((f"m{at}",), what, kind=kind, param_weight=one) if not what else
                       files.neutral((f"m{at}",), what, kind=kind, input_1=one) for at, one in enumerate(weights)],
                      ANYWHERE)  # fmt: skip


def paired(here, there):
    return [(one.here.owner.place[0], one.there.owner.place[0]) for one in same(here, there, ANYWHERE)]


def statistics_of(max_, min_, mean, norm):
    return TensorRef("", "float32", (10, 6), statistics=Statistics(max_, min_, mean, norm))


KNOWN = (4.0, -2.0, 0.5, 10.0)


@pytest.mark.parametrize(
    "other, is_near",
    [
        (KNOWN, True),
        ((4.007, -2.007, 0.507, 10.019), True),  # the ends and the mean relative to the larger end: 4 · 0.002
        ((4.009, -2.0, 0.5, 10.0), False),
        ((4.0, -2.009, 0.5, 10.0), False),
        ((4.0, -2.0, 0.509, 10.0), False),
        ((4.0, -2.0, 0.5, 10.021), False),
        ((4.0, -2.0, 0.5, None), False),
        ((None, -2.0, 0.5, 10.0), False),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_weights_of_which_statistics_are_recorded(files, other, is_near, sign):
    def turned(high, low, mean, norm):
        return (high, low, mean, norm) if sign > 0 else (-low, high and -high, -mean, norm)

    here, there = (readers(files, statistics_of(*turned(*one))) for one in (KNOWN, other))
    assert bool(paired(here, there)) is is_near
    if None in other:
        assert not paired(there, here)


def test_statistics_of_a_constant_identify_no_weight(files):
    constant = statistics_of(1.0, 1.0, 1.0, math.sqrt(60))
    assert paired(readers(files, constant), readers(files, constant)) == []
    assert paired(readers(files, M), readers(files, statistics_of(*KNOWN))) == []
