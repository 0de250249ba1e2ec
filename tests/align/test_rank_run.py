"""Tensors and operators of ranks: what is known of their contents, and how they are lined up with the golden's."""

from __future__ import annotations

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
from npucmp.align.row_order import row_axes
from npucmp.model import Statistics
from npucmp.model.relation import SUM, WHOLE, Placement
from tests.align.rank_craft import held, numbers, rank_of

SHARD = Placement("shard", 0)


def test_derived_values_are_kept_until_there_are_too_many(tmp_path, monkeypatch):
    one, other = held(tmp_path, numbers(16, 8), numbers(16, 8, seed=1))
    ordered, marks = one.ordered, one.vector_marks(0)
    assert ordered.tolist() == sorted(one.array.reshape(-1).tolist())
    assert one.ordered is ordered and one.vector_marks(0) is marks and one.vector_marks(1) is not marks
    monkeypatch.setattr(rank_run, "HELD", 1)
    assert other.ordered is other.ordered and one.ordered is not ordered


GRADIENT, NORM = numbers(3, 4), np.float32(1.7)
TRAINED = [("Torch.linear.0.forward", [GRADIENT], [GRADIENT * 2]), ("Torch.linear.0.backward", [], [GRADIENT])]


@pytest.mark.parametrize(
    "collective, of_rank, then, hands_on",
    [
        ("all_reduce", "sum", NORM, True),
        ("reduce", "sum", NORM, True),
        ("all_gather", "sum", NORM, False),  # no sum over ranks
        ("broadcast", "sum", NORM, False),
        ("all_reduce", "abs", NORM, True),  # its output is the number; what it reads is none
        ("all_reduce", "sum", np.float32(0.6), False),  # of another number
        ("abs", "sum", NORM, False),
    ],
)
def test_a_number_that_a_sum_over_ranks_reads(tmp_path, collective, of_rank, then, hands_on):
    calls = [*TRAINED, (f"Torch.{of_rank}.0.forward", [GRADIENT], [NORM])]
    run = rank_of(tmp_path, [*calls, (f"Distributed.{collective}.0.forward", [then], [then * 2])])
    norm = run.operators[2]
    assert run.is_update(norm) and not run.is_update(run.operators[0])
    assert run.feeds_reduction(norm.outputs[0]) is hands_on
    assert run.feeds_reduction(norm.inputs[0]) is (hands_on and of_rank == "sum")


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_number_without_a_content_goes_before_a_sum_of_one_number(tmp_path, collective, place):
    """One occurs everywhere, so that its content proves nothing."""
    one = np.float32(1.0)
    update, reduction = ("Torch.max.0.forward", [GRADIENT], [one]), (f"Distributed.{collective}.0.forward", [one], [])
    run = rank_of(tmp_path, [*TRAINED, *([update, reduction] if place == "before" else [reduction, update])])
    number = run.by_name["Torch.max.0.forward"].outputs[0]
    assert number.content is None
    assert run.feeds_reduction(number) is (collective == "all_reduce" and place == "before")


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
    search = SimpleNamespace(part_errors={}, values=True, part=lambda name, op, slot: op.inputs[0])
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
        ("Torch.sin.2.forward", [x, empty, np.zeros((0, 4), np.float32)], [x]),
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
    assert not run.feeds_collective(run.operators[0].inputs[0])
