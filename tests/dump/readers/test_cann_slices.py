"""Slices of FFTS+: which axis was cut, what their names hold, which slices fit together."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump.readers import cann_slices
from npucmp.dump.readers.cann_enums import RawTensor


def part(*shape: int, dtype: str = "float32", problem: str = "") -> RawTensor:
    return RawTensor("output", dtype, "ND", shape, None, 1, 0, 0, problem)


def described(**facts):
    return cann_slices.cuts([("slices", json.dumps({"threadMode": 1, **facts}))])


def ranges(*bounds):
    """[{lower, higher} of every axis]."""
    return [{"lower": low, "higher": high} for low, high in bounds]


@pytest.mark.parametrize(
    "name, whole, number",
    [
        ("conv1", "conv1", -1),
        ("conv1_lxslice0", "conv1", 0),
        ("conv1_lxslice12", "conv1", 12),
        ("partition0_rank1_new_sub_graph1_sgt_graph_0_Add", "Add", -1),
        ("partition0_rank1_new_sub_graph1_sgt_graph_0/block/Add", "block/Add", -1),
        ("sgt_graph_0_a_sgt_graph_1_Add_lxslice3", "Add", 3),
        ("conv_lxslice", "conv_lxslice", -1),
        ("sgt_graph_x_Add", "sgt_graph_x_Add", -1),
    ],
)
def test_names(name, whole, number):
    assert cann_slices.whole_name(name) == (whole, number)


@pytest.mark.parametrize("cut, axis", [([2, 1], 0), ([1, 1, 4], 2), ([1, 1], -1), ([2, 2], 0)])
def test_the_cut_list_tells_the_axis_of_an_output(cut, axis):
    assert described(outputCutList=[[1, 1], cut]).axis("output", 1) == axis


@pytest.mark.parametrize("role", ["input", "output"])
def test_the_ranges_tell_the_axis(role):
    table = [[ranges((0, 4), (0, 3)), ranges((0, 1))], [ranges((0, 4), (3, 6)), ranges((0, 1))]]
    cuts = described(**{f"{role}_tensor_slice": table})
    assert (cuts.axis(role, 0), cuts.axis(role, 1), cuts.axis(role, 2)) == (1, -1, None)


def test_of_an_output_the_cut_list_comes_first():
    cuts = described(outputCutList=[[1, 2]], output_tensor_slice=[[ranges((0, 1), (0, 1))], [ranges((1, 2), (0, 1))]])
    assert (cuts.axis("output", 0), cuts.axis("input", 0)) == (1, None)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", '{"threadMod": 1}', "[" * 100_000])
def test_other_attributes_are_no_slices(text):
    assert cann_slices.cuts([("a", text)]) is None
    assert cann_slices.cuts([]) is None


JSON = st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3))


@given(JSON, JSON, JSON, st.sampled_from(["input", "output"]), st.integers(0, 2))
def test_odd_tables_never_raise(cut, table, number, role, index):
    cuts = described(outputCutList=cut, output_tensor_slice=table, input_tensor_slice=table, slice_instance_num=number)
    assert cuts.axis(role, index) is None or cuts.axis(role, index) >= -1
    assert isinstance(cuts.slices, int)


def test_slices_are_joined_along_their_axis():
    assert cann_slices.join([part(2, 3), part(2, 4)], 1, 2).shape == (2, 7)
    assert cann_slices.join([part(0, 3), part(2, 3)], 0, 2).shape == (2, 3)
    assert cann_slices.join([part(2, 3), part(2, 3)], -1, 2) == part(2, 3)  # every slice has all of it
    assert cann_slices.join([part(2, 3)], None, 1) == part(2, 3)


@pytest.mark.parametrize(
    "parts, axis, words",
    [
        ([part(2, 3), part(2, 4)], 0, "do not fit"),
        ([part(2, 3), part(2)], 0, "do not fit"),
        ([part(2), part(2)], 1, "do not fit"),
        ([part(2), part(2, dtype="float16")], 0, "do not fit"),
        ([part(2), part(2)], None, "does not record"),
        ([part(2)], 0, "only 1 of 2"),
        ([part(2), part(2, problem="ended early")], 0, "ended early"),
    ],
)
def test_what_cannot_be_joined_is_told(parts, axis, words):
    assert words in cann_slices.join(parts, axis, 2).problem
