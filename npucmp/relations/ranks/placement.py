"""Placements of a tensor on a mesh of ranks: those that its shapes allow, and the error of the assembled tensor."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import AbstractSet, Any, Callable, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import assembly
from npucmp.dump.readers.values import blocks
from npucmp.errors import UnsupportedError, if_unreadable
from npucmp.model import Payload, Statistics
from npucmp.model.relation import MAX, MEAN, NORM, SUM, WHOLE, Placement
from npucmp.relations.held_values import HeldTensor, RankOperator, norm_of
from npucmp.relations.ranks.joined_shards import Maker, assemble
from npucmp.relations.ranks.rank_mesh import Coordinates, Mesh, Misfit, chosen, same_copies

MOST = 400  # candidates of a tensor: work
BLOCKS = 64  # blocks of a dimension: work
GROUPED = (2, 3, 4, 6, 8, 16)  # query heads for each key head: chosen, those of common networks
NARROW = 2  # elements of a head: definition: one element is none
BLOCK = 1 << 16  # elements: work
FIRST = 4  # blocks: work, after which a placement may be given up
UNLIKE = 0.25  # square of an error: chosen, far above that of a fault in a few elements
WEAK = 1.5e-3  # an error by statistics that agrees, and that a placement with more evidence is below: chosen
CENTRED = 0.05  # of the root mean square: chosen, rounding of a sum is far below
FEWEST_MASKED = 8  # elements: chosen: so few show no mask
FAR_BELOW = 50  # times: chosen: a mask is so much larger than all values that it leaves
TINY = 1e-30  # figure: definition: keeps a quotient finite
MASKED = -1e3  # value: evidence: masks are at least as low (-1e4 in Megatron), values are not
Get = Callable[[RankOperator], HeldTensor]
Placements = tuple[Placement, ...]


class Allowed(NamedTuple):
    """Facts that decide beside the shapes.

    sums, maxima  axes along which a sum, or also a maximum, may stand
    zigzag        whether a zigzag may
    reduces       whether one number that is made of parts must be a sum or a mean of them
    norms         axes along which one number may be the norm of the ranks' norms
    """

    sums: AbstractSet[int] = frozenset()
    maxima: bool = False
    zigzag: bool = True
    reduces: bool = False
    norms: AbstractSet[int] = frozenset()


def candidates(mesh: Mesh, get: Get, golden: tuple[int, ...], allowed: Allowed) -> list[Placements]:
    """The placements in which the shapes of the parts make the golden's shape, simple ones first."""
    shapes = {at: get(one).shape for at, one in mesh.cells.items()}
    if any(len(shape) != len(golden) for shape in shapes.values()):
        return []
    is_number = math.prod(golden) == 1
    alike = len({*shapes.values()}) == 1
    local = next(iter(shapes.values())) if alike else None
    by_axis: list[list[Placement]] = []
    for axis, size in enumerate(mesh.sizes):
        reduced = allowed.reduces and is_number and axis in allowed.sums and not _has_copies(mesh, get, axis)
        some = [] if size > 1 and reduced else [WHOLE]
        if size > 1:
            some += [NORM] * (axis in allowed.norms and is_number)
            some += [MAX] * allowed.maxima + [SUM] * (axis in allowed.sums)
            mean = [MEAN] * (axis in allowed.sums and is_number)
            some = [*mean, *some] if reduced else [*some, *mean]
            some += _uneven(shapes.values(), golden) if local is None else splits(local, golden, size, allowed.zigzag)
        by_axis.append(some)
    return _fitting(tuple(map(tuple, by_axis)), mesh.sizes, local, golden)


def _has_copies(mesh: Mesh, get: Get, axis: int) -> bool:
    """Whether ranks along an axis have equal values."""
    contents: dict[tuple[int, ...], set[Any]] = {}
    for at, one in mesh.cells.items():
        contents.setdefault(at[:axis] + at[axis + 1 :], set()).add(get(one).content)
    return all(len(some) == 1 and None not in some for some in contents.values())


@lru_cache(maxsize=1 << 12)
def _fitting(
    by_axis: tuple[Placements, ...], sizes: Sequence[int], local: Any, shape: tuple[int, ...]
) -> list[Placements]:
    found = []
    for placements in product(*by_axis):
        if local is not None:
            whole: list[Optional[int]] = [*local]
            for size, one in zip(sizes, placements):
                length = whole[one.dim] if one.is_split else None
                if length is not None:
                    whole[one.dim] = one.joined_length(length, size)
            if tuple(whole) != shape:
                continue
        elif not any(one.is_split for one in placements):
            continue
        found.append(placements)
    return sorted(found, key=_complexity)[:MOST]


def _complexity(placements: Placements) -> int:
    return sum(
        0 if one.kind == "whole" else 3 if one.is_partial else 1 if one.kind == "shard" and len(one.blocks) == 1
        else 2 if len(one.blocks) < (2 if one.kind == "zigzag" else 4) else 4
        for one in placements
    )  # fmt: skip


@lru_cache(maxsize=1 << 12)
def splits(local: tuple[int, ...], shape: tuple[int, ...], size: int, zigzag: bool) -> list[Placement]:
    """The splits of each dimension by `size` ranks. Faster axes may have joined parts before, so that a block may be
    smaller than a part of one rank."""
    found = []
    for dim, (own, whole) in enumerate(zip(local, shape)):
        if own == whole or not own:
            continue
        own = whole // size if whole % size == 0 else own
        counts = [count for count in range(1, own + 1) if own % count == 0]
        counts = [*counts[:BLOCKS], own] if len(counts) > BLOCKS else counts
        found += [Placement("shard", dim, (1,) * count) for count in counts]
        found += [Placement("shard", dim, (group, 1, 1)) for group in GROUPED if own % (group + 2) == 0]
        found += [Placement("grouped", dim, (group, 1, 1)) for group in (1, *GROUPED) if own >= NARROW * (group + 2)]
        if zigzag and own % 2 == 0:
            batches = [count for count in counts if own % (2 * count) == 0] if len(local) <= 2 and not dim else [1]
            found += [Placement("zigzag", dim, (1,) * count) for count in batches]
    return found


def _uneven(shapes: Any, shape: tuple[int, ...]) -> list[Placement]:
    """Contiguous parts of unequal length along one dimension."""
    return [Placement("shard", dim) for dim, whole in enumerate(shape) if {one[dim] for one in shapes} != {whole}]


def _numpy_maker() -> Maker:
    def part(array: Any, dim: int, start: int, stop: int) -> Any:
        return array[(slice(None),) * dim + (slice(start, stop),)]

    def total(parts: Sequence[Any], how: str) -> Any:
        if how in ("max", "norm"):
            return (np.maximum if how == "max" else np.hypot).reduce(parts)
        found = sum(parts[1:], parts[0])
        return found / len(parts) if how == "mean" else found

    def interleave(parts: Sequence[Any], dim: int, count: int, is_zigzag: bool) -> Any:
        shape = parts[0].shape
        blocks = [one.reshape(*shape[:dim], count, -1, *shape[dim + 1 :]) for one in parts]
        if is_zigzag:
            length = blocks[0].shape[dim + 1]
            blocks = [part(one, dim + 1, 0, length // 2) for one in blocks] + [
                part(one, dim + 1, length // 2, length) for one in reversed(blocks)
            ]
        return np.concatenate(blocks, dim + 1).reshape(*shape[:dim], -1, *shape[dim + 1 :])

    return Maker(np.concatenate, part, total, lambda array, dim: array.shape[dim], interleave)


def _payload_total(parts: Sequence[Payload], how: str) -> Payload:
    if how in ("max", "norm"):
        return assembly.total(parts, assembly.MAX if how == "max" else assembly.NORM)
    return assembly.total(parts, assembly.SUM, 1.0 / len(parts) if how == "mean" else 1.0)


ARRAYS = _numpy_maker
PAYLOADS = Maker(assembly.joined, assembly.sliced, _payload_total, lambda payload, dim: payload.shape[dim])


class Fit(NamedTuple):
    """How well a placement explains a golden tensor: the largest error of any choice of copies, and that choice."""

    error: float
    placements: Placements
    scale: float = 1.0
    copy: tuple[tuple[int, int], ...] = ()


def _copies(
    mesh: Mesh, get: Get, placements: Placements
) -> Iterator[tuple[dict[int, int], dict[Coordinates, HeldTensor]]]:
    """Yield the choices of copies with the tensors of each, but for those that hold what an earlier one holds."""
    seen: set[Any] = set()
    for choice in same_copies(mesh, placements):
        cells = chosen(mesh, placements, choice, get)
        same = tuple(one.content for one in cells.values())
        if None in same or same not in seen:
            seen.add(same)
            yield choice, cells


def fit(mesh: Mesh, get: Get, golden: HeldTensor, placements: Placements, scale: float = 1.0) -> Optional[Fit]:
    """The error of the assembled values, None if they do not fit or some are not known. If ranks hold copies, the worst
    one counts."""
    make, exact = ARRAYS(), golden.array
    worst: Optional[Fit] = None
    try:
        for choice, cells in _copies(mesh, get, placements):
            arrays = {at: one.array for at, one in cells.items()}
            if any(one is None for one in arrays.values()):
                return None
            error = distance(assemble(arrays, placements, make, choice), exact, scale)
            if worst is None or error > worst.error:
                worst = Fit(error, placements, scale, tuple(choice.items()))
    except (Misfit, ValueError, IndexError):
        return None
    return worst


def share_alike(mesh: Mesh, get: Get, golden: HeldTensor, placed: Fit, limit: float) -> float:
    """The share of the elements of the golden that a placement makes within a limit, of its root mean square and of the
    element; 0.0 without values, and if all are made in another order, as gathered chunks of a zigzag are."""
    arrays = {at: one.array for at, one in chosen(mesh, placed.placements, dict(placed.copy), get).items()}
    exact = golden.array
    if exact is None or not exact.size or any(one is None for one in arrays.values()):
        return 0.0
    try:
        found = assemble(arrays, placed.placements, ARRAYS(), dict(placed.copy))
    except (Misfit, ValueError, IndexError):
        return 0.0
    if found.shape != exact.shape:
        return 0.0
    found = found / placed.scale
    with np.errstate(all="ignore"):
        usual = float(np.sqrt(np.mean(np.square(exact, dtype=np.float64))))
        both = (found, exact), (np.sort(found, axis=None), np.sort(exact, axis=None))
        shares = [float((np.abs(own - other) <= limit * (np.abs(other) + usual)).mean()) for own, other in both]
    return shares[0] if shares[1] < 1.0 else 0.0


@if_unreadable(None, Misfit)
def fit_blocks(mesh: Mesh, get: Get, golden: HeldTensor, placements: Placements, scale: float = 1.0) -> Optional[Fit]:
    """The same for tensors that are too large for memory: both sides are read block by block. A placement that the
    first blocks contradict is not read further."""
    worst: Optional[Fit] = None
    for choice, _ in _copies(mesh, get, placements):
        one = Fit(0.0, placements, scale, tuple(choice.items()))
        payload = payload_of(mesh, get, one)
        if payload is None or golden.payload is None or payload.shape != golden.shape:
            return None
        gap, norm = streamed_distance(payload, golden.payload, golden.context, UNLIKE)
        error = math.sqrt(gap / norm) if norm else 0.0 if not gap else math.inf
        error = error if math.isfinite(norm) and error == error else math.inf  # beyond all numbers
        if worst is None or error > worst.error:
            worst = one._replace(error=error)
    return worst


def streamed_distance(
    own: Payload, exact: Payload, context: ReadContext, most: float = math.inf, scale: float = 1.0
) -> tuple[float, float]:
    """The same as `squared_distance`, block by block; of the first blocks, if they are further apart than `most`."""
    gap = norm = 0.0
    for number, both in enumerate(zip(blocks(own, BLOCK, context=context), blocks(exact, BLOCK, context=context))):
        more, size = squared_distance(*both, scale)
        gap, norm = gap + more, norm + size
        if number >= FIRST and gap > most * norm:
            break
    return gap, norm


def squared_distance(found: Any, exact: Any, scale: float = 1.0) -> tuple[float, float]:
    """The sum of the squared differences of two blocks, and of the squares of the second, in float64. Equal NaN and Inf
    do not differ, and do not count in the second sum."""

    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64) / scale, exact.astype(np.float64)
        gap, norm = float(((a - b) ** 2).sum()), float((b * b).sum())
        if not math.isfinite(gap + norm):
            gap = float((np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, a - b) ** 2).sum())
            norm = float((np.where(np.isfinite(b), b, 0.0) ** 2).sum())
    return gap, norm


def distance(found: Any, exact: Any, scale: float = 1.0) -> float:
    """The relative distance of two arrays; masks, which are far below all values, do not count."""

    if found.shape != exact.shape:
        return math.inf
    if scale != 1.0:
        found = found / scale
    if exact.size > FEWEST_MASKED and (low := exact.min()) <= MASKED:
        kept = exact > low / 2
        if kept.any() and np.abs(exact[kept]).max() < -low / FAR_BELOW:
            if ((found > low / 2) != kept).any():
                return math.inf
            found, exact = found[kept], exact[kept]
    with np.errstate(all="ignore"):
        gap, norm = norm_of(found - exact), norm_of(exact)
    if not math.isfinite(gap):
        return 0.0 if np.array_equal(found, exact, equal_nan=True) else math.inf
    return gap / norm if norm else 0.0 if not gap else math.inf


def norm_of_terms(mesh: Mesh, get: Get, one: Fit) -> Optional[float]:
    """The norm of the terms of a sum or mean over ranks, in units of the golden; None if it is not known."""
    norms = [get(op).norm for op in mesh.cells.values()]
    if any(norm is None for norm in norms):
        return None
    copies = math.prod(size for size, held in zip(mesh.sizes, one.placements) if held.kind == "whole")
    means = math.prod(size for size, held in zip(mesh.sizes, one.placements) if held.kind == "mean")
    return math.sqrt(sum(norm * norm for norm in norms if norm is not None) / copies) / means / one.scale


def payload_of(mesh: Mesh, get: Get, one: Fit) -> Optional[Payload]:
    """The assembled tensor as a payload, which is read block by block; None if some part has no values, or
    cannot be read in parts."""
    try:
        cells = chosen(mesh, one.placements, dict(one.copy), lambda op: get(op).payload)
        found = assemble(cells, one.placements, PAYLOADS, dict(one.copy))
    except (Misfit, ValueError, UnsupportedError):
        return None
    return found if one.scale == 1.0 else assembly.total([found], assembly.SUM, 1.0 / one.scale)


# Statistics


class _PartFigures(NamedTuple):
    """Recorded statistics of so many elements, None where they do not follow."""

    size: int
    max: Optional[float]
    min: Optional[float]
    mean: Optional[float]
    norm: Optional[float]


def _figures_maker() -> Maker:
    def join(parts: Sequence[_PartFigures], dim: int) -> _PartFigures:
        parts = [one for one in parts if one.size] or parts  # an expert may get no token
        size = sum(one.size for one in parts)
        most, least, means, norms = ([getattr(one, name) for one in parts] for name in ("max", "min", "mean", "norm"))
        mean = None if None in means else sum(float(one.mean or 0.0) * one.size for one in parts) / max(1, size)
        norm = None if None in norms else math.hypot(*norms)
        return _PartFigures(
            size, None if None in most else max(most), None if None in least else min(least), mean, norm
        )

    def total(parts: Sequence[_PartFigures], how: str) -> _PartFigures:
        if how == "max":
            return _PartFigures(parts[0].size, max(one.max for one in parts if one.max is not None), None, None, None)
        means = [one.mean if one.size > 1 or one.mean is not None else one.max for one in parts]
        known = [mean for mean in means if mean is not None]
        if len(known) < len(parts):
            return _PartFigures(parts[0].size, None, None, None, None)
        mean = math.hypot(*known) if how == "norm" else sum(known) / (len(known) if how == "mean" else 1)
        return (
            _PartFigures(1, mean, mean, mean, mean)
            if parts[0].size == 1
            else _PartFigures(parts[0].size, None, None, mean, None)
        )

    return Maker(join, lambda one, dim, start, stop: one, total, lambda one, dim: 0)


def figures_of(mesh: Mesh, get: Get, placements: Placements, choice: Any) -> Optional[_PartFigures]:
    """The statistics of an assembly; None if they do not follow from those of the parts."""
    plain = tuple(one._replace(kind="shard", blocks=(1,)) if one.is_split else one for one in placements)

    def own(op: RankOperator) -> Optional[_PartFigures]:
        one = get(op)
        found = one.figures
        if found is None and not one.size:
            return _PartFigures(0, None, None, None, None)
        return None if found is None else _PartFigures(one.size, *found)

    try:
        found: _PartFigures = assemble(chosen(mesh, placements, choice, own), plain, _figures_maker())
        has_copies = any(one.kind == "grouped" for one in placements)
        return found._replace(mean=None, norm=None) if has_copies else found
    except (Misfit, ValueError):
        return None


def fit_figures(mesh: Mesh, get: Get, golden: HeldTensor, placements: Placements, scale: float = 1.0) -> Optional[Fit]:
    """The same as `fit`, by recorded statistics."""
    known = golden.figures
    worst: Optional[Fit] = None
    for choice in same_copies(mesh, placements) if known is not None else ():
        found = figures_of(mesh, get, placements, choice)
        if found is None:
            return None
        error = _apart(found, known, golden.size, scale)
        has_copies = any(one.kind == "grouped" for one in placements)
        if error is not None and (has_copies or (found.max is None and _is_centred(known, golden.size))):
            error = max(error, WEAK)  # any sum of centred tensors has that mean; parts with copies have extremes alone
        if error is not None and (worst is None or error > worst.error):
            worst = Fit(error, placements, scale, tuple(choice.items()))
    return worst


def _apart(found: _PartFigures, known: Any, size: int, scale: float) -> Optional[float]:
    norm = known[3]
    if norm is None or not math.isfinite(norm):
        norm = max((abs(one) for one in known[:2] if math.isfinite(one)), default=0.0)
    unit = norm / math.sqrt(max(size, 1)) or TINY
    gaps = []
    for at, (own, other) in enumerate(zip(found[1:], known)):
        if own is None or other is None:
            continue
        own = own / scale
        if not math.isfinite(own - other):
            gaps.append(0.0 if own == other or (own != own and other != other) else math.inf)
        elif at == 3:
            gaps.append(abs(abs(own) - abs(other)) / (norm or TINY))
        else:
            gaps.append(abs(own - other) / max(unit, abs(other) if at < 2 else 0.0))
    return max(gaps) if gaps else None


def _is_centred(known: Any, size: int) -> bool:
    """Whether the mean of a tensor is far below its values."""
    norm = known[3] if known[3] is not None else 0.0
    return known[2] is not None and abs(known[2]) * math.sqrt(max(size, 1)) < CENTRED * norm


def statistics_of(mesh: Mesh, get: Get, one: Fit) -> Optional[Statistics]:
    """The statistics of the assembled tensor; None if they do not follow."""
    found = figures_of(mesh, get, one.placements, dict(one.copy))
    if found is None or found.max is None or found.min is None:
        return None
    scaled = [None if value is None else value / one.scale for value in found[1:]]
    return Statistics.recorded(*scaled)
