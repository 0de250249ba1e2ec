"""When values decide which operators are partners, the order of runs of two frameworks, and the pairs that follow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npucmp.align import Alignment, align, pairs
from npucmp.model import Match, TensorRef
from tests.align.craft import a_run, own, run_with_values


def numbered(folder, places, has_own_shapes=True):
    """Calls of one kind, each with the values of a place, and its shape."""
    calls = []
    for number, at in enumerate(places):
        read = (
            np.random.default_rng(at)
            .standard_normal((3 + at * has_own_shapes, 5 + at * has_own_shapes))
            .astype(np.float32)
        )
        calls.append((f"Torch.mul.{number}.forward", [read, read.T.copy()], [np.tanh(read)]))
    run = run_with_values(folder, calls)
    return replace(run, operators=tuple(one._replace(unique=False) for one in run.operators))


SAME = [*range(10)]


@pytest.mark.parametrize(
    "places, has_own_shapes, by_value",
    [
        ([2, 1, 0, *SAME[3:]], True, False),  # a fifth of the partners by number have other shapes
        ([4, 1, 2, 3, 8, 5, 6, 7, 0, 9], True, True),
        ([3, 1, 0, 2, *SAME[4:]], False, False),  # shapes that are alike
        (SAME[::-1], False, False),
    ],
)
def test_values_are_asked_if_many_partners_by_number_have_other_shapes(tmp_path, places, has_own_shapes, by_value):
    target = numbered(tmp_path / "target", places, has_own_shapes)
    golden = numbered(tmp_path / "golden", SAME, has_own_shapes)
    found = align(target, golden)
    expected = [*enumerate(places)] if by_value else [*zip(SAME, SAME)]
    assert (found.contents is not None) is by_value
    assert [(one.target.order, one.golden.order) for one in found.matches] == expected


def test_tensors_that_cannot_be_read_contradict_no_number(tmp_path):
    target, golden = numbered(tmp_path / "target", [4, 1, 2, 3, 8, 5, 6, 7, 0, 9]), numbered(tmp_path / "golden", SAME)
    cut = [one._replace(tensors=tuple(ref._replace(problem="cut") for ref in one.tensors))
           if at == 0 else one for at, one in enumerate(target.operators)]  # fmt: skip
    assert align(replace(target, operators=tuple(cut)), golden).contents is None


def test_pairs_by_value_are_those_of_operators_in_target_order(tmp_path):
    target, golden = numbered(tmp_path / "target", SAME[::-1]), numbered(tmp_path / "golden", SAME)
    found = align(target, golden)
    rows = [*pairs(target, golden, found)]
    assert [one.order for one in rows] == [at for at in SAME for _ in range(3)]
    assert [one.slot for one in rows] == ["input:0", "input:1", "output:0"] * 10
    for one in rows:
        assert one.target in target.operators[one.order].tensors
        assert one.golden in golden.operators[9 - one.order].tensors
        assert one.target_op == target.operators[one.order] and one.golden_op == golden.operators[9 - one.order]
        assert one.target.shape == one.golden.shape and one.via == "content"


# Two frameworks

WIDTHS = (4, 5, 6)


def modules(prefix, kind, order):
    """A chain of products in the names of a framework."""
    made = []
    for at, width in enumerate(WIDTHS):
        name = f"{prefix}.net.fc{at}.{kind}.forward.0"
        refs = (TensorRef("input:0", "float32", (2, width)), TensorRef("output:0", "float32", (2, width + 1)))
        refs = tuple(one._replace(label=f"{prefix} {at} {one.slot}") for one in refs)
        made.append(own(name, order[at])._replace(tensors=refs, op_type=kind, path=f"{prefix}.net.fc{at}"))
    return sorted(made, key=lambda one: one.order)


@pytest.mark.parametrize("of_target", [False, True])
@pytest.mark.parametrize("of_golden", [False, True])
def test_runs_of_two_frameworks_have_the_order_of_the_run_that_has_one(of_target, of_golden):
    """Names that differ in framework have no numbers that values contradict."""
    target = replace(a_run(modules("Cell", "Dense", (2, 1, 0)), "target"), ordered=of_target)
    golden = replace(a_run(modules("Module", "Linear", (0, 1, 2)), "golden"), ordered=of_golden)
    found = align(target, golden)
    both = [(one.target.name.split(".")[2], one.golden.name.split(".")[2]) for one in found.matches]
    assert both == [(f"fc{at}", f"fc{at}") for at in (2, 1, 0)]
    assert found.by_golden is (of_golden and not of_target) and found.only_target == found.only_golden == ()
    names = [one.target_op.name.split(".")[2] for one in pairs(target, golden, found)][::2]
    assert names == [f"fc{at}" for at in ((0, 1, 2) if found.by_golden else (2, 1, 0))]


@pytest.mark.parametrize("of_target", [False, True])
def test_the_golden_gives_the_order_if_the_target_has_none(of_target):
    run = replace(a_run([own("a", 0), own("b", 1)]), ordered=True)
    longer = replace(run, operators=(*run.operators, own("c", 2)))
    assert align(replace(run, ordered=of_target), longer).by_golden is not of_target


# Slots


def slots_of(target, golden):
    """The pairs of two operators with these slots, all of one shape."""
    one, other = (own("a", 0)._replace(tensors=tuple(TensorRef(slot, "float32", (4,), label=slot) for slot in side))
                  for side in (target, golden))  # fmt: skip
    found = align(a_run([one]), a_run([other]))
    assert [*map(type, found.matches)] == [Match]
    return [
        (row.target and row.target.slot, row.golden and row.golden.slot)
        for row in pairs(a_run([one]), a_run([other]), found)
    ]


@pytest.mark.parametrize(
    "target, golden, found",
    [
        (["input:0"], ["input:0", "input:x"], [("input:0", "input:0"), (None, "input:x")]),
        (["input:x", "input:0"], ["input:0"], [("input:x", None), ("input:0", "input:0")]),
        (["input:1", "input:0"], ["input:0", "input:1"], [("input:1", "input:1"), ("input:0", "input:0")]),
        (["input:0", "input:y"], ["input:0", "input:x"], [("input:0", "input:0"), ("input:y", "input:x")]),
        (
            ["input:0", "input:y"],
            ["output:0", "input:0"],
            [("input:0", "input:0"), ("input:y", None), (None, "output:0")],
        ),
    ],
)
def test_tensors_of_one_slot_are_partners_and_then_those_of_one_role(target, golden, found):
    assert slots_of(target, golden) == found


def test_an_earlier_execution_has_the_name_of_its_own_run():
    """A user named the partners."""
    target, golden = a_run([own("a", 0), own("a", 1)]), a_run([own("b", 0), own("c", 1)])
    found = align(target, golden, {"a": "b"})
    notes = {row.note for row in pairs(target, golden, found) if row.golden is None}
    assert notes == {"an earlier execution; the other run has fewer, and the newest were paired"}
    turned = {row.note for row in pairs(golden, target, align(golden, target, {"b": "a"})) if row.target is None}
    assert turned == notes


def test_the_reason_of_an_operator_without_a_partner_is_none_of_a_tensor():
    """Of operators that have partners."""
    one, other = own("a", 0, ((2, 3), (4,))), own("a", 0)
    why = {("target", 0): "two candidates", ("golden", 0): "two candidates"}
    for both in ((one, other), (other, one)):
        found = Alignment((Match(*both, "name", 1.0),), (), (), why)
        notes = [row.note for row in pairs(a_run(both[:1]), a_run(both[1:]), found)]
        assert sorted(notes) == ["", "", "the operator of the other run has no such tensor"]
