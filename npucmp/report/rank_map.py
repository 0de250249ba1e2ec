"""The data of the map of ranks × operators on a page: the error of each rank's own part of each output, the ranks by
pipeline stage, and the collectives where they stand.

A cell of the column `rank_errors` has an entry for each rank of the map:
    a number  the relative error of its part
    "sum"     it holds a term of a sum, which has no error of its own
    "open"    it holds a part that was not measured
    None      it does not hold the tensor
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from npucmp.model import Pair
from npucmp.model.relation import LayoutFacts, TensorRelation

SUM, OPEN = "sum", "open"


def ranks_held(pairs: Sequence[Pair]) -> list[int]:
    """Return all ranks whose tensors were put together, in order; empty if none were."""
    return sorted({rank for pair in pairs for one in [_relation_in(pair)] if one is not None for rank in one.parts})


def _relation_in(pair: Pair) -> Optional[TensorRelation]:
    """Return the relation of the side that was put together; None without one, or if ranks have tensors of their
    own."""
    relations = (one.relation for one in (pair.target, pair.golden) if one is not None)
    return next((one for one in relations if one is not None and one.parts), None)


def rank_errors(pairs: Sequence[Pair]) -> Optional[list[Any]]:
    """Return the column `rank_errors` of these rows, whose ranks are `ranks_held`; None if no ranks were put
    together."""
    ranks = ranks_held(pairs)
    if len(ranks) < 2:
        return None
    return [None if one is None else _cell(one, ranks) for one in map(_relation_in, pairs)]


def _cell(one: TensorRelation, ranks: Sequence[int]) -> tuple[Any, ...]:
    parts = one.parts
    errors = {rank: (SUM if one.is_partial else OPEN) if error is None else error for rank, error in parts.items()}
    return tuple(map(errors.get, ranks))


def rank_map(facts: LayoutFacts, step: Optional[int], ranks: Sequence[int], operators: Sequence[str]) -> dict[str, Any]:
    """Return the further data of a map: its ranks with their stages, and [operator, name, ranks] of each collective.
    The operator is the index of the one before which the collective runs, their number behind the last. A rank is its
    index in `ranks`."""
    stages = dict(zip(facts.ranks, facts.stage_of))
    lines = {rank: at for at, rank in enumerate(ranks)}
    places: Mapping[str, int] = {name: at for at, name in reversed([*enumerate(operators)])}
    return {
        "ranks": [*ranks],
        "stages": [stages.get(rank, 0) for rank in ranks],
        "collectives": [
            [places.get(one.before, len(operators)), one.name, own]
            for one in facts.collectives
            if one.step == step
            for own in [[lines[rank] for rank in one.ranks if rank in lines]]
            if own
        ],
    }
