"""Names of arguments that dumps have by place."""

from __future__ import annotations

import pytest

from npucmp.model import Operator
from npucmp.model.arguments import PLACES, by_name, named_arguments, places
from npucmp.model.optypes import TABLE

NORM = {"input:5": True, "input:6": 0.1, "input:7": 1e-5}


@pytest.mark.parametrize(
    ("op_type", "given", "named"),
    [
        ("batch_norm", NORM, {"training": True, "momentum": 0.1, "eps": 1e-5}),
        ("dropout", {"input:1": 0.1, "input:2": True}, {"p": 0.1, "training": True}),
        ("dropout", {"input:p": 0.1, "input:training": True}, {"p": 0.1, "training": True}),
        ("layer_norm", {"input:1.0": 64, "input:4": 1e-12}, {"normalized_shape.0": 64, "eps": 1e-12}),
        ("layer_norm", {"input:epsilon": 1e-12}, {"eps": 1e-12}),
        ("softmax", {"input:axis": -1}, {"dim": -1}),
        ("npu_rms_norm", {"input:2": 1e-6}, {"eps": 1e-6}),
        ("rms_norm", {"input:3": 1e-6}, {"eps": 1e-6}),
        ("nobody_knows", {"input:3": 1, "input:word": 2}, {"input:3": 1, "word": 2}),
        ("batch_norm", {"input:3": 1}, {"input:3": 1}),
    ],
)
def test_they_are_told(op_type, given, named):
    operator = Operator(f"F.{op_type}.0.forward", op_type, "", "forward", 0, (), arguments=given)
    assert named_arguments(operator) == named


@pytest.mark.parametrize(
    ("op_type", "phase", "path", "slot", "told"),
    [
        ("layer_norm", "forward", "", "input:4", "input:4 (eps)"),
        ("layer_norm", "forward", "", "input:9", "input:9"),
        ("layer_norm", "forward", "", "input:eps", "input:eps"),
        ("layer_norm", "backward", "", "input:4", "input:4"),  # a gradient
        ("layer_norm", "forward", "Module.ln", "input:4", "input:4"),
        ("LayerNorm", "", "", "input:5", "input:5 (eps)"),  # a kernel
        ("BatchNorm", "", "", "input:7", "input:7"),  # another one, whose order nobody told
        ("batch_norm", "forward", "", "input:2", "input:2"),  # spellings disagree
        ("layer_norm", "forward", "", "output:0", "output:0"),
    ],
)
def test_a_slot_is_told_with_its_argument(op_type, phase, path, slot, told):
    assert by_name(Operator(f"F.{op_type}.0.{phase}", op_type, "", phase, 0, (), path=path), slot) == told


def test_the_table_knows_operators_of_the_other_table():
    assert {*PLACES} <= {row.name for row in TABLE}
    assert places("torch.nn.functional.dropout") == places("Dropout") != ()
