"""Coverage of recorded figures: numbers of rows say what the graph of golden_graph.py says of the same tensors."""

from __future__ import annotations

import math
import random

import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.localise.coverage import coverage_of
from npucmp.localise.recorded_graph import RecordedGraph
from npucmp.model import Finding, Measurement, Operator, Pair, Payload, Statistics, TensorRef, Verdict
from tests.localise.networks import OPEN, SMALL, named, network, paired, with_golden

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


SIMPLE = {"max": 2.0, "min": -1.0, "mean": 0.5, "norm": 4.0}


@pytest.mark.parametrize(
    "shape, change, opened",
    [
        ((4,), {}, 0),
        ((4,), {"max": None}, 1),
        ((4,), {"min": None}, 1),
        ((4,), {"mean": None}, 1),
        ((4,), {"norm": None}, 1),
        ((4,), {"norm": math.inf}, 0),
        ((4,), {"min": 2.3}, 1),  # a constant
        ((4,), SIMPLE, 0),
        ((3,), SIMPLE, 1),
        ((3,), {}, 0),
    ],
)
def test_a_tensor_was_compared_where_another_row_has_its_figures(shape, change, opened, monkeypatch):
    """An input is open unless the output before it, which was compared, is the same tensor by its figures."""
    own = Statistics(2.3, -1.1, 0.7, 5.9)._replace(**change)
    rows = []
    for order, slot, verdict in ((1, "output:0", Verdict.MATCH), (2, "input:0", Verdict.UNKNOWN)):
        tensor = TensorRef(slot, "float32", shape, statistics=own)
        op = Operator(f"linear.{order}", "linear", "linear", "forward", order, (tensor,), call=f"linear.{order}")
        rows.append(Finding(Measurement(Pair(order, slot, op, op, tensor, tensor)), verdict, "", row=len(rows)))
    assert RecordedGraph.of(rows) is not None and coverage_of(rows, (), ANYWHERE).tensors == opened
    monkeypatch.setattr(RecordedGraph, "of", lambda findings: None)
    assert coverage_of(rows, (), ANYWHERE).tensors == opened


def of(*lines: str) -> list[Finding]:
    return network(*lines, figures=True, **SMALL)


def opened(findings: list[Finding]) -> str:
    """The open tensors by place and letter."""
    graph = RecordedGraph.of(findings)
    assert graph is not None
    return " ".join(named([findings[at] for at in graph.open_rows()]))


@pytest.mark.parametrize("lines, left", OPEN.values(), ids=OPEN)
def test_a_tensor_is_open_unless_compared_tensors_account_for_it(lines, left):
    assert opened(of(*lines)) == left


def test_the_golden_has_elements_and_a_role():
    findings = of("linear x? w -> y e?", "empty x -> z?", "add x? q? -> z?", "add k? s? -> e?")
    takes = findings[6].pair.golden_op._replace(arguments={"input:0": 1.0})
    findings[6] = paired(findings[6], target_op=takes, golden_op=takes)  # an argument
    findings[7] = findings[7]._replace(rule="meaningless")
    findings[8] = findings[8]._replace(rule="overwritten", verdict=Verdict.MATCH)  # it was compared all the same
    graph = RecordedGraph.of(findings)
    assert graph.elements == [20, 20, 20, 0, 20, 20, 20, 20, 20, 20, 1, 0]
    assert graph.golden == [0, 1, 2, 4, 8, 9, 10]
    assert graph.undecided == [0, 9, 10]


def test_an_argument_is_one_of_both_runs():
    findings = of("add x? y? -> z")
    takes = findings[0].pair.golden_op._replace(arguments={"input:1": 1.0})
    assert RecordedGraph.of([paired(one, target_op=takes, golden_op=takes) for one in findings]).undecided == [0]
    assert RecordedGraph.of([paired(one, golden_op=takes) for one in findings]).undecided == [0, 1]


@pytest.mark.parametrize(
    "lines, lost, left",
    [
        (["linear x w -> y?", "relu y -> z"], 0, "0:y"),
        (["linear x w -> y?", "relu y? -> z"], 0, "0:y"),  # its reader's record is closed by what it wrote
        (["view y -> y?"], 0, "0:y"),
        (["linear x w -> y?", "relu y? -> z"], 1, ""),
        (["linear x w -> y", "relu y? -> z"], 0, ""),
    ],
)
def test_an_output_whose_target_record_lost_all_outputs_is_open(lines, lost, left):
    findings = [one._replace() for one in of(*lines)]
    for at, one in enumerate(findings):
        if one.pair.order == lost:
            bare = one.pair.target_op._replace(tensors=one.pair.target_op.tensors[:1])
            findings[at] = paired(one, target_op=bare)
    assert opened(findings) == left


@pytest.mark.parametrize("place", [0, 1])
def test_a_stretch_is_open_if_an_operator_records_no_inputs(place):
    findings = of("linear x w -> y?", "relu y? -> z")
    silent = findings[0 if not place else 3].pair.golden_op._replace(reads_recorded=False)
    assert opened([paired(one, golden_op=silent) if one.pair.order == place else one for one in findings]) == "0:y 1:y"


@pytest.mark.parametrize("unknown", ["", "x"])
@pytest.mark.parametrize("checksum, left", [("1f2e3d4c", ""), ("00000000000000001f2e3d4c", "1:y"), ("", "1:y")])
def test_a_checksum_is_the_content(checksum, left, unknown):
    """The checksum of the output is 1f2e3d4c; figures of another tensor may be unknown."""
    findings = of("linear x w -> y", "relu y? -> z")
    for row, own in ((2, "1f2e3d4c"), (3, checksum)):
        findings[row] = with_golden(findings[row], checksum=own)
    if unknown:
        findings[0] = with_golden(findings[0], statistics=None)
    assert opened(findings) == left


def test_figures_are_the_content_where_others_have_none():
    findings = of("linear x w -> y", "relu y? -> z")
    findings[0] = with_golden(findings[0], statistics=None)
    assert opened(findings) == ""
    findings[2] = with_golden(findings[2], statistics=None)
    assert opened(findings) == "1:y"


@pytest.mark.parametrize("change", [{"target": None}, {"golden": None}, {"target_op": None}, {"golden_op": None}])
def test_it_knows_no_tensor_without_a_partner(change):
    findings = next(filter(None, map(drawn_network, map(random.Random, range(9)))))
    pair = findings[0].pair._replace(**change)
    findings[0] = findings[0]._replace(measurement=Measurement(pair))
    assert RecordedGraph.of(findings) is None


def test_it_knows_no_tensor_that_is_unreadable_and_none_whose_slots_differ():
    findings = of("add x y -> z")
    assert RecordedGraph.of([]) is None
    assert RecordedGraph.of([findings[0]._replace(verdict=Verdict.UNREADABLE), *findings[1:]]) is None
    moved = findings[0].pair.golden._replace(slot="input:2")
    for sides in ({"golden": moved}, {"target": moved}, {"target": moved, "golden": moved}):
        assert RecordedGraph.of([paired(findings[0], **sides), *findings[1:]]) is None


@pytest.mark.parametrize("field", ["file", "source", "payload"])
def test_it_knows_no_golden_tensor_with_values_or_a_named_producer(field):
    findings = next(filter(None, map(drawn_network, map(random.Random, range(9)))))
    pair = findings[0].pair
    golden = pair.golden._replace(**{field: Payload("x", "float32", (1,), 0) if field == "payload" else "name:0"})
    findings[0] = findings[0]._replace(measurement=Measurement(pair._replace(golden=golden)))
    assert RecordedGraph.of(findings) is None
