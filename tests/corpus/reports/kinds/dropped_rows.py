"""Gradients that drop rows by definition: an embedding with a padding index, labels that a loss ignores. The sum of
such a gradient is not that of the incoming one; an embedding that truly loses rows is at fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_D import FORMATS, Device, Typed, rounded, softmax, unary, write

FAULTS = ("mask", "mask", "loses", "loses", "keeps padding", "loss", "function", "none")


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    form, dtype = str(random.choice(FORMATS)), str(random.choice(["float32", "float32", "bfloat16"]))
    net, fault = Net(random, dtype), str(random.choice(FAULTS))
    for side in ("target", "golden"):
        device = Device(int(random.integers(1 << 30)), dtype)
        write(folder / side, net.records(device, fault if side == "target" else "none"), form)
    values = form != "statistics"
    accusing = [r"(WORSENED|BORN|SUSPECT) +Functional\.embedding\.0\.backward", "sum differs from that of the incoming"]
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "never": accusing}
    first = {
        "mask": rf"__mul__|{net.act}|linear\.0\.forward",
        "loses": r"embedding\.0\.backward",
        "keeps padding": r"embedding\.0\.backward",
        "loss": r"cross_entropy\.0\.(forward|backward)",
        "function": rf"{net.act}\.0\.forward",
    }
    run |= {"first": first.get(fault, ""), "exit": [1] if values else [1, 2]}
    if fault == "none":
        run["exit"] = [0] if values else [0, 2]
    if fault == "mask":
        run["places"] = 2
    if fault in ("loses", "keeps padding"):
        del run["never"]
    control = ": control" if fault in ("loses", "keeps padding", "none") else ""
    return {"kind": f"dropped_rows: {fault}, {form}{control}", "report": "padding_idx and ignore_index", "runs": [run]}


class Net:
    """Embedding, shift, function, mask, linear layer and cross entropy over padded sequences."""

    def __init__(self, random: np.random.Generator, dtype: str) -> None:
        self.vocabulary, self.width, self.labels = (
            int(random.integers(*span)) for span in ((12, 40), (6, 20), (5, 12))
        )
        batch, tokens = int(random.integers(2, 6)), int(random.integers(6, 14))
        self.padding = int(random.choice([0, self.vocabulary - 1]))
        self.act = str(random.choice(["gelu", "silu", "tanh"]))
        words = np.array([word for word in range(self.vocabulary) if word != self.padding])
        self.ids = random.choice(words, (batch, tokens))
        lengths = random.integers(tokens // 3, tokens, batch)
        self.is_real = np.arange(tokens)[None, :] < lengths[:, None]
        self.ids[~self.is_real] = self.padding
        self.targets = np.where(self.is_real, random.integers(0, self.labels, self.ids.shape), -100)
        self.table = rounded(random.standard_normal((self.vocabulary, self.width)), dtype)
        self.weight = rounded(random.standard_normal((self.labels, self.width)) / np.sqrt(self.width), dtype)
        self.by_keyword = bool(random.random() < 0.3)

    def records(self, device: Device, fault: str) -> dict[str, dict[str, Any]]:
        dtype, found = device.dtype, {}

        def typed(values: np.ndarray) -> Typed:
            return Typed(values, dtype)

        def forward(name: str, reads: list[Any], wrote: np.ndarray, keywords: Any = None) -> None:
            found[f"{name}.forward"] = {"input_args": reads, "input_kwargs": keywords or {}, "output": [typed(wrote)]}

        def backward(name: str, read: np.ndarray, wrote: list[Any]) -> None:
            found[f"{name}.backward"] = {"input": [typed(read)], "output": wrote}

        ids, mask = Typed(self.ids, "int64"), self.is_real.astype(np.float32)[..., None]
        more, keywords = ([], {"padding_idx": self.padding}) if self.by_keyword else ([self.padding], {})
        rows = self.table[self.ids]
        forward("Functional.embedding.0", [ids, typed(self.table), *more], rows, keywords)
        shifted = device.store(rows + 0.5)
        forward("Tensor.__add__.0", [typed(rows), 0.5], shifted)
        curve, slope = unary(self.act, shifted)
        active = device.store(curve * (1.2 if fault == "function" else 1.0))
        forward(f"Functional.{self.act}.0", [typed(shifted)], active)
        masked = active if fault == "mask" else device.store(active * mask)
        if fault != "mask":
            forward("Tensor.__mul__.0", [typed(active), typed(mask)], masked)
        logits = device.store(masked.astype(np.float64) @ self.weight.T)
        forward("Functional.linear.0", [typed(masked), typed(self.weight)], logits)
        flat, targets = logits.reshape(-1, self.labels), self.targets.reshape(-1)
        counted = np.ones(len(targets), bool) if fault == "loss" else targets >= 0
        p, at = softmax(flat), np.maximum(targets, 0)
        picked = -np.log(p[np.arange(len(at)), at])
        loss = device.store(np.array(picked[counted].mean()))
        labels = Typed(targets, "int64")
        forward("Functional.cross_entropy.0", [typed(flat), labels, None, None, -100], loss)
        slopes = p - np.eye(self.labels)[at]
        gradient = device.store(slopes * counted[:, None] / counted.sum())
        backward("Functional.cross_entropy.0", np.ones((), np.float32), [typed(gradient)])
        back = gradient.reshape(logits.shape).astype(np.float64)
        of_weight = device.store(gradient.astype(np.float64).T @ masked.reshape(-1, self.width))
        of_masked = device.store(back @ self.weight)
        backward("Functional.linear.0", gradient.reshape(logits.shape), [typed(of_masked), typed(of_weight)])
        of_active = of_masked if fault == "mask" else device.store(of_masked * mask)
        if fault != "mask":
            backward("Tensor.__mul__.0", of_masked, [typed(of_active)])
        of_shifted = device.store(of_active * slope)
        backward(f"Functional.{self.act}.0", of_active, [typed(of_shifted)])
        backward("Tensor.__add__.0", of_shifted, [typed(of_shifted)])
        kept = self.ids.reshape(-1) != self.padding
        if fault == "loses":
            kept &= np.arange(kept.size) % 2 == 0
        elif fault == "keeps padding":
            kept[:] = True
        table = np.zeros(self.table.shape)
        wide = of_shifted.reshape(-1, self.width).astype(np.float64)
        np.add.at(table, self.ids.reshape(-1)[kept], wide[kept])
        if fault == "keeps padding":
            table[self.padding] += np.abs(wide).sum(0)
        backward("Functional.embedding.0", of_shifted, [typed(device.store(table))])
        return found
