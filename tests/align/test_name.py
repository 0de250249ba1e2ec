"""Which names are trusted, and which are not."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucmp.align.name import longest_increasing, match
from tests.align.craft import api, own

LINEAR = "Module.layers.0.fc1.Linear.forward.0"


def pairs(target, golden) -> list:
    found = match(target, golden, [])
    sides = {*map(id, target)}, {*map(id, golden)}
    assert all(id(m.target) in sides[0] and id(m.golden) in sides[1] for m in found)
    return sorted((m.target.order, m.golden.order) for m in found)


def numbered(*names, shapes=None) -> list:
    """API calls by "name.index", in this order; all forward."""
    made = []
    for order, name in enumerate(names):
        kind, index = name.rsplit(".", 1)
        made.append(api(kind, int(index), "forward", order, ((shapes or {}).get(name, (2, 3)),)))
    return made


MUST_MATCH = [
    ("module paths", [own(LINEAR, 0)], [own(LINEAR, 0)], [(0, 0)]),
    ("module paths in another order", [own("a", 0), own("b", 1)], [own("b", 0), own("a", 1)], [(0, 1), (1, 0)]),
    ("module paths with other shapes", [own("a", 0, ((9,),))], [own("a", 0)], [(0, 0)]),
    ("one module of two", [own("a", 0), own("b", 1)], [own("b", 0)], [(1, 0)]),
    ("the newest of repeated executions", [own("a", 0)], [own("a", 0), own("a", 1), own("a", 2)], [(0, 2)]),
    ("all of repeated executions", [own("a", 0), own("a", 1)], [own("a", 0), own("a", 1)], [(0, 0), (1, 1)]),
    ("the newest two of three", [own("a", 0), own("a", 1), own("a", 2)], [own("a", 0), own("a", 1)], [(1, 0), (2, 1)]),
    ("calls", numbered("add.0", "mul.0", "add.1"), numbered("add.0", "mul.0", "add.1"), [(0, 0), (1, 1), (2, 2)]),
    ("calls beside others", numbered("add.0", "mul.0"), numbered("add.0", "sub.0", "exp.0"), [(0, 0)]),
    ("a gap in the numbers of both", numbered("add.0", "add.7"), numbered("add.0", "add.7"), [(0, 0), (1, 1)]),
]


@pytest.mark.parametrize(
    "target, golden, expected", [row[1:] for row in MUST_MATCH], ids=[row[0] for row in MUST_MATCH]
)
def test_must_match(target, golden, expected):
    assert pairs(target, golden) == expected


MUST_NOT_MATCH = [
    ("other names", [own("a", 0)], [own("b", 0)]),
    ("nothing", [], [own("b", 0)]),
    ("one call more", numbered("add.0", "add.1"), numbered("add.0")),
    ("other indices", numbered("add.0", "add.1"), numbered("add.0", "add.2")),
    ("other shapes", numbered("add.0", "add.1"), numbered("add.0", "add.1", shapes={"add.1": (7,)})),
    ("forward and backward", [api("add", 0, "forward", 0)], [api("add", 0, "backward", 0)]),
    ("upper case", [own("A", 0)], [own("a", 0)]),
]


@pytest.mark.parametrize("target, golden", [row[1:] for row in MUST_NOT_MATCH], ids=[row[0] for row in MUST_NOT_MATCH])
def test_must_not_match(target, golden):
    assert pairs(target, golden) == []
    assert pairs(golden, target) == []


def test_calls_that_cross_are_not_trusted():
    """x, y, z against x, z, y: mul stays with the longer chain or not, but never both that cross."""
    target = numbered("add.0", "mul.0", "exp.0", "sub.0")
    found = pairs(target, numbered("add.0", "exp.0", "mul.0", "sub.0"))
    assert {(0, 0), (3, 3)} <= set(found) and len(found) <= 3
    assert [g for _, g in found] == sorted(g for _, g in found)


def test_a_shifted_kind_drops_its_backward_too():
    """Forward indices shifted by one call; the backward kind has equal indices by accident and must not be trusted."""
    target = [api("mul", 0, "forward", 0), api("mul", 1, "forward", 1), api("mul", 1, "backward", 2)]
    golden = [api("mul", 1, "forward", 0), api("mul", 1, "backward", 1)]
    assert pairs(target, golden) == []


def test_certain_matches_are_certain():
    (found,) = match([own("a", 0)], [own("a", 0)], [])
    assert (found.via, found.confidence) == ("name", 1.0)


def longest_by_trying(values) -> int:
    for size in range(len(values), 0, -1):
        for chosen in combinations(values, size):
            if all(a < b for a, b in zip(chosen, chosen[1:])):
                return size
    return 0


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=9))
def test_longest_increasing(values):
    chain = longest_increasing(values)
    chosen = [values[i] for i in chain]
    assert all(a < b for a, b in zip(chain, chain[1:])) and all(a < b for a, b in zip(chosen, chosen[1:]))
    assert len(chain) == longest_by_trying(values)


def test_longest_increasing_of_many_is_quick():
    assert len(longest_increasing(list(range(100_000)))) == 100_000
    assert len(longest_increasing(list(range(100_000, 0, -1)))) == 1


@pytest.mark.parametrize(
    "inserted, origins, is_partner",
    [
        ((True, True), ("conv:0", "conv:0"), True),
        ((True, True), ("conv:0", "add:0"), False),
        ((True, True), ("a/conv:0", "a.conv:0"), True),  # equal as names of files
        ((True, True), ("conv:0", ""), True),  # one graph does not show it
        ((True, True), ("", "conv:0"), True),
        ((True, False), ("conv:0", "add:0"), True),  # an operator of the network
        ((False, True), ("conv:0", "add:0"), True),
        ((False, False), ("conv:0", "add:0"), True),
    ],
)
def test_operators_that_compilers_inserted_pass_on_the_same_tensor(inserted, origins, is_partner):
    """Each compiler numbers them, so that equal names prove nothing."""
    sides = []
    for is_inserted, origin in zip(inserted, origins):
        one = own("trans_TransData_0", 0, (), ((2, 3),))._replace(inserted=is_inserted)
        sides.append([one._replace(tensors=tuple(each._replace(origin=origin) for each in one.tensors))])
    assert pairs(*sides) == ([(0, 0)] if is_partner else [])
