"""Updates of parameters that data-parallel ranks split: flat buffers, and rows."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.split_updates import SplitUpdates
from npucmp.model import Statistics
from tests.align.craft import Recorded
from tests.align.rank_craft import numbers, rank_of

GRADIENT = numbers(3, 4)
TRAINED = [("Torch.linear.0.forward", [GRADIENT], [GRADIENT * 2]), ("Torch.linear.0.backward", [], [GRADIENT])]
FIRST, SECOND, THIRD = (
    np.abs(numbers(*shape, seed=at)) + 0.5 + 3 * at for at, shape in enumerate([(3, 4), (6,), (2, 2)])
)
ALL = [FIRST, SECOND, THIRD]
AGAIN = THIRD * np.float32(1.001)  # so near that it is found where THIRD stands
PAIR = ((0, 1),)


def places_from(start, count):
    """The numbers of elements, which show where a part was cut."""
    return np.float32(1000.5) + np.arange(start, start + count, dtype=np.float32)


def flat(*tensors, padding=0):
    return np.concatenate([*(one.reshape(-1) for one in tensors), np.zeros(padding, np.float32)])


def updated(folder, ranks, golden, groups=PAIR, missing=None, rows=False, holds=None):
    """The partners of the golden's updates, by name: `ranks` and `golden` are calls behind the backward pass. Each
    operator `add` of the golden reads a parameter first, which each rank holds whole."""
    runs = {at: rank_of(folder / f"{at}", [*TRAINED, *calls], at) for at, calls in enumerate(ranks)}
    whole = rank_of(folder / "golden", [*TRAINED, *golden])
    known = {one.name: dict.fromkeys(runs if holds is None else holds, one.inputs[0])
             for one in whole.update if one.op.op_type == "add"}  # fmt: skip
    split = SplitUpdates(runs, whole, groups)
    return split.of_rows(known) if rows else split.of_buffers(known, {*known} if missing is None else missing)


def gathered(part, group=(0, 1), size=2):
    """The ranks of a group gather parts like this one."""
    return "Distributed.all_gather.0.forward", [part], [numbers(size * part.size, seed=3)], group


def buffer_of(whole, ranks=2, group=(0, 1), size=2, before=None):
    """The updates of ranks that split a flat buffer; `before` makes calls of a part, and the tensor to update."""
    calls, start = [], 0
    for own in np.array_split(whole, ranks):
        first, read = ([], own) if before is None else before(own)
        place = places_from(start, own.size)
        calls.append([*first, ("Torch.add.0.forward", [read, place], [own + place]),
                      gathered(own + place, group, size)])  # fmt: skip
        start += own.size
    return calls


def steps(parameters):
    return [(f"Torch.add.{at}.forward", [one, numbers(*one.shape, seed=20 + at)], [one - 1])
            for at, one in enumerate(parameters)]  # fmt: skip


def places(folder, whole, parameters, **more):
    """The first element of each parameter that is found in a buffer."""
    found = updated(folder, buffer_of(whole, **more), steps(parameters))
    return {int(name.split(".")[2]): int(parts[0].inputs[1].array.flat[0] - 1000.5) for name, parts in found.items()}


# Buffers


def cast(own):
    near = (own * np.float32(1.001)).astype(np.float32)
    return [("Torch.to.0.forward", [own], [near])], near


@pytest.mark.parametrize("before", [None, cast])
@pytest.mark.parametrize("order", [1, -1])
def test_parameters_are_found_in_a_flat_buffer(tmp_path, before, order):
    found = updated(tmp_path, buffer_of(flat(*ALL[::order]), before=before), steps(ALL))
    arrays = {name: [part.inputs[0].array for part in parts] for name, parts in found.items()}
    room = 2e-3 * (before is not None)
    assert arrays == {f"Torch.add.{at}.forward": [pytest.approx(one, rel=room)] for at, one in enumerate(ALL)}
    assert all(part.rank == 0 and part.ranks == (0, 1) for parts in found.values() for part in parts)


@pytest.mark.parametrize(
    "buffer, known, padding, found",
    [
        ([FIRST, SECOND, THIRD], [FIRST, SECOND, THIRD + 9], 0, {0: 0, 1: 12, 2: 18}),  # the last, where these end
        ([FIRST, SECOND, THIRD], [FIRST, SECOND + 9, THIRD], 0, {0: 0, 1: 12, 2: 18}),
        ([FIRST, SECOND, THIRD], [FIRST + 9, SECOND, THIRD], 0, {0: 0, 1: 12, 2: 18}),
        ([FIRST, SECOND, THIRD], [FIRST, flat(FIRST) + 9, THIRD], 0, {0: 0, 2: 18}),  # no room between these
        ([FIRST, THIRD, AGAIN], [FIRST, THIRD, AGAIN], 0, {0: 0, 1: 12, 2: 16}),  # one behind the other
        ([THIRD, FIRST], [FIRST, THIRD], 0, {0: 4, 1: 0}),  # the reverse order
        ([FIRST, SECOND], [FIRST, SECOND + 9, THIRD + 9], 2, {}),  # a lone match
        ([FIRST], [FIRST, SECOND + 9], 0, {0: 0}),  # it fills the buffer
        ([FIRST], [FIRST, SECOND + 9], 1, {0: 0}),  # but for padding, less than an element of each rank
        ([FIRST], [FIRST, SECOND + 9], 2, {}),
        ([FIRST], [FIRST], 8, {0: 0}),  # all that is known
        ([SECOND, SECOND], [FIRST, THIRD], 0, {}),
        ([SECOND, SECOND], [], 0, {}),
    ],
)
def test_a_parameter_with_a_fault_stands_between_its_neighbours(tmp_path, buffer, known, padding, found):
    assert places(tmp_path, flat(*buffer, padding=padding), known) == found


LARGE = np.float32([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    "held, is_found",
    [
        ([1.0, 2.0, 3.0, 4.0], True),
        ([1.0, 2.0, 3.0, 4.036], True),  # within a hundredth
        ([1.0, 2.0, 3.0, 4.044], False),  # the largest is looked up
        ([1.0, 9.0, 3.0, 4.0], True),
        ([9.0, 9.0, 3.0, 4.0], False),  # a half is not enough
        ([1.009, 9.0, 3.027, 4.0], True),
        ([1.009, 9.0, 3.033, 4.0], False),
        ([-1.0, -2.0, -3.0, -4.0], False),
    ],
)
def test_more_than_half_of_the_values_of_a_parameter_are_found(tmp_path, held, is_found):
    assert places(tmp_path, np.float32([0.5, 0.5, *held]), [LARGE]) == ({0: 2} if is_found else {})
    assert places(tmp_path / "negative", -np.float32([0.5, 0.5, *held]), [-LARGE]) == ({0: 2} if is_found else {})


@pytest.mark.parametrize("whole, found", [
    ([4.0, 1.0, 2.0, 3.0, 4.0, 0.5], {0: 1}),  # the first of its largest elements stands too near to the begin
    ([1.0, 2.0, 3.0, 4.0, 1.0, 2.0], {0: 0}),
    ([1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0], {0: 0}),  # the first place
    ([0.5, 0.5, 0.5, 0.5, 3.0, 4.0], {}),
])  # fmt: skip
def test_a_parameter_stands_within_the_buffer(tmp_path, whole, found):
    assert places(tmp_path, np.float32(whole), [LARGE]) == found


def test_the_order_in_which_more_elements_are_found(tmp_path):
    """Two small parameters stand in the order of the golden, a large one and a small one in the reverse order."""
    large = numbers(5, 4, seed=40) + 30
    known = [SECOND, THIRD, large]
    assert places(tmp_path, flat(large, SECOND, THIRD), known) == {2: 0, 1: 26}


def test_ranks_that_exchange_no_parts_hold_no_buffer(tmp_path):
    assert {*places(tmp_path, flat(*ALL), ALL)} == {0, 1, 2}
    for at, more in enumerate([{"size": 3}, {"size": 1}, {"group": (0, 2)}]):
        assert places(tmp_path / f"{at}", flat(*ALL), ALL, **more) == {}


def test_parts_that_ranks_scatter(tmp_path):
    calls = buffer_of(flat(*ALL))
    for own in calls:
        _, read, written, group = own.pop()
        own.append(("Distributed.reduce_scatter.0.forward", written, read, group))
    assert len(updated(tmp_path, calls, steps(ALL))) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda own: [*own[:2], np.int64(own[2:].size)],
        lambda own: own.reshape(1, -1),  # not flat
        lambda own: own.astype(int),
        lambda own: Recorded(Statistics(2.0, 1.0, 1.5, 4.0), own.shape),  # without values
    ],
)
def test_other_tensors_are_no_buffer(tmp_path, change):
    calls = buffer_of(flat(*ALL))
    for own in calls:
        name, (part, place), written = own[0]
        own[0] = name, [change(part), place], written
    assert updated(tmp_path, calls, steps(ALL)) == {}


def test_buffers_that_an_operator_wrote_are_none(tmp_path):
    """A collective may have written one: it gathers parameters before their update."""
    calls = buffer_of(flat(*ALL))
    for name, is_found in (("Distributed.broadcast.0.forward", True), ("Torch.abs.0.forward", False)):
        own = [[(name, [-one[0][1][0]], [one[0][1][0]]), *one] for one in calls]
        assert bool(updated(tmp_path / name, own, steps(ALL))) is is_found


def test_an_operator_without_a_flat_result_reads_no_buffer(tmp_path):
    calls = buffer_of(flat(*ALL))
    for own in calls:
        own[0] = (*own[0][:2], [np.float32(1.7)])
    assert updated(tmp_path, calls, steps(ALL)) == {}


def test_groups_hold_buffers_of_their_own(tmp_path):
    """Each group has a part, unless a rank of it is missing or it has one rank."""
    calls = buffer_of(flat(*ALL)) + buffer_of(flat(*ALL), group=(2, 3))
    found = updated(tmp_path, calls, steps(ALL), [(0, 1), (2, 3), (4,), (0, 5)])
    assert [[one.ranks for one in parts] for parts in found.values()] == [[(0, 1), (2, 3)]] * 3
    assert [one.rank for one in found["Torch.add.1.forward"]] == [0, 2]
    assert updated(tmp_path / "missing", calls, steps(ALL), [(0, 5), (0,)]) == {}


def test_a_parameter_that_the_first_rank_does_not_hold_is_in_no_buffer(tmp_path):
    calls, own = buffer_of(flat(*ALL)), steps(ALL)
    assert updated(tmp_path, calls, own, holds=[1]) == {}
    assert len(updated(tmp_path / "first", calls, own, holds=[0])) == 3


def test_the_updates_that_are_asked_for(tmp_path):
    found = updated(tmp_path, buffer_of(flat(*ALL)), steps(ALL), missing={"Torch.add.1.forward"})
    assert [*found] == ["Torch.add.1.forward"]


def test_a_parameter_in_two_buffers_of_a_group_has_no_partner(tmp_path):
    calls = buffer_of(flat(*ALL))
    for own in calls:
        own.insert(0, ("Torch.abs.0.forward", own[0][1][:1], [-own[0][1][0]]))
    assert updated(tmp_path, calls, steps(ALL)) == {}


# Chains of operators from gradient to parameter

RATE = np.float32(0.37)


def momentum(number, parameter, gradient, extra=()):
    """The update of a parameter: mul, mul and add; then, of what it wrote, abs."""
    once, twice = gradient * 3, gradient * 6
    return [
        (f"Torch.mul.{2 * number}.forward", [gradient, RATE], [once]),
        (f"Torch.mul.{2 * number + 1}.forward", [once], [twice]),
        *extra,
        (f"Torch.add.{number}.forward", [parameter, twice], [parameter + twice]),
        (f"Torch.abs.{number}.forward", [parameter + twice], [-parameter - twice]),
    ]


GRADIENTS = [numbers(*one.shape, seed=80 + at) for at, one in enumerate(ALL)]
NAMES = [*("mul.0", "mul.1", "add.0", "abs.0"), *("mul.2", "mul.3", "add.1", "abs.1"),
         *("mul.4", "mul.5", "add.2", "abs.2")]  # fmt: skip


def chained(folder, extra=None, own_extra=None, missing=None, order=1):
    """The operators that have a partner, with it."""
    golden = [call for at, (one, gradient) in enumerate(zip(ALL, GRADIENTS))
              for call in momentum(at, one, gradient, extra(at, gradient) if extra else ())]  # fmt: skip
    calls, whole, gradients = [], flat(*ALL), flat(*GRADIENTS)
    for own, gradient in zip(np.split(whole, 2), np.split(gradients, 2)):
        calls.append([*momentum(0, own, gradient, own_extra(0, gradient) if own_extra else ()), gathered(own)])
    asked = {call[0] for call in golden} if missing is None else {f"Torch.{name}.forward" for name in missing}
    found = updated(folder, calls, golden, missing=asked)
    return {name.split(".", 1)[1].rpartition(".")[0]: parts for name, parts in found.items()}


def test_the_operators_of_an_update_are_partners_by_type(tmp_path):
    found = chained(tmp_path)
    assert sorted(found) == sorted(NAMES)
    ends = {"mul.0": "mul.0", "mul.1": "mul.1", "add.0": "add.0", "abs.0": "abs.0", "mul.2": "mul.0", "mul.3": "mul.1"}
    assert {name: found[name][0].name for name in ends} == {name: f"Torch.{own}.forward" for name, own in ends.items()}
    for at, (one, gradient) in enumerate(zip(ALL, GRADIENTS)):
        first, second, step, last = (found[name][0] for name in NAMES[4 * at : 4 * at + 4])
        assert [each.array.tolist() for each in first.tensors] == [gradient.tolist(), RATE, (gradient * 3).tolist()]
        assert np.array_equal(second.outputs[0].array, gradient * 6)
        assert np.array_equal(step.outputs[0].array, one + gradient * 6)
        assert np.array_equal(last.outputs[0].array, -one - gradient * 6)
        assert {each.shape for each in step.tensors} == {one.shape}


def test_some_operators_of_an_update(tmp_path):
    assert sorted(chained(tmp_path, missing=["mul.1", "add.0", "abs.2"])) == ["abs.2", "add.0", "mul.1"]


def another(name, of):
    return lambda at, gradient: [(f"Torch.{name}.{9 + at}.forward", [of(gradient)], [of(gradient) * 5])]


@pytest.mark.parametrize("of", [lambda gradient: gradient, lambda gradient: gradient * 3])
def test_an_operator_beside_the_chain_that_reads_what_it_reads(tmp_path, of):
    own = another("sin", of)
    assert {"sin.9", "sin.10", "sin.11"} <= {*chained(tmp_path, own, own)}
    assert sorted(chained(tmp_path / "golden", own)) == sorted(NAMES)  # the ranks do not compute it
    assert sorted(chained(tmp_path / "ranks", None, own)) == sorted(NAMES)


def test_an_operator_on_other_tensors_belongs_to_no_chain(tmp_path):
    other = another("sin", lambda gradient: np.cos(gradient))
    assert sorted(chained(tmp_path, other, other)) == sorted(NAMES)
    number = another("sin", lambda gradient: RATE)  # all updates read one rate
    assert sorted(chained(tmp_path / "number", number, number)) == sorted(NAMES)
    whole = another("sin", lambda gradient: np.arange(6))
    assert sorted(chained(tmp_path / "whole", whole, whole)) == sorted(NAMES)


def test_a_norm_of_a_part_has_no_partner(tmp_path):
    def norm(at, gradient):
        return [(f"Torch.norm.{at}.forward", [gradient], [np.float32(3.3 + at)])]

    assert sorted(chained(tmp_path, norm, norm)) == sorted(NAMES)


def test_a_collective_belongs_to_no_chain(tmp_path):
    def reduced(at, gradient):
        return [(f"Distributed.all_reduce.{at}.forward", [gradient], [gradient * 7], (0, 1))]

    assert sorted(chained(tmp_path, reduced, reduced)) == sorted(NAMES)


def test_tensors_that_are_no_part_of_the_buffer_stay_as_they_are(tmp_path):
    """Short tensors, numbers, and tensors whose values one rank does not have."""
    short, figures = numbers(5, seed=90), Recorded(Statistics(2.0, 1.0, 1.5, 4.0), (11,))
    calls = buffer_of(flat(*ALL))
    for at, own in enumerate(calls):
        name, (part, place), written = own[0]
        own[0] = name, [part, place, short, RATE, part if at else figures, *([part] if at == 0 else [])], written
    found = updated(tmp_path, calls, steps(ALL))
    part = found["Torch.add.2.forward"][0]  # its elements stand behind those of the short tensor
    assert [one.shape for one in part.inputs] == [(2, 2), (2, 2), (5,), (), (11,), (11,)]
    assert part.inputs[4].figures == (2.0, 1.0, 1.5, 4.0) and part.outputs[0].figures is None


def test_one_number_of_each_rank_is_no_parameter_of_two_elements(tmp_path):
    small = np.float32([30.7, 31.9])
    calls = buffer_of(flat(small, *ALL))
    for own in calls:
        name, read, written = own[0]
        own[0] = name, [*read, RATE.reshape(1)], written
    (part,) = updated(tmp_path, calls, steps([small, *ALL]))["Torch.add.0.forward"]
    assert [one.shape for one in part.tensors] == [(2,), (2,), (1,), (2,)]


def test_a_tensor_that_ends_with_the_parameter_is_cut(tmp_path):
    calls = buffer_of(flat(*ALL))
    for own in calls:
        name, (part, place), written = own[0]
        own[0] = name, [part, place, place[:9]], written
    found = updated(tmp_path, calls, steps(ALL))
    assert [parts[0].inputs[2].shape for parts in found.values()] == [(3, 4), (6,), (9,)]


# Rows


def rows_of(parameter, size):
    """The rows of each rank: the first ranks have ⌈rows / ranks⌉, the last what is left."""
    count = -(-len(parameter) // size)
    return [parameter[at * count : (at + 1) * count] for at in range(size)]


def row_calls(parameter, size=2, is_flat=False, padding=0):
    calls, start = [], 0
    for own in rows_of(parameter, size):
        place = places_from(start, own.size).reshape(own.shape)
        start += own.size
        some = [own, place, own - 1]
        if is_flat:
            some = [one.reshape(-1) for one in some]
        calls.append([("Torch.add.0.forward", some[:2], some[2:])])
    return calls


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("shape, size", [((4, 3), 2), ((5, 3), 2), ((6,), 3), ((5, 2), 3), ((4, 2, 3), 2), ((3, 2), 3)])
def test_rows_of_ranks_are_joined(tmp_path, shape, size, is_flat):
    parameter, group = numbers(*shape, seed=5), tuple(range(size))
    found = updated(tmp_path, row_calls(parameter, size, is_flat), steps([parameter]), [group], rows=True)
    ((name, (part,)),) = found.items()
    assert name == "Torch.add.0.forward" and part.ranks == group and part.rank == 0
    assert [one.array.tolist() for one in part.tensors] == [
        parameter.tolist(),
        places_from(0, parameter.size).reshape(shape).tolist(),
        (parameter - 1).tolist(),
    ]


@pytest.mark.parametrize(
    "shape, size, is_found",
    [((4, 3), 4, True), ((4, 3), 3, False), ((2, 3), 3, False), ((3, 3), 2, True)],
)
def test_a_rank_without_rows_reads_none(tmp_path, shape, size, is_found):
    """Of four rows, three ranks have two, two and none."""
    parameter, group = numbers(*shape, seed=5), tuple(range(size))
    found = updated(tmp_path, row_calls(parameter, size), steps([parameter]), [group], rows=True)
    assert bool(found) is is_found


def test_rows_that_are_no_rows_of_the_parameter(tmp_path):
    parameter = numbers(4, 3, seed=5)
    calls = row_calls(parameter)
    assert updated(tmp_path, calls[::-1], steps([parameter]), rows=True) == {}  # of the other rank
    assert updated(tmp_path / "group", calls[::-1], steps([parameter]), [(1, 0)], rows=True)
    assert updated(tmp_path / "type", calls, [("Torch.add.0.forward", [parameter + 1], [parameter])], rows=True) == {}
    mul = [[("Torch.mul.0.forward", *one[0][1:])] for one in calls]
    assert updated(tmp_path / "mul", mul, steps([parameter]), rows=True) == {}
    assert updated(tmp_path / "one", calls, steps([parameter]), rows=True, holds=[0]) == {}
    ones = np.ones((4, 3), np.float32)  # known by no content
    assert updated(tmp_path / "ones", row_calls(ones), steps([ones]), rows=True) == {}
    figures = Recorded(Statistics(2.0, 1.0, 1.5, 4.0), (4, 3))
    golden = [("Torch.add.0.forward", [figures, GRADIENT], [GRADIENT])]
    assert updated(tmp_path / "figures", calls, golden, rows=True) == {}
    number = [("Torch.add.0.forward", [np.float32(0.3), GRADIENT], [GRADIENT])]
    assert updated(tmp_path / "number", calls, number, rows=True) == {}


def test_one_rank_splits_no_rows(tmp_path):
    parameter = numbers(4, 3, seed=5)
    assert updated(tmp_path, row_calls(parameter, 1), steps([parameter]), [(0,)], rows=True) == {}


def test_groups_of_rows(tmp_path):
    parameter = numbers(4, 3, seed=5)
    calls = row_calls(parameter) + row_calls(parameter)
    found = updated(tmp_path, calls, steps([parameter]), [(0, 1), (2, 3)], rows=True)
    assert [one.ranks for one in found["Torch.add.0.forward"]] == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    "second, shapes",
    [
        (lambda at, own: own[:1] if at else own, (2, 3)),  # too few rows
        (lambda at, own: np.concatenate([own, own]), (4, 3)),  # padded
        (lambda at, own: own[:, :2], (2, 2)),  # of another width
        (lambda at, own: own.reshape(2, 3, 1), (2, 3, 1)),
        (lambda at, own: np.float32(0.3), ()),
        (lambda at, own: own if at else Recorded(Statistics(2.0, 1.0, 1.5, 4.0), (2, 3)), (2, 3)),
        (lambda at, own: own.reshape(-1), (4, 3)),
        (lambda at, own: own.reshape(-1)[: 6 - at], (6,)),
    ],
)
def test_tensors_that_are_joined_to_the_shape_of_the_parameter(tmp_path, second, shapes):
    """Others stay those of the first rank."""
    parameter = numbers(4, 3, seed=5)
    calls = row_calls(parameter)
    for at, own in enumerate(calls):
        name, (part, _), written = own[0]
        own[0] = name, [part, second(at, part)], written
    (part,) = updated(tmp_path, calls, steps([parameter]), rows=True)["Torch.add.0.forward"]
    assert part.inputs[0].shape == (4, 3) and part.inputs[1].shape == shapes
    assert (part.inputs[1].array is None) is (part.inputs[1].figures is not None)


def test_a_slot_that_one_rank_lacks_stays(tmp_path):
    parameter = numbers(4, 3, seed=5)
    calls = row_calls(parameter)
    calls[0][0][1].append(calls[0][0][1][0] * 2)
    (part,) = updated(tmp_path, calls, steps([parameter]), rows=True)["Torch.add.0.forward"]
    assert [one.shape for one in part.inputs] == [(4, 3), (4, 3), (2, 3)]


def test_the_chain_of_rows(tmp_path):
    """The operators of an update around the one that reads the parameter."""
    parameter, gradient = numbers(4, 3, seed=5), numbers(4, 3, seed=6)
    calls = [momentum(0, *both) for both in zip(rows_of(parameter, 2), rows_of(gradient, 2))]
    found = updated(tmp_path, calls, momentum(0, parameter, gradient), rows=True)
    assert sorted(found) == [f"Torch.{name}.forward" for name in sorted(NAMES[:4])]
    assert np.array_equal(found["Torch.mul.1.forward"][0].outputs[0].array, gradient * 6)
