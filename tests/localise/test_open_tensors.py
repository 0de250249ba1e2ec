"""Golden tensors that no compared tensor accounts for, in networks by hand and in random ones."""

from __future__ import annotations

import math
import random

import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.flow.operators import numbered
from npucmp.localise.coverage import coverage_of
from npucmp.model import Comparison, Finding, Measurement, Operator, Pair, Run, Statistics, TensorRef, Verdict
from npucmp.model.network import SearchRows, join_parts, split_table
from npucmp.model.table import ChangedRows, Table
from tests.localise.networks import OPEN, SMALL, named, network, with_golden

TYPES = ("linear", "relu", "view", "dropout", "add", "empty", "gather")
SHAPES = ((4, 5), (4, 5), (20,), (2, 1), (1,), (), (0, 3))
VERDICTS = (Verdict.UNKNOWN,) * 5 + (Verdict.DIVERGED, Verdict.DIVERGED, Verdict.MATCH, Verdict.NONFINITE)
LAST = (3.0, math.nan, math.inf, None)


@pytest.mark.parametrize("figures", [False, True])
@pytest.mark.parametrize("lines, still_open", OPEN.values(), ids=OPEN)
def test_a_tensor_is_open_if_no_compared_tensor_accounts_for_it(lines, still_open, figures):
    findings = network(*lines, figures=figures, **SMALL)
    names = {(one.pair.golden_op.name, one.pair.slot): name for one, name in zip(findings, named(findings))}
    found = coverage_of(findings, (), ANYWHERE)
    assert " ".join(names[one.op, one.slot] for one in found.first) == still_open
    elements = {name: math.prod(one.pair.golden.shape) for one, name in zip(findings, named(findings))}
    assert found.missed == sum(elements[names[one.op, one.slot]] for one in found.first)
    meaningless = [one for one in findings if one.pair.operator.op_type == "empty" and one.pair.slot == "output:0"]
    assert found.covered + found.missed == sum(math.prod(one.pair.golden.shape) for one in findings) - sum(
        math.prod(one.pair.golden.shape) for one in meaningless
    )


def test_a_name_links_tensors_before_their_values_do():
    findings = network("linear x w -> y?", "relu z? -> q", **SMALL)
    assert coverage_of(findings, (), None).tensors == 2
    findings[3] = with_golden(findings[3], source="linear.0.forward:0")
    assert coverage_of(findings, (), None).tensors == 0


def drawn_network(draw: random.Random) -> list[Finding]:
    """A chain of operators: each reads what one of the latest wrote, and any other content; a backward may follow."""
    number = iter(range(1, 10**6))
    contents = [(draw.choice(SHAPES), figures_of(draw, next(number))) for _ in range(3)]
    calls = [(f"{draw.choice(TYPES)}.{at}", "forward") for at in range(draw.randint(1, 7))]
    calls += [(name, "backward") for name, _ in reversed(calls)] if draw.random() < 0.6 else []
    findings: list[Finding] = []
    order = 0
    for name, phase in calls:
        order += draw.randint(1, 2)
        read = [draw.choice(contents[-3:]) for _ in range(draw.randint(0, 2))]
        read += [draw.choice(contents)] if draw.random() < 0.2 else []
        wrote = [(draw.choice(SHAPES), figures_of(draw, next(number))) for _ in range(draw.choice((0, 1, 1, 1, 2)))]
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


def figures_of(draw: random.Random, number: int) -> Statistics:
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
            Measurement(Pair(order, one.slot, target, golden, one, one), statistics=(one.statistics, one.statistics)),
            draw.choice(VERDICTS),
            "",
            rule="meaningless" if draw.random() < 0.05 else "",
        )
        for one in tensors
    ]


@pytest.mark.parametrize("seed", range(2))
def test_rows_of_a_shared_network_have_the_coverage_of_their_findings(seed):
    draw = random.Random(seed)
    accounted = 0
    for findings in filter(None, (drawn_network(draw) for _ in range(100))):
        expected = coverage_of(findings, (), ANYWHERE)
        operators = [*{id(one.pair.golden_op): one.pair.golden_op for one in findings}.values()]
        runs = (Run(side, "npy", tuple(operators)) for side in ("t", "g"))
        stored = join_parts(*split_table(Comparison(*runs, Table(findings), (), {})))
        rows = numbered(stored.findings)
        assert isinstance(rows, SearchRows) and rows.network is not None
        assert coverage_of(rows, (), ANYWHERE) == expected
        changed = ChangedRows(rows, {0: rows[0]._replace(verdict=Verdict.UNREADABLE)})
        assert coverage_of(changed, (), ANYWHERE) == coverage_of([*changed], (), ANYWHERE)
        accounted += expected.accounted
    assert accounted > 20
