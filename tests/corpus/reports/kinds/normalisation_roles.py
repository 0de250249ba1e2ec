"""BatchNorm in evaluation, in the orders of kernels (x, scale, offset, mean, variance) and of torch.nn.functional:
moving statistics that were not loaded, or other weights, or both equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_D import Typed, write

FORMS = ("mindspore", "mindspore", "onnx", "torch", "aten", "primitive")


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    channels, size, batch = (int(random.integers(*limits)) for limits in ((3, 20), (3, 9), (1, 5)))
    x = random.normal(random.uniform(0.5, 2), random.uniform(1.5, 3), (batch, channels, size, size))
    golden = [random.uniform(0.7, 1.4, channels), random.normal(0, 0.3, channels),
              random.normal(1, 0.3, channels), random.uniform(3, 6, channels)]  # fmt: skip
    kind = str(random.choice(["statistics", "statistics", "weights", "equal"]))
    target = [*golden]
    if kind == "statistics":
        target[2:] = np.zeros(channels), np.ones(channels)
    elif kind == "weights":
        target[:2] = random.uniform(0.7, 1.4, channels), random.normal(0, 0.3, channels)
    form, kernel = str(random.choice(FORMS)), str(random.choice(["BatchNorm", "BNInfer", "FusedBatchNormV3"]))
    for side, tensors in (("target", target), ("golden", golden)):
        read = [x, *(values.astype(np.float32) for values in tensors)]
        scale, offset, mean, variance = (values[None, :, None, None] for values in read[1:])
        y = (x - mean) / np.sqrt(variance + 1e-5) * scale + offset
        order = [0, 3, 4, 1, 2] if form == "torch" else [0, 1, 2, 3, 4]
        _write(folder / side, form, kernel, [read[at].astype(np.float32) for at in order], y.astype(np.float32))
    compare: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [0 if kind == "equal" else 1]}
    precheck: dict[str, Any] = {"do": ["precheck", "target", "golden"], "exit": [0, 2] if kind == "equal" else [1]}
    check: dict[str, Any] = {"do": ["check", "target"], "exit": [0, 1]}
    if kind == "statistics":
        compare |= {
            "first": "(?i)batch_?norm|bn1",
            "says": ["running statistic"],
            "never": ["weights differ", "another seed"],
        }
        precheck |= {"says": ["DIFFERS +buffers"], "never": ["DIFFERS +weights", "random weights"]}
        check |= {"says": [r"batchnorm\.never_updated"]}
    elif kind == "weights":
        compare |= {"says": ["a parameter already differs"]}
        precheck |= {"says": ["DIFFERS +weights"], "never": ["DIFFERS +buffers"]}
    if kind != "statistics":
        check |= {"never": [r"\d +WARNING +batchnorm\.never_updated"]}
    if form == "onnx":
        precheck, check = {**precheck, "says": [], "exit": [0, 1, 2]}, {**check, "says": []}
    end = ": control" if kind == "equal" else ""
    return {"kind": f"roles: {kind} of {form}{end}", "runs": [compare, precheck, check]}


def _write(folder: Path, form: str, kernel: str, read: list[np.ndarray], y: np.ndarray) -> None:
    relu = np.maximum(y, 0)
    if form in ("torch", "aten", "primitive"):
        name = {"torch": "Functional", "aten": "Torch", "primitive": "Primitive"}[form]
        style = "BatchNorm" if form == "primitive" else "batch_norm"
        records = {
            f"{name}.{style}.0.forward": {"input_args": [Typed(one) for one in read], "output": [Typed(y)]},
            "Functional.relu.0.forward": {"input_args": [Typed(y)], "output": [Typed(relu)]},
        }
        if form != "primitive":
            records[f"{name}.{style}.0.forward"]["input_args"] += [False, 0.1, 1e-5]
        write(folder, records, "npy" if form == "primitive" else "pt")
        return
    clock = 1789000000000000
    place = folder / "rank_0/net/0/0" if form == "mindspore" else folder
    place.mkdir(parents=True)
    for kind, name, ins, out in (
        (kernel, "Default_net-Net_bn1_op0", read, y),
        ("ReLU", "Default_net-Net_relu_op0", [y], relu),
    ):
        for io, values in (("input", ins), ("output", [out])):
            for at, one in enumerate(values):
                clock += 7
                node = f"{kind}.{name}.0.0.{clock}.{io}.{at}.DefaultFormat.Float32.npy"
                onnx = {"ReLU": "Relu_1"}.get(kind, "BatchNormalization_0")
                node = node if form == "mindspore" else f"{'input_' if io == 'input' else ''}{onnx}.{at}.{clock}.npy"
                np.save(place / node, one)
