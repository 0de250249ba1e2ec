"""Stated sizes of layouts: coordinates of ranks, replicas, and what records contradict."""

from __future__ import annotations

import pytest

from npucmp.align.layout_sizes import LayoutSizes, parse_layout, stated_layout, subset
from npucmp.errors import UsageError

SIZES = parse_layout("tp=2,dp=3,pp=2")


@pytest.mark.parametrize(
    "text, sizes",
    [
        ("tp=2", {"tp": 2, "cp": 1, "ep": 1, "dp": 1, "pp": 1}),
        (" tp = 2, pp=3 ", {"tp": 2, "cp": 1, "ep": 1, "dp": 1, "pp": 3}),
        ("order=tp-pp-dp,tp=2,dp=12", {"tp": 2, "pp": 1, "dp": 12}),
        ("pp=4,order=pp", {"pp": 4}),
        ("ep=1", {"tp": 1, "cp": 1, "ep": 1, "dp": 1, "pp": 1}),
        ("dp=100000", {"tp": 1, "cp": 1, "ep": 1, "dp": 100000, "pp": 1}),
    ],
)
def test_a_layout_in_words(text, sizes):
    found = parse_layout(text)
    assert dict(found.sizes) == sizes and [name for name, _ in found.sizes] == [*sizes]


@pytest.mark.parametrize(
    "text",
    ["", "tp", "tp=", "tp=0", "tp=-1", "tp=2,tp=2", "xp=2", "tp=1000000", "order=tp-pp", "order=tp-tp,tp=2",
     "order=tp-xp,tp=2", "order=tp-pp,dp=2", "tp=2,"],
)  # fmt: skip
def test_other_text_is_no_layout(text):
    with pytest.raises(ValueError):
        parse_layout(text)


def test_the_option_that_states_a_layout():
    assert stated_layout("target-layout", None) is None
    assert stated_layout("target-layout", "tp=2") == parse_layout("tp=2")
    with pytest.raises(UsageError, match="--target-layout tp=0: tp=0 is no size of tp, cp, ep, dp or pp"):
        stated_layout("target-layout", "tp=0")
    assert stated_layout("golden-layout", "tp=512,dp=512").ranks == 2**18
    with pytest.raises(UsageError, match="262,656 ranks; at most 262,144"):
        stated_layout("golden-layout", "tp=513,dp=512")


def test_sizes_and_words():
    assert SIZES.ranks == 12 and SIZES.words == "tp=2,dp=3,pp=2"
    assert parse_layout("tp=1").words == "1 rank" and parse_layout("tp=1").ranks == 1
    assert (SIZES.size("dp"), SIZES.size("cp"), LayoutSizes((("tp", 2),)).size("pp")) == (3, 1, 1)


@pytest.mark.parametrize("rank, tp, dp, pp", [(0, 0, 0, 0), (1, 1, 0, 0), (2, 0, 1, 0), (5, 1, 2, 0), (6, 0, 0, 1),
                                              (11, 1, 2, 1)])  # fmt: skip
def test_coordinates_of_a_rank(rank, tp, dp, pp):
    assert SIZES.at(rank) == {"tp": tp, "cp": 0, "ep": 0, "dp": dp, "pp": pp}


def test_replicas():
    assert [SIZES.replica(number) for number in range(4)] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11], []]
    assert parse_layout("order=tp-pp,tp=2").replica(0) == [0, 1]


@pytest.mark.parametrize(
    "ranks, is_replica",
    [
        ([0, 1, 6, 7], True),
        ([9, 8, 3, 2], True),
        ([0, 1], False),
        ([0, 1, 6, 7, 8], False),
        ([0, 1, 8, 9], False),
        ([], False),
        ([12, 13, 18, 19], False),  # beyond the layout
    ],
)
def test_the_ranks_of_one_replica(ranks, is_replica):
    assert SIZES.is_replica(ranks) is is_replica


def test_axes_within_a_stage():
    assert SIZES.within_stage() == [2, 3] and SIZES.within_stage(of_replica=True) == [2]
    assert parse_layout("pp=4").within_stage() == []


@pytest.mark.parametrize(
    "groups, stages, contradiction",
    [
        ([(0, 1), (0, 2, 4), (1, 3, 5), (0, 6), (0, 1, 2, 3, 4, 5)], {}, None),
        ([(7, 6)], {0: 0, 6: 1}, None),
        ([(3,)], {0: 0}, None),
        ([(0, 2)], {}, "a collective has the group of ranks 0,2, dp of this layout 0,2,4"),
        ([(0, 3)], {}, "a collective has the group of ranks 0,3, dp and tp of this layout 0-5"),
        ([(0, 1), (0, 12)], {}, "ranks 0,12"),
        ([], {0: 0, 1: 1, 2: 2}, "sends lead through 3 pipeline stages, this layout has 2"),
        ([], {0: 0, 1: 1}, None),
        ([], {0: 0}, None),  # no sends are recorded
    ],
)
def test_records_that_contradict_a_layout(groups, stages, contradiction):
    found = SIZES.contradiction(groups, stages)
    assert found is None if contradiction is None else contradiction in (found or "")


@pytest.mark.parametrize(
    "target, golden, ranks",
    [
        ("tp=4", "tp=1", [[0, 1, 2, 3]]),
        ("tp=4", "tp=2", [[0, 1], [2, 3]]),
        ("tp=4", "tp=4", [[0], [1], [2], [3]]),
        ("tp=2,dp=2", "tp=2", [[0, 2], [1, 3]]),
        ("tp=2,dp=2", "dp=2", [[0, 1], [2, 3]]),
        ("tp=2", "tp=4", [None, None, None, None]),
        ("tp=3", "tp=2", [None, None]),
        ("order=tp,tp=2", "order=dp,dp=2", [None, None]),
        ("order=tp-dp,tp=2,dp=2", "order=dp-tp,tp=2,dp=2", [[0], [2], [1], [3]]),
        ("order=tp-dp,tp=2,dp=2", "order=tp,tp=2", [[0, 2], [1, 3]]),
    ],
)
def test_the_ranks_that_make_one_rank_of_the_golden(target, golden, ranks):
    whole = parse_layout(golden)
    assert [subset(parse_layout(target), whole, rank) for rank in range(whole.ranks)] == ranks
