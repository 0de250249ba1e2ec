"""Runs whose operators are aligned by values: where names leave most open, contradict the values, or a user asks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npucmp.align import DifferentNetworks, align
from npucmp.model.finding import FOUND_BY_CONTENT
from tests.align.craft import a_run, run_with_values

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


@pytest.mark.parametrize("method", ["auto", "names"])
@pytest.mark.parametrize("count, is_asked", [(2, False), (3, True)])
def test_values_are_asked_if_numbers_name_less_than_half_of_the_operators(tmp_path, count, is_asked, method):
    """Two calls have each other's values; the others have names of their own."""
    runs = []
    for folder, order in (("target", [1, 0]), ("golden", [0, 1])):
        own = [np.random.default_rng(at).standard_normal((3, 5)).astype(np.float32) for at in range(2 + count)]
        calls = [(f"Torch.mul.{number}.forward", [own[at]], [np.tanh(own[at])]) for number, at in enumerate(order)]
        calls += [(f"Torch.{name}.0.forward", [one], [np.tanh(one)]) for name, one in zip("abc", own[2:])]
        run = run_with_values(tmp_path / folder, calls)
        numbered = tuple(one._replace(unique=one.op_type != "mul") for one in run.operators)
        runs.append(replace(run, operators=numbered))
    found = align(*runs, method=method)
    is_contradicted = is_asked and method == "auto"
    assert [one.golden.order for one in found.matches[:2]] == ([1, 0] if is_contradicted else [0, 1])
    assert (found.contents is not None) is is_contradicted and len(found.matches) == 2 + count


def calls_of_two_kinds(folder, order, unlike, changed):
    """Products in this order of values; additions behind the first ones, with shapes that may be `changed`."""
    calls = []
    for number, at in enumerate(order):
        own = np.random.default_rng(at).standard_normal((2, 4)).astype(np.float32)
        calls.append((f"Torch.mul.{number}.forward", [own], [np.tanh(own)]))
        if number < unlike:
            shape = (3 + number, 5 + changed, 2 + 2 * changed)
            own = np.random.default_rng([number, changed]).standard_normal(shape).astype(np.float32)
            calls.append((f"Torch.add.{number}.forward", [own], [np.tanh(own)]))
    run = run_with_values(folder, calls)
    return replace(run, operators=tuple(one._replace(unique=False) for one in run.operators))


@pytest.mark.parametrize(
    "unlike, count, moved, is_contradicted",
    [
        (2, 8, 8, False),  # a fifth of the partners have other shapes
        (3, 10, 2, False),  # a fifth of the values are those of other partners
        (3, 9, 2, True),
    ],
)
def test_values_contradict_names_if_more_than_a_fifth_of_shapes_and_of_values_are_others(
    tmp_path, unlike, count, moved, is_contradicted
):
    """The first calls have the values of each other; changed shapes have values without a counterpart."""
    order = [*range(1, moved), *[0][:moved], *range(moved, count)]
    target = calls_of_two_kinds(tmp_path / "target", order, unlike, 1)
    golden = calls_of_two_kinds(tmp_path / "golden", range(count), unlike, 0)
    found = align(target, golden)
    assert (found.contents is not None) is is_contradicted
    numbers = {int(one.target.name.split(".")[2]): int(one.golden.name.split(".")[2])
               for one in found.matches if ".mul." in one.target.name}  # fmt: skip
    assert [numbers[at] for at in range(count)] == (order if is_contradicted else [*range(count)])
