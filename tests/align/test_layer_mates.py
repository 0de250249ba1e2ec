"""Placements that agree, but are not those of other layers or of the other data: a fault brings them about."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.layer_mates import follow_layers
from tests.align.rank_craft import numbers
from tests.align.rank_networks import X, call, searched

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


@pytest.mark.parametrize(
    "layers, changed",
    [
        ("PPPBDPPPPPPP", turned(3, PLAIN, BLOCKS)),
        ("BBBPDBBBBBBB", turned(3, BLOCKS, PLAIN)),
        ("PPBPDPPPPPPP", {}),  # not right before the run diverges
        ("PPPBPPPPPPPP", {}),  # nothing diverges
        ("PPPPDPPBPPPP", {}),  # behind it
        ("PPPPDPPPPPPP", {}),
        ("PBBBDPPPPPPP", turned(3, PLAIN, BLOCKS)),  # four of seven; the ends have other roles
        ("PBBBDBPPPPPP", {}),  # three of seven
        ("PPBBDPPBDPPP", turned(3, PLAIN, BLOCKS)),  # as many
        ("PDBBDPPPPPPP", {}),  # no layer before the first that diverges
        ("PPPWDPPPPPPP", {}),  # a layer that no rank splits
        ("PPPBWDPPPPPP", turned(3, PLAIN, BLOCKS)),
        ("PPPCDPPPPPPP", {}),  # parts of another shape show how they are split
        ("PPPNDPPPPPPP", turned(3, PLAIN, BLOCKS)),
    ],
)
def test_the_last_layer_before_the_run_diverges_is_held_as_most(tmp_path, layers, changed):
    assert followed(tmp_path, *network(layers)) == changed


def test_layers_of_a_backward_pass_are_not_changed(tmp_path):
    forward, backward = network("PPPPPPPPPPPP"), network("PPPPPPPDBPPP", "backward")
    ranks = [[*one, *other[::-1]] for one, other in zip(forward[0], backward[0])]
    assert followed(tmp_path, ranks, [*forward[1], *backward[1][::-1]]) == {}


def test_only_the_last_of_several_tensors_is_changed(tmp_path):
    """Two tensors of a layer have another placement than most, in unequal layers."""
    both = network("PPPBDPPPPPPP"), network("PPBWWPPPPPPP")
    (ranks, golden), (others, exact) = both
    ranks = [[(a[0], [*a[1], *b[1]], []) for a, b in zip(*one)] for one in zip(ranks, others)]
    golden = [(a[0], [*a[1], *b[1]], []) for a, b in zip(golden, exact)]
    assert followed(tmp_path, ranks, golden) == turned(3, PLAIN, BLOCKS)


def test_a_tensor_is_changed_beside_another_one_that_differs(tmp_path):
    (ranks, golden), (others, exact) = network("PPPBPPPPPPPP"), network("PPPDPPPPPPPP")
    ranks = [[(a[0], [*a[1], *b[1]], []) for a, b in zip(*one)] for one in zip(ranks, others)]
    golden = [(a[0], [*a[1], *b[1]], []) for a, b in zip(golden, exact)]
    assert followed(tmp_path, ranks, golden) == turned(3, PLAIN, BLOCKS)


def test_layers_of_which_statistics_are_recorded_have_no_blocks(tmp_path):
    """Statistics are the same in any order."""
    assert followed(tmp_path, *network("PPPPDPPPPPPP"), values=False) == {}


# Data


def zigzag(whole, rank):
    blocks = np.split(whole, 4)
    return np.concatenate([blocks[rank], blocks[3 - rank]])


DATA, OTHER = numbers(8, 3, seed=60), numbers(8, 3, seed=61)
ZIGZAG = [zigzag(DATA, rank) for rank in (0, 1)]
HALVES = np.split(OTHER, 2)


@pytest.mark.parametrize(
    "first, second, phase, changed",
    [
        (ZIGZAG, HALVES, "forward", True),
        (np.split(DATA, 2), HALVES, "forward", False),  # no data in a zigzag
        (ZIGZAG, [zigzag(OTHER, rank) for rank in (0, 1)], "forward", False),
        (ZIGZAG, [OTHER] * 2, "forward", False),
        (ZIGZAG, np.split(OTHER[SWAPPED], 2), "forward", False),  # blocks in another order are no plain parts
        (ZIGZAG, HALVES, "backward", False),
    ],
)
def test_data_in_plain_parts_beside_data_in_a_zigzag_differ(tmp_path, first, second, phase, changed):
    """One axis of ranks splits the sequence one way."""
    back = [call("cos", [X], [])] * (phase == "backward")
    ranks = [
        [call("sin", [one], []), *back, call("cos", [other], [], phase=phase)] for one, other in zip(first, second)
    ]
    golden = [call("sin", [DATA], []), *back, call("cos", [OTHER], [], phase=phase)]
    found = followed(tmp_path, ranks, golden)
    assert found == ({"cos.0 0": ("zigzag(0)", "differs", "other layers", PLAIN)} if changed else {})


@pytest.mark.parametrize(
    "is_written, kind, changed",
    [(False, "linear", False), (False, "cos", True), (True, "cos", False)],
)
def test_weights_and_what_operators_write_are_no_data(tmp_path, is_written, kind, changed):
    def calls(data, other, made):
        read = [X, other] if kind == "linear" else [other]
        return [call("sin", [data], []), *[call("tan", [made], [other])] * is_written, call(kind, read, [])]

    ranks = [calls(one, other, other * 2) for one, other in zip(ZIGZAG, HALVES)]
    found = followed(tmp_path, ranks, calls(DATA, OTHER, OTHER * 2))
    assert bool([one for one in found if one.startswith(kind)]) is changed
