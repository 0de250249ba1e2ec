"""Makes hdf5_convolution: two files as the dumper of PyTorch 1.5 for Ascend writes them, of an NPU and of a GPU.

Two convolutions of 1 by 1 with a relu behind each, forward and backward, computed by numpy in float64 and rounded once
to float32. Target and golden name some operators and arguments differently, as the two devices do (docs/formats.md).
In the target the second convolution's weight gradient misses the last image of the batch. No device was at hand.

    python make_hdf5.py [FOLDER]        writes FOLDER/target and FOLDER/golden, by default hdf5_convolution here
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import h5py
import numpy as np

IMAGES, CHANNELS, SIDE = 4, 6, 5
GPU, NPU = 1, 10
FLOAT, TENSOR, SIZES = 1, 0, 2  # DataType of a tensor, Type of a dataset


class Dump:
    """One file; calls are numbered in the order in which they are made."""

    def __init__(self, file: h5py.File, device: int) -> None:
        self.file, self.device, self.calls = file, device, 0

    def call(self, name: str, inputs: dict, outputs: dict) -> None:
        self.calls += 1
        for role, values in (("input", inputs), ("output", outputs)):
            for word, value in values.items():
                path = f"/{name}/{self.calls}/{role}/{word}"
                if isinstance(value, np.ndarray):
                    self.tensor(path, value)
                else:
                    self.attributes(self.file.create_dataset(path, data=np.asarray(value, "<i8")), Type=SIZES)

    def tensor(self, path: str, value: np.ndarray) -> None:
        dataset = self.file.create_dataset(path, data=np.ascontiguousarray(value, np.float32))
        self.attributes(dataset, Type=TENSOR, DataType=FLOAT, DeviceType=self.device, FormatType=0)
        strides = [step // 4 for step in np.empty(value.shape, np.float32).strides]
        dataset.attrs.create("Stride", strides, dtype="<i8")

    def attributes(self, dataset: h5py.Dataset, **given: int) -> None:
        for name, value in given.items():
            dataset.attrs.create(name, value, dtype="<i4")


def product(letters: str, *values: np.ndarray) -> np.ndarray:
    return np.einsum(letters, *(value.astype(np.float64) for value in values)).astype(np.float32)


def run(path: Path, device: int) -> None:
    """One forward and backward pass."""
    random = np.random.default_rng(2)
    family, image = {NPU: ("Npu", "input"), GPU: ("Cudnn", "self")}[device]
    x = random.standard_normal((IMAGES, CHANNELS, SIDE, SIDE)).astype(np.float32)
    weights = [random.standard_normal((CHANNELS, CHANNELS)).astype(np.float32) / 2 for _ in range(2)]
    kept = []
    with h5py.File(path, "w", libver="v110") as file:
        dump = Dump(file, device)
        for weight in weights:
            y = product("nchw,kc->nkhw", x, weight)
            both = {image: x, "weight": weight[:, :, None, None], "stride": [1, 1]}
            dump.call(f"{family.lower()}_convolution", both, {"result": y})
            kept.append((x, weight, y))
            x = np.maximum(y, np.float32(0))
            dump.call("relu", {"self": y}, {"result": x})
        grad = random.standard_normal(x.shape).astype(np.float32)
        for layer, (x, weight, y) in reversed([*enumerate(kept)]):
            after = grad * (y > 0)
            dump.call("ReluBackward0", {"grads": grad, "result": np.maximum(y, 0)}, {"grad_inputs": after})
            images = IMAGES - 1 if (layer, device) == (1, NPU) else IMAGES  # the fault
            grad = product("nkhw,kc->nchw", after, weight)
            of_weight = product("nkhw,nchw->kc", after[:images], x[:images])[:, :, None, None]
            both = {image: x, "weight": weight[:, :, None, None], "grads/grad_0": after, "stride": [1, 1]}
            results = {"grad_inputs/result_0": grad, "grad_inputs/result_1": of_weight}
            dump.call(f"{family}ConvolutionBackward", both, results)


def write(folder: Path) -> None:
    """Both sides, each a folder with its file."""
    for side, name, device in (("target", "npu.h5", NPU), ("golden", "gpu.h5", GPU)):
        shutil.rmtree(folder / side, ignore_errors=True)
        (folder / side).mkdir(parents=True)
        run(folder / side / name, device)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "hdf5_convolution")
