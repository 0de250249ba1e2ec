"""Facts of the data about the rank that stands out, where no part of a tensor has an error of its own."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Hashable, Iterator, Optional

import numpy as np

from npucmp.localise.evidence import reason
from npucmp.model import Evidence
from npucmp.model.relation import ranks_in_words
from npucmp.relations.held_values import HeldTensor, RankOperator, tensor_in
from npucmp.relations.ranks.part_errors import holds_extreme
from npucmp.relations.ranks.placement import Fit
from npucmp.relations.ranks.placement_choice import Decision
from npucmp.relations.ranks.placement_search import PlacementSearch
from npucmp.relations.ranks.rank_mesh import Coordinates, Mesh
from npucmp.relations.ranks.rank_run import Origin

NO_REDUCTION = "no reduction"  # definition: the kind of this evidence
OWN = 0.99  # share of a squared error: chosen: rounding of all elements is far below
LEFT = 0.01  # of the least error of a copy: chosen: the total of all copies leaves their rounding, which is far below


def rank_facts(
    search: PlacementSearch, golden: RankOperator, tensor: HeldTensor, mesh: Mesh, decision: Decision,
    origins: dict[Coordinates, Origin],
) -> Iterator[Evidence]:  # fmt: skip
    """Yield what the values or statistics of a tensor on the ranks, and the operators before it, show of one rank."""
    terms = _terms(search, tensor, mesh, decision, origins)
    rank = _odd_term(terms, tensor)
    if rank is not None:
        yield reason("rank", "the elements that differ are those that rank {rank} alone adds to the sum", rank=rank)
        return
    parts = {} if terms or decision.fit is None else _parts(search, tensor, mesh, decision.fit)
    same = _equal_parts(parts)
    if same is not None:
        yield reason("rank", "rank {rank} holds the same part as rank {other}", rank=same[1], other=same[0])
    elif not search.values and tensor.figures is not None:
        held = {one: part for ranks in parts.values() for one, part in ranks.items()} or terms
        scale = decision.fit.scale if decision.fit is not None else 1.0
        without = [one for one, part in held.items() if not holds_extreme(part, tensor, scale)]
        if len(without) == 1 and len(held) > 1:
            words = "the part of rank {rank} has neither the largest nor the smallest value of the golden, those of "
            words += "the others have one"
            yield reason("rank", words, rank=without[0])
    yield from _of_operators(search, golden)


def unreduced(tensor: HeldTensor, mesh: Mesh, least: float) -> Iterator[Evidence]:
    """Yield what the copies of a tensor on the ranks lack if their sum or mean is the golden's: an all-reduce. Equal
    copies count once: they are replicas. `least` is the smallest error of a copy."""

    exact = tensor.array
    copies = [tensor_in(operator, tensor.slot) for operator in mesh.cells.values()]
    arrays = {copy.content: copy.array for copy in copies if copy is not None and copy.shape == tensor.shape}
    if exact is None or len(arrays) < 2 or any(one is None for one in arrays.values()) or np.iscomplexobj(exact):
        return
    wanted = exact.astype(float)
    total = sum(one.astype(float) for one in arrays.values() if one is not None)
    for made, value in (("sum", total), ("mean", total / len(arrays))):
        with np.errstate(all="ignore"):
            error = float(np.linalg.norm(value - wanted) / np.linalg.norm(wanted))  # NaN of zeros and of infinities
        if error <= LEFT * least:
            words = "the {made} of the copies on ranks {ranks} is the golden's (rel_l2 {error}): the reduction over "
            words += "these ranks is missing before it"
            yield reason(NO_REDUCTION, words, made=made, ranks=ranks_in_words(mesh.ranks), error=error)
            return


def _terms(
    search: PlacementSearch, tensor: HeldTensor, mesh: Mesh, decision: Decision, origins: dict[Coordinates, Origin]
) -> dict[int, HeldTensor]:
    """The terms of a tensor that is a sum over ranks, or that a collective made as one; none of another tensor."""
    terms: dict[int, HeldTensor] = {}
    for at, operator in mesh.cells.items():
        term: Optional[HeldTensor] = search.part(tensor.operator.name, operator, tensor.slot)
        if decision.placements is None or not any(one.is_partial for one in decision.placements):
            origin = origins.get(at)
            source = origin.operator if origin is not None and origin.how == "collective" else None
            read = source.inputs if source is not None and source.type.has("sums ranks") else ()
            term = next((one for one in read if one.shape == tensor.shape), None)
        if term is None or term.shape != tensor.shape or operator.rank in terms:
            return {}
        terms[operator.rank] = term
    return terms


def _odd_term(terms: dict[int, HeldTensor], tensor: HeldTensor) -> Optional[int]:
    """The rank whose term of a sum over ranks is not zero where the sum differs, and the others' terms are."""

    arrays = {rank: one.array for rank, one in terms.items()}
    exact = tensor.array
    if exact is None or len(terms) < 2 or any(one is None for one in arrays.values()):
        return None
    known: dict[int, Any] = arrays
    gap = np.square(sum(known.values()) - exact, dtype=float)
    is_alone = np.sum([one != 0 for one in known.values()], axis=0) == 1
    shares = {rank: gap[is_alone & (own != 0)].sum() for rank, own in known.items()}
    return next((rank for rank, share in shares.items() if share > OWN * gap.sum()), None)


def _parts(
    search: PlacementSearch, tensor: HeldTensor, mesh: Mesh, fit: Fit
) -> dict[Coordinates, dict[int, HeldTensor]]:
    """The parts of a tensor that ranks split, by their place in it and by rank."""
    parts: dict[Coordinates, dict[int, HeldTensor]] = defaultdict(dict)
    for at, operator in mesh.cells.items() if any(one.is_split for one in fit.placements) else ():
        part = search.part(tensor.operator.name, operator, tensor.slot)
        if part is not None:
            parts[tuple(place if one.is_split else 0 for place, one in zip(at, fit.placements))][operator.rank] = part
    return parts


def _equal_parts(parts: dict[Coordinates, dict[int, HeldTensor]]) -> Optional[list[int]]:
    """Two ranks that hold equal values at different places; None without."""
    holders: dict[Hashable, dict[int, Coordinates]] = defaultdict(dict)
    for place, held in parts.items():
        for rank, part in held.items():
            holders[part.content][rank] = place
    same = (sorted(places)[-2:] for content, places in holders.items()
            if content is not None and len({*places.values()}) > 1)  # fmt: skip
    return next(same, None)


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
