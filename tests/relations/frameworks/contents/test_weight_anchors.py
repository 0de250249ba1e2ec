"""Pairs of contents by the weights that operators read."""

from __future__ import annotations

import numpy as np

from npucmp.relations.frameworks.contents.learned_types import LearnedTypes
from npucmp.relations.frameworks.contents.weight_anchors import match_operands, match_weights
from tests.relations.frameworks.contents.small_runs import Step, connect, drawn, pairs_of, seeded

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


# Outputs below weights


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


def test_both_read_the_same_data():
    """Further operators write data with partners; one product reads others than the other."""
    g, late = fresh(), fresh(9)
    exp = Step("exp", (A,), (g,))
    assert both([lambda h: exp, lambda h: product(g, W)], [lambda h: exp, lambda h: product(g, W)], W, g) == [(2, 2)]
    assert both([lambda h: exp, lambda h: product(g, W)], [lambda h: exp, linear(W)], W, g) == []
    views = [then("exp", g, late), lambda h: product(late, W)]
    assert both([lambda h: exp, lambda h: product(g, W)], [lambda h: exp, *views], W, g) == [(2, 3)]
