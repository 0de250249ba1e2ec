"""npucmp extract: the folder of a case, and what its script prints."""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from npucmp import extract
from npucmp.cli import npucmp as group
from npucmp.errors import DumpError, UnsupportedError, UsageError
from tests.recompute import kernels
from tests.recompute.craft import Dump

torch = pytest.importorskip("torch")

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
SOFTMAX = SAMPLES / "msprobe_softmax" / "target"
F32 = np.float32
FIGURES = re.compile(r"^(the dump|this cpu)\s+'(output:\d+)'  rel_l2 (\S+)(?: = (\S+) u)?  MERE (\S+)  MARE (\S+)  "
                     r"RMSE (\S+)  worst (\[.*\])  not finite (\d+)$")  # fmt: skip


@pytest.fixture(params=["torch", "numpy"])
def engine(request, monkeypatch):
    """Who computes a case: numpy does where torch is missing."""
    if request.param == "numpy":
        monkeypatch.setattr("npucmp.recompute.library.find_spec", lambda name: None)
    return request.param


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


def softmax(x):
    weights = np.exp(x.astype(float) - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def told(folder, capsys):
    """What its script prints: the figures of each line."""
    capsys.readouterr()
    runpy.run_path(str(folder / "run.py"))
    return [FIGURES.match(line).groups() for line in capsys.readouterr().out.splitlines()]


def test_a_case_of_a_sample(tmp_path, capsys):
    found = extract(SOFTMAX, "Functional.softmax.1.forward", tmp_path / "case")
    assert found.cut is None and [row.verdict.value for row in found.rows] == ["GUILTY"]
    assert found.files == ("actual_0.npy", "call.json", "expected_0.npy", "input_0.npy", "run.py")
    x, want, got = (np.load(tmp_path / "case" / f"{name}_0.npy") for name in ("input", "expected", "actual"))
    assert (x.dtype, want.dtype, got.dtype) == (F32, np.float64, F32)
    np.testing.assert_allclose(want, softmax(x), rtol=1e-13)
    call = json.loads((tmp_path / "case" / "call.json").read_text())
    assert call["args"] == [{"tensor": "input_0"}] and call["kwargs"]["dim"] == -1
    assert "function = torch.nn.functional.softmax\n" in (tmp_path / "case" / "run.py").read_text()
    dump, here = told(tmp_path / "case", capsys)
    away = np.abs(got - want)
    rel_l2 = np.linalg.norm(away) / np.linalg.norm(want)
    relative = away / (want + 1e-7)
    plain = rel_l2, rel_l2 * 2**24, relative.mean(), relative.max(), np.sqrt((away**2).mean())
    assert dump[:2] == ("the dump", "output:0")
    np.testing.assert_allclose([float(one) for one in dump[2:7]], plain, rtol=6e-3)
    assert json.loads(dump[7]) == [*np.unravel_index(away.argmax(), away.shape)]
    assert here[0] == "this cpu" and float(here[3]) < 2


def test_the_smallest_rows_that_show_the_fault(engine, tmp_path, capsys):
    """One row of 60 is wrong by an element: that row is the case."""
    x = normal(5, 12, 32)
    out = kernels.softmax(x)
    out[3, 7, 5] *= F32(1.01)
    dump = Dump(tmp_path / "dump").add("Functional.softmax.0.forward", [x], [out], {"dim": -1}).write()
    found = extract(dump, "Functional.softmax.0.forward", tmp_path / "case", smallest=True)
    assert found.cut == (1, 60)
    np.testing.assert_array_equal(np.load(tmp_path / "case" / "input_0.npy").reshape(-1), x[3, 7])
    assert json.loads((tmp_path / "case" / "call.json").read_text())["rows"] == [[43], 60]
    dump, here = told(tmp_path / "case", capsys)
    assert float(dump[3]) > 1e3 > 2 > float(here[3]) and json.loads(dump[7])[-1] == 5


def test_a_fault_of_many_rows_is_cut_too_and_what_is_clean_is_not(tmp_path):
    """A mean error below one unit takes many values to show."""
    x = normal(64, 16)
    toward = np.nextafter(np.abs(x) * F32(3), F32(0)) * np.sign(x)
    dump = Dump(tmp_path / "dump").add("Tensor.__mul__.0.forward", [x, 3.0], [toward])
    dump.add("Tensor.__mul__.1.forward", [x, 3.0], [x * F32(3)])
    folder = dump.write()
    found = extract(folder, "Tensor.__mul__.0.forward", tmp_path / "one", smallest=True)
    assert found.cut is not None and 1 < found.cut[0] < 1024 == found.cut[1]
    assert extract(folder, "Tensor.__mul__.1.forward", tmp_path / "two", smallest=True).cut is None


def test_a_backward_with_what_its_forward_saved(tmp_path, capsys, engine):
    """The gradient of a softmax is that of its recorded output; torch cuts a fault there to its row."""
    x, g = normal(6, 8), normal(6, 8, seed=2)
    y = softmax(x).astype(F32)
    dx = (y * (g - (g * y).sum(-1, keepdims=True))).astype(F32)
    dx[4] *= F32(1.02)
    dump = Dump(tmp_path / "dump").add("Functional.softmax.0.forward", [x], [y], {"dim": -1})
    folder = dump.add("Functional.softmax.0.backward", [g], [dx]).write()
    found = extract(folder, "Functional.softmax.0.backward", tmp_path / "case", smallest=engine == "torch")
    assert found.cut == ((1, 6) if found.cut else None) and bool(found.cut) == (engine == "torch")
    at = 0 if found.cut else 4
    np.testing.assert_array_equal(np.load(tmp_path / "case" / "saved_0.npy")[at], y[4])
    np.testing.assert_array_equal(np.load(tmp_path / "case" / "given_0.npy")[at], g[4])
    np.testing.assert_allclose(np.load(tmp_path / "case" / "expected_0.npy")[at], dx[4] / 1.02, rtol=1e-5)
    dump, here = told(tmp_path / "case", capsys)
    assert float(dump[3]) > 1e4 and float(here[3]) < 5


def test_a_transposed_gradient(tmp_path, capsys, engine):
    """That of a linear's weight, as its last autograd node hands it on."""
    x, w, b, g = normal(5, 3), normal(4, 3, seed=2), normal(4, seed=3), normal(5, 4, seed=4)
    dump = Dump(tmp_path / "dump").add("Functional.linear.0.forward", [x, w, b], [x @ w.T + b])
    folder = dump.add("Functional.linear.0.backward", [g], [g.sum(0), g @ w, x.T @ g]).write()
    extract(folder, "Functional.linear.0.backward", tmp_path / "case")
    np.testing.assert_allclose(np.load(tmp_path / "case" / "expected_2.npy"), x.T.astype(float) @ g, rtol=1e-12)
    lines = told(tmp_path / "case", capsys)
    assert [line[1] for line in lines] == 2 * ["output:0", "output:1", "output:2"]
    assert all(float(line[3]) < 4 for line in lines)


def test_a_gradient_of_another_type_than_its_input(tmp_path, capsys, engine):
    """What the last node hands on before it is rounded to the type of the input is not taken for that."""
    a, b, g = normal(3, 4), normal(3, 4).astype(np.float16), normal(3, 4, seed=2)
    dump = Dump(tmp_path / "dump").add("Tensor.__add__.0.forward", [a, b], [a + b])
    folder = dump.add("Tensor.__add__.0.backward", [g], [g, g]).write()
    extract(folder, "Tensor.__add__.0.backward", tmp_path / "case")
    assert all(float(line[3]) == 0 for line in told(tmp_path / "case", capsys))


def test_running_statistics_have_no_gradient(tmp_path, capsys, engine):
    """Those of a batch_norm that uses them."""
    x, mean, var, weight, g = (
        normal(5, 3),
        normal(3, seed=2),
        np.abs(normal(3, seed=3)),
        normal(3, seed=4),
        normal(5, 3),
    )
    scale = weight / np.sqrt(var + F32(1e-5))
    dump = Dump(tmp_path / "dump")
    args = [x, mean, var, weight, None, False, 0.1, 1e-5]
    dump.add("Functional.batch_norm.0.forward", args, [((x - mean) * scale).astype(F32)])
    grads = [(g * scale).astype(F32), (g * (x - mean) / np.sqrt(var + F32(1e-5))).sum(0).astype(F32)]
    extract(dump.add("Functional.batch_norm.0.backward", [g], grads).write(), "Functional.batch_norm.0.backward",
            tmp_path / "case")  # fmt: skip
    call = json.loads((tmp_path / "case" / "call.json").read_text())
    assert call["leaves"] == ["input_0", "input_3"] and [one["at"] for one in call["outputs"]] == [-2, -1]
    assert all(float(line[3]) < 6 for line in told(tmp_path / "case", capsys))


X = normal(4, 6)
WORDS = {  # records whose arguments are of all kinds → the file of a result, by numpy
    "Tensor.__getitem__": (([X, [{"type": "slice", "value": [1, None, 2]}, {"type": "ellipsis", "value": "..."}]], {}),
                           X[1::2]),
    "Tensor.to": (([X, {"type": "torch.dtype", "value": "torch.float64"}], {}), X.astype(float)),
    "Tensor.add_": (([X, X], {"alpha": 2}), X * F32(3)),
    "Torch.cat": (([[X, X]], {"dim": 1}), np.concatenate([X, X], 1)),
    "Tensor.masked_fill": (([X, X > 0, {"type": "float", "value": "-inf"}], {}), np.where(X > 0, F32("-inf"), X)),
    "Tensor.gt": (([X, 0.5], {}), X > 0.5),
    "Functional.embedding": (([np.array([2, 0]), X, None, None, 2.0], {}), X[[2, 0]]),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_arguments_of_all_kinds_come_back(name, tmp_path, capsys, engine):
    (args, kwargs), out = WORDS[name]
    dump = Dump(tmp_path / "dump").add(f"{name}.0.forward", args, [out], kwargs).write()
    extract(dump, f"{name}.0.forward", tmp_path / "case")
    lines = told(tmp_path / "case", capsys)
    assert {line[0] for line in lines} == {"the dump", "this cpu"}
    assert all(float(line[2]) < 1e-6 for line in lines)
    want = np.load(tmp_path / "case" / "expected_0.npy")
    np.testing.assert_allclose(want.astype(float), out.astype(float), rtol=1e-6)


def test_types_that_numpy_lacks_lie_as_float32(tmp_path, capsys, engine):
    dump = SAMPLES / "msprobe_bfloat16" / "target"
    extract(dump, "Functional.linear.0.forward", tmp_path / "case")
    call = json.loads((tmp_path / "case" / "call.json").read_text())
    assert set(call["tensors"].values()) == {"bfloat16"} and call["outputs"][0]["dtype"] == "bfloat16"
    got = np.load(tmp_path / "case" / "actual_0.npy")
    assert got.dtype == F32 and not (got.view(np.uint32) & 0xFFFF).any()
    assert all(float(line[3]) < 2 for line in told(tmp_path / "case", capsys))


def test_nothing_of_a_dump_becomes_code(tmp_path):
    """Records of one call differ in call.json alone, whatever they hold; words that are no choice are refused."""
    bad = {"type": "str", "value": "none'); import os; os.abort(); ('"}
    dump = Dump(tmp_path / "dump").add("Functional.gelu.0.forward", [X], [X], {"approximate": "tanh"})
    dump.add("Functional.gelu.1.forward", [X[:2]], [X[:2]])
    folder = dump.add("Functional.gelu.2.forward", [X], [X], {"approximate": bad}).write()
    for number in (0, 1):
        extract(folder, f"Functional.gelu.{number}.forward", tmp_path / str(number))
    assert (tmp_path / "0" / "run.py").read_bytes() == (tmp_path / "1" / "run.py").read_bytes()
    with pytest.raises(UnsupportedError, match="nothing to extract: the word"):
        extract(folder, "Functional.gelu.2.forward", tmp_path / "2")
    assert not (tmp_path / "2").exists()


def left_behind(folder):
    return sorted(one.name for one in folder.iterdir() if one.name != "dump")


def test_whole_or_not_at_all(tmp_path, monkeypatch):
    dump = Dump(tmp_path / "dump").add("Functional.dropout.0.forward", [X], [X], {"p": 0.1})
    folder = dump.add("Functional.relu.0.forward", [X], [np.maximum(X, 0)]).write()
    with pytest.raises(
        UnsupportedError, match="cannot be replayed, so there is nothing to extract: it draws random numbers"
    ):
        extract(folder, "Functional.dropout.0.forward", tmp_path / "case")
    assert left_behind(tmp_path) == []

    def full(file, array, **more):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(UnsupportedError, match="No space left on device"):
            extract(folder, "Functional.relu.0.forward", tmp_path / "case")
    assert left_behind(tmp_path) == []
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "mine").touch()
    with pytest.raises(UsageError, match="new or empty"):
        extract(folder, "Functional.relu.0.forward", tmp_path / "case")
    assert left_behind(tmp_path) == ["case"] and left_behind(tmp_path / "case") == ["mine"]
    (tmp_path / "file").touch()
    with pytest.raises(DumpError, match="the case was not written"):
        extract(folder, "Functional.relu.0.forward", tmp_path / "file" / "case")


def test_near_names_and_one_line_errors(tmp_path, capsys):
    with pytest.raises(UsageError) as error:
        extract(SOFTMAX, "softmax.1", tmp_path / "case")
    assert error.value.near == ("Functional.softmax.1.forward", "Functional.softmax.1.backward")
    with pytest.raises(UsageError) as error:
        extract(SOFTMAX, "Functional.sofmax.1.forward", tmp_path / "case")
    assert "Functional.softmax.1.forward" in error.value.near
    with pytest.raises(UnsupportedError, match="has no call of"):
        extract(SAMPLES / "npy_batch_norm" / "target", "resnet_block_0_add", tmp_path / "case")
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("words, status", [
    (["extract", str(SOFTMAX), "Functional.softmax.1.forward", "-o", "case", "--smallest"], 0),
    (["replay", str(SOFTMAX), "--include", "*softmax.1.forward", "--reproducer", "Functional.softmax.1.forward",
      "case"], 1),
])  # fmt: skip
def test_both_commands_write_it(words, status, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["npucmp", *words])
    with pytest.raises(SystemExit) as end:
        group.main(words)
    out = capsys.readouterr().out
    assert "Functional.softmax.1.forward\n  output:0  GUILTY  error 2" in out and "python case/run.py" in out
    assert (tmp_path / "case" / "run.py").is_file() and end.value.code == status
