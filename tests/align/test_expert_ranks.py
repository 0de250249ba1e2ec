"""Ranks that hold an operator: all of a stage, or those that have its expert."""

from __future__ import annotations

import pytest

from npucmp.align.expert_ranks import ExpertRanks
from tests.align.rank_craft import numbers, rank_of

X = numbers(4, 6)
FIRST, SECOND, ALL = (numbers(5, 6, seed=at) for at in (1, 2, 3))


def linear(weight, number=0, phase="forward"):
    return f"Torch.linear.{number}.{phase}", [X, weight], [X]


def experts(folder, first, second, names, stages=None):
    """The experts of two ranks, and the operators of the golden; `names`: the ranks that have each."""
    golden = [linear(FIRST), linear(ALL, 1), linear(FIRST, 0, "backward"), ("Torch.sin.9.forward", [X], [X]),
              linear(ALL, 7, "backward"), ("Torch.abs.0.forward", [X], [X])]  # fmt: skip
    ranks = {at: rank_of(folder / f"{at}", calls, at) for at, calls in enumerate((first, second))}
    whole = rank_of(folder / "golden", golden)
    partners = {one.name: {} for one in whole.operators}
    partners |= {
        name: {(rank, 0): ranks[rank].operators[at] for rank, at in some.items()} for name, some in names.items()
    }
    return ExpertRanks(ranks, whole, stages or {0: 0, 1: 0}, partners, {}), whole


EXPERT, BACK, SHARED, UPDATE = (
    "Torch.linear.0.forward",
    "Torch.linear.0.backward",
    "Torch.linear.1.forward",
    "Torch.abs.0.forward",
)


@pytest.mark.parametrize("other, lacks", [(SECOND, False), (FIRST, True)])
def test_an_expert_has_a_parameter_that_no_other_rank_reads(tmp_path, other, lacks):
    first, second = [linear(FIRST), linear(ALL, 1)], [linear(other), linear(ALL, 1)]
    found, golden = experts(tmp_path, first, second, {EXPERT: {0: 0}, BACK: {0: 0}, SHARED: {0: 1, 1: 1}})
    expert, shared, back = golden.operators[:3]
    assert found.holders(expert) == {0} and found.holders(shared) == {0, 1}
    assert found.is_of_some_ranks(expert) and not found.is_of_some_ranks(shared)
    assert [found.lacks_a_rank(one) for one in (expert, shared, back)] == [lacks, False, lacks]


def test_an_operator_without_a_parameter_belongs_to_the_expert_of_its_ranks(tmp_path):
    calls = [linear(FIRST), ("Torch.sin.0.forward", [X], [X])], [linear(SECOND)]
    sine = "Torch.sin.9.forward"
    found, golden = experts(tmp_path / "expert", *calls, {EXPERT: {0: 0}, sine: {0: 1}})
    assert not found.lacks_a_rank(golden.by_name[sine])
    found, golden = experts(tmp_path / "none", *calls, {sine: {0: 1}})
    assert found.lacks_a_rank(golden.by_name[sine])


def test_weights_of_a_backward_pass_are_no_parameters(tmp_path):
    second = [linear(SECOND), linear(FIRST, 5, "backward")]
    found, golden = experts(tmp_path, [linear(FIRST)], second, {EXPERT: {0: 0}})
    assert not found.lacks_a_rank(golden.by_name[EXPERT])


def test_ranks_of_another_stage_are_no_others(tmp_path):
    found, golden = experts(tmp_path, [linear(FIRST)], [linear(FIRST)], {EXPERT: {0: 0}}, {0: 0, 1: 1})
    assert not found.is_of_some_ranks(golden.by_name[EXPERT]) and not found.lacks_a_rank(golden.by_name[EXPERT])


def test_updates_may_be_split_over_ranks(tmp_path):
    found, golden = experts(tmp_path, [linear(FIRST), linear(ALL, 1)], [linear(FIRST)], {UPDATE: {0: 1}})
    assert found.is_of_some_ranks(golden.by_name[UPDATE]) and not found.lacks_a_rank(golden.by_name[UPDATE])


def test_operators_that_no_rank_has(tmp_path):
    found, golden = experts(tmp_path, [linear(FIRST)], [linear(FIRST)], {})
    assert found.holders(golden.operators[0]) == frozenset() and not found.is_of_some_ranks(golden.operators[0])
    assert not found.lacks_a_rank(golden.by_name["Torch.linear.7.backward"])
