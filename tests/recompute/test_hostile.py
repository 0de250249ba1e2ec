"""Records that would take all memory, all time, or a process: each costs its own operator, before anything is read."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.model import Call, Operator, ReplayedOutput, ReplayVerdict, TensorRef
from npucmp.recompute import run
from npucmp.recompute.task import ReplaySettings, Task
from tests.recompute.craft import Dump

F32 = np.float32
X = np.arange(24, dtype=F32).reshape(4, 6)
IDS = np.array([1, 2])
LARGE = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1, 1, 100_000, 8], "data_name": "large.npy"}
HOSTILE = {  # name → arguments, keywords, recorded output, status, words
    "Functional.pad": (((X, [10**9, 10**9]), {}), X, "shape"),
    "Tensor.repeat": ((([X, 10**5, 10**5]), {}), X, "shape"),
    "Functional.one_hot": (((IDS, 2 * 10**9), {}), IDS, "shape"),
    "Functional.interpolate": (((X[None, None],), {"size": [10**6, 10**6]}), X, "shape"),
    "Tensor.expand": (((X[None], 10**9, 4, 6), {}), X, "shape"),
    "Functional.conv2d": (((X[None, None], X[None, None, :2, :2], None, 0), {}), X, "shape"),
    "Functional.avg_pool2d": (((X[None], 2, 0), {}), X, "shape"),
    "Functional.linear": (((X, X[:, :3]), {}), X, "shape"),
    "Torch.einsum": ((({"type": "str", "value": "ij,kl->q"}, X, X), {}), X, "shape"),
    "Torch.matmul": (((X, X), {}), X, "shape"),
    "Functional.softmax": (((X, 7), {}), X, "shape"),
    "Functional.layer_norm": (((X, [5]), {}), X, "shape"),
    "Tensor.reshape": (((X, 2**31, 2**31), {}), X, "shape"),
    "Functional.scaled_dot_product_attention": (((LARGE, LARGE, LARGE), {}), X, "too large"),
    "Torch.cat": ((([[X] * 300]), {}), X, "shape"),
    "Functional.gelu": (((X,), {"approximate": {"type": "str", "value": "__import__"}}), X, "shape"),
    "Functional.silu": (((X,), {"unheard_of": 1}), X, "shape"),
    "Functional.relu": (((X, {"type": "function", "value": "<lambda>"}), {}), X, "shape"),
}


def test_each_costs_its_own_operator(tmp_path, as_installed):
    pytest.importorskip("torch")
    dump = Dump(tmp_path)
    for name, ((args, kwargs), out, _) in HOSTILE.items():
        dump.add(f"{name}.0.forward", args, [out], kwargs)
    dump.add("Functional.embedding.0.forward", (IDS * 100, X), [X[:2]])  # beyond the table: seen when it is called
    dump.add("Torch.abs.0.forward", (X,), [X])
    dump.arrays["large.npy"] = np.zeros((1, 1, 100_000, 8), F32)
    started = time.monotonic()
    rows = dump.rows(limit_memory=2 << 30)
    assert time.monotonic() - started < 60
    assert {name: row.status for name, row in zip(HOSTILE, rows)} == {
        name: status for name, (_, _, status) in HOSTILE.items()
    }
    assert {row.verdict for row in rows[:-1]} == {ReplayVerdict.UNKNOWN}
    assert rows[-2].status == "shape" and "outside" in rows[-2].explanation
    assert rows[-1].verdict is ReplayVerdict.CLEAN


def test_files_are_the_readers(tmp_path):
    """Outside the dump's folder, missing, or of another shape than the record says."""
    pytest.importorskip("torch")
    dump = Dump(tmp_path)
    for number in range(3):
        dump.add(f"Torch.abs.{number}.forward", (X,), [X])
    folder = dump.write() / "step0" / "rank0"
    top = json.loads((folder / "dump.json").read_text())
    top["data"]["Torch.abs.0.forward"]["input_args"][0]["data_name"] = "../../../secret.npy"
    (folder / "dump.json").write_text(json.dumps(top))
    os.remove(folder / "dump_tensor_data" / "Torch.abs.1.forward.input.0.npy")
    np.save(folder / "dump_tensor_data" / "Torch.abs.2.forward.input.0.npy", X.T)
    from npucmp import replay

    rows = replay(tmp_path).rows
    assert [row.verdict for row in rows] == [ReplayVerdict.UNKNOWN] * 3
    assert [row.status for row in rows] == ["shape", "no data", "shape"]
    assert "outside" in rows[0].explanation and "holds float32 [6, 4]" in rows[2].explanation


class Ending:
    """An engine over which its process ends, as over a kernel that writes where it must not."""

    name = "ending"

    def missing(self):
        return ""

    def refuses(self, task):
        return "", ""

    def start(self, settings):
        pass

    def replay(self, task, context, settings):
        if task.operator.name == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if task.operator.name == "hangs":
            time.sleep(60)
        if task.operator.name == "eats":
            np.ones(1 << 32)
        return [ReplayedOutput(task.operator.order, "output:0", verdict=ReplayVerdict.CLEAN)]


def task(name, order):
    return Task(Operator(name, "x", "x", "forward", order, (TensorRef("output:0", "float32", (2,)),)), Call("", "x"))


@pytest.mark.few(1)
@pytest.mark.skipif(sys.platform != "linux", reason="children are made by fork")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_process_that_ends_costs_its_operator(jobs, monkeypatch):
    monkeypatch.setattr(run, "SECONDS", 1.0)
    tasks = [task(name, order) for order, name in enumerate(["a", "dies", "b", "hangs", "c"])]
    found = [*run.replay_tasks(tasks, Ending(), ANYWHERE, ReplaySettings(), jobs)]
    assert [rows[0].status for rows in found] == ["replayed", "crashed", "replayed", "crashed", "replayed"]
    assert "Killed" in found[1][0].explanation
    assert "too long" in found[3][0].explanation


def test_the_parent_never_imports_torch(tmp_path):
    pytest.importorskip("torch")
    Dump(tmp_path).add("Torch.abs.0.forward", (X,), [X]).write()
    code = (
        "import sys; from npucmp.recompute.workflow import replay; found = replay(sys.argv[1], jobs=1);"
        "assert found.exit_status == 0, found; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
