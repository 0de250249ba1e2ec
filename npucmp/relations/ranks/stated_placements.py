"""Placements that the user states: of those that shapes allow, the one whose words are stated, without a doubt."""

from __future__ import annotations

import math
from typing import Mapping

from npucmp.errors import UsageError
from npucmp.model.relation import STATED, Relation
from npucmp.relations.held_values import HeldTensor, RankOperator
from npucmp.relations.ranks.placement import Allowed, Fit, Placements, candidates
from npucmp.relations.ranks.placement_choice import Decision
from npucmp.relations.ranks.placement_search import PlacementSearch
from npucmp.relations.ranks.rank_mesh import Mesh
from npucmp.relations.stated_view import View, matching_pattern, placed_words

SHOWN = 4  # placements in an error: work: readers need no more


def hold_stated(search: PlacementSearch, stated: Mapping[str, View]) -> None:
    """Decide the tensors of stated relations. Raises UsageError if shapes allow no placement of these words."""
    views = {pattern: view for pattern, view in stated.items() if view.of_ranks}
    for golden in search.golden.operators if views else ():
        mesh = search.partners.mesh(golden)
        for tensor in golden.tensors if mesh is not None else ():
            names = {golden.name, *(operator.name for operator in mesh.cells.values())} if mesh is not None else set()
            patterns = (matching_pattern(views, name, tensor.slot) for name in names)
            pattern = next(filter(None, patterns), None)
            if pattern is not None and mesh is not None:
                search.found[golden.name, tensor.slot] = _decision(
                    search, golden, tensor, mesh, pattern, views[pattern]
                )


def _decision(
    search: PlacementSearch, golden: RankOperator, tensor: HeldTensor, mesh: Mesh, pattern: str, view: View
) -> Decision:
    axes = frozenset(range(len(mesh.sizes)))
    get = search.parts_of(tensor)
    if any(search.part(golden.name, operator, tensor.slot) is None for operator in mesh.cells.values()):
        return Decision("shape")
    allowed = Allowed(sums=axes, maxima=True, norms=axes)
    fitting = [
        placements
        for placements in candidates(mesh, get, tensor.shape, allowed)
        if placed_words(_words(mesh, placements)) == view.of_ranks
    ]
    if not fitting:
        known = dict.fromkeys(_words(mesh, one) for one in candidates(mesh, get, tensor.shape, allowed))
        words = f"{view.of_ranks} makes no tensor of the shape of {golden.name} {tensor.slot}"
        others = f"; shapes allow {', '.join([*known][:SHOWN])}" if known else ""
        raise UsageError(f"relation of {pattern!r:.100}: {words}{others}")
    fits = [search.fit_of(tensor, mesh, placements) or Fit(math.inf, placements) for placements in fitting]
    best = min(fits, key=lambda fit: fit.error)
    return Decision("agrees" if best.error <= search.limit_of(tensor, mesh) else "differs", best, STATED)


def _words(mesh: Mesh, placements: Placements) -> str:
    own = tuple(placement for size, placement in zip(mesh.sizes, placements) if size > 1)
    return Relation(mesh.ranks, own).words
