"""Checkpoints in memory: a tensor has a shape, or values in a file."""

from __future__ import annotations

import numpy as np

from npucmp.dump.readers.checkpoint_files import CheckpointFiles, CheckpointRank
from npucmp.model import Payload, TensorRef


def tensor(shape, dtype="float32", **more):
    return TensorRef("output:0", dtype, shape, payload=Payload("absent", dtype, shape, 0), **more)


def chunk(names):
    """Tensors by name: a shape, (shape, type), or a tensor."""
    found = {}
    for name, one in names.items():
        is_typed = isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], str)
        own = one if isinstance(one, TensorRef) else tensor(*one) if is_typed else tensor(one)
        found[name] = own._replace(label=name)
    return found


def checkpoint(*ranks, config=None):
    """A checkpoint of (place, tensors, further chunks of tensors)."""
    own = tuple(CheckpointRank(place, chunk(first), tuple(map(chunk, rest))) for place, first, *rest in ranks)
    return CheckpointFiles("a checkpoint", "safetensors", own, config or {})


class Files:
    """Writes arrays as tensors of a checkpoint."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def __call__(self, values, dtype=""):
        self.count += 1
        path = self.folder / f"{self.count}.bin"
        own = np.asarray(values, dtype or np.float32)
        own.tofile(path)
        payload = Payload(str(path), own.dtype.name, own.shape, 0)
        return TensorRef("output:0", own.dtype.name, own.shape, str(path), payload=payload)
