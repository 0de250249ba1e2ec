"""The order of rows: tokens that a router sends to experts, and rows that ranks pick by number."""

from __future__ import annotations

import numpy as np
import pytest

from tests.align.rank_craft import numbers
from tests.align.rank_networks import X, call, searched

TOKENS = numbers(6, 6, seed=71)
EXPERTS = [numbers(6, 6, seed=74 + at) for at in range(2)]
PICKED = [[4, 1, 3], [0, 5, 2]]
ORDER = np.array([4, 1, 3, 0, 5, 2])


def routed():
    """Two experts, each with three tokens."""
    calls = [call("sin", [TOKENS * 3], [TOKENS])]
    for at, (rows, weight) in enumerate(zip(PICKED, EXPERTS)):
        own = TOKENS[rows]
        calls += [call("index_select", [TOKENS, np.array(rows)], [own], at),
                  call("linear", [own, weight], [own @ weight.T], at),
                  call("gelu", [own @ weight.T], [own], at)]  # fmt: skip
    return calls


def expert_rank(at, dtype=np.float32, fault=0.0, behind=0.0):
    """Half of the tokens, sent to the rank of their expert, where they stand in the order of ranks."""
    own = TOKENS[3 * at : 3 * at + 3]
    sent = own[[[1, 0, 2], [0, 1, 2]][at]]
    received = (TOKENS[sorted(PICKED[at])] * (1 + fault)).astype(dtype)
    made = TOKENS[sorted(PICKED[at])] @ EXPERTS[at].T
    return [
        call("sin", [own * 3], [own]),
        call("index_select", [own, np.arange(3)], [sent]),
        ("Distributed.all_to_all.0.forward", [sent], [received], (0, 1)),
        call("linear", [received, EXPERTS[at]], [made]),
        call("gelu", [made], [(TOKENS[sorted(PICKED[at])] * (1 + behind)).astype(dtype)]),
    ]


def rows_found(search, *names):
    found = [search.found[f"Torch.{name}.forward", slot] for name, slot in (one.split(" ") for one in names)]
    return [(one.state, one.by, one.placements[0].kind, one.placements[0].blocks) for one in found]


def test_tokens_of_an_expert_stand_in_the_order_of_ranks(tmp_path):
    """The order is found where the expert receives them; all behind has the same."""
    search = searched(tmp_path, [expert_rank(0), expert_rank(1)], routed())
    orders = (2, 0, 1), (0, 2, 1)  # of the golden's tokens among the sorted ones
    for at, order in enumerate(orders):
        found = rows_found(search, f"linear.{at} input:0", f"linear.{at} output:0", f"gelu.{at} output:0")
        assert found == [("agrees", by, "rows", order) for by in ("agreement", "flow", "flow")]


@pytest.mark.parametrize(
    "dtype, fault, behind, states",
    [
        (np.float32, 9e-4, 0.0, "agrees agrees"),
        (np.float32, 1.1e-3, 0.0, "differs agrees"),
        (np.float32, 0.0, 9e-4, "agrees agrees"),
        (np.float32, 0.0, 0.8, "agrees differs"),  # another order is not looked for behind
        (np.float16, 0.04, 0.0, "agrees agrees"),
        (np.float16, 0.06, 0.0, "differs agrees"),
        (np.float32, 0.28, 0.0, "differs agrees"),
    ],
)
def test_ordered_tokens_agree_within_the_limit(tmp_path, dtype, fault, behind, states):
    """That of 16 bits if the ranks have such floats."""
    search = searched(tmp_path, [expert_rank(at, dtype, fault, behind) for at in (0, 1)], routed())
    found = rows_found(search, "linear.0 input:0", "gelu.0 output:0")
    assert [one[0] for one in found] == states.split() and {one[2:] for one in found} == {("rows", (2, 0, 1))}


@pytest.mark.parametrize("dtype, state", [(np.float32, "differs"), (np.float16, "agrees")])
@pytest.mark.parametrize("is_read", [True, False])
def test_floats_of_16_bits_in_the_golden_make_the_limit_of_ordered_tokens_coarse(tmp_path, dtype, state, is_read):
    """Anywhere in the run."""
    golden = [*routed(), call("abs", [X], [X.astype(dtype)])]
    if is_read:
        golden[2] = call("linear", [golden[2][1][0].astype(dtype), EXPERTS[0]], golden[2][2])
    search = searched(tmp_path, [expert_rank(at, fault=0.04) for at in (0, 1)], golden)
    assert [one[0] for one in rows_found(search, "linear.0 input:0")] == [state]


def test_tokens_that_are_far_from_the_golden_have_no_order(tmp_path):
    search = searched(tmp_path, [expert_rank(at, fault=0.32) for at in (0, 1)], routed())
    ((state, _, kind, _),) = rows_found(search, "linear.0 input:0")
    assert (state, kind) == ("differs", "whole")


def picks(rows, order, times=1.0, kind="index_select", indices=None, tokens=TOKENS):
    own = tokens[rows]
    picked = own[order] * 2 * times
    return [
        call("sin", [own], [own * 2]),
        call(kind, [own * 2, np.array(order if indices is None else indices)], [picked]),
        call("cos", [picked], [picked / 2]),
    ]


HALF = np.s_[:3], np.s_[3:]
SHUFFLED = [[1, 0, 2], [1, 0, 2]]
PLACES = (3, 0, 4, 1, 5, 2)  # of the golden's rows 4, 1, 3, 0, 5, 2 among 1, 0, 2, 4, 3, 5


@pytest.mark.parametrize(
    "times, kind, words, by",
    [
        (1.0, "index_select", "agrees rows", ("agreement", "flow")),
        (1.01, "index_select", "differs rows", ("agreement", "flow")),
        (1.29, "index_select", "differs rows", ("agreement", "flow")),
        (1.31, "index_select", "differs shard", ("other layers", "flow")),
        (1.0, "mix", "differs shard", ("other layers", "flow")),  # it picks no rows
    ],
)
def test_rows_that_ranks_pick_by_number_may_stand_in_another_order(tmp_path, times, kind, words, by):
    ranks = [picks(rows, order, times, kind) for rows, order in zip(HALF, SHUFFLED)]
    search = searched(tmp_path, ranks, picks(np.s_[:], ORDER, kind=kind))
    found = rows_found(search, f"{kind}.0 output:0", "cos.0 input:0")
    assert [f"{one[0]} {one[2]}" for one in found] == [words] * 2 and tuple(one[1] for one in found) == by
    assert {one[3] for one in found} == {PLACES if words.endswith("rows") else (1,)}


def test_numbers_that_name_no_rows_leave_the_values(tmp_path):
    ranks = [picks(rows, order, indices=[5, 5, 5]) for rows, order in zip(HALF, SHUFFLED)]
    search = searched(tmp_path, ranks, picks(np.s_[:], ORDER))
    assert rows_found(search, "index_select.0 output:0") == [("agrees", "agreement", "rows", PLACES)]


def test_rows_that_ranks_pick_in_the_order_of_the_golden_are_a_plain_part(tmp_path):
    ranks = [picks(rows, order) for rows, order in zip(HALF, SHUFFLED)]
    search = searched(tmp_path, ranks, picks(np.s_[:], [1, 0, 2, 4, 3, 5]))
    assert rows_found(search, "index_select.0 output:0") == [("agrees", "agreement", "shard", (1,))]


def test_numbers_show_the_order_of_rows_that_are_alike(tmp_path):
    """The error is larger than the distance of rows."""
    alike = TOKENS[:1] + TOKENS / 100
    noise = numbers(3, 6, seed=99) / 20
    ranks = [picks(rows, order, tokens=alike) for rows, order in zip(HALF, SHUFFLED)]
    for (kind, read, (picked,)), *_ in (one[1:2] for one in ranks):
        picked += noise
        assert kind and read
    search = searched(tmp_path, ranks, picks(np.s_[:], ORDER, tokens=alike))
    assert rows_found(search, "index_select.0 output:0") == [("differs", "agreement", "rows", PLACES)]


@pytest.mark.parametrize("numbers_read", [[], [np.array(2)]])
def test_an_operator_without_numbers_of_rows_picks_none(tmp_path, numbers_read):
    def calls(own, order):
        return [call("sin", [own], [own * 2]), call("slice", [own * 2, *numbers_read], [own[order] * 2])]

    ranks = [calls(TOKENS[rows], order) for rows, order in zip(HALF, SHUFFLED)]
    search = searched(tmp_path, ranks, calls(TOKENS, ORDER))
    assert [one[0::2] for one in rows_found(search, "slice.0 output:0")] == [("differs", "shard")]


def test_a_reader_has_the_order_of_rows_of_what_it_reads(tmp_path):
    """Not the last one that was found."""

    def calls(own, first, second):
        some = own[first] * 2, own[second] * 7
        return [call("sin", [own], [own * 2]),
                *(call("index_select", [own * (2, 7)[at], np.array(order)], [one], at)
                  for at, (order, one) in enumerate(zip((first, second), some))),
                *(call("cos", [one], [one * 3], at) for at, one in enumerate(some))]  # fmt: skip

    ranks = [calls(TOKENS[rows], order, [2, 1, 0]) for rows, order in zip(HALF, SHUFFLED)]
    search = searched(tmp_path, ranks, calls(TOKENS, ORDER, np.array([0, 3, 1, 4, 2, 5])))
    orders = [one[3] for one in rows_found(search, "cos.0 input:0", "cos.1 input:0")]
    assert orders == [PLACES, (2, 5, 1, 4, 0, 3)]


@pytest.mark.parametrize("is_recorded, words", [(False, "agrees rows"), (True, "differs shard")])
def test_tokens_that_come_back_from_experts_may_stand_in_another_order(tmp_path, is_recorded, words):
    """If the golden does not record which operator wrote them."""
    back = TOKENS[ORDER] * 5
    golden = [*routed(), *[call("exp", [X], [back])] * is_recorded, call("tan", [back], [])]
    ranks = []
    for at, order in enumerate(SHUFFLED):
        own = TOKENS[3 * at : 3 * at + 3][order] * 5
        ranks.append([*expert_rank(at), ("Distributed.all_to_all.1.forward", [own + 1], [own], (0, 1)),
                      call("tan", [own], [])])  # fmt: skip
    ((state, _, kind, _),) = rows_found(searched(tmp_path, ranks, golden), "tan.0 input:0")
    assert f"{state} {kind}" == words


def test_one_number_for_each_token_has_no_order(tmp_path):
    scores = numbers(6, seed=98)
    golden, ranks = routed(), [expert_rank(0), expert_rank(1)]
    for at, one in enumerate(ranks):
        one[-1][1].append(scores[sorted(PICKED[at])])
        golden[3 * at + 3][1].append(scores[PICKED[at]])
    search = searched(tmp_path, ranks, golden)
    found = [search.found["Torch.gelu.0.forward", f"input:{at}"].state for at in (0, 1)]
    assert found == ["agrees", "differs"]
