"""Tokens that a router sends to experts: known orders of rows, and sums that run over the experts of a rank."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from npucmp.align.rank_mesh import Mesh
from npucmp.align.routed_tokens import RoutedTokens
from npucmp.align.row_order import RowOrder
from npucmp.model.optypes import op_type


def operator(name, kind="linear", is_backward=False):
    one = SimpleNamespace(name=name, type=op_type(kind), is_backward=is_backward, inputs=[object(), object()])
    one.rank = 0
    return one


EXPERT, OTHER, AFTER, PLAIN = (operator(name, kind) for name, kind in (
    ("expert", "linear"), ("other", "add"), ("after", "add"), ("plain", "linear")))  # fmt: skip
HOLDERS = {"expert": {0}, "other": {0}, "after": {0, 1}, "plain": {0, 1}}


def routed(golden_of=None, holders=HOLDERS):
    experts = SimpleNamespace(holders=lambda one: frozenset(holders[one.name]),
                              is_of_some_ranks=lambda one: len(holders[one.name]) == 1)  # fmt: skip
    golden = SimpleNamespace(operators=[PLAIN, EXPERT, OTHER, AFTER, PLAIN])
    return RoutedTokens(SimpleNamespace(experts=experts, golden=golden, golden_of=golden_of or {}, flat_orders=[]))


def mesh_of(*ranks):
    return Mesh({(at,): SimpleNamespace(rank=rank) for at, rank in enumerate(ranks)}, (len(ranks),), ranks)


ONE = RowOrder((0,), (1, 0, 2), ((0, 2), (1, 1)))
SECOND = ONE._replace(order=(2, 0, 1))
LONG = ONE._replace(order=(2, 0, 1, 3))


@pytest.mark.parametrize(
    "added, names, shapes, rows, known",
    [
        ([], ["a"], [2, 1], 3, None),
        ([("a", ONE)], ["a"], [2, 1], 3, ONE),
        ([("a", ONE)], ["b"], [2, 1], 3, ONE),  # the last one with as many rows on each rank
        ([("a", ONE), ("b", SECOND)], ["c"], [2, 1], 3, SECOND),
        ([("a", ONE), ("b", SECOND)], ["a"], [2, 1], 3, ONE),
        ([("a", ONE), ("b", SECOND)], ["c", "a", "b"], [2, 1], 3, ONE),
        ([("a", ONE)], ["a"], [1, 2], 3, None),
        ([("a", ONE)], ["a"], [2, 1], 4, None),  # another number of rows
        ([("a", LONG)], ["a"], [2, 1], 3, None),
    ],
)
def test_the_known_order_of_rows(added, names, shapes, rows, known):
    tokens = routed()
    for name, order in added:
        tokens.add(operator(name), order)
    get = lambda op: SimpleNamespace(shape=(shapes[op.rank], 6))  # noqa: E731
    assert tokens.known(mesh_of(0, 1), get, SimpleNamespace(shape=(rows, 6)), names) == known


def origin(name=None, how="operator", rank=0):
    return SimpleNamespace(how=how, operator=None if name is None else SimpleNamespace(name=name, rank=rank))


@pytest.mark.parametrize(
    "golden, at, origins, hidden, orders, receives",
    [
        (EXPERT, 0, [origin("new")], False, False, True),
        (EXPERT, 0, [origin()], False, False, True),
        (EXPERT, 1, [origin("new")], False, False, False),  # not what it reads first
        (EXPERT, 0, [origin("new"), origin("known")], False, False, False),  # the golden has one
        (EXPERT, 0, [origin("known", rank=1)], False, False, True),  # on another rank
        (operator("expert", is_backward=True), 0, [origin("new")], True, True, False),
        (PLAIN, 0, [origin("new")], False, True, False),
        (PLAIN, 0, [origin("new")], True, False, False),
        (PLAIN, 0, [origin("new")], True, True, True),
        (OTHER, 0, [origin("new")], False, True, False),
        (OTHER, 0, [origin("new")], True, True, False),
        (AFTER, 0, [origin("new")], True, False, True),  # tokens that come back
        (AFTER, 0, [origin("new")], False, False, False),
    ],
)
def test_inputs_that_may_be_tokens_of_experts(golden, at, origins, hidden, orders, receives):
    tokens = routed({(0, "known"): PLAIN})
    if orders:
        tokens.add(PLAIN, ONE)
    assert tokens.receives(golden, golden.inputs[at], dict(enumerate(origins)), hidden) is receives


ADDEND = operator("addend", "add")
TABLE = {**HOLDERS, "addend": {1}, "mine": {0}, "both": {0, 1}}


@pytest.mark.parametrize(
    "golden, producer, origins, running, is_running",
    [
        (OTHER, "addend", [origin("a")], False, True),  # the ranks of the expert before are others
        (OTHER, "mine", [origin("a")], False, False),
        (OTHER, "mine", [origin("a")], True, True),
        (OTHER, None, [origin("a")], False, False),
        (EXPERT, "addend", [origin("a")], False, False),  # no sum
        (operator("other", "index_add"), "addend", [origin("a")], False, True),
        (AFTER, "addend", [origin("a")], False, False),  # all ranks have it
        (OTHER, "both", [origin("a")], True, False),
        (OTHER, "addend", [origin("a"), origin("a", "collective")], False, False),
    ],
)
def test_sums_that_run_over_the_experts_of_a_rank(golden, producer, origins, running, is_running):
    tokens = routed(holders=TABLE)
    if running:
        tokens.running.add(producer)
    own = SimpleNamespace(operator=None if producer is None else operator(producer, "add"))
    assert tokens.is_running_sum(golden, own, dict(enumerate(origins)), mesh_of(0)) is is_running
