"""msprobe dumps: real ones of three levels and modes, and hand-written ones for what those do not hold."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp import open_runs
from npucmp.dump.formats import calls_of, msprobe
from npucmp.errors import DumpError
from npucmp.measure.pairs import measure
from npucmp.model import Operator, Pair, Statistics
from tests.contracts import FormatContract

DATA = Path(__file__).parent.parent.parent / "data"
SAMPLES = DATA / "msprobe"

# ---- hand-written dumps ----


def leaf(shape=(2, 3), dtype="torch.float32", **more) -> dict:
    return {
        "type": "torch.Tensor",
        "dtype": dtype,
        "shape": list(shape),
        "Max": 2.0,
        "Min": -1.0,
        "Mean": 0.5,
        "Norm": 3.0,
        **more,
    }


def record(*inputs, output=(), **more) -> dict:
    return {"input_args": list(inputs), "input_kwargs": {}, "output": list(output or [leaf()]), **more}


def write(folder: Path, data, name="dump.json", **top) -> Path:
    """A rank folder with a dump.json and a folder of tensors; returned is the folder."""
    (folder / "dump_tensor_data").mkdir(parents=True, exist_ok=True)
    whole = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data, **top}
    (folder / name).write_text(json.dumps(whole), encoding="utf-8")
    return folder


def only(path: Path):
    (run,) = msprobe.open_runs(path)
    return run


def opened(tmp_path: Path, record, name="Functional.add.0.forward") -> Operator:
    (operator,) = only(write(tmp_path / "rank0", {name: record})).operators
    return operator


def slots(operator: Operator) -> list:
    return [tensor.slot for tensor in operator.tensors]


def unfigured(**more) -> dict:
    return {"type": "torch.Tensor", "dtype": "torch.float16", "shape": [2, 3], **more}


@pytest.mark.parametrize("flag, maxima", [(True, [math.nan]), (False, [0.0]), (None, []), (7, []), ("true", [])])
def test_a_flag_of_nan_check_is_an_output_of_its_own(tmp_path, flag, maxima):
    operator = opened(tmp_path, record(unfigured(), output=[unfigured()], is_nan=flag))
    told = [tensor for tensor in operator.tensors if tensor.slot == "output:is_nan"]
    assert [tensor.statistics.max for tensor in told] == pytest.approx(maxima, nan_ok=True)
    assert slots(operator) == ["input:0", "output:0", *(tensor.slot for tensor in told)]


def test_placeholders_of_a_flag_and_records_of_gradients_have_none(tmp_path):
    assert "output:is_nan" not in slots(opened(tmp_path, record(is_nan_index=3)))
    assert slots(opened(tmp_path, {"weight": [leaf()]}, "Module.fc.Linear.parameters_grad")) == ["grad:weight"]


class TestStatistics(FormatContract):
    module = msprobe

    def write(self, folder):
        shutil.copytree(SAMPLES / "stat_mix", folder / "dump")
        return folder / "dump"


class TestXor(FormatContract):
    module = msprobe

    def write(self, folder):
        shutil.copytree(SAMPLES / "xor_L0", folder / "dump")
        return folder / "dump" / "step0" / "rank0" / "dump.json"


class TestTensors(FormatContract):
    module = msprobe

    def write(self, folder):
        where = folder / "dump" / "step3" / "rank1"
        (where / "dump_tensor_data").mkdir(parents=True)
        records = {}
        for n, stored in enumerate(("f32.pt", "bf16.pt", "i64.pt")):
            name = f"Functional.f.{n}.forward"
            shutil.copy(DATA / "pt_files" / stored, where / "dump_tensor_data" / f"{name}.output.0.pt")
            records[name] = record(output=[leaf(data_name=f"{name}.output.0.pt")])
        write(where, records, task="tensor")
        return folder / "dump"

    def test_opening_needs_no_payload(self, tmp_path):
        where = self.write(tmp_path)
        before = msprobe.open_runs(where)
        for file in (where / "step3" / "rank1" / "dump_tensor_data").iterdir():
            file.unlink()
        assert msprobe.open_runs(where) == before

    def test_files_are_named(self, tmp_path):
        where = self.write(tmp_path)
        for operator in only(where).operators:
            (tensor,) = operator.tensors
            assert tensor.file == str(where / "step3" / "rank1" / "dump_tensor_data" / f"{operator.name}.output.0.pt")
            assert (tensor.encoding, tensor.label) == ("torch_pt", f"{operator.name}.output.0.pt")
            assert Path(tensor.file).is_file()


# ---- names ----

NAMES = [  # name, op_type, kind, phase, call, unique
    ("Functional.conv2d.0.forward", "conv2d", "Functional.conv2d.forward", "forward", "Functional.conv2d.0", False),
    ("Tensor.__add__.3.backward", "__add__", "Tensor.__add__.backward", "backward", "Tensor.__add__.3", False),
    (
        "NPU.npu_fusion_attention.12.forward",
        "npu_fusion_attention",
        "NPU.npu_fusion_attention.forward",
        "forward",
        "NPU.npu_fusion_attention.12",
        False,
    ),
    (
        "Aten._softmax.default.1.forward",
        "default",
        "Aten._softmax.default.forward",
        "forward",
        "Aten._softmax.default.1",
        False,
    ),
    (
        "Primitive.norm.RmsNorm.0.forward",
        "RmsNorm",
        "Primitive.norm.RmsNorm.forward",
        "forward",
        "Primitive.norm.RmsNorm.0",
        False,
    ),
    ("Jit.construct.2.backward", "construct", "Jit.construct.backward", "backward", "Jit.construct.2", False),
    (
        "Distributed.all_reduce.0.forward",
        "all_reduce",
        "Distributed.all_reduce.forward",
        "forward",
        "Distributed.all_reduce.0",
        False,
    ),
    (
        "Module.layer1.0.conv1.Conv2d.forward.0",
        "Conv2d",
        "Module.layer1.0.conv1.Conv2d.forward",
        "forward",
        "Module.layer1.0.conv1.Conv2d.0",
        True,
    ),
    (
        "Module.0.layer1.Conv2d.backward.1",
        "Conv2d",
        "Module.0.layer1.Conv2d.backward",
        "backward",
        "Module.0.layer1.Conv2d.1",
        True,
    ),
    (
        "Cell.network.layers.0.Dense.forward.0",
        "Dense",
        "Cell.network.layers.0.Dense.forward",
        "forward",
        "Cell.network.layers.0.Dense.0",
        True,
    ),
    (
        "Module.forward.3.Linear.forward.0",
        "Linear",
        "Module.forward.3.Linear.forward",
        "forward",
        "Module.forward.3.Linear.0",
        True,
    ),
    (
        "Module.a.Linear.parameters_grad.0",
        "Linear",
        "Module.a.Linear.parameters_grad",
        "backward",
        "Module.a.Linear",
        True,
    ),
    (
        "Module.a.Linear.parameters_grad",
        "Linear",
        "Module.a.Linear.parameters_grad",
        "backward",
        "Module.a.Linear",
        True,
    ),
    ("my tensor.0.debug", "my tensor", "my tensor.0.debug", "", "my tensor.0", True),
    ("loss_grad.1.debug", "loss_grad", "loss_grad.1.debug", "", "loss_grad.1", True),
    ("something", "something", "something", "", "something", True),
    ("Functional.linear.forward", "forward", "Functional.linear.forward", "", "Functional.linear.forward", True),
    ("", "", "", "", "", True),
]


@pytest.mark.parametrize("row", NAMES, ids=[row[0] for row in NAMES])
def test_parse_name(row):
    found = msprobe.parse_msprobe_name(row[0])
    assert (found.op_type, found.kind, found.phase, found.call, found.unique) == row[1:]


@given(
    st.lists(st.sampled_from(["forward", "backward", "parameters_grad", "debug", "0", "12", "²", "", "a"]), max_size=6)
)
def test_any_name_can_be_parsed(words):
    found = msprobe.parse_msprobe_name(".".join(words))
    assert found.phase in ("", "forward", "backward") and found.unique in (True, False)


# ---- real samples ----


def test_sample_statistics():
    run = only(SAMPLES / "stat_mix")
    assert (run.step, run.rank, run.format, len(run.operators)) == (0, 0, "msprobe", 50)
    assert "pytorch" in run.detail and "mix statistics" in run.detail and run.notes == ()
    first, module = run.operators[:2]
    assert slots(first) == ["input:0", "input:1", "input:2", "output:0"]
    assert first.tensors[0].statistics == Statistics(
        1.6871134042739868, -2.2455577850341797, -0.34596797823905945, 5.287123203277588
    )
    assert first.scope == module.name == "Module.layers.0.fc1.Linear.forward.0"
    assert slots(module) == ["input:0", "param:weight", "param:bias", "output:0"]


def test_sample_nested_arguments():
    block = next(op for op in only(SAMPLES / "stat_mix").operators if op.name == "Module.layers.0.Blk.forward.0")
    assert slots(block) == ["input:0", "input:opts.k", "output:0.logits", "output:0.top.0", "output:0.top.1"]
    assert dict(block.arguments) == {"input:scale": 2.0}
    assert [tensor.dtype for tensor in block.tensors][-1] == "int64"


def test_sample_gradients_of_parameters():
    (grads,) = [
        op for op in only(SAMPLES / "stat_mix").operators if op.name == "Module.layers.1.fc2.Linear.parameters_grad.0"
    ]
    assert {tensor.slot: tensor.shape for tensor in grads.tensors} == {"grad:bias": (4,), "grad:weight": (4, 16)}
    assert grads.phase == "backward" and all(tensor.is_output for tensor in grads.tensors) and not grads.reads_recorded


def test_sample_checksums():
    run = only(SAMPLES / "md5_L1")
    assert "checksums" in run.detail and run.operators[0].tensors[0].checksum == "724f369b"
    assert run.operators[0].tensors[0].statistics is not None


def test_sample_xor():
    run = only(SAMPLES / "xor_L0")
    assert run.operators[0].tensors[0].checksum == "0x0105e873ffe8cc56"
    assert all(tensor.statistics is None for operator in run.operators for tensor in operator.tensors)
    assert all(operator.unique for operator in run.operators)


# ---- folders ----

ADD = {"Functional.add.0.forward": record(leaf())}


@pytest.mark.parametrize(
    "made, found",
    [
        ("step0/rank0 step0/rank1 step2/rank0", [(0, 0), (0, 1), (2, 0)]),
        ("step0/rank10 step0/rank9", [(0, 9), (0, 10)]),
        ("step5/proc4711", [(5, None)]),
        ("step0/proc4711 step1/proc4711", [(0, None), (1, None)]),
        ("step0/rank0 step0/proc4711 step0/proc4712", [(0, 0)]),
        ("step0/rank step0/proc4711", [(0, None)]),
        ("step1/rank", [(1, None)]),
        (".", [(None, None)]),
        ("some/folder/step7/rank3", [(7, 3)]),
    ],
)
def test_folders(tmp_path, made, found):
    for folder in made.split():
        write(tmp_path / "dump" / folder, ADD)
    assert [(run.step, run.rank) for run in open_runs(tmp_path / "dump")] == found


@pytest.mark.parametrize("below", ["", "step3", "step3/rank2", "step3/rank2/dump.json"])
def test_any_level_may_be_given(tmp_path, below):
    write(tmp_path / "step3" / "rank2", ADD)
    (run,) = open_runs(tmp_path / below)
    assert (run.step, run.rank) == (3, 2)
    assert run.path == str(tmp_path / "step3" / "rank2" / "dump.json")


def test_several_processes_and_no_rank(tmp_path):
    for process in ("proc1", "proc2"):
        write(tmp_path / "step0" / process, ADD)
    with pytest.raises(DumpError) as caught:
        open_runs(tmp_path)
    assert "proc1" in str(caught.value) and "proc2" in str(caught.value)


def test_a_dump_below_a_tensor_folder_is_not_looked_for(tmp_path):
    write(tmp_path / "rank0" / "dump_tensor_data" / "rank1", ADD)
    assert msprobe.sniff(tmp_path) is False


def test_other_names_with_the_right_content(tmp_path):
    write(tmp_path, ADD, "api_info.json")
    assert msprobe.sniff(tmp_path / "api_info.json") and len(only(tmp_path / "api_info.json").operators) == 1


@pytest.mark.parametrize("text", ["{}", "[]", "not JSON", '{"data": 1}', ""])
def test_other_json_files_are_no_dumps(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert msprobe.sniff(tmp_path / "config.json") is False


# ---- records ----


def test_mindspore(tmp_path):
    def tensor(dtype, **more):
        return {
            "type": "mindspore.Tensor",
            "dtype": dtype,
            "shape": [2],
            "Max": 1.0,
            "Min": 0.0,
            "Mean": 0.5,
            "Norm": 1.0,
            **more,
        }

    data = {
        "Mint.add.0.forward": record(
            tensor("BFloat16", data_name="Mint.add.0.forward.input.0.npy"), output=[tensor("Int64")]
        )
    }
    where = write(tmp_path, data, framework="mindspore")
    np_file, plain = only(where).operators[0].tensors
    assert (np_file.dtype, np_file.encoding, plain.dtype) == ("bfloat16", "npy", "int64")
    assert "mindspore" in only(where).detail


@pytest.mark.parametrize(
    "word, framework", [("torch.Tensor", "pytorch"), ("mindspore.Tensor", "mindspore"), ("odd", "")]
)
def test_the_framework_of_old_files(tmp_path, word, framework):
    where = write(tmp_path, {"Tensor.add.0.forward": record(output=[leaf(type=word, dtype="float32")])}, framework=None)
    assert only(where).detail.split(" · ")[0] == (framework or "L1 statistics")


@pytest.mark.parametrize(
    "word, dtype",
    [
        ("torch.bfloat16", "bfloat16"),
        ("Float16", "float16"),
        ("torch.float8_e4m3fn", "float8_e4m3fn"),
        ("BFloat16", "bfloat16"),
        ("torch.bool", "bool"),
        ("UInt8", "uint8"),
        ("float32", "float32"),
        ("torch_npu.HiFloat8Tensor", "hifloat8"),
        ("torch.double", "float64"),
        ("torch.half", "float16"),
        ("torch.complex64", "complex64"),
    ],
)
def test_dtype_words(tmp_path, word, dtype):
    assert opened(tmp_path, record(output=[leaf(dtype=word)])).tensors[0].dtype == dtype


BACKWARD = "Functional.add.0.backward"
GRADS = "Module.a.Linear.parameters_grad.0"


@pytest.mark.parametrize(
    "name, record, expected",
    [
        ("", {}, []),
        ("", {"output": [leaf()]}, ["output:0"]),
        ("", {"input_args": [leaf()]}, ["input:0"]),
        ("", {"input_args": None, "input_kwargs": None, "output": None, "parameters": None}, []),
        ("", record(leaf(), None, {"type": "int", "value": 2}, leaf()), ["input:0", "input:3", "output:0"]),
        ("", record([leaf(), [leaf(), leaf()]]), ["input:0.0", "input:0.1.0", "input:0.1.1", "output:0"]),
        ("", record(input_kwargs={"x": leaf(), "y": {"z": [leaf()]}}), ["input:x", "input:y.z.0", "output:0"]),
        ("", record(parameters={"weight": leaf(), "bias": None}), ["param:weight", "output:0"]),
        ("", record({"class_type": "P2POp", "tensor": leaf(), "op": "isend"}), ["input:0.tensor", "output:0"]),
        ("", record({"type": "numpy.ndarray", "dtype": "float32", "shape": [2]}), ["input:0", "output:0"]),
        (BACKWARD, {"input": [leaf()], "output": [leaf(), None, leaf()]}, ["input:0", "output:0", "output:2"]),
        (BACKWARD, {"input": [None], "output": [None]}, []),
        (GRADS, {"weight": [leaf()], "bias": [leaf()]}, ["grad:weight", "grad:bias"]),
        (GRADS, {"weight": leaf(), "bias": None}, ["grad:weight"]),
        (GRADS, {"weight": [None], "bias": []}, []),
        (GRADS, {"weight": [leaf(), leaf()]}, ["grad:weight.0", "grad:weight.1"]),
        ("Module.parameters_grad_clip.Clip.forward.0", record(leaf()), ["input:0", "output:0"]),
    ],
)
def test_slots(tmp_path, name, record, expected):
    assert slots(opened(tmp_path, record, name or "Functional.add.0.forward")) == expected


@pytest.mark.parametrize(
    "value, count",
    [(leaf(), 1), ([leaf(), leaf()], 2), ({"a": leaf(), "b": [leaf()]}, 2), ([[leaf()], None], 1), (None, 0)],
)
def test_debug(tmp_path, value, count):
    write(tmp_path, {"my name.0.debug": value}, "debug.json", level="debug")
    (operator,) = only(tmp_path).operators
    assert len(operator.tensors) == count and all(tensor.is_output for tensor in operator.tensors)


@pytest.mark.parametrize(
    "argument, expected",
    [
        ({"type": "float", "value": 1e-05}, 1e-05),
        ({"type": "bool", "value": False}, False),
        ({"type": "torch.dtype", "value": "torch.float16"}, "torch.float16"),
        ({"type": "torch.memory_format", "format": "channels_last"}, "channels_last"),
        ({"type": "slice", "value": [0, None, 2]}, [0, None, 2]),
        ({"type": "NoneType", "value": None}, None),
    ],
)
def test_arguments(tmp_path, argument, expected):
    operator = opened(tmp_path, record(leaf(), input_kwargs={"option": argument}))
    assert dict(operator.arguments) == {"input:option": expected}
    assert slots(operator) == ["input:0", "output:0"]


@pytest.mark.parametrize(
    "recorded, expected",
    [
        ({}, Statistics(2.0, -1.0, 0.5, 3.0)),
        ({"Mean": None, "Norm": None}, Statistics(2.0, -1.0, None, None)),
        ({"Max": True, "Min": False, "Mean": None, "Norm": None}, Statistics(1.0, 0.0, None, None)),
        ({"Max": None, "Min": None, "Mean": None, "Norm": None}, None),
        ({"Max": "2.0", "Min": [], "Mean": {}, "Norm": None}, None),
        ({"Max": 7, "Min": float("-inf")}, Statistics(7.0, float("-inf"), 0.5, 3.0)),
    ],
)
def test_statistics(tmp_path, recorded, expected):
    assert opened(tmp_path, record(output=[leaf(**recorded)])).tensors[0].statistics == expected


def test_a_whole_number_beyond_float64_is_no_end(tmp_path):
    assert opened(tmp_path, record(output=[leaf(Max=10**400)])).tensors[0].statistics.max == math.inf


@pytest.mark.parametrize("digits", [5, 299, 301, 4000])
def test_an_argument_is_a_number_that_a_float_can_hold(tmp_path, digits):
    (tmp_path / "dump.json").write_text(
        '{"data": {"Torch.pow.0.forward": {"input_args": [{"type": "int", "value": -%s}]}}}' % ("9" * digits)
    )
    (run,) = msprobe.open_runs(tmp_path)
    (value,) = run.operators[0].arguments.values()
    assert float(value) == -float("9" * digits) and (digits > 300 or value == -(10**digits - 1))


def test_nan_and_infinity_stand_bare(tmp_path):
    text = json.dumps({"data": {"Functional.add.0.forward": record(leaf(Max=float("inf"), Mean=float("nan")))}})
    assert "NaN" in text and "Infinity" in text
    (tmp_path / "dump.json").write_text(text)
    statistics = only(tmp_path).operators[0].tensors[0].statistics
    assert statistics.max == float("inf") and statistics.mean != statistics.mean and statistics.min == -1.0


def test_reads_recorded(tmp_path):
    assert opened(tmp_path, record(leaf())).reads_recorded
    assert not opened(tmp_path, {"output": [leaf()]}).reads_recorded
    assert not opened(tmp_path, {"input": [None], "output": [leaf()]}, BACKWARD).reads_recorded


# ---- companions ----

FRAMES = ["File /src/model.py, line 3, in forward, \n y = x + 1", "File /src/train.py, line 9, in step, \n model(x)"]
PAIR = {
    "Functional.add.0.forward": record(leaf()),
    "Functional.add.0.backward": {"input": [leaf()], "output": [leaf()]},
}


@pytest.mark.parametrize(
    "stacks",
    [{"0": [["Functional.add.0.forward"], FRAMES]}, {"Functional.add.0.forward": FRAMES}],
    ids=["shared", "by operator"],
)
def test_stacks_of_both_generations(tmp_path, stacks):
    write(tmp_path, PAIR)
    (tmp_path / "stack.json").write_text(json.dumps(stacks))
    run = only(tmp_path)
    assert [operator.stack for operator in run.operators] == [tuple(FRAMES)] * 2 and run.notes == ()


@pytest.mark.parametrize("parent", ["Module.a.Linear.forward.0", ["Module.a.Linear.forward.0", 1]])
def test_scopes(tmp_path, parent):
    write(tmp_path, PAIR)
    (tmp_path / "construct.json").write_text(
        json.dumps({"Functional.add.0.forward": parent, "Functional.add.0.backward": None})
    )
    assert [operator.scope for operator in only(tmp_path).operators] == ["Module.a.Linear.forward.0", ""]


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("file", ["stack.json", "construct.json"])
@pytest.mark.parametrize(
    "text", ["", "[]", "{", "3", "null", '"text"', DEEP, "\x00", '{"0": [["a"], null]}', '{"0": 5}', '{"0": null}']
)
def test_a_broken_companion_costs_a_note_at_most(tmp_path, file, text):
    write(tmp_path, PAIR)
    (tmp_path / file).write_text(text)
    run = only(tmp_path)
    assert len(run.operators) == 2
    assert all(file in note for note in run.notes)


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_a_broken_stack_is_noted(tmp_path, text):
    write(tmp_path, PAIR)
    (tmp_path / "stack.json").write_text(text)
    (note,) = only(tmp_path).notes
    assert "stack.json" in note and "ignored" in note


def test_missing_companions_are_no_news(tmp_path):
    assert only(write(tmp_path, PAIR)).notes == ()


# ---- hostile ----

OUTSIDE = [
    "../secret.pt",
    "../../etc/passwd",
    "/etc/passwd",
    "/etc/x.npy",
    "a/b.pt",
    "./a.pt",
    "a\\b.pt",
    "..\\a.pt",
    "C:\\a.pt",
    "a\0.pt",
    "..",
    ".",
    "a.txt",
    "a",
    ".pt",
    5,
    True,
    ["a.pt"],
    {"a": "b.pt"},
    1.5,
    "\0",
    "a.pt/",
    "a.pt/..",
]


@pytest.mark.parametrize("data_name", OUTSIDE, ids=repr)
def test_a_file_outside_is_refused(tmp_path, data_name):
    (tensor,) = opened(tmp_path, {"output": [leaf(data_name=data_name)]}).tensors
    assert tensor.problem and tensor.file == ""


@pytest.mark.parametrize("data_name", ["-1", -1, None, ""])
def test_no_file_was_kept(tmp_path, data_name):
    (tensor,) = opened(tmp_path, {"output": [leaf(data_name=data_name)]}).tensors
    assert (tensor.problem, tensor.file) == ("", "")


@pytest.mark.parametrize(
    "data_name",
    ["a.pt", "a..pt", "..a.npy", "a b.pt", "ü.npy", "~.pt", "$HOME.pt", "a\n.pt", "\ud800.npy", "x" * 300 + ".pt"],
)
def test_a_file_inside_can_be_measured(tmp_path, data_name):
    operator = opened(tmp_path, {"output": [leaf(data_name=data_name)]})
    (tensor,) = operator.tensors
    assert os.path.dirname(tensor.file) == str(tmp_path / "rank0" / "dump_tensor_data")
    assert measure(Pair(0, tensor.slot, operator, None, tensor, None)).problem.startswith("target: ")


@pytest.mark.parametrize(
    "shape", ["2, 3", {"0": 2}, [2, -1], [2.0], [True], [[2]], ["2"], 6, None, [None], [10**200, 10**200]]
)
def test_a_shape_that_is_none_is_a_problem(tmp_path, shape):
    (tensor,) = opened(tmp_path, {"output": [{**leaf(), "shape": shape}]}).tensors
    assert "shape" in tensor.problem and tensor.shape == ()


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_half_a_dump_is_told(tmp_path, part):
    text = (SAMPLES / "stat_mix" / "step0" / "rank0" / "dump.json").read_text()
    (tmp_path / "dump.json").write_text(text.rstrip()[: int(len(text) * part)])
    with pytest.raises(DumpError) as caught:
        open_runs(tmp_path)
    assert str(tmp_path / "dump.json") in str(caught.value) and "interrupted" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        DEEP,
        '{"data": ' + DEEP + "}",
        '{"data": {"a": ' + '{"a": ' * 100_000,
        "[]",
        "3",
        "null",
        '"data"',
        "{}",
        '{"data": null}',
        '{"data": [1]}',
        '{"data": "x"}',
        '{"data": 1e999}',
        '{"data": ' + "9" * 5000 + "}",
        "\ufeff{}",
    ],
    ids=lambda text: text[:12],
)
def test_what_is_no_dump_is_told(tmp_path, data):
    (tmp_path / "dump.json").write_text(data, encoding="utf-8")
    with pytest.raises(DumpError) as caught:
        open_runs(tmp_path)
    assert "dump.json" in str(caught.value)


@pytest.mark.parametrize(
    "make", [lambda path: path.write_bytes(b'{"data": "\xff"}'), lambda path: path.symlink_to("gone")]
)
def test_a_dump_that_cannot_be_read_is_told(tmp_path, make):
    make(tmp_path / "dump.json")
    with pytest.raises(DumpError):
        open_runs(tmp_path)


def test_tensor_files_that_no_record_names_are_told(tmp_path):
    """A run that was killed has written more tensors than its dump.json tells."""
    data = tmp_path / "dump_tensor_data"
    data.mkdir()
    for name in ("a.0.forward.output.0.pt", "b.0.forward.output.0.pt", "b.0.forward.input.0.pt", "notes.txt"):
        (data / name).write_bytes(b"")
    write(tmp_path, {"a.0.forward": record(output=[leaf(data_name="a.0.forward.output.0.pt")])}, task="tensor")
    (run,) = open_runs(tmp_path)
    words = "2 files that no record names are skipped: b.0.forward.input.0.pt, b.0.forward.output.0.pt"
    assert run.notes == (f"{data}{os.sep}: {words}",)


def test_a_fifo_does_not_keep_the_run_waiting(tmp_path):
    os.mkfifo(tmp_path / "dump.json")
    outcome = []

    def opening():
        try:
            open_runs(tmp_path)
        except DumpError as error:
            outcome.append(error)

    waiting = threading.Thread(target=opening, daemon=True)
    waiting.start()
    waiting.join(1)
    waits = waiting.is_alive()
    if waits:
        os.close(os.open(tmp_path / "dump.json", os.O_WRONLY | os.O_NONBLOCK))  # lets the thread end
        waiting.join()
    assert not waits and outcome


def test_no_depth_of_nesting_is_too_much(tmp_path):
    """Between what the JSON reader takes and what it refuses lies nothing that raises another error."""
    for depth in [*range(10, 900, 89), *range(900, 1010)]:
        value = "[" * depth + json.dumps(leaf()) + "]" * depth
        (tmp_path / "dump.json").write_text('{"data": {"Functional.a.0.forward": {"output": ' + value + "}}}")
        try:
            assert len(only(tmp_path).operators) == 1
        except DumpError as error:
            assert "dump.json" in str(error)


def test_an_empty_dump_is_told(tmp_path):
    write(tmp_path, {})
    with pytest.raises(DumpError) as caught:
        open_runs(tmp_path)
    assert "no operator" in str(caught.value)


WORDS = st.sampled_from(
    [
        "type",
        "dtype",
        "shape",
        "value",
        "data_name",
        "Max",
        "Norm",
        "md5",
        "input_args",
        "output",
        "input",
        "parameters",
        "a.pt",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=5),
    max_leaves=12,
)
OPERATORS = st.sampled_from(
    [*(row[0] for row in NAMES), "a\nb", "\u202e", "=cmd()", "../x", "\0", "x" * 500]
) | st.text(max_size=8)


def survives(folder: Path, top) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "dump.json").write_text(json.dumps(top))
    try:
        runs = open_runs(folder)
    except DumpError as error:
        assert "dump.json" in str(error) or str(folder) in str(error)
        return
    for tensor in (tensor for run in runs for operator in run.operators for tensor in operator.tensors):
        assert not tensor.file or os.path.dirname(tensor.file) == str(folder / "dump_tensor_data")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@given(OPERATORS, JSON)
def test_any_record_is_taken_or_told(folder, name, value):
    survives(folder, {"data": {name: value}})


@given(
    st.dictionaries(st.sampled_from(["type", "dtype", "shape", "Max", "data_name", "md5", "value"]), JSON, max_size=7)
)
def test_any_leaf_is_taken_or_told(folder, changes):
    survives(folder, {"data": {"Functional.add.0.forward": record({**leaf(), **changes})}})


@given(st.dictionaries(st.sampled_from(["data", "task", "level", "framework", "dump_data_dir"]), JSON, max_size=5))
def test_any_top_is_taken_or_told(folder, top):
    survives(folder, top)


@given(JSON, JSON)
def test_any_companion_is_taken(folder, stack, construct):
    where = write(folder / "companions", PAIR)
    (where / "stack.json").write_text(json.dumps(stack))
    (where / "construct.json").write_text(json.dumps(construct))
    assert len(only(where).operators) == 2


@pytest.mark.parametrize("sample", ["msprobe_softmax", "msprobe_bfloat16"])
def test_calls_name_the_tensors_of_their_operators(sample):
    """Every tensor of an operator stands in its call, under the same slot."""
    (run,) = open_runs(DATA.parent.parent / "sample_dumps" / sample / "target")
    calls = msprobe.calls(run)
    assert [*calls] == [operator.name for operator in run.operators]
    for operator in run.operators:
        call = calls[operator.name]
        named = re.findall(r"Slot\(name='([^']*)'\)", repr(call))
        assert named == [tensor.slot for tensor in operator.tensors]
        assert operator.name.startswith(f"{call.prefix}.{call.name}.")


def test_calls_of_other_formats_are_none(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(2))
    (run,) = open_runs(tmp_path)
    assert calls_of(run) == {}
