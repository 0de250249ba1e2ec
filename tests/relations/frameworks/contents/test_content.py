"""Contents: the sketch of the values of a tensor, their checksum in C order, and single values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.model import TensorRef
from npucmp.relations import held_values
from npucmp.relations.frameworks.contents.content import ContentReader
from npucmp.relations.held_values import Values

RNG = np.random.default_rng(3)


@pytest.fixture
def reader():
    return ContentReader(Values(ANYWHERE))


@pytest.fixture
def saved(tmp_path):
    """A function that writes values to a file and returns the tensor."""

    def save(values, slot="input:0"):
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.npy"
        np.save(file, values)
        return TensorRef(slot, values.dtype.name, values.shape, str(file), "npy")

    return save


@pytest.fixture(params=["held", "by blocks"])
def way(request, monkeypatch):
    """Tensors are held in memory, or are too large for it."""
    if request.param == "by blocks":
        monkeypatch.setattr(held_values, "WHOLE", 7)
    return request.param


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def test_quantiles_of_a_large_tensor_lie_between_the_middles_of_its_levels(reader, saved, monkeypatch):
    """Numbers of 16 bits are levels themselves, so that their quantiles are exact."""
    monkeypatch.setattr(held_values, "WHOLE", 7)
    levels = np.array([-3.5, -1.0, -0.0078125, 0.0, 0.5, 1.0, 1.0078125, 96.0], np.float32)
    counts = np.array([1, 5, 2, 3, 1, 4, 2, 6])
    values = RNG.permutation(np.repeat(levels, counts))
    sketch = reader.sketch(saved(values))
    middles = np.cumsum(counts) - counts / 2
    np.testing.assert_allclose(sketch.quantiles, np.interp(np.linspace(0, 24, 17), middles, levels))
    rms = math.sqrt((values.astype(np.float64) ** 2).mean())
    assert sketch.figures == pytest.approx((96.0, -3.5, values.mean(dtype=float), rms))


@pytest.mark.parametrize("places", [[0, 1, 69999], [65535, 65536], [65536, 3, 65535, 65536], []])
def test_values_are_picked_by_their_places_in_c_order(reader, saved, way, places):
    values = drawn(700, 100)
    found = reader.picked(saved(values), np.array(places, int))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, values.reshape(-1)[places])
