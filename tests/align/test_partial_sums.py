"""Where a partial sum may stand: operators by what they compute, and the placements of what they read."""

from types import SimpleNamespace

import pytest

from npucmp.align.partial_sums import (
    hands_on,
    partial_axes,
    reduced_axes,
    split_axes,
    splits_rows,
    sums_of_gradient,
    sums_of_input,
    sums_of_output,
)
from npucmp.align.rank_mesh import Mesh
from npucmp.model import Operator
from npucmp.model.optypes import op_type_of
from npucmp.model.relation import MAX, MEAN, SUM, WHOLE, Placement

SHARD = Placement("shard", 0)
MESH = Mesh({}, (2, 4, 1), tuple(range(8)))


def operator(kind, phase="forward", path="", inputs=("input:0", "input:1"), **arguments):
    op = Operator(f"{kind}.0", kind, kind, phase, 0, (), arguments=arguments, path=path)
    tensors = [SimpleNamespace(slot=slot) for slot in inputs]
    return SimpleNamespace(op=op, type=op_type_of(op), is_backward=phase == "backward", inputs=tensors)


@pytest.mark.parametrize(
    "golden, slot, linked, others, axes",
    [
        (operator("add"), "input:0", [SUM, WHOLE], [[SUM, WHOLE]], {0}),
        (operator("add"), "input:0", [WHOLE, MEAN], [[WHOLE, MAX]], {1}),
        (operator("add"), "input:0", [SUM, SUM], [[SUM, WHOLE]], set()),
        (operator("add"), "input:0", [SUM, WHOLE], [[WHOLE, WHOLE]], set()),  # a whole addend would count twice
        (operator("add"), "input:0", [MEAN, WHOLE], [[WHOLE, WHOLE]], {0}),  # counts once in a mean
        (operator("add"), "input:0", [MEAN, WHOLE], [[SUM, WHOLE]], {0}),
        (operator("add"), "input:0", [MEAN, SUM], [[WHOLE, WHOLE]], set()),
        (operator("add"), "input:0", [MEAN, WHOLE], [[SHARD, WHOLE]], set()),
        (operator("add"), "input:0", [MEAN, WHOLE], [None], set()),
        (operator("add"), "input:0", [SUM, WHOLE], [], {0}),
        (operator("add", alpha=2), "input:0", [SUM, WHOLE], [], set()),
        (operator("add", out=0), "input:0", [SUM, WHOLE], [], {0}),
        (operator("add", name="x"), "input:0", [SUM, WHOLE], [], {0}),  # words are no addends
        (operator("add"), "input:0", [SHARD, WHOLE], [], set()),
        (operator("add"), "input:0", None, [], set()),
        (operator("add", "backward"), "input:0", [SUM, WHOLE], [[WHOLE, WHOLE]], {0}),
        (operator("masked_fill", value=0.0), "input:0", [SUM, WHOLE], [[WHOLE, WHOLE]], {0}),
        (operator("masked_fill", value=-1.0), "input:0", [SUM, WHOLE], [[WHOLE, WHOLE]], set()),
        (operator("div"), "input:0", [SUM, WHOLE], [[SUM, WHOLE]], {0}),
        (operator("div"), "input:1", [SUM, WHOLE], [[WHOLE, WHOLE]], set()),
        (operator("mul"), "input:0", [SUM, WHOLE], [[WHOLE, SUM]], {0}),
        (operator("mul"), "input:0", [SUM, WHOLE], [[SUM, WHOLE]], set()),
        (operator("relu"), "input:0", [SUM, WHOLE], [], set()),
        (operator("layer_norm"), "input:0", [SUM, WHOLE], [], set()),
        (operator("transpose"), "input:0", [SUM, WHOLE], [], {0}),
    ],
)
def test_an_input_may_be_a_partial_sum(golden, slot, linked, others, axes):
    known = {f"input:{number}": one for number, one in enumerate(others, 5)}
    assert sums_of_input(golden, SimpleNamespace(slot=slot), linked, known, False) == axes


def test_a_gradient_is_linear_in_those_that_arrive():
    one, linked = SimpleNamespace(slot="input:0"), [SUM, WHOLE]
    assert sums_of_input(operator("rsqrt", "backward"), one, linked, {}, True) == {0}
    assert sums_of_input(operator("rsqrt", "backward"), one, linked, {}, False) == set()
    assert sums_of_input(operator("rsqrt"), one, linked, {}, True) == set()


@pytest.mark.parametrize(
    "golden, size, inputs, axes",
    [
        (operator("linear"), 8, [[SHARD, WHOLE, WHOLE]], {0}),
        (operator("linear"), 8, [[SHARD, SUM, WHOLE]], {0, 1}),
        (operator("add"), 8, [[WHOLE, SUM, WHOLE], None], {1}),
        (operator("softmax"), 8, [[SHARD, SUM, WHOLE]], {0}),
        (operator("ones", inputs=()), 8, [], {0, 1}),
        (operator("Block", path="Module.block"), 8, [[SHARD, WHOLE, WHOLE]], set()),
        (operator("Block", path="Module.block"), 1, [[SHARD, WHOLE, WHOLE]], {0}),
        (operator("Linear", path="Module.fc"), 8, [[SHARD, WHOLE, WHOLE]], {0}),
    ],
)
def test_an_output_may_be_a_partial_sum(golden, size, inputs, axes):
    assert sums_of_output(golden, SimpleNamespace(size=size), inputs, MESH) == axes


@pytest.mark.parametrize(
    "own, others, arrived, axes",
    [
        (None, [], [], {0, 1}),
        ([WHOLE, WHOLE, WHOLE], [[SHARD, WHOLE, WHOLE]], [], {0}),
        ([WHOLE, WHOLE, WHOLE], [[WHOLE, SUM, WHOLE]], [], {1}),
        ([WHOLE, WHOLE, WHOLE], [], [[SUM, SHARD, WHOLE]], {0, 1}),
        ([SHARD, WHOLE, WHOLE], [[SHARD, WHOLE, WHOLE]], [[SUM, WHOLE, WHOLE]], set()),
        ([WHOLE, WHOLE, WHOLE], [None], [None], set()),
    ],
)
def test_the_gradient_of_what_ranks_hold_whole_may_be_a_partial_sum(own, others, arrived, axes):
    assert sums_of_gradient(own, others, arrived, MESH) == axes


ROWS, COLUMNS = Placement("shard", 0), Placement("shard", 1)


def test_axes_of_placements():
    placements = (ROWS, SUM, WHOLE, MAX, COLUMNS)
    assert partial_axes(placements) == {1, 3} and split_axes(placements) == {0, 4}
    assert partial_axes(None) == split_axes(None) == set()


@pytest.mark.parametrize(
    "placements, axes, splits",
    [((ROWS,), [0], True), ((ROWS,), [1], False), ((COLUMNS,), [0], False), ((SUM,), [0], False), (None, [0], False),
     ((WHOLE, ROWS), [0, 1], True)],
)  # fmt: skip
def test_ranks_with_rows_of_their_own(placements, axes, splits):
    assert splits_rows(placements, axes) is splits


@pytest.mark.parametrize("kind, is_handed_on", [("add", True), ("transpose", True), ("cat", True), ("cast", True),
                                                ("relu", False), ("layer_norm", False), ("max", False),
                                                ("linear", False)])  # fmt: skip
def test_operators_that_hand_on_a_partial_sum(kind, is_handed_on):
    assert hands_on(operator(kind)) is is_handed_on


def origin(*groups):
    return SimpleNamespace(operator=SimpleNamespace(groups=[*groups]))


@pytest.mark.parametrize(
    "origins, axes",
    [
        ([], set()),
        ([origin((0, 1))], {0}),
        ([origin((0, 2))], {1}),
        ([origin((0, 3))], {0, 1}),
        ([origin((0,))], set()),
        ([origin((2, 3)), origin((1, 3))], {0, 1}),
        ([origin((0, 1), (0, 2))], {0, 1}),
        ([origin((0, 8))], set()),  # a rank that is not in the mesh
        ([origin((0, 1)), origin()], {0, 1, 2}),  # no group is recorded
        ([SimpleNamespace(operator=None)], {0, 1, 2}),
    ],
)
def test_axes_over_which_collectives_communicated(origins, axes):
    cells = {(rank % 2, rank // 2, 0): SimpleNamespace(rank=rank) for rank in range(4)}
    assert reduced_axes(Mesh(cells, (2, 2, 1), (0, 1, 2, 3)), dict(enumerate(origins))) == axes
