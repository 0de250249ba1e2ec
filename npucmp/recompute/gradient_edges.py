"""Edges after all of them are known: guilty consumers, and errors that all edges of a kind share.

A guilty consumer explains wrong gradients. If the gradients of all consumers of a kind have similar errors, and none
larger than half precision inside causes, the cause is a setting of the device (products in HF32), as in
kind_baseline.py: one line is reported, and no edge is broken.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Mapping, Optional, Sequence

from npucmp.model import Edge, Held, Judged, Operator, Replayed
from npucmp.model.dtypes import lookup
from npucmp.recompute.kind_baseline import COARSE, FEWEST, IN_16_BITS, OUTLIER

MOST = 0.5  # of the edges of a kind: an edge that adds several gradients may hide the error of one


def settled(
    edges: Sequence[Edge], rows: Sequence[Replayed], operators: Mapping[int, Operator]
) -> tuple[list[Edge], list[str]]:
    """Return edges in order of execution, and a sentence for each explained kind."""
    guilty = {operators[row.order].call: operators[row.order].name for row in rows if row.verdict is Judged.GUILTY}
    found = []
    for edge in sorted(edges, key=lambda edge: (edge.order, edge.slot)):
        own = [guilty[call] for order in edge.consumers if (call := operators[order].call) in guilty]
        if edge.verdict is Held.BROKEN and own:
            edge = edge._replace(verdict=Held.UNKNOWN, explanation=f"{own[0]} is guilty")
        found.append(edge)
    return _excused(found, operators)


def _excused(edges: list[Edge], operators: Mapping[int, Operator]) -> tuple[list[Edge], list[str]]:
    kinds: dict[str, list[int]] = defaultdict(list)
    for place, edge in enumerate(edges):
        for kind in {operators[order].kind for order in edge.consumers if edge.rel_l2_u is not None}:
            kinds[kind].append(place)
    words = []
    for kind, places in kinds.items():
        broken = [place for place in places if edges[place].verdict is Held.BROKEN]
        errors = {place: error for place in broken if (error := _error(edges[place], operators)) is not None}
        if len(broken) < max(FEWEST, MOST * len(places)):
            continue
        middle = median(errors.values()) if errors else 0.0
        alike = [place for place, error in errors.items() if error <= OUTLIER * middle]
        if len(alike) < max(FEWEST, len(broken) / 2):
            continue
        words.append(f"{len(alike)} of {len(places)} gradients that {kind} returns have similar errors: explained by "
                     "coarser arithmetic inside (a setting, not one operator)")  # fmt: skip
        for place in alike:
            edges[place] = edges[place]._replace(verdict=Held.UNKNOWN, explanation=f"explained: {words[-1]}")
    return edges, words


def _error(edge: Edge, operators: Mapping[int, Operator]) -> Optional[float]:
    """Return the relative error, if coarse arithmetic can cause it; else None."""
    tensor = next((one for one in operators[edge.order].tensors if one.slot == edge.slot), None)
    dtype = lookup(tensor.dtype) if tensor is not None else None
    if dtype is None or edge.rel_l2_u is None:
        return None
    error = edge.rel_l2_u * dtype.round_off
    return error if error <= max(COARSE, IN_16_BITS * dtype.round_off) else None
