"""Placements that agree, but are not those of other layers or of the other data: a fault brings them about."""

from __future__ import annotations

import numpy as np

from npucmp.relations.ranks.layer_mates import follow_layers
from tests.align.rank_craft import numbers
from tests.align.rank_networks import call, searched

SWAPPED = np.r_[0, 1, 4, 5, 2, 3, 6, 7]  # rows that ranks hold, in the order of parts of two blocks
PLAIN, BLOCKS, WHOLE = "shard(0)", "shard(0, in 2 blocks)", "whole"


def layer(how, at):
    """What the ranks hold together, and the golden: in parts in a row, in two blocks (N: almost in a row), in columns,
    wholly, or nothing alike."""
    own = numbers(8, 6, seed=200 + at)
    if how == "N":
        even, odd = own + own[SWAPPED], own - own[SWAPPED]
        own = even + odd * np.float32(0.5 * 1.5e-3 * np.linalg.norm(even) / np.linalg.norm(odd))
    exact = own[SWAPPED] if how in "BN" else numbers(8, 6, seed=300 + at) if how == "D" else own
    return own, exact


def network(layers, phase="forward"):
    """Layers of one type, as many on both sides."""
    golden, ranks = [], [[], []]
    for at, how in enumerate(layers):
        own, exact = layer(how, at)
        golden.append(call("mix", [exact], [], at, phase))
        parts = [own, own] if how == "W" else np.split(own, 2, axis=int(how == "C"))
        for one, part in zip(ranks, parts):
            one.append(call("mix", [part], [], at, phase))
    return ranks, golden


def followed(tmp_path, ranks, golden, **more):
    """What the layers change: (words, state, by, what agreed before) by operator and slot."""
    search = searched(tmp_path, ranks, golden, **more)
    before = dict(search.found)
    follow_layers(search)
    assert search.found.keys() == before.keys()
    found = {}
    for (name, slot), one in search.found.items():
        if one != before[name, slot]:
            kind, number = name.split(".")[1:3]
            found[f"{kind}.{number} {slot[-1]}"] = one.placements[0].words, one.state, one.by, one.mates
    return found


def turned(at, words, mates):
    return {f"mix.{at} 0": (words, "differs", "other layers", mates)}


def test_only_the_last_of_several_tensors_is_changed(tmp_path):
    """Two tensors of a layer have another placement than most, in unequal layers."""
    both = network("PPPBDPPPPPPP"), network("PPBWWPPPPPPP")
    (ranks, golden), (others, exact) = both
    ranks = [[(a[0], [*a[1], *b[1]], []) for a, b in zip(*one)] for one in zip(ranks, others)]
    golden = [(a[0], [*a[1], *b[1]], []) for a, b in zip(golden, exact)]
    assert followed(tmp_path, ranks, golden) == turned(3, PLAIN, BLOCKS)
