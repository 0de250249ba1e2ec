"""Edges: the row that holds the same tensor before."""

import numpy as np
import pytest

from npucmp.flow.edges import Edges, links
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Finding, Measurement, Operator, Pair, TensorRef, Verdict
from tests.flow.craft import contents

RANDOM = np.random.default_rng(7)
A, B, C, D = (RANDOM.standard_normal((4, 6)).astype(np.float32) for _ in range(4))


def run(*operators, alone=()):
    """Rows of operators (name, read, written); those in `alone` are the golden's only. A tensor is an array, or an
    array and the name of its source."""
    rows = []
    for order, (name, read, wrote) in enumerate(operators):
        slots = [*(f"input:{at}" for at in range(len(read))), *(f"output:{at}" for at in range(len(wrote)))]
        given = [one if isinstance(one, tuple) else (one, "") for one in (*read, *wrote)]
        tensors = [TensorRef(slot, values.dtype.name, values.shape, file="x.npy", source=source)
                   for slot, (values, source) in zip(slots, given)]  # fmt: skip
        operator = Operator(name, name.split(".")[0], "forward", "", order, tuple(tensors))
        target = None if name in alone else operator
        for slot, ref, (values, _) in zip(slots, tensors, given):
            flat = np.ascontiguousarray(values).reshape(-1)
            moments = measure_block(flat, flat, bars_for(ref.dtype, ref.dtype, 0.0, 0.0))
            pair = Pair(order, slot, target, operator, ref if target else None, ref)
            rows.append(Finding(Measurement(pair, moments), Verdict.MATCH, "", row=len(rows)))
    return rows


def sources(rows):
    found = Edges(rows).sources
    return [None if at < 0 else (rows[at].pair.operator.name, rows[at].pair.slot) for at in found]


@pytest.mark.parametrize("read", [B, B.T, B.reshape(3, 8), B.astype(np.float64)])
def test_an_input_comes_from_the_output_that_holds_the_same_elements(read):
    rows = run(("relu.0", [A], [B]), ("exp.0", [read], [C]))
    assert sources(rows) == [None, None, ("relu.0", "output:0"), None]


def test_the_latest_output_counts_and_the_first_reader_where_no_operator_wrote_a_tensor():
    rows = run(("relu.0", [A], [B]), ("abs.0", [A], [B]), ("exp.0", [B, D], [C]), ("add.0", [D, A], [C]))
    assert sources(rows)[2] == ("relu.0", "input:0")
    assert sources(rows)[4:6] == [("abs.0", "output:0"), None]
    assert sources(rows)[7:9] == [("exp.0", "input:1"), ("relu.0", "input:0")]


def test_a_tensor_that_an_operator_reads_twice_is_not_its_own_source():
    rows = run(("mul.0", [A, A], [B]))
    assert sources(rows) == [None, None, None]


@pytest.mark.parametrize("name, is_buffer", [("recv.0", True), ("relu.0", False)])
def test_memory_for_a_received_tensor_is_no_source(name, is_buffer):
    rows = run((name, [A], [B]), ("exp.0", [A], [C]), ("abs.0", [B], [D]))
    assert sources(rows)[2] == (None if is_buffer else (name, "input:0"))
    assert sources(rows)[4] == (name, "output:0")
    smaller = run((name, [A[:2]], [B]), ("exp.0", [A[:2]], [C]))  # it has another shape than what is received
    assert sources(smaller)[2] == (name, "input:0")


def test_constants_and_numbers_that_people_write_link_nothing():
    ones, half = np.ones((4, 6), np.float32), np.array([0.5], np.float32)
    rows = run(("fill.0", [], [ones, half]), ("add.0", [ones, half], [C]))
    assert sources(rows)[2:4] == [None, None]


def test_a_graph_names_the_source_whatever_the_values_are():
    rows = run(("relu.0", [A], [B]), ("abs.0", [A], [D]), ("exp.0", [(B, "abs.0:0")], [C]))
    assert sources(rows)[4] == ("abs.0", "output:0")


def test_operators_of_one_run_are_no_source_but_a_page_links_them():
    rows = run(("relu.0", [A], [B]), ("exp.0", [B], [C]), alone=("relu.0",))
    assert sources(rows)[2] is None
    link = list(links(rows))[2]
    assert link is not None and (link.order, link.how) == (0, "by equal content")


def test_a_page_links_equal_contents_of_the_golden_before_those_of_the_target():
    rows = graph_rows((("a", "ga"), [], [(1, 5)]), (("b", "gb"), [], [(2, 7)]), (("c", "gc"), [(1, 7)], [(3, 3)]))
    assert [one and one.order for one in links(rows)] == [None, None, 0, None]


def test_a_receiver_that_the_target_alone_has_is_no_source():
    rows = run(("recv.0", [A], [B]), ("exp.0", [B], [C]))
    for at in (0, 1):
        pair = rows[at].pair._replace(golden=None, golden_op=None)
        rows[at] = rows[at]._replace(measurement=rows[at].measurement._replace(pair=pair))
    assert sources(rows) == [None] * 4


def graph_rows(*operators):
    """Rows of operators (names of target and golden, inputs, outputs). A tensor is (content of the golden, that of the
    target, source in the target, source in the golden[, elements])."""
    found = []
    for order, (names, read, wrote, *more) in enumerate(operators):
        sides = [name and Operator(name, "relu", "relu", "", order, (), **dict(more)) for name in names]
        tensors = [(f"input:{at}", one) for at, one in enumerate(read)]
        tensors += [(f"output:{at}", one) for at, one in enumerate(wrote)]
        for slot, (golden, target, *sources) in tensors:
            elements = sources[2] if len(sources) > 2 else 16
            refs = [
                None if not name else TensorRef(slot, "float32", (elements,), source=source)
                for name, source in zip(names, [*sources[:2], "", ""])
            ]
            pair = Pair(order, slot, *(one or None for one in sides), *refs)
            one = Measurement(pair, contents(golden, target, elements))
            found.append(Finding(one, Verdict.MATCH, "", row=len(found)))
    return found


@pytest.mark.parametrize(
    "target, golden, source",
    [
        ("a:0", "", 0),
        ("", "ga:0", 0),
        ("a:1", "", 1),
        ("a:1", "ga:0", 1),  # the target's comes first
        ("odd:0", "ga:1", 1),
        ("ga:0", "", -1),  # a name of the other run
        ("", "a:0", -1),
        ("a:9", "", -1),
        ("later:0", "", -1),
    ],
)
def test_either_graph_names_the_output_that_an_input_reads(target, golden, source):
    rows = graph_rows(
        (("a", "ga"), [], [(1, 1), (2, 2)]), (("b", "gb"), [(9, 9, target, golden)], []), (("later", "l"), [], [(4, 4)])
    )
    assert Edges(rows).sources == [-1, -1, source, -1]
    assert [one and one.order for one in links(rows)] == [None, None, None if source < 0 else 0, None]
    if source >= 0:
        assert [*links(rows)][2].how == "by the graph"


def test_names_of_a_graph_may_hold_a_path():
    rows = graph_rows((("net/a b", "x"), [], [(1, 1)]), (("b", "b"), [(9, 9, "net/a b:0")], []))
    assert Edges(rows).sources == [-1, 0]


def test_an_output_has_no_source_in_a_graph():
    rows = graph_rows((("a", "a"), [], [(1, 1)]), (("b", "b"), [], [(2, 2, "a:0")]))
    assert Edges(rows).sources == [-1, -1]


def test_a_tensor_inside_a_fused_operator_bears_no_name_of_the_golden():
    inside = (("a", "g"), [], [(1, 1)], ("inserted", True))
    rows = graph_rows(inside, (("b", "b"), [(9, 9, "", "g:0")], []))
    assert Edges(rows).sources == [-1, 0]
    alone = [
        rows[0]._replace(measurement=rows[0].measurement._replace(pair=rows[0].pair._replace(golden=None))),
        rows[1],
    ]
    assert Edges(alone).sources == [-1, -1]


@pytest.mark.parametrize(
    "golden, target, elements, source",
    [
        (5, 6, 16, 0),
        (0, 6, 3, 0),  # few simple numbers in the golden
        (0, 0, 3, -1),
        (7, 6, 16, -1),  # the golden's content is another
        (7, 6, 3, -1),
    ],
)
def test_the_content_of_the_target_identifies_a_tensor_where_that_of_the_golden_does_not(
    golden, target, elements, source
):
    rows = graph_rows((("a", "a"), [], [(5 if golden else 0, 6, "", "", elements)]),
                      (("b", "b"), [(golden, target, "", "", elements)], []))  # fmt: skip
    assert Edges(rows).sources == [-1, source]
    found = [*links(rows)][1]  # a page shows any equal content
    assert (found and found.how) == ("by equal content" if target else None)


def test_an_input_that_the_golden_lacks_is_known_by_the_content_of_the_target():
    rows = graph_rows((("a", "a"), [], [(5, 6)]), (("b", "b"), [(0, 6)], []), (("c", "c"), [(0, 8)], []))
    alone = [
        one if at == 0 else one._replace(measurement=one.measurement._replace(pair=one.pair._replace(golden=None)))
        for at, one in enumerate(rows)
    ]
    assert Edges(alone).sources == [-1, 0, -1]


def test_rows_with_a_content_have_no_source_or_write_it():
    rows = graph_rows(
        (("a", "a"), [(1, 1)], [(2, 2)]), (("b", "b"), [(2, 2)], [(2, 2)]), (("c", "c"), [(3, 3), (1, 1)], [(2, 4)])
    )
    edges = Edges(rows)
    known = edges.contents
    assert edges.sources == [-1, -1, 1, 1, -1, 0, 3]
    assert [edges.rows_of(known[at]) for at in (0, 1, 4)] == [[0], [1, 3, 6], [4]]
    assert edges.rows_of(0) == () and edges.rows_of(12345) == ()
    assert known[1] == known[3] != known[0]


def test_the_latest_output_before_a_row_by_the_content_of_the_target():
    rows = graph_rows(
        (("a", "a"), [(1, 7)], [(2, 7)]), (("b", "b"), [(9, 8)], [(3, 7)]), ((None, "alone"), [], [(3, 7)]),
        (("c", "c"), [(4, 7), (4, 8)], [(5, 7)]),
    )  # fmt: skip
    edges = Edges(rows)
    assert [edges.of_target(row) for row in range(8)] == [-1, -1, -1, 1, -1, 3, -1, 3]
    simple = graph_rows((("a", "a"), [], [(0, 0, "", "", 3)]), (("b", "b"), [(0, 0, "", "", 3)], []))
    assert Edges(simple).of_target(1) == -1


def test_an_argument_is_no_first_reader():
    given = graph_rows((("a", "a"), [(1, 1)], []), (("b", "b"), [(1, 1)], []))
    assert Edges(given).sources == [-1, 0]
    arguments = {"arguments": {"input:0": 2}}
    given = graph_rows((("a", "a"), [(1, 1)], [], *arguments.items()), (("b", "b"), [(1, 1)], []))
    assert Edges(given).sources == [-1, -1]
    assert Edges([]).sources == [] and [*links([])] == []
