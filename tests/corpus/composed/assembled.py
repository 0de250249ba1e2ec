"""The tensors of one card, put together by the generator's own arithmetic from what a dump shows."""

from __future__ import annotations

import numpy as np

from tests.corpus.composed.dumps import Dump, Leaf
from tests.corpus.composed.values import Array, Value


def assembled(dump: Dump) -> dict[str, list[Array]]:
    """The last output that covers each place alone, by place: of each copy that ranks hold an array with a row for each
    row number; rows that the dump does not hold are NaN."""
    count = len(dump.requests.ids)
    parts: dict[str, list[Array]] = {}
    items: dict[str, Value] = {}
    for step in range(len(dump.arrangement.steps)):
        for rank in range(dump.arrangement.ranks):
            for place, leaf in _outputs(dump, step, rank).items():
                width = leaf.item.parts[0].shape[1]
                own = parts.setdefault(place, [np.full((count, width), np.nan) for _ in range(dump.arrangement.tp)])
                items[place] = leaf.item
                values = leaf.values
                if leaf.item.heads and values.ndim == 4:
                    values = values.swapaxes(1, 2)
                own[rank if dump.arrangement.tp > 1 else 0][leaf.rows.reshape(-1)] = values.reshape(-1, width)
    wholes = {}
    for place, arrays in parts.items():
        item = items[place]
        if item.held == "whole" and item.spread == "part":
            wholes[place] = [_filled(arrays)]
        elif item.held == "whole":
            wholes[place] = arrays
        else:
            wholes[place] = [item._replace(parts=arrays).whole]
    return _apart(wholes, items)


def _filled(arrays: list[Array]) -> Array:
    """The rows that one of the ranks holds."""
    whole = arrays[0].copy()
    for part in arrays[1:]:
        whole = np.where(np.isnan(whole), part, whole)
    return whole


def _outputs(dump: Dump, step: int, rank: int) -> dict[str, Leaf]:
    outputs = {}
    for entry in dump.entries(step, rank, inputs=False):
        covers = entry.record.covers
        layer, _, name = entry.record.place.rpartition(".")
        leaf = entry.outputs[-1 if name == "rope" else 0]  # of queries and keys, the keys
        if isinstance(leaf, Leaf) and isinstance(leaf.item, Value) and leaf.item.held in ("whole", "columns"):
            if len(covers) == 1 and not covers[0].endswith("gather"):
                outputs[covers[0]] = leaf
            elif covers and covers[0].endswith(".q"):
                outputs[f"{layer}.qkv"] = leaf
            elif len(covers) == 2 and covers[1].endswith((".up", ".mul")):
                outputs[covers[0] + "+" if covers[1].endswith(".up") else covers[1]] = leaf
            elif len(covers) == 2:
                outputs[covers[0]] = leaf  # a norm behind a sum
    return outputs


def _apart(wholes: dict[str, list[Array]], items: dict[str, Value]) -> dict[str, list[Array]]:
    """Fused products as their parts."""
    apart: dict[str, list[Array]] = {}
    for place, arrays in wholes.items():
        layer, _, name = place.rpartition(".")
        if name not in ("qkv", "gate+"):
            apart[place] = arrays
            continue
        item = items[place]
        widths = [width * len(item.parts) // copies for width, copies in item.blocks]
        if item.held == "whole":
            widths = [width for width, _ in item.blocks]
        names = ("q", "k", "v") if name == "qkv" else ("gate", "up")
        for own, part in zip(names, np.split(arrays[0], np.cumsum(widths)[:-1], 1)):
            apart[f"{layer}.{own}"] = [part]
    return apart


def errors(target: Dump, golden: dict[str, list[Array]]) -> dict[str, Array]:
    """The largest relative error of each token by place, over all ranks, of a target and an assembled golden; of tokens
    and places that both sides hold."""
    first, second = assembled(target), golden
    rows = np.nonzero(target.requests.real)[0]
    found = {}
    for place in first.keys() & second.keys():
        right = second[place][0][rows]
        scale = np.abs(right).max()
        differences = [np.abs(part[rows] - right).max(1) / scale for part in first[place]]
        found[place] = np.max(differences, 0)
    return found
