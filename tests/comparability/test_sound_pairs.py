"""Pairs of sound runs of one network that are recorded differently, and beside each a pair that is not comparable."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npucmp import compare, precheck
from tests.comparability.craft import status, words
from tests.health.craft import Writer

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
RANDOM = np.random.default_rng(11)
X, LABELS = RANDOM.normal(0, 1, (6, 8)).astype("f4"), np.arange(6) % 5
WEIGHTS = [RANDOM.normal(0, 0.4, shape).astype("f4") for shape in ((8, 8), (8, 8), (5, 8))]
SECOND = RANDOM.normal(0, 1, (6, 8)).astype("f4")


def softmax(x: Any) -> Any:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return (shifted / shifted.sum(-1, keepdims=True)).astype("f4")


class Attention:
    """Attention of one head between two linear layers, and a loss, at level L1.

    fused     attention is one operator
    factor    of its scores; another one is another network
    again     the first layers run once more on the way back, by a factor of `drift` differently
    training  whether outputs want gradients
    second    what is added to the output of the first layer; no record says who made it
    slips     relative error of the first layer, as of a device that rounds differently
    chooses   labels are the largest of what another layer puts out
    """

    def __init__(self, **changed: Any) -> None:
        self.fused = self.again = self.chooses = False
        self.factor, self.drift, self.training, self.slips = 8**-0.5, 1.0, True, 0.0
        self.second, self.labels = SECOND, LABELS
        self.__dict__.update(changed)

    def write(self, folder: Path) -> Path:
        dump = Writer(folder / "step0" / "rank0", values=True)
        made = dump.wanted if self.training else lambda array: array
        first, last, head = (dump.wanted(one) for one in WEIGHTS)
        h = (X @ WEIGHTS[0].T * (1 + self.slips)).astype("f4")
        dump.record("Functional.linear.0.forward", [X, first, None], [made(h)])
        q = h + self.second
        dump.record("Tensor.__add__.0.forward", [made(h), self.second], [made(q)])
        scores = (q @ q.T).astype("f4")
        shares = softmax(scores * np.float32(self.factor))
        out = (shares @ q).astype("f4")
        if self.fused:
            dump.record("Functional.scaled_dot_product_attention.0.forward", [made(q)] * 3, [made(out)])
        else:
            self._eager(dump, q, made)
        y = (out @ WEIGHTS[1].T).astype("f4")
        dump.record("Functional.linear.1.forward", [made(out), last, None], [made(y)])
        logits = (y @ WEIGHTS[2].T).astype("f4")
        dump.record("Functional.linear.2.forward", [made(y), head, None], [made(logits)])
        labels = self.labels
        if self.chooses:
            labels = logits.argmax(-1)
            dump.record("Tensor.argmax.0.forward", [made(logits), -1], [labels])
            labels = np.roll(labels, 1) if self.slips else labels  # another order, by code that was not dumped
        dump.record("Functional.cross_entropy.0.forward", [made(logits), labels], [np.array(1.0, "f4")])
        if self.training:
            dump.record("Functional.cross_entropy.0.backward", [np.array(1.0, "f4")], [logits / 6])
        if self.again:
            h = (h * self.drift).astype("f4")
            dump.record("Functional.linear.3.forward", [X, first, None], [made(h)])
            dump.record("Tensor.__add__.1.forward", [made(h), self.second], [made(h + self.second)])
        dump.write("L1")
        return folder

    def _eager(self, dump: Writer, q: Any, made: Any) -> None:
        scores = (q @ q.T).astype("f4")
        scaled = (scores * np.float32(self.factor)).astype("f4")
        shares = softmax(scaled)
        dump.record("Torch.matmul.0.forward", [made(q), made(np.ascontiguousarray(q.T))], [made(scores)])
        dump.record("Tensor.__mul__.0.forward", [made(scores), self.factor], [made(scaled)])
        dump.record("Functional.softmax.0.forward", [made(scaled), -1], [made(shares)])
        dump.record("Torch.matmul.1.forward", [made(shares), made(q)], [made((shares @ q).astype("f4"))])


def row(folder: Path, target: Attention, golden: Attention, name: str) -> tuple[str, str, str]:
    """Status, severity and words of a row."""
    result = precheck(target.write(folder / "t"), golden.write(folder / "g"), jobs=1, skip="*.health")
    severity = next(one.severity for one in result.rows if one.row == name)
    return status(result, name), severity, words(result, name)


BASE = Attention()
OPERATORS = {
    "fused": (Attention(fused=True), BASE, "note"),
    "fused, and rounded": (Attention(fused=True, slips=1e-6), BASE, "note"),
    "fused in the golden run": (BASE, Attention(fused=True), "note"),
    "another attention": (Attention(fused=True, factor=1.0), BASE, "error"),
    "run again": (Attention(again=True), BASE, "note"),
    "run again in the golden run": (BASE, Attention(again=True), "note"),
    "more layers behind the first gradient": (Attention(again=True, drift=1.5), BASE, "error"),
}


@pytest.mark.parametrize(("target", "golden", "severity"), OPERATORS.values(), ids=OPERATORS.keys())
def test_operators_of_one_side(target, golden, severity, tmp_path):
    """Fused or recomputed operators are a note where the tensors around them agree."""
    found = row(tmp_path, target, golden, "network.operators")
    assert found[:2] == ("DIFFERS", severity)
    assert precheck(tmp_path / "t", tmp_path / "g", jobs=1).differs is (severity == "error")
    assert found[2].endswith("the tensors around them agree: they are fused differently, or recomputed") is (
        severity == "note"
    )
    unlike = compare(tmp_path / "t", tmp_path / "g", jobs=1).unlike
    assert ("operators differ" in unlike) is (severity == "error")


def test_a_cache_behind_a_layer_is_no_network_input(tmp_path):
    """Without gradients, what is read behind a layer may be made of its output by code that was not dumped."""
    target = Attention(training=False, second=SECOND * 1.5, slips=1e-6)
    assert row(tmp_path / "a", target, Attention(training=False), "input")[0] == "same"
    assert not compare(tmp_path / "a" / "t", tmp_path / "a" / "g", jobs=1).unlike.startswith(
        "the runs are set up differently"
    )
    found = row(tmp_path / "b", Attention(second=SECOND * 1.5), BASE, "input")
    assert found[:2] == ("DIFFERS", "error") and "target = 1.5·golden" in found[2]


def test_labels_that_a_network_chooses_by_its_own_outputs(tmp_path):
    chosen = row(tmp_path / "a", Attention(chooses=True, slips=-2.0), Attention(chooses=True), "labels")
    assert chosen[0] == "unknown" and "its own outputs, which already differ" in chosen[2]
    given = row(tmp_path / "b", Attention(labels=np.roll(LABELS, 1), slips=-2.0), BASE, "labels")
    assert given[:2] == ("DIFFERS", "error")


def test_targets_that_a_teacher_writes_are_no_labels(tmp_path):
    """A loss of floats reads what an operator wrote: only what the network was given is a label."""

    def write(folder: Path, slip: float, is_given: bool) -> Path:
        dump = Writer(folder / "step0" / "rank0", values=True)
        weight, teacher = dump.wanted(WEIGHTS[0]), dump.wanted(WEIGHTS[1], False)
        out, taught = (X @ one.T for one in WEIGHTS[:2])
        taught = (taught * (1 + slip)).astype("f4")
        dump.record("Functional.linear.0.forward", [X, weight, None], [dump.wanted(out)])
        if not is_given:
            dump.record("Functional.linear.1.forward", [X, teacher, None], [taught])
        dump.record("Functional.mse_loss.0.forward", [dump.wanted(out), taught], [np.array(1.0, "f4")])
        dump.write("L1")
        return folder

    for name, is_given, expected in (("teacher", False, "n/a"), ("given", True, "DIFFERS")):
        sides = [write(tmp_path / name / side, slip, is_given) for side, slip in (("t", 0.05), ("g", 0.0))]
        result = precheck(*sides, jobs=1, only="labels")
        assert [one.status.value for one in result.rows] == [expected]


@pytest.mark.parametrize("name", ["net_dense_kernel.0.", "net_conv1_Relu.0.", "net_dense_bias.0."])
def test_an_unreadable_file_beside_fused_operators_fails_no_row(tmp_path, name):
    shutil.copytree(SAMPLES / "cann_fused_conv", tmp_path / "pair")
    (file,) = (tmp_path / "pair" / "golden").rglob(f"{name}*.npy")
    file.write_bytes(file.read_bytes()[:10])
    report = precheck(tmp_path / "pair" / "target", tmp_path / "pair" / "golden", jobs=1)
    assert not [row.because for row in report.rows if row.because.startswith("row failed")]


@pytest.mark.parametrize(("call", "slip", "expected"), [(0, 0.5, "DIFFERS"), (1, 0.5, "same"), (0, 1e-7, "same")])
def test_running_statistics_of_a_second_call_are_made_by_the_first(call, slip, expected, tmp_path):
    """BYOL and GANs call one BatchNorm twice in a step."""

    def write(folder: Path, slip: float) -> Path:
        dump = Writer(folder / "step0" / "rank0", values=True)
        for number in range(2):
            mean = (WEIGHTS[0][number] + (slip if number == call else 0)).astype("f4")
            given = [X, mean, np.ones(8, "f4"), dump.wanted(np.ones(8, "f4")), dump.wanted(np.zeros(8, "f4")), True]
            scope = f"Module.norm.BatchNorm1d.forward.{number}"
            dump.record(f"Functional.batch_norm.{number}.forward", given, [dump.wanted(X)], scope=scope)
        dump.write("mix")
        return folder

    result = precheck(write(tmp_path / "t", slip), write(tmp_path / "g", 0.0), jobs=1, only="buffers")
    assert [one.status.value for one in result.rows] == [expected]
