"""Products that one run computes at once and the other separately: evidence, and the views that are compared."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.cross_framework.weight_match import (
    FusedGroup,
    agrees,
    fused,
    groups_by_name,
    matches_of,
    transpose_weight,
    views_of,
    weights_of,
    why_not,
)
from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.assembly import joined
from npucmp.model import Payload, TensorRef
from tests.align.cross_framework.craft import NAMES, NZ, Files, W, X, Y, drawn, group, recorded, values


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


# Groups by names


def named(files, *places, what="", phase="forward"):
    return [files.neutral(("layer", one), what, phase) for one in places]


@pytest.mark.parametrize(
    "target, golden, found",
    [
        (["qkv_proj"], NAMES, [("qkv_proj", NAMES, False)]),
        (NAMES, ["qkv_proj"], [("qkv_proj", NAMES, True)]),
        (["qkv_proj"], NAMES[::-1], [("qkv_proj", NAMES, False)]),  # the table has the order
        (["qkv_proj"], ["wq", "wk", "wv"], [("qkv_proj", ("wq", "wk", "wv"), False)]),
        (["w13", "qkv"], ["w1", "w3", "q", "k", "v"], [("w13", ("w1", "w3"), False), ("qkv", ("q", "k", "v"), False)]),
        (["qkv_proj"], NAMES[:2], []),
        (["qkv_proj"], [*NAMES, "qkv_proj"], []),  # both runs have it
        (["other"], NAMES, []),
        (["qkv_proj"] * 2, NAMES, []),  # called twice
        (["qkv_proj"] * 2, NAMES * 2, [("qkv_proj", NAMES, False)] * 2),
    ],
)
def test_wholes_and_parts_by_the_names_of_modules(files, target, golden, found):
    here, there = named(files, *target), named(files, *golden)
    groups = [*groups_by_name(here, there)]
    assert [(one.whole.name.split(".")[1], one.names, one.turned) for one in groups] == found
    used = [part.order for one in groups for part in one.parts]
    assert used == sorted(used) or golden == NAMES[::-1]  # executions in order
    assert len({*used}) == len(used)


def test_parts_of_functions_backward_passes_and_other_parents_make_no_whole(files):
    parts = named(files, *NAMES)
    assert not [*groups_by_name(named(files, "qkv_proj", phase="backward"), named(files, *NAMES, phase="backward"))]
    assert not [*groups_by_name(named(files, "qkv_proj", what="matmul"), named(files, *NAMES, what="matmul"))]
    assert not [*groups_by_name([files.neutral(("other", "qkv_proj"))], parts)]
    assert not [*groups_by_name([files.neutral(())], parts)]


# Evidence


TURNED = np.concatenate(W[::-1])
OTHER = np.concatenate(Y[::-1], axis=1)


@pytest.mark.parametrize(
    "more, found",
    [
        ({}, True),
        ({"whole": 3 * np.concatenate(W)}, True),  # the direction counts
        ({"whole": TURNED}, False),
        ({"out": OTHER}, True),  # a fault in the outputs
        ({"weights": False}, True),
        ({"weights": False, "out": OTHER}, False),
        ({"weights": False, "outputs": False}, None),
        ({"outputs": False}, True),
        ({"whole": np.concatenate([W[0], *W[:0:-1]])}, True),  # one part at its place
        ({"whole": drawn(35, 6)}, True),  # its rows do not add up, so that the outputs decide
    ],
)
def test_values_show_whether_parts_belong_to_a_whole(files, more, found):
    assert agrees(group(files, **more), ANYWHERE) is found


def test_the_reason_why_parts_do_not_belong_together(files):
    assert why_not(group(files)) == "its values are not the concatenation of the parts"
    other = why_not(group(files, out=drawn(5, 35)))
    assert other == "10 + 12 + 14 columns do not add up to 35"
    bare = group(files)
    bare = bare._replace(parts=(bare.parts[0]._replace(tensors=bare.parts[0].tensors[:2]), *bare.parts[1:]))
    assert why_not(bare) == "0 + 12 + 14 columns do not add up to 36"


@pytest.mark.parametrize(
    "evidence, matched",
    [
        ([{}, {}], [True, True]),
        ([{}, {"whole": TURNED}], [True, True]),  # one layer shows the layout
        ([{"whole": TURNED}, {"whole": TURNED}], [False, False]),
        ([{"whole": TURNED}, {"weights": False, "outputs": False}], [False, False]),
        ([{"whole": TURNED}, {"names": ("wq", "wk", "wv")}], [False, True]),  # names of another layout
    ],
)
def test_groups_with_the_same_names_have_one_layout(files, evidence, matched):
    groups = [group(files, **one) for one in evidence]
    found, unsure = matches_of(groups, ANYWHERE)
    assert [one in unsure for one in groups] == [not one for one in matched]
    assert [one.target.order for one in found] == [one.whole.order for one, fits in zip(groups, matched) if fits]


# Matches


def test_a_whole_is_compared_with_all_parts(files):
    one = group(files)
    (found,), unsure = matches_of([one], ANYWHERE)
    assert (found.via, found.confidence, found.settled, unsure) == ("parts", 0.9, True, [])
    assert found.inside == tuple(part.order for part in one.parts) and found.golden.name == " + ".join(NAMES)
    cut = [f"{slot}.{name}" for slot in ("param:weight", "output:0") for name in NAMES]
    assert [each.slot for each in found.target.tensors] == ["input:0", *cut]
    assert {*cut, "input:0"} == {each.slot for each in found.golden.tensors}
    own = {each.slot: each for each in found.target.tensors}
    for name, weight, output in zip(NAMES, W, Y):
        assert np.array_equal(values(own[f"param:weight.{name}"]), weight)
        assert np.array_equal(values(own[f"output:0.{name}"]), output)


def test_each_part_is_compared_with_its_share_of_a_whole_of_the_golden(files):
    one = group(files, turned=True)
    found, unsure = matches_of([one], ANYWHERE)
    assert [each.target for each in found] == [*one.parts] and unsure == []
    assert {(each.via, each.confidence, each.inside, each.settled) for each in found} == {
        ("parts", 0.9, (one.whole.order,), True)
    }
    for each, weight, output in zip(found, W, Y):
        theirs = {tensor.slot: tensor for tensor in each.golden.tensors}
        assert [*theirs] == ["input:0", "param:weight", "output:0"]
        assert np.array_equal(values(theirs["param:weight"]), weight)
        assert np.array_equal(values(theirs["output:0"]), output)


@pytest.mark.parametrize(
    "part, whole, is_matched",
    [
        ({}, {}, True),
        ({"norm": None}, {}, False),
        ({}, {"shape": (5, 35)}, False),
        ({}, {"shape": (6, 36)}, False),
        ({}, {"shape": ()}, False),
        ({}, {"statistics": None}, False),
        (None, {}, False),  # a part without statistics
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_statistics_of_the_parts_are_merged(files, part, whole, is_matched, turned):
    """Those of a whole do not show the parts."""
    outputs = [recorded(one) for one in Y]
    outputs[1] = recorded(Y[1], **part) if part is not None else TensorRef("", "float32", Y[1].shape)
    outputs[2] = outputs[2]._replace(rounding=3.0)
    parts = tuple(files.operator(name, input_0=X, output_0=one) for name, one in zip(NAMES, outputs))
    own = recorded(np.concatenate(Y, axis=1))._replace(**whole)
    one = FusedGroup(files.operator("whole", input_0=X, output_0=own), parts, turned, NAMES)
    found, unsure = matches_of([one], ANYWHERE)
    assert bool(found) is (is_matched and not turned) and bool(unsure) is not bool(found)
    if found:
        (merged,) = [each for each in found[0].golden.tensors if each.is_output]
        every = np.concatenate(Y, axis=1)
        expected = (every.max(), every.min(), every.mean(), np.linalg.norm(every))
        assert merged.statistics == pytest.approx(expected, rel=1e-5)
        assert (merged.slot, merged.shape, merged.rounding) == ("output:0", (5, 36), 3.0)
        labels = [each.label for one in parts for each in one.tensors if each.is_output]
        assert merged.label == f"{' + '.join(labels)} [axis 1]"


# Views


@pytest.mark.parametrize(
    "change, fits",
    [
        ({}, True),
        ({"device": NZ}, False),
        ({"dataset": "/x"}, False),
        ({"parts": (Payload("", "float32", (5, 36), 0),)}, False),
        ({"dtype": "int4"}, False),
        ({"dtype": "unknown"}, False),
    ],
)
def test_tensors_in_plain_files_have_views(files, change, fits):
    payload = Payload(str(files.folder / "x"), "float32", (5, 36), 0)._replace(**change)
    whole = TensorRef("output:0", payload.dtype, (5, 36), label="x", payload=payload, checksum="c")
    found = views_of(whole, [(5, 10), (5, 26)], 1, ANYWHERE)
    assert len(found) == 2 * fits
    if fits:
        assert [one.label for one in found] == ["x [axis 1: 0 to 10]", "x [axis 1: 10 to 36]"]
        assert {one.checksum for one in found} == {""} and {one.statistics for one in found} == {None}


def test_views_of_a_turned_tensor(files):
    array = drawn(6, 10)
    ref = files.tensor("param:weight", array)
    turned = transpose_weight(weights_of([files.neutral(("a",), param_weight=array)], ANYWHERE)[0], ANYWHERE).tensor
    assert turned.shape == (10, 6) and ref.shape == (6, 10)
    for axis, shapes in ((0, [(4, 6), (6, 6)]), (1, [(10, 2), (10, 4)])):
        found = views_of(turned, shapes, axis, ANYWHERE)
        ends = np.cumsum([0, *(one[axis] for one in shapes)])
        assert [values(one).tolist() for one in found] == [
            array.T.take(range(*both), axis).tolist() for both in zip(ends, ends[1:])
        ]


def test_parts_of_a_weight_that_is_itself_joined(files):
    """The rows of each part are read where they lie in the joined payload."""
    of_one_file = [files.tensor("param:weight", rows) for rows in (np.concatenate(W)[:17], np.concatenate(W)[17:])]
    payload = joined([Payload(one.file, "float32", one.shape, 128) for one in of_one_file], 0)
    whole = of_one_file[0]._replace(file="", shape=payload.shape, payload=payload)
    parts = [files.neutral(("layer", name), input_0=X, param_weight=w) for name, w in zip(NAMES, W)]
    [found] = fused(
        weights_of([files.neutral(("layer", "qkv"), input_0=X, param_weight=whole)], ANYWHERE),
        weights_of(parts, ANYWHERE),
        False,
        ANYWHERE,
    )
    assert found.names == tuple(NAMES) and [part.name for part in found.parts] == [one.operator.name for one in parts]


def test_parts_with_more_leading_axes_belong_to_a_whole(files):
    """The rows of the batch and of the sequence stand one behind the other."""
    one = group(files, weights=False)
    parts = tuple(files.operator(name, input_0=X, output_0=y.reshape(1, 5, -1)) for name, y in zip(NAMES, Y))
    assert agrees(one._replace(parts=parts), ANYWHERE) is True
    ((found,), _) = matches_of([one._replace(parts=parts)], ANYWHERE)
    assert {each.shape for each in found.golden.tensors if each.is_output} == {(5, 10), (5, 12), (5, 14)}
