"""Which row of the target a token of the golden is, by the evidence of pairs and the order of steps and lanes."""

import numpy as np
import pytest

from npucmp.align.token_chains import Lines, match_chains
from npucmp.align.token_evidence import TokenEvidence, id_pairs
from npucmp.align.token_tensors import TensorPair


def evidence_of(pairs, tokens):
    """Evidence: {(row, token): count of tensors that agree}, in the order of rows."""
    known = sorted(pairs)
    rows, found = (np.array([one[at] for one in known]) for at in (0, 1))
    counts = np.array([pairs[one] for one in known])
    pair = TensorPair(("op", 0, "output:0"), ("op", 0, "output:0"), True, True, 8)
    return TokenEvidence(rows, found, counts, 8, pair, False, np.arange(tokens))


def lines(*lanes):
    """(lane, step) of each row or token, one after another."""
    return Lines(np.array([lane for lane, _ in lanes]), np.array([step for _, step in lanes]))


def matched(pairs, rows, tokens, are_requests=True, padding=None):
    return match_chains(evidence_of(pairs, len(tokens)), lines(*rows), lines(*tokens), are_requests, padding)


STEPS = [(0, 0), (0, 0), (1, 1), (2, 2)]  # a prefill of two tokens and two steps of one
REQUEST = [(0, 0)] * 4


def diagonal(count=4, of=8):
    return {(at, at): of for at in range(count)}


def test_tokens_follow_each_other_through_steps():
    found = matched(diagonal(), STEPS, REQUEST)
    assert found.rows.tolist() == [0, 1, 2, 3] and found.evidence > found.total > 0


@pytest.mark.parametrize("other", [0, 5])
@pytest.mark.parametrize("are_requests", [True, False])
def test_a_token_of_a_request_stands_in_no_step_before_or_behind_those_of_its_neighbours(are_requests, other):
    """The token in the middle agrees a little better with a row of another step."""
    steps = [(step, step) for step in range(6)]
    found = matched({(1, 0): 8, (3, 2): 8, (2, 1): 3, (other, 1): 5}, steps, REQUEST[:3], are_requests)
    assert found.rows.tolist() == [1, 2 if are_requests else other, 3]
    assert found.rounds[0] == found.rounds[2] < found.rounds[1]


def test_neighbours_that_are_padding_or_of_another_request_say_nothing():
    steps, pairs = [(step, step) for step in range(6)], {(1, 0): 8, (3, 2): 8, (2, 1): 3, (5, 1): 5}
    assert matched(pairs, steps, [(0, 0), (0, 0), (1, 0)]).rows.tolist() == [1, 5, 3]
    assert matched(pairs, steps, REQUEST[:3], padding=np.array([False, False, True])).rows.tolist() == [1, 5, 3]
    before = {**pairs, (0, 1): 5}
    del before[5, 1]
    assert matched(before, steps, [(0, 0), (1, 0), (1, 0)]).rows.tolist() == [1, 0, 3]
    assert matched(before, steps, REQUEST[:3], padding=np.array([True, False, False])).rows.tolist() == [1, 0, 3]


def pair(operator, slot, is_float, width=1):
    return TensorPair((operator, 0, slot), (operator, 0, slot), is_float, slot.startswith("output"), width)


@pytest.mark.parametrize(
    "pairs, found",
    [
        ([pair("embedding", "input:0", False), pair("embedding", "output:0", True, 8)], ["input:0"]),
        ([pair("embedding", "input:0", False)], []),  # it makes no activations
        ([pair("eq", "input:0", False), pair("eq", "output:0", False)], []),
        ([pair("add", "input:0", False), pair("add", "input:1", True), pair("add", "output:0", True)], []),
        ([pair("f", "input:0", False, 2), pair("f", "input:1", False), pair("f", "output:0", True)], ["input:1"]),
        ([pair("f", "input:0", False), pair("f", "input:1", False), pair("f", "output:0", True)], []),
        ([pair("f", "input:0", False), pair("g", "output:0", True)], []),
    ],
)
def test_ids_are_the_integers_of_which_an_operator_makes_activations(pairs, found):
    assert [one.golden[2] for one in id_pairs(None, pairs)] == found
