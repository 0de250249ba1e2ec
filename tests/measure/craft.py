"""Tensors of crafted values in files."""

from itertools import count
from pathlib import Path

import numpy as np

from npucmp.model import Operator, Pair, TensorRef

NUMBERS = count()


def stored(folder, values, slot="output:0", **more):
    """A tensor whose values are in a file of its own."""
    file = str(Path(folder, f"{next(NUMBERS)}.npy"))
    np.save(file, values)
    return TensorRef(slot, values.dtype.name, values.shape, file, "npy", **more)


def paired(target, golden, name="add.0", **more):
    """A pair of an operator."""
    operator = Operator(name, name.partition(".")[0], "", "forward", 0, (), **more)
    return Pair(0, (golden or target).slot, operator, operator, target, golden)
