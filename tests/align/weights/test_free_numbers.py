"""Numbers that neither names nor shapes show are those that most parts agree under."""

import numpy as np
import pytest

from npucmp.align.weights.free_numbers import (
    LAYERS,
    cut_of,
    decided,
    divisors,
    group_rows,
    head_size,
    query_groups,
    spread,
    with_halves,
)
from npucmp.align.weights.part import Part
from npucmp.align.weights.role import Role
from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.values import blocks
from npucmp.model import Payload

CHANCE = np.random.default_rng(0)


@pytest.mark.parametrize(
    "votes, parts, value, words, likely",
    [
        ({}, 4, None, "", None),
        ({2: 0, 4: 0}, 4, None, "", None),
        ({2: 4}, 4, 2, "by values: 4 of 4 parts", 2),
        ({2: 4, 4: 1}, 12, 2, "by values: 4 of 12 parts", 2),  # exactly a third
        ({2: 4}, 13, None, "", 2),
        ({2: 4, 4: 2}, 6, None, "", 2),  # another with half as many
        ({2: 5, 4: 2}, 6, 2, "by values: 5 of 6 parts", 2),
        ({4: 3, 2: 3}, 6, None, "", 2),  # the smaller of two with as many
        ({8: 1, 2: 4, 4: 1}, 6, 2, "by values: 4 of 6 parts", 2),
        ({2: 1, 8: 4}, 4, 8, "by values: 4 of 4 parts", 8),
    ],
)
def test_a_number_needs_votes(votes, parts, value, words, likely):
    assert decided(votes, parts) == (value, words, likely)


@pytest.mark.parametrize(
    "number, least, found",
    [(12, 1, [1, 2, 3, 4, 6, 12]), (12, 3, [3, 4, 6, 12]), (16, 1, [1, 2, 4, 8, 16]), (7, 2, [7]), (1, 2, [])],
)
def test_divisors(number, least, found):
    assert divisors(number, least) == found


def part(layer, kind="q", payload=None):
    return Part(Role(layer, kind, "weight"), payload, f"{layer}.{kind}", "", "float32")


@pytest.mark.parametrize("layers, most", [(3, 3), (3, 4), (9, 3), (10, 4), (100, LAYERS)])
def test_parts_of_some_layers_are_spread(layers, most):
    parts = [part(layer, kind) for layer in range(layers) for kind in "qk"]
    found = [one.role.layer for one in spread(parts, most)]
    chosen = sorted({*found})
    assert found == [layer for layer in chosen for _ in "qk"] and len(chosen) == min(layers, most) and chosen[0] == 0
    gaps = {after - before for before, after in zip(chosen, chosen[1:])}
    assert max(gaps) - min(gaps) <= 1 and layers - chosen[-1] <= max(gaps)
    assert spread([part(None)], most) == [part(None)]


@pytest.mark.parametrize(
    "shape, query, rows",
    [
        ((12, 4), 4, (4, 4, 4)),
        ((8, 4), 4, (4, 2, 2)),
        ((6,), 4, (4, 1, 1)),
        ((7, 4), 4, None),
        ((5, 4), 4, None),
        ((4, 4), 4, None),
        ((12, 4), 0, None),
        ((), 4, None),
    ],
)
def test_rows_of_q_k_and_v(shape, query, rows):
    payload = Payload("", "float32", shape, 0)
    assert group_rows(part(0, "qkv_groups", payload), query) == rows


@pytest.fixture
def stored(tmp_path):
    def write(values):
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.bin"
        values.astype(np.float32).tofile(path)
        return Payload(str(path), "float32", values.shape, 0)

    return write


def values_of(payload):
    return np.concatenate([*blocks(payload)]).reshape(payload.shape)


def interleaved(q, k, v, groups):
    """The rows of q, k and v per query group."""
    return np.concatenate([part for parts in zip(*(np.split(one, groups) for one in (q, k, v))) for part in parts])


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("wrong", [0, 2, 5])
def test_query_groups_are_found_in_spite_of_a_few_wrong_parts(stored, groups, wrong):
    fused, others = [], {}
    for layer in range(4):
        q, k, v = (CHANCE.standard_normal((rows, 6)) for rows in (16, 8, 8))
        payload = stored(interleaved(q, k, v, groups))
        for kind, values in zip("qkv", (q, k, v)):
            assert np.array_equal(values_of(cut_of(kind, groups, (16, 8, 8), payload)), values.astype(np.float32))
            if len(others) < wrong:
                values = values + 1.0
            others[Role(layer, kind, "weight")] = part(layer, kind, stored(values))
        fused.append((part(layer, "qkv_groups", payload), (16, 8, 8)))
    found = query_groups(fused, others, 1, ANYWHERE)
    assert found == (groups, f"by values: {12 - wrong} of 12 parts", groups)
    shared = query_groups(fused, others, 4, ANYWHERE)  # four ranks cannot share two groups
    assert shared.value == (groups if groups == 4 else None)
    few = {role: one for role, one in others.items() if role.kind == "q"}
    assert query_groups(fused, few, 1, ANYWHERE).words == f"by values: {4 - -(-wrong // 3)} of 4 parts"


def test_parts_that_cannot_be_read_have_no_vote(stored, tmp_path):
    values = CHANCE.standard_normal((16, 6))
    good, bad = stored(values), Payload(str(tmp_path / "absent"), "float32", (16, 6), 0)
    fused = [(part(0, "qkv_groups", None), (8, 4, 4)), (part(1, "qkv_groups", bad), (8, 4, 4))]
    others = {Role(layer, "q", "weight"): part(layer, "q", good) for layer in range(2)}
    assert query_groups(fused, others, 1, ANYWHERE) == (None, "", None)
    others = {Role(0, "q", "weight"): part(0, "q", None)}
    assert query_groups([(part(0, "qkv_groups", good), (8, 4, 4))], others, 1, ANYWHERE).value is None
    assert query_groups([(part(0, "qkv_groups", good), (8, 4, 4))], {}, 1, ANYWHERE).value is None


@pytest.mark.parametrize("size", [4, 6, 12])
def test_the_size_of_heads_of_neighbouring_pairs(stored, size):
    own, others = [], {}
    for layer in range(3):
        values = CHANCE.standard_normal((24, 5))
        halves = values.reshape(-1, size // 2, 2, 5).swapaxes(1, 2).reshape(24, 5)
        own.append(part(layer, "q", stored(values)))
        others[Role(layer, "q", "weight")] = part(layer, "q", stored(halves))
        assert np.array_equal(values_of(with_halves(own[-1], size).payload), halves.astype(np.float32))
    assert head_size(own, others, ANYWHERE) == (size, "by values: 3 of 3 parts", size)
    assert head_size(own, {}, ANYWHERE).value is None
    assert head_size([part(0)], others, ANYWHERE).value is None
