"""Which row of the target a token of the golden is, by the evidence of pairs and the order of steps and lanes."""

import numpy as np
import pytest

from npucmp.align.rank_run import Values
from npucmp.align.token_axes import TokenShape
from npucmp.align.token_chains import Lines, match_chains
from npucmp.align.token_evidence import TokenEvidence, id_pairs
from npucmp.align.token_tensors import TensorPair, TokenSide
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Run


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


@pytest.mark.parametrize("near, away, row", [(3, 4, 2), (3, 3, 2), (4, 3, 2), (0, 4, 9), (1, 8, 9)])
@pytest.mark.parametrize("length", [1, 2])
def test_a_row_that_continues_a_chain_comes_before_a_slightly_better_one(near, away, row, length):
    pairs = {**diagonal(length), (length, length): near, (9, length): away}
    pairs = {one: count for one, count in pairs.items() if count}
    found = matched(pairs, [(0, 0)] * 10, [(0, 0)] * (length + 1))
    assert found.rows.tolist() == [*range(length), length if row == 2 else row]


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize(
    "right, is_exchanged, lane",
    [(4, True, 1), (4, True, 0), (3, False, 1)],
)
def test_requests_that_begin_alike_exchange_their_heads(right, is_exchanged, lane, before):
    """Five tokens at the head agree a little better with the other request's; a third request has usual evidence. The
    target has rows `before` all of them."""
    first, second = range(6), range(6, 12)
    pairs = {(5, 5): 8, (11, 11): 8, **{(at, at): 8 for at in range(12, 40)}}
    for one, other in zip(first[:5], second[:5]):
        pairs.update({(one, one): right, (other, other): right, (one, other): 5, (other, one): 5})
    places = [(number, 0) for number in (0, 1, 2) for _ in range(28 if number == 2 else 6)]
    rows = [(9, 0)] * before + [(lane * number, 0) for number, _ in places]
    pairs = {(row + before, token): count for (row, token), count in pairs.items()}
    found = (matched(pairs, rows, places).rows - before).tolist()
    heads = [*first[:5]], [*second[:5]]
    assert (found[:5], found[6:11]) == (heads if is_exchanged else heads[::-1])
    assert found[5] == 5 and found[11:] == [*range(11, 40)]


@pytest.mark.parametrize("place, kept", [(0, 1), (2, 3), (6, 1), (8, 3), (3, 5), (9, 5)])
def test_heads_are_exchanged_back_to_a_token_that_agrees_much_better(place, kept):
    """One of five tokens of a head agrees in two tensors more with the row of the other request. Of one token behind it
    the exchange would leave as many breaks."""
    pairs = {(5, 5): 8, (11, 11): 8, **{(at, at): 8 for at in range(12, 40)}}
    for one in range(5):
        pairs.update({(one, one): 4, (one + 6, one + 6): 4, (one, one + 6): 5, (one + 6, one): 5})
    pairs[place, place] = 3
    tokens = [(number, 0) for number in (0, 1, 2) for _ in range(28 if number == 2 else 6)]
    found = matched(pairs, tokens, tokens).rows.tolist()
    assert found == [*range(6, 6 + kept), *range(kept, 6), *range(kept), *range(6 + kept, 40)]


@pytest.mark.parametrize("before", [0, 3])
def test_a_request_exchanges_its_head_with_one_that_ends_there(before):
    """The whole of request 0 and the head of request 1 agree a little better with each other's rows."""
    pairs = {(10, 10): 8, **{(at, at): 8 for at in range(11, 39)}}
    for one in range(5):
        pairs.update({(one, one): 4, (one + 5, one + 5): 4, (one, one + 5): 5, (one + 5, one): 5})
    tokens = [(0, 0)] * 5 + [(1, 0)] * 6 + [(2, 0)] * 28
    pairs = {(row + before, token): count for (row, token), count in pairs.items()}
    assert (matched(pairs, [(9, 0)] * before + tokens, tokens).rows - before).tolist() == [*range(39)]


@pytest.mark.parametrize("before", [0, 3])
def test_a_head_that_is_no_candidate_of_the_other_request_is_not_exchanged(before):
    """Request 0 has the rows of request 1, which has those of no token."""
    pairs = {(10, 10): 8, **{(at, at): 8 for at in range(11, 39)}}
    for one in range(5):
        pairs.update({(one, one): 5, (one + 5, one): 6, (one, one + 5): 6})
    tokens = [(0, 0)] * 5 + [(1, 0)] * 6 + [(2, 0)] * 28
    pairs = {(row + before, token): count for (row, token), count in pairs.items()}
    found = (matched(pairs, [(9, 0)] * before + tokens, tokens).rows - before).tolist()
    assert found == [*range(5, 10), *range(5), *range(10, 39)]


def test_equal_tokens_follow_their_neighbours():
    """Three tokens of one id; those beside each other agree better, as a fault changed the first and the last."""
    pairs = {(0, 0): 5, (1, 1): 8, (2, 2): 5, (1, 0): 8, (2, 1): 8, (1, 2): 8, (0, 1): 3, (0, 2): 3}
    assert matched(pairs, [(0, 0)] * 3, REQUEST[:3]).rows.tolist() == [0, 1, 2]


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
    side = TokenSide((Run("dump", "msprobe", ()),), (TokenShape((4,)),), Values(ANYWHERE))
    assert [one.golden[2] for one in id_pairs(side, pairs)] == found


ONE_LANE = [(0, 0)] * 10


@pytest.mark.parametrize(
    "rows, tokens, chains",
    [
        (REQUEST, REQUEST, 1),
        (STEPS, REQUEST, 3),  # a step begins a chain
        (REQUEST, [(0, 0), (0, 0), (1, 0), (1, 0)], 2),  # so does a request
        ([(0, 0), (1, 0), (1, 0), (2, 0)], [(0, 0), (0, 0), (0, 0), (1, 0)], 3),
    ],
)
def test_each_chain_costs_a_quarter_of_the_tensors(rows, tokens, chains):
    """A candidate counts one more than the tensors that agree."""
    found = matched(diagonal(), rows, tokens)
    assert found.evidence == 4 * 9 and found.total == found.evidence - chains * 9 / 4


def test_a_gap_between_tokens_ends_a_chain():
    found = matched({(0, 0): 8, (1, 1): 8, (3, 2): 8, (4, 4): 8}, ONE_LANE, ONE_LANE[:5])
    assert found.rows.tolist() == [0, 1, 3, -1, 4] and found.total == 4 * 9 - 3 * 9 / 4
    assert found.rounds.tolist()[3] == -1 and min(found.rounds[found.rows >= 0]) == 0


def test_tokens_without_candidates_have_no_row():
    found = matched({}, ONE_LANE, REQUEST)
    assert found.rows.tolist() == found.rounds.tolist() == [-1] * 4 and (found.total, found.evidence) == (0, 0)


@pytest.mark.parametrize("count, tensors, row", [(8, 8, 0), (7, 8, -1), (5, 8, -1), (8, 9, 0), (7, 9, -1)])
def test_two_rows_that_agree_as_well_are_no_choice_unless_nine_tenths_of_the_tensors_agree(count, tensors, row):
    """The other token, of another request, has no row. A candidate counts one more than the tensors that agree, of one
    more tensor."""
    found = matched({(0, 0): count, (5, 0): count}, ONE_LANE, [(0, 0), (1, 0)], tensors=tensors)
    assert found.rows.tolist() == [row, -1]


@pytest.mark.parametrize("row, token", [(6, 3), (4, 3), (9, 1), (1, 5)])
def test_candidates_beside_two_rows_that_are_no_choice_are_taken(row, token):
    """They agree a little worse."""
    found = matched({(0, 0): 5, (5, 0): 5, (row, token): 4}, ONE_LANE, ONE_LANE[:6])
    assert [(at, int(one)) for at, one in enumerate(found.rows) if one >= 0] == [(token, row)]


@pytest.mark.parametrize("better", [0, 5])
def test_the_row_that_agrees_better_is_taken(better):
    pairs = {(0, 0): 5, (5, 0): 5}
    pairs[better, 0] = 6
    assert matched(pairs, ONE_LANE, [(0, 0)]).rows.tolist() == [better]


@pytest.mark.parametrize("length, rows", [(1, [-1]), (2, [0, 1]), (3, [0, 1, 2])])
def test_the_first_of_two_copies_of_a_prompt_is_taken(length, rows):
    """A copy has several tokens in a row."""
    pairs = {(start + at, at): 6 for start in (0, 5) for at in range(length)}
    assert matched(pairs, ONE_LANE, ONE_LANE[:length]).rows.tolist() == rows


def test_a_weak_token_behind_a_prompt_that_is_there_twice_continues_the_first():
    pairs = {(start + at, at): (6, 6, 1)[at] for start in (0, 5) for at in range(3)}
    assert matched(pairs, ONE_LANE, ONE_LANE[:3]).rows.tolist() == [0, 1, 2]


def test_the_first_of_two_requests_with_equal_tokens_has_the_row():
    pairs = {(at, start + at): 6 for start in (0, 2) for at in range(2)}
    assert matched(pairs, ONE_LANE, [(0, 0)] * 2 + [(1, 0)] * 2).rows.tolist() == [0, 1, -1, -1]


def test_a_chain_with_more_evidence_keeps_its_rows():
    """The rest of the other chain is taken behind it."""
    pairs = {(at, at): 8 for at in range(6)}
    pairs.update({(at + 3, at): 7 for at in range(6)})
    found = matched(pairs, ONE_LANE, ONE_LANE[:6])
    assert found.rows.tolist() == [*range(6)]


def test_the_longest_free_stretch_of_a_chain_is_taken():
    """Request 1 has the rows in the middle of another chain."""
    tokens = [(0, 0)] * 7 + [(1, 0)] * 2
    pairs = {(at, at): 6 for at in range(7)}
    pairs.update({(2, 7): 8, (3, 8): 8})
    found = matched(pairs, ONE_LANE, tokens)
    assert found.rows.tolist() == [0, 1, 2, 3, 4, 5, 6, -1, -1]  # the longer chain has more evidence in all
    pairs = {one: 1 if one[1] in (2, 3) else count for one, count in pairs.items()}
    assert matched(pairs, ONE_LANE, tokens).rows.tolist() == [0, 1, -1, -1, 4, 5, 6, 2, 3]


def test_the_longest_stretch_behind_a_better_chain_is_taken_in_the_same_round():
    """Rows 2 and 3 are those of request 1; the first two tokens have too little evidence alone."""
    pairs = {(at, at): 4 for at in range(12)}
    pairs.update({(2, 12): 8, (3, 13): 8})
    found = matched(pairs, [(0, 0)] * 12, [(0, 0)] * 12 + [(1, 0)] * 2)
    assert found.rows.tolist() == [0, 1, -1, -1, *range(4, 12), 2, 3]
    assert {*found.rounds[4:].tolist()} == {0} and min(found.rounds[:2]) > 0


@pytest.mark.parametrize("count, row", [(8, 2), (4, 2), (3, 2), (0, 2)])
def test_weak_tokens_between_others_are_taken_later(count, row):
    """Fewer than half of the usual tensors agree there."""
    found = matched({**diagonal(5), (2, 2): count}, ONE_LANE, ONE_LANE[:5])
    assert found.rows.tolist() == [0, 1, row, 3, 4]
    assert found.evidence == 4 * 9 + count + 1


def test_lanes_of_the_target_end_chains():
    """The second token stands in another lane, where it may be of another request."""
    found = matched({(0, 0): 8, (1, 1): 8}, [(0, 0), (1, 0)], REQUEST[:2])
    assert found.rows.tolist() == [0, 1] and found.total == 2 * 9 - 2 * 9 / 4


def test_rounds_begin_with_the_usual_evidence():
    """A token with less than half of it waits for a later round."""
    pairs = {**{(at, at): 8 for at in range(20)}, (25, 25): 2}
    found = matched(pairs, [(0, 0)] * 30, [(0, 0)] * 22 + [(1, 0)] * 8)
    assert found.rounds[:20].tolist() == [0] * 20 and found.rounds[25] > 0 and found.rows[25] == 25


@pytest.mark.parametrize("pairs", [((0, 5), (1, 0)), ((1, 5), (0, 7)), ((0, 1), (5, 0)), ((7, 0), (3, 1))])
def test_candidates_beside_each_other_do_not_exclude_each_other(pairs):
    """They agree as well, in rows or tokens that are neighbours."""
    found = matched(dict.fromkeys(pairs, 5), ONE_LANE, ONE_LANE[:8])
    assert {(int(found.rows[token]), token) for _, token in pairs} == {*pairs}


@pytest.mark.parametrize("first, weak", [(1, [1] * 2), (2, [1] * 4), (5, [1] * 10), (1, [2] * 3), (0, [3] * 2)])
def test_stretches_of_a_chain_between_weak_tokens_are_taken_in_one_round(first, weak):
    """The longer one behind the weak tokens, too. They lack as much evidence as the tokens before them have beyond half
    of the usual one, or more."""
    counts = [8] * first + weak + [8] * 6
    found = matched({(at, at): count for at, count in enumerate(counts)}, [(0, 0)] * 40, [(0, 0)] * len(counts))
    assert found.rows.tolist() == [*range(len(counts))]
    strong = [at for at, count in enumerate(counts) if count == 8]
    assert {*found.rounds[strong].tolist()} == {0} and min(found.rounds[first : first + len(weak)]) > 0
