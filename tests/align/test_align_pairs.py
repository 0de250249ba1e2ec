"""The pairs of tensors that an alignment has: their order, their notes, the tensors that cannot be read."""

from __future__ import annotations

import pytest

from npucmp.align import Alignment, align, pairs
from npucmp.model import Match, Payload, TensorRef
from tests.align.craft import a_run, own


def test_a_tensor_without_a_shape_has_that_of_its_partner():
    payload = Payload("raw", "float32", (6,), 0, unshaped=True)
    one = own("a", 0)
    raw = one._replace(tensors=tuple(ref._replace(shape=(6,), payload=payload) for ref in one.tensors))
    for runs in ((a_run([raw]), a_run([one])), (a_run([one]), a_run([raw]))):
        found = [*pairs(*runs, align(*runs))]
        assert {ref.shape for pair in found for ref in (pair.target, pair.golden)} == {(2, 3)}


LOST = TensorRef("", "", (), "lost.npy", problem="cut")


def test_a_tensor_of_a_partner_whose_files_cannot_be_read():
    target, golden = own("a", 0), own("a", 0)._replace(tensors=(LOST,))
    one, other = a_run([target]), a_run([golden])
    rows = [*pairs(one, other, align(one, other))]
    files = [(row.target.slot, row.golden and row.golden.file) for row in rows]
    assert files == [("input:0", "lost.npy"), ("output:0", None)]
    assert rows[0].slot == "" and rows[1].note == "the tensors of the operator of the other run cannot be read"
    turned = [*pairs(other, one, align(other, one))]
    assert turned[1].note == rows[1].note and turned[0].slot == ""


@pytest.mark.parametrize("side", [0, 1])
def test_an_unreadable_operator_that_the_alignment_lacks_stands_last(side):
    runs = [a_run([own("a", 0), own("b", 1)]), a_run([own("a", 0), own("b", 1)])]
    alone = own("x", 2)._replace(tensors=(LOST,))
    runs[side] = a_run([*runs[side].operators, alone])
    matches = tuple(Match(one, one, "name", 1.0) for one in runs[0].operators[:2])
    rows = [*pairs(*runs, Alignment(matches, (), ()))]
    last = rows[-1]
    assert len(rows) == 5 and (last.order, last.operator) == (2, alone)
    assert (last.target_op, last.golden_op)[1 - side] is None
