"""Pairs of sound runs of one network that are recorded differently, and beside each a pair that is not comparable."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npucmp import precheck
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


@pytest.mark.parametrize("name", ["net_dense_kernel.0.", "net_conv1_Relu.0.", "net_dense_bias.0."])
def test_an_unreadable_file_beside_fused_operators_fails_no_row(tmp_path, name):
    shutil.copytree(SAMPLES / "cann_fused_conv", tmp_path / "pair")
    (file,) = (tmp_path / "pair" / "golden").rglob(f"{name}*.npy")
    file.write_bytes(file.read_bytes()[:10])
    report = precheck(tmp_path / "pair" / "target", tmp_path / "pair" / "golden", jobs=1)
    assert not [row.because for row in report.rows if row.because.startswith("row failed")]
