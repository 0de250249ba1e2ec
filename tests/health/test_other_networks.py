"""What sound networks of other kinds hold, and what would look like a fault by a hasty rule."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp import check
from tests.health.craft import Writer

RANDOM = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(0, 1, shape).astype("float32")


@pytest.mark.parametrize(("weight", "bias", "expected"), [(0, 0, "hint"), (1, 0, "warning"), (0, 1, None)])
def test_a_norm_that_starts_at_zero(weight, bias, expected, tmp_path):
    """The last norm of a residual branch may, with its bias. A norm of ones that writes zeros has read odd things."""
    writer = Writer(tmp_path / "step0" / "rank0", values=True)
    x = normal(6, 8)
    gamma, beta = (np.full(8, value, "float32") for value in (weight, bias))
    written = np.zeros((6, 8), "float32") + beta
    writer.record("Functional.linear.0.forward", [x, writer.wanted(normal(8, 8))], [normal(6, 8)])
    read = [writer.wanted(one) for one in (normal(6, 8), gamma, beta)]
    writer.record("Functional.layer_norm.0.forward", [read[0], [8], *read[1:], 1e-5], [written])
    writer.write("L1")
    result = check(tmp_path, jobs=1, only=("tensor.zero",))
    assert [one.severity for one in result.symptoms] == ([expected] if expected else [])


@pytest.mark.parametrize(("reader", "expected"), [("Torch.cumsum", 0), ("Functional.linear", 1)])
def test_a_mask_of_ones_is_no_constant_input(reader, expected, tmp_path):
    writer = Writer(tmp_path / "step0" / "rank0", values=True)
    tokens, ones = np.arange(12).reshape(3, 4), np.ones((3, 4), "float32")
    embedded = writer.wanted(normal(3, 4, 8))
    writer.record("Functional.embedding.0.forward", [tokens, writer.wanted(normal(20, 8))], [embedded])
    weight = [writer.wanted(normal(5, 4))] if expected else [1]
    writer.record(f"{reader}.0.forward", [ones, *weight], [normal(3, 5)])
    writer.write("L1")
    assert len(check(tmp_path, jobs=1, only=("input.constant",)).symptoms) == expected


@pytest.mark.parametrize(("weight", "expected"), [(0, "hint"), (1, "warning")])
def test_a_module_that_starts_at_zero(weight, expected, tmp_path):
    """At level L0 a module's record holds its weights."""
    writer = Writer(tmp_path / "step0" / "rank0", values=True)
    own = {"weight": writer.wanted(weight * normal(8, 8)), "bias": writer.wanted(np.zeros(8, "float32"))}
    writer.module("zero", "Linear", [normal(6, 8)], [np.zeros((6, 8), "float32")], own)
    writer.write("L0")
    assert [one.severity for one in check(tmp_path, jobs=1, only=("tensor.zero",)).symptoms] == [expected]


@pytest.mark.parametrize(("kind", "expected"), [("WhisperPositionalEmbedding", 0), ("Embedding", 1)])
def test_a_module_that_computes_positions_is_no_table(kind, expected, tmp_path):
    """At level L0 it reads tokens, which are no positions."""
    writer = Writer(tmp_path / "step0" / "rank0", values=True)
    writer.module("embed", kind, [np.arange(40).reshape(4, 10)], [normal(4, 10, 8)], {"weight": normal(16, 8)})
    writer.write("L0")
    assert len(check(tmp_path, jobs=1, only=("embedding.index_range",)).symptoms) == expected
