"""Pairs of contents by the weights that operators read."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.contents.learned_types import LearnedTypes
from npucmp.align.contents.weight_anchors import match_operands, match_weights
from tests.align.contents.small_runs import Step, connect, drawn, number_of, pairs_of

A, W, V, BIAS = drawn(4, 8), drawn(8, 8), drawn(8, 8), drawn(8)


def fresh(*shape):
    return drawn(*(shape or (4, 8)))


def of(graph, array):
    """The content that holds these values."""
    return next(
        one.number
        for one in graph.contents
        if np.array_equal(one.sketch.quantiles[[0, -1]], [array.min(), array.max()])
    )


class Runs:
    """Two runs, of whose tensors some are partners."""

    def __init__(self, target, golden, *partners, **more):
        self.pairs = pairs_of(tuple(target), tuple(golden))
        connect(
            self.pairs, *((of(self.pairs.target, one), of(self.pairs.golden, other)) for one, other in partners), **more
        )
        self.own = {one.target for one in self.pairs}

    @property
    def found(self):
        """Places of the operators of the target and the golden that compute the contents of new pairs."""
        graphs = self.pairs.target, self.pairs.golden
        new = [one for one in self.pairs if one.target not in self.own]
        return [tuple(graph.contents[n].makers[0] for graph, n in zip(graphs, one[:2])) for one in new]

    def by_weights(self, near=None, together=()):
        types = LearnedTypes(self.pairs)
        types.together.update(together)
        for here, there in together:
            types.seen[0][here] += 1
            types.seen[1][there] += 1
        count = match_weights(self.pairs, types, near)
        assert count == len(self.found)
        return self.found

    def by_operands(self):
        count = match_operands(self.pairs)
        assert count == len(self.found)
        return self.found


# Data that two products read


def product(data, *weights, kind="linear", out=None, **more):
    return Step(kind, (data, *weights), (fresh() if out is None else out,), **more)


def operands(more=(), other=(), target=None, golden=None, partners=((W, W),)):
    """A product in each run that reads other data with the same weight."""
    h, g = fresh(), fresh()
    runs = (
        [Step("tanh", (A,), (h,)), (target or product)(h, W), *more],
        [Step("tanh", (A,), (g,)), (golden or product)(g, W), *other],
    )
    return Runs(*runs, *partners).by_operands()


def test_two_products_with_one_weight_read_partners():
    h, g = fresh(), fresh()
    runs = Runs(
        [Step("tanh", (A,), (h,)), product(h, W)], [Step("tanh", (A,), (g,)), product(g, W, kind="matmul")], (W, W)
    )
    assert runs.by_operands() == [(0, 0)]
    pair = [*runs.pairs][-1]
    assert (pair.via, pair.confidence) == ("weights", 0.85)
    assert pair.reason == "read with the same weight, by the only products that read it"


@pytest.mark.parametrize("side", ["more", "other"])
@pytest.mark.parametrize("reader, is_pair", [
    (product(fresh(), W), False),  # a second product
    (product(fresh(), W, kind="exp"), False),
    (Step("cast", (W,), (W,)), True),  # a copy
    (product(fresh(), W, path="head"), True),  # the record of a module
    (product(fresh(), W, phase="backward"), True),
])  # fmt: skip
def test_a_weight_that_several_operators_read_shows_no_data(side, reader, is_pair):
    assert operands(**{side: [reader]}) == [(0, 0)] * is_pair


@pytest.mark.parametrize("side", ["target", "golden"])
def test_other_operators_and_products_of_several_data_show_no_data(side):
    both = fresh()
    assert operands(**{side: lambda h, w: product(h, w, kind="mul")}) == []
    assert operands(**{side: lambda h, w: product(h, w, V)}) == [(0, 0)]
    more = {"target": "more", "golden": "other"}[side]
    two = {side: lambda h, w: product(h, w, both)}
    assert operands(**two) == [(0, 0)]  # no operator computes the second one: a weight
    assert operands(**two, **{more: [Step("exp", (fresh(),), (both,))]}) == []


def test_contents_of_another_size_or_with_a_partner_are_no_data():
    h, g = fresh(), fresh(2, 8)
    assert (
        Runs([Step("tanh", (A,), (h,)), product(h, W)], [Step("tanh", (A,), (g,)), product(g, W)], (W, W)).by_operands()
        == []
    )
    h, g, other = fresh(), fresh(), fresh()
    target, golden = (
        [Step("tanh", (A,), (h,)), product(h, W)],
        [Step("tanh", (A,), (g,)), product(g, W), Step("exp", (), (other,))],
    )
    assert Runs(target, golden, (W, W)).by_operands() == [(0, 0)]
    assert Runs(target, golden, (W, W), (h, other)).by_operands() == []
    assert Runs(golden, target, (W, W), (other, h)).by_operands() == []


def test_a_content_that_one_run_computes_is_no_weight():
    h, g = fresh(), fresh()
    read, computed = (
        [Step("tanh", (A,), (h,)), product(h, W)],
        [Step("exp", (V,), (W,)), Step("tanh", (A,), (g,)), product(g, W)],
    )
    for target, golden in ((read, computed), (computed, read)):
        assert Runs(target, golden, (W, W)).by_operands() == []


# Outputs below weights


def test_the_outputs_of_two_operators_that_read_partners_are_partners():
    h = fresh()
    target = [Step("tanh", (A,), (h,)), product(h, W), product(h, V, BIAS)]
    golden = [Step("tanh", (A,), (h,)), product(h, W), product(h, V, BIAS)]
    runs = Runs(target, golden, (A, A), (h, h), (W, W), (V, V), (BIAS, BIAS))
    assert sorted(runs.by_weights()) == [(1, 1), (2, 2)]
    one, two = [*runs.pairs][-2:]
    assert (one.via, one.confidence, one.reason) == (
        "weights",
        0.85,
        "reads the same 1 weight, the only content of this size below",
    )
    assert two.reason == "reads the same 2 weights, the only content of this size below"


def both(target, golden, *partners, h=None):
    """New pairs of a run of these operators and one of those, and of the runs exchanged, which must be the same."""
    h = fresh() if h is None else h
    first = Step("tanh", (A,), (h,))
    target, golden = [first, *(one(h) for one in target)], [first, *(one(h) for one in golden)]
    known = [(A, A), (h, h), *((one, one) for one in partners)]
    found = Runs(target, golden, *known).by_weights()
    assert found == [one[::-1] for one in Runs(golden, target, *known).by_weights()]
    return found


def linear(*weights, kind="linear", out=None):
    return lambda h: product(h, *weights, kind=kind, out=out)


def then(kind, read, out, *more):
    return lambda h: Step(kind, (read, *more), (out,))


def test_weights_without_a_partner_anchor_nothing():
    assert both([linear(W)], [linear(W)], W) == [(1, 1)]
    assert both([linear(W)], [linear(W)]) == []
    assert both([linear(W, BIAS)], [linear(W, BIAS)], W) == []
    assert both([linear()], [linear()]) == []


def test_weights_that_several_operators_read_anchor_nothing():
    assert both([linear(W), linear(W)], [linear(W)], W) == []
    assert both([linear(W, V), linear(W)], [linear(W, V)], W, V) == [(1, 1)]  # the second reads one of two


def test_an_output_of_another_size_is_no_partner():
    assert both([linear(W, out=fresh(9))], [linear(W)], W) == []


@pytest.mark.parametrize("steps, is_pair", [(1, True), (3, True), (4, False)])
def test_a_decomposed_operator_ends_a_few_steps_below_its_weights(steps, is_pair):
    """Only the last operator writes as many elements as the fused one."""
    values = [*(fresh(9) for _ in range(steps)), fresh()]
    chain = [linear(W, kind="mul", out=values[0])]
    chain += [then("exp", one, other) for one, other in zip(values, values[1:])]
    assert both([linear(W, kind="mul")], chain, W) == [(1, steps + 1)] * is_pair


def test_a_further_weight_on_the_way_rules_a_partner_out():
    middle = fresh(9)
    decomposed = [linear(W, out=middle), then("mul", middle, fresh(), V)]
    assert both([linear(W)], decomposed, W) == []
    assert both([linear(W), linear(V, out=fresh(9))], decomposed, W, V) == []
    assert both([linear(W, V)], decomposed, W, V) == [(1, 2)]


def test_both_read_the_same_data():
    """Further operators write data with partners; one product reads others than the other."""
    g, late = fresh(), fresh(9)
    exp = Step("exp", (A,), (g,))
    assert both([lambda h: exp, lambda h: product(g, W)], [lambda h: exp, lambda h: product(g, W)], W, g) == [(2, 2)]
    assert both([lambda h: exp, lambda h: product(g, W)], [lambda h: exp, linear(W)], W, g) == []
    views = [then("exp", g, late), lambda h: product(late, W)]
    assert both([lambda h: exp, lambda h: product(g, W)], [lambda h: exp, *views], W, g) == [(2, 3)]


@pytest.mark.parametrize("steps, is_pair", [(1, True), (2, True), (3, False)])
def test_the_data_is_a_few_steps_above_the_output(steps, is_pair):
    """One step is the product, another one what follows it."""
    values = [fresh(9 + at) for at in range(steps + 1)]
    chain = [lambda h: Step("exp", (h,), (values[0],)), *(then("exp", *two) for two in zip(values, values[1:-1]))]
    chain += [then("mul", values[-2], values[-1], W), then("exp", values[-1], fresh())]
    assert both([linear(W, kind="mul")], chain, W) == [(1, steps + 2)] * is_pair


@pytest.mark.parametrize(
    "own, other, is_pair", [(0, 0, True), (0, 1, False), (1, 1, True), (0, None, True), (None, 1, True)]
)
def test_data_without_partners_descends_from_partners(own, other, is_pair):
    """Two inputs with partners, from which each run computes the data of the product; or from none of them."""
    inputs = fresh(), fresh()
    runs = []
    for at in (own, other):
        data = fresh(9)
        start = [Step("rand", (), (one,)) for one in inputs]
        runs.append([*start, Step("exp", (inputs[at],) if at is not None else (), (data,)), product(data, W)])
    found = Runs(*runs, *zip(inputs, inputs), (W, W)).by_weights()
    assert found == [(3, 3)] * is_pair


@pytest.mark.parametrize("kind", ["add", "AddV2", "BiasAdd"])
def test_a_product_whose_bias_is_added_apart_has_no_partner_of_its_own(kind):
    """The sum is the partner, where the other run has the bias elsewhere."""
    middle = fresh()
    decomposed = [linear(W, kind="matmul", out=middle), then(kind, middle, fresh(), BIAS)]
    assert both([linear(W)], decomposed, W) == []
    assert both([linear(W, BIAS)], decomposed, W, BIAS) == [(1, 2)]
    other = [linear(W, kind="matmul", out=middle), then("mul", middle, fresh(), BIAS)]
    assert both([linear(W)], other, W) == [(1, 1)]
