"""Whether ranks hold each other's parts of a tensor, or read the parts of others in another order."""

from __future__ import annotations

from operator import ne
from typing import Optional

from npucmp.relations.held_values import HeldTensor
from npucmp.relations.ranks.placement import ARRAYS, Placements, distance
from npucmp.relations.ranks.placement_choice import AGREES
from npucmp.relations.ranks.placement_search import PlacementSearch
from npucmp.relations.ranks.rank_mesh import Mesh, Misfit
from npucmp.relations.ranks.rank_part import PartOfRank


def exchanged_parts(
    search: PlacementSearch, mesh: Mesh, golden: HeldTensor, placements: Placements
) -> Optional[dict[int, int]]:
    """The rank of which each rank holds the golden's part; None if one holds no such part, if all hold their own, or
    without values."""
    exact, cells = golden.array, mesh.cells
    if exact is None or not any(one.is_split for one in placements) or any(one.is_partial for one in placements):
        return None
    held = {at: search.part(golden.operator.name, op, golden.slot) for at, op in cells.items()}
    parts = {at: one.array for at, one in held.items() if one is not None}
    if len(parts) < len(cells) or any(part is None for part in parts.values()):
        return None
    whole = PartOfRank({at: part.shape for at, part in parts.items() if part is not None}, mesh.sizes, placements,
                       ARRAYS())  # fmt: skip
    try:
        own = {at: whole.of(exact, at) for at in cells}
    except Misfit:
        return None
    found = {}
    for at, part in parts.items():
        likely = sorted(cells, key=lambda other: sum(map(ne, at, other)))  # of copies of a part, the nearest
        place = next((other for other in likely if distance(part, own[other]) < AGREES), None)
        if place is None:
            return None
        found[cells[at].rank] = cells[place].rank
    is_order = sorted(found) == sorted(found.values()) and any(rank != other for rank, other in found.items())
    return found if is_order else None


def joined_order(search: PlacementSearch, mesh: Mesh, golden: HeldTensor, written: Placements) -> Optional[list[int]]:
    """The order in which a rank joined the parts of all ranks, by rank, of a tensor that was `written` in parts along
    one axis and is read whole; None if they stand in their own order, or in none."""
    exact, first = golden.array, search.part(golden.operator.name, mesh.first, golden.slot)
    axes = [axis for axis, one in enumerate(written) if one.is_split]
    values = first.array if first is not None else None
    if (
        exact is None
        or values is None
        or values.shape != exact.shape
        or len(axes) != 1
        or written[axes[0]].dim >= exact.ndim  # it was reshaped on the way
        or len(written[axes[0]].blocks) > 1
    ):
        return None
    axis, make = axes[0], ARRAYS()
    size, dim = mesh.sizes[axis], written[axes[0]].dim
    length, rest = divmod(exact.shape[dim], size)
    if rest or written[axis].kind != "shard":
        return None
    pieces = [[make.part(one, dim, at * length, (at + 1) * length) for at in range(size)] for one in (values, exact)]
    order = [next((at for at, other in enumerate(pieces[1]) if distance(own, other) < AGREES), -1) for own in pieces[0]]
    if sorted(order) != [*range(size)] or order == sorted(order):
        return None
    group = sorted({op.rank for at, op in mesh.cells.items()
                    if all(at[other] == 0 for other in range(len(at)) if other != axis)})  # fmt: skip
    return [group[at] for at in order]
