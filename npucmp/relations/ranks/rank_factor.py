"""The one rank whose part of a tensor, or whose term of a sum, is off by one factor.

The error of a whole hides it: one of n parts that is off by f moves the whole by about f/√n, one of n terms likewise,
and the terms of a sum are rounded one by one. Roundings scatter, a factor does not (rule `scaled`).
"""

from __future__ import annotations

import math
from typing import Any, Iterable, Iterator, NamedTuple, Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import blocks
from npucmp.errors import NpucmpError, SystemFailure
from npucmp.localise.rule_context import COMMON_SHARE
from npucmp.model import Payload
from npucmp.relations.held_values import BLOCK, HeldTensor, tensor_in
from npucmp.relations.ranks.placement import PAYLOADS, Placements, payload_of
from npucmp.relations.ranks.placement_choice import Decision
from npucmp.relations.ranks.placement_search import PlacementSearch
from npucmp.relations.ranks.rank_mesh import Mesh, Misfit
from npucmp.relations.ranks.rank_part import PartOfRank

Array = np.ndarray[Any, Any]
NO_BLOCK: Optional[int] = None
FEWEST = 16  # elements: chosen: the factor of fewer is chance, not measured


class RankFactor(NamedTuple):
    """The factor of a rank's part or term, minus 1; the error of the part, or that of the whole in norms of the right
    term, and what is left of it beside the factor. `is_term`: ranks hold terms of a sum. `block`: the factor is that of
    one block, from 0, of a part of several, as of query, key and value in one tensor."""

    rank: int
    factor: float
    error: float
    rest: float
    is_term: bool
    block: Optional[int] = None

    @property
    def is_all(self) -> bool:
        """Whether the factor makes the error."""
        return abs(self.factor) >= COMMON_SHARE * self.error


def rank_factors(search: PlacementSearch, mesh: Mesh, golden: HeldTensor, decision: Decision) -> list[RankFactor]:
    """The factor of each rank's part or term; empty without values, for a mean or maximum, and for parts of sums."""
    fit, exact = decision.fit, golden.payload
    if fit is None or exact is None or not search.values or decision.rows is not None:
        return []
    kinds = {one.kind for one, size in zip(fit.placements, mesh.sizes) if size > 1}
    get, context = search.parts_of(golden), golden.context
    is_behind = search.is_made_behind(golden.operator.name, golden.slot)  # each rank wrote a term of it
    held = {at: tensor_in(op, golden.slot) if is_behind else get(op) for at, op in mesh.cells.items()}
    parts = {at: one.payload for at, one in held.items() if one is not None and one.payload is not None}
    whole = payload_of(mesh, get, fit) if is_behind or kinds == {"sum"} else None
    if len(parts) < len(mesh.cells) or (whole is None and not kinds <= {"shard", "grouped", "zigzag", "whole"}):
        return []
    cut = PartOfRank({at: part.shape for at, part in parts.items()}, mesh.sizes, fit.placements, PAYLOADS)
    found = []
    for at, op in mesh.cells.items():
        try:
            if whole is not None:
                known = [(_of_term(parts[at], whole, exact, context), NO_BLOCK)]
            else:
                both = parts[at], cut.of(exact, at)
                known = [
                    (_of_part(*own, context, fit.scale), block) for block, own in _blocks_of(*both, fit.placements)
                ]
        except SystemFailure:
            raise
        except (Misfit, NpucmpError, ValueError, IndexError):
            return []
        own = [RankFactor(op.rank, *sums, whole is not None, block) for sums, block in known if sums is not None]
        found += [max(own, key=lambda one: (one.is_all, abs(one.factor)))] if own else []
    return found


def block_factors(
    part: Payload, right: Payload, placements: Placements, context: ReadContext, rank: int
) -> list[RankFactor]:
    """The factor of each block of a rank's tensor against the golden's, largest first. Raises NpucmpError."""
    known = [
        (_of_part(*own, context, 1.0), block) for block, own in _blocks_of(part, right, placements) if block is not None
    ]
    found = [RankFactor(rank, *sums, False, block) for sums, block in known if sums is not None]
    return sorted(found, key=lambda one: -abs(one.factor))


def _blocks_of(
    part: Payload, right: Payload, placements: Placements
) -> Iterator[tuple[Optional[int], tuple[Payload, Payload]]]:
    """The part, and its blocks by number."""
    yield None, (part, right)
    for one in placements:
        unit, rest = divmod(part.shape[one.dim], sum(one.blocks)) if len(one.blocks) > 1 else (0, 1)
        start = 0
        for number, block in enumerate(one.blocks if not rest else ()):
            both = (PAYLOADS.part(side, one.dim, start, start + block * unit) for side in (part, right))
            yield number, (next(both), next(both))
            start += block * unit


def _of_part(part: Payload, right: Payload, context: ReadContext, scale: float) -> Optional[tuple[float, float, float]]:
    """Return f of the part x = (1 + f) y, the error |x - y| / |y|, and its rest beside f."""
    return _factor((own / scale - exact, exact) for own, exact in _blocks(context, part, right))


def _of_term(
    term: Payload, whole: Payload, exact: Payload, context: ReadContext
) -> Optional[tuple[float, float, float]]:
    """Return f of the term t = (1 + f) s, the error of the whole in norms of s, and its rest beside f. The wholes
    differ by f s, which is f / (1 + f) of the term."""
    known = _factor((total - right, own) for own, total, right in _blocks(context, term, whole, exact))
    return None if known is None or known[0] >= 1.0 else (known[0] / (1.0 - known[0]), *known[1:])


def _factor(blocks_of: Iterable[tuple[Array, Array]]) -> Optional[tuple[float, float, float]]:
    """The factor of y in a difference, the norm of the difference and of what is left of it, in norms of y; None if it
    is not known."""
    gap, product, norm, elements = 0.0, 0.0, 0.0, 0
    for difference, right in blocks_of:
        gap, product = gap + float((difference * difference).sum()), product + float((difference * right).sum())
        norm, elements = norm + float((right * right).sum()), elements + right.size
    if not norm or elements < FEWEST or not math.isfinite(gap + product + norm):
        return None
    share = product / norm
    return share, math.sqrt(gap / norm), math.sqrt(max(0.0, gap / norm - share * share))


def _blocks(context: ReadContext, *payloads: Payload) -> Iterator[tuple[Array, ...]]:
    read = [blocks(one, BLOCK, context=context) for one in payloads]
    with np.errstate(all="ignore"):
        for some in zip(*read):
            yield tuple(one.astype(np.float64, copy=False) for one in some)
