"""Runs of which statistics are all there is: suspected, proven, or only noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as group
from npucmp.model import Cause
from tests.reports import screen
from tests.synthetic import with_statistics, write_run

WIDTH = 64
LAYERS = 40


def rounded(values):
    """As bfloat16 holds them, in float32: half to even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def layers(fault=lambda layer, values: values, noise=0.0, dtype=rounded):
    """Layers of a product and an addition; `fault` is what happens to what the products write, and `noise` how far
    other roundings move each element, in u of bfloat16."""
    fixed, other = np.random.RandomState(0), np.random.RandomState(1)
    x, run = dtype(fixed.randn(128, WIDTH)), {}
    for layer in range(LAYERS):
        weight = dtype(fixed.randn(WIDTH, WIDTH) / 8)
        y = x @ weight.T * (1 + noise * 2.0**-8 * other.uniform(-1, 1, (128, WIDTH)))
        y = dtype(fault(layer, y))
        run[f"Functional.linear.{layer}.forward"] = {"in": [x, weight], "out": [y]}
        z = dtype((x + y) / np.float32(1.5))
        run[f"Tensor.add.{layer}.forward"] = {"in": [x, y], "out": [z]}
        x = z
    return run


def dumped(folder, run, dtype="bfloat16", **more) -> Path:
    """A dump of statistics of a run, as of that type."""
    place = with_statistics(write_run(folder, run, **more), alone=True)
    for file in place.rglob("dump.json"):
        file.write_text(file.read_text().replace('"float32"', f'"{dtype}"'))
    return place


def roots(report):
    return [(root.pair.operator.name, root.cause) for root in report.roots]


def test_the_first_of_all_operators_that_are_off_is_suspected(tmp_path):
    """Every output is 0.2 % off from layer 32 on, within the limit of bfloat16; all before is bit for bit the same."""
    golden = dumped(tmp_path / "golden", layers())
    target = dumped(tmp_path / "target", layers(lambda layer, y: y * 1.002 if layer >= 32 else y))
    report = npucmp.compare(target, golden)
    first = report.roots[0]
    assert (first.pair.operator.name, first.cause, first.place) == ("Functional.linear.32.forward", Cause.SUSPECT, 1)
    assert report.exit_status == 1
    assert [one.kind for one in first.evidence] == ["moved", "noise before", "others"]
    assert "0 of 64 preceding operators changed by at least as much" in first.because
    last = screen(report).splitlines()[-1]
    assert last.startswith("SUSPECTED: statistics only, not proven")


@pytest.mark.large
def test_a_suspect_is_named_on_all_ranks_and_steps(tmp_path):
    for name, fault in (("golden", lambda layer, y: y), ("target", lambda layer, y: y * 1.002 if layer >= 32 else y)):
        for step, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
            dumped(tmp_path / name, layers(fault), step=step, rank=rank)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    assert roots(report) == [("Functional.linear.32.forward", Cause.SUSPECT)] * 4
    assert "the operator exceeds the noise on 1 of 1 other ranks too" in [
        one.sentence() for one in report.roots[0].evidence
    ]


def test_a_suspect_on_one_rank_is_not_named_on_the_other(tmp_path):
    for rank, factor in ((0, 1.0), (1, 1.002)):
        dumped(tmp_path / "golden", layers(), rank=rank)
        dumped(tmp_path / "target", layers(lambda layer, y, by=factor: y * by if layer >= 32 else y), rank=rank)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    assert [(one.target.rank, len(one.roots)) for one in report.comparisons] == [(0, 0), (1, 1)]


def test_the_words_say_how_far_it_moved_by_figures_that_anyone_can_count(tmp_path):
    golden = dumped(tmp_path / "golden", layers())
    target = dumped(tmp_path / "target", layers(lambda layer, y: y * 1.01 if layer == 32 else y))
    first = npucmp.compare(target, golden).roots[0]
    moved = first.evidence[0].facts
    x, y = moved["target"].value, moved["golden"].value
    unit = 2.0**-8 * y / np.sqrt(128 * WIDTH)  # u · rms: what rounding every element moves a norm by
    assert moved["figure"].value == "norm"
    assert moved["size"].value == pytest.approx(abs(x - y) / unit, rel=1e-6)


@pytest.mark.parametrize("shift, suspects", [(8, []), (12, [("Functional.linear.32.forward", Cause.SUSPECT)])])
def test_noise_of_maxima_hides_no_shift_of_norms(tmp_path, shift, suspects):
    """The largest elements are off by more and more, up to 6 roundings; from layer 32 on, norms are off too, and have
    less noise before them."""
    paths = [dumped(tmp_path / name, layers()) for name in ("target", "golden")]
    (file,) = paths[0].rglob("dump.json")
    dump = json.loads(file.read_text())
    for name, record in dump["data"].items():
        layer = int(name.split(".")[2])
        is_product = "linear" in name
        read = record["input_args"][: 1 if is_product else 2]  # not the weight
        for one in [*read, *record["output"]]:
            one["Max"] *= 1 + min(6, 1 + 0.4 * layer) * 2.0**-8
            if layer > 32 or (layer == 32 and not (is_product and one in read)):
                one["Norm"] += shift * 2.0**-8 * one["Norm"] / np.sqrt(np.prod(one["shape"]))
    file.write_text(json.dumps(dump))
    assert roots(npucmp.compare(*paths, jobs=1))[:1] == suspects


def with_loss(run, divided, left_over=None):
    """The same with a loss over what comes last, divided by two accumulation steps or not, and with its gradients.
    left_over: a number that a backward operator behind them reads, and nothing recorded wrote."""
    logits = list(run.values())[-1]["out"][0]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    loss, one, half = (np.array(x, np.float32) for x in (-np.log(shares[:, 0]).mean(), 1.0, 0.5))
    run["Functional.cross_entropy.0.forward"] = {"in": [logits, np.zeros(128, np.int64)], "out": [loss]}
    if divided:
        run["Tensor.__truediv__.0.forward"] = {"in": [loss, 2], "out": [np.array(loss / 2)]}
        run["Tensor.__truediv__.0.backward"] = {"in": [one], "out": [half]}
    given = half if divided else one
    gradient = rounded((shares - np.eye(WIDTH)[np.zeros(128, int)]) / 128 * given)
    run["Functional.cross_entropy.0.backward"] = {"in": [given], "out": [gradient]}
    if left_over is not None:
        number = np.array(left_over, np.float32)
        run["Tensor.mul.0.backward"] = {"in": [number], "out": [number * gradient]}
    return run


@pytest.mark.few(1)
@pytest.mark.parametrize("noise", [0.0, 0.5], ids=["the same bits", "noise before it"])
@pytest.mark.parametrize("divided", [True, False], ids=["lost in the target", "lost in the golden"])
def test_a_lost_division_of_the_loss_is_named_whatever_noise_comes_before(tmp_path, noise, divided):
    """The gradient of a loss is a number: the only error of it is that of its operator's output."""
    golden = dumped(tmp_path / "golden", with_loss(layers(), divided))
    target = dumped(tmp_path / "target", with_loss(layers(noise=noise), not divided))
    first, *others = npucmp.compare(target, golden).roots
    assert (first.pair.operator.name, first.slot) == ("Functional.cross_entropy.0.backward", "input:0")
    assert first.cause in (Cause.GAP, Cause.SUSPECT)
    assert f"factor {2 if divided else 0.5}" in first.because
    assert f"Tensor.__truediv__.0.backward (only in the {'golden' if divided else 'target'})" in first.because
    assert {root.cause for root in others} <= {Cause.PROPAGATED}


def test_a_loss_that_both_divide_and_what_cancels_in_its_gradients_are_silent(tmp_path):
    golden = dumped(tmp_path / "golden", with_loss(layers(), True, 1e-6))
    target = dumped(tmp_path / "target", with_loss(layers(noise=0.5), True, 2e-6))
    report = npucmp.compare(target, golden)
    assert (roots(report), report.exit_status) == ([], 2)


def attention(diagonal=1, eps=1e-5, mask="masked_fill", noise=0.0):
    """A norm and masked scores; the mask is made of `diagonal`."""
    fixed, other = np.random.RandomState(0), np.random.RandomState(1)
    x = fixed.randn(32, WIDTH).astype(np.float32)
    x = (x * (1 + noise * 2.0**-24 * other.uniform(-1, 1, x.shape))).astype(np.float32)
    y = ((x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + np.float32(eps))).astype(np.float32)
    scores = y @ y.T / np.float32(8)
    ones = np.ones((32, 32), bool)
    hidden = np.triu(ones, diagonal)
    if mask == "add":  # of minus infinity, of which extremes alone are finite
        ones = np.full((32, 32), -np.inf, np.float32)
        hidden = np.where(hidden, ones, np.float32(0))
    view = hidden[None]
    masked = (scores + hidden if mask == "add" else np.where(hidden, np.float32(-1e4), scores))[None]
    shares = np.exp(masked - masked.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return {
        "Functional.layer_norm.0.forward": {"in": [x, eps], "out": [y]},
        "Tensor.__matmul__.0.forward": {"in": [y, y], "out": [scores]},
        "Torch.triu.0.forward": {"in": [ones, diagonal], "out": [hidden]},
        "Tensor.unsqueeze.0.forward": {"in": [hidden, 0], "out": [view]},
        f"Tensor.{mask}.0.forward": {"in": [scores, view], "out": [masked]},
        "Functional.softmax.0.forward": {"in": [masked, -1], "out": [shares.astype(np.float32)]},
    }


def figures_of_masks(folder):
    """What msprobe records of what is true and false: no mean and no norm."""
    for file in folder.rglob("dump.json"):
        dump = json.loads(file.read_text())
        for leaf in (leaf for record in dump["data"].values() for key in record for leaf in record[key]):
            if leaf.get("dtype") == "bool":
                leaf.update(Max=bool(leaf["Max"]), Min=bool(leaf["Min"]), Mean=None, Norm=None)
        file.write_text(json.dumps(dump))
    return folder


def compared(tmp_path, target, golden):
    places = (dumped(tmp_path / name, run, "float32") for name, run in (("t", target), ("g", golden)))
    return npucmp.compare(*map(figures_of_masks, places))


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("mask", ["masked_fill", "add"])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_an_argument_is_the_evidence_where_figures_of_a_mask_show_nothing(tmp_path, mask, noise):
    report = compared(tmp_path, attention(2, mask=mask, noise=noise), attention(1, mask=mask))
    first, *others = report.roots
    assert (first.pair.operator.name, first.cause) == ("Torch.triu.0.forward", Cause.SUSPECT)
    assert "argument input:1 is 2 in the target, 1 in the golden" in first.because
    assert {root.cause for root in others} <= {Cause.PROPAGATED} and report.exit_status == 1
    assert "note: Torch.triu.0.forward" not in screen(report)


def test_an_argument_is_the_evidence_where_figures_prove_its_effect(tmp_path):
    report = compared(tmp_path, attention(eps=0.1), attention())
    first = report.roots[0]
    assert (first.pair.operator.name, first.cause) == ("Functional.layer_norm.0.forward", Cause.BORN)
    assert first.evidence[0].sentence().startswith("the statistics of the inputs agree")
    assert "is 0.1 in the target, 1e-05 in the golden" in first.because


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_an_argument_without_any_effect_is_a_note(tmp_path, noise):
    target, golden = attention(noise=noise), attention()
    target["Torch.triu.0.forward"]["in"][1] = 2
    target["Functional.layer_norm.0.forward"]["in"][1] = 1.00001e-5
    report = compared(tmp_path, target, golden)
    assert (roots(report), report.exit_status) == ([], 2)
    for name in ("Torch.triu.0.forward", "Functional.layer_norm.0.forward"):
        assert f"note: {name}: argument input:1" in screen(report)


def test_an_argument_of_a_mask_does_not_excuse_what_reads_another_tensor(tmp_path):
    target, golden = attention(diagonal=2), attention()
    target["Tensor.masked_fill.0.forward"] = golden["Tensor.masked_fill.0.forward"]
    shares = golden["Functional.softmax.0.forward"]["out"][0]
    target["Functional.softmax.0.forward"] = {**golden["Functional.softmax.0.forward"], "out": [shares * np.float32(3)]}
    report = compared(tmp_path, target, golden)
    assert report.roots[0].pair.operator.name == "Functional.softmax.0.forward"


@pytest.mark.parametrize("noise", [0.0, 0.5, 2.0])
def test_noise_alone_makes_nobody_suspect(tmp_path, noise):
    golden, target = dumped(tmp_path / "golden", layers()), dumped(tmp_path / "target", layers(noise=noise))
    report = npucmp.compare(target, golden)
    assert roots(report) == [] and report.exit_status == 2
    assert screen(report).splitlines()[-1].startswith("UNDECIDED")


def test_what_is_proven_behind_a_suspect_passes_on(tmp_path):
    def fault(layer, y):
        return y * 1.01 if layer == 20 else y * 1.5 if layer == 30 else y

    golden, target = dumped(tmp_path / "golden", layers()), dumped(tmp_path / "target", layers(fault))
    report = npucmp.compare(target, golden)
    found = dict(roots(report))
    assert report.roots[0].pair.operator.name == "Functional.linear.20.forward"
    assert found.pop("Functional.linear.20.forward") is Cause.SUSPECT
    assert found["Functional.linear.30.forward"] is Cause.PROPAGATED
    assert set(found.values()) == {Cause.PROPAGATED}


def test_a_proven_fault_with_nothing_before_it_keeps_its_cause(tmp_path):
    golden = dumped(tmp_path / "golden", layers())
    target = dumped(tmp_path / "target", layers(lambda layer, y: y * 1.5 if layer == 20 else y))
    report = npucmp.compare(target, golden)
    assert report.roots[0].pair.operator.name == "Functional.linear.20.forward"
    assert report.roots[0].cause not in (Cause.SUSPECT, Cause.PROPAGATED)
    assert screen(report).splitlines()[-1].startswith("DIVERGED")


def test_different_inputs_leave_one_place(tmp_path):
    def given(seed):
        x = np.random.RandomState(seed).randn(128, WIDTH).astype(np.float32)
        run = layers(dtype=np.float32)
        for name, operator in run.items():
            weight = operator["in"][1]
            y = x @ weight.T if "linear" in name else x
            run[name] = {"in": [x, weight], "out": [y]}
            x = y / np.float32(8)
        return run

    golden, target = (dumped(tmp_path / name, given(seed), "float32") for name, seed in (("golden", 1), ("target", 2)))
    report = npucmp.compare(target, golden)
    assert report.roots[0].pair.operator.name == "Functional.linear.0.forward"
    assert "may have read different inputs" in report.roots[0].because
    assert {root.cause for root in report.roots[1:]} <= {Cause.PROPAGATED}


def test_values_are_never_judged_by_their_statistics(tmp_path):
    runs = {"golden": layers(), "target": layers(lambda layer, y: y * 1.002 if layer >= 32 else y)}
    golden, target = (with_statistics(write_run(tmp_path / name, run)) for name, run in runs.items())
    assert Cause.SUSPECT not in dict(roots(npucmp.compare(target, golden))).values()


def test_every_report_has_the_cause(tmp_path):
    golden = dumped(tmp_path / "golden", layers())
    target = dumped(tmp_path / "target", layers(lambda layer, y: y * 1.01 if layer >= 32 else y))
    got = CliRunner().invoke(group, ["compare", str(target), str(golden), "-o", str(tmp_path / "report")])
    assert got.exit_code == 1 and "SUSPECT" in got.output
    rows = (tmp_path / "report" / "roots.csv").read_text().splitlines()
    assert "SUSPECT" in rows[1]
    assert json.loads((tmp_path / "report" / "summary.json").read_text())["causes"]["SUSPECT"] == 1
    assert "SUSPECT" in (tmp_path / "report" / "tensors.csv").read_text()
    assert "SUSPECT" in (tmp_path / "report" / "report.html").read_text()
