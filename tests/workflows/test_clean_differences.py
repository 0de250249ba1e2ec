"""Differences between two clean runs that no operator bears, each beside a fault that is still found."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from tests.synthetic import write_run


def compared(folder, target, golden, write=write_run):
    write(folder / "target", target)
    write(folder / "golden", golden)
    return npucmp.compare(folder / "target", folder / "golden", jobs=1)


def first(report):
    root = report.roots[0]
    return root.cause.value, root.pair.operator.name, root.slot


# Rows that a layer norm reads and that are constant up to rounding


def means(x, way):
    """Mean and variance of the rows in float32, each of a device: in two passes, or in one, term after term."""
    if way == "two passes":
        mean = x.mean(-1, keepdims=True)
        return mean, np.square(x - mean).mean(-1, keepdims=True)
    first, second = (np.add.accumulate(one, -1)[..., -1:] / np.float32(x.shape[-1]) for one in (x, x * x))
    return first, np.maximum(second - first * first, 0)


def normalised(way, constant, size, spread=0, eps=1e-5, factor=1.0, next_factor=1.0, bias=0.0):
    """layer_norm of 32 rows and a product. constant: how many rows are so, up to `spread` last places of `size`."""
    random = np.random.default_rng(1)
    x = random.standard_normal((32, 64)).astype(np.float32)
    x[:constant] = size + spread * np.spacing(np.float32(size)) * random.integers(-3, 4, (constant, 64))
    weight, shift = 1 + random.standard_normal((2, 64)).astype(np.float32) / 8
    shift *= np.float32(bias)
    product = random.standard_normal((64, 64)).astype(np.float32) / 8
    mean, variance = means(x, way)
    y = np.float32(factor) * ((x - mean) / np.sqrt(variance + np.float32(eps)) * weight + shift)
    z = np.float32(next_factor) * (y @ product)
    return {
        "Torch.mystery.0.forward": {"in": [x], "out": [x]},
        "Functional.layer_norm.0.forward": {"in": [x, weight, shift, 1e-5], "out": [y]},
        "Functional.linear.0.forward": {"in": [y, product], "out": [z]},
    }


NORM = ("BORN", "Functional.layer_norm.0.forward", "output:0")
SOME, ALL = 4, 32


@pytest.mark.parametrize(
    "fault",
    [
        {"constant": SOME, "size": 100, "factor": 1.001},
        {"constant": SOME, "size": 100, "spread": 1, "eps": 1e-12},
        {"constant": SOME, "size": 1, "spread": 1, "eps": 1e-3},
        {"constant": ALL, "size": 100, "spread": 1, "eps": 1e-12},
        {"constant": ALL, "size": 1, "bias": 1.0, "factor": 1.001},
    ],
    ids=["scale", "small eps", "large eps", "small eps, all rows constant", "scale, all rows constant, bias"],
)
def test_a_wrong_norm_of_such_rows_bears_its_error(tmp_path, fault):
    right = {**fault, "eps": 1e-5, "factor": 1.0}
    report = compared(tmp_path, normalised("two passes", **fault), normalised("two passes", **right))
    assert first(report) == NORM
