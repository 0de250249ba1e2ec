"""Pairs of contents by the weights that operators read."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.contents.learned_types import LearnedTypes
from npucmp.align.contents.weight_anchors import match_operands, match_weights
from npucmp.model import Statistics
from tests.align.contents.small_runs import Step, connect, drawn, pairs_of, seeded

A, W, V, BIAS = seeded(1, 4, 8), seeded(2, 8, 8), seeded(3, 8, 8), seeded(4, 8)


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
        for here, there in together:
            types.together[here, there] += 1
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
    for side in (0, 1):
        runs = Runs(target, golden, (W, W))
        runs.pairs.right[side].add(of((runs.pairs.target, runs.pairs.golden)[side], (h, g)[side]))
        assert runs.by_operands() == []  # nor those above an agreement


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


def both(target, golden, *partners, h=None, together=()):
    """New pairs of a run of these operators and one of those, and of the runs exchanged, which must be the same."""
    h = fresh() if h is None else h
    first = Step("tanh", (A,), (h,))
    target, golden = [first, *(one(h) for one in target)], [first, *(one(h) for one in golden)]
    known = [(A, A), (h, h), *((one, one) for one in partners)]
    found = Runs(target, golden, *known).by_weights(together=together)
    exchanged = Runs(golden, target, *known).by_weights(together=[one[::-1] for one in together])
    assert found == [one[::-1] for one in exchanged]
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


def test_a_product_with_a_further_operand_is_a_sum_in_the_other_run():
    """One run adds data to the product by an operator of its own."""
    g, middle = fresh(), fresh()
    exp = Step("exp", (A,), (g,))
    fused = [lambda h: exp, lambda h: Step("linear", (h, W, g), (fresh(),))]
    apart = [lambda h: exp, linear(W, kind="matmul", out=middle), then("add", middle, fresh(), g)]
    assert both(fused, apart, W, g) == [(2, 3)]


def test_an_operator_that_is_no_product_adds_no_bias():
    middle = fresh()
    scaled = [linear(W, kind="mul", out=middle), then("add", middle, fresh(), BIAS)]
    assert both([linear(W, kind="mul")], scaled, W) == [(1, 1)]


def test_an_operator_that_reads_weights_alone_has_a_partner():
    assert both([lambda h: Step("exp", (W,), (fresh(),))], [lambda h: Step("exp", (W,), (fresh(),))], W) == [(1, 1)]


def test_weights_that_an_operator_loads_have_no_partners_of_their_own():
    load = [lambda h: Step("ReadVariableOp", (W,), (fresh(),))]
    assert both(load, load, W) == []


# Choices


@pytest.mark.parametrize("kind, together, is_pair", [
    ("mul", [("mul", "exp")], True),  # a step farther from the weights decides more than types
    ("linear", [], True), ("linear", [("linear", "exp")], False),  # but not that of a product
])  # fmt: skip
def test_the_nearest_content_below_the_weights_is_the_partner(kind, together, is_pair):
    """Only the contents of the target look for partners."""
    h, middle = fresh(), fresh()
    first = Step("tanh", (A,), (h,))
    golden = [first, product(h, W, kind=kind, out=middle), Step("exp", (middle,), (fresh(),))]
    runs = Runs([first, product(h, W, kind=kind)], golden, (A, A), (h, h), (W, W))
    assert runs.by_weights(near=({0, 1, 2, 3}, set()), together=together) == ([(1, 1)] * is_pair)


@pytest.mark.parametrize("error, is_pair", [(0.1, True), (0.2, True), (0.6, False)])
def test_of_two_contents_below_the_weights_the_nearer_one_is_the_partner(error, is_pair):
    """Other types read the weight twice; an error of more than a half shows nothing."""
    y = fresh()
    near = (y * (1 + error)).astype(np.float32)
    other = [lambda h: Step("exp", (h, W), (fresh(),)), lambda h: Step("sin", (h, W), (near,))]
    assert both([linear(W, kind="tanh", out=y)], other, W) == [(1, 2)] * is_pair


def test_of_two_contents_without_values_the_one_of_the_same_type_is_the_partner():
    recorded = [Statistics(3.0 + at, -1.0, 0.5 * at, 8.0) for at in range(3)]
    other = [lambda h: Step("exp", (h, W), (recorded[1],)), lambda h: Step("tanh", (h, W), (recorded[2],))]
    assert both([linear(W, kind="tanh", out=recorded[0])], other, W) == [(1, 2)]
    assert both([linear(W, kind="sin", out=recorded[0])], other, W) == []


# What a weight is


def test_what_products_read_as_data_is_no_weight():
    """One run does not record what computes the input of the network, so that it has no partner."""
    x, z = fresh(), fresh()
    rand = Step("rand", (), (z,))
    read, golden = [lambda h: product(x, W)], [lambda h: rand, lambda h: product(z, W)]
    assert both(read, golden, W) == [(1, 2)]
    for other in (product(fresh(), x), Step("linear", (fresh(), W, x), (fresh(9),), path="head")):  # as a parameter too
        assert both([*read, lambda h, other=other: other], golden, W) == []
    assert (
        both(
            [lambda h: Step("mul", (x, W), (fresh(),))], [lambda h: rand, lambda h: Step("mul", (z, W), (fresh(),))], W
        )
        == []
    )


# Gradients


@pytest.mark.parametrize("phases, is_pair", [
    (("forward", "forward"), True), (("backward", "backward"), True),
    (("forward", "backward"), False), (("backward", "forward"), False),
])  # fmt: skip
def test_partners_belong_to_the_same_pass(phases, is_pair):
    """Both runs have gradients; the golden one has more contents in front."""
    last = Step("neg", (fresh(),), (fresh(9),), phase="backward")
    h, more = fresh(), [Step("rand", (), (fresh(),)), Step("rand", (), (fresh(10),), phase="backward")]
    runs = [[Step("tanh", (A,), (h,)), Step("mul", (h, W), (fresh(),), phase), last] for phase in phases]
    assert Runs(runs[0], [*more, *runs[1]], (W, W), (h, h)).by_weights() == [(1, 3)] * is_pair
    data = [
        [Step("tanh", (A,), (one,), phase), product(one, W), last] for phase, one in zip(phases, (fresh(), fresh()))
    ]
    assert Runs(data[0], [*more, *data[1]], (W, W)).by_operands() == [(0, 2)] * is_pair


@pytest.mark.parametrize("side", [0, 1])
def test_only_contents_near_new_pairs_are_tried(side):
    h = fresh()
    run = [Step("tanh", (A,), (h,))]
    runs = Runs([*run, product(h, W)], [*run, product(h, W)], (A, A), (h, h), (W, W))
    last = [len(graph.contents) - 1 for graph in (runs.pairs.target, runs.pairs.golden)]
    assert runs.by_weights(near=({0, 1, 2}, {0, 1, 2})) == []
    assert runs.by_weights(near=({last[0]}, set()) if side == 0 else (set(), {last[1]})) == [(1, 1)]
