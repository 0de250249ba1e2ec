"""The product of two matrices of low rank, its scale by the merged weights, and the sum of both."""

import numpy as np
import pytest

from npucmp.align.weights.limits import WeightLimit
from npucmp.align.weights.low_rank import LowRankSample, lora_scale, merged, product_of, sample_of, update_rounding
from npucmp.align.weights.part import Part
from npucmp.align.weights.role import Role
from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.values import blocks
from npucmp.model import Payload

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


def sample(scale, rtol=1e-6, wrong=0.0, update=None):
    """A sample whose update was merged with a scale; a share of its elements is wrong."""
    base, own = drawn(8, 25).astype(float), drawn(8, 25).astype(float) if update is None else update
    found = base + scale * own
    found.reshape(-1)[: round(wrong * found.size)] += 3.0
    return LowRankSample(found, base, own, WeightLimit(rtol), 0.0)


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 0.25, 16.0, 1.0 / 3.0, 0.7, -2.0, 12.34])
def test_a_scale_is_that_of_most_merged_weights(scale):
    found = lora_scale([sample(scale) for _ in range(4)])
    assert found.value == pytest.approx(scale, rel=1e-9) and found.words == "by values: 4 of 4 parts"


def test_a_coarse_scale_is_the_simplest_number_that_fits():
    samples = []
    for near in (1.999, 2.001, 2.0015, 1.9985):
        one = sample(near)
        samples.append(one._replace(limit=WeightLimit(4e-3, 4e-3)))
    assert lora_scale(samples).value == 2.0


@pytest.mark.parametrize("scale", [5 / 64, 3 / 32, 33 / 32, 17 / 16, 0.7])
def test_a_scale_is_a_quotient_of_a_rank_or_has_few_digits(scale):
    """A few wrong elements move the estimate."""
    one = sample(scale)
    one.merged[0, :8] += 0.02 * one.update[0, :8]
    assert lora_scale([one]).value == scale


def test_a_scale_needs_votes():
    assert lora_scale([]) == (None, "", None)
    assert lora_scale([None, None]) == (None, "", None)
    assert lora_scale([sample(2.0), None, None]).value == 2.0
    assert lora_scale([sample(2.0), None, None, None]) == (None, "", 2.0)  # fewer than a third
    assert lora_scale([sample(2.0), sample(4.0)]).value is None
    assert lora_scale([sample(2.0)] * 3 + [sample(4.0)]).value == 2.0
    assert lora_scale([sample(1.0, update=np.zeros((8, 25)))]) == (None, "", None)
    assert lora_scale([sample(0.0)]) == (None, "", None)
    assert lora_scale([sample(2.0, wrong=0.04)] * 2).likely is not None


@pytest.mark.parametrize("wrong, agrees", [(0.05, True), (0.06, False)])
def test_a_merged_weight_agrees_if_nearly_all_of_its_elements_do(wrong, agrees):
    one = sample(2.0, wrong=wrong)
    assert (one.share(2.0) >= 0.95) is agrees and one.share(2.0) == pytest.approx(1 - wrong)
    assert one.share(1.0) < 0.1


def test_the_rounding_of_an_update_grows_with_its_scale():
    one = sample(2.0)._replace(rounding=1e-3)
    moved = one._replace(merged=one.merged + 1.9e-3)
    assert moved.share(2.0) == 1.0 and moved.share(-2.0) < 1.0
    assert one._replace(merged=one.merged + 2.2e-3).share(2.0) < 0.2
    assert one._replace(merged=one.merged + 1e-2, limit=WeightLimit(0.0, 8.1e-3)).share(2.0) == 1.0


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


def test_copies_of_both_matrices_are_multiplied_side_by_side(stored):
    a, other, b = drawn(6, 2), drawn(6, 2), drawn(2, 5)
    one = product_of(stored(a, copies=(stored(other).payload,)), stored(b))
    np.testing.assert_allclose(values_of(one.copies[0]), other.astype(float) @ b, rtol=1e-6)
    assert len(one.copies) == 1
    assert product_of(stored(a, copies=(stored(drawn(6, 3)).payload,)), stored(b)) is None


def test_a_weight_plus_its_update(stored):
    base, copy, odd, a, b = drawn(6, 5), drawn(6, 5), drawn(5, 5), drawn(6, 2), drawn(2, 5)
    update = product_of(stored(a), stored(b))
    part = stored(base, copies=(stored(copy).payload, stored(odd).payload), shards=(stored(base).payload,))
    found = merged(part, update, 0.5)
    np.testing.assert_allclose(values_of(found.payload), base + 0.5 * (a.astype(float) @ b), rtol=1e-5)
    np.testing.assert_allclose(values_of(found.copies[0]), copy + 0.5 * (a.astype(float) @ b), rtol=1e-5)
    np.testing.assert_array_equal(values_of(found.copies[1]), odd)
    assert (found.words, found.shards, len(found.copies)) == ("LoRA(0.5)", (), 2)


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
