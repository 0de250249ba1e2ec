"""The order of roots over steps and ranks, and what the search of one rank learns of the others."""

from npucmp.localise.parameter_drift import Updates
from npucmp.localise.root_order import side_by_side
from npucmp.localise.rules import Rulebook
from npucmp.model import Cause, Root
from tests.localise.rank_steps import comparison_of, node_of, numbers, off

X, Y, Z, W = (numbers(6, 6, seed=seed) for seed in range(4))
LARGE, SMALL = 0.01, 0.002


def root(cause="BORN", order=0):
    pair = node_of(order, "linear", [X], Y).pair
    return Root(0, pair, Cause(cause), "output:0", "rel_l2", 0.1, 1e-3, 0.0, 0.1, ())


# Ranks side by side


def searched(*ranks, **more):
    """(rank, operator, cause) of each root with its clock, in the order of the ranks."""
    results = side_by_side(ranks, [Updates()] * len(ranks), True, Rulebook(), **more)
    return [
        (one.rank, root.pair.operator.name, root.cause.value, clock)
        for one, found in zip(ranks, results)
        for clock, root in found.roots
    ]


def sent(rank, error=0.0, received=0.0):
    """Rank 0 makes a tensor that rank 1 reads; no send was recorded."""
    if rank == 0:
        more = [("exp", [Z - at], W - at) for at in range(3)]
        return comparison_of(0, *more, ("linear", [X, W], off(Y, error), {"name": "linear.0"}))
    return comparison_of(1, ("exp", [off(Y, error)], off(Z, received)))


def test_a_tensor_of_another_rank_brings_its_error():
    found = searched(sent(0, LARGE), sent(1, LARGE, LARGE))
    assert found == [(0, "linear.0", "BORN", 4), (1, "exp.0", "PROPAGATED", 5)]
    assert [one[:3] for one in searched(sent(0), sent(1, 0.0, LARGE))] == [(1, "exp.0", "BORN")]
