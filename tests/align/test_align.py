"""Which runs are of one network, and the pairs of tensors that an alignment has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npucmp.align import Alignment, DifferentNetworks, align, align_or_part, pairs
from npucmp.model import Match, Payload, TensorRef
from npucmp.model.finding import FOUND_BY_CONTENT
from tests.align.craft import a_run, api, own, run_with_values

UNLIKE = ((7, 7, 7),)


def nodes(count, start=0, unlike=0, rows=0, **fields):
    """Operators with names of their own; the first ones have other shapes, the next ones other rows."""
    made = []
    for at in range(start, start + count):
        shapes = UNLIKE if at < unlike else ((9, 3),) if at < unlike + rows else ((at + 2, 3),)
        made.append(own(f"node{at}", at, shapes, shapes)._replace(**fields))
    return made


def is_one_network(target, golden, names=None, method="names"):
    runs = a_run(target, "target"), a_run(golden, "golden")
    return align_or_part(*runs, names, method=method)[1] is None


@pytest.mark.parametrize("method", ["names", "auto"])
@pytest.mark.parametrize(
    "target, golden, expected",
    [
        (nodes(4, unlike=2), nodes(20), True),  # half of the shapes of the smaller side
        (nodes(4, unlike=3), nodes(20), False),
        (nodes(5, unlike=2), nodes(20), True),
        (nodes(5, unlike=3), nodes(20), False),
        (nodes(4, unlike=2, rows=2), nodes(20), True),  # other rows are no other shapes
        (nodes(8, unlike=8), nodes(10), True),  # four fifths of the names of the larger side
        (nodes(7, unlike=7), nodes(10), False),
        (nodes(8, unlike=8), nodes(11), False),
        (nodes(8, unlike=8), nodes(10) + nodes(5, 10, inserted=True), True),  # inserted by a compiler: no matter
        (nodes(4, unlike=2) + nodes(9, 30, inserted=True), nodes(20), True),
        ([], nodes(3), True),
    ],
)
def test_equal_names_or_shapes_of_half_of_the_smaller_run_are_one_network(target, golden, expected, method):
    assert is_one_network(target, golden, method=method) is expected
    assert is_one_network(golden, target, method=method) is expected


def test_names_that_a_user_gave_are_one_network():
    target, golden = nodes(4, unlike=4), [one._replace(name=f"other {one.name}") for one in nodes(9)]
    assert not is_one_network(target, golden)
    assert is_one_network(target, golden, {"node1": "other node1"})


def broken(operator):
    return operator._replace(tensors=tuple(one._replace(problem="cut") for one in operator.tensors))


@pytest.mark.parametrize("count, expected", [(2, True), (1, False)])
def test_an_unreadable_operator_of_the_same_name_counts_as_alike(count, expected):
    target = nodes(4, unlike=4)
    target[:count] = [broken(one) for one in target[:count]]
    assert is_one_network(target, nodes(20)) is expected
    assert is_one_network(nodes(20), target) is expected


def test_the_error_names_the_runs_and_what_matches():
    words = "target and golden look like different networks: of 4 and 20 operators, 1 match with equal shapes"
    with pytest.raises(DifferentNetworks, match=words):
        align(a_run(nodes(4, unlike=3), "target"), a_run(nodes(20), "golden"), method="names")


@pytest.mark.parametrize("file, word", [("a.npy", "a.npy"), ("", "label of a")])
def test_the_error_names_the_file_that_cannot_be_read(file, word):
    target = nodes(4, unlike=4)
    lost = TensorRef("", "", (), file, problem="cut short", label="label of a")
    target[3] = target[3]._replace(name="lost", tensors=(lost,))
    for runs in ((target, nodes(20)), (nodes(20), target)):
        with pytest.raises(DifferentNetworks, match=rf"{word} cannot be read \(cut short\), and too few"):
            align(a_run(runs[0]), a_run(runs[1]), method="names")


def test_one_of_several_pairs_of_runs_may_be_of_other_networks():
    target, golden = a_run(nodes(4, unlike=4)), a_run(nodes(20))
    found, error = align_or_part(target, golden, method="names")
    assert isinstance(error, DifferentNetworks)
    assert (found.matches, found.only_target, found.only_golden) == ((), target.operators, golden.operators)
    same, error = align_or_part(golden, golden)
    assert error is None and same.matched == {"name": 20} and same.only_target == same.only_golden == ()


# ---- alignment by values ----

RNG = np.random.default_rng(3)
VALUES = [RNG.standard_normal((4, 5 + at)).astype(np.float32) for at in range(7)]


def chain_of(folder, names, values=VALUES, of_each=(0, 1, 2, 3, 4, 5)):
    """Calls that each read the values of the one before."""
    calls = [(f"Torch.{name}.0.forward", [values[at]], [values[at + 1]]) for name, at in zip(names, of_each)]
    return run_with_values(folder, calls)


def partners(found):
    return [(one.target.name.split(".")[1], one.golden.name.split(".")[1]) for one in found.matches]


def test_values_decide_where_names_leave_most_open(tmp_path):
    target, golden = chain_of(tmp_path / "target", "uvwxyz"), chain_of(tmp_path / "golden", "abcdef")
    found = align(target, golden)
    assert partners(found) == [*zip("uvwxyz", "abcdef")] and found.contents is not None
    assert found.only_target == found.only_golden == ()
    with pytest.raises(DifferentNetworks):
        align(target, golden, method="names")


def test_values_decide_if_a_user_asks_for_it(tmp_path):
    """Equal names are no partners where their values are those of others."""
    target = chain_of(tmp_path / "target", "bacdef")
    golden = chain_of(tmp_path / "golden", "abcdef")
    assert partners(align(target, golden, method="names")) == [*zip("bacdef", "bacdef")]
    by_value = [*zip("bacdef", "abcdef")]
    assert partners(align(target, golden, method="content")) == by_value
    assert partners(align(target, golden, FOUND_BY_CONTENT)) == by_value
    assert partners(align(target, golden, FOUND_BY_CONTENT, method="names")) == [*zip("bacdef", "bacdef")]


def test_runs_without_common_values_are_not_aligned_by_them(tmp_path):
    other = [one + 1 for one in VALUES]
    target, golden = chain_of(tmp_path / "target", "abcdef", other), chain_of(tmp_path / "golden", "abcdef")
    with pytest.raises(DifferentNetworks, match=r"target and .*golden look like different networks: fewer than 10 %"):
        align(target, golden, method="content")
    assert partners(align(target, golden)) == [*zip("abcdef", "abcdef")]


def test_an_operator_that_values_leave_open_has_the_partner_of_its_name(tmp_path):
    """The last operator writes other values; a user named its partner."""
    other = [*VALUES[:5], *(np.random.default_rng(9).standard_normal((2, 3, at)).astype(np.float32) for at in (2, 3))]
    target = chain_of(tmp_path / "target", "uvwxyz", other)
    golden = chain_of(tmp_path / "golden", "abcdef")
    found = align(target, golden, {"Torch.z.0.forward": "Torch.f.0.forward"}, method="content")
    assert ("z", "f") in partners(found) and partners(found) == sorted(partners(found))
    assert {one.golden.name for one in found.matches}.isdisjoint(one.name for one in found.only_golden)


@pytest.mark.parametrize("named, by_value", [(2, True), (3, False)])
def test_values_decide_if_a_user_names_the_partners_of_less_than_half(tmp_path, named, by_value):
    """Without values the others stay open."""
    target, golden = chain_of(tmp_path / "target", "uvwxyz"), chain_of(tmp_path / "golden", "abcdef")
    golden = a_run([one._replace(op_type="", kind="other") for one in golden.operators], "golden")
    names = {f"Torch.{one}.0.forward": f"Torch.{other}.0.forward" for one, other in [*zip("uvwxyz", "abcdef")][:named]}
    found = align(target, golden, names)
    assert (found.contents is not None) is by_value
    assert len(found.matches) == (6 if by_value else named)


def numbered(folder, places, **fields):
    """Calls of one kind; those of other places have other shapes and values."""
    read = [np.random.default_rng(at).standard_normal((3 + at, 5 + at)).astype(np.float32) for at in range(9)]
    calls = [(f"Torch.mul.{number}.forward", [read[at]], [np.tanh(read[at])]) for number, at in enumerate(places)]
    run = run_with_values(folder, calls)
    return replace(run, operators=tuple(one._replace(**{"unique": False, **fields}) for one in run.operators))


BACKWARDS = [(0, 4), (1, 3), (2, 2), (3, 1), (4, 0)]
BY_NUMBER = [(at, at) for at in range(5)]


@pytest.mark.parametrize(
    "places, fields, expected",
    [
        ([4, 3, 2, 1, 0], {}, BACKWARDS),
        ([4, 3, 2, 1, 0], {"unique": True}, BY_NUMBER),  # names of their own are not doubted
        ([4, 3, 2, 1, 0], {"phase": "backward"}, BY_NUMBER),
        ([0, 1, 2, 3, 4], {}, BY_NUMBER),
    ],
)
def test_values_contradict_the_numbers_of_calls(tmp_path, places, fields, expected):
    """The target runs the calls in another order, so that most partners by number have other shapes."""
    target, golden = numbered(tmp_path / "target", places, **fields), numbered(tmp_path / "golden", range(5), **fields)
    found = align(target, golden)
    assert [(one.target.order, one.golden.order) for one in found.matches] == expected
    assert (found.contents is not None) is (expected == BACKWARDS)
    by_name = align(target, golden, method="names")
    assert by_name.contents is None and [one.target.order for one in by_name.matches] == [*range(5)]


def test_names_that_a_user_gave_are_not_doubted(tmp_path):
    target, golden = numbered(tmp_path / "target", [4, 3, 2, 1, 0]), numbered(tmp_path / "golden", range(5))
    found = align(target, golden, {"Torch.mul.2.forward": "Torch.mul.2.forward"})
    assert found.contents is None and found.matched["mapping"] == 1


def test_values_without_a_counterpart_contradict_nothing(tmp_path):
    """The golden has other values, in other shapes too."""
    target, golden = numbered(tmp_path / "target", [4, 3, 2, 1, 0]), numbered(tmp_path / "golden", range(5))
    for one in target.operators:
        for tensor in one.tensors:
            np.save(tensor.file, np.load(tensor.file) + 1)
    found = align(target, golden)
    assert found.contents is None and len(found.matches) == 5


@pytest.mark.parametrize("of_target", [False, True])
@pytest.mark.parametrize("of_golden", [False, True])
def test_the_golden_gives_the_order_only_if_the_target_has_none(tmp_path, of_target, of_golden):
    target, golden = chain_of(tmp_path / "target", "uvwxyz"), chain_of(tmp_path / "golden", "abcdef")
    found = align(replace(target, ordered=of_target), replace(golden, ordered=of_golden))
    assert found.by_golden is (of_golden and not of_target) and found.contents is not None


# ---- pairs ----


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


def test_calls_of_other_shapes_are_no_partners_by_number():
    """The second call is missing in the target, whose numbers shift."""
    shapes = [((2, 3),), ((4, 5),), ((6, 7),), ((8, 9),)]
    golden = [api("Torch.mul", at, "forward", at, one, one) for at, one in enumerate(shapes)]
    target = [api("Torch.mul", at, "forward", at, one, one) for at, one in enumerate([shapes[0], *shapes[2:]])]
    found = align(a_run(target), a_run(golden))
    assert [(one.target.order, one.golden.order) for one in found.matches] == [(0, 0), (1, 2), (2, 3)]
    assert [one.order for one in found.only_golden] == [1] and found.only_target == ()
