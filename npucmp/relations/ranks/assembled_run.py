"""A run of several ranks as one run in the names of a run of one rank: every tensor is a relation of the ranks'."""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from typing import Any, Iterator, Mapping, Optional

from npucmp.model import Operator, Run, TensorRef
from npucmp.model.dtypes import size_of
from npucmp.model.relation import LOCAL, OPEN, PlacedCollective, PlacedTensor, Relation, ranks_in_words
from npucmp.relations.held_values import HeldTensor, RankOperator, tensor_in
from npucmp.relations.ranks.part_errors import part_errors
from npucmp.relations.ranks.placement import norm_of_terms, payload_of, statistics_of
from npucmp.relations.ranks.placement_choice import Decision
from npucmp.relations.ranks.placement_search import PlacementSearch
from npucmp.relations.ranks.rank_mesh import Mesh


def assembled_run(search: PlacementSearch, path: str) -> Run:
    """The operators of the golden with the target's tensors. Tensors that each rank has of its own, and operators
    without a partner on some rank, are not in it."""
    operators = []
    first = next(iter(search.partners.ranks.values())).run
    for golden in search.golden.operators:
        mesh = search.partners.mesh(golden)
        if mesh is not None:
            operators.append(_operator(search, golden, mesh))
    ranks = sorted(search.partners.ranks)
    return replace(first, path=path, operators=tuple(operators), rank=None, notes=_notes(search),
                   detail=" · ".join(filter(None, [first.detail, f"{len(ranks)} ranks put together"])))  # fmt: skip


def golden_run(search: PlacementSearch) -> Run:
    """The golden run, with the headers that the search has read. Tensors of which each rank has a share are marked:
    what is made of them is compared. So are those in whose place ranks hold tensors that are no known parts."""
    ranks = tuple(sorted(search.partners.ranks))
    local, open_ = Relation(ranks, (LOCAL,)), Relation(ranks, (OPEN,))
    operators = []
    for one in search.golden.operators:
        tensors = {each.slot: _with_header(each) for each in one.tensors}
        marks = {slot: local for slot in tensors if (one.name, slot) in search.covered}
        marks.update({slot: open_ for slot in tensors.keys() - marks.keys() if _is_open(search, one, slot)})
        marked = {slot: mark for slot, mark in marks.items() if tensors[slot].relation is None}
        tensors.update({slot: tensors[slot]._replace(relation=mark) for slot, mark in marked.items()})
        operators.append(one.op._replace(tensors=tuple(tensors[each.slot] for each in one.op.tensors)))
    return replace(search.golden.run, rank=None, operators=tuple(operators))


def _is_open(search: PlacementSearch, golden: RankOperator, slot: str) -> bool:
    decision, mesh = search.found.get((golden.name, slot)), search.partners.mesh(golden)
    return decision is not None and decision.state == "local" and mesh is not None and all(
        tensor_in(operator, slot) is not None for operator in mesh.cells.values()
    )  # fmt: skip


def _with_header(one: HeldTensor) -> TensorRef:
    """The tensor with its header, unless the header contradicts the dump."""
    payload = one.payload
    return one.ref if payload is None or payload.dtype != one.ref.dtype else one.ref._replace(payload=payload)


def placed(search: PlacementSearch, step: Optional[int]) -> Iterator[PlacedTensor]:
    """The relation of every tensor, in the order of the golden."""
    for golden in search.golden.operators:
        mesh = search.partners.mesh(golden)
        for one in golden.tensors:
            if mesh is None:
                is_share = (golden.name, one.slot) in search.covered
                yield PlacedTensor(step, golden.name, one.slot, "local" if is_share else "without a partner")
                continue
            decision = search.found[golden.name, one.slot]
            relation = None if decision.fit is None else relation_of(search, one, decision, mesh)
            yield PlacedTensor(step, golden.name, one.slot, decision.state, relation)


def collectives(search: PlacementSearch, step: Optional[int]) -> Iterator[PlacedCollective]:
    """The collectives of all ranks by the operator of the golden before which they run, in its order."""
    found: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for rank, run in sorted(search.partners.ranks.items()):
        waiting: list[str] = []
        for one in run.operators:
            golden = search.partners.golden_of.get((rank, one.name))
            if golden is None:
                waiting += [one.name] if one.is_collective else []
                continue
            for name in waiting:
                found[golden.order, golden.name, name].append(rank)
            waiting = []
        for name in waiting:
            found[sys.maxsize, "", name].append(rank)
    for (_, before, name), ranks in sorted(found.items(), key=lambda both: both[0][0]):
        yield PlacedCollective(step, name, before, tuple(ranks))


def layout_words(search: PlacementSearch) -> str:
    """The layout of the target in words: stated sizes, or recorded groups and stages."""
    partners = search.partners
    if partners.sizes is not None:
        return partners.sizes.words
    stages = max(partners.stages.values()) + 1
    words = [f"{len(partners.ranks)} ranks"] if len(partners.ranks) > 1 else ["1 rank"]
    words += [f"pp={stages}"] if stages > 1 else []
    words += [f"{partners.micro_batches} micro batches"] if partners.micro_batches > 1 else []
    groups = partners.groups
    words += [f"groups {' '.join(map(ranks_in_words, groups))}"] if groups else []
    return ", ".join(words)


SUMMED = 2.0  # times: chosen: a sum over ranks rounds its terms and, in a collective, itself


def relation_of(search: PlacementSearch, golden: HeldTensor, decision: Decision, mesh: Mesh) -> Relation:
    """The relation of a decided tensor."""
    assert decision.fit is not None
    axes = [axis for axis, size in enumerate(mesh.sizes) if size > 1 or decision.fit.placements[axis].kind == "rows"]
    operators = dict.fromkeys(
        (one.rank, one.name) for _, one in sorted(mesh.cells.items(), key=lambda both: both[0][::-1])
    )
    placements = tuple(decision.fit.placements[axis] for axis in axes)
    rounding = _rounding(search, golden, decision, mesh) if any(one.is_partial for one in placements) else 1.0
    known = decision.fit.scale, decision.by, decision.fit.error, rounding
    errors = part_errors(search, mesh, golden, decision) if golden.ref.is_output else {}
    first = search.part(golden.operator.name, mesh.first, golden.slot)
    view = first.ref.relation.words if first is not None and first.ref.relation is not None else ""
    return Relation(
        mesh.ranks, placements, tuple(operators), *known, tuple(sorted(errors.items())), decision.proven, view
    )


def _rounding(search: PlacementSearch, golden: HeldTensor, decision: Decision, mesh: Mesh) -> float:
    """The norm of the terms of a sum over ranks, in norms of the sum, and twice that, as terms and sum are rounded."""
    assert decision.fit is not None
    whole = golden.norm
    terms = norm_of_terms(mesh, search.parts_of(golden), decision.fit) if whole else None
    return SUMMED * max(1.0, terms / whole) if terms is not None and whole else SUMMED


def _operator(search: PlacementSearch, golden: RankOperator, mesh: Mesh) -> Operator:
    tensors = [
        found for one in golden.op.tensors for found in [_tensor(search, golden, one, mesh)] if found is not None
    ]
    own = mesh.first.op
    return golden.op._replace(
        tensors=tuple(tensors),
        arguments=_arguments(search, golden, mesh),
        stack=own.stack,
        scope="",
        own_name=own.name,
    )


def _arguments(search: PlacementSearch, golden: RankOperator, mesh: Mesh) -> Mapping[str, Any]:
    """The arguments of the ranks. If they are not alike, those of a rank that differ from the golden's, if an output
    differs too; else the golden's, as a rank counts its own part."""
    if len({one.arguments for one in mesh.cells.values()}) == 1:
        return mesh.first.op.arguments
    other = next((one for one in mesh.cells.values() if one.arguments != golden.arguments), mesh.first)
    differs = any(search.state(golden, one) == "differs" for one in golden.outputs)
    return other.op.arguments if differs else golden.op.arguments


def _is_flat_parameter(ref: TensorRef) -> bool:
    """Whether a tensor may be the parameters of a module in one buffer, or their gradient. Parts of tensors stand there
    in an order that shapes do not show, so that it stays open."""
    return len(ref.shape) == 1 and ref.slot.startswith(("param:", "grad:"))


def _tensor(search: PlacementSearch, golden: RankOperator, ref: TensorRef, mesh: Mesh) -> Optional[TensorRef]:
    decision = search.found.get((golden.name, ref.slot))
    if decision is None or decision.state in ("local", "unknown"):
        return None
    first = search.part(golden.name, mesh.first, ref.slot)
    parts = [
        found for op in mesh.cells.values() for found in [search.part(golden.name, op, ref.slot)] if found is not None
    ]
    if first is None:
        return None
    if decision.fit is None:
        return None if golden.op.path and _is_flat_parameter(ref) else first.ref
    dtype = max((first, *parts), key=lambda one: size_of(one.ref.dtype, (1,))).ref.dtype  # one rank may be coarser
    own = golden.by_slot[ref.slot]
    payload = payload_of(mesh, search.parts_of(own), decision.fit)
    figures = None if payload is not None else statistics_of(mesh, search.parts_of(own), decision.fit)
    shape = ref.shape if decision.rows is None else (decision.rows, *ref.shape[1:])
    shape = shape if payload is None else payload.shape  # parts that do not fit make another one
    return first.ref._replace(
        slot=ref.slot, dtype=dtype, shape=shape, file=first.ref.file if payload is not None else "",
        payload=payload, statistics=figures, checksum="", source="", rounding=first.ref.rounding,
        relation=relation_of(search, own, decision, mesh),
    )  # fmt: skip


def _notes(search: PlacementSearch) -> tuple[str, ...]:
    missing = search.partners.missing
    if missing:
        which = f"rank {missing[0]} is" if len(missing) == 1 else f"ranks {ranks_in_words(missing)} are"
        count = sum(decision.state == "unknown" for decision in search.found.values())
        return (
            f"{which} missing in the target: {count} tensors that need "
            f"{'it' if len(missing) == 1 else 'them'} are unknown",
        )
    notes = []
    if search.scaled_from and search.scale is not None:
        notes.append(f"gradients of the target are {search.scale:g} times the golden's from {search.scaled_from} on")
    decisions = ((search.golden.by_name[name], decision) for (name, _), decision in search.found.items())
    partial = any(golden.is_gradient_record and any(one.is_partial for one in decision.placements or ())
                  for golden, decision in decisions)  # fmt: skip
    if (notes or partial) and not search.golden.update:
        notes.append("the dumps have no optimizer step, which shows whether gradients are reduced and divided "
                     "(npucmp plan --layout records it)")  # fmt: skip
    return tuple(notes)
