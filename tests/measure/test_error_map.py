"""The second look at what diverged, against the same said element by element in plain Python; which tensors get one."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

from npucmp.measure.pairs import measure
from npucmp.model import Finding, Operator, Pair, TensorRef, Verdict


def tensor(folder, name, values, slot="output:0"):
    bits = values.view(np.uint16) if values.dtype == ml_dtypes.bfloat16 else values
    np.save(Path(folder, f"{name}.npy"), bits)
    dtype = str(values.dtype)
    return TensorRef(slot, dtype if bits is values else "uint16", values.shape, str(Path(folder, f"{name}.npy")), "npy")


def finding(folder, x, y, order=0, verdict=Verdict.DIVERGED, name="op"):
    refs = tensor(folder, f"{name}{order}x", x), tensor(folder, f"{name}{order}y", y)
    operators = (Operator(f"{name}.{order}", name, name, "", order, (ref,)) for ref in refs)
    return Finding(measure(Pair(order, "output:0", *operators, *refs, "name", 1.0)), verdict, "", 1.0, 1e-6, "rel_l2")
