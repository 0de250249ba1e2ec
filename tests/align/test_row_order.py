"""The order of rows that ranks hold in another order than the golden."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align import row_order
from npucmp.align.rank_mesh import Mesh
from npucmp.align.rank_run import HeldTensor
from npucmp.align.row_order import (
    RowOrder,
    find_order,
    has_rows,
    lengths_of,
    order_of_indices,
    ordered_placements,
    row_axes,
)
from npucmp.errors import SystemFailure
from npucmp.model import Payload, Statistics
from npucmp.model.relation import SUM, WHOLE, Placement
from tests.align.test_rank_run import numbers, rank_of

ROWS, SHARD = numbers(12, 5), Placement("shard", 0)


def one_tensor(folder, values):
    """A tensor that an operator of a rank reads."""
    folder.mkdir(parents=True, exist_ok=True)
    return rank_of(folder, [("Torch.index_select.0.forward", [values], [])]).operators[0].inputs[0]


class Parts:
    """A mesh of ranks, each of which holds one tensor; axes of tensors by coordinates (fastest axis first)."""

    def __init__(self, folder, sizes, *parts):
        self.cells, self.held = {}, {}
        folder.mkdir(parents=True, exist_ok=True)
        for rank, values in enumerate(parts):
            at, rest = [], rank
            for size in sizes:
                rest, own = divmod(rest, size)
                at.append(own)
            run = rank_of(folder / "ranks", [("Torch.index_select.0.forward", [values], [])], rank)
            self.cells[(*at, 0)] = run.operators[0]
            self.held[id(run.operators[0])] = run.operators[0].inputs[0]
        self.mesh = Mesh(self.cells, (*sizes, 1), tuple(range(len(parts))))

    def get(self, operator):
        return self.held[id(operator)]


@pytest.mark.parametrize("shapes, lengths", [([(3, 2), (4, 2)], ((0, 3), (1, 4))), ([(3,), ()], ()), ([(), ()], ())])
def test_lengths_by_rank(tmp_path, shapes, lengths):
    parts = Parts(tmp_path, (2,), *(numbers(*shape) for shape in shapes))
    assert lengths_of(parts.mesh, parts.get) == lengths


@pytest.mark.parametrize(
    "sizes, counts, rows, axes",
    [
        ((2,), [6, 6], 12, [(0,)]),
        ((2,), [6, 6], 6, [(1,)]),  # copies: the axis of micro batches stands for none
        ((2,), [6, 6], 11, []),
        ((2,), [5, 7], 12, [(0,)]),
        ((2, 2), [3, 9, 4, 8], 12, [(0,)]),
        ((2, 2), [3, 4, 9, 8], 12, [(1,)]),
        ((2, 2), [3, 3, 3, 3], 12, [(0, 1)]),
        ((2, 2), [6, 6, 6, 6], 12, [(0,), (1,)]),
        ((2, 2), [3, 9, 3, 8], 12, []),
    ],
)
def test_axes_along_which_rows_stand_side_by_side(tmp_path, sizes, counts, rows, axes):
    parts = Parts(tmp_path, sizes, *(numbers(count, 2) for count in counts))
    assert row_axes(parts.mesh, parts.get, rows) == axes


@pytest.mark.parametrize("step", [1, 5, 512])
def test_rows_are_found_by_their_values(tmp_path, monkeypatch, step):
    monkeypatch.setattr(row_order, "STEP", step)
    shuffled = np.random.default_rng(1).permutation(12)
    parts = Parts(tmp_path, (2,), ROWS[shuffled[:5]], ROWS[shuffled[5:]])
    found = find_order(parts.mesh, parts.get, one_tensor(tmp_path / "golden", ROWS), (0,))
    assert found.order == tuple(np.argsort(shuffled)) and (found.axes, found.lengths) == ((0,), ((0, 5), (1, 7)))
    assert found.placement == Placement("rows", 0, found.order) and not found.is_identity
    assert RowOrder((0,), (0, 1, 2), ()).is_identity


@pytest.mark.parametrize("axes, order", [((0,), [0, 1, 2, 3]), ((1,), [0, 2, 1, 3]), ((0, 1), None)])
def test_rows_of_a_mesh_stand_in_the_order_of_ranks(tmp_path, axes, order):
    """Ranks 0 and 1 have half of the rows each, ranks 2 and 3 the same; or ranks 0 and 2."""
    halves = [ROWS[:2], ROWS[2:4]] * 2 if axes != (1,) else [ROWS[[0, 2]]] * 2 + [ROWS[[1, 3]]] * 2
    golden = ROWS[:4]
    if axes == (0, 1):
        halves, golden, order = [ROWS[[at]] for at in (3, 1, 0, 2)], ROWS[:4], [2, 1, 3, 0]
    parts = Parts(tmp_path, (2, 2), *halves)
    found = find_order(parts.mesh, parts.get, one_tensor(tmp_path / "golden", golden), axes)
    assert list(found.order) == order


def test_the_nearest_row_that_is_free_is_taken(tmp_path):
    """The closest pairs come first: row 1 of the golden takes the row that row 0 is nearest to as well."""
    golden = np.array([[1.0, 0.0], [1.1, 0.0], [5.0, 0.0]], np.float32)
    parts = Parts(tmp_path, (2,), golden[1:2], golden[[2, 2]] + np.float32([[0.0, 0.0], [9.0, 0.0]]))
    found = find_order(parts.mesh, parts.get, one_tensor(tmp_path / "golden", golden), (0,))
    assert found.order == (2, 0, 1)


def test_equal_rows_stand_in_the_order_of_ranks(tmp_path):
    """A token that two experts get, with a rounding error in the rows of the ranks."""
    golden = ROWS[[0, 1, 0, 2, 0]]
    mine = golden[[4, 3, 2, 1, 0]] * np.float32([[1.001], [1], [1.0], [1], [0.999]])
    parts = Parts(tmp_path, (2,), mine[:2], mine[2:])
    found = find_order(parts.mesh, parts.get, one_tensor(tmp_path / "golden", golden), (0,))
    assert found.order == (0, 3, 2, 1, 4)


def test_rows_with_nan_are_found_by_their_position_among_the_rest(tmp_path):
    golden = ROWS.copy()
    golden[4, 2] = np.nan
    parts = Parts(tmp_path, (2,), golden[6:], golden[:6])
    found = find_order(parts.mesh, parts.get, one_tensor(tmp_path / "golden", golden), (0,))
    assert found.order == (6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("block", [1, 7, 30, 1 << 16])
def test_rows_are_read_in_blocks(tmp_path, monkeypatch, block):
    monkeypatch.setattr(row_order, "BLOCK", block)
    parts = Parts(tmp_path, (2,), ROWS[6:].reshape(6, 5), ROWS[:6])
    found = find_order(parts.mesh, parts.get, one_tensor(tmp_path / "golden", ROWS), (0,))
    assert found.order == (6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5)


def test_an_order_needs_values_of_one_width(tmp_path, monkeypatch):
    golden = one_tensor(tmp_path / "golden", ROWS)
    narrow = Parts(tmp_path / "a", (2,), ROWS[:6, :4], ROWS[6:])
    assert find_order(narrow.mesh, narrow.get, golden, (0,)) is None
    recorded = Parts(tmp_path / "b", (2,), Statistics(1.0, 0.0, 0.5, 2.0), Statistics(1.0, 0.0, 0.5, 2.0))
    figures = one_tensor(tmp_path / "c", Statistics(1.0, 0.0, 0.5, 2.0))
    assert find_order(recorded.mesh, recorded.get, figures, (0,)) is None
    values = Parts(tmp_path / "d", (2,), numbers(2), numbers(2))
    assert find_order(values.mesh, values.get, figures, (0,)) is None
    fine = Parts(tmp_path / "e", (2,), ROWS[:6], ROWS[6:])
    monkeypatch.setattr(row_order, "MOST", 12)
    assert find_order(fine.mesh, fine.get, golden, (0,)) is not None
    monkeypatch.setattr(row_order, "MOST", 11)
    assert find_order(fine.mesh, fine.get, golden, (0,)) is None


def test_a_rank_without_rows_has_a_part_of_the_order(tmp_path):
    parts = Parts(tmp_path, (2,), ROWS[:0], ROWS[::-1])
    found = find_order(parts.mesh, parts.get, one_tensor(tmp_path / "golden", ROWS), (0,))
    assert found.order == tuple(range(12))[::-1] and found.lengths == ((0, 0), (1, 12))


def test_values_that_cannot_be_read_give_no_order(tmp_path):
    parts = Parts(tmp_path, (2,), ROWS[:6], ROWS[6:])
    golden = one_tensor(tmp_path / "golden", ROWS)
    golden.ref = golden.ref._replace(payload=Payload("/missing/x", "float32", (12, 5), 0))
    assert find_order(parts.mesh, parts.get, golden, (0,)) is None


def test_a_failure_of_the_system_ends_the_search(tmp_path, monkeypatch):
    parts = Parts(tmp_path, (2,), ROWS[:6], ROWS[6:])

    def failing(*_):
        raise SystemFailure("x.npy", "no file handles")

    monkeypatch.setattr(HeldTensor, "blocks", failing)
    with pytest.raises(SystemFailure):
        find_order(parts.mesh, parts.get, one_tensor(tmp_path / "golden", ROWS), (0,))


# ---- rows that are picked by number ----


def picked(folder, golden, sources, placements, indices, sizes=(2,), axes=(0,)):
    """The order of the rows that each rank picks by these numbers of its part of a tensor."""
    source, own = Parts(folder / "source", sizes, *sources), Parts(folder / "own", sizes, *indices)
    exact = one_tensor(folder / "golden", np.asarray(golden))
    by_place = {id(own.cells[at]): source.get(one) for at, one in source.cells.items()}
    return order_of_indices(own.mesh, own.get, exact, lambda one: by_place[id(one)], placements, axes)


HALVES = [ROWS[:6], ROWS[6:]]


@pytest.mark.parametrize(
    "golden, indices, order",
    [
        ([0, 1, 7, 8], [[0, 1], [1, 2]], (0, 1, 2, 3)),
        ([7, 1, 8, 0], [[0, 1], [1, 2]], (2, 1, 3, 0)),
        ([0, 7], [[0], [1]], (0, 1)),
        ([7, 0, 11], [[0], [5, 1]], (2, 0, 1)),
        ([7, 0, 7], [[0], [1, 1]], (1, 0, 2)),  # picked twice: in the order of both
        ([0, 1], [[0, 1], []], (0, 1)),
        ([0, 1, 2], [[0, 1], [1]], None),  # another row
        ([0, 7, 0], [[0], [1]], None),
        ([0, 11], [[0], [6]], None),  # beyond the last row of the last rank
        ([0, 1], [[0, -1], []], None),  # before the first row
    ],
)
def test_rows_that_are_picked_by_number(tmp_path, golden, indices, order):
    indices = [np.array(one, np.int64) for one in indices]
    found = picked(tmp_path, golden, HALVES, (SHARD, WHOLE), indices)
    assert (found.order if found is not None else None) == order
    assert found is None or (found.axes, found.lengths) == ((0,), tuple(enumerate(map(len, indices))))


def test_rows_picked_of_copies_are_the_same_rows(tmp_path):
    """Both ranks hold all rows; each picks some of its own. Only those of the first copy are known."""
    found = picked(tmp_path, [3, 4], [ROWS, ROWS], (WHOLE, WHOLE), [np.array([4, 3])] * 2, axes=(1,))
    assert found.order == (1, 0)


def test_rows_picked_along_one_of_two_axes(tmp_path):
    """Ranks 2 and 3 are copies of 0 and 1."""
    indices = [np.array([1]), np.array([0]), np.array([1]), np.array([0])]
    found = picked(tmp_path, [6, 1], HALVES * 2, (SHARD, WHOLE, WHOLE), indices, (2, 2), (0,))
    assert found.order == (1, 0)


def test_a_placement_that_does_not_fit_gives_no_order(tmp_path):
    blocks = Placement("shard", 0, (1, 1, 1, 1, 1))
    indices = [np.array([0]), np.array([0])]
    assert picked(tmp_path, [0, 6], HALVES, (blocks, WHOLE), indices) is None


def test_numbers_that_are_not_known_give_no_order(tmp_path):
    figures, known = Statistics(1.0, 0.0, 0.5, 2.0), np.array([0])
    assert picked(tmp_path / "a", [0, 6], HALVES, (SHARD, WHOLE), [known, figures]) is None
    own = Parts(tmp_path / "b", (2,), known, known)
    golden = one_tensor(tmp_path / "c", figures)
    assert order_of_indices(own.mesh, own.get, golden, own.get, (SHARD, WHOLE), (0,)) is None


# ---- placements of tensors with ordered rows ----


def test_placements_of_a_tensor_whose_rows_are_ordered(tmp_path):
    """The last axis of the rows has the order, the others are split; the remaining axes may split columns."""
    rows = RowOrder((0, 1), (1, 0, 3, 2), ())
    parts = Parts(tmp_path, (2, 2), *(ROWS[at : at + 1, :4] for at in range(4)))
    golden = one_tensor(tmp_path / "golden", ROWS[:4, :4])
    assert ordered_placements(parts.mesh, parts.get, golden, rows, ()) == [(SHARD, rows.placement, WHOLE)]


@pytest.mark.parametrize("sums", [(), (1,), (0, 2)])
@pytest.mark.parametrize("width, kinds", [(4, {"whole"}), (8, {"shard"}), (5, set())])
def test_columns_of_ordered_rows_may_be_split_or_summed(tmp_path, width, kinds, sums):
    rows = RowOrder((0,), (1, 0), ())
    parts = Parts(tmp_path, (2, 2), *[numbers(1, 4)] * 4)
    golden = one_tensor(tmp_path / "golden", numbers(2, width))
    found = ordered_placements(parts.mesh, parts.get, golden, rows, sums)
    assert {one[1].kind for one in found} == kinds | ({"sum"} if 1 in sums and width == 4 else set())
    assert all(one[0] == rows.placement and one[2] == WHOLE and one[1].dim == (one[1].kind == "shard") for one in found)


@pytest.mark.parametrize(
    "placements, is_ordered",
    [(None, False), ((), False), ((WHOLE, SUM, SHARD), False), ((WHOLE, Placement("rows", 0, (1, 0))), True)],
)
def test_placements_with_another_order_of_rows(placements, is_ordered):
    assert has_rows(placements) is is_ordered
