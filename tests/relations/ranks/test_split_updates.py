"""Updates of parameters that data-parallel ranks split: flat buffers, and rows."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.model import Statistics
from npucmp.relations.ranks.split_updates import SplitUpdates
from tests.align.craft import Recorded
from tests.align.rank_craft import numbers, rank_of

GRADIENT = numbers(3, 4)
TRAINED = [("Torch.linear.0.forward", [GRADIENT], [GRADIENT * 2]), ("Torch.linear.0.backward", [], [GRADIENT])]
FIRST, SECOND, THIRD = (
    np.abs(numbers(*shape, seed=at)) + 0.5 + 3 * at for at, shape in enumerate([(3, 4), (6,), (2, 2)])
)
ALL = [FIRST, SECOND, THIRD]
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


def test_the_order_in_which_more_elements_are_found(tmp_path):
    """Two small parameters stand in the order of the golden, a large one and a small one in the reverse order."""
    large = numbers(5, 4, seed=40) + 30
    known = [SECOND, THIRD, large]
    assert places(tmp_path, flat(large, SECOND, THIRD), known) == {2: 0, 1: 26}


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


def test_some_operators_of_an_update(tmp_path):
    assert sorted(chained(tmp_path, missing=["mul.1", "add.0", "abs.2"])) == ["abs.2", "add.0", "mul.1"]


def test_a_norm_of_a_part_has_no_partner(tmp_path):
    def norm(at, gradient):
        return [(f"Torch.norm.{at}.forward", [gradient], [np.float32(3.3 + at)])]

    assert sorted(chained(tmp_path, norm, norm)) == sorted(NAMES)


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
