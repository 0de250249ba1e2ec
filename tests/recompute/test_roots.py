"""compare --replay: what a replay makes of roots."""

import csv
from pathlib import Path

import numpy as np
import pytest

from npucmp import compare
from npucmp.cli import npucmp as group
from npucmp.errors import UsageError
from npucmp.model import Cause
from npucmp.report import answer_of, terminal, write_reports
from npucmp.workflows.replay import ENGINES
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
    (1.01, Cause.BORN, "its own float64 result is"),
    (1.0, Cause.PROPAGATED, "it is what float64 makes of its inputs"),
])  # fmt: skip
def test_unknown_becomes_born_or_passes_on(scale, cause, words, tmp_path):
    """The golden run did not record what it read, and gives something else."""
    dumps = pair(tmp_path, [soft(SOFT * F32(scale))], [soft(kernels.softmax(X * F32(0.9)), UNSEEN)])
    plain, report = (compare(*dumps, recompute="none", replay=how) for how in (None, "suspects"))
    assert [root.cause for root in plain.roots] == [Cause.UNKNOWN]
    assert told(report) == [("Functional.softmax.0.forward", cause, "replay")]
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
    report = compare(*dumps, recompute="none", replay="suspects")
    root = next(one for one in report.roots if "softmax" in one.pair.operator.name)
    assert (root.cause, root.rule) == (Cause.BORN, "replay") and "times the budget away" in root.because


@needs_torch
def test_born_that_computes_what_it_was_told(tmp_path):
    """The golden is wrong, which its own replay tells; with another argument the target's stays born."""
    dumps = pair(tmp_path / "1", [soft(SOFT)], [soft(SOFT * F32(1.01))])
    (root,) = compare(*dumps, replay="suspects").roots
    assert (root.cause, root.rule) == (Cause.UNKNOWN, "replay")
    assert root.because.startswith("it computes what it was told")
    assert "the golden differs from what float64 makes of the same call" in root.because
    records = [[(*soft(x)[:2], [x], {"dim": dim})] for x, dim in ((SOFT, -1), (kernels.softmax(X.T).T, 0))]
    (root,) = compare(*pair(tmp_path / "2", *records), replay="suspects").roots
    assert root.cause is Cause.BORN and root.rule != "replay"
    assert "argument" in root.because and "it computes what it was told" in root.because


@needs_torch
def test_all_finds_what_a_comparison_cannot_see(tmp_path):
    """Two rows in float16 that are 0.4 % off, against a golden in float32."""
    x = X.astype(np.float16)
    right = kernels.softmax(x.astype(F32))
    half = right.astype(np.float16)
    half[2:4] = right[2:4] * F32(1.004)
    dumps = pair(tmp_path, [soft(half, x)], [soft(right, x.astype(F32))])
    assert compare(*dumps).exit_status == compare(*dumps, replay="suspects").exit_status == 0
    report = compare(*dumps, replay="all")
    assert told(report) == [("Functional.softmax.0.forward", Cause.BORN, "replay")]
    assert report.exit_status == 1 and "below what the comparison can tell" in report.roots[0].because
    assert report.roots[0].metric == "rms_ratio" and report.roots[0].value > 2 == report.roots[0].limit
    write_reports(report, tmp_path / "report")
    with open(tmp_path / "report" / "roots.csv", newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert (row["cause"], row["rule"]) == ("BORN", "replay") and "its own float64 result" in row["evidence"]
    assert terminal.render(answer_of(report)).splitlines()[-1].startswith("DIVERGED: error is born in 1 place")


@needs_torch
def test_a_setting_of_all_operators_of_a_kind_is_no_birth_by_replay(tmp_path):
    """One that agrees is asked for its peers, too."""

    def coarse(x):
        return kernels.softmax(x, lambda one: np.exp(one.astype("f2")).astype(F32))

    inputs = [normal(8, 32, seed=at) for at in range(5)]
    dumps = pair(tmp_path, *([soft(kernel(x), x, at) for at, x in enumerate(inputs)] for kernel in
                             (coarse, kernels.softmax)))  # fmt: skip
    report = compare(*dumps, replay="suspects")
    assert report.roots and "replay" not in {root.rule for root in report.roots}
    assert all("but explained: all 5 Functional.softmax.forward" in root.because for root in report.roots)


@needs_torch
@pytest.mark.parametrize("sample, cause, words", [
    ("msprobe_softmax", Cause.BORN, "its own float64 result is 2.2e+04 times the budget away (output:0)"),
    ("msprobe_extra_operator", Cause.BORN, "it computes what it was told"),
    ("msprobe_uncaptured", Cause.GAP, "it computes what it was told"),
    ("msprobe_uncaptured", Cause.GAP, "it reads gelu (tanh) of Functional.linear.8.forward in the target, "
                                      "gelu (erf) of Functional.linear.8.forward in the golden"),
    ("msprobe_backward", Cause.GAP, "what reaches it is not what Functional.linear.9.backward hands back (gelu (erf)): "
                                    "it is 1.01 times the sum"),
])  # fmt: skip
def test_samples(sample, cause, words):
    """The first root stays who it was, with what the replay says."""
    first = compare(SAMPLES / sample / "target", SAMPLES / sample / "golden", replay="suspects").roots[0]
    assert first.cause is cause and words in first.because


def test_without_an_engine_one_line_says_so_and_the_answer_is_the_same(monkeypatch):
    monkeypatch.setattr("npucmp.recompute.torch_engine.find_spec", lambda name: None)
    monkeypatch.delitem(ENGINES, "numpy")
    dumps = [SAMPLES / "msprobe_softmax" / side for side in ("target", "golden")]
    plain, report = compare(*dumps), compare(*dumps, replay="all")
    assert (report.exit_status, report.roots) == (plain.exit_status, plain.roots)
    text = terminal.render(answer_of(report))
    assert text.count("note: --replay: replaying operators needs the package npucmp[replay]: pip install") == 1


def test_without_torch_numpy_replays_what_it_can_and_one_line_says_so(monkeypatch):
    monkeypatch.setattr("npucmp.recompute.torch_engine.find_spec", lambda name: None)
    report = compare(*(SAMPLES / "msprobe_softmax" / side for side in ("target", "golden")), replay="suspects")
    assert report.roots[0].cause is Cause.BORN and "its own float64 result is" in report.roots[0].because
    text = terminal.render(answer_of(report))
    assert text.count("note: --replay: replaying more operators needs the package npucmp[replay]: pip install") == 1


def test_a_dump_without_calls_keeps_its_roots():
    dumps = [SAMPLES / "npy_batch_norm" / side for side in ("target", "golden")]
    plain, report = compare(*dumps), compare(*dumps, replay="suspects")
    assert report.roots == plain.roots


def test_the_option_needs_no_value(monkeypatch, capsys):
    monkeypatch.setattr("npucmp.recompute.torch_engine.find_spec", lambda name: None)
    dumps = [str(SAMPLES / "msprobe_clean" / side) for side in ("target", "golden")]
    for words in (["--replay", *dumps], [*dumps, "--replay"], [*dumps, "--replay", "all"], ["--replay=all", *dumps]):
        monkeypatch.setattr("sys.argv", ["npucmp", "compare", *words])
        with pytest.raises(SystemExit) as end:
            group.main(["compare", *words])
        assert end.value.code == 0 and "note: --replay: " in capsys.readouterr().out
    with pytest.raises(UsageError, match="suspects, all"):
        compare(*dumps, replay="some")
