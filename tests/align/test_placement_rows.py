"""The order of rows: tokens that a router sends to experts, and rows that ranks pick by number."""

from __future__ import annotations

import numpy as np

from tests.align.rank_craft import numbers
from tests.align.rank_networks import call, searched

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


def test_numbers_that_name_no_rows_leave_the_values(tmp_path):
    ranks = [picks(rows, order, indices=[5, 5, 5]) for rows, order in zip(HALF, SHUFFLED)]
    search = searched(tmp_path, ranks, picks(np.s_[:], ORDER))
    assert rows_found(search, "index_select.0 output:0") == [("agrees", "agreement", "rows", PLACES)]


def test_one_number_for_each_token_has_no_order(tmp_path):
    scores = numbers(6, seed=98)
    golden, ranks = routed(), [expert_rank(0), expert_rank(1)]
    for at, one in enumerate(ranks):
        one[-1][1].append(scores[sorted(PICKED[at])])
        golden[3 * at + 3][1].append(scores[PICKED[at]])
    search = searched(tmp_path, ranks, golden)
    found = [search.found["Torch.gelu.0.forward", f"input:{at}"].state for at in (0, 1)]
    assert found == ["agrees", "differs"]
