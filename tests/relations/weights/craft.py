"""Checkpoints in memory: a tensor has a shape, or values in a file."""

from __future__ import annotations

import numpy as np

from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.checkpoint_files import CheckpointFiles, CheckpointRank
from npucmp.dump.readers.values import blocks
from npucmp.model import Payload, TensorRef
from npucmp.relations.weights.free_numbers import DeclaredLayout
from npucmp.relations.weights.pairing import paired_weights
from npucmp.relations.weights.structure import structure_of


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


class Pairing:
    """Pairs two checkpoints of arrays by name, or of several ranks of them: arrays by name."""

    def __init__(self, folder):
        self._files = Files(folder)

    def __call__(self, target, golden, target_config=None, golden_config=None, /, **declared):
        structures = self._side(target, "target", target_config), self._side(golden, "golden", golden_config)
        return paired_weights(*structures, DeclaredLayout(**declared), ANYWHERE)

    def _side(self, ranks, name, config):
        ranks = ranks if isinstance(ranks, list) else [ranks]
        own = [((at,), {key: self._tensor(one) for key, one in rank.items()}) for at, rank in enumerate(ranks)]
        return structure_of(checkpoint(*own, config=config), name)

    def _tensor(self, one):
        return one if isinstance(one, TensorRef) else self._files(one, one.dtype)


def values_of(part):
    """The values of a part, in its shape."""
    return np.concatenate([*blocks(part.payload)]).reshape(part.shape)


def differing(found):
    """The pairs whose values are not equal: names and notes."""
    return [
        (one.name, one.note)
        for one in found.pairs
        if one.target is None
        or one.golden is None
        or one.target.shape != one.golden.shape
        or not np.allclose(values_of(one.target), values_of(one.golden), rtol=1e-5)
    ]
