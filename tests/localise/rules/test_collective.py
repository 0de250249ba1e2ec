"""What communicates."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn, spelled

normal, _ = drawn(__name__)

X, Y = normal(8, 8), normal(8, 8)


class TestCollective(RuleContract):
    name = "collective"
    fires = {
        **spelled("all_reduce", lambda op: case(op, [(X, X)], (X, Y))),
        "a receive": case("HcomReceive", [], (X, Y)),
        "by its record": case("something_new", [(X, X)], (X, Y), name="Distributed.something_new.0.forward"),
    }
    silent = {"a sum of its own": case("ReduceSum", [(X, X)], (X, Y)), "broadcasting": case("BroadcastTo", [], (X, Y))}
