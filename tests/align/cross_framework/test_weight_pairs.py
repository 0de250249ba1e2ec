"""Operators that share a weight, and weights that consist of several."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.align.cross_framework.weight_match import (
    fused,
    same,
    transpose_weight,
    weights_of,
)
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Payload, Statistics, TensorRef
from tests.align.cross_framework.craft import NZ, Files, W, X, drawn, recorded, values


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


# Weights that operators read


@pytest.mark.parametrize(
    "what, kind, phase, slots, found",
    [
        ("", "Linear", "forward", {"param_weight": (4, 2), "param_bias": (8,), "input_0": (4, 2)}, ["weight", "bias"]),
        ("", "Linear", "backward", {"param_weight": (4, 2)}, []),
        ("linear", "linear", "forward", {"input_0": (4, 2), "input_1": (4, 2), "input_2": (8,), "output_0": (9,)},
         ["1", "2"]),
        ("strange", "strange", "forward", {"input_0": (4, 2), "input_1": (4, 2), "output_0": (4, 2)}, ["0", "1"]),
        ("", "strange", "forward", {"input_0": (4, 2)}, []),
        ("linear", "linear", "forward", {"input_1": (7,)}, []),  # too small to identify it
        ("linear", "linear", "forward", {"input_1": TensorRef("", "int32", (8,))}, []),
        ("linear", "linear", "forward", {"input_1": TensorRef("", "strange", (8,))}, []),
    ],
)  # fmt: skip
def test_tensors_that_may_be_weights(files, what, kind, phase, slots, found):
    one = files.neutral(("a",), what, phase, kind=kind, **slots)
    assert [each.tensor.slot.partition(":")[2] for each in weights_of([one], ANYWHERE)] == found


@pytest.mark.parametrize(
    "change, is_turned",
    [({}, True), ({"shape": (60,)}, False), ({"device": NZ}, False), ({"dataset": "/x"}, False),
     ({"parts": (Payload("", "float32", (6, 10), 0),)}, False)],
)  # fmt: skip
def test_a_matrix_in_a_plain_file_can_be_turned(files, change, is_turned):
    drawn(6, 10).tofile(files.folder / "x")
    payload = Payload(str(files.folder / "x"), "float32", (6, 10), 0)._replace(**change)
    ref = TensorRef("", "float32", payload.shape, payload=payload)
    (weight,) = weights_of([files.neutral(("a",), param_weight=ref)], ANYWHERE)
    found = transpose_weight(weight, ANYWHERE)
    assert (found is not None) is is_turned
    if found is not None:
        assert found.is_transposed and found.shape == (10, 6) and not weight.is_transposed
        assert np.array_equal(values(found.tensor), drawn(6, 10).T)
        slots = [(one.slot, one.shape) for one in found.operator_with_weight.tensors]
        assert slots == [("param:weight", (10, 6))] and weight.operator_with_weight is weight.owner.operator


# One weight of two operators

M, N = drawn(10, 6, seed=1), drawn(10, 6, seed=2)


def readers(files, *weights, what="", kind="Linear"):
    return weights_of([files.neutral((f"m{at}",), what, kind=kind, param_weight=one) if not what else
                       files.neutral((f"m{at}",), what, kind=kind, input_1=one) for at, one in enumerate(weights)],
                      ANYWHERE)  # fmt: skip


def paired(here, there):
    return [(one.here.owner.place[0], one.there.owner.place[0]) for one in same(here, there, ANYWHERE)]


@pytest.mark.parametrize(
    "here, there, found",
    [
        ([M, N], [N, M], [("m0", "m1"), ("m1", "m0")]),
        ([M.T.copy()], [M], [("m0", "m0")]),
        ([M], [M.T.copy()], [("m0", "m0")]),
        ([M], [N], []),
        ([M, M], [M], []),  # one is meant, but not which
        ([M], [M, M], []),
        ([M, M], [M, M], [("m0", "m0"), ("m1", "m1")]),
        ([M * np.float32(1.015)], [M], [("m0", "m0")]),
        ([M * np.float32(1.025)], [M], []),
        ([np.ones((10, 6), np.float32)], [np.ones((10, 6), np.float32)], []),  # a constant identifies nothing
        ([np.concatenate([M[:8], N[8:]])], [M], []),  # both ends count
        ([np.concatenate([N[:2], M[2:]])], [M], []),
        ([M[:, 0].copy()], [M[:, 0].copy()], [("m0", "m0")]),
    ],
)
def test_operators_that_share_a_weight_are_partners(files, here, there, found):
    assert paired(readers(files, *here), readers(files, *there)) == found


def test_a_function_is_preferred_to_the_module_around_it_and_one_of_its_own_type_to_others(files):
    function = readers(files, M, what="linear", kind="linear")
    module = readers(files, M, kind="linear")
    other = readers(files, M, what="matmul", kind="strange")
    twin = readers(files, M, what="linear", kind="linear")
    for others, found in (
        ([*module, *other], module),  # of one type
        ([*other, *module, *twin], twin),
        ([*other, *module, *module], []),
    ):
        assert [one.there for one in same(function, others, ANYWHERE)] == found
    (one,) = same(readers(files, M, kind="Strange"), [*module, *other], ANYWHERE)
    assert one.there is other[0]  # a function


def statistics_of(max_, min_, mean, norm):
    return TensorRef("", "float32", (10, 6), statistics=Statistics(max_, min_, mean, norm))


KNOWN = (4.0, -2.0, 0.5, 10.0)


@pytest.mark.parametrize(
    "other, is_near",
    [
        (KNOWN, True),
        ((4.007, -2.007, 0.507, 10.019), True),  # the ends and the mean relative to the larger end: 4 · 0.002
        ((4.009, -2.0, 0.5, 10.0), False),
        ((4.0, -2.009, 0.5, 10.0), False),
        ((4.0, -2.0, 0.509, 10.0), False),
        ((4.0, -2.0, 0.5, 10.021), False),
        ((4.0, -2.0, 0.5, None), False),
        ((None, -2.0, 0.5, 10.0), False),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_weights_of_which_statistics_are_recorded(files, other, is_near, sign):
    def turned(high, low, mean, norm):
        return (high, low, mean, norm) if sign > 0 else (-low, high and -high, -mean, norm)

    here, there = (readers(files, statistics_of(*turned(*one))) for one in (KNOWN, other))
    assert bool(paired(here, there)) is is_near
    if None in other:
        assert not paired(there, here)


def test_statistics_of_a_constant_identify_no_weight(files):
    constant = statistics_of(1.0, 1.0, 1.0, math.sqrt(60))
    assert paired(readers(files, constant), readers(files, constant)) == []
    assert paired(readers(files, M), readers(files, statistics_of(*KNOWN))) == []


# Weights of several weights


@pytest.mark.parametrize(
    "parts, found",
    [
        (W, ["m0", "m1", "m2"]),
        (W[::-1], ["m2", "m1", "m0"]),  # in the order of the rows
        ([*W, drawn(10, 6, seed=9)], ["m0", "m1", "m2"]),
        (W[:2], []),  # its last rows are of none
        ([*W, W[1]], []),  # two that it may be
        ([np.concatenate(W)], []),  # one weight is no part
        ([np.concatenate(W[:2]), W[2]], ["m0", "m1"]),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_weight_of_the_rows_of_several(files, parts, found, is_turned):
    whole = np.concatenate(W)
    (one,) = readers(files, whole.T.copy() if is_turned else whole)
    groups = fused([one], readers(files, *parts), False, ANYWHERE)
    assert [[part.name.split(".")[0] for part in each.parts] for each in groups] == [found] * bool(found)
    for each in groups:
        assert each.names == tuple(found) and not each.turned
        assert [ref.shape for ref in each.whole.tensors if ref.slot == "param:weight"] == [(36, 6)]


def test_parts_have_names_of_their_own_and_only_their_activations(files):
    def reader(place, what, weight):
        return files.neutral(place, what, kind="linear", input_0=X, input_1=weight, input_2=drawn(9), output_0=(5, 9))

    parts = [reader(("m", "q"), "linear", W[0]), reader(("n", "q"), "linear", W[1]), reader((), "linear", W[2])]
    theirs = [one for one in weights_of(parts, ANYWHERE) if one.tensor.slot == "input:1"]
    (one,) = readers(files, np.concatenate(W))
    (found,) = fused([one], theirs, True, ANYWHERE)
    assert found.turned and found.names == ("q_0", "q_1", "linear")
    assert {tuple(each.slot for each in part.tensors) for part in found.parts} == {
        ("input:0", "output:0", "param:weight")
    }
    assert fused(readers(files, W[0][:, 0].copy()), theirs, True, ANYWHERE) == []


def test_parts_of_a_weight_of_16_bits_that_32_hold(files):
    """MindSpore stores it so."""
    (one,) = readers(files, np.concatenate(W))
    short = one.tensor._replace(dtype="float16")
    (one,) = readers(files, short)
    assert [len(each.parts) for each in fused([one], readers(files, *W), False, ANYWHERE)] == [3]


def test_weights_without_values_have_no_parts(files):
    whole = recorded(np.concatenate(W))
    assert fused(readers(files, whole), readers(files, *W), False, ANYWHERE) == []
    assert fused(readers(files, np.concatenate(W)), readers(files, *map(recorded, W)), False, ANYWHERE) == []
