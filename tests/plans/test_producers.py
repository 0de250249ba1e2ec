"""The real producers take the files, and their dumps answer the questions: only with `pytest -m slow`, and where they
are installed. msprobe's PrecisionDebugger runs a small network of torch, MindSpore dumps a graph on the CPU."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import npucmp
from npucmp.plans.request import QUESTIONS

pytestmark = pytest.mark.slow

TORCH = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16)
        self.drop, self.b = torch.nn.Dropout(0.1), torch.nn.Linear(16, 4)
    def forward(self, x):
        return self.b(self.drop(torch.nn.functional.gelu(self.norm(self.a(x.float())))))
torch.manual_seed(1)
model, x, y = Net(), torch.randn(6, 8), torch.randint(0, 4, (6,))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    {start}
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    {end}
"""
MINDSPORE = """
import mindspore, numpy
from mindspore import nn, ops, Tensor, Parameter
mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        random = numpy.random.RandomState(0)
        self.w = Parameter(Tensor(random.randn(8, 16).astype(numpy.float32)), name="w")
        self.v = Parameter(Tensor(random.randn(16, 4).astype(numpy.float32)), name="v")
    def construct(self, x):
        return ops.reduce_sum(ops.softmax(ops.matmul(ops.relu(ops.matmul(x, self.w)), self.v)) ** 2)
net = Net()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
x = Tensor(numpy.random.RandomState(1).randn(6, 8).astype(numpy.float32))
for _ in range(4):
    step(x)
"""
READS = """
import json, sys
from msprobe.mindspore.dump.ms_config import parse_common_config, parse_task_config
for path in sys.argv[1:]:
    with open(path) as file:
        told = json.load(file)
    common = parse_common_config(told)
    parse_task_config(common.task, told)
    print(common.task, common.level, len(common.step))
"""
ANSWERS = {  # the last line begins with one of these; a clean run may have a warning of its own
    "compare": ("AGREES",), "overflow": ("CLEAN",), "fusion-diff": ("AGREES",), "rerun-diff": ("SAME",),
    "replay": ("INNOCENT",), "check": ("HEALTHY", "UNHEALTHY: 0 errors"), "precheck": ("COMPARABLE",),
}  # fmt: skip


def answered(question: str, framework: str, script: dict[str, str], where: Path, **more: str) -> str:
    """Plans both sides, runs what was planned, and asks what was printed."""
    for side in ("target", "golden"):
        folder = "npu" if side == "target" else "npu-golden"
        found = npucmp.plan(question, framework, folder, side=side, **more)
        npucmp.write_plan(found)
        lines = [
            line.code for line in found.script if not line.code.startswith(("debugger.st", "mindspore.set_context"))
        ]
        (where / folder / "train.py").write_text("\n".join([*lines, script[framework].format(**AROUND)]))
        for command in found.run:
            ran = command.replace("python train.py", shlex.join([sys.executable, f"{folder}/train.py"]))
            got = subprocess.run(ran, shell=True, cwd=where, capture_output=True, text=True, timeout=300)
            assert got.returncode == 0, got.stdout[-2000:] + got.stderr[-2000:]
        if not found.other:
            break
    asked = [sys.executable, "-m", "npucmp", *shlex.split(found.then[0])[1:]]
    got = subprocess.run(asked, cwd=where, capture_output=True, text=True, timeout=300)
    held = subprocess.run(
        [sys.executable, "-m", "npucmp", "show", shlex.split(found.then[0])[2], "--fit", question],
        cwd=where, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return (
        "\n".join(line for line in got.stdout.splitlines() if ": " in line and line.split(":")[0].isupper())
        + held.stdout
    )


AROUND = {"start": "debugger.start(model=model)", "end": "debugger.stop(); debugger.step()"}
SCRIPTS = {"pytorch": TORCH, "mindspore-graph": MINDSPORE}


@pytest.mark.skipif(importlib.util.find_spec("msprobe") is None, reason="msprobe is not installed")
@pytest.mark.parametrize("question", [name for name in QUESTIONS if name != "fusion-diff"])
def test_msprobe(question, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = answered(question, "pytorch", SCRIPTS, tmp_path)
    assert said.startswith(ANSWERS[question]) and f"suffices for {question}" in said, said


@pytest.mark.skipif(importlib.util.find_spec("msprobe") is None, reason="msprobe is not installed")
@pytest.mark.parametrize(
    "question, kind, wanted",
    [
        ("compare", "statistics", "UNDECIDED"),
        ("compare", "md5", "AGREES"),
        ("overflow", "values", "CLEAN"),
        ("rerun-diff", "values", "SAME"),
        ("check", "statistics", ANSWERS["check"]),
        ("precheck", "md5", "COMPARABLE"),
    ],
)
def test_msprobe_records_what_it_is_asked_for(question, kind, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = answered(question, "pytorch", SCRIPTS, tmp_path, kind=kind)
    assert said.startswith(wanted), said


def leaves_of(tree):
    """The tensors of a dump.json."""
    if isinstance(tree, dict) and "dtype" in tree:
        return [tree]
    below = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [leaf for one in below for leaf in leaves_of(one)]


@pytest.mark.skipif(importlib.util.find_spec("msprobe") is None, reason="msprobe is not installed")
@pytest.mark.parametrize(
    "question, kind, steps, level",
    [
        ("compare", "statistics", {0}, "L1"),
        ("overflow", "statistics", {0}, "L1"),
        ("check", "statistics", {0, 1, 2}, "mix"),
        ("precheck", "md5", {0, 1, 2}, "mix"),
        ("rerun-diff", "md5", {0}, "L1"),
        ("compare", "values", {0}, "L1"),
    ],
)
def test_each_key_is_what_msprobe_recorded(question, kind, steps, level, tmp_path, monkeypatch):
    """task, level, step, data_mode, summary_mode, precision and risk_level of config.json, in the dump."""
    monkeypatch.chdir(tmp_path)
    answered(question, "pytorch", SCRIPTS, tmp_path, kind=kind)
    dumps = sorted(tmp_path.glob("npu/**/dump.json"))
    assert {int(one.parent.parent.name[4:]) for one in dumps} == steps
    for file in dumps:
        dump = json.loads(file.read_text())
        tensors = leaves_of(dump["data"])
        floats = [leaf for leaf in tensors if leaf["dtype"] in ("torch.float32", "torch.float16", "torch.bfloat16")]
        assert dump["level"] == level and dump["task"] == ("tensor" if kind == "values" else "statistics")
        assert len(floats) > 30 and all(
            isinstance(leaf[figure], float) for leaf in floats for figure in ("Max", "Min", "Mean", "Norm")
        )
        assert all(("data_name" in leaf) == (kind == "values") for leaf in tensors)
        assert all(("md5" in leaf) == (kind == "md5") for leaf in tensors)
        names = " ".join(dump["data"])
        assert ".forward" in names and (".backward" in names) and ("Tensor.float" in names) == (kind != "values")
        assert any(record.get("input_args") for record in dump["data"].values())
        assert any(record.get("output") for record in dump["data"].values())


@pytest.mark.skipif(importlib.util.find_spec("msprobe") is None, reason="msprobe is not installed")
def test_msprobe_records_the_operators_that_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answered("compare", "pytorch", SCRIPTS, tmp_path, ops="*gelu*")
    (file,) = tmp_path.glob("npu/dump/**/dump.json")
    assert {name.split(".")[1] for name in json.loads(file.read_text())["data"]} == {"gelu"}


BOTH = importlib.util.find_spec("msprobe") is None or importlib.util.find_spec("mindspore") is None


@pytest.mark.skipif(BOTH, reason="msprobe or MindSpore is not installed")
def test_msprobe_of_mindspore_reads_the_files(tmp_path):
    """Its dump needs kernels that MindSpore has on a device alone."""
    planned = [
        npucmp.plan(question, "mindspore", tmp_path / f"{question}-{kind}", kind=kind)
        for question, asks in QUESTIONS.items()
        for kind in asks.kinds
        if question != "fusion-diff"
    ]
    for one in planned:
        npucmp.write_plan(one)
    files = [f"{one.folder}/config.json" for one in planned]
    got = subprocess.run([sys.executable, "-c", READS, *files], capture_output=True, text=True, timeout=300)
    told = [line for line in got.stdout.splitlines() if line.startswith(("tensor ", "statistics "))]
    assert got.returncode == 0, got.stdout[-2000:] + got.stderr[-2000:]
    assert told == [
        f"{'tensor' if one.request.kind == 'values' else 'statistics'} {one.request.question.level} "
        f"{one.request.steps[0][1] + 1}"
        for one in planned
    ]


@pytest.mark.skipif(importlib.util.find_spec("mindspore") is None, reason="MindSpore is not installed")
@pytest.mark.parametrize("question", QUESTIONS)
def test_mindspore(question, tmp_path, monkeypatch):
    """On a CPU it writes values alone, of graphs without kernels that are fused."""
    monkeypatch.chdir(tmp_path)
    said = answered(question, "mindspore-graph", SCRIPTS, tmp_path, kind="values")
    assert said.startswith(ANSWERS[question]) and f"suffices for {question}" in said, said


@pytest.mark.skipif(importlib.util.find_spec("mindspore") is None, reason="MindSpore is not installed")
@pytest.mark.parametrize("ops, kinds", [((), {"MatMul", "ReLU", "Softmax"}), ("*ReLU*", {"ReLU", "ReluGrad"})])
def test_each_key_is_what_mindspore_recorded(ops, kinds, tmp_path, monkeypatch):
    """net_name, iteration, dump_mode, kernels, input_output, saved_data and file_format, in the files of the dump."""
    monkeypatch.chdir(tmp_path)
    answered("compare", "mindspore-graph", SCRIPTS, tmp_path, kind="values", steps="1-2", ops=ops)
    for side in ("npu", "npu-golden"):
        folders = {file.parent for file in (tmp_path / side / "dump").rglob("*.output.0.*")}
        assert {folder.name for folder in folders} == {"1", "2"}
        assert {folder.parent.parent.name for folder in folders} == {"compare"}
        for folder in folders:
            files = [file.name for file in folder.iterdir() if not file.name.startswith("Parameter.")]
            assert all(name.endswith(".npy") for name in files)
            found = {name.split(".")[0] for name in files}
            assert found >= kinds and (not ops or found == kinds)
            assert any(".input." in name for name in files) and any(".output." in name for name in files)
