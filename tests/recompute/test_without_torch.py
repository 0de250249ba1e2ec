"""What a machine without torch is told, where numpy can do nothing (test_numpy_engine.py has what it can)."""

import subprocess
import sys

import numpy as np
import pytest

import npucmp
from npucmp import replay
from npucmp.errors import MissingExtra
from tests.recompute.craft import Dump


def test_without_torch_one_line_tells_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("npucmp.recompute.library.find_spec", lambda name: None)
    folder = Dump(tmp_path).add("Torch.cumprod.0.forward", [np.ones(3)], [np.ones(3)], {"dim": 0}).write()
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[replay\]'"):
        replay(folder)
    with pytest.raises(MissingExtra):
        replay(folder, engine="torch")


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_case_that_torch_alone_computes_is_written_without_it(phase, tmp_path, monkeypatch):
    """Its run.py makes the float64 results where torch is installed, and names the wrong output."""
    x, given = np.random.default_rng(0).standard_normal((2, 1, 2, 3, 4)).astype("f4")
    dump = Dump(tmp_path / "dump")
    dump.add("Torch.cumprod.0.forward", [x], [np.cumprod(x, 1) * np.float32(1.01)], {"dim": 1})
    wrong = given[:, ::-1] * np.float32(3)
    dump.add("Torch.cumprod.0.backward", [given], [wrong.copy()])
    folder = dump.write()
    with monkeypatch.context() as context:
        context.setattr("npucmp.recompute.library.find_spec", lambda name: None)
        found = npucmp.extract(folder, f"Torch.cumprod.0.{phase}", tmp_path / "case")
    assert "actual_0.npy" in found.files and "expected_0.npy" not in found.files
    assert [(row.status, row.verdict.value) for row in found.rows] == [("not in table", "UNKNOWN")]
    pytest.importorskip("torch")
    got = subprocess.run([sys.executable, str(tmp_path / "case" / "run.py")], capture_output=True, text=True)
    dumped, here = got.stdout.splitlines()
    assert "the dump" in dumped and "this cpu" in here and float(here.split("rel_l2 ")[1].split()[0]) < 1e-6
    error = float(dumped.split("rel_l2 ")[1].split()[0])
    assert abs(error - 0.01) < 1e-4 if phase == "forward" else error > 0.1


def test_a_case_that_needs_torch_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr("npucmp.recompute.library.find_spec", lambda name: None)
    dump = Dump(tmp_path / "dump").add("Torch.cumprod.0.forward", [np.ones(3)], [np.ones(3)], {"dim": 0}).write()
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[replay\]'"):
        npucmp.extract(dump, "Torch.cumprod.0.forward", tmp_path / "case", redact=True)
    assert [*tmp_path.iterdir()] == [tmp_path / "dump"]
