"""What data show of the rank that stands out, where no part of a tensor has an error of its own."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Hashable, Iterator, Optional

from npucmp.align.part_errors import holds_extreme
from npucmp.align.placement_choice import Decision
from npucmp.align.placement_search import PlacementSearch
from npucmp.align.rank_mesh import Coordinates, Mesh
from npucmp.align.rank_run import HeldTensor, Origin, RankOperator
from npucmp.localise.evidence import reason
from npucmp.model import Evidence

OWN = 0.99  # share of a squared error: chosen: rounding of all elements is far below


def rank_facts(
    search: PlacementSearch, golden: RankOperator, tensor: HeldTensor, mesh: Mesh, decision: Decision,
    origins: dict[Coordinates, Origin],
) -> Iterator[Evidence]:  # fmt: skip
    """Yield what the values or statistics of a tensor on the ranks, and the operators before it, show of one rank."""
    rank = _of_terms(search, tensor, mesh, decision, origins)
    if rank is not None:
        yield reason("rank", "the elements that differ are those that rank {rank} alone adds to the sum", rank=rank)
        return
    yield from _of_parts(search, tensor, mesh, decision)
    yield from _of_operators(search, golden)


def _of_terms(
    search: PlacementSearch, tensor: HeldTensor, mesh: Mesh, decision: Decision, origins: dict[Coordinates, Origin]
) -> Optional[int]:
    """The rank whose term of a sum over ranks is not zero where the sum differs, and the others' terms are."""
    import numpy as np

    terms: dict[int, Any] = {}
    for at, operator in mesh.cells.items():
        part: Optional[HeldTensor] = search.part(tensor.operator.name, operator, tensor.slot)
        if decision.placements is None or not any(one.is_partial for one in decision.placements):
            origin = origins.get(at)
            source = origin.operator if origin is not None and origin.how == "collective" else None
            read = source.inputs if source is not None and source.type.has("sums ranks") else ()
            part = next((one for one in read if one.shape == tensor.shape), None)
        values = part.array if part is not None else None
        if values is None or values.shape != tensor.shape or operator.rank in terms:
            return None
        terms[operator.rank] = values
    exact = tensor.array
    if exact is None or len(terms) < 2:
        return None
    gap = np.square(sum(terms.values()) - exact, dtype=float)
    added = np.sum([one != 0 for one in terms.values()], axis=0) == 1
    for rank, own in terms.items():
        if gap.sum() and gap[added & (own != 0)].sum() > OWN * gap.sum():
            return rank
    return None


def _of_parts(search: PlacementSearch, tensor: HeldTensor, mesh: Mesh, decision: Decision) -> Iterator[Evidence]:
    """Yield which ranks hold one part, and which one has no value of the golden's, of a tensor in parts."""
    placements = decision.placements
    if placements is None or not any(one.is_split for one in placements) or any(one.is_partial for one in placements):
        return
    parts: dict[Coordinates, dict[int, HeldTensor]] = defaultdict(dict)
    for at, operator in mesh.cells.items():
        part = search.part(tensor.operator.name, operator, tensor.slot)
        if part is not None:
            parts[tuple(place if one.is_split else 0 for place, one in zip(at, placements))][operator.rank] = part
    holders: dict[Hashable, dict[int, Coordinates]] = defaultdict(dict)
    for place, held in parts.items():
        for rank, part in held.items():
            holders[part.content][rank] = place
    for content, places in holders.items():
        if content is not None and len({*places.values()}) > 1:
            other, rank = sorted(places)[-2:]
            yield reason("rank", "rank {rank} holds the same part as rank {other}", rank=rank, other=other)
            return
    if search.values or tensor.figures is None:
        return
    scale = decision.fit.scale if decision.fit is not None else 1.0
    without = {rank for held in parts.values() for rank, part in held.items() 
               if not holds_extreme(part, tensor, scale)}  # fmt: skip
    if len(without) == 1 and len(mesh.ranks) > 1:
        words = "the part of rank {rank} has neither the largest nor the smallest value of the golden, those of the "
        words += "others have one"
        yield reason("rank", words, rank=without.pop())


def _of_operators(search: PlacementSearch, golden: RankOperator) -> Iterator[Evidence]:
    """Yield the one rank that runs no call of an operator, if the golden has calls of it without a partner before this
    one, and all other ranks run some."""
    calls: dict[Hashable, set[Hashable]] = defaultdict(set)
    lacking: dict[Hashable, RankOperator] = {}
    for one in search.golden.operators:
        partners = search.partners.found.get(one.name, {}).values()
        calls[one.key, one.op.stack] |= {(partner.key, partner.op.stack) for partner in partners}
        if not partners and one.order < golden.order and not one.is_collective:
            lacking.setdefault((one.key, one.op.stack), one)
    own = {rank: {(one.key, one.op.stack) for one in run.operators} for rank, run in search.partners.ranks.items()}
    for kind, one in lacking.items():
        without = [rank for rank, kinds in own.items() if not kinds & calls[kind]]
        if calls[kind] and len(without) == 1:
            words = "rank {rank} runs no call such as {name} of the golden, which all others run"
            yield reason("lacks", words, rank=without[0], name=one.name)
            return
