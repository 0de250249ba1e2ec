"""The error of each rank's own part of an assembled tensor."""

from __future__ import annotations

from typing import Optional

from npucmp.align.placement import ARRAYS, Get, fit_figures
from npucmp.align.placement_search import Decision, PlacementSearch
from npucmp.align.rank_mesh import Mesh, Misfit, assemble, chosen, same_copies
from npucmp.align.rank_run import HeldTensor, RankOperator

STANDS_OUT = 8.0  # times: chosen: parts of one tensor err alike within a factor of 3 in clean runs


def part_errors(search: PlacementSearch, mesh: Mesh, golden: HeldTensor, decision: Decision) -> dict[int, float]:
    """The relative error of each rank's part by rank; empty if the tensor is a sum, or its values are not known."""
    if decision.fit is None or any(one.is_partial for one in decision.fit.placements):
        return {}

    def get(op: RankOperator) -> HeldTensor:
        one = search.part(golden.operator.name, op, golden.slot)
        assert one is not None
        return one

    exact = golden.array
    if exact is None or any(get(op).array is None for op in mesh.cells.values()):
        return _by_figures(mesh, get, golden, decision)
    import numpy as np

    make = ARRAYS()
    found: dict[int, float] = {}
    for choice in same_copies(mesh, decision.fit.placements):
        try:
            values = assemble(chosen(mesh, choice, lambda op: get(op).array), decision.fit.placements, make)
            owner = assemble(
                chosen(mesh, choice, lambda op: np.full(get(op).shape, op.rank)), decision.fit.placements, make
            )
        except (Misfit, ValueError, IndexError):
            return {}
        if values.shape != exact.shape:
            return {}
        gap = values / decision.fit.scale - exact
        for rank in np.unique(owner):
            own = owner == rank
            norm = float(np.linalg.norm(exact[own]))
            error = float(np.linalg.norm(gap[own])) / norm if norm else float(np.linalg.norm(gap[own]))
            found[int(rank)] = max(found.get(int(rank), 0.0), error)
    return found


def _by_figures(mesh: Mesh, get: Get, golden: HeldTensor, decision: Decision) -> dict[int, float]:
    """By statistics, copies alone have an error of their own."""
    assert decision.fit is not None
    if any(one.kind != "whole" for one in decision.fit.placements):
        return {}
    found: dict[int, float] = {}
    for at, op in mesh.cells.items():
        one = Mesh({(0,) * len(at): op}, (1,) * len(at), (op.rank,))
        fitted = fit_figures(one, get, golden, decision.fit.placements, decision.fit.scale)
        if fitted is not None:
            found[op.rank] = max(found.get(op.rank, 0.0), fitted.error)
    return found


def odd_rank(errors: dict[int, float]) -> Optional[int]:
    """The one rank whose part errs far more than all others; None without one."""
    if len(errors) < 2:
        return None
    first, second = sorted(errors, key=lambda rank: -errors[rank])[:2]
    return first if errors[first] > STANDS_OUT * errors[second] and errors[first] > 0 else None
