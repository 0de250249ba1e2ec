"""Three operators in a row, x1 = tanh(x0 · w), of which the second may be wrong; one array as a .pt file, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from npucmp import compare
from tests.dump.readers.craft import integer, integers, pt, storage, tensor


def chain(wrong: bool = False) -> list[np.ndarray]:
    """x0 to x3, float32 [4, 4]."""
    random = np.random.default_rng(1)
    values = [random.normal(size=(4, 4)).astype(np.float32)]
    for number in range(3):
        weight = random.normal(size=(4, 4)).astype(np.float32)
        after = np.tanh(values[-1] @ weight)
        values.append(after * np.float32(1.3) if wrong and number == 1 else after)
    return values


def body(values: np.ndarray, key: str = "0") -> bytes:
    """The opcodes of one float32 array in C order."""
    strides = [stride // values.itemsize for stride in np.ascontiguousarray(values).strides]
    return tensor(integers(*values.shape), integers(*strides), storage(key=key, count=values.size))


def pt_file(values: np.ndarray) -> bytes:
    return pt(body(values), np.ascontiguousarray(values, "<f4").tobytes())


def save_pt(file: Path, values: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pt_file(values))


def causes(target: Path, golden: Path, **options: object) -> dict[str, str]:
    """What is told of each operator that is named, in the order of the report; its format is recognised."""
    return {root.pair.operator.name: root.cause.value for root in compare(target, golden, **options).roots}


__all__ = ["body", "causes", "chain", "integer", "pt_file", "save_pt"]
