"""Tensors and operators of ranks: what is known of their contents, and how they are lined up with the golden's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from npucmp.align import placement_choice, rank_run
from npucmp.align.lane_match import share_of
from npucmp.align.part_errors import odd_rank, part_errors, rank_beyond
from npucmp.align.placement import Fit, fit_figures
from npucmp.align.placement_choice import Decision
from npucmp.align.rank_mesh import Mesh
from npucmp.align.rank_partners import RankPartners
from npucmp.align.rank_run import Values
from npucmp.align.row_order import row_axes
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Statistics
from npucmp.model.relation import SUM, WHOLE, Placement
from tests.align.craft import Recorded
from tests.align.rank_craft import held, numbers, rank_of

SHARD = Placement("shard", 0)


def test_derived_values_are_kept_until_there_are_too_many(tmp_path, monkeypatch):
    one, other = held(tmp_path, numbers(16, 8), numbers(16, 8, seed=1))
    ordered, marks = one.ordered, one.vector_marks(0)
    assert ordered.tolist() == sorted(one.array.reshape(-1).tolist())
    assert one.ordered is ordered and one.vector_marks(0) is marks and one.vector_marks(1) is not marks
    monkeypatch.setattr(rank_run, "HELD", 1)
    assert other.ordered is other.ordered and one.ordered is not ordered


GRADIENT = numbers(3, 4)
TRAINED = [("Torch.linear.0.forward", [GRADIENT], [GRADIENT * 2]), ("Torch.linear.0.backward", [], [GRADIENT])]


@pytest.mark.parametrize(
    "own, whole, share",
    [
        ([0.3, 1.7], [0.3, 1.7], 1.0),
        ([0.3, 1.7], [0.3, 9.0, 4.0, 1.7], 1.0),
        ([0.3, 2.7], [0.3, 9.0, 4.0, 1.7], 0.5),
        ([0.3, 1.7, 4.0], [0.3, 1.7], None),
        ([0.3], [0.3, 1.7], None),  # one number is in many tensors
        ([0.3, 1.7], [0.3], None),
    ],
)
def test_the_share_of_a_tensor_that_another_one_has(tmp_path, own, whole, share):
    one, other = held(tmp_path, np.float32(own), np.float32(whole))
    assert share_of(one, other) == (2 / 3 if len(own) == 3 else share)


@pytest.mark.parametrize("other", [[1, 2], [1.0, 2.0]])
def test_integers_are_no_part(tmp_path, other):
    one, golden = held(tmp_path, np.array([1, 2]), np.array(other))
    assert share_of(one, golden) is None


@pytest.mark.parametrize(
    "sizes, rows, whole, axes",
    [
        ((2, 1), [4, 4], 8, [(0,)]),
        ((2, 1), [3, 5], 8, [(0,)]),
        ((2, 1), [8, 8], 8, [(1,)]),  # copies: along the axis of micro batches
        ((2, 1), [8, 7], 8, []),
        ((2, 2), [4, 4, 4, 4], 8, [(0,), (1,)]),
        ((2, 2), [2, 2, 2, 2], 8, [(0, 1)]),
        ((2, 2), [3, 5, 5, 3], 8, [(0,), (1,)]),
        ((2, 2), [3, 5, 3, 5], 8, [(0,)]),
        ((1, 1), [8], 8, [(1,)]),
    ],
)
def test_axes_along_which_rows_stand_side_by_side(sizes, rows, whole, axes):
    places = [(at % sizes[0], at // sizes[0]) for at in range(len(rows))]
    mesh = Mesh({at: SimpleNamespace(rank=rank) for rank, at in enumerate(places)}, sizes, tuple(range(len(rows))))
    assert row_axes(mesh, lambda op: SimpleNamespace(shape=(rows[op.rank], 3)), whole) == axes


def errors_of(folder, parts, golden, placement, scale=1.0, **more):
    ranks = [
        rank_of(folder / f"{rank}", [("Torch.add.0.forward", [part], [])], rank) for rank, part in enumerate(parts)
    ]
    whole = rank_of(folder / "golden", [("Torch.add.0.forward", [golden], [])]).operators[0].inputs[0]
    mesh = Mesh({(at,): run.operators[0] for at, run in enumerate(ranks)}, (len(parts),), tuple(range(len(parts))))
    search = SimpleNamespace(part_errors={}, values=True, parts_of=lambda one: lambda op: op.inputs[0])
    decision = Decision("differs", Fit(0.5, (placement,), scale), **more)
    found = part_errors(search, mesh, whole, decision)
    assert part_errors(search, mesh, whole, decision) is found  # kept
    return {rank: pytest.approx(error) for rank, error in found.items()}


ONES = np.ones((2, 2), np.float32)


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(
    "parts, golden, placement, scale, errors",
    [
        ([[0, 0], [3, 4]], [0, 0, 0, 0], SHARD, 1.0, {0: 0.0, 1: 5.0}),  # absolute
        ([[0, 0], [3, 4]], [0, 0, 0, 0], SHARD, 2.0, {0: 0.0, 1: 2.5}),
        ([[0, 0], [3, 4]], [1, 0, 3, 4], SHARD, 1.0, {0: 1.0, 1: 0.0}),
        ([[2, 4], [6, 11]], [1, 2, 3, 4], SHARD, 2.0, {0: 0.0, 1: 0.3}),
        ([[3, 4], [3, 8]], [3, 4], WHOLE, 1.0, {0: 0.0, 1: 0.8}),
        ([[3, 4], [3, 8]], [6, 12], SUM, 1.0, {}),
    ],
)
def test_the_error_of_the_part_of_each_rank(tmp_path, monkeypatch, in_memory, parts, golden, placement, scale, errors):
    monkeypatch.setattr(rank_run, "WHOLE", 1 << 20 if in_memory else 1)
    assert errors_of(tmp_path, np.float32(parts), np.float32(golden), placement, scale) == errors


def test_rows_of_another_number_have_no_errors(tmp_path):
    assert errors_of(tmp_path, [ONES, ONES], np.ones((4, 2), np.float32), SHARD, rows=2) == {}


@pytest.mark.parametrize("placement, errors", [(WHOLE, {0: 0.0, 1: 1.0}), (SHARD, {})])
def test_copies_alone_have_errors_by_statistics(tmp_path, placement, errors):
    golden = Statistics(2.0, -1.0, 0.5, 3.0)
    found = errors_of(tmp_path, [golden, Statistics(4.0, -2.0, 1.0, 6.0)], golden, placement)
    assert found == errors


@pytest.mark.parametrize(
    "parts, placement, error",
    [
        ([Statistics(2.0, -1.0, 0.5, 3.0), []], SHARD, 0.0),  # a rank without elements
        ([Statistics(3.0, -1.0, 0.5, 3.0), []], SHARD, 0.5),
        ([[]], WHOLE, None),
        ([[], []], SHARD, None),
        ([Statistics(2.0, -0.5, 0.0, 1.8), Statistics(1.0, -1.0, 1.0, 2.4)], SHARD, 0.0),
        ([Statistics(2.0, -1.0, 0.5, 3.0), Statistics(2.0, -1.0, 1.25, 3.0)], WHOLE, 0.5),  # the worst copy
    ],
)
def test_statistics_of_parts_beside_those_of_the_golden(tmp_path, parts, placement, error):
    """A gap is one of the golden's largest value, or of its norm over the root of four elements for a mean."""
    parts = [one if isinstance(one, Statistics) else np.zeros(0, np.float32) for one in parts]
    runs = [rank_of(tmp_path / f"{at}", [("Torch.add.0.forward", [one], [])], at) for at, one in enumerate(parts)]
    mesh = Mesh({(at,): run.operators[0] for at, run in enumerate(runs)}, (len(parts),), tuple(range(len(parts))))
    (golden,) = held(tmp_path / "golden", Statistics(2.0, -1.0, 0.5, 3.0))
    found = fit_figures(mesh, lambda op: op.inputs[0], golden, (placement,))
    assert (None if found is None else found.error) == (error if error is None else pytest.approx(error))


@pytest.mark.parametrize(
    "errors, known, linked, reason",
    [
        ([1e-6, 0.5], [], WHOLE, "agreement"),  # no other agrees
        ([1e-6, 0.5], [WHOLE], None, "agreement"),
        ([1e-6, 1e-5], [WHOLE], WHOLE, "other layers"),
        ([1e-6, 1e-5], [SHARD], WHOLE, "flow"),
        ([1e-6, 1e-5], [SHARD], SHARD, "agreement"),
        ([1e-6, 1e-3], [WHOLE], None, "other layers"),
        ([1e-6, 1.1e-3], [WHOLE], None, "agreement"),
    ],
)
def test_the_reason_for_a_placement_of_several_that_agree(errors, known, linked, reason):
    best, other = (Fit(error, (one,)) for error, one in zip(errors, (WHOLE, SHARD)))
    linked = None if linked is None else (linked,)
    assert placement_choice._reason(best, [(one,) for one in known], linked, [best, other], 1e-3) == reason


@pytest.mark.parametrize(
    "errors, odd",
    [
        ({0: 0.0, 1: 1e-6}, 1),
        ({0: 1.0, 1: 8.0}, None),  # no more than eight times
        ({0: 1.0, 1: 8.1, 2: 0.5}, 1),
        ({0: 9.0, 1: 1.0, 2: 2.0}, None),
        ({0: 0.0, 1: 0.0}, None),
        ({0: 5.0}, None),
        ({}, None),
    ],
)
def test_the_rank_whose_part_errs_far_more(errors, odd):
    assert odd_rank(errors) == odd


def test_numbers_of_another_type_leave_modules_partners(tmp_path):
    """The rank reads the places as floats, the golden as integers that an operator wrote."""
    x, y, places = numbers(4, 6), numbers(4, 6, seed=1), np.array([3, 1, 0, 2])
    golden = [("Torch.argsort.0.forward", [x[:, 0]], [places]), ("Module.mix.0.forward", [x, y, places], [x + y])]
    rank = [("Module.mix.0.forward", [x, y, places.astype(np.float32)], [x + y])]
    ranks = {number: rank_of(tmp_path / f"{number}", rank, number) for number in range(2)}
    found = RankPartners(ranks, rank_of(tmp_path / "golden", golden)).found
    assert {rank for rank, _ in found["Module.mix.0.forward"]} == {0, 1}


@pytest.mark.parametrize(
    "parts, golden, placement, scale, beyond",
    [
        ([(2.0, -1.0, 3.0), (1.0, -2.0, 4.0)], (2.0, -2.0, 5.0), SHARD, 1.0, None),
        ([(2.0, -1.0, 3.0), (2.1, -2.0, 4.0)], (2.0, -2.0, 5.0), SHARD, 1.0, 1),  # its largest value
        ([(2.0, -2.1, 3.0), (1.0, -2.0, 4.0)], (2.0, -2.0, 5.0), SHARD, 1.0, 0),  # its smallest value
        ([(2.0, -1.0, 3.0), (1.0, -2.0, 5.1)], (2.0, -2.0, 5.0), SHARD, 1.0, 1),  # its norm
        ([(2.003, -2.003, 5.003), (1.0, -2.0, 4.0)], (2.0, -2.0, 5.0), SHARD, 1.0, None),  # rounding
        ([(2.1, -1.0, 3.0), (2.1, -2.0, 4.0)], (2.0, -2.0, 5.0), SHARD, 1.0, None),  # both
        ([(4.0, -2.0, 6.0), (2.0, -4.0, 8.0)], (2.0, -2.0, 5.0), SHARD, 2.0, None),
        ([(4.0, -2.0, 6.0), (2.0, -4.2, 8.0)], (2.0, -2.0, 5.0), SHARD, 2.0, 1),
        ([(2.0, -1.0, 3.0), (2.1, -2.0, 4.0)], (2.0, -2.0, 5.0), WHOLE, 1.0, None),
        ([(2.0, -1.0, 3.0), (2.1, -2.0, 4.0)], (2.0, -2.0, 5.0), SUM, 1.0, None),
        ([(2.0, -1.0, 3.0), (1.0, -2.0, 4.0)], (2.0, -2.0, None), SHARD, 1.0, None),
        ([None, (2.1, -2.0, 4.0)], (2.0, -2.0, 5.0), SHARD, 1.0, 1),
        ([(2.1, -1.0, 3.0), (1.0, -2.0, 4.0)], None, SHARD, 1.0, None),
    ],
)
def test_the_rank_whose_statistics_are_no_part_of_the_whole(tmp_path, parts, golden, placement, scale, beyond):
    def figures(one):
        return Statistics(None, None, None, None) if one is None else Statistics(one[0], one[1], 0.0, one[2])

    ranks = [
        rank_of(tmp_path / f"{at}", [("Torch.add.0.forward", [figures(one)], [])], at) for at, one in enumerate(parts)
    ]
    (whole,) = held(tmp_path / "golden", figures(golden))
    mesh = Mesh({(at,): run.operators[0] for at, run in enumerate(ranks)}, (len(parts),), tuple(range(len(parts))))
    search = SimpleNamespace(part=lambda name, op, slot: op.inputs[0])
    assert rank_beyond(search, mesh, whole, Decision("differs", Fit(0.5, (placement,), scale))) == beyond
    assert rank_beyond(search, mesh, whole, Decision("shape")) is None


@pytest.mark.parametrize(
    "values, is_known",
    [
        ([0.3, 1.7], True),
        ([1.7], True),
        ([1.5], False),  # simple numbers are everywhere
        ([0.0], False),
        ([np.nan], False),
        ([2.3, 2.3], False),
        ([], False),
        ([0.3, np.inf], True),
        ([0.3, np.nan, 1.7], True),
        ([np.nan, np.inf, -np.inf, 0.3], True),
        ([np.nan, np.nan], False),
        ([np.inf, np.inf], False),
        ([np.inf, -np.inf], False),
        (Statistics(2.3, 1.0, 0.5, 3.0), True),
        (Statistics(2.3, 2.3, 2.3, 4.6), False),
    ],
)
def test_contents_that_identify_a_tensor(tmp_path, values, is_known):
    values = values if isinstance(values, Statistics) else np.float32(values)
    one, other = held(tmp_path, values, values if isinstance(values, Statistics) else values[::-1])
    assert (one.content is not None) is is_known
    assert one.content == other.content  # in any order


def test_contents_of_tensors_with_nan(tmp_path):
    """As many NaN and infinities, and equal other values."""
    first, *others = held(tmp_path, *np.float32([
        [np.nan, 0.3, 1.7, 2.0], [np.nan, 0.3, 1.7, 2.1], [np.nan, np.nan, 1.7, 2.0], [np.inf, 0.3, 1.7, 2.0],
        [-np.inf, 0.3, 1.7, 2.0],
    ]))  # fmt: skip
    contents = [one.content for one in (first, *others)]
    assert len({*contents}) == 5 and None not in contents
    run = rank_of(
        tmp_path / "run", [("Torch.log.0.forward", [], [first.array]), ("Torch.abs.0.forward", [first.array], [])]
    )
    assert run.origin(run.operators[1].inputs[0]).operator is run.operators[0]


def test_contents_of_tensors_that_are_read_block_by_block(tmp_path, monkeypatch):
    x, y = numbers(4, 6), numbers(4, 6, seed=1)
    monkeypatch.setattr(rank_run, "WHOLE", 8)
    one, copy, other, constant = held(tmp_path, x, x[::-1].copy(), y, np.ones((4, 6), np.float32))
    assert one.array is None and one.content is not None
    assert one.content == copy.content != other.content
    monkeypatch.undo()
    (held_whole,) = held(tmp_path / "whole", x)
    assert held_whole.array is not None and held_whole.content == one.content
    assert constant.content is None


@pytest.mark.parametrize(
    "values, norm",
    [
        ([3.0, -4.0], 5.0),
        ([], 0.0),
        (Statistics(2.0, -1.0, 0.5, 3.0), 3.0),
        (Statistics(2.0, -1.0, 0.5, None), None),  # of four elements
        (Statistics(None, -1.0, 0.5, 3.0), None),
    ],
)
def test_norms_of_tensors(tmp_path, values, norm):
    (one,) = held(tmp_path, values if isinstance(values, Statistics) else np.float32(values))
    assert one.norm == norm


def test_the_latest_operator_that_wrote_a_tensor_before(tmp_path):
    x, y, empty = numbers(4, 6), numbers(4, 6, seed=1), np.zeros((0, 3), np.float32)
    calls = [
        ("Torch.abs.0.forward", [y], [x]),
        ("Torch.sin.0.forward", [x, y, empty], [x]),
        ("Distributed.broadcast.0.forward", [x], [y]),
        ("Torch.sin.1.forward", [x, y], [empty]),
        ("Torch.sin.2.forward", [x, empty, np.zeros((0, 4), np.float32)], [x, np.zeros((0, 4), np.float32)]),
    ]
    run = rank_of(tmp_path, calls)
    found = [[run.origin(one) for one in operator.inputs] for operator in run.operators]
    assert [[one.how for one in own] for own in found] == [
        ["none"], ["operator", "none", "none"], ["operator"], ["operator", "collective"],
        ["operator", "operator", "none"],
    ]  # fmt: skip
    names = [own[0].operator.name if own[0].operator else "" for own in found]
    assert names == ["", "Torch.abs.0.forward", *["Torch.sin.0.forward"] * 3]
    assert run.feeds_collective(run.operators[0].outputs[0]) and not run.feeds_collective(run.operators[3].inputs[0])
    for operator in (run.operators[0], run.operators[2]):  # what a collective reads itself feeds no later one
        assert not run.feeds_collective(operator.inputs[0])


# Micro batches and updates


def shape_of(folder, *calls):
    """The numbers of the operators of each micro batch, and of the update: a call is a name and what it reads."""
    names = [f"{name if '.' in name else 'Torch.' + name}.{at}" for at, (name, *_) in enumerate(calls)]
    run = rank_of(folder, [(f"{name}.backward" if name.startswith("Back") else f"{name}.forward", [*reads], [])
                           for name, (_, *reads) in zip(names, calls)])  # fmt: skip
    places = {one.name: at for at, one in enumerate(run.operators)}
    return [[places[one.name] for one in some] for some in run.micro_batches], [places[one.name] for one in run.update]


TABLE, OTHER_TABLE, IDS = numbers(6, 4, seed=5), numbers(6, 4, seed=6), np.array([2, 1])
LOOK_UP, OTHER_LOOK_UP = ("embedding", IDS, TABLE), ("embedding", IDS, OTHER_TABLE)
LINEAR, OTHER_LINEAR = (("linear", numbers(2, 4), numbers(4, 4, seed=at)) for at in (7, 8))
SINE, BACK, REDUCE, RECEIVE, SEND = ("sin",), ("Back.sin",), ("Distributed.all_reduce",), ("Distributed.recv",), (
    "Distributed.send",)  # fmt: skip


@pytest.mark.parametrize(
    "calls, batches, update",
    [
        ([SINE, SINE], [[0, 1]], []),
        ([SINE, BACK], [[0]], []),
        ([SINE, BACK, SINE], [[0]], [2]),  # an update
        ([SINE, BACK, SINE, REDUCE], [[0]], [2]),
        ([SINE, BACK, SINE, BACK], [[0], [2]], []),
        ([SINE, BACK, SINE, SINE, BACK, SINE], [[0], [2, 3]], [5]),
        ([SINE, BACK, BACK, REDUCE, SINE, BACK, REDUCE], [[0], [4]], []),
        ([BACK, SINE], [[1]], []),  # a backward pass of nothing
        ([RECEIVE, SINE, SEND, RECEIVE, SINE, SINE], [[1], [4, 5]], []),
        ([SINE, SEND, SINE], [[0, 2]], []),
        ([SINE, REDUCE, SINE], [[0, 2]], []),
        ([SINE, ("Distributed.all_gather",), SINE], [[0, 2]], []),  # it receives, but of no earlier stage
        ([RECEIVE, SINE, RECEIVE, REDUCE, SINE, BACK, BACK], [[1], [4]], []),
        ([RECEIVE, SINE, BACK, RECEIVE, SINE, BACK, SINE], [[1], [4]], [6]),
        ([LOOK_UP, SINE, LOOK_UP, SINE], [[0, 1], [2, 3]], []),  # the table is looked up again
        ([SINE, LOOK_UP, SINE, LOOK_UP, SINE], [[0, 1], [2, 3, 4]], []),  # with what runs before
        ([LOOK_UP, SINE, OTHER_LOOK_UP, SINE], [[0, 1, 2, 3]], []),
        ([LOOK_UP, OTHER_LOOK_UP, SINE, LOOK_UP, OTHER_LOOK_UP], [[0, 1, 2], [3, 4]], []),
        ([LOOK_UP, LOOK_UP, LOOK_UP], [[0], [1], [2]], []),
        ([LOOK_UP, SINE, BACK, LOOK_UP, SINE, BACK], [[0, 1], [3, 4]], []),
        ([LOOK_UP, SINE, ("embedding", IDS, TABLE, IDS), SINE], [[0, 1, 2, 3]], []),
        ([LOOK_UP, SINE, ("Module.embedding", IDS, TABLE), SINE], [[0, 1, 2, 3]], []),
        ([("embedding", IDS, np.ones((6, 4))), SINE, ("embedding", IDS, np.ones((6, 4)))], [[0, 1, 2]], []),
        ([("embedding", IDS), SINE, ("embedding", IDS)], [[0, 1, 2]], []),
        ([SINE, SINE, LOOK_UP, SINE, SINE, LOOK_UP], [[0, 1, 2], [3, 4, 5]], []),
        ([SINE, LOOK_UP, LINEAR, ("cos",), SINE, LOOK_UP, LINEAR], [[0, 1, 2, 3], [4, 5, 6]], []),
        ([SINE, LOOK_UP, LINEAR, ("cos",), LOOK_UP, LINEAR], [[0, 1, 2, 3], [4, 5]], []),
        ([LOOK_UP, LINEAR, LOOK_UP, OTHER_LINEAR], [[0, 1, 2, 3]], []),  # an encoder and a decoder
        ([LOOK_UP, LINEAR, LOOK_UP, OTHER_LINEAR, BACK, LOOK_UP, LINEAR, LOOK_UP, OTHER_LINEAR, BACK],
         [[0, 1, 2, 3], [5, 6, 7, 8]], []),
    ],
)  # fmt: skip
def test_micro_batches_and_updates(tmp_path, calls, batches, update):
    assert shape_of(tmp_path, *calls) == (batches, update)


@pytest.mark.parametrize(
    "line, function, count", [(40, "step", 2), (72, "step", 2), (40, "backward", 1), (72, "backward", 1)]
)
def test_a_network_is_called_at_two_lines(tmp_path, line, function, count):
    """A stage receives tokens of a prompt, then of a step of decoding, or computes a layer again."""

    def stack(line, function):
        return ("File m.py, line 7, in norm, \n x.pow(2)", f"File m.py, line {line}, in {function}, \n x = f({line})")

    names = ["Distributed.recv.0", "Torch.sin.0", "Torch.linear.0", "Distributed.recv.1", "Torch.sin.1"]
    run = rank_of(tmp_path, [(f"{name}.forward", [GRADIENT, GRADIENT], []) for name in names]).run
    stacks = [(), stack(40, "step"), stack(41, "step"), (), stack(line, function)]
    run = replace(run, operators=tuple(op._replace(stack=one) for op, one in zip(run.operators, stacks)))
    assert len(rank_run.RankRun(run, 0, Values(ANYWHERE)).micro_batches) == count


def test_records_of_one_call(tmp_path):
    calls = [("Torch.sin.0.forward", [], []), ("Torch.sin.0.backward", [], []), ("Torch.sin.1.backward", [], []),
             ("Torch.sin.2.forward", [], [])]  # fmt: skip
    run = rank_of(tmp_path, calls)
    first, back, *_, last = run.operators
    assert run.of_call("Torch.sin.0") == [first, back] and run.of_call("Torch.cos.0") == []
    assert run.backward_of(first) == [back] and run.backward_of(last) == []
    unnamed = first.op._replace(call="")
    one = rank_run.RankOperator(unnamed, 0, first.values)
    assert run.backward_of(one) == []


# Operators


@pytest.mark.parametrize(
    "name, inputs, key, parameters",
    [
        ("Torch.linear.3.forward", [GRADIENT, GRADIENT, GRADIENT], "Torch.linear.forward", [1, 2]),
        ("Torch.linear.3.forward", [GRADIENT, GRADIENT], "Torch.linear.forward", [1]),
        ("Torch.addmm.3.forward", [GRADIENT] * 3, "Torch.addmm.forward", [0, 2]),
        ("Tensor.addmm_.3.forward", [GRADIENT] * 3, "Tensor.addmm_.forward", [2]),  # it writes into a gradient
        ("Torch.sin.3.forward", [GRADIENT], "Torch.sin.forward", []),
        ("Module.mix.3.forward", [GRADIENT], "Module.mix.forward", []),
    ],
)
def test_keys_and_parameters(tmp_path, name, inputs, key, parameters):
    (one,) = rank_of(tmp_path, [(name, inputs, [GRADIENT])]).operators
    assert (one.key, one.parameter_places) == (key, parameters)
    assert one.weights == [one.inputs[at] for at in parameters]
    assert one.tensors == [*one.inputs, *one.outputs] and len(one.outputs) == 1


def test_whole_numbers_are_no_weights(tmp_path):
    (one,) = rank_of(tmp_path, [("Torch.linear.0.forward", [GRADIENT, IDS], [])]).operators
    assert one.parameter_places == [1] and one.weights == []


def test_numbers_in_a_path_are_no_part_of_a_key(tmp_path):
    (one,) = rank_of(tmp_path, [("Module.mix.0.forward", [GRADIENT], [])]).operators
    kind = "layers.12.mlp.v2.forward"
    module = rank_run.RankOperator(one.op._replace(kind=kind, path="layers.12.mlp.v2"), 0, one.values)
    function = rank_run.RankOperator(one.op._replace(kind=kind, path=""), 0, one.values)
    assert (module.key, function.key) == ("layers.#.mlp.v2.forward", kind)


def test_parameters_of_a_module_have_slots_of_their_own(tmp_path):
    (one,) = rank_of(tmp_path, [("Module.mix.0.forward", [GRADIENT, GRADIENT], [])]).operators
    tensors = (one.op.tensors[0], one.op.tensors[1]._replace(slot="param:weight"))
    found = rank_run.RankOperator(one.op._replace(tensors=tensors), 0, one.values)
    assert found.parameter_places == [1] and rank_run.tensor_in(found, "param:weight") is found.inputs[1]
    assert rank_run.tensor_in(found, "param:bias") is None


@pytest.mark.parametrize(
    "slots, is_record", [(["grad:weight"], True), (["output:0"], False), (["input:0", "grad:0"], False), ([], False)]
)
def test_a_record_of_gradients_reads_nothing(tmp_path, slots, is_record):
    (one,) = rank_of(tmp_path, [("Module.mix.0.forward", [GRADIENT] * len(slots), [])]).operators
    tensors = tuple(each._replace(slot=slot) for each, slot in zip(one.op.tensors, slots))
    found = rank_run.RankOperator(one.op._replace(tensors=tensors), 0, one.values)
    assert found.is_gradient_record is is_record and found.is_backward is is_record


def test_arguments_and_groups(tmp_path):
    calls = [
        ("Torch.sin.0.forward", [], [], {"input:dim": 1, "input:p": "x"}),
        ("Distributed.all_reduce.0.forward", [], [], (0, 2)),
    ]
    one, other = rank_of(tmp_path, calls).operators
    assert one.arguments == (("input:dim", "1"), ("input:p", "'x'")) and one.groups == []
    assert other.arguments == () and other.groups == [(0, 2)] and other.is_collective and not one.is_collective


# Values


@pytest.mark.parametrize("dtype, kind", [("float16", "float32"), ("float32", "float32"), ("float64", "float64"),
                                         ("int64", "float64"), ("bool", "float64")])  # fmt: skip
def test_values_are_floats(tmp_path, dtype, kind):
    (one,) = held(tmp_path, np.array([[0, 1], [1, 0]]).astype(dtype))
    assert one.array.dtype == kind and one.array.tolist() == [[0, 1], [1, 0]]
    assert one.is_float is dtype.startswith("float") and one.array is one.array


def test_complex_numbers_and_large_tensors_have_no_array(tmp_path, monkeypatch):
    one, large, fits = held(tmp_path, np.array([1j]), numbers(9), numbers(8))
    monkeypatch.setattr(rank_run, "WHOLE", 8)
    assert one.array is None and large.array is None and fits.array is not None


def test_values_in_blocks(tmp_path):
    x = numbers(4, 6)
    (one,) = held(tmp_path, x)
    found = [*one.blocks(6)]
    assert len(found) == 4 and np.array_equal(np.concatenate(found), x.reshape(-1))
    assert len([*one.blocks()]) == 1


def test_reasons_why_files_cannot_be_read(tmp_path):
    one, other, gone, reshaped = held(tmp_path, numbers(3), numbers(3), numbers(3), numbers(3))
    values = Values(ANYWHERE)
    with open(gone.ref.file, "wb") as file:
        file.write(b"no array")
    assert values.problem(one.ref) == "" and values.payload(one.ref).shape == (3,)
    assert values.problem(gone.ref) and values.payload(gone.ref) is None and values.array(gone.ref) is None
    assert values.payload(reshaped.ref._replace(shape=(4,))) is None  # not the shape of the record
    assert values.problem(other.ref._replace(problem="damaged")) == "damaged"
    assert values.payload(other.ref._replace(problem="damaged")) is None
    assert values.payload(other.ref._replace(file="")) is None and values.problem(other.ref._replace(file="")) == ""
    assert values.payload(gone.ref._replace(payload=values.payload(one.ref))) is values.payload(one.ref)


def test_the_most_recently_used_values_stay(tmp_path, monkeypatch):
    x, y, z = held(tmp_path, numbers(4), numbers(4, seed=1), numbers(4, seed=2))
    monkeypatch.setattr(rank_run, "HELD", 32)  # of two tensors
    first, second = x.array, y.array
    assert x.array is first and z.array is not None
    assert x.array is first and y.array is not second


def test_marks_of_rows_columns_and_runs(tmp_path):
    """Projections of every vector, of which equal ones are equal."""
    x = numbers(5, 9)
    x[3], x[:, 4] = x[1], x[:, 2]
    x[3, 4] = x[3, 2] = x[1, 4] = x[1, 2]
    matrix, flat, infinite = held(tmp_path, x, np.tile(numbers(10), 2), np.float32([[np.inf, 1.0], [2.0, 1.0]]))
    rows, columns, runs = matrix.vector_marks(0), matrix.vector_marks(1), flat.vector_marks(0)
    assert rows.shape == (5, 24) and columns.shape == (9, 24) and runs.shape == (13, 24)
    assert np.allclose(rows[3], rows[1]) and not np.allclose(rows[0], rows[1])
    assert np.allclose(columns[4], columns[2]) and not np.allclose(columns[0], columns[2])
    assert np.allclose(runs[0], runs[10]) and not np.allclose(runs[0], runs[1])
    marks = infinite.vector_marks(0)
    assert np.isfinite(marks).all() and not marks[0].any() and marks[1].any()


@pytest.mark.parametrize(
    "value, is_known", [(0.5, False), (2.0, False), (1 / 256, False), (1 / 512, True), (0.3, True)]
)
def test_simple_numbers_identify_no_tensor(tmp_path, value, is_known):
    one, figures = held(tmp_path, np.float32(value), Recorded(Statistics(value, value, value, value), ()))
    assert (one.content is not None) is is_known and (figures.content is not None) is is_known


def test_contents_by_statistics(tmp_path):
    """Equal sizes and figures."""

    def recorded(shape, *figures):
        return Recorded(Statistics(*figures), shape)

    one, same, size, norm, empty, unknown = held(
        tmp_path, recorded((4,), 2.0, 1.0, 1.5, 3.0), recorded((2, 2), 2.0, 1.0, 1.5, 3.0),
        recorded((5,), 2.0, 1.0, 1.5, 3.0), recorded((4,), 2.0, 1.0, 1.5, 3.5), recorded((0,), 2.0, 1.0, 1.5, 3.0),
        recorded((4,), None, 1.0, 1.5, 3.0),
    )  # fmt: skip
    assert one.content == same.content and len({one.content, size.content, norm.content}) == 3
    assert empty.content is None and unknown.content is None
    assert unknown.figures is None and one.figures == (2.0, 1.0, 1.5, 3.0)


def test_an_operator_in_no_order(tmp_path):
    """The number of one element is its own norm, if none was recorded."""
    (one,) = held(tmp_path, Recorded(Statistics(-3.0, -3.0, -3.0, None), ()))
    assert one.norm == -3.0


def test_a_sum_of_parts_has_no_rank_beyond(tmp_path):
    part, whole = Statistics(9.0, -1.0, 0.0, 3.0), Statistics(2.0, -2.0, 0.0, 5.0)
    parts = [rank_of(tmp_path / f"{at}", [("Torch.add.0.forward", [part], [])], at).operators[0] for at in (0, 1)]
    mesh = Mesh({(0, 0): parts[0], (1, 0): parts[1]}, (2, 2), (0, 1))
    search = SimpleNamespace(part=lambda name, op, slot: op.inputs[0])
    (golden,) = held(tmp_path / "golden", whole)
    assert rank_beyond(search, mesh, golden, Decision("differs", Fit(0.5, (SHARD, SUM)))) is None


@pytest.mark.parametrize("dtype, room", [("float32", 2e-3), ("float16", 0.03), ("bfloat16", 0.03)])
@pytest.mark.parametrize("times, is_beyond", [(0.9, False), (1.1, True)])
def test_rounding_of_a_part_that_is_no_part(tmp_path, dtype, room, times, is_beyond):
    part, whole = Statistics(2.0 + 4.0 * times * room, -4.0, 0.0, 5.0), Statistics(2.0, -4.0, 0.0, 5.0)
    (one,) = rank_of(tmp_path / "rank", [("Torch.add.0.forward", [part], [])], 3).operators
    (golden,) = rank_of(tmp_path / "golden", [("Torch.add.0.forward", [whole], [])]).operators
    ref = golden.op.tensors[0]._replace(dtype=dtype)
    held_by = rank_run.RankOperator(golden.op._replace(tensors=(ref,)), 0, golden.values).inputs[0]
    search = SimpleNamespace(part=lambda name, op, slot: op.inputs[0])
    found = rank_beyond(search, Mesh({(0,): one}, (1,), (3,)), held_by, Decision("differs", Fit(0.5, (SHARD,))))
    assert found == (3 if is_beyond else None)
