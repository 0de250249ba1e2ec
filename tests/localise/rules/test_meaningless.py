"""Memory that nobody wrote, and workspaces."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn, spelled

normal, _ = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)


class TestMeaningless(RuleContract):
    name = "meaningless"
    fires = {
        **spelled("empty", lambda op: case(op, [], (X, Y))),
        "a workspace": case("FusedBatchNormV3", [(X, X)], (X, Y), slot="output:4"),
    }
    silent = {
        "zeros": case("zeros", [], (X, Y)),
        "a statistic": case("FusedBatchNormV3", [(X, X)], (X, Y), slot="output:1"),
        "what it was made like": case("empty_like", [], (X, Y), slot="input:0"),
    }
