"""Parts of codes with scales, of shared experts on ranks, and stacks that cannot be read."""

import numpy as np
import pytest

from npucmp.model import TensorRef
from tests.relations.weights.craft import Pairing, differing
from tests.relations.weights.test_parts import CHANCE, GATE, GATE_UP, UP, drawn, problems, stacked


@pytest.fixture
def paired(tmp_path):
    return Pairing(tmp_path)


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
