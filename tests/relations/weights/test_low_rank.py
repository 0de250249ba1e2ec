"""The product of two matrices of low rank, its scale by the merged weights, and the sum of both."""

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.values import blocks
from npucmp.model import Payload
from npucmp.relations.weights.low_rank import lora_scale, product_of, sample_of, update_rounding
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.role import Role

CHANCE = np.random.default_rng(0)
ROLE = Role(0, "q", "weight")


@pytest.fixture
def stored(tmp_path):
    def write(values, dtype="float32", **more):
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.bin"
        values.astype(np.float32).tofile(path)
        payload = Payload(str(path), "float32", values.shape, 0)
        return Part(ROLE, payload, "q", str(path), dtype, **more)

    return write


def values_of(payload):
    return np.concatenate([*blocks(payload)]).reshape(payload.shape)


def drawn(*shape):
    return CHANCE.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    "left, right, found",
    [((6, 2), (2, 5), True), ((6, 2), (3, 5), False), ((6,), (2, 5), False), ((6, 2), (2,), False)],
)
def test_products_need_matrices_that_fit(stored, left, right, found):
    a, b = drawn(*left), drawn(*right)
    one = product_of(stored(a), stored(b))
    assert (one is not None) is found
    if one is not None:
        np.testing.assert_allclose(values_of(one.payload), a.astype(float) @ b, rtol=1e-6)
    assert product_of(stored(a), stored(b)._replace(payload=None)) is None
    assert product_of(stored(a)._replace(payload=None), stored(b)) is None


def test_a_sample_has_rows_of_the_three(stored):
    base, a, b = drawn(6, 5), drawn(6, 2), drawn(2, 5)
    whole = base + 2.0 * (a.astype(float) @ b)
    update = product_of(stored(a), stored(b))
    one = sample_of(stored(base), stored(whole), update, ANYWHERE)
    np.testing.assert_allclose(one.merged, whole, rtol=1e-6)
    np.testing.assert_array_equal(one.base, base)
    np.testing.assert_allclose(one.update, a.astype(float) @ b, rtol=1e-6)
    assert lora_scale([one]).value == 2.0
    assert sample_of(stored(base), stored(whole)._replace(payload=None), update, ANYWHERE) is None
    assert sample_of(stored(base), stored(whole.T), update, ANYWHERE) is None
    lost = stored(whole)
    lost = lost._replace(payload=lost.payload._replace(path=lost.payload.path + ".absent"))
    assert sample_of(stored(base), lost, update, ANYWHERE) is None


@pytest.mark.parametrize("dtype, unit", [("float32", 2.0**-24), ("bfloat16", 2.0**-8), ("unknown", 0.0)])
@pytest.mark.parametrize("inner", [1, 2, 9])
def test_the_rounding_of_an_update(stored, dtype, unit, inner):
    a, b = drawn(6, inner), drawn(inner, 5)
    update = product_of(stored(a), stored(b)).payload._replace(factor=-3.0)
    longest = np.sqrt((a.astype(float) ** 2).sum(1).max() * (b.astype(float) ** 2).sum(0).max())
    expected = 3.0 * longest * unit * max(2.0, np.sqrt(inner))
    assert update_rounding(stored(a, dtype), update, ANYWHERE) == pytest.approx(expected, rel=1e-6)
    lost = update._replace(parts=(update.parts[0]._replace(path="absent"), update.parts[1]))
    assert update_rounding(stored(a, dtype), lost, ANYWHERE) == 0.0
