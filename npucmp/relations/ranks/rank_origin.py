"""The ranks of a root of an assembled run: the rank that stands out, the collective before it, and whether a reduction,
a layout or a scale is wrong.

Whether ranks hold each other's parts of a tensor, or read the parts of others in another order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from operator import ne
from typing import Iterator, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.errors import NpucmpError, SystemFailure
from npucmp.judge.precision import round_off_of
from npucmp.localise.evidence import reason
from npucmp.localise.root_cause import with_root_verdict
from npucmp.localise.rule_context import OUTLIER_FACTOR
from npucmp.localise.rules.accusations import SCALE_ROUND_OFFS
from npucmp.measure.pairs import payload_of as measured
from npucmp.model import Cause, Comparison, Evidence, Finding, Pair, Root, Verdict
from npucmp.model.dtypes import size_of
from npucmp.model.relation import ranks_in_words
from npucmp.model.roles import is_output, peer_of
from npucmp.relations.held_values import HeldTensor, RankOperator, tensor_in
from npucmp.relations.ranks import partial_sums as legal
from npucmp.relations.ranks.assembled_run import relation_of
from npucmp.relations.ranks.part_errors import STANDS_OUT, odd_rank, part_errors, rank_beyond
from npucmp.relations.ranks.placement import ARRAYS, WEAK, Placements, distance
from npucmp.relations.ranks.placement_choice import AGREES, Decision
from npucmp.relations.ranks.placement_search import PlacementSearch
from npucmp.relations.ranks.rank_factor import block_factors, rank_factors
from npucmp.relations.ranks.rank_facts import NO_REDUCTION, rank_facts, unreduced
from npucmp.relations.ranks.rank_mesh import Mesh, Misfit
from npucmp.relations.ranks.rank_part import PartOfRank
from npucmp.relations.ranks.rank_run import NOWHERE, Origin


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


BEYOND = 2.0  # limits: chosen, parts of unlike size may differ by one
STEPS = 4  # operators of the target between a collective and its reader: work
NAMED = 8  # ranks in a sentence: work
EXPLAINED = 0.05  # relative: chosen: a difference is a multiple of a tensor, or a factor, to this share


def with_gaps_first(roots: Sequence[Root]) -> list[Root]:
    """The roots in an order in which no GAP stands behind a root further downstream, with new places. A missing
    reduction is known from the ranks, not from the run that is put together."""
    found: list[Root] = []
    for root in sorted(roots, key=lambda one: one.place):
        later = (at for at, one in enumerate(found) if one.pair.order > root.pair.order)
        at = next(later, len(found)) if root.cause is Cause.GAP else len(found)
        found.insert(at, root)
    return [replace(root, place=at) for at, root in enumerate(found, 1)]


class _Place(NamedTuple):
    """The tensor of a root on the ranks."""

    golden: RankOperator
    tensor: HeldTensor
    mesh: Mesh
    decision: Decision
    origins: dict[tuple[int, ...], Origin]


def with_ranks(root: Root, search: PlacementSearch) -> Root:
    """The root with its ranks, relation and collective, and what they say of it."""
    golden_op = root.pair.golden_op
    golden = search.golden.by_name.get(golden_op.name) if golden_op is not None else None
    mesh = search.partners.mesh(golden) if golden is not None else None
    if golden is None or mesh is None:
        return root
    place = _place(search, golden, mesh, root.slot)
    if place is None:
        return replace(root, ranks=mesh.ranks)
    errors = part_errors(search, mesh, place.tensor, place.decision)
    rank = root.rank if root.rank is not None else mesh.ranks[0] if len(mesh.ranks) == 1 else odd_rank(errors)
    evidence = [*_sentences(search, place, root, errors, rank)]
    others = search.partners.experts.others(golden)
    if len(others) == 1 and (place.decision.state == "shape" or place.decision.rows is not None):
        rank = others[0]
        evidence.append(reason("rank", "rank {rank} lacks the operator, of which the others have parts", rank=rank))
    if rank is None and not errors and place.tensor.ref.is_output:
        rank = rank_beyond(search, mesh, place.tensor, place.decision)
        if rank is not None:
            words = "the part of rank {rank} is no part of the golden: its statistics exceed those of the whole tensor"
            evidence.append(reason("rank", words, rank=rank))
    if root.cause is not Cause.PROPAGATED and not any(one.kind == "rank" for one in evidence):
        evidence += rank_facts(search, golden, place.tensor, mesh, place.decision, place.origins)
        if len(mesh.ranks) == 1 and evidence and evidence[-1].kind == "lacks":  # it holds what ranks have reduced
            rank = int(str(evidence[-1].facts["rank"].value))
    sender = _sender(search, place, rank) if root.cause is Cause.GAP else None
    if sender is not None:
        words = "rank {rank} received it from rank {sender}, which sent the same values"
        evidence.append(reason("rank", words, rank=rank, sender=sender))
    relation = None if place.decision.fit is None else relation_of(search, place.tensor, place.decision, mesh)
    is_unreduced = root.cause is Cause.UNKNOWN and any(one.kind == NO_REDUCTION for one in evidence)
    return replace(
        root,
        cause=Cause.GAP if is_unreduced else root.cause,
        ranks=mesh.ranks,
        rank=rank if sender is None else sender,
        relation=relation.words if relation is not None else "",
        collective=_collective(search, place) or _mates_collective(search, place),
        evidence=(*root.evidence, *evidence),
    )


def with_other_operators(root: Root, search: PlacementSearch, findings: Sequence[Finding]) -> Root:
    """The root at the output of a golden operator in whose place the ranks have others, if an input that such an output
    should be is the first to differ: batch norm from reduced sums, attention in blocks."""
    golden_op = root.pair.golden_op
    golden = search.golden.by_name.get(golden_op.name) if golden_op is not None else None
    tensor = tensor_in(golden, root.slot) if golden is not None and root.cause is Cause.GAP else None
    made = search.golden.origin(tensor).tensor if tensor is not None and not tensor.ref.is_output else None
    if made is None or made.operator.is_collective or search.partners.found.get(made.operator.name):
        return root
    writers = (one for one in search.golden.operators if search.partners.found.get(one.name))
    if any(each.content == made.content is not None for one in writers for each in one.outputs):
        return root  # a module around it returns what an operator of the ranks makes
    if any(one.key == made.operator.key for run in search.partners.ranks.values() for one in run.operators):
        return root  # the ranks have such operators: another one may be missing
    if golden is not None and search.golden.is_update(golden) and not search.golden.is_update(made.operator):
        return root  # gradients are reduced between
    pair = next((one.pair for one in findings if one.pair.golden_op is not None and one.pair.slot == made.slot
                 and one.pair.golden_op.name == made.operator.name), None)  # fmt: skip
    if pair is None:
        return root
    words = "the ranks have other operators in its place; {reader} {slot} reads what they make"
    own = reason("otherwise", words, reader=root.pair.operator.name, slot=root.slot)
    return replace(root, pair=pair, slot=made.slot, evidence=(own, *root.evidence))


def with_missing_reduction(root: Root, search: PlacementSearch, findings: Sequence[Finding]) -> Root:
    """The root at the first output that holds terms of what a reduction is missing for, and no terms in other layers:
    the operator that reduces there. A module returns what an operator in it wrote."""
    golden = search.golden.by_name.get(root.pair.golden_op.name) if root.pair.golden_op is not None else None
    tensor = tensor_in(golden, root.slot) if golden is not None else None
    if tensor is None or tensor.content is None or not any(one.kind == NO_REDUCTION for one in root.evidence):
        return root
    by_place = {
        (one.pair.golden_op.name, one.pair.slot): one.pair for one in findings if one.pair.golden_op is not None
    }
    for operator in search.golden.operators:
        if operator is golden:
            break
        mesh = search.partners.mesh(operator)
        same = [one for one in operator.outputs if one.content == tensor.content]
        for one in same if mesh is not None else ():
            place = _place(search, operator, mesh, one.slot) if mesh is not None else None
            pair = by_place.get((operator.name, one.slot))
            if place is None or pair is None or not _is_sum(place):
                continue
            role = search.role_of(operator)
            mates = [mate for mate in _mates(search, place) if search.role_of(mate.golden) == role]
            if all(map(_is_sum, mates)):
                continue
            return replace(root, pair=pair, slot=one.slot)
    return root


def _is_sum(place: _Place) -> bool:
    return any(one.is_partial for one in place.decision.placements or ())


def _sender(search: PlacementSearch, place: _Place, rank: Optional[int]) -> Optional[int]:
    """The rank that sent what a rank received and read, as it was sent; None if a rank received nothing, or other
    values."""
    for at, origin in place.origins.items():
        receive, tensor = origin.operator, origin.tensor
        if place.mesh.cells[at].rank != rank or receive is None or tensor is None or tensor.content is None:
            continue
        peer = peer_of(receive.op) if receive.type.has("point to point") else None
        run = search.partners.ranks.get(peer) if peer is not None else None
        sent = run.operators if run is not None else ()
        if any(one.content == tensor.content for op in sent if op.is_collective for one in op.inputs):
            return peer
    return None


def _place(search: PlacementSearch, golden: RankOperator, mesh: Mesh, slot: str) -> Optional[_Place]:
    tensor = tensor_in(golden, slot)
    decision = search.found.get((golden.name, slot))
    if tensor is None or decision is None:
        return None
    return _Place(golden, tensor, mesh, decision, search.origins(mesh, slot))


def _collective(search: PlacementSearch, place: _Place) -> str:
    """The collective that wrote what the tensor holds, perhaps before operators that only the target has."""
    for origin in place.origins.values():
        for _ in range(STEPS):
            operator = origin.operator
            if operator is None or (operator.rank, operator.name) in search.partners.golden_of:
                break
            if origin.how == "collective":
                return operator.name
            read = next((one for one in operator.inputs if one.is_float), None)
            origin = search.partners.ranks[operator.rank].origin(read) if read is not None else NOWHERE
    return ""


def _mates(search: PlacementSearch, place: _Place) -> Iterator[_Place]:
    """The same tensor in other layers."""
    own = search.class_of(place.golden, place.tensor)
    for other in search.golden.operators:
        if other.key != place.golden.key or other is place.golden:
            continue
        tensor = tensor_in(other, place.tensor.slot)
        mesh = search.partners.mesh(other) if tensor is not None else None
        if tensor is not None and mesh is not None and search.class_of(other, tensor) == own:
            found = _place(search, other, mesh, tensor.slot)
            if found is not None:
                yield found


def _mates_collective(search: PlacementSearch, place: _Place) -> str:
    found = (_collective(search, mate) for mate in _mates(search, place))
    return next(filter(None, found), "") if place.decision.illegal else ""


def _sentences(
    search: PlacementSearch, place: _Place, root: Root, errors: dict[int, float], rank: Optional[int]
) -> Iterator[Evidence]:
    ranks = ranks_in_words(place.mesh.ranks)
    if place.decision.mates and place.decision.fit is not None:
        others = " · ".join(one.words for one in place.decision.fit.placements if one.kind != "whole") or "whole"
        words = "held as {own}, elsewhere as {others}"
        yield reason("layout", words, own=place.decision.mates, others=others)
    if place.decision.illegal:
        writer = next((one.operator.name for one in place.origins.values() if one.operator is not None), "")
        run = search.partners.ranks
        feeds = all(any(run[op.rank].feeds_collective(out) for out in op.outputs) for op in place.mesh.cells.values())
        if feeds and place.golden.type.has("sums"):
            words = "an addend is added once per rank of {ranks}, before the reduction: {count} times instead of once"
            yield reason("added per rank", words, ranks=ranks, count=len(place.mesh.ranks))
        else:
            words = "the {made} over ranks {ranks} of {writer} agrees; each rank reads its own part: a reduction is "
            words += "missing before it"
            yield reason(NO_REDUCTION, words, made=_kind(search, place), ranks=ranks, writer=writer)
        mate = _mates_collective(search, place)
        if mate:
            yield reason("collective", "in another layer it is {name}", name=mate)
    else:
        yield from _wrong_group(search, place)
        yield from _order(search, place) if root.cause is not Cause.PROPAGATED else ()
    if rank is not None and rank == odd_rank(errors):
        rest = max(error for other, error in errors.items() if other != rank)
        if place.decision.fit is not None and any(one.kind != "whole" for one in place.decision.fit.placements):
            words = "the part of rank {rank} differs ({error}), those of the others by at most {others}"
        else:
            words = "copies differ: the copy of rank {rank} differs ({error}), those of the others by at most {others}"
        yield reason("rank", words, rank=rank, error=errors[rank], others=rest)
    elif len({*errors.values()}) > 1 and not place.decision.illegal and not legal.split_axes(place.decision.placements):
        words = "copies on ranks {ranks} differ from each other and from the golden ({least} to {most})"
        yield reason("copies", words, ranks=ranks, least=min(errors.values()), most=max(errors.values()))
        if root.cause is not Cause.PROPAGATED:
            yield from unreduced(place.tensor, place.mesh, min(errors.values()))
    yield from _scale(search, place)


def _kind(search: PlacementSearch, place: _Place) -> str:
    """The total that the golden's operator makes of the parts: "sum", "mean" or "maximum"."""
    source = search.golden.origin(place.tensor).tensor
    placed = search.placed(source.operator, source) if source is not None else None
    kinds = {one.kind for one in placed or () if one.is_partial}
    return {"max": "maximum", "mean": "mean"}.get(kinds.pop(), "sum") if len(kinds) == 1 else "sum"


def _order(search: PlacementSearch, place: _Place) -> Iterator[Evidence]:
    """Whether parts are in another order than their ranks."""
    if place.decision.state != "differs" or place.decision.placements is None:
        return
    source = search.golden.origin(place.tensor).tensor
    written = search.placed(source.operator, source) if source is not None else None
    found = exchanged_parts(search, place.mesh, place.tensor, place.decision.placements)
    if found is not None:
        pairs = [f"rank {rank} that of rank {other}" for rank, other in found.items() if rank != other]
        held = ", ".join([*pairs[:NAMED], *["…"] * (len(pairs) > NAMED)])
        yield reason("order", "ranks hold parts of each other: {held}", held=held)
    elif written is not None and len(written) == len(place.mesh.sizes):
        order = joined_order(search, place.mesh, place.tensor, written)
        if order is not None:
            words = "each rank reads the parts of ranks {ranks} in another order: {order}"
            yield reason(
                "order",
                words,
                ranks=ranks_in_words(order),
                order=", ".join([*map(str, order[:NAMED]), *["…"] * (len(order) > NAMED)]),
            )


def _wrong_group(search: PlacementSearch, place: _Place) -> Iterator[Evidence]:
    own = _groups(place)
    if not own:
        return
    for mate in _mates(search, place):
        others = _groups(mate)
        if others and mate.decision.state == "agrees" and others != own:
            words = "it was reduced over ranks {own}, in other layers over {others}"
            yield reason("group", words, own=" and ".join(map(ranks_in_words, own)),
                         others=" and ".join(map(ranks_in_words, others)))  # fmt: skip
            return


def _groups(place: _Place) -> list[tuple[int, ...]]:
    return sorted({group for one in place.origins.values() if one.how == "collective" and one.operator is not None
                   for group in one.operator.groups})  # fmt: skip


def _scale(search: PlacementSearch, place: _Place) -> Iterator[Evidence]:
    """Whether an update reads gradients that were not divided."""
    fit, exact = place.decision.fit, place.tensor.array
    if fit is None or exact is None or not search.golden.is_update(place.golden) or search.scale in (None, 1.0):
        return
    one = tensor_in(place.mesh.first, place.tensor.slot)
    found = one.array if one is not None else None
    if found is None or found.shape != exact.shape or not exact.size:
        return
    factor = float((found * exact).sum() / ((exact * exact).sum() or 1.0))
    if search.scale is not None and abs(factor / search.scale - 1.0) < EXPLAINED:
        words = "gradients are {factor:.4g} times the golden's from {start} on and were not divided before {name}"
        yield reason("scale", words, factor=search.scale, start=search.scaled_from, name=place.mesh.first.name)


FLOOR = 1e-4  # error of statistics: chosen: clean pairs of float32 are below, not measured
COARSE_FLOOR = 0.03  # error of statistics: chosen: clean pairs of bfloat16 are below, not measured
# relative: chosen: a gradient so much smaller than its source is what rounding left of zero, not measured
CANCELS = 1e-5
JUMP = 20.0  # times: chosen: clean errors of statistics grow more slowly from one tensor to the next


def with_odd_part(one: Comparison, search: PlacementSearch) -> Comparison:
    """The comparison with a root for the first tensor of which the part of one rank errs far more than those of all
    others and than what it was made of, or is off by one factor, although the whole is within its limit. Parts of one
    tensor err alike."""
    first = min((root.pair.order for root in one.roots if root.cause is not Cause.PROPAGATED), default=None)
    for finding in one.findings:
        pair = finding.pair
        if first is not None and pair.order >= first:
            break
        relation = pair.target.relation if pair.target is not None else None
        if finding.verdict is not Verdict.MATCH or relation is None or pair.golden_op is None or not pair.golden:
            continue
        if not finding.error or not finding.limit or len(relation.ranks) < 2:
            continue
        size = finding.error * math.sqrt(len(relation.ranks))
        # the errors of its inputs explain an output beyond its limit
        is_large = size >= finding.limit and not (is_output(pair) and finding.error > finding.limit)
        found = _odd_part(search, pair, finding.limit) if is_large else None
        if found is None and size >= SCALE_ROUND_OFFS * round_off_of(pair) > 0:
            found = _odd_factor(search, pair)
        if found is not None:
            return _with_first(one, finding, *found, "odd_part")
    return one


def with_odd_block(one: Comparison, context: ReadContext) -> Comparison:
    """The comparison with a root for the first output of which one block is off by one factor, although the whole is
    within its limit: query, key or value of a fused product. The golden's ranks show the blocks."""
    first = min((root.pair.order for root in one.roots if root.cause is not Cause.PROPAGATED), default=math.inf)
    for finding in one.findings:
        pair = finding.pair
        held = pair.golden.relation.placements if pair.golden is not None and pair.golden.relation is not None else ()
        count = max((len(each.blocks) for each in held), default=0)
        least = SCALE_ROUND_OFFS * round_off_of(pair)
        if pair.order >= first or finding.verdict is not Verdict.MATCH or count < 2 or not is_output(pair):
            continue
        if not finding.error or finding.error * math.sqrt(count) < least:
            continue
        try:
            sides = [None if side is None else measured(side, context=context) for side in (pair.target, pair.golden)]
            if sides[0] is None or sides[1] is None or sides[0].shape != sides[1].shape:
                continue
            factors = block_factors(sides[0], sides[1], held, context, one.rank or 0)
        except SystemFailure:
            raise
        except NpucmpError:
            continue
        given = [each.error for each in one.findings if each.pair.order == pair.order and not is_output(each.pair)]
        if len(factors) < 2 or None in given or not factors[0].is_all:
            continue
        own, others = factors[0], abs(factors[1].factor)
        if abs(own.factor) < max(
            least, STANDS_OUT * others, OUTLIER_FACTOR * max(map(float, filter(None, given)), default=0.0)
        ):
            continue
        words = "block {block} of the part of rank {rank} is {factor:.4g} times the golden's ({rest} beside the factor)"
        said = reason("rank", words, block=own.block, rank=own.rank, factor=1.0 + own.factor, rest=own.rest)
        return _with_first(one, finding, own.rank, own.error, others, said, "odd_part")
    return one


def _with_first(
    one: Comparison,
    finding: Finding,
    rank: int,
    error: Optional[float],
    others: Optional[float],
    own: Evidence,
    rule: str,
) -> Comparison:
    """The comparison with a root for a finding, before all others."""
    pair = finding.pair
    cause = Cause.BORN if is_output(pair) else Cause.GAP
    root = Root(1, pair, cause, pair.slot, "rel_l2", error, finding.limit, others, error, (own,), rule, rank=rank)
    kept = [each for each in one.roots if each.pair.order != pair.order]
    roots = root, *(replace(each, place=at) for at, each in enumerate(kept, 2))
    return replace(one, findings=with_root_verdict(one.findings, root), roots=roots)


def with_odd_type(one: Comparison, search: PlacementSearch) -> Comparison:
    """The comparison with a root for the first tensor that one rank alone holds in a coarser type than the golden.
    Other ranks hold it, in this call or in others, in the golden's. The limits of the coarser type hide the fault."""
    first = min((root.pair.order for root in one.roots if root.cause is not Cause.PROPAGATED), default=None)
    odd = _odd_type(search)
    if odd is None:
        return one
    name, slot, rank, held_as, usual = odd
    finding = next((each for each in one.findings if each.pair.golden_op is not None
                    and (each.pair.golden_op.name, each.pair.slot) == (name, slot)), None)  # fmt: skip
    if finding is None or (first is not None and finding.pair.order >= first):
        return one
    words = "rank {rank} holds it as {own}, the others as {others}"
    own = reason("rank", words, rank=rank, own=held_as, others=usual)
    return _with_first(one, finding, rank, finding.error, None, own, "odd_type")


def _odd_type(search: PlacementSearch) -> Optional[tuple[str, str, int, str, str]]:
    """The first such tensor: operator and slot of the golden, the rank, its type, and that of the golden."""
    types: dict[object, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    coarser: list[tuple[object, RankOperator, HeldTensor]] = []
    for golden in search.golden.operators:
        mesh = search.partners.mesh(golden)
        for tensor in golden.tensors if mesh is not None else ():
            if mesh is None or not tensor.is_float:
                continue
            parts = [(op.rank, search.part(golden.name, op, tensor.slot)) for op in mesh.cells.values()]
            key = search.class_of(golden, tensor)
            for rank, part in parts:
                if part is not None:
                    types[key][rank].add(part.ref.dtype)
            if any(
                part is not None and size_of(part.ref.dtype, (1,)) < size_of(tensor.ref.dtype, (1,))
                for _, part in parts
            ):
                coarser.append((key, golden, tensor))
    for key, golden, tensor in coarser:
        odd = [rank for rank, own in types[key].items() if own != {tensor.ref.dtype}]
        if len(odd) == 1 and len(types[key]) > 1:
            return golden.name, tensor.slot, odd[0], min(types[key][odd[0]]), tensor.ref.dtype
    return None


def _odd_part(search: PlacementSearch, pair: Pair, limit: float) -> Optional[tuple[int, float, float, Evidence]]:
    """The rank whose part errs far more than the others, its error, and the largest of theirs."""
    known = _made_of(search, pair)
    if known is None:
        return None
    tensor, read = known
    errors = _errors_of(search, tensor)
    rank = odd_rank(errors)
    if rank is None or errors[rank] <= BEYOND * limit:
        return None
    others = max(error for other, error in errors.items() if other != rank)
    for one in read:
        given = _errors_of(search, one)
        rest = [error for other, error in given.items() if other != rank]
        if one.is_float and search.state(one.operator, one) not in ("agrees", ""):  # its own share may differ
            return None
        if rank in given and given[rank] > errors[rank] / STANDS_OUT and given[rank] > 2 * max(rest, default=0.0):
            return None
    words = "the part of rank {rank} differs ({error}), those of the others by at most {others}: parts of one "
    words += "tensor err alike"
    return rank, errors[rank], others, reason("rank", words, rank=rank, error=errors[rank], others=others)


def _odd_factor(search: PlacementSearch, pair: Pair) -> Optional[tuple[int, float, float, Evidence]]:
    """The rank whose part or term is off by a factor, as rule `scaled` asks it of a whole; the error that it makes, and
    the largest factor of the others."""
    made = _made_of(search, pair)
    mesh = search.partners.mesh(made[0].operator) if made is not None else None
    decision = search.found.get((made[0].operator.name, made[0].slot)) if made is not None else None
    if made is None or mesh is None or decision is None:
        return None
    factors = sorted(rank_factors(search, mesh, made[0], decision), key=lambda one: -abs(one.factor))
    if len(factors) < 2:
        return None
    own, second = factors[0], factors[1]
    is_odd = not second.is_all if own.is_term else abs(second.factor) < abs(own.factor) / STANDS_OUT
    if abs(own.factor) < SCALE_ROUND_OFFS * round_off_of(pair) or not (own.is_all and is_odd):
        return None
    for one in made[1]:
        given = _errors_of(search, one).get(own.rank)
        is_read = one.is_float and search.state(one.operator, one) not in (
            "local",
            "shape",
        )  # else a bias that is added behind
        if is_read and (given is None or abs(own.factor) <= OUTLIER_FACTOR * given):
            return None
    known = {"rank": own.rank, "factor": 1.0 + own.factor, "rest": own.rest}
    words = "the part of rank {rank} is {factor:.4g} times the golden's ({rest} beside the factor)"
    if own.is_term:
        words = "the term of rank {rank} is {factor:.4g} times what makes the golden's sum ({rest} beside the factor)"
    elif own.block is not None:
        known["block"] = own.block
        words = "block {block} of the part of rank {rank} is {factor:.4g} times the golden's ({rest} beside the factor)"
    return own.rank, own.error, abs(second.factor), reason("rank", words, **known)


def _made_of(search: PlacementSearch, pair: Pair) -> Optional[tuple[HeldTensor, Sequence[HeldTensor]]]:
    """The golden's tensor and what it was made of: the inputs of its operator, or the tensor that it reads. None in an
    update, as Adam divides by gradients near zero, and for an input of unknown origin."""
    assert pair.golden_op is not None
    golden = search.golden.by_name.get(pair.golden_op.name)
    tensor = tensor_in(golden, pair.slot) if golden is not None and not search.golden.is_update(golden) else None
    if golden is None or tensor is None or is_output(pair):
        return None if tensor is None else (tensor, golden.inputs if golden is not None else ())
    source = search.golden.origin(tensor).tensor
    return None if source is None else (tensor, [source])


def _errors_of(search: PlacementSearch, tensor: HeldTensor) -> dict[int, float]:
    own, decision = search.partners.mesh(tensor.operator), search.found.get((tensor.operator.name, tensor.slot))
    return {} if own is None or decision is None else part_errors(search, own, tensor, decision)


def with_first_moved(one: Comparison, search: PlacementSearch) -> Comparison:
    """The comparison with a suspect for the first tensor whose statistics leave those that agreed before it, if no root
    is there or before. Partial sums have a mean alone, which decides only beside what is made of them."""
    found = None if search.values else _first_moved(search)
    if found is None:
        return one
    golden, tensor, error, before = found
    orders = {root.pair.golden_op.name: root for root in one.roots if root.pair.golden_op is not None}
    earlier = [root for name, root in orders.items() if root.cause is not Cause.PROPAGATED
               and name in search.golden.by_name and search.golden.by_name[name].order <= golden.order]  # fmt: skip
    pair = next((each.pair for each in one.findings if each.pair.golden_op is not None
                 and each.pair.golden_op.name == golden.name and each.pair.slot == tensor.slot), None)  # fmt: skip
    if earlier or pair is None:
        return one
    words = "its statistics differ by {error}, those of all tensors before it by at most {before}"
    own = reason("statistics", words, error=error, before=before)
    root = Root(
        1, pair, Cause.SUSPECT, tensor.slot, "rel_l2", error, max(FLOOR, JUMP * before), None, None, (own,), "suspected"
    )
    others = [each for each in one.roots if each.pair.order != pair.order]
    return replace(one, roots=(root, *(replace(each, place=at) for at, each in enumerate(others, 2))))


def _first_moved(search: PlacementSearch) -> Optional[tuple[RankOperator, HeldTensor, float, float]]:
    worst, cancelled = 0.0, set()
    for golden in search.golden.operators:
        given = [one.norm or 0.0 for one in golden.inputs if one.is_float]
        for tensor in golden.tensors:
            decision = search.found.get((golden.name, tensor.slot))
            if decision is None or decision.fit is None or decision.state == "local" or not tensor.is_float:
                continue
            source = search.golden.origin(tensor).tensor if tensor in golden.inputs else None
            left = (
                golden.is_backward
                and tensor in golden.outputs
                and (tensor.norm or 0.0) < CANCELS * max(given, default=0.0)
            )
            if (
                left
                or search.is_noise(tensor)
                or (source is not None and id(source) in cancelled)
                or any(id(one) in cancelled for one in golden.inputs)
            ):
                cancelled.add(id(tensor))
                continue
            if any(one.is_partial or one.kind == "grouped" for one in decision.fit.placements):
                continue
            error = decision.fit.error
            most = max(COARSE_FLOOR if "16" in tensor.ref.dtype else FLOOR, JUMP * worst)
            if error > most:
                return _moved_sum(search, source, most, worst) or (golden, tensor, error, worst)
            worst = max(worst, error)
    return None


def _moved_sum(
    search: PlacementSearch, source: Optional[HeldTensor], most: float, worst: float
) -> Optional[tuple[RankOperator, HeldTensor, float, float]]:
    """The partial sum that a tensor is made of, if its mean left those before it too. A sum of terms whose mean agrees
    was reduced wrongly behind it."""
    decision = search.found.get((source.operator.name, source.slot)) if source is not None else None
    if source is None or decision is None or decision.fit is None:
        return None
    is_sum = any(one.is_partial for one in decision.fit.placements)
    if not is_sum or decision.fit.error in (WEAK, math.inf) or decision.fit.error <= most:
        return None
    return source.operator, source, decision.fit.error, worst
