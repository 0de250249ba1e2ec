"""Tensors of a partner from another framework: their shapes, their samples, and which of them belong together."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.cross_framework.msprobe_mapping import Api
from npucmp.align.cross_framework.slots import adds_up, ends_of, is_near, open_payload, partner_of, reshape_leading
from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.assembly import joined
from npucmp.model import Operator, Payload, TensorRef
from tests.align.cross_framework.craft import NZ, Files, drawn, values


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def place(path, shape=(6, 8), **more):
    return Payload(str(path), "float32", shape, 0)._replace(**more)


# Shapes


@pytest.mark.parametrize(
    "shape, is_changed",
    [((2, 3, 8), True), ((1, 6, 8), True), ((6, 8), False), ((8, 6), False), ((6, 4, 2), False), ((2, 3, 9), False)],
)
@pytest.mark.parametrize("has_values", [True, False])
def test_leading_axes_of_a_tensor_are_merged_or_split(files, shape, is_changed, has_values):
    array = drawn(6, 8)
    one = files.tensor("output:0", array if has_values else (6, 8))
    found = reshape_leading(one, shape, ANYWHERE)
    assert found.shape == (shape if is_changed else (6, 8)) and (found is one) is not is_changed
    if has_values and is_changed:
        assert np.array_equal(values(found), array.reshape(shape))


@pytest.mark.parametrize("change", [{"problem": "cut"}, {"file": "absent.npy"}, {"payload": place("x", device=NZ)}])
def test_a_tensor_whose_order_is_not_known_keeps_its_shape(files, change):
    one = files.tensor("output:0", drawn(6, 8))._replace(**change)
    assert reshape_leading(one, (2, 3, 8), ANYWHERE) is one


@pytest.mark.parametrize("shape", [(2, 3, 8), (48,)])
def test_a_turned_tensor_is_read_in_its_own_order_before_it_is_reshaped(files, shape):
    array = drawn(8, 6)
    array.tofile(files.folder / "x")
    one = TensorRef("output:0", "float32", (6, 8), payload=place(files.folder / "x", strides=(1, 6)))
    found = reshape_leading(one, shape, ANYWHERE)
    assert found.shape == shape and found.payload.shape == shape
    assert np.array_equal(values(found), array.T.reshape(shape))


# Files


@pytest.mark.parametrize(
    "change, is_open",
    [
        ({}, True),
        ({"problem": "cut"}, False),
        ({"file": ""}, False),
        ({"file": "absent.npy"}, False),
        ({"shape": (8, 6)}, False),
        ({"dtype": "float16"}, True),  # MindSpore stores it in 32 bits
        ({"dtype": "float64"}, False),
        ({"dtype": "int32"}, False),
        ({"dtype": "int16"}, False),
        ({"dtype": "strange"}, False),
    ],
)
def test_a_file_is_opened_if_it_holds_what_the_dump_says(files, change, is_open):
    one = files.tensor("output:0", drawn(6, 8))._replace(**change)
    found = open_payload(one, ANYWHERE)
    assert (found is not None) is is_open
    if found is not None:
        assert (found.shape, found.dtype) == ((6, 8), "float32")


@pytest.mark.parametrize("stored", ["float16", "float32"])
def test_a_file_holds_a_type_of_floats_in_more_bits(files, stored):
    """Two types of 16 bits are unlike."""
    one = files.tensor("output:0", drawn(6, 8).astype(stored))._replace(dtype="bfloat16")
    assert (open_payload(one, ANYWHERE) is not None) is (stored == "float32")


# Samples


@pytest.mark.parametrize(
    "shape, slot, first, last",
    [
        ((20, 30), "param:weight", np.s_[:8, :8], np.s_[-8:, :8]),
        ((20, 30), "output:0", np.s_[:8, :8], np.s_[:8, -8:]),
        ((5, 30), "output:0", np.s_[:, :8], np.s_[:, -8:]),
        ((20, 9, 30), "output:0", np.s_[:8, :1, :8], np.s_[:8, :1, -8:]),
        ((20, 9, 30), "param:weight", np.s_[:8, :1, :8], np.s_[-8:, :1, :8]),
        ((20,), "param:bias", np.s_[:8], np.s_[-8:]),
        ((3,), "param:bias", np.s_[:], np.s_[:]),
    ],
)
def test_samples_are_taken_at_both_ends_of_the_axis_that_is_cut(files, shape, slot, first, last):
    array = drawn(*shape)
    found = ends_of(files.tensor(slot, array), ANYWHERE)
    assert [one.tolist() for one in found] == [array[at].astype(float).reshape(-1).tolist() for at in (first, last)]


def test_samples_of_a_turned_tensor_and_of_what_is_no_number(files):
    array = drawn(8, 6)
    array[0, :3] = np.nan, np.inf, -np.inf
    array.tofile(files.folder / "x")
    one = TensorRef("param:weight", "float32", (6, 8), payload=place(files.folder / "x", strides=(1, 6)))
    first, last = ends_of(one, ANYWHERE)
    assert np.array_equal(first, np.nan_to_num(array.T, nan=0, posinf=0, neginf=0).reshape(-1)) and len(last) == 48


@pytest.mark.parametrize("one", [np.arange(20).reshape(4, 5), np.zeros((0, 5), np.float32), np.float32(3.0), (4, 5)])
def test_tensors_without_samples(files, one):
    assert ends_of(files.tensor("output:0", one), ANYWHERE) is None


@pytest.mark.parametrize("change", [{"device": NZ}, {"dataset": "/x"}, {"parts": (place("x"),)}, {"path": "absent"}])
def test_places_without_samples(files, change):
    payload = place(files.folder / "x")._replace(**change)
    drawn(6, 8).tofile(files.folder / "x")
    assert ends_of(TensorRef("output:0", "float32", (6, 8), payload=payload), ANYWHERE) is None


A, B = drawn(6, 20, seed=1), drawn(6, 20, seed=2)


@pytest.mark.parametrize(
    "other, near",
    [
        (A, True),
        (3 * A, True),
        (-A, False),
        (B, False),
        (A.reshape(2, 3, 20), True),
        (np.concatenate([A[:, :10], B[:, 10:]], axis=1), False),  # both ends count
        (np.concatenate([B[:, :10], A[:, 10:]], axis=1), False),
        (A[:, :19].copy(), False),  # another width: other elements at the end
        (A[:4].copy(), False),
        (0 * A, False),
        ((6, 20), None),
    ],
)
def test_tensors_are_near_if_they_have_one_direction_at_both_ends(files, other, near):
    one, two = files.tensor("output:0", A), files.tensor("output:0", other)
    assert is_near(one, two, ANYWHERE) is near
    if near is None:
        assert is_near(two, one, ANYWHERE) is None


@pytest.mark.parametrize("share, near", [(0.40, True), (0.55, False)])
def test_a_cosine_above_nine_tenths_is_near(files, share, near):
    other = np.roll(A, 1, axis=0)
    unit = [np.linalg.norm(one[:, :8]) for one in (A, other)]
    mixed = A / unit[0] + share * other / unit[1]
    cosines = [float((A[:, at] * mixed[:, at]).sum() / np.linalg.norm(A[:, at]) / np.linalg.norm(mixed[:, at]))
               for at in (np.s_[:8], np.s_[-8:])]  # fmt: skip
    assert (min(cosines) > 0.9) is near
    assert is_near(files.tensor("output:0", A), files.tensor("output:0", mixed), ANYWHERE) is near


def test_a_cosine_of_nine_tenths_is_not_near(files):
    one, other = (files.tensor("output:0", np.array([each], np.float32)) for each in ([3, 1, 0], [3, 0, 1]))
    assert is_near(one, other, ANYWHERE) is False


# Operands


def read(files, name, *tensors, op_type="add", path="", **arguments):
    refs = tuple(files.tensor(slot, one, label) for slot, one, label in tensors)
    return Operator(name, op_type, name, "forward", 0, refs, call=name, path=path,
                    arguments={slot.replace("_", ":"): value for slot, value in arguments.items()})  # fmt: skip


def labels(target, golden):
    found = partner_of(target, golden, ANYWHERE)
    return {one.slot: one.label for one in found.tensors}


@pytest.mark.parametrize(
    "path, golden, order",
    [
        ("", [B, A], "yx"),
        ("", [A, B], "xy"),
        ("", [B, B], "xy"),  # the first operand is near neither
        ("", [A, A], "xy"),
        ("", [(6, 20), (6, 20)], "xy"),  # without values
        ("net", [B, A], "xy"),  # a module names its inputs
    ],
)
def test_operands_in_reverse_order_are_exchanged(files, path, golden, order):
    target = read(files, "one", ("input:0", A, "a"), ("input:1", B, "b"), path=path)
    other = read(files, "other", *((f"input:{at}", one, "xy"[at]) for at, one in enumerate(golden)))
    assert labels(target, other) == {"input:0": order[0], "input:1": order[1]}


def test_numbers_that_both_operators_have_are_those_of_the_golden(files):
    """In the slots of the target; others are the target's own."""
    target = read(files, "one", input_eps=1e-5, input_dim=1, input_own=3, input_flag=True, input_word="a")
    golden = read(files, "other", input_eps=1e-6, input_dim=1, input_flag=2, input_word="b", input_more=4)
    found = partner_of(target, golden, ANYWHERE).arguments
    assert found == {"input:eps": 1e-6, "input:dim": 1, "input:own": 3, "input:flag": True, "input:word": "a"}


NORM = "RMSNorm"


@pytest.mark.parametrize(
    "kind, sums, reads, found",
    [
        (NORM, (6, 20), [(6, 20)], {"output:0": "y", "output:1": "x0", "input:0": None}),
        ("Linear", (6, 20), [(6, 20)], {"output:0": "y", "input:0": "x0", "output:1": None}),
        (NORM, (6, 21), [(6, 20)], {"output:0": "y", "input:0": "x0", "output:1": None}),
        (NORM, (6, 20), [(6, 20), (5,)], {"output:0": "y", "input:0": "x0", "output:1": None}),
        (NORM, (6, 20), [(2, 3, 20)], {"output:0": "y", "output:1": "x0", "input:0": None}),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_norm_that_adds_to_the_residual_returns_what_another_norm_reads(files, kind, sums, reads, found, is_turned):
    """vLLM's norms return both; the input of it has no partner."""
    fused = read(files, "one", ("input:0", (6, 20), "a"), ("output:0", (6, 20), "b"), ("output:1", sums, "c"),
                 op_type=kind, path="net.norm")  # fmt: skip
    plain = read(files, "other", *((f"input:{at}", shape, f"x{at}") for at, shape in enumerate(reads)),
                 ("output:0", (6, 20), "y"), op_type=kind, path="net.norm")  # fmt: skip
    own = {one.slot: one.label for one in fused.tensors}
    if is_turned:
        expected = {"x0": own["output:1"]} if found["output:1"] else {"x0": own["input:0"]}
        partner = labels(plain, fused)
        assert partner["input:0"] == expected["x0"] and partner["output:0"] == own["output:0"]
    else:
        partner = labels(fused, plain)
        assert {slot: partner.get(slot) for slot in found} == found


@pytest.mark.parametrize("kinds, adds", [((NORM, NORM), True), (("Linear", NORM), True), (("Linear", "Linear"), False)])
def test_modules_of_which_one_is_a_norm_may_add(files, kinds, adds):
    one, other = (read(files, "one", op_type=kind) for kind in kinds)
    assert adds_up(one, other) is adds and adds_up(other, one) is adds


# Slots


def refs(files, *tensors):
    return read(files, "one", *((slot, TensorRef("", dtype, shape), label) for slot, dtype, shape, label in tensors))


@pytest.mark.parametrize(
    "own, other, found",
    [
        # by name
        ([("input:0", "float32", (4, 8))], [("input:0", "float32", (2, 2, 8))], {"input:0": "0"}),
        ([("input:0", "float32", (4, 8))], [("input:0", "float32", (4, 9))], {"input:0": "0"}),  # the difference shows
        ([("input:0", "int64", (4, 8))], [("input:0", "float32", (4, 8))], {"input:0 of the golden": "0"}),
        ([("input:0", "bool", (4, 8))], [("input:0", "uint8", (4, 8))], {"input:0": "0"}),
        # by shape, if one alone has it
        ([("input:a", "float32", (4, 8)), ("input:b", "float32", (4, 9))],
         [("input:x", "float32", (4, 9)), ("input:y", "float32", (4, 8))], {"input:a": "1", "input:b": "0"}),
        ([("input:a", "float32", (4, 8))], [("input:x", "float32", (4, 8)), ("input:y", "float32", (4, 8))],
         {"input:x": "0", "input:y": "1"}),
        ([("input:a", "float32", (4, 8)), ("input:b", "float32", (4, 8))], [("input:x", "float32", (4, 8))],
         {"input:x": "0"}),
        ([("input:a", "float32", (4, 8))], [("output:x", "float32", (4, 8))], {"output:x": "0"}),
        ([("input:a", "float32", (4, 8))], [("input:x", "int32", (4, 8))], {"input:x": "0"}),
        ([("param:a", "float32", (4, 8))], [("param:x", "float32", (4, 8))], {"param:x": "0"}),
        ([("input:a", "float32", ())], [("input:x", "float32", ())], {"input:x": "0"}),
    ],
)  # fmt: skip
def test_tensors_are_partners_by_slot_and_then_by_shape(files, own, other, found):
    target = refs(files, *((*one, "own") for one in own))
    golden = refs(files, *((*one, str(at)) for at, one in enumerate(other)))
    assert labels(target, golden) == found


NORM_INPUTS = {
    "Primitive": ("input", "weight", "bias", "running_mean", "running_var"),
    "Functional": ("input", "running_mean", "running_var", "weight", "bias"),
}


@pytest.mark.parametrize("own, other", [("Primitive", "Functional"), ("Functional", "Primitive")])
def test_signatures_give_the_order_of_inputs(files, own, other):
    """MindSpore's batch norm has the weight before the running mean."""
    target, golden = (
        refs(files, *((f"input:{at}", "float32", (8,), word) for at, word in enumerate(NORM_INPUTS[side])))._replace(
            name=f"{side}.batch_norm.0.forward", op_type="batch_norm"
        )
        for side in (own, other)
    )
    assert labels(target, golden) == {f"input:{at}": word for at, word in enumerate(NORM_INPUTS[own])}


def test_a_file_names_the_slots_that_belong_together(files):
    """An input that it does not list has no partner."""
    same = "float32", (4, 8)
    target = refs(files, ("input:0", *same, "a"), ("input:1", *same, "b"), ("output:0", *same, "c"))
    golden = refs(files, ("input:0", *same, "x"), ("input:1", *same, "y"), ("output:0", *same, "z"))
    api = Api("one", "other", {"input:0": "input:1"}, ("input",))
    found = {one.slot: one.label for one in partner_of(target, golden, ANYWHERE, api).tensors}
    assert found == {"input:0": "y", "output:0": "z", "input:0 of the golden": "x"}


def test_samples_of_a_tensor_that_is_joined_of_parts(files):
    parts = [place(files.folder / str(at), (3, 20)) for at in range(2)]
    for at, part in enumerate(parts):
        A[3 * at : 3 * at + 3].tofile(part.path)
    one = TensorRef("output:0", "float32", (6, 20), payload=joined(parts, 0))
    assert [each.tolist() for each in ends_of(one, ANYWHERE)] == [
        A[:, at].astype(float).reshape(-1).tolist() for at in (np.s_[:8], np.s_[-8:])
    ]
