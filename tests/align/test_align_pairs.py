"""The pairs of tensors that an alignment has: their order, their notes, the tensors that cannot be read."""

from __future__ import annotations

import pytest

from npucmp.align import Alignment, align, pairs
from npucmp.model import Device, Match, Payload, TensorRef
from tests.align.craft import a_run, own


def nodes(count, start=0):
    """Operators with names of their own."""
    return [own(f"node{at}", at, ((at + 2, 3),), ((at + 2, 3),)) for at in range(start, start + count)]


def shown(target, golden, found):
    """(order, target tensor, golden tensor) of each pair by operator and slot."""
    return [
        (one.order, *(f"{op.name} {ref.slot or 'lost'}" if ref else "-" for op, ref in ((one.target_op, one.target),
                                                                                        (one.golden_op, one.golden))))
        for one in pairs(target, golden, found)
    ]  # fmt: skip


def test_pairs_of_the_same_operators_have_their_matcher():
    run = a_run(nodes(2))
    found = [*pairs(run, run, align(run, run))]
    assert [(one.order, one.slot, one.via, one.confidence, one.note) for one in found] == [
        (at, slot, "name", 1.0, "") for at in (0, 1) for slot in ("input:0", "output:0")
    ]
    assert all(one.target == one.golden and one.target_op == one.golden_op for one in found)


def test_operators_of_the_golden_alone_follow_their_predecessor():
    """Those before its first partner stand first."""
    target = a_run([own(name, order, (), ((2, 3),)) for order, name in enumerate("bce")])
    golden = a_run([own(name, order, (), ((2, 3),)) for order, name in enumerate("abxcye")])
    rows = shown(target, golden, align(target, golden))
    assert [one[1:] for one in rows] == [
        ("-", "a output:0"), ("b output:0", "b output:0"), ("-", "x output:0"), ("c output:0", "c output:0"),
        ("-", "y output:0"), ("e output:0", "e output:0"),
    ]  # fmt: skip
    assert [one[0] for one in rows] == [*range(6)]


@pytest.mark.parametrize("by_golden", [False, True])
def test_the_order_is_that_of_the_run_that_has_one(by_golden):
    target = [own(name, order, (), ((2, 3),)) for order, name in enumerate("abx")]
    golden = [own(name, order, (), ((2, 3),)) for order, name in enumerate("bay")]
    matches = (Match(target[0], golden[1], "name", 1.0), Match(target[1], golden[0], "name", 1.0))
    found = Alignment(matches, (target[2],), (golden[2],), by_golden=by_golden)
    names = [one[1][0] + one[2][0] for one in shown(a_run(target), a_run(golden), found)]
    assert names == (["bb", "x-", "aa", "-y"] if by_golden else ["aa", "-y", "bb", "x-"])


def test_the_notes_of_operators_without_a_partner():
    again = [own("a", order) for order in range(2)]
    alone = [own("t", 2), own("u", 3)._replace(inserted=True), own("v", 4)._replace(originals=("w",))]
    target, golden = a_run([*again, *alone]), a_run([own("a", 0), own("g", 1), own("h", 2)._replace(inserted=True)])
    found = align(target, golden)
    notes = {(one.operator.name, one.target_op is not None): one.note for one in pairs(target, golden, found)
             if one.target is None or one.golden is None}  # fmt: skip
    assert notes == {
        ("a", True): "an earlier execution; the other run has fewer, and the newest were paired",
        ("t", True): "the golden run has no such operator",
        ("u", True): "inserted by the graph compiler: no operator of the network corresponds to it",
        ("v", True): "inside an operator that the graph compiler made: the network has no such tensor",
        ("g", False): "the target run has no such operator",
        ("h", False): "inserted by the graph compiler: no operator of the network corresponds to it",
    }


def test_an_earlier_execution_of_the_golden():
    target, golden = a_run([own("a", 0), own("b", 1)]), a_run([own("a", 0), own("a", 1), own("b", 2)])
    alone = [one for one in pairs(target, golden, align(target, golden)) if one.target is None]
    assert {(one.golden_op.order, one.note) for one in alone} == {
        (0, "an earlier execution; the other run has fewer, and the newest were paired")
    }


def test_a_tensor_without_a_shape_has_that_of_its_partner():
    payload = Payload("raw", "float32", (6,), 0, unshaped=True)
    one = own("a", 0)
    raw = one._replace(tensors=tuple(ref._replace(shape=(6,), payload=payload) for ref in one.tensors))
    for runs in ((a_run([raw]), a_run([one])), (a_run([one]), a_run([raw]))):
        found = [*pairs(*runs, align(*runs))]
        assert {ref.shape for pair in found for ref in (pair.target, pair.golden)} == {(2, 3)}


def test_reasons_of_an_alignment_are_the_notes():
    target, golden = nodes(2), nodes(2, 5)
    why = {("target", 0): "two candidates", ("golden", 6): "three candidates"}
    found = Alignment((), tuple(target), tuple(golden), why)
    notes = {one.operator.name: one.note for one in pairs(a_run(target), a_run(golden), found)}
    assert notes["node0"] == "two candidates" and notes["node6"] == "three candidates"
    assert notes["node1"].startswith("the golden run has no") and notes["node5"].startswith("the target run has no")


def test_tensors_that_only_one_of_two_partners_has():
    target, golden = own("a", 0, ((2, 3), (4,))), own("a", 0, ((2, 3),), ((2, 3), (5,)))
    found = [*pairs(a_run([target]), a_run([golden]), align(a_run([target]), a_run([golden])))]
    assert [(one.slot, one.via, one.confidence, one.note) for one in found] == [
        ("input:0", "name", 1.0, ""),
        ("input:1", "", 0.0, "the operator of the other run has no such tensor"),
        ("output:0", "name", 1.0, ""),
        ("output:1", "", 0.0, "the operator of the other run has no such tensor"),
    ]


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
def test_each_unreadable_tensor_has_a_pair(side):
    """A fused partner has only tensors of known slots; the row stands beside those of its operator."""
    operators = [own("a", 0), own("b", 1), own("c", 2)]
    broken_one = operators[1]._replace(tensors=(*operators[1].tensors, LOST))
    runs = [a_run(operators), a_run(operators)]
    runs[side] = a_run([operators[0], broken_one, operators[2]])
    matches = tuple(Match(one, one, "name", 1.0) for one in operators)
    rows = [*pairs(*runs, Alignment(matches, (), ()))]
    lost = [row for row in rows if LOST in (row.target, row.golden)]
    assert len(rows) == 7 and len(lost) == 1 and (lost[0].order, lost[0].slot) == (1, "")
    assert (lost[0].target, lost[0].golden)[side] == LOST and (lost[0].target, lost[0].golden)[1 - side] is None
    assert lost[0].target_op.name == lost[0].golden_op.name == "b" and rows.index(lost[0]) == 4


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


def test_an_unreadable_original_stands_beside_the_fused_operator():
    fused, conv, relu = own("conv_relu", 0), own("conv", 0)._replace(tensors=(LOST,)), own("relu", 1)
    last = own("z", 1)
    match = (Match(fused, relu, "fused", 1.0, (0, 1)), Match(last, own("z", 2), "name", 1.0))
    rows = [*pairs(a_run([fused, last]), a_run([conv, relu, own("z", 2)]), Alignment(match, (), ()))]
    lost = next(row for row in rows if row.golden == LOST)
    assert lost.order == 0 and lost.target_op == fused and lost.target is None


def test_a_settled_match_pairs_equal_slots_alone():
    """Two slots of one role and shape are partners otherwise."""
    one, other = own("a", 0)._replace(tensors=(TensorRef("input:x", "float32", (4,)),)), own("a", 0)
    other = other._replace(tensors=(TensorRef("input:0", "float32", (4,)),))
    for settled, count in ((True, 2), (False, 1)):
        found = Alignment((Match(one, other, "name", 1.0, (), settled),), (), ())
        assert len([*pairs(a_run([one]), a_run([other]), found)]) == count


@pytest.mark.parametrize("names", [["input:0", "input:0"], ["input:0", "input:1"]])
def test_slots_that_occur_twice_have_a_pair_each(names):
    refs = tuple(TensorRef(slot, "float32", (at + 1,), label=str(at)) for at, slot in enumerate(names))
    one = own("a", 0)._replace(tensors=refs)
    rows = [*pairs(a_run([one]), a_run([one]), Alignment((Match(one, one, "name", 1.0),), (), ()))]
    assert [(row.target, row.golden) for row in rows] == [*zip(refs, refs)]


def test_pairs_stand_in_the_order_of_the_target():
    one = [own(name, order) for order, name in enumerate("ab")]
    matches = tuple(Match(each, each, "name", 1.0) for each in reversed(one))
    assert [row[1:] for row in shown(a_run(one), a_run(one), Alignment(matches, (), ()))] == [
        (f"{name} {slot}",) * 2 for name in "ab" for slot in ("input:0", "output:0")
    ]


def test_equal_slots_of_different_operators_are_no_pairs():
    """All operators together have the same slots in the same order."""
    target = [own("a", 0, ((2, 3),), ()), own("b", 1, ((2, 3),), ())]
    golden = [own("a", 0, ((2, 3),), ((2, 3),)), own("b", 1, (), ())]
    target[1] = target[1]._replace(tensors=golden[0].tensors[1:])
    matches = tuple(Match(one, other, "name", 1.0) for one, other in zip(target, golden))
    assert shown(a_run(target), a_run(golden), Alignment(matches, (), ())) == [
        (0, "a input:0", "a input:0"), (0, "-", "a output:0"), (1, "b output:0", "-")
    ]  # fmt: skip


STORED = (2, 1, 16, 16, 16)
DEVICE = Device("NC1HWC0", STORED)


def stored(shape, payload_device=None, layout=""):
    payload = Payload("raw", "float32", shape, 0, device=payload_device) if payload_device else None
    ref = TensorRef("output:0", "float32", shape, payload=payload, layout=layout, label=str(shape))
    return own("a", 0)._replace(tensors=(ref,))


def test_stored_tensors_of_one_layout_are_compared_as_stored():
    """No record gives the logical shape."""
    one = stored(STORED, DEVICE, "NC1HWC0")
    (found,) = pairs(a_run([one]), a_run([one]), Alignment((Match(one, one, "name", 1.0),), (), ()))
    assert found.target.payload.device is None and found.golden.payload.device is None
    assert found.target.shape == found.golden.shape == STORED


def test_a_stored_tensor_of_which_statistics_were_recorded_has_the_shape_of_its_partner():
    one, other = stored(STORED, layout="NC1HWC0"), stored((2, 16, 16, 16))
    for target, golden in ((one, other), (other, one)):
        match = Match(target, golden, "name", 1.0)
        (found,) = pairs(a_run([target]), a_run([golden]), Alignment((match,), (), ()))
        assert found.target.shape == found.golden.shape == (2, 16, 16, 16)


def test_slots_of_one_role_and_shape_are_partners_behind_equal_slots():
    one, other = (
        own("a", 0)._replace(tensors=tuple(TensorRef(f"input:{word}", "float32", (4,)) for word in words))
        for words in ("0x", "0y")
    )
    found = pairs(a_run([one]), a_run([other]), Alignment((Match(one, other, "name", 1.0),), (), ()))
    assert [(row.target.slot, row.golden.slot) for row in found] == [("input:0", "input:0"), ("input:x", "input:y")]
