"""The error of each rank's own part of an assembled tensor."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Optional, Sequence

from npucmp.errors import if_unreadable
from npucmp.model import Payload
from npucmp.relations.held_values import HeldTensor, RankOperator
from npucmp.relations.ranks.placement import ARRAYS, PAYLOADS, Get, distance, fit_figures, streamed_distance
from npucmp.relations.ranks.placement_choice import AGREES_FIGURES, COARSE_FIGURES, Decision
from npucmp.relations.ranks.placement_search import PlacementSearch
from npucmp.relations.ranks.rank_mesh import Coordinates, Mesh, Misfit
from npucmp.relations.ranks.rank_part import PartOfRank

Figures = Sequence[Optional[float]]
SAME = 1e-4  # relative: chosen: rounding of float32 is below, two parts differ by more
STANDS_OUT = 8.0  # times: chosen: parts of one tensor err alike within a factor of 3 in clean runs


def part_errors(search: PlacementSearch, mesh: Mesh, golden: HeldTensor, decision: Decision) -> dict[int, float]:
    """The relative error of each rank's part by rank, the largest of its micro batches; absolute where the golden's
    part is zero. Empty if the tensor is a sum, or its values are not known. The search keeps the result."""
    key = golden.operator.name, golden.slot
    known = search.part_errors.get(key)
    if known is None or known[0] != decision.fit:
        known = search.part_errors[key] = decision.fit, _part_errors(search, mesh, golden, decision)
    return known[1]


def _part_errors(search: PlacementSearch, mesh: Mesh, golden: HeldTensor, decision: Decision) -> dict[int, float]:
    if decision.fit is None or decision.rows is not None or any(one.is_partial for one in decision.fit.placements):
        return {}
    get = search.parts_of(golden)
    parts = {at: get(op) for at, op in mesh.cells.items()}
    exact = golden.array
    if exact is None and (golden.payload is None or not search.values):
        return _by_figures(mesh, get, golden, decision)
    shapes = {at: part.shape for at, part in parts.items()}
    whole = PartOfRank(shapes, mesh.sizes, decision.fit.placements, ARRAYS() if exact is not None else PAYLOADS)
    found: dict[int, float] = {}
    known: dict[object, float] = {}  # copies of equal content have one error
    for at, op in mesh.cells.items():
        place = (whole.key(at), parts[at].content or at)
        if place not in known:
            error = _error(parts[at], golden, whole, at, decision.fit.scale)
            if error is None:
                return _by_figures(mesh, get, golden, decision)
            known[place] = error
        found[op.rank] = max(found.get(op.rank, 0.0), known[place])
    return found


@if_unreadable(None, Misfit, ValueError, IndexError)
def _error(part: HeldTensor, golden: HeldTensor, whole: PartOfRank, at: Coordinates, scale: float) -> Optional[float]:
    """The error of one part; None if its values are not known or do not fit."""
    if golden.array is None:
        own = whole.of(golden.payload, at)
        return None if part.payload is None else _streamed_error(part.payload, own, golden, scale)
    values = part.array
    if values is None:
        return None
    exact = whole.of(golden.array, at)
    error = distance(values, exact, scale)
    if math.isinf(error) and not exact.any():
        return math.sqrt(float((values * values).sum(dtype=float))) / scale
    return error


def _streamed_error(part: Payload, exact: Payload, golden: HeldTensor, scale: float) -> float:
    """The same block by block, for tensors that are too large for memory; masks count."""
    gap, norm = streamed_distance(part, exact, golden.context, scale=scale)
    found = math.sqrt(gap / norm) if norm else math.sqrt(gap)
    return found if found == found else math.inf


def _by_figures(mesh: Mesh, get: Get, golden: HeldTensor, decision: Decision) -> dict[int, float]:
    """By statistics, copies alone have an error of their own: that of the whole which is made of them, or none if it
    equals a copy in a whole that agrees."""
    assert decision.fit is not None
    placements, scale = decision.fit.placements, decision.fit.scale
    copied = [axis for axis, one in enumerate(placements) if one.kind == "whole" and mesh.sizes[axis] > 1]
    if len(copied) == 0 or any(one.kind not in ("whole", "shard") for one in placements):
        return {}
    sizes = tuple(1 if axis in copied else size for axis, size in enumerate(mesh.sizes))
    wholes: dict[Coordinates, dict[Coordinates, RankOperator]] = defaultdict(dict)
    for at, op in mesh.cells.items():
        rest = tuple(0 if axis in copied else place for axis, place in enumerate(at))
        wholes[tuple(at[axis] for axis in copied)][rest] = op
    errors: list[tuple[float, dict[Coordinates, RankOperator]]] = []
    for cells in wholes.values():
        fitted = fit_figures(Mesh(cells, sizes, mesh.ranks), get, golden, placements, scale)
        errors += [(fitted.error, cells)] if fitted is not None else []
    found: dict[int, float] = {}
    least: dict[object, float] = {}
    for error, cells in sorted(errors, key=lambda both: both[0]):
        for at, op in cells.items():
            own = least.setdefault((at, get(op).content or op.rank), error)
            found[op.rank] = max(found.get(op.rank, 0.0), own)
    return found


def rank_beyond(search: PlacementSearch, mesh: Mesh, golden: HeldTensor, decision: Decision) -> Optional[int]:
    """The one rank whose part is no part of the golden by its statistics: its largest value, its smallest or its norm
    exceeds that of the whole. None if no rank, or several, hold such a part, or the tensor is no shard."""
    known, fit = golden.figures, decision.fit
    if known is None or fit is None or golden.array is not None or not any(one.is_split for one in fit.placements):
        return None
    if any(one.is_partial for one in fit.placements):
        return None
    room = COARSE_FIGURES if "16" in golden.ref.dtype else AGREES_FIGURES
    found = set()
    for op in mesh.cells.values():
        part = search.part(golden.operator.name, op, golden.slot)
        own = part.figures if part is not None else None
        if own is not None and _exceeds(own, known, fit.scale, room):
            found.add(op.rank)
    return found.pop() if len(found) == 1 else None


def _exceeds(own: Figures, whole: Figures, scale: float, room: float) -> bool:
    """Whether statistics (largest, smallest, mean, norm) of a part exceed those of the whole by more than a share."""
    size = max(abs(value) for value in whole[:2] if value is not None)
    pairs = [(own[0], whole[0], size), (_negative(own[1]), _negative(whole[1]), size), (own[3], whole[3], whole[3])]
    return any(
        mine is not None and theirs is not None and unit and mine / scale - theirs > room * unit
        for mine, theirs, unit in pairs
    )


def holds_extreme(part: HeldTensor, golden: HeldTensor, scale: float) -> bool:
    """Whether the largest or smallest value of a part, by its statistics, is that of the golden."""
    own, whole = part.figures, golden.figures
    if own is None or whole is None:
        return False
    pairs = [(a / scale, b) for a, b in zip(own[:2], whole[:2]) if a is not None and b is not None]
    return any(abs(a - b) <= SAME * abs(b) for a, b in pairs)


def _negative(value: Optional[float]) -> Optional[float]:
    return None if value is None else -value


def odd_rank(errors: dict[int, float]) -> Optional[int]:
    """The one rank whose part errs far more than all others; None without one."""
    if len(errors) < 2:
        return None
    first, second = sorted(errors, key=lambda rank: -errors[rank])[:2]
    return first if errors[first] > STANDS_OUT * errors[second] and errors[first] > 0 else None
