"""Operators of two frameworks by hand: tensors with values in files, or with statistics; a whole and its parts."""

from __future__ import annotations

import numpy as np

from npucmp.align.framework_names import NeutralOperator
from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.values import blocks
from npucmp.model import Device, Operator, Statistics, TensorRef
from npucmp.relations.frameworks.by_name.weight_match import FusedGroup

NZ = Device("FRACTAL_NZ", (6, 10))
NAMES = ("q_proj", "k_proj", "v_proj")


def drawn(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


class Files:
    """Operators of a run, with tensors as arrays in files, as references, or as shapes without values."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def tensor(self, slot, one, label=""):
        self.count += 1
        label = label or f"tensor {self.count}"
        if isinstance(one, TensorRef):
            return one._replace(slot=slot, label=label)
        if isinstance(one, tuple):
            return TensorRef(slot, "float32", one, label=label)
        np.save(self.folder / f"{self.count}.npy", one)
        return TensorRef(slot, one.dtype.name, one.shape, str(self.folder / f"{self.count}.npy"), "npy", label=label)

    def operator(self, name, kind="Linear", **slots):
        """Slots as input_0, param_weight, output_0."""
        tensors = tuple(self.tensor(slot.replace("_", ":", 1), one) for slot, one in slots.items())
        self.count += 1
        return Operator(name, kind, name, "forward", self.count, tensors, call=name)

    def neutral(self, place, what="", phase="forward", **more):
        operator = self.operator(".".join((*place, what)), **more)
        return NeutralOperator(operator._replace(phase=phase), tuple(place), what, phase)


W = [drawn(rows, 6, seed=rows) for rows in (10, 12, 14)]
Y = [drawn(5, rows, seed=100 + rows) for rows in (10, 12, 14)]
X = drawn(5, 6)


def group(files, weights=True, outputs=True, whole=None, out=None, turned=False, names=NAMES):
    """A whole of three parts; `whole` and `out` are its own values."""

    def slots(weight, output):
        found = {"input_0": X}
        found |= {"param_weight": weight} if weights else {}
        return found | {"output_0": output if outputs else output.shape}

    parts = tuple(files.operator(name, **slots(w, y)) for name, w, y in zip(names, W, Y))
    weight = np.concatenate(W) if whole is None else whole
    output = np.concatenate(Y, axis=1) if out is None else out
    return FusedGroup(files.operator("whole", **slots(weight, output)), parts, turned, names)


def values(tensor):
    return np.concatenate([*blocks(tensor.payload, context=ANYWHERE)]).reshape(tensor.shape)


def recorded(array, **more):
    figures = Statistics(float(array.max()), float(array.min()), float(array.mean()), float(np.linalg.norm(array)))
    return TensorRef("", "float32", array.shape, statistics=figures._replace(**more))
