"""Three operators in a row, of which the second may be wrong, for formats that hold values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import npucmp


class One(NamedTuple):
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]


def three(wrong: bool = False, dtype=np.float32) -> list[One]:
    """A product, a tanh (of half of its operand if it is wrong), a sum; each reads what the one before wrote."""
    random = np.random.default_rng(3)
    x, w, b = (random.standard_normal(shape).astype(dtype) for shape in ((6, 8), (8, 8), (8,)))
    product = (x @ w).astype(dtype)
    bent = np.tanh(product * dtype(0.5 if wrong else 1.0)).astype(dtype)
    return [One((x, w), (product,)), One((product,), (bent,)), One((bent, b), (bent + b,))]


def second_is_first(target, golden, cause: str = "BORN", second: int = 1, **options) -> npucmp.Report:
    """A wrong second operator (`second` counts all that the dump holds) is the first root, with that cause, and the
    only one that nothing before it explains; a copy agrees."""
    report = npucmp.compare(target, golden, **options)
    found = [(one.pair.operator.order, one.cause.value) for one in report.roots]
    assert found[0] == (second, cause) and {why for _, why in found[1:]} <= {"PROPAGATED", "UNKNOWN"}, found
    assert report.exit_status == 1
    copy = npucmp.compare(golden, golden, **options)
    assert (copy.roots, copy.exit_status) == ((), 0)
    return report
