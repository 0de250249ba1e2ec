"""Rows that were chosen otherwise."""

from __future__ import annotations

import numpy as np

from npucmp.flow.operators import OperatorFindings
from npucmp.localise.rule_context import RuleContext
from npucmp.model import Finding, Measurement, Operator, Pair, TensorRef, Verdict
from tests.localise.rules.craft import RuleContract, case, drawn

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
OTHER = np.where(np.arange(64)[:, None] == 7, normal(64, 64), Y)
PLACES = np.arange(64)
MOVED = np.where((PLACES > 20) & (PLACES < 26), PLACES + 1, PLACES)  # one row more before them, one less behind


def shapes(target, golden, **more):
    """A tensor of an expert, which has another number of rows."""
    refs = TensorRef("output:0", "float32", target), TensorRef("output:0", "float32", golden)
    operators = [Operator("linear.0", "linear", "linear", "forward", 0, (ref,)) for ref in refs]
    pair = Pair(0, "output:0", *operators, *refs, "name", 1.0)
    found = Finding(Measurement(pair, shapes_differ=True), Verdict.SHAPE, "shape", float("inf"))
    return RuleContext(found, OperatorFindings(pair, [], [found]), **more)


class TestRouted(RuleContract):
    name = "routed"
    fires = {
        "a row more": shapes((59, 32), (58, 32), changed_choice_share=0.01),
        "with the errors of 16 bits any choice may fall otherwise": shapes((59, 32), (58, 32), input_error=3e-3),
        "one row is another": case("index_select", [(X, X)], (OTHER, Y), input_error=1e-6, changed_choice_share=0.02),
        "as many rows as the indices that differ": case(
            "index_select",
            [(X, X), (MOVED, PLACES, "int64")],
            (X[MOVED], X[PLACES]),
            input_error=1e-6,
            changed_choice_share=1e-4,
        ),
        "it came from nowhere": case("tanh", [], (OTHER, Y), input_error=1e-6, node=False, changed_choice_share=0.02),
    }
    silent = {
        "nothing was chosen": shapes((59, 32), (58, 32)),
        "two axes": shapes((59, 32), (58, 64), changed_choice_share=0.01),
        "another number of axes": shapes((59, 32), (59, 32, 1), changed_choice_share=0.01),
        "another number of axes and of rows": shapes((59, 32), (58, 32, 1), changed_choice_share=0.01),
        "half of the rows": shapes((59, 32), (30, 32), input_error=3e-5),
        "more rows than fell otherwise": case(
            "index_select", [(X, X)], (noisy(Y, 0.9), Y), input_error=1e-6, changed_choice_share=0.02
        ),
        "no operator that picks": case("tanh", [(X, X)], (OTHER, Y), input_error=1e-6, changed_choice_share=0.02),
    }
