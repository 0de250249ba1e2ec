"""npucmp replay CASE --against KERNEL: a user's own function, judged by the case of an operator."""

from pathlib import Path

import numpy as np
import pytest

from npucmp import extract, replay
from npucmp.cli import npucmp as group
from npucmp.errors import DumpError, UsageError
from npucmp.model import ReplayVerdict
from tests.recompute.craft import Dump

F32 = np.float32
SOFTMAX = Path(__file__).parents[2] / "sample_dumps" / "msprobe_softmax" / "target"
KERNELS = """
import numpy as np

def softmax(x, dim):
    weights = np.exp(x.astype(float) - x.max(dim, keepdims=True))
    return (weights / weights.sum(dim, keepdims=True)).astype("f4")

def coarse(x, dim):
    return softmax(x.astype("f2").astype("f4"), dim)

def turned(x, dim):
    return softmax(x, dim)[..., :1]

def raises(x, dim):
    return 1 / 0

def back(dy, x, w, b):
    return dy @ w, dy.T @ x, dy.sum(0)

def halved(dy, x, w, b):
    return dy @ w, dy.T @ x, dy.sum(0) / 2
"""


@pytest.fixture()
def kernels(tmp_path):
    (tmp_path / "own_kernels.py").write_text(KERNELS)
    return str(tmp_path / "own_kernels.py")


@pytest.fixture()
def case(tmp_path):
    extract(SOFTMAX, "Functional.softmax.1.forward", tmp_path / "case")
    return tmp_path / "case"


def test_a_right_kernel_is_clean_and_a_coarse_one_guilty(case, kernels):
    right, wrong = (replay(case, against=f"{kernels}:{name}") for name in ("softmax", "coarse"))
    assert [row.verdict for row in right.rows] == [ReplayVerdict.CLEAN] and right.exit_status == 0
    (row,) = wrong.rows
    assert row.verdict is ReplayVerdict.GUILTY and wrong.exit_status == 1
    assert row.explained_by == "float16 operands" and "GUILTY      Functional.softmax.1.forward" in str(wrong)


def test_gradients_are_those_of_the_inputs_in_their_order(tmp_path, kernels):
    rng = np.random.default_rng(5)
    x, w, b, dy = (rng.standard_normal(shape).astype(F32) for shape in ((6, 32), (10, 32), (10,), (6, 10)))
    dump = Dump(tmp_path / "dump").add("Functional.linear.0.forward", [x, w, b], [x @ w.T + b])
    dump.add("Functional.linear.0.backward", [dy], [dy.sum(0), dy @ w, (dy.T @ x).T.copy()])
    extract(dump.write(), "Functional.linear.0.backward", tmp_path / "case")
    clean = replay(tmp_path / "case", against=f"{kernels}:back")
    assert [row.verdict.value for row in clean.rows] == ["CLEAN"] * 3
    wrong = replay(tmp_path / "case", against=f"{kernels}:halved")
    assert [row.verdict.value for row in wrong.rows] == ["GUILTY", "CLEAN", "CLEAN"]


def test_torch_tensors_for_a_kernel_of_torch(tmp_path, case):
    pytest.importorskip("torch")
    (tmp_path / "of_torch.py").write_text("import torch\n\ndef f(x, dim):\n    return torch.softmax(x, dim)\n")
    found = replay(case, against=f"{tmp_path / 'of_torch.py'}:f")
    assert [row.verdict for row in found.rows] == [ReplayVerdict.CLEAN]


@pytest.mark.parametrize("name, words", [
    ("nothing", "has no attribute 'nothing'"),
    ("KERNELS", "has no attribute"),
    ("raises", "ZeroDivisionError"),
    ("turned", r"result 0 is \[.*\]; output:0 of the case is"),
])  # fmt: skip
def test_a_kernel_that_fails_is_one_line(case, kernels, name, words):
    with pytest.raises(UsageError, match=words):
        replay(case, against=f"{kernels}:{name}")


def test_what_is_no_case_or_no_kernel(case, kernels, tmp_path):
    with pytest.raises(UsageError, match="name module:function"):
        replay(case, against="no_such_name")
    with pytest.raises(UsageError, match="a case of npucmp extract; judge a function by it"):
        replay(case)
    with pytest.raises(DumpError):
        replay(SOFTMAX, against=f"{kernels}:softmax")
    (case / "call.json").write_text('{"operator": 1}')
    with pytest.raises(DumpError, match="not a case of npucmp extract"):
        replay(case, against=f"{kernels}:softmax")


def test_the_command(case, kernels, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["npucmp"])
    with pytest.raises(SystemExit) as end:
        group.main(["replay", str(case), "--against", f"{kernels}:softmax"])
    assert end.value.code == 0 and "INNOCENT: 1 output clean" in capsys.readouterr().out
