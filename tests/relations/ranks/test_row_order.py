"""The order of rows that ranks hold in another order than the golden."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.errors import SystemFailure
from npucmp.model import Payload, Statistics
from npucmp.model.relation import WHOLE, Placement
from npucmp.relations.held_values import HeldTensor
from npucmp.relations.ranks import row_order
from npucmp.relations.ranks.rank_mesh import Mesh
from npucmp.relations.ranks.row_order import RowOrder, find_order, order_of_indices, ordered_placements
from tests.relations.ranks.test_rank_run import numbers, rank_of

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


@pytest.mark.parametrize("sums", [(), (1,), (0, 2)])
@pytest.mark.parametrize("width, kinds", [(4, {"whole"}), (8, {"shard"}), (5, set())])
def test_columns_of_ordered_rows_may_be_split_or_summed(tmp_path, width, kinds, sums):
    rows = RowOrder((0,), (1, 0), ())
    parts = Parts(tmp_path, (2, 2), *[numbers(1, 4)] * 4)
    golden = one_tensor(tmp_path / "golden", numbers(2, width))
    found = ordered_placements(parts.mesh, parts.get, golden, rows, sums)
    assert {one[1].kind for one in found} == kinds | ({"sum"} if 1 in sums and width == 4 else set())
    assert all(one[0] == rows.placement and one[2] == WHOLE and one[1].dim == (one[1].kind == "shard") for one in found)
