"""Runs with the same operators are joined by name; the matchers would find the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp import align as room
from npucmp.align import DifferentNetworks, align, pairing_coverage, pairs
from npucmp.align import name as by_name
from npucmp.model import Payload, TensorRef
from tests.align.craft import a_run, api, own

SHAPES = st.sampled_from([(), (2, 3), (3, 2), (6,)])
SLOTS = st.sampled_from(["input:0", "input:1", "output:0", "param:a", "", "input:0.0", "input:0.1"])
TENSORS = st.lists(st.builds(TensorRef, SLOTS, st.just("float32"), SHAPES), max_size=4).map(tuple)
STACKS = st.sampled_from(
    [(), ("File /a/torch/optim/sgd.py, line 1, in step, \n x",), ("File /b.py, line 2, in f, \n y",)]
)


@st.composite
def operators(draw):
    made = []
    for order in range(draw(st.integers(0, 6))):
        phase = draw(st.sampled_from(["forward", "backward"]))
        if draw(st.booleans()):
            one = own(draw(st.sampled_from(["a.b", "a_b", "c", "add.forward"])), order, phase=phase)
        else:
            one = api(draw(st.sampled_from(["add", "mul"])), draw(st.integers(0, 2)), phase, order)
        one = one._replace(stack=draw(STACKS), scope=draw(st.sampled_from(["", "optimizer", "m"])))
        made.append(one._replace(tensors=draw(TENSORS)) if draw(st.booleans()) else one)
    return made


CHANGES = (
    lambda draw, one: one,
    lambda draw, one: one._replace(name=one.name + "x"),
    lambda draw, one: one._replace(stack=draw(STACKS)),
    lambda draw, one: one._replace(scope=draw(st.sampled_from(["", "optimizer"]))),
    lambda draw, one: one._replace(tensors=draw(TENSORS)),
    lambda draw, one: one._replace(tensors=one.tensors[::-1]),
    lambda draw, one: one._replace(unique=not one.unique),
    lambda draw, one: one._replace(tensors=tuple(t._replace(origin="a:0") for t in one.tensors)),
    lambda draw, one: one._replace(
        tensors=tuple(t._replace(payload=Payload("f", "float32", t.shape, 0)) for t in one.tensors)
    ),
)


@st.composite
def both(draw):
    golden = draw(operators())
    target = [*golden]
    for at in draw(st.lists(st.integers(0, 9), max_size=2)):
        if target:
            at %= len(target)
            target[at] = draw(st.sampled_from(CHANGES))(draw, target[at])
    return a_run(target, "target"), a_run(golden, "golden")


def found(target, golden):
    """All that follows from an alignment, in words."""
    try:
        alignment = align(target, golden)
    except DifferentNetworks as error:
        return str(error)
    lined_up = [*pairs(target, golden, alignment)]
    words = [repr(tuple(one)) for match in alignment.matches for one in (match.target, match.golden)]
    return alignment, lined_up, words, [*map(repr, lined_up)], pairing_coverage.extent(lined_up)


@given(both())
def test_a_join_finds_what_the_matchers_find(runs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_name, "join", lambda *_: None)
        patch.setattr(room, "_joined_pairs", lambda *_: None)
        expected = found(*runs)
    assert found(*runs) == expected
