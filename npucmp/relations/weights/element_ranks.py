"""The rank that holds each element of a parameter of several ranks, by the files that its values are read from."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional

import numpy as np
from numpy.typing import NDArray

from npucmp.dump.readers.assembly import JOIN, RESHAPE
from npucmp.dump.readers.computed_weights import SCALED, TURNED
from npucmp.model import Payload
from npucmp.relations.weights.structure import CheckpointStructure

UNKNOWN = -1  # rank: definition: of files that several ranks share


def ranks_of_files(side: CheckpointStructure) -> dict[str, int]:
    """Return the rank of each file of a checkpoint that one rank alone has written; empty for one rank."""
    found: dict[str, int] = {}
    for held in side.held.values():
        for piece in held.pieces:
            for path in _paths(piece.ref.payload):
                found[path] = piece.rank if found.get(path, piece.rank) == piece.rank else UNKNOWN
    return found if len({*found.values()} - {UNKNOWN}) > 1 else {}


def _paths(payload: Optional[Payload]) -> Iterator[str]:
    if payload is not None:
        yield from [payload.path] if payload.path else []
        for part in payload.parts:
            yield from _paths(part)


def rank_of_whole(payload: Optional[Payload], ranks: Mapping[str, int]) -> Optional[int]:
    """Return the rank that holds a whole parameter; None if several do, or it is not known."""
    found = {ranks.get(path, UNKNOWN) for path in _paths(payload)}
    return None if len(found) != 1 or UNKNOWN in found else found.pop()


def rank_of_all(payload: Payload, where: NDArray[Any], ranks: Mapping[str, int]) -> Optional[int]:
    """Return the one rank that holds all elements at which `where` is true; None if none or several do, or a single
    rank holds the whole parameter."""
    if len({ranks.get(path, UNKNOWN) for path in _paths(payload)}) < 2 or not where.any():
        return None
    holders = _holders(payload, ranks)
    found = {*np.unique(holders[where]).tolist()} if holders.shape == where.shape else {UNKNOWN}
    rank = found.pop()
    return None if found or rank == UNKNOWN else int(rank)


def _holders(payload: Payload, ranks: Mapping[str, int]) -> NDArray[Any]:
    """The number of the rank of each element. A sum, and what a function makes, has no rank."""
    if payload.made_by == JOIN:
        return np.concatenate([_holders(part, ranks) for part in payload.parts], payload.axis)
    if payload.made_by == SCALED:
        return _holders(payload.parts[0], ranks)
    if payload.made_by == RESHAPE:
        return _holders(payload.parts[0], ranks).reshape(payload.shape)
    if payload.made_by == TURNED:
        return np.transpose(_holders(payload.parts[0], ranks))
    rank = UNKNOWN if payload.made_by else ranks.get(payload.path, UNKNOWN)
    return np.full(payload.shape, rank, np.int32)
