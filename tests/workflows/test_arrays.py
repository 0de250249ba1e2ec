"""compare() of tensors in memory: arrays, state_dicts, and what is neither."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import npucmp

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "late": RANDOM.standard_normal((4, 8)).astype("f4"),
    "early": RANDOM.standard_normal((4, 8)).astype(">f8")[:, ::2],
    "mask": np.eye(3, dtype=bool),
    "scalar": 3,
    "nested": {"list": [np.float16(1.5), np.arange(5)]},
    "name": "no tensor",
    "none": None,
}


def test_arrays_are_compared_in_their_order():
    report = npucmp.compare(ARRAYS, ARRAYS)
    (run,) = [one.golden for one in report.comparisons]
    assert report.exit_status == 0 and run.ordered and report.paths == ("target", "golden")
    names = [operator.name for operator in run.operators]
    assert names == ["late", "early", "mask", "scalar", "nested.list.0", "nested.list.1"]
    other = {
        name: ARRAYS[name] * np.float32(1.5) if name != "mask" else ~ARRAYS[name] for name in ("late", "mask", "early")
    }
    wrong = npucmp.compare({**ARRAYS, **other}, ARRAYS)
    assert wrong.exit_status == 1 and [root.pair.operator.name for root in wrong.roots] == ["late", "early", "mask"]
    assert list(wrong.to_pandas("suspects").op) == ["late", "early", "mask"]


def test_an_array_against_a_file(tmp_path):
    np.savez(tmp_path / "golden.npz", late=ARRAYS["late"])
    assert npucmp.compare({"late": ARRAYS["late"]}, tmp_path / "golden.npz").exit_status == 0
    assert npucmp.compare(tmp_path / "golden.npz", {"late": -ARRAYS["late"]}).exit_status == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_lacks(dtype):
    narrow = ARRAYS["late"].astype(getattr(pytest.importorskip("ml_dtypes"), dtype))
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(ARRAYS["late"]).to(getattr(torch, dtype)).requires_grad_(dtype == "bfloat16")
    report = npucmp.compare({"x": tensor}, {"x": narrow})
    assert report.exit_status == 0 and report.findings[0].pair.target.dtype == dtype
    assert npucmp.compare({"x": tensor.detach().t()}, {"x": narrow.T}).exit_status == 0


def test_a_state_dict_is_a_checkpoint():
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    golden = {name: value.clone() for name, value in model.state_dict().items()}
    assert npucmp.compare(model.state_dict(), golden).verdict == "AGREES"
    golden["0.weight"][1, 2] += 1
    (root,) = npucmp.compare(model.state_dict(), golden).roots
    assert root.pair.operator.name == "0.weight" and "row 1" in root.because


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({}, "target: the mapping holds no tensor"),
        ({"x": object()}, r"target\['x'\]: elements of type object cannot be compared"),
        ({"x": np.array(["a"])}, "elements of type str"),
        ({"x": np.zeros(2, "c16")}, "nearest: complex64"),
        ([1, 2], "target is list: give a path, or a mapping such as"),
    ],
)
def test_what_holds_no_tensors(target, words):
    with pytest.raises(npucmp.NpucmpError, match=words):
        npucmp.compare(target, {"x": np.ones(2)})


def test_no_framework_is_imported():
    words = "import sys, numpy, npucmp; x = {'a': numpy.ones(3)}; npucmp.compare(x, x); print('torch' in sys.modules)"
    got = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert got.stdout == "False\n"
