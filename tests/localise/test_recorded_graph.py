"""Coverage of recorded figures: numbers of rows say what the graph of golden_graph.py says of the same tensors."""

from __future__ import annotations

import math
import random

import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.localise.coverage import coverage_of
from npucmp.localise.recorded_graph import RecordedGraph
from npucmp.model import Finding, Measurement, Operator, Pair, Statistics, TensorRef, Verdict
from tests.localise.networks import SMALL, network, paired

TYPES = ("linear", "relu", "view", "dropout", "add", "empty", "gather")
SHAPES = ((4, 5), (4, 5), (20,), (2, 1), (1,), (), (0, 3))
VERDICTS = (Verdict.UNKNOWN,) * 5 + (Verdict.DIVERGED, Verdict.DIVERGED, Verdict.MATCH, Verdict.NONFINITE)
LAST = (3.0, math.nan, math.inf, None)


def drawn_network(draw: random.Random) -> list[Finding]:
    """A chain of operators: each reads what one of the latest wrote, and any other content; a backward may follow."""
    number = iter(range(1, 10**6))
    contents = [(draw.choice(SHAPES), figures(draw, next(number))) for _ in range(3)]
    calls = [(f"{draw.choice(TYPES)}.{at}", "forward") for at in range(draw.randint(1, 7))]
    calls += [(name, "backward") for name, _ in reversed(calls)] if draw.random() < 0.6 else []
    findings: list[Finding] = []
    order = 0
    for name, phase in calls:
        order += draw.randint(1, 2)
        read = [draw.choice(contents[-3:]) for _ in range(draw.randint(0, 2))]
        read += [draw.choice(contents)] if draw.random() < 0.2 else []
        wrote = [(draw.choice(SHAPES), figures(draw, next(number))) for _ in range(draw.choice((0, 1, 1, 1, 2)))]
        if read and wrote and draw.random() < 0.3:
            wrote[0] = read[0]
        contents += wrote
        slots = [*(f"input:{at}" for at in range(len(read))), *(f"output:{at}" for at in range(len(wrote)))]
        tensors = [
            TensorRef(slot, draw.choice(("float32",) * 5 + ("bool",)), shape, statistics=one)
            for slot, (shape, one) in zip(slots, [*read, *wrote])
        ]
        findings += drawn_operator(draw, name, phase, order, tensors)
    return [one._replace(row=row) for row, one in enumerate(findings)]


def figures(draw: random.Random, number: int) -> Statistics:
    least = 3.0 if draw.random() < 0.1 else -number / 7.0
    return Statistics(3.0, least, number / 3.0, draw.choice((number * 1.1,) * 12 + LAST))


def drawn_operator(draw: random.Random, name: str, phase: str, order: int, tensors: list[TensorRef]) -> list[Finding]:
    arguments = {"input:0": 1.0} if draw.random() < 0.1 else {}
    kind = name.partition(".")[0]
    golden = Operator(f"{name}.{phase}", kind, kind, phase, order, tuple(tensors), arguments=arguments, call=name)
    golden = golden._replace(reads_recorded=draw.random() < 0.95)
    target = golden if draw.random() < 0.9 else golden._replace(tensors=golden.tensors[:1])
    return [
        Finding(
            Measurement(Pair(order, tensor.slot, target, golden, tensor, tensor)),
            draw.choice(VERDICTS),
            "",
            rule="meaningless" if draw.random() < 0.05 else "",
        )
        for tensor in tensors
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_graph_of_numbers_says_what_the_graph_of_contents_says(seed, monkeypatch):
    draw = random.Random(seed)
    networks = [drawn_network(draw) for _ in range(250)]
    by_numbers = [coverage_of(one, (), ANYWHERE) for one in networks]
    assert sum(RecordedGraph.of(one) is not None for one in networks if one) == sum(map(bool, networks))
    monkeypatch.setattr(RecordedGraph, "of", lambda findings: None)
    assert [coverage_of(one, (), ANYWHERE) for one in networks] == by_numbers
    assert sum(bool(one.accounted) for one in by_numbers) > 50
    assert sum(bool(one.tensors) for one in by_numbers) > 50


def of(*lines: str) -> list[Finding]:
    return network(*lines, figures=True, **SMALL)


def test_it_knows_no_tensor_that_is_unreadable_and_none_whose_slots_differ():
    findings = of("add x y -> z")
    assert RecordedGraph.of([]) is None
    assert RecordedGraph.of([findings[0]._replace(verdict=Verdict.UNREADABLE), *findings[1:]]) is None
    moved = findings[0].pair.golden._replace(slot="input:2")
    for sides in ({"golden": moved}, {"target": moved}, {"target": moved, "golden": moved}):
        assert RecordedGraph.of([paired(findings[0], **sides), *findings[1:]]) is None
