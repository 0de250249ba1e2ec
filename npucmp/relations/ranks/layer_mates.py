"""Decide placements by the same tensor of other layers, and by the other data of the same axis.

A placement that agrees is not enough: a fault agrees under the placement that it brings about, blocks in another order
for one. If most layers hold a tensor otherwise, the tensor is held as they do, and differs there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Hashable, Sequence

from npucmp.relations.held_values import HeldTensor, RankOperator
from npucmp.relations.ranks import partial_sums as legal
from npucmp.relations.ranks.placement import Placements, fit, fit_figures
from npucmp.relations.ranks.placement_choice import Decision
from npucmp.relations.ranks.placement_search import PlacementSearch
from npucmp.relations.ranks.row_order import has_rows

DIFFERS = 1e-3  # rel_l2: chosen: rounding of deep gradients is below


def follow_layers(search: PlacementSearch) -> None:
    """Hold a tensor as the same tensor of other layers, where it agrees in another way right before the run
    diverges; and data that are split as the other data of the same axis are not."""
    _one_split_per_axis(search)
    first = next((one.order for one in search.golden.operators for each in one.inputs
                  if search.state(one, each) == "differs"), None)  # fmt: skip
    if first is None:
        return
    held: dict[Hashable, list[tuple[int, RankOperator, HeldTensor]]] = defaultdict(list)
    for golden in search.golden.operators:
        known = search.golden  # a function of the user in the backward pass is called for layers of all kinds
        if golden.is_backward or known.is_update(golden) or known.is_within_backward(golden):
            continue
        for one in golden.inputs:
            held_by = search.placed(golden, one)
            if search.state(golden, one) == "agrees" and legal.split_axes(held_by) and not has_rows(held_by):
                key = search.class_of(golden, one), search.role_of(golden), _shapes(search, golden, one)
                held[key].append((golden.order, golden, one))
    odd = [found for tensors in held.values() for found in _switch(search, tensors, first)]
    if not odd:
        return
    content = max(odd, key=lambda found: found[0])[2].content
    for _, golden, one, mates in odd:
        if one.content == content:  # a module and an operator in it read one weight
            _hold(search, golden, one, mates)


def _shapes(search: PlacementSearch, golden: RankOperator, one: HeldTensor) -> tuple[tuple[int, ...], ...]:
    """The shapes of the parts, which show along which axis a tensor is split."""
    mesh = search.partners.mesh(golden)
    parts = [search.part(golden.name, op, one.slot) for op in mesh.cells.values()] if mesh is not None else []
    return tuple(part.shape for part in parts if part is not None)


def _switch(
    search: PlacementSearch, held: Sequence[tuple[int, RankOperator, HeldTensor]], first: int
) -> list[tuple[int, RankOperator, HeldTensor, Placements]]:
    """The last tensor of a class before the run diverges, if it is held otherwise than most of the class."""
    before = [one for one in held if one[0] <= first]
    counts = Counter(search.placed(golden, one) for _, golden, one in held)
    if len(counts) < 2 or not before:
        return []
    order, golden, one = before[-1]
    own = search.placed(golden, one)
    others = [(count, placed) for placed, count in counts.items() if placed != own and placed is not None]
    most, placed = max(others, key=lambda both: both[0])
    return [(order, golden, one, placed)] if most >= counts[own] else []


def _one_split_per_axis(search: PlacementSearch) -> None:
    """One axis of ranks splits the sequence one way. If some data are held zigzag, which needs code of its own, data in
    plain parts were forgotten."""
    data: dict[tuple[int, str], list[tuple[RankOperator, HeldTensor]]] = defaultdict(list)
    for golden in search.golden.operators:
        if golden.is_backward or search.golden.is_update(golden):
            continue
        for place, one in enumerate(golden.inputs):
            placed = search.placed(golden, one)
            if placed is None or search.state(golden, one) != "agrees" or place in golden.type.parameters:
                continue
            if search.golden.origin(one).how != "none" or one.content is None:
                continue
            for axis, each in enumerate(placed):
                if each.is_split:
                    data[axis, each.kind].append((golden, one))
    for axis in {axis for axis, _ in data}:
        for golden, one in data[axis, "shard"] if data[axis, "zigzag"] else ():
            placed = search.placed(golden, one)
            assert placed is not None
            if len(placed[axis].blocks) == 1:
                _hold(search, golden, one, tuple(each._replace(kind="zigzag") if each.is_split and at == axis else each
                                              for at, each in enumerate(placed)))  # fmt: skip


def _hold(search: PlacementSearch, golden: RankOperator, one: HeldTensor, placements: Placements) -> None:
    """Decide a placement against agreement."""
    mesh = search.partners.mesh(golden)
    own = search.found[golden.name, one.slot]
    if mesh is None or own.placements is None or len(placements) != len(mesh.sizes):
        return
    found = (fit if search.values else fit_figures)(mesh, search.parts_of(one), one, placements)
    if found is not None and found.error > DIFFERS:
        before = " · ".join(each.words for each in own.placements if each.kind != "whole")
        search.found[golden.name, one.slot] = Decision("differs", found, "other layers", False, before)
