"""Which row of the target a token of the golden is, by the evidence of pairs and the order of steps and lanes."""

import numpy as np
import pytest

from npucmp.relations.tokens.token_chains import Lines, match_chains
from npucmp.relations.tokens.token_evidence import TokenEvidence
from npucmp.relations.tokens.token_tensors import TensorPair


def evidence_of(pairs, tokens, tensors=8):
    """Evidence: {(row, token): count of tensors that agree}, in the order of rows."""
    known = sorted(pairs)
    rows, found = (np.array([one[at] for one in known], np.int64) for at in (0, 1))
    counts = np.array([pairs[one] for one in known], np.int64)
    pair = TensorPair(("op", 0, "output:0"), ("op", 0, "output:0"), True, True, 8)
    return TokenEvidence(rows, found, counts, tensors, pair, False, np.arange(tokens), np.zeros(tokens, bool))


def lines(*lanes):
    """(lane, step) of each row or token, one after another."""
    return Lines(np.array([lane for lane, _ in lanes]), np.array([step for _, step in lanes]))


def matched(pairs, rows, tokens, are_requests=True, padding=None, tensors=8):
    evidence = evidence_of(pairs, len(tokens), tensors)
    return match_chains(evidence, lines(*rows), lines(*tokens), are_requests, padding)


@pytest.mark.parametrize("before", [0, 3])
def test_a_request_exchanges_its_head_with_one_that_ends_there(before):
    """The whole of request 0 and the head of request 1 agree a little better with each other's rows."""
    pairs = {(10, 10): 8, **{(at, at): 8 for at in range(11, 39)}}
    for one in range(5):
        pairs.update({(one, one): 4, (one + 5, one + 5): 4, (one, one + 5): 5, (one + 5, one): 5})
    tokens = [(0, 0)] * 5 + [(1, 0)] * 6 + [(2, 0)] * 28
    pairs = {(row + before, token): count for (row, token), count in pairs.items()}
    assert (matched(pairs, [(9, 0)] * before + tokens, tokens).rows - before).tolist() == [*range(39)]


def pair(operator, slot, is_float, width=1):
    return TensorPair((operator, 0, slot), (operator, 0, slot), is_float, slot.startswith("output"), width)
