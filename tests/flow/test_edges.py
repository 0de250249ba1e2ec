"""Edges: the row that holds the same tensor before."""

import numpy as np
import pytest

from npucmp.flow.edges import Edges, links
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Finding, Measurement, Operator, Pair, TensorRef, Verdict

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
