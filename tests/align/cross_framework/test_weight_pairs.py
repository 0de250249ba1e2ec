"""Operators that share a weight, and products that one run computes at once: which are partners, and by which views."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.align.cross_framework.aliases import NeutralOperator
from npucmp.align.cross_framework.weight_match import (
    FusedGroup,
    agrees,
    fused,
    groups_by_name,
    matches_of,
    same,
    transpose_weight,
    views_of,
    weights_of,
    why_not,
)
from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.values import blocks
from npucmp.model import Device, Operator, Payload, Statistics, TensorRef

NZ = Device("FRACTAL_NZ", (6, 10))
NAMES = ("q_proj", "k_proj", "v_proj")


def drawn(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


class Files:
    """Operators of a run, with tensors as arrays in files, as references, or as shapes without values."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def tensor(self, slot, one, label=""):
        self.count += 1
        label = label or f"tensor {self.count}"
        if isinstance(one, TensorRef):
            return one._replace(slot=slot, label=label)
        if isinstance(one, tuple):
            return TensorRef(slot, "float32", one, label=label)
        np.save(self.folder / f"{self.count}.npy", one)
        return TensorRef(slot, one.dtype.name, one.shape, str(self.folder / f"{self.count}.npy"), "npy", label=label)

    def operator(self, name, kind="Linear", **slots):
        """Slots as input_0, param_weight, output_0."""
        tensors = tuple(self.tensor(slot.replace("_", ":", 1), one) for slot, one in slots.items())
        self.count += 1
        return Operator(name, kind, name, "forward", self.count, tensors, call=name)

    def neutral(self, place, what="", phase="forward", **more):
        operator = self.operator(".".join((*place, what)), **more)
        return NeutralOperator(operator._replace(phase=phase), tuple(place), what, phase)


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

W = [drawn(rows, 6, seed=rows) for rows in (10, 12, 14)]
Y = [drawn(5, rows, seed=100 + rows) for rows in (10, 12, 14)]
X = drawn(5, 6)


def group(files, weights=True, outputs=True, whole=None, out=None, turned=False, names=NAMES):
    """A whole of three parts; `whole` and `out` are its own values."""

    def slots(weight, output):
        found = {"input_0": X}
        found |= {"param_weight": weight} if weights else {}
        return found | {"output_0": output if outputs else output.shape}

    parts = tuple(files.operator(name, **slots(w, y)) for name, w, y in zip(names, W, Y))
    weight = np.concatenate(W) if whole is None else whole
    output = np.concatenate(Y, axis=1) if out is None else out
    return FusedGroup(files.operator("whole", **slots(weight, output)), parts, turned, names)


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


def values(tensor):
    return np.concatenate([*blocks(tensor.payload, context=ANYWHERE)]).reshape(tensor.shape)


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


def recorded(array, **more):
    figures = Statistics(float(array.max()), float(array.min()), float(array.mean()), float(np.linalg.norm(array)))
    return TensorRef("", "float32", array.shape, statistics=figures._replace(**more))


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
def test_weights_of_which_statistics_are_recorded(files, other, is_near):
    here, there = readers(files, statistics_of(*KNOWN)), readers(files, statistics_of(*other))
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

    parts = [reader(("q",), "linear", W[0]), reader(("q",), "linear", W[1]), reader((), "linear", W[2])]
    theirs = [one for one in weights_of(parts, ANYWHERE) if one.tensor.slot == "input:1"]
    (one,) = readers(files, np.concatenate(W))
    (found,) = fused([one], theirs, True, ANYWHERE)
    assert found.turned and found.names == ("q_0", "q_1", "linear")
    assert {tuple(each.slot for each in part.tensors) for part in found.parts} == {
        ("input:0", "output:0", "param:weight")
    }
    assert fused(readers(files, W[0][:, 0].copy()), theirs, True, ANYWHERE) == []
