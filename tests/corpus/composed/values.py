"""Tensors of all tokens with a part for each rank of tensor parallelism, and records of operators."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

import numpy as np

Array = np.ndarray


class Value(NamedTuple):
    """A tensor with a row for each token: `parts` holds an array for each rank of tensor parallelism.

    held    "whole": each rank has all columns; "columns": its own ones; "partial": an addend
    spread  which rows a dump of a rank shows: "own": its tokens; "part": a part of them; "all": those of all ranks
    heads   the number of heads along the columns, where a dump shows them as an axis
    blocks  widths of the blocks side by side, each split over the ranks, with the number of ranks that share a part
    """

    parts: list[Array]
    held: str = "whole"
    spread: str = "own"
    heads: int = 0
    blocks: tuple[tuple[int, int], ...] = ()

    @property
    def whole(self) -> Array:
        """The tensor of one card."""
        if self.held == "whole":
            return self.parts[0]
        if self.held == "partial":
            return np.sum(self.parts, axis=0)
        blocks = self.blocks or ((self.parts[0].shape[1], 1),)
        starts = np.cumsum([0, *(width for width, _ in blocks)])
        columns = [
            part[:, start : start + width]
            for start, (width, copies) in zip(starts, blocks)
            for part in self.parts[::copies]
        ]
        return np.concatenate(columns, 1)

    def shown(self, heads: int) -> Value:
        """The same numbers with an axis of heads."""
        return self._replace(heads=heads)


class Weight(NamedTuple):
    """A parameter: the part of each rank."""

    parts: list[Array]


class Meta(NamedTuple):
    """A tensor that the arrangement decides: ids, positions, masks and lengths."""

    kind: str


class Record(NamedTuple):
    """An executed operator.

    operator  "module", or the kind of a function
    place     the part of the network that it belongs to, "1.q"; dialects give it a name
    covers    the places whose numbers it makes
    """

    operator: str
    place: str
    covers: tuple[str, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Value, ...]
    keywords: Mapping[str, Any]


def layer_of(place: str) -> int:
    """The layer of a place, -1 outside layers."""
    head = place.partition(".")[0]
    return int(head) if head.isdigit() else -1
