"""The earlier row of the tensor that an operator reads, and the operators that two runs execute in another order."""

from __future__ import annotations

from typing import Optional

import numpy as np
import pytest

from npucmp.flow.contents import content_of
from npucmp.flow.edges import Edges
from npucmp.flow.operators import number_findings
from npucmp.localise.sources import Sources, TensorSource
from npucmp.model import Finding
from tests.localise.networks import SHAPE, network, paired, values_of

FIRST = 100  # the row of the first tensor, as in a search over several ranks
ONES = np.ones(SHAPE, np.float32)


def rank(*lines: str, first: int = FIRST, **values: np.ndarray) -> tuple[list[Finding], Sources]:
    findings = number_findings(network(*lines, **values), first)
    return findings, Sources(findings, Edges(findings), *([first] if first else []))


def place(source: Optional[TensorSource]) -> Optional[int]:
    """The row of a source, counted from the first."""
    return None if source is None else source.finding.row - FIRST


def foreign(letter: str, row: int = 0) -> Finding:
    """A tensor of another rank."""
    return network(f"relu {letter} -> q")[0]._replace(row=row)


def ordered(findings: list[Finding], golden: dict[int, Optional[int]]) -> list[Finding]:
    """The operators at other places of the golden run; None for an operator that the golden run lacks."""
    return [
        one if one.pair.order not in golden else paired(one, golden_op=_at(one, golden[one.pair.order]))
        for one in findings
    ]


def _at(one: Finding, order: Optional[int]):
    return None if order is None else one.pair.golden_op._replace(order=order)


@pytest.mark.parametrize("first", [0, FIRST])
@pytest.mark.parametrize(
    "lines, row, source",
    [
        (["relu x -> y", "tanh y -> z"], 2, 1),
        (["relu x -> y", "tanh y -> y", "exp y -> z"], 4, 3),  # the latest of two writers
        (["relu x -> y", "tanh x -> z"], 2, 0),  # another reader
        (["relu x -> y", "tanh q -> z"], 2, None),
        (["relu x -> y"], 0, None),
        (["relu x -> y", "target tanh z -> q", "exp q -> p"], 4, None),  # an operator of one run
    ],
)
def test_the_source_of_a_tensor_is_the_latest_row_before_it(lines, row, source, first):
    findings, sources = rank(*lines, first=first)
    found = sources.of(findings[row])
    assert found == (None if source is None else TensorSource(findings[source], False))


def test_a_tensor_that_no_operator_wrote_is_its_own_source_once_the_search_has_visited_it():
    findings, sources = rank("add x k -> y", "tanh x k -> z", k=ONES)
    first = TensorSource(findings[0], True)
    assert sources.of(findings[0]) is None and not sources.is_marked(findings[0])
    sources.learn(first)
    assert [sources.of(findings[row]) for row in (0, 3)] == [first, first]
    assert sources.is_marked(findings[0])
    sources.learn(TensorSource(findings[1], True))
    assert sources.of(findings[1]) is None  # ones identify no tensor


def test_an_output_has_the_source_that_the_search_learned():
    findings, sources = rank("relu x -> y", "tanh y -> z")
    assert sources.at(FIRST + 1) == TensorSource(findings[1], False, False, False)
    for known, marked in (((False, False, True), False), ((True, False), True), ((False, True), True)):
        sources.learn(TensorSource(findings[1], *known))
        assert sources.at(FIRST + 1) == sources.of(findings[2]) == TensorSource(findings[1], *known)
        assert sources.is_marked(findings[2]) is marked


def test_memory_that_no_operator_wrote_is_known():
    findings, sources = rank("empty x -> y", "relu y -> z")
    assert sources.any_meaningless and sources.of(findings[2]) == TensorSource(findings[1], False, True)
    assert sources.is_marked(findings[2])
    findings, sources = rank("relu x -> y", "relu y -> z")
    assert not sources.any_meaningless
    sources.learn(TensorSource(findings[1], False, True))
    sources.learn(TensorSource(findings[3], False))
    assert sources.any_meaningless is True


@pytest.mark.parametrize("row", [FIRST - 1, FIRST + 4, 0])
def test_the_source_of_a_tensor_of_another_rank_is_the_latest_row_that_the_search_has_reached(row):
    findings, sources = rank("relu x -> y", "tanh y -> y")
    reached = []
    for at in (0, 1, 2, 3, 0):  # a row before the latest changes nothing
        sources.reach(findings[at])
        reached.append(place(sources.of(foreign("y", row))))
    assert reached == [None, 1, 1, 3, 3]
    assert sources.of(foreign("q", row)) is None


def test_the_search_reaches_the_rows_that_it_learns():
    findings, sources = rank("relu x -> y", "tanh y -> z")
    assert sources.of(foreign("x")) is None
    sources.learn(TensorSource(findings[0], True))
    assert sources.of(foreign("x")) == TensorSource(findings[0], True)
    assert sources.of(foreign("y")) is None


@pytest.mark.parametrize(
    "start, replaced",
    [(0, [0, 2, 6]), (1, [2, 6]), (2, [2, 6]), (3, [6]), (5, [6]), (6, [6]), (7, [])],
)
def test_a_replacement_holds_from_its_row_on(start, replaced):
    findings, sources = rank("relu y -> x", "tanh y -> z", "exp z -> q", "erf y -> p")
    other = TensorSource(foreign("y", 7), True)
    sources.replace(other, content_of(findings[0]), FIRST + start)
    assert [row for row, one in enumerate(findings) if sources.of(one) == other] == replaced


@pytest.mark.parametrize("start, replaced", [(0, [0]), (1, []), (2, [2]), (3, [])])
def test_a_replacement_ends_where_an_operator_writes_the_tensor_again(start, replaced):
    findings, sources = rank("relu y -> y", "tanh y -> y", "exp y -> q")
    other = TensorSource(foreign("y", 7), True)
    sources.replace(other, content_of(findings[0]), FIRST + start)
    assert [row for row in (0, 2, 4) if sources.of(findings[row]) == other] == replaced


def test_a_replacement_concerns_one_tensor_and_other_ranks():
    findings, sources = rank("relu x k -> y", "tanh y k -> z", k=ONES)
    other = TensorSource(foreign("y", 7), True)
    sources.replace(other, 0, FIRST)  # ones, which identify no tensor
    assert [place(sources.of(one)) for one in findings] == [None, None, None, 2, None, None]
    sources.replace(other, content_of(findings[2]), FIRST + 3)
    assert sources.of(findings[3]) == sources.of(foreign("y")) == other
    assert sources.of(findings[0]) is None and sources.of(foreign("x")) is None


@pytest.mark.parametrize("letter, start, known", [("y", 1, False), ("y", 2, True), ("x", 0, False), ("x", 1, True),
                                                  ("q", 4, False)])  # fmt: skip
def test_a_rank_knows_a_tensor_of_another_rank_behind_its_first_row(letter, start, known):
    _, sources = rank("relu x -> y", "tanh y -> y")
    tensor = foreign(letter)
    assert sources.is_known(tensor, FIRST + start) is known
    sources.replace(TensorSource(tensor, False), content_of(tensor), FIRST + 3)
    assert sources.is_known(tensor, FIRST + start) is True


def test_tensors_that_an_operator_reads():
    findings, sources = rank("relu x -> y", "tanh y -> z", "exp x -> q")
    assert [row for row, one in enumerate(findings) if sources.is_read(one)] == [0, 1]


@pytest.mark.parametrize("row, read", [(2, {0, 1}), (3, {0, 1}), (5, {4})])
def test_the_inputs_of_the_operator_that_wrote_a_tensor(row, read):
    findings, sources = rank("add x w -> y z", "tanh y -> q")
    assert {one.row - FIRST for one in sources.read_with(findings[row])} == read


@pytest.mark.parametrize("word, source", [("y~q", 1), ("y", None), ("y~z", None)])
def test_the_output_with_the_same_target_tensor(word, source):
    findings, sources = rank(f"relu x -> {word}", "tanh q -> p", q=values_of("q"), z=values_of("z"))
    sources.learn(TensorSource(findings[1], True))
    found = sources.of_target(findings[2])
    assert found == (None if source is None else TensorSource(findings[source], True))


def test_the_first_row_may_be_the_output_with_the_same_target_tensor():
    findings, sources = rank("relu -> y~q", "tanh q -> p", q=values_of("q"))
    assert place(sources.of_target(findings[1])) == 0


WRITTEN_LATER = ["exp x -> p", "relu y -> z", "tanh x -> y", "erf x -> y"]


@pytest.mark.parametrize(
    "golden, name",
    [
        ({1: 9}, "tanh"),  # the golden reads what it wrote at 2 and 3
        ({1: 3}, "tanh"),
        ({1: 9, 2: 10}, "erf"),
        ({1: 2}, None),
        ({}, None),
        ({1: 3, 2: None}, None),
        ({1: 9, 2: None}, "erf"),
        ({1: None}, None),
    ],
)
def test_the_operator_that_the_target_runs_after_the_reader_of_its_output(golden, name):
    findings = number_findings(ordered(network(*WRITTEN_LATER), golden), FIRST)
    found = Sources(findings, Edges(findings), FIRST).overwriting_operator(findings[2])
    assert (found and found.operator.op_type) == name


@pytest.mark.parametrize(
    "lines, name",
    [
        (["target tanh x -> y", "erf x -> y"], "erf"),
        (["golden tanh x -> y", "erf x -> y"], "erf"),  # the target has no such operator
        (["tanh y -> x", "erf x -> z"], None),  # another reader
        (["tanh x -> q"], None),
    ],
)
def test_an_operator_that_overwrites_is_an_operator_of_both_runs(lines, name):
    findings = number_findings(ordered(network("relu y -> z", *lines), {0: 9}), FIRST)
    found = Sources(findings, Edges(findings), FIRST).overwriting_operator(findings[0])
    assert (found and found.operator.op_type) == name


def test_an_operator_before_the_reader_overwrites_nothing():
    findings = number_findings(ordered(network("tanh x -> y", "relu y -> z"), {1: 9}), FIRST)
    assert Sources(findings, Edges(findings), FIRST).overwriting_operator(findings[2]) is None


@pytest.mark.parametrize(
    "golden, name",
    [
        ({0: 9, 1: 9}, "relu"),
        ({1: 9}, "tanh"),
        ({1: 3}, "tanh"),
        ({1: 2}, None),  # the reader itself
        ({2: 0}, "tanh"),
        ({}, None),
        ({0: None, 1: 9}, "tanh"),
        ({1: 9, 2: None}, None),
        ({3: 9}, None),  # behind the reader
    ],
)
def test_the_first_operator_that_the_golden_runs_after_the_reader(golden, name):
    findings = number_findings(ordered(network("relu x -> y", "tanh y -> z", "exp z -> q", "erf q -> p"), golden))
    found = Sources(findings, Edges(findings)).reordered_operator(findings[4])
    assert (found and found.operator.op_type) == name


def test_operators_of_one_run_have_no_order_in_the_other():
    for lines, name in (
        (["golden relu x -> y", "tanh x -> z", "exp z -> q"], "tanh"),
        (["relu x -> y", "tanh x -> z", "golden exp z -> q"], None),
    ):
        findings = number_findings(ordered(network(*lines), {0: 8, 1: 9}), FIRST)
        found = Sources(findings, Edges(findings), FIRST).reordered_operator(findings[4])
        assert (found and found.operator.op_type) == name
