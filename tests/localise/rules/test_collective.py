"""What communicates."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from tests.localise.rules.craft import RuleContract, case, drawn, rule, spelled

RULE = rule("collective")


def told(one):
    """That an error comes in from another rank, which descends from a root there."""
    one.node.error_from_other_rank = True
    return one


normal, _ = drawn(__name__)

X, Y = normal(8, 8), normal(8, 8)


class TestCollective(RuleContract):
    name = "collective"
    fires = {
        **spelled("all_reduce", lambda op: told(case(op, [(X, X)], (X, Y)))),
        "a receive": told(case("HcomReceive", [], (X, Y))),
        "by its record": told(case("something_new", [(X, X)], (X, Y), name="Distributed.something_new.0.forward")),
    }
    silent = {
        **spelled("all_reduce", lambda op: case(op, [(X, X)], (X, Y))),
        "a receive of what agrees where it was sent": case("HcomReceive", [], (X, Y)),
    }


def test_an_error_of_another_rank_may_have_any_size():
    one = told(case("all_reduce", [(X, X)], (X, Y)))
    assert RULE.applies(one) and RULE.bound(one) == inf and not RULE.applies(replace(one, node=None))
