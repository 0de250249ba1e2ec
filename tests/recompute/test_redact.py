"""npucmp extract --redact: other values, the same verdict, and nothing of the dump in the files."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from npucmp import extract
from npucmp.errors import UnsupportedError
from npucmp.model.dtypes import DTYPES
from npucmp.recompute import redacted_task
from npucmp.recompute.redacted_values import redraw
from tests.recompute import kernels
from tests.recompute.craft import Dump

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
F32 = np.float32


def choose(engine, monkeypatch):
    """Who judges and computes: numpy does where torch is missing."""
    if engine == "torch":
        pytest.importorskip("torch")
    else:
        monkeypatch.setattr("npucmp.recompute.library.find_spec", lambda name: None)


@pytest.fixture
def numpy_alone(monkeypatch):
    choose("numpy", monkeypatch)


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


def softmax(x):
    weights = np.exp(x.astype(float) - x.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(F32)


def is_trivial(values):
    """Whether a value has no mantissa: a power of two, zero, NaN or Inf."""
    bits = values.astype(F32).view(np.uint32)
    return (bits & 0x7FFFFF == 0) | ~np.isfinite(values)


def leaks(folder, arrays):
    """The files that hold two neighbouring values of an array, if both have a mantissa and differ."""
    found = []
    for array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1)
        for at in range(flat.size - 1):
            pair = flat[at : at + 2]
            if not is_trivial(pair).any() and pair[0] != pair[1]:
                wide = pair.tobytes(), pair.astype(np.float64).tobytes()
                found += [path.name for path in folder.iterdir() if any(one in path.read_bytes() for one in wide)]
    return found


PLANTED = {  # call, arguments, keywords, a wrong result
    "softmax": ("Functional.softmax", [normal(6, 16)], {"dim": -1}, softmax(normal(6, 16)) * F32(1.01)),
    "layer_norm": (
        "Functional.layer_norm", [normal(8, 32), [32], normal(32, seed=2), normal(32, seed=3), 1e-5], {},
        kernels.layer_norm(normal(8, 32), normal(32, seed=2), normal(32, seed=3), 1e-2),
    ),
    "linear": (
        "Functional.linear", [normal(8, 24), normal(12, 24, seed=2), normal(12, seed=3)], {},
        np.where(np.arange(12) < 4, F32(0), normal(8, 24) @ normal(12, 24, seed=2).T + normal(12, seed=3)),
    ),
    "gelu": ("Functional.gelu", [normal(6, 16)], {}, np.maximum(normal(6, 16), 0)),
    "add": ("Torch.add", [normal(6, 16), normal(6, 16, seed=2)], {}, normal(6, 16) - normal(6, 16, seed=2)),
    "mul": ("Tensor.__mul__", [normal(6, 16), 3.0], {}, np.roll(normal(6, 16) * F32(3), 1, -1)),
    "rsqrt": ("Torch.rsqrt", [np.abs(normal(6, 16)) + F32(0.1)], {}, 1 / (np.abs(normal(6, 16)) + F32(0.1))),
    "cumsum": ("Torch.cumsum", [normal(4, 40), -1], {}, np.cumsum(normal(4, 40).astype("f2"), -1, "f2").astype(F32)),
}  # fmt: skip


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    made = Dump(tmp_path_factory.mktemp("dump"))
    for name, args, kwargs, out in PLANTED.values():
        made.add(f"{name}.0.forward", args, [np.asarray(out, F32)], kwargs)
    return made.write()


def test_a_clean_operator_stays_clean_and_its_script_runs(tmp_path, capsys):
    pytest.importorskip("torch")
    found = extract(
        SAMPLES / "msprobe_clean" / "target", "Functional.softmax.1.forward", tmp_path / "case", redact=True
    )
    assert [row.verdict.value for row in found.rows] == ["CLEAN"]
    runpy.run_path(str(tmp_path / "case" / "run.py"))
    dump, here = capsys.readouterr().out.splitlines()
    assert dump.startswith("the dump  'output:0'") and here.startswith("this cpu")


def test_the_fewest_rows_of_a_redacted_case(tmp_path):
    pytest.importorskip("torch")
    x = normal(5, 12, 32)
    out = kernels.softmax(x)
    out[3, 7, 5] *= F32(1.01)
    folder = Dump(tmp_path / "dump").add("Functional.softmax.0.forward", [x], [out], {"dim": -1}).write()
    found = extract(folder, "Functional.softmax.0.forward", tmp_path / "case", smallest=True, redact=True)
    assert found.cut == (1, 60) and not leaks(tmp_path / "case", [x[3, 7], out[3, 7]])


def test_without_a_case_of_the_same_verdict_nothing_is_written(tmp_path, monkeypatch, numpy_alone):
    monkeypatch.setattr(redacted_task, "_difference", lambda rows, others: "output:0 became CLEAN")
    dump, op = SAMPLES / "msprobe_softmax" / "target", "Functional.softmax.1.forward"
    with pytest.raises(UnsupportedError, match="no redacted case has its verdict: output:0 became CLEAN; nothing was"):
        extract(dump, op, tmp_path / "case", redact=True)
    assert list(tmp_path.iterdir()) == []


def test_coarser_values_stay_as_coarse():
    """float32 that holds bfloat16, and whole numbers."""
    rng, dtype = np.random.default_rng(4), DTYPES["float32"]
    x = kernels.bfloat16(normal(20, 20)).astype(float)
    y = redraw(x, dtype, rng)
    np.testing.assert_array_equal(y, kernels.bfloat16(y))
    whole = redraw(rng.integers(0, 200, size=100).astype(float), dtype, rng)
    np.testing.assert_array_equal(whole, np.rint(whole))


def test_integers_keep_their_structure():
    rng, dtype = np.random.default_rng(5), DTYPES["int64"]
    for kept in ([0, 1, 1, 0], [[0, 1, 2], [0, 1, 2]], [-100, -1, 0]):
        np.testing.assert_array_equal(redraw(np.array(kept), dtype, rng), kept)
    bounds = redraw(np.array([0, 7, 19, 33, 40]), dtype, rng)
    assert (bounds[0], bounds[-1]) == (0, 40) and (np.diff(bounds) >= 0).all()
    labels = redraw(np.array([5, -100, 0, 9, 5, 9, 3]), dtype, rng)
    assert (labels[1], labels[2]) == (-100, 0) and labels[[0, 3, 4, 5, 6]].min() >= 1 and labels.max() <= 9
    permuted = redraw(np.array([5, 3, 3, 9, 70]), dtype, rng, True)
    assert sorted(permuted) == [3, 3, 5, 9, 70]
