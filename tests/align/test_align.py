"""Which runs are of one network, and whose order counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npucmp.align import DifferentNetworks, align, align_or_part
from npucmp.model import TensorRef
from tests.align.craft import a_run, api, own

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


def test_calls_of_other_shapes_are_no_partners_by_number():
    """The second call is missing in the target, whose numbers shift."""
    shapes = [((2, 3),), ((4, 5),), ((6, 7),), ((8, 9),)]
    golden = [api("Torch.mul", at, "forward", at, one, one) for at, one in enumerate(shapes)]
    target = [api("Torch.mul", at, "forward", at, one, one) for at, one in enumerate([shapes[0], *shapes[2:]])]
    found = align(a_run(target), a_run(golden))
    assert [(one.target.order, one.golden.order) for one in found.matches] == [(0, 0), (1, 2), (2, 3)]
    assert [one.order for one in found.only_golden] == [1] and found.only_target == ()


@pytest.mark.parametrize("framework", ["Torch", "Mint"])
@pytest.mark.parametrize("of_target", [False, True])
@pytest.mark.parametrize("of_golden", [False, True])
def test_the_golden_gives_the_order_if_the_target_has_none(framework, of_target, of_golden):
    """In one framework and in two. The golden has an operator more."""
    target = a_run([api(f"{framework}.add", at, "forward", at) for at in range(2)])
    golden = a_run([*(api("Torch.add", at, "forward", at) for at in range(2)), api("Torch.exp", 0, "forward", 2)])
    found = align(replace(target, ordered=of_target), replace(golden, ordered=of_golden), method="names")
    assert found.by_golden is (of_golden and not of_target)
