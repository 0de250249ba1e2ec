"""What names, shapes and slots mean in all worlds: tables."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.cross_framework import differ_in_framework
from npucmp.align.cross_framework.msprobe_mapping import vendor_of
from npucmp.align.cross_framework.slots import partner_of
from npucmp.align.shape_match import alike, merge_leading_axes
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Operator, TensorRef
from npucmp.model.optypes import same_type
from tests.align.craft import a_run, api, own


@pytest.mark.parametrize("words", [
    "Mint.add __add__ add_ iadd aten::add.Tensor", "Dense Linear nn.Dense QKVParallelLinear LinearOperation",
    "RmsNorm npu_rms_norm RmsNormOperation LlamaRMSNorm FusedRMSNorm", "logical_or __or__", "equal eq __eq__",
    "flash_attention_score npu_fusion_attention SelfAttentionOperation", "swapaxes transpose", "Embedding "
    "VocabParallelEmbedding", "__lt__ less",
])  # fmt: skip
def test_spellings_of_one_operator(words):
    assert len({same_type(word) for word in words.split()}) == 1


@pytest.mark.parametrize("words", ["add sub", "silu swiglu", "RMSNorm LayerNorm", "eq ne", "Linear Conv2d"])
def test_others_are_others(words):
    assert len({*map(same_type, words.split())}) == 2


@pytest.mark.parametrize("one, other, expected", [
    ((6, 8), (2, 3, 8), True), ((14,), (2, 7), True), ((1, 6, 8), (6, 8), True), ((6, 1, 8), (2, 3, 1, 8), True),
    ((), (1,), True), ((6, 8), (3, 2, 8), True), ((6, 8), (8, 6), False), ((14, 8, 4), (2, 8, 7, 4), False),
    ((24,), (2, 3, 4), False), ((6, 8), (6, 4, 2), False), ((8,), (), False),
])  # fmt: skip
def test_shapes_that_are_alike(one, other, expected):
    assert alike(one, other) == alike(other, one) == expected
    assert (
        not expected
        or len(one) > 3
        or len(other) > 3
        or len(other) == 2
        or merge_leading_axes(one) == merge_leading_axes(other)
    )


def read(name: str, *slots: str, dtype="float32", shape=(4, 8)) -> Operator:
    tensors = (TensorRef(slot, dtype, shape, label=slot) for slot in (*slots, "output:0"))
    return api(name, 0, "forward", 0)._replace(tensors=tuple(tensors))


@pytest.mark.parametrize("target, golden, expected", [
    (read("Functional.flash_attention_score", "input:0", "input:attn_mask"),
     read("NPU.npu_fusion_attention", "input:0", "input:atten_mask"),
     "input:0=input:0 input:attn_mask=input:atten_mask"),
    (read("Primitive.LayerNorm", "input:0", "input:1", "input:2"),
     read("Functional.layer_norm", "input:0", "input:2", "input:3"), "input:0=input:0 input:1=input:2 input:2=input:3"),
    (read("Primitive.BatchNorm", *(f"input:{at}" for at in range(5))),
     read("Functional.batch_norm", *(f"input:{at}" for at in range(5))),
     "input:0=input:0 input:1=input:3 input:2=input:4 input:3=input:1 input:4=input:2"),
    (read("Cell.a.LayerNorm", "input:0", "param:gamma", "param:beta", "grad:embedding_table"),
     read("Module.a.LayerNorm", "input:0", "param:weight", "param:bias", "grad:weight"),
     "input:0=input:0 param:gamma=param:weight param:beta=param:bias grad:embedding_table=grad:weight"),
    (read("Mint.any", "input:0", "input:1"), read("Torch.any", "input:x", "input:y"), ""),  # which is which is open
])  # fmt: skip
def test_slots_of_two_signatures(target, golden, expected):
    found = partner_of(target, golden, ANYWHERE)
    own_slots = {one.slot for one in target.tensors} - {"output:0"}
    assert {f"{one.slot}={one.label}" for one in found.tensors if one.slot in own_slots} == {*expected.split()}


def test_operands_the_other_way_round(tmp_path):
    """The values tell, and only if they do both."""
    x, y = (np.random.default_rng(seed).standard_normal((4, 8)).astype(np.float32) for seed in (1, 2))
    for name, values in (("x", x), ("y", y), ("z", x * 0.5 + y * 0.5)):
        np.save(tmp_path / f"{name}.npy", values)

    def add(*names: str) -> Operator:
        tensors = (TensorRef(f"input:{at}", "float32", (4, 8), str(tmp_path / f"{one}.npy"), "npy", label=one)
                   for at, one in enumerate(names))  # fmt: skip
        return api("Torch.add", 0, "forward", 0)._replace(tensors=tuple(tensors))

    def order(target: Operator, golden: Operator) -> str:
        found = {one.slot: one.label for one in partner_of(target, golden, ANYWHERE).tensors}
        return found["input:0"] + found["input:1"]

    assert order(add("x", "y"), add("y", "x")) == "xy"
    assert order(add("x", "y"), add("x", "y")) == "xy"
    assert order(add("x", "z"), add("y", "x")) == "yx"


@pytest.mark.parametrize("target, golden, expected", [
    ("Cell.a.Dense.forward.0", "Module.a.Linear.forward.0", True), ("Mint.a.0.forward", "Torch.a.0.forward", True),
    ("Module.a.Linear.forward.0", "Module.b.Linear.forward.0", False), ("Default/a-op0", "Module.a.b.forward.0", False),
    ("Functional.a.0.forward", "Functional.a.0.forward", False),
])  # fmt: skip
def test_whose_names_are_those_of_two_worlds(target, golden, expected):
    assert differ_in_framework(a_run([own(target, 0)]), a_run([own(golden, 0)])) == expected


def test_a_vendors_table_is_known_by_its_form():
    assert vendor_of({"A": {"b": "c"}}).layers and vendor_of({"ms_api": "a", "pt_api": "b"}).apis
    assert (
        vendor_of({"a": "b"}) is vendor_of([]) is vendor_of({}) is vendor_of({"A": {"b": 1}}) is vendor_of("a") is None
    )
    odd = [{"ms_api": "a", "pt_api": "b", "ms_args": "xyz", "pt_args": [0, 1, 2]}]
    assert not vendor_of(odd).apis["a"].slots
