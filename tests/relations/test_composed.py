"""Two relations at once: clean pairs are silent, and faults are named with rank, request and position."""

from __future__ import annotations

import pytest

import npucmp
from tests.corpus.composed.cases import Case
from tests.corpus.composed.score import graded

CASES = [  # of draws in which this once failed
    ("sp_packed", "llama", 5, ""),  # a rank's part of the vocabulary reads zeros, as many as the golden has padding
    ("cp_packed", "gpt2", 8, ""),  # positions of a share count 1, 2, 3, as the ends of requests of one token do
    ("tp_chunks", "llama", 7, ""),  # two and four ranks add terms in bfloat16
    ("tp_decode", "gpt2", 20, ""),  # both sides depart from the law of a norm
    ("dp_padding", "gpt2", 20, ""),  # each rank has one request
    ("dp_padding", "llama", 20, "stale row"),  # the mask of one rank has the golden's rows
    ("tokens_frameworks", "gpt2", 8, ""),  # attention of one side has an axis of heads
    ("tp_frameworks", "gpt2", 20, "bias per rank"),  # one side merges batch and sequence
    ("tp_chunks", "llama", 40, "factor"),  # the term of one of four ranks, within two limits
    ("tp_decode", "gpt2", 41, "factor"),  # the query of one rank in a part of query, key and value
    ("tp_packed", "gpt2", 46, "factor"),  # the term of a rank whose bias is added behind the reduction
    ("tp_packed", "llama", 44, "other positions"),  # attention is the same, rotated queries and keys are no shares
    ("tp_packed", "llama", 43, "unreduced"),
    ("tp_decode", "llama", 44, "swapped rows"),  # the golden adds a bias inside
    ("tp_packed", "gpt2", 40, "stale row"),  # a weight has as many rows as there are tokens
    ("tp_frameworks", "llama", 30, "offset"),  # hardly any activation agrees, so that weights and order show partners
    (
        "tp_frameworks",
        "llama",
        31,
        "other positions",
    ),  # functions of ranks, a module of the golden
    ("tp_frameworks", "llama", 35, ""),  # ids that ranks hold in parts, and modules that only the golden records
    ("tokens_frameworks", "llama", 32, "heads"),  # as many heads as tokens
    ("nhwc_batch", "residual", 31, "stale row"),  # only the input agrees
    ("cp_packed", "gpt2", 31, "offset"),  # ranks hold the chunks of a request in a zigzag
    ("weights_ranks", "gpt2", 0, "factor"),
    ("weights_ranks", "llama", 2, "same shard"),
    ("weights_ranks", "llama", 2, "copies differ"),
]


@pytest.mark.parametrize("combination, network, seed, kind", CASES)
def test_a_pair_of_two_relations(combination, network, seed, kind):
    found = graded(Case(combination, network, seed, kind))
    assert found.grade == ("right" if kind else "silent"), found.said


def test_an_error_reaches_other_ranks_through_a_module_that_reduces_inside(tmp_path):
    written = Case("tp_chunks", "llama", 41, "factor").make(str(tmp_path))
    report = npucmp.compare(written.target, written.golden, progress=None)
    rooted = {(one.rank, root.cause.value) for one in report.comparisons for root in one.roots}
    assert rooted == {(1, "BORN"), (1, "PROPAGATED"), (0, "PROPAGATED")}


def test_a_decomposed_rotary_embedding_is_covered_by_what_enters_and_leaves_it():
    assert graded(Case("tokens_frameworks", "llama", 10)).said.startswith("0 ")
