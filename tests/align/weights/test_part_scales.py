"""Parts of codes with scales, of shared experts on ranks, and stacks that cannot be read."""

import numpy as np
import pytest

from npucmp.model import TensorRef
from tests.align.weights.craft import Pairing, differing
from tests.align.weights.test_parts import CHANCE, DOWN, EMBED, GATE, GATE_UP, UP, drawn, problems, stacked


@pytest.fixture
def paired(tmp_path):
    return Pairing(tmp_path)


@pytest.mark.parametrize("scale_shape", [(2,), (2, 1)])
def test_each_part_of_a_fused_tensor_may_have_one_scale(paired, scale_shape):
    codes = CHANCE.integers(-100, 100, (12, 8)).astype(np.int8)
    scales = np.array([0.5, 3.0], np.float32)
    golden = {GATE: (codes[:6] * scales[0]).astype(np.float32), UP: (codes[6:] * scales[1]).astype(np.float32),
              DOWN: drawn(8, 6)}  # fmt: skip
    fused = {GATE_UP: codes, f"{GATE_UP}_scale": scales.reshape(scale_shape), DOWN: golden[DOWN]}
    found = paired(fused, golden)
    assert differing(found) == [] and all(one.limit.is_quantised for one in found.pairs if one.role.kind != "down")


@pytest.mark.parametrize(
    "inner, scale",
    [
        (6, (1,)),  # of the whole tensor
        (6, (12, 1)),  # of each row
        (6, (3, 2)),  # of blocks
        (1, (2, 1)),  # of two rows, each of which is a part
    ],
)
def test_a_fused_tensor_is_cut_behind_its_scale(paired, inner, scale):
    codes = CHANCE.integers(-100, 100, (2 * inner, 8)).astype(np.int8)
    factors = np.abs(drawn(*scale)) + 0.5
    grid = np.atleast_2d(factors)
    whole = codes * np.repeat(np.repeat(grid, 2 * inner // grid.shape[0], 0), 8 // grid.shape[1], 1)
    golden = {GATE: whole[:inner].astype(np.float32), UP: whole[inner:].astype(np.float32)}
    found = paired({GATE_UP: codes, f"{GATE_UP}_scale": factors}, golden)
    assert differing(found) == [] and len(found.pairs) == 2 and found.only_target == []
    assert {one.target.scale_dtype for one in found.pairs} == {"float32"}


def test_stacked_codes_have_a_scale_for_each_expert(paired):
    apart, stacks = stacked(2, 3, 4)
    p = "model.layers.0.mlp.experts."
    codes = CHANCE.integers(-100, 100, (2, 6, 4)).astype(np.int8)
    scales = np.abs(drawn(2, 6, 1)) + 0.5
    quantised = {**stacks, f"{p}w13_weight": codes, f"{p}w13_weight_scale": scales}
    for at in range(2):
        values = (codes[at] * scales[at]).astype(np.float32)
        apart[f"{p}{at}.gate_proj.weight"], apart[f"{p}{at}.up_proj.weight"] = values[:3], values[3:]
    assert differing(paired(quantised, apart)) == []
    quantised[f"{p}w13_weight_scale"] = scales[:1]
    found = paired(quantised, apart)
    assert problems(found) == dict.fromkeys(("gate", "up"), "a scale of shape [1, 6, 1] of stacked experts")


def test_a_stack_of_one_axis_has_the_reason(paired):
    apart, stacks = stacked(2, 3, 4)
    name = "model.layers.0.mlp.experts.w2_weight"
    found = paired({**stacks, name: drawn(2)}, apart)
    assert problems(found) == {"down": "stacked experts of shape [2]"}


def test_codes_without_a_scale_are_bare(paired):
    codes = CHANCE.integers(-100, 100, (6, 8)).astype(np.int8)
    found = paired({GATE: codes}, {GATE: codes.astype(np.float32)})
    assert [one.target.is_bare for one in found.pairs] == [True] and [one.golden.is_bare for one in found.pairs] == [
        False
    ]


@pytest.mark.parametrize(
    "count, is_told",
    [(0, False), (1, False), (2, True), (3, True), (1 << 14, True), ((1 << 14) + 1, False), (10**12, False)],
)
def test_a_stack_that_cannot_be_read_costs_each_expert_unless_its_shape_is_impossible(paired, count, is_told):
    apart, stacks = stacked(2, 3, 4, router=False)
    name = "model.layers.0.mlp.experts.w2_weight"
    broken = TensorRef("output:0", "float32", (count, 0, 0), "f", problem="cut off")
    found = paired({**stacks, name: broken}, {name: one for name, one in apart.items() if "down" in name})
    last = found.pairs[-1]
    assert [one.role.expert for one in found.pairs] == [0, 1]
    assert (last.target is not None and last.target.problem == "cut off") is is_told
    assert (last.note == "the target has no such parameter") is not is_told


BLOCKS = {"quantization_config": {"weight_block_size": [3, 4]}}


@pytest.mark.parametrize("config, differs", [(BLOCKS, []), ({}, [DOWN])])
def test_the_size_of_a_block_is_that_of_the_configuration(paired, config, differs):
    """Five rows have two scales in blocks of 3 or 4 rows."""
    codes = CHANCE.integers(50, 100, (5, 4)).astype(np.int8)
    scales = np.array([[0.5], [3.0]], np.float32)
    whole = (codes * np.repeat(scales, 3, 0)[:5]).astype(np.float32)
    found = paired({DOWN: codes, f"{DOWN}_scale": scales}, {DOWN: whole}, config)
    assert [name for name, _ in differing(found)] == differs
    name = "model.layers.0.mlp.experts.{}"
    stack = {name.format("w2_weight"): np.stack([codes, codes]),
             name.format("w2_weight_scale"): np.stack([scales, scales])}  # fmt: skip
    apart = {name.format(f"{at}.down_proj.weight"): whole for at in range(2)}
    assert bool(differing(paired(stack, apart, config))) is bool(differs)


def test_a_scale_that_belongs_to_no_codes_is_a_tensor_of_its_own(paired):
    """The fused tensor is cut, its scale is not."""
    golden = {GATE: drawn(6, 8), UP: drawn(6, 8), DOWN: drawn(8, 6)}
    scale = f"{GATE_UP}_scale"
    target = {GATE_UP: np.concatenate([golden[GATE], golden[UP]]), scale: drawn(12, 1), DOWN: golden[DOWN]}
    found = paired(target, golden)
    assert differing(found) == [] and found.only_target == [scale]


def test_shared_experts_lie_on_ranks_as_others_do(paired):
    """Rows of gate and up and columns of the last matrix, in both conventions."""
    shared, megatron = "model.layers.0.mlp.shared_experts.", "decoder.layers.0.mlp.shared_experts.linear_fc"
    gate, up, down, embed = drawn(6, 8), drawn(6, 8), drawn(8, 6), drawn(8, 4)
    names = [f"{shared}{one}_proj.weight" for one in ("gate", "up", "down")]
    whole = {EMBED: embed, **dict(zip(names, (gate, up, down)))}
    apart, fused = [], []
    for at in range(2):
        rows, columns = np.s_[3 * at : 3 * at + 3], np.s_[:, 3 * at : 3 * at + 3]
        half = {EMBED: embed[4 * at : 4 * at + 4]}
        own = gate[rows], up[rows], down[columns].copy()
        apart.append({**half, **dict(zip(names, own))})
        fused.append({**half, f"{megatron}1.weight": np.concatenate(own[:2]), f"{megatron}2.weight": own[2]})
    for target, golden in ((fused, whole), (fused, apart), (apart, apart)):
        found = paired(target, golden)
        assert differing(found) == [] and found.only_target == []
        shapes = {one.role.kind: one.target.shape for one in found.pairs}
        assert shapes == {"embed": (8, 4), "shared_gate": (6, 8), "shared_up": (6, 8), "shared_down": (8, 6)}
