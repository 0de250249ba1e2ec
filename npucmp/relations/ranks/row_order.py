"""The order of rows: tokens that a router sends to experts stand in another order on the ranks than in the golden.

An order is found from the values of one tensor, where tokens are picked or where an expert receives them: each row of
the golden has its nearest row among those of the ranks. All that is made of these rows has the same order. A tensor
that is ordered otherwise differs.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.errors import if_unreadable
from npucmp.model.relation import SUM, WHOLE, Placement
from npucmp.relations.held_values import MARKS, HeldTensor, RankOperator, tensor_in
from npucmp.relations.ranks.joined_shards import assemble
from npucmp.relations.ranks.placement import ARRAYS, Get, Placements, splits
from npucmp.relations.ranks.rank_mesh import Coordinates, Mesh, Misfit, same_copies

MOST = 1 << 14  # rows: work
BLOCK = 1 << 16  # elements: work
STEP = 512  # rows: work
FLAT = 1 << 18  # numbers of a flat buffer: work
MOST_EQUAL = 0.5  # share of numbers: chosen: a fault leaves as many, other values do not agree in as many


class RowOrder(NamedTuple):
    """Where the rows of a golden tensor are: the axes of ranks along which rows stand side by side, and for each row of
    the golden its number among them. `lengths`: rows of each rank, by rank."""

    axes: tuple[int, ...]
    order: tuple[int, ...]
    lengths: tuple[tuple[int, int], ...]

    @property
    def placement(self) -> Placement:
        return Placement("rows", 0, self.order)

    @property
    def is_identity(self) -> bool:
        return self.order == tuple(range(len(self.order)))


def is_flat(one: HeldTensor) -> bool:
    """Whether a tensor may be a buffer of several parameters."""
    return one.is_float and len(one.shape) == 1


def lengths_of(mesh: Mesh, get: Get) -> tuple[tuple[int, int], ...]:
    """The number of rows of a tensor on each rank; empty if it has none."""
    shapes = {one.rank: get(one).shape for one in mesh.cells.values()}
    return tuple(sorted((rank, shape[0]) for rank, shape in shapes.items())) if all(shapes.values()) else ()


def row_axes(mesh: Mesh, get: Get, rows: int) -> list[tuple[int, ...]]:
    """The sets of axes along which so many rows stand side by side; copies stand along the others."""
    counts = {at: get(one).shape[0] for at, one in mesh.cells.items()}
    found = []
    for number in range(len(mesh.split_axes) + 1):
        for axes in combinations(mesh.split_axes, number):
            by_rest: dict[Coordinates, int] = {}
            for at, count in counts.items():
                rest = tuple(0 if axis in axes else place for axis, place in enumerate(at))
                by_rest[rest] = by_rest.get(rest, 0) + count
            if {*by_rest.values()} == {rows}:
                found.append(axes or (len(mesh.sizes) - 1,))
    return found


def find_order(mesh: Mesh, get: Get, golden: HeldTensor, axes: tuple[int, ...]) -> Optional[RowOrder]:
    """The order of the rows of a tensor that ranks hold along these axes, by the nearest rows. None if rows are too
    many, or their values are not known."""

    own = [(tuple(reversed(at)), get(one)) for at, one in mesh.cells.items()
           if all(axis in axes or not place for axis, place in enumerate(at))]  # fmt: skip
    parts = [one for _, one in sorted(own, key=lambda both: both[0])]
    if golden.shape[0] > MOST or any(one.shape[1:] != golden.shape[1:] for one in parts):
        return None
    exact = _projected(golden)
    projected = [each for each in map(_projected, parts) if each is not None]
    if exact is None or len(projected) < len(parts):
        return None
    order = _nearest(np.concatenate(projected), exact)
    return RowOrder(axes, order, lengths_of(mesh, get))


def flat_orders(mesh: Mesh, golden: HeldTensor) -> Iterator[RowOrder]:
    """Yield the orders of the numbers of a flat tensor by their values, along each set of axes."""
    parts = {id(op): tensor_in(op, golden.slot) for op in mesh.cells.values()}
    if all(part is not None and is_flat(part) for part in parts.values()):

        def get(op: RankOperator) -> HeldTensor:
            return parts[id(op)]  # type: ignore[return-value]

        some = (_order_of_values(mesh, get, golden, axes) for axes in row_axes(mesh, get, golden.size))
        yield from (order for order in some if order is not None and not order.is_identity)


def _order_of_values(mesh: Mesh, get: Get, golden: HeldTensor, axes: tuple[int, ...]) -> Optional[RowOrder]:
    """The order of the numbers of a flat tensor by their values. Equal numbers stand beside the same neighbours. None
    if numbers are too many, not known, or mostly others than the golden's."""

    cells = [(at[::-1], get(one).array) for at, one in mesh.cells.items()
             if all(axis in axes or not place for axis, place in enumerate(at))]  # fmt: skip
    parts = [(at, array) for at, array in sorted(cells, key=lambda both: both[0]) if array is not None]
    exact = golden.array
    if golden.size > FLAT or exact is None or len(parts) < len(cells):
        return None
    own = np.concatenate([array for _, array in parts]).astype(exact.dtype)
    order = _order_of_equal(own, exact)
    places, firsts, start = np.argsort(order), {}, 0
    for at, array in parts:
        firsts[at], start = int(places[start : start + array.size].min()), start + array.size
    if (own[order] == exact).mean() < MOST_EQUAL or not _ascends(firsts):
        return None  # other values, or ranks that hold parts of each other
    return RowOrder(axes, tuple(order.tolist()), lengths_of(mesh, get))


def _ascends(firsts: Mapping[Coordinates, int]) -> bool:
    """Whether a rank begins before the next rank along each axis."""
    for at, first in firsts.items():
        for axis in range(len(at)):
            following = firsts.get((*at[:axis], at[axis] + 1, *at[axis + 1 :]))
            if following is not None and following <= first:
                return False
    return True


def _order_of_equal(own: Any, exact: Any) -> Any:
    """For each number of `exact` the place of an equal one in `own`, each once; other numbers get what is left."""

    order, free = np.full(exact.size, -1), np.ones(own.size, bool)
    known, places, counts = np.unique(own, return_index=True, return_counts=True)
    at = np.minimum(np.searchsorted(known, exact), known.size - 1)
    _, back, count = np.unique(exact, return_inverse=True, return_counts=True)
    single = (known[at] == exact) & (counts[at] == 1) & (count[back.reshape(-1)] == 1)
    order[single] = places[at[single]]
    free[order[single]] = False
    for step, rows in ((1, range(1, exact.size)), (-1, range(exact.size - 2, -1, -1))):
        for row in rows:
            place = order[row - step] + step
            is_next = order[row] < 0 <= order[row - step] and 0 <= place < own.size and free[place]
            if is_next and own[place] == exact[row]:
                order[row], free[place] = place, False
    order[order < 0] = np.flatnonzero(free)
    return order


def order_of_indices(
    mesh: Mesh, get: Get, golden: HeldTensor, source: Get, placements: Placements, axes: tuple[int, ...]
) -> Optional[RowOrder]:
    """The order of rows that are picked by number: `golden` has the numbers, `source` is the tensor of which each rank
    has rows by these placements. Tokens that are picked several times stand in one order everywhere. None if the ranks
    do not pick the golden's rows."""

    exact = golden.array
    own = {at: get(one).array for at, one in mesh.cells.items()}
    if exact is None or any(one is None for one in own.values()):
        return None
    starts, total = {}, 0
    for at, one in mesh.cells.items():
        starts[at] = total
        total += source(one).shape[0]
    try:
        choice = {axis: at for axis, at in same_copies(mesh, placements)[0].items() if placements[axis].kind == "whole"}
        cells = {tuple(0 if axis in choice else place for axis, place in enumerate(at)):
                 np.arange(source(one).shape[0]) + starts[at] for at, one in mesh.cells.items()
                 if all(at[axis] == place for axis, place in choice.items())}  # fmt: skip
        whole = assemble(cells, placements, ARRAYS())
    except (Misfit, ValueError, IndexError):
        return None
    token = np.full(total, -1)
    token[whole] = np.arange(len(whole))
    chosen = sorted((at for at in mesh.cells if all(axis in axes or not at[axis] for axis in range(len(at)))),
                    key=lambda at: at[::-1])  # fmt: skip
    known = [(at, own[at]) for at in chosen]
    picked = [one.astype(int) + starts[at] for at, one in known if one is not None]
    if any(one.size and (one.min() < 0 or one.max() >= total) for one in picked):
        return None
    found = token[np.concatenate(picked)]
    if not np.array_equal(np.sort(found), np.sort(exact.astype(int))):
        return None
    order = np.empty(len(found), int)
    order[np.argsort(exact, kind="stable")] = np.argsort(found, kind="stable")
    return RowOrder(axes, tuple(order.tolist()), lengths_of(mesh, get))


@if_unreadable(None)
def _projected(one: HeldTensor) -> Optional[Any]:
    """A few projections of every row."""

    width = math.prod(one.shape[1:])
    if not one.size:
        return np.zeros((one.shape[0], MARKS))
    if one.payload is None:
        return None
    turn = np.random.RandomState(0).standard_normal((width, MARKS))
    found, rest = [], np.zeros(0)
    for block in one.blocks(max(BLOCK, width)):
        rest = np.concatenate([rest, block.astype(np.float64)])
        cut = len(rest) // width * width
        found.append(np.einsum("ij,jk->ik", rest[:cut].reshape(-1, width), turn))
        rest = rest[cut:]
    return np.nan_to_num(np.concatenate(found), posinf=0.0, neginf=0.0)


def _nearest(found: Any, exact: Any) -> tuple[int, ...]:
    """For each row of `exact` a row of `found`, each one once: the nearest one that is free, closest pairs first."""

    squares = (found * found).sum(1)

    def distances(rows: Any) -> Any:
        return squares - 2.0 * np.einsum("ij,kj->ik", rows, found) + (rows * rows).sum(1)[:, None]

    best, gap = np.empty(len(exact), int), np.empty(len(exact))
    for start in range(0, len(exact), STEP):
        apart = distances(exact[start : start + STEP])
        best[start : start + STEP] = apart.argmin(1)
        gap[start : start + STEP] = apart.min(1)
    order, free = np.full(len(exact), -1), np.ones(len(found), bool)
    for row in np.argsort(gap, kind="stable"):
        if not free[best[row]]:
            apart = distances(exact[row : row + 1])[0]
            best[row] = np.where(free, apart, np.inf).argmin()
        order[row], free[best[row]] = best[row], False
    _, kinds, counts = np.unique(exact, axis=0, return_inverse=True, return_counts=True)
    kinds = kinds.reshape(-1)
    for kind in np.flatnonzero(counts > 1):  # a token that several experts get stands in the order of experts
        same = kinds == kind
        order[same] = np.sort(order[same])
    return tuple(order.tolist())


def ordered_placements(
    mesh: Mesh, get: Get, golden: HeldTensor, rows: RowOrder, sums: Iterable[int]
) -> list[Placements]:
    """The placements of a tensor whose rows have a known order."""
    first = get(mesh.first).shape
    choices: list[list[Placement]] = []
    for axis, size in enumerate(mesh.sizes):
        if axis in rows.axes:
            choices.append([rows.placement if axis == max(rows.axes) else Placement("shard", 0)])
            continue
        some = [WHOLE]
        if size > 1:
            some += [SUM] * (axis in sums)
            some += [one for one in splits(first, golden.shape, size, False) if one.dim]
        choices.append(some)
    return [held for held in _product(choices) if _shape(mesh, first, golden, held) == golden.shape]


def _product(choices: Sequence[Sequence[Placement]]) -> list[Placements]:
    found: list[Placements] = [()]
    for some in choices:
        found = [(*held, one) for held in found for one in some]
    return found


def _shape(mesh: Mesh, first: tuple[int, ...], golden: HeldTensor, held: Placements) -> tuple[int, ...]:
    whole = [golden.shape[0], *first[1:]]
    for size, one in zip(mesh.sizes, held):
        if one.is_split and one.dim:
            whole[one.dim] *= size
    return tuple(whole)


def has_rows(placements: Optional[Placements]) -> bool:
    """Whether rows stand in another order."""
    return any(one.kind == "rows" for one in placements or ())
