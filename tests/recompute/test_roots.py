"""compare --recompute all, and its alias --replay: what torch makes of roots, by the rules of the search."""

import csv
from pathlib import Path

import numpy as np
import pytest

from npucmp import compare, write_reports
from npucmp.cli import npucmp as group
from npucmp.errors import UsageError
from npucmp.model import Cause
from tests.recompute import kernels
from tests.recompute.craft import pair

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
F32 = np.float32
needs_torch = pytest.mark.usefixtures("torch_is_there")


@pytest.fixture
def torch_is_there():
    pytest.importorskip("torch")


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


X = normal(8, 32)
SOFT = kernels.softmax(X)
UNSEEN = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [8, 32]}  # neither values nor statistics


def soft(out, x=X, at=0):
    return f"Functional.softmax.{at}.forward", [x], [out], {"dim": -1}


def told(report):
    return [(root.pair.operator.name, root.cause, root.rule) for root in report.roots]


@needs_torch
@pytest.mark.parametrize("scale, cause, words", [
    (1.01, Cause.BORN, "times the expected rounding"),
    (1.0, Cause.PROPAGATED, "the outputs match float64 of the recorded inputs"),
])  # fmt: skip
def test_unknown_becomes_born_or_passes_on(scale, cause, words, tmp_path):
    """The golden run did not record what it read, and gives something else."""
    dumps = pair(tmp_path, [soft(SOFT * F32(scale))], [soft(kernels.softmax(X * F32(0.9)), UNSEEN)])
    plain, report = (compare(*dumps, recompute=how) for how in ("none", "all"))
    assert [root.cause for root in plain.roots] == [Cause.UNKNOWN]
    assert [one[:2] for one in told(report)] == [("Functional.softmax.0.forward", cause)]
    assert words in report.roots[0].because and report.exit_status == plain.exit_status == 1


@needs_torch
def test_worsened_becomes_born(tmp_path):
    """An input differs a little, and the output much more, as the operator is wrong besides."""
    records = [[soft(one, x)] for one, x in ((SOFT * F32(1.3), X), (kernels.softmax(X * F32(1.0001)), X * F32(1.0001)))]
    for some, x in zip(records, (X, X * F32(1.0001))):
        some.insert(0, ("Torch.abs.0.forward", [normal(3, seed=5)], [np.abs(normal(3, seed=5))], {}))
        some.insert(1, ("Torch.clone.0.forward", [x], [x], {}))
    dumps = pair(tmp_path, *records)
    causes = {root.pair.operator.name: root.cause for root in compare(*dumps, recompute="none").roots}
    assert causes["Functional.softmax.0.forward"] is Cause.WORSENED
    report = compare(*dumps, recompute="all")
    root = next(one for one in report.roots if "softmax" in one.pair.operator.name)
    assert root.cause is Cause.BORN and "times the expected rounding" in root.because


@needs_torch
def test_a_wrong_golden_is_said_to_be_wrong(tmp_path):
    (root,) = compare(*pair(tmp_path, [soft(SOFT)], [soft(SOFT * F32(1.01))]), recompute="all").roots
    assert root.cause is Cause.BORN and "golden output:0 differs" in root.because


@needs_torch
def test_what_only_torch_knows_is_recomputed(tmp_path):
    """numpy has no formula of a prelu."""
    x, weight = normal(8, 32), np.full(1, 0.25, F32)
    out = np.where(x > 0, x, x * F32(0.25))
    records = [[("Functional.prelu.0.forward", [x, weight], [one], {})] for one in (out * F32(1.01), out)]
    dumps = pair(tmp_path, *records)
    plain, report = (compare(*dumps, recompute=how) for how in ("auto", "all"))
    assert "expected rounding" not in plain.roots[0].because
    assert "float64 of its recorded inputs by" in report.roots[0].because
    assert "recomputed 1 of 1 operators by torch, in float64 from their recorded inputs" in report.notes


@needs_torch
def test_all_finds_what_a_comparison_cannot_see(tmp_path):
    """Two rows in float16 that are 0.4 % off, against a golden in float32."""
    x = X.astype(np.float16)
    right = kernels.softmax(x.astype(F32))
    half = right.astype(np.float16)
    half[2:4] = right[2:4] * F32(1.004)
    dumps = pair(tmp_path, [soft(half, x)], [soft(right, x.astype(F32))])
    assert compare(*dumps, recompute="none").exit_status == 0
    report = compare(*dumps, recompute="all")
    assert told(report) == [("Functional.softmax.0.forward", Cause.BORN, "recompute")]
    assert report.exit_status == 1
    write_reports(report, tmp_path / "report")
    with open(tmp_path / "report" / "roots.csv", newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert (row["cause"], row["rule"]) == ("BORN", "recompute") and "expected rounding" in row["evidence"]
    assert str(report).splitlines()[-1].startswith("DIVERGED: error originates in 1 place")


@needs_torch
def test_a_setting_of_all_operators_of_a_kind_is_no_birth_by_recomputation(tmp_path):
    def coarse(x):
        return kernels.softmax(x, lambda one: np.exp(one.astype("f2")).astype(F32))

    inputs = [normal(8, 32, seed=at) for at in range(5)]
    dumps = pair(tmp_path, *([soft(kernel(x), x, at) for at, x in enumerate(inputs)] for kernel in
                             (coarse, kernels.softmax)))  # fmt: skip
    report = compare(*dumps, recompute="all")
    assert report.roots and "recompute" not in {root.rule for root in report.roots}


@needs_torch
@pytest.mark.parametrize("sample, cause, words", [
    ("msprobe_softmax", Cause.BORN, "float64 of its recorded inputs by 2.2e+04 times the expected rounding"),
    ("msprobe_extra_operator", Cause.BORN, "argument input:4 (eps) is 0.01"),
    ("msprobe_uncaptured", Cause.GAP, "it reads gelu (tanh) of Functional.linear.8.forward in the target, "
                                      "gelu (erf) of Functional.linear.8.forward in the golden"),
    ("msprobe_backward", Cause.GAP, "its gradient differs from the gradient of Functional.linear.9.backward "
                                    "(gelu (erf)): it is 1.01 times the sum"),
])  # fmt: skip
def test_samples(sample, cause, words):
    """The first root stays who it was, with what recomputation says."""
    first = compare(SAMPLES / sample / "target", SAMPLES / sample / "golden", recompute="all").roots[0]
    assert first.cause is cause and words in first.because


def test_the_option_needs_no_value(monkeypatch, capsys):
    monkeypatch.setattr("npucmp.recompute.library.find_spec", lambda name: None)
    dumps = [str(SAMPLES / "msprobe_clean" / side) for side in ("target", "golden")]
    for words in (["--replay", *dumps], [*dumps, "--replay"], [*dumps, "--replay", "all"], ["--replay=all", *dumps]):
        monkeypatch.setattr("sys.argv", ["npucmp", "compare", *words])
        with pytest.raises(SystemExit) as end:
            group.main(["compare", *words])
        is_all = any("all" in word for word in words)
        assert end.value.code == 0 and ("note: --recompute all: " in capsys.readouterr().out) == is_all
    with pytest.raises(UsageError, match="suspects, all"):
        compare(*dumps, replay="some")
