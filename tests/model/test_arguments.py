"""Names of arguments that dumps have by place."""

from __future__ import annotations

import pytest

from npucmp.model import Operator
from npucmp.model.arguments import named_arguments

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
