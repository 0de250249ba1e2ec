"""The first position whose most likely token is another, in the evidence of logits."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp


def logits(shape=(2, 6, 25), seed=0):
    return np.random.default_rng(seed).normal(0.0, 3.0, shape).astype(np.float32)


def noisy(golden, size=0.01, seed=1):
    return (golden + np.random.default_rng(seed).normal(0.0, size, golden.shape)).astype(np.float32)


def exchanged(golden, *places):
    """The same with the two most likely tokens of a place exchanged."""
    target = noisy(golden)
    for place in places:
        best = np.argsort(golden[place])[-2:]
        target[place][best] = golden[place][best[::-1]]
    return target


def words(target, golden, name="logits"):
    return " ".join(str(npucmp.compare({name: target}, {name: golden})).split())


@pytest.mark.parametrize(
    "name, shape, place",
    [
        ("logits", (2, 6, 25), (1, 4)),
        ("model.lm_head", (40, 100), (17,)),
        ("output_layer", (2, 6, 25), (1, 4)),
        ("next_token_logits", (3, 700, 600), (2, 613)),
    ],
)
def test_the_first_position_beyond_noise(name, shape, place):
    golden = logits(shape)
    target = exchanged(golden, place)
    found = words(target, golden, name)
    other, first = int(target[place].argmax()), int(golden[place].argmax())
    assert f"first at {[*place]}: token {other} in the target, {first} in the golden (number 2 in the target)" in found
    assert f"at 1 of {golden[..., 0].size:,} positions" in found and "near ties" not in found


def test_other_positions_follow():
    golden = logits()
    places = [(0, 1), (0, 5), (1, 0), (1, 1), (1, 2), (1, 3)]
    found = words(exchanged(golden, *places), golden)
    assert "at 6 of 12 positions, first at [0, 1]" in found and "other such positions: [0, 5] (" in found
    assert "and 1 more" in found


def test_near_ties_are_no_place():
    golden = logits()
    best = np.argsort(golden[1, 4])[-2:]
    golden[1, 4][best] = 9.0, 9.004
    target = noisy(golden)
    target[1, 4][best] = 9.004, 9.0
    found = words(target, golden)
    assert "the most likely token of 1 of 12 positions is another; all of them were near ties" in found
    assert "[1, 4]" not in found
