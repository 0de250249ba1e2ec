"""Names of MindSpore: file names must and must not match, and nothing is too odd to look at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump.readers.mindspore_files import parse_mindspore_name
from npucmp.model import DeviceTask


@pytest.mark.parametrize(
    "name, expected",
    [
        ("Conv2D.Default_n-Net_Conv2D-op12.0.0.1795252793022644.input.1.DefaultFormat.Float32.npy",
         ("Conv2D", "Default_n-Net_Conv2D-op12", "input", 1, 1795252793022644, "DefaultFormat", "Float32",
             DeviceTask(0, 0))),
        ("Conv2D.Conv2D-op12.0.0.9.output.0.NCHW.npy",
         ("Conv2D", "Conv2D-op12", "output", 0, 9, "NCHW", "", DeviceTask(0, 0))),
        ("Add.a.65535.65535.7.output.10.npy", ("Add", "a", "output", 10, 7, "", "", DeviceTask(65535, 65535))),
        ("Add.a.1.2.7.output.0.ND.BF16.npy", ("Add", "a", "output", 0, 7, "ND", "BF16", DeviceTask(1, 2))),
        ("Pooling.pool1.1.5.1732082705016774.output.0.1x64x56x56.npy",
         ("Pooling", "pool1", "output", 0, 1732082705016774, "1x64x56x56", "", DeviceTask(1, 5))),
        ("Add.s.0.3.1673383728093446.4.1.0.0.input.0.10.npy",
         ("Add", "s", "input", 0, 1673383728093446, "10", "", DeviceTask(0, 3, 1, 0))),
        ("Cast.t_1.327.1619347786532995.output.0.npy",
         ("Cast", "t_1", "output", 0, 1619347786532995, "", "", DeviceTask(327))),
    ],
)  # fmt: skip
def test_names(name, expected):
    assert tuple(parse_mindspore_name(name)) == expected


@pytest.mark.parametrize(
    "name",
    [
        "Functional.linear.0.forward.input.1.npy",
        "Module.layers.0.fc.Linear.forward.0.output.0.npy",
        "Tensor.add.0.1.input.0.npy",
        "conv1.0.1619494134703053.npy",
        "Pooling.pool1.1.5.1732082705016774",
        "Pooling.pool1.1.5.1732082705016774.csv",
        "Add.a.1.2.3.output.0.json",
        "Opdebug.Node_OpDebug.1.2.3.output.0.json",
        "12345678901234567890.npy",
        "a.b.²²²²²²²²²².1.1.input.0.npy",
        "a.b.1.2." + "9" * 30 + ".input.0.npy",
        "a." * 5000 + "input.0.npy",
    ],
)
def test_no_names_of_this_format(name):
    assert parse_mindspore_name(name) is None


@given(st.text(alphabet="a.0_-pun tiox²/\\\n", max_size=40))
def test_any_name_is_looked_at(text):
    assert parse_mindspore_name(text) is None or parse_mindspore_name(text).op_name
