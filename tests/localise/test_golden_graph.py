"""The golden as a graph of contents: which rows hold one tensor, and which hold a compared one."""

import numpy as np
import pytest

from npucmp.localise.golden_graph import GoldenGraph, copies_input, lost_outputs
from npucmp.localise.golden_rows import GoldenRow
from npucmp.model import Finding, Operator, Verdict
from tests.localise.networks import SHAPE, SMALL, network, numbered, operator, paired, values_of, with_golden

Y = values_of("y")
TWICE, FOUR = np.concatenate([Y, Y]), np.concatenate([Y, Y, Y, Y])


class Graph(GoldenGraph):
    """The graph with the rows of its findings."""

    def __init__(self, findings: list[Finding]) -> None:
        self.rows = [GoldenRow.of(one) for one in findings if one.pair.golden is not None]
        super().__init__(findings, self.rows)

    def row(self, name: str) -> GoldenRow:
        """The row of a place and a slot."""
        place, slot = name.split(" ")
        return next(one for one in self.rows if (one.finding.pair.order, one.finding.pair.slot) == (int(place), slot))


def graph_of(*lines: str, **values: np.ndarray) -> Graph:
    return Graph(network(*lines, **{**SMALL, **values}))


def names(rows: list[GoldenRow]) -> str:
    return ", ".join(f"{one.finding.pair.order} {one.finding.pair.slot}" for one in rows)


def changed(findings: list[Finding], row: int, **changes: object) -> list[Finding]:
    """The findings with changes of one golden tensor."""
    return [with_golden(one, **changes) if at == row else one for at, one in enumerate(findings)]


@pytest.mark.parametrize(
    "lines, at, writers, readers",
    [
        (["relu x -> y", "tanh y -> z", "exp y -> q"], "0 output:0", "0 output:0", "1 input:0, 2 input:0"),
        (["relu x -> y", "tanh y -> y"], "0 output:0", "0 output:0, 1 output:0", "1 input:0"),
        (["tanh y -> y"], "0 input:0", "0 output:0", "0 input:0"),
        (["relu x -> k", "tanh k -> z"], "0 output:0", "0 output:0", ""),
        (["relu x -> k", "tanh k -> z"], "1 input:0", "", "1 input:0"),
        (["relu x -> y", "tanh t -> z"], "1 input:0", "", "1 input:0"),  # both runs have the operator
        (["relu x -> y", "golden tanh t -> z"], "0 output:0", "0 output:0", "1 input:0"),
        (["relu x -> y", "golden tanh r -> y"], "1 output:0", "0 output:0, 1 output:0", "1 input:0"),
        (["relu x -> y", "exp x -> t", "golden tanh r -> z"], "2 input:0", "1 output:0", "2 input:0"),
        (["exp x -> t", "relu x -> y", "golden tanh r -> z"], "2 input:0", "1 output:0", "2 input:0"),
        (["relu y -> z", "golden tanh t -> z"], "1 input:0", "", "1 input:0"),  # no operator wrote the whole
        (["golden relu x -> y", "target relu y -> q", "tanh y -> z"], "0 output:0", "0 output:0", "2 input:0"),
    ],
)
def test_the_records_of_one_content(lines, at, writers, readers):
    """t holds each element of y twice, r four times; all elements of k are equal."""
    graph = graph_of(*lines, t=TWICE, r=FOUR)
    content = graph.content(graph.row(at))
    assert (names(content.writers), names(content.readers)) == (writers, readers)


@pytest.mark.parametrize(
    "source, found",
    [
        ("relu.0.forward:0", "0 output:0"),
        ("relu_0_forward:0", "0 output:0"),
        ("relu.0.forward:1", "0 output:1"),
        ("relu.1.forward:0", ""),
        ("", ""),
    ],
)
def test_a_name_links_a_read_tensor_to_its_writer(source, found):
    findings = network("relu x -> y k", "tanh z -> q", **SMALL)
    graph = Graph(changed(findings, 3, source=source))
    assert names(graph.content(graph.row("1 input:0")).writers) == found


def test_a_name_stands_before_the_content_and_links_no_output():
    findings = network("relu x -> y", "exp x -> z", "tanh y -> z", "tanh y -> q")
    graph = Graph(changed(changed(findings, 4, source="exp.1.forward:0"), 7, source="exp.1.forward:0"))
    assert names(graph.content(graph.row("2 input:0")).writers) == "1 output:0, 2 output:0"
    assert names(graph.content(graph.row("3 output:0")).writers) == "3 output:0"


def test_the_order_of_the_golden_decides_which_tensor_is_written_first():
    """Graph order has the reader of the expansion first."""
    findings = network("golden tanh t -> z", "relu x -> y", t=TWICE)
    late = findings[0].pair.golden_op._replace(order=5)
    findings = [paired(one, golden_op=late) if one.pair.order == 0 else one for one in findings]
    graph = Graph(findings)
    assert names(graph.content(graph.row("0 input:0")).writers) == "1 output:0"


@pytest.mark.parametrize(
    "lines, at, is_any, last",
    [
        (["relu x -> y", "tanh y -> z", "exp y? -> q"], "0 output:0", True, 1),
        (["relu x -> y", "tanh y -> z", "exp y! -> q"], "0 output:0", True, 2),
        (["relu y -> x?", "tanh y? -> z"], "1 input:0", True, 0),
        (["relu x -> y", "tanh y? -> z"], "1 input:0", True, -1),
        (["relu x -> y?", "tanh y? -> z"], "1 input:0", False, -1),
    ],
)
def test_the_status_of_a_content(lines, at, is_any, last):
    graph = graph_of(*lines)
    assert graph.content_status(graph.content(graph.row(at))) == (is_any, last)
    assert graph.is_compared(graph.row(at)) is is_any


def test_a_proof_counts_as_a_comparison_from_then_on():
    graph = graph_of("relu x -> y?", "golden tanh y -> z")
    row = graph.row("1 input:0")
    assert not graph.is_compared(row) and not graph.is_decided(row) and not graph.is_again(row)
    graph.prove({row.finding.row})
    assert graph.is_compared(row) and graph.is_decided(row) and graph.is_again(row) and graph.proven == {2}
    assert not graph.is_decided(graph.row("0 output:0"))
    assert graph.is_again(graph.row("0 output:0"))  # its reader is proven
    assert not graph.is_again(graph.row("1 output:0"))


X16 = values_of("x").astype(np.float16)
NEAR = (values_of("x") * np.float32(1.01)).astype(np.float32)
HALF = {"h": X16, "n": NEAR}


@pytest.mark.parametrize(
    "lines, at, found",
    [
        (["relu x -> y", "golden tanh y -> z"], "1 input:0", True),
        (["relu x -> y?", "golden tanh y -> z"], "1 input:0", False),
        (["relu x -> z", "golden relu x -> z"], "1 output:0", True),  # it ran again
        (["relu x -> z", "golden tanh x -> z"], "1 output:0", False),
        (["relu x -> z", "golden view x -> z"], "1 output:0", True),
        (["relu x -> q", "golden view x -> z"], "1 output:0", False),
        (["golden tanh x -> z", "relu z -> q"], "0 output:0", True),
        (["tanh x -> z?", "relu z -> q"], "0 output:0", True),
        (["golden tanh x -> z", "relu z? -> q"], "0 output:0", False),
        (["golden tanh z -> z", "golden relu z -> q"], "0 output:0", False),
        (["tanh z -> z?"], "0 output:0", False),  # the reader is not later
        (["tanh.backward z -> z?"], "0 output:0", True),
        (["tanh.backward x z? -> z?", "tanh z -> q"], "0 output:0", True),
        (["tanh z -> q", "tanh.backward z? -> z?"], "1 output:0", False),
        (["tanh.backward x -> x? z?"], "0 output:1", False),
        (["relu x -> y", "to x -> h?"], "1 output:0", True),  # a cast to float16
        (["relu x -> y", "to x? -> h?"], "1 output:0", True),
        (["relu x? -> y", "to x? -> h?"], "1 output:0", False),
        (["relu x! -> y", "to x? -> h?"], "1 output:0", True),
        (["relu q -> y", "to x? -> h?", "relu x -> z"], "1 output:0", False),  # it is compared later
        (["relu x -> y", "view x -> h?"], "1 output:0", False),  # a view keeps the type
        (["relu x -> y", "relu x -> h?"], "1 output:0", False),
        (["relu x -> y", "to x -> n?"], "1 output:0", False),  # more than rounding
        (["relu h -> y", "to h -> x?"], "1 output:0", True),  # the coarser type decides
    ],
)
def test_a_row_holds_a_compared_tensor_again(lines, at, found):
    graph = graph_of(*lines, **HALF)
    assert graph.is_again(graph.row(at)) is found


def test_no_unreadable_row_and_no_output_of_a_lost_record_is_again():
    findings = network("relu x -> y?", "tanh y -> z")
    graph = Graph([one._replace(verdict=Verdict.UNREADABLE) if one.row == 1 else one for one in findings])
    assert not graph.is_again(graph.row("0 output:0"))
    bare = findings[0].pair.target_op._replace(tensors=findings[0].pair.target_op.tensors[:1])
    graph = Graph([paired(one, target_op=bare) if one.pair.order == 0 else one for one in findings])
    assert lost_outputs(graph.row("0 output:0").finding.pair) and not lost_outputs(graph.row("0 input:0").finding.pair)
    assert not graph.is_again(graph.row("0 output:0"))


def test_an_output_is_open_where_the_target_alone_has_a_dead_end():
    lines = ["relu x -> y", "golden tanh y -> z", "target exp y -> a", "exp z -> q"]
    graph = graph_of(*lines)
    assert not graph.is_again(graph.row("1 output:0"))
    assert graph.is_inserted_dead_end([graph.row("1 output:0")])
    for other in ("target exp y -> q", "target exp y -> z", "relu y -> a"):
        graph = graph_of(*lines[:2], other, *lines[3:])
        assert graph.is_again(graph.row("1 output:0")) and not graph.is_inserted_dead_end([graph.row("1 output:0")])
    graph = graph_of(*lines[:2], "relu y -> b", *lines[2:])  # in another gap
    assert not graph.is_inserted_dead_end([graph.row("1 output:0")])
    graph = graph_of("relu x -> y", "tanh y -> z?", "target exp y -> a", "exp z -> q")
    assert graph.is_again(graph.row("1 output:0"))  # the target has this operator


ONES, ZEROS, LOW = np.ones(SHAPE, "f"), np.zeros(SHAPE, "f"), np.where(np.eye(4, 5) > 0, -1e5, 0).astype("f")
CONSTANTS = {"o": ONES, "z": ZEROS, "i": np.ones((5, 4), "f"), "d": np.ones(SHAPE), "l": LOW}


@pytest.mark.parametrize(
    "lines, found",
    [
        (["relu x -> y", "add y s? -> q"], True),  # a scalar
        (["relu x -> s", "add y s? -> q"], False),  # it was written
        (["relu x -> y", "add y k? -> q"], False),
        (["relu k -> y", "add y k? -> q"], True),
        (["relu k! -> y", "add y k? -> q"], False),
        (["relu o -> y", "add y k? -> q"], False),
        (["relu o -> y", "add y o? -> q"], True),
        (["relu o -> y", "add y i? -> q"], False),  # another shape
        (["relu o -> y", "add y d? -> q"], False),  # another type
        (["relu x -> y", "add y m? -> q"], True),
        (["relu x -> y", "add y l? -> q"], True),
        (["relu x -> y", "add y y? -> q"], False),
        (["relu x -> l", "add y l? -> q"], False),
    ],
)
def test_a_known_constant_was_compared_elsewhere_or_is_a_number_or_a_mask(lines, found):
    graph = graph_of(*lines, **CONSTANTS)
    assert graph.is_known_constant(graph.row("1 input:1")) is found


def without_phases(findings: list[Finding]) -> list[Finding]:
    return [paired(one, golden_op=one.pair.golden_op._replace(phase="")) for one in findings]


def test_the_backward_pass_begins_with_a_phase_or_with_the_type_of_a_gradient():
    lines = ["relu x -> y", "ReluGrad y -> g", "mul g -> h"]
    graph = Graph(without_phases(network(*lines)))
    assert [graph.is_backward(graph.row(f"{at} input:0").operator) for at in range(3)] == [False, True, True]
    graph = graph_of(*lines)
    assert not any(graph.is_backward(graph.row(f"{at} input:0").operator) for at in range(3))
    graph = graph_of("relu x -> y", "relu.backward y -> g", "mul g -> h")
    assert [graph.is_backward(graph.row(f"{at} input:0").operator) for at in range(3)] == [False, True, False]
    graph = Graph(without_phases(network("relu x -> y", "mul y -> g")))
    assert not graph.is_backward(graph.row("1 input:0").operator)


def test_an_operator_that_reads_gradients_hands_gradients_on():
    graph = graph_of("relu x -> y", "relu.backward x -> g", "all_reduce g -> h", "mul h -> q", "mul y -> a")
    assert [graph.is_of_gradient(graph.row(f"{at} output:0")) for at in range(5)] == [False, True, True, False, False]


@pytest.mark.parametrize(
    "at, places",
    [("1 input:0", []), ("2 input:0", [1]), ("5 input:0", []), ("7 input:0", [5]), ("8 input:0", [7, 5])],
)
def test_the_operators_before_a_row_in_its_gap_come_nearest_first(at, places):
    """Operators 0, 3, 4 and 9 have partners; operator 6 is the target's."""
    alone = ["golden relu a -> b"]
    lines = [
        "relu x -> y",
        *alone * 2,
        "tanh x -> z",
        "exp x -> z",
        *alone,
        "target relu x -> q",
        *alone * 2,
        "exp z -> q",
    ]
    graph = graph_of(*lines)
    assert graph.matched == [0, 3, 4, 9]
    assert [rows[0].finding.pair.order for rows in graph.before(graph.row(at))] == places
    assert all(names(rows).count("put") == 2 for rows in graph.before(graph.row(at)))
    assert [graph.gap_number(graph.row(f"{one} input:0")) for one in (1, 5, 8)] == [1, 3, 3]


def test_the_first_operators_have_no_partner():
    graph = graph_of("golden relu a -> b", "golden relu b -> c", "exp x -> z")
    assert [rows[0].finding.pair.order for rows in graph.before(graph.row("1 input:0"))] == [0]
    assert graph.gap_number(graph.row("1 input:0")) == 0


def test_the_operators_before_a_row_are_near():
    findings = operator(0, "golden relu a -> b") + operator(4, "golden tanh b -> c") + operator(20, "golden exp c -> d")
    graph = Graph(numbered(findings))
    assert [rows[0].finding.pair.order for rows in graph.before(graph.row("20 input:0"))] == []
    findings[-2:] = operator(19, "golden exp c -> d")
    graph = Graph(numbered(findings))
    assert [rows[0].finding.pair.order for rows in graph.before(graph.row("19 input:0"))] == [4]


def test_the_calls_of_a_forward_and_its_backward():
    graph = graph_of("linear@a x w -> y", "linear@b y w -> z", "linear.backward@b g -> h", "linear.backward@a h -> q")
    row = graph.row("3 output:0")
    assert names(graph.forward_of(row)) == "0 input:0, 0 input:1, 0 output:0"
    assert graph.forward_of(row) == graph.forward_call("a") and graph.forward_call("c") == []
    assert names(graph.backward_of(graph.row("1 input:0"))) == "2 input:0, 2 output:0"
    assert names(graph.of_operator(row)) == "3 input:0, 3 output:0"
    findings = network("relu x -> y", "relu.backward y -> z")
    bare = [paired(one, golden_op=one.pair.golden_op._replace(call="")) for one in findings]
    assert Graph(bare).forward_call("") == [] and Graph(bare).backward_of(Graph(bare).row("0 input:0")) == []


def test_the_gradient_of_a_parameter_is_known_by_its_forward_or_its_slot():
    findings = network("linear@a x w -> y", "linear.backward@a g -> h v", "linear.backward@b g -> h v", "relu x -> q")
    graph = Graph(findings)
    assert [graph.is_of_parameter(graph.row(f"{at}")) for at in ("1 output:0", "1 output:1")] == [False, True]
    assert not graph.is_of_parameter(graph.row("2 output:1"))
    findings[-1] = with_golden(paired(findings[-1], slot="grad:weight"), slot="grad:weight")
    graph = Graph(findings)
    assert graph.is_of_parameter(graph.row("3 grad:weight"))


@pytest.mark.parametrize(
    "line, found",
    [
        ("target relu.backward g -> h", True),
        ("target relu g -> h", False),
        ("golden relu.backward g -> h", False),
        ("relu.backward g -> h", False),
    ],
)
def test_the_target_alone_has_a_backward_in_a_gap(line, found):
    graph = graph_of("relu x -> y", "golden tanh.backward y -> z", line, "exp y -> q", "golden tanh.backward y -> z")
    assert graph.has_backward_at(graph.row("1 input:0")) is found
    assert not graph.has_backward_at(graph.row("4 input:0"))


@pytest.mark.parametrize(
    "name, kind, found",
    [
        ("view.0", "view", True),
        ("clone.0", "clone", True),
        ("cast.0", "cast", True),
        ("print.0", "print", True),
        ("slice.0", "slice", False),
        ("relu.0", "relu", False),
        ("Distributed.clone.0", "clone", False),
    ],
)
def test_an_operator_copies_its_input(name, kind, found):
    assert copies_input(Operator(name, kind, kind, "forward", 0, ())) is found


def test_a_target_record_lost_its_outputs():
    (read, wrote) = network("relu x -> y")
    bare = read.pair.target_op._replace(tensors=read.pair.target_op.tensors[:1])
    assert not lost_outputs(wrote.pair) and not lost_outputs(read.pair)
    assert lost_outputs(paired(wrote, target_op=bare, target=None).pair)
    assert not lost_outputs(paired(read, target_op=bare, target=None).pair)
    assert not lost_outputs(paired(wrote, target_op=None, target=None).pair)
