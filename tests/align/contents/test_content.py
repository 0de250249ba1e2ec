"""Contents: the sketch of the values of a tensor, their checksum in C order, and single values."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

from npucmp.align import rank_run
from npucmp.align.content_hash import hash_values
from npucmp.align.contents.content import Content, ContentReader, Recording, Sketch
from npucmp.align.rank_run import Values
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Statistics, TensorRef

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
        monkeypatch.setattr(rank_run, "WHOLE", 7)
    return request.param


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def test_a_sketch_is_the_same_in_any_order_and_shape(reader, saved, way):
    values = drawn(6, 8)
    found = reader.sketch(saved(values))
    assert found.key == (48, hash_values(values.astype(np.float64)))
    for other in (values.T.copy(), values.reshape(3, 16), values.astype(np.float64), np.asfortranarray(values)):
        assert reader.sketch(saved(other)).key == found.key
    assert reader.sketch(saved(-values)).key != found.key


def test_a_sketch_holds_17_quantiles_and_four_figures(reader, saved):
    values = drawn(45)
    sketch = reader.sketch(saved(values))
    np.testing.assert_allclose(sketch.quantiles, np.quantile(values.astype(np.float64), np.linspace(0, 1, 17)))
    rms = math.sqrt((values.astype(np.float64) ** 2).mean())
    assert sketch.figures == pytest.approx((values.max(), values.min(), values.mean(dtype=float), rms))


def test_quantiles_of_a_large_tensor_lie_between_the_middles_of_its_levels(reader, saved, monkeypatch):
    """Numbers of 16 bits are levels themselves, so that their quantiles are exact."""
    monkeypatch.setattr(rank_run, "WHOLE", 7)
    levels = np.array([-3.5, -1.0, -0.0078125, 0.0, 0.5, 1.0, 1.0078125, 96.0], np.float32)
    counts = np.array([1, 5, 2, 3, 1, 4, 2, 6])
    values = RNG.permutation(np.repeat(levels, counts))
    sketch = reader.sketch(saved(values))
    middles = np.cumsum(counts) - counts / 2
    np.testing.assert_allclose(sketch.quantiles, np.interp(np.linspace(0, 24, 17), middles, levels))
    rms = math.sqrt((values.astype(np.float64) ** 2).mean())
    assert sketch.figures == pytest.approx((96.0, -3.5, values.mean(dtype=float), rms))


def test_a_tensor_of_many_blocks_has_the_hash_of_all_values(reader, saved, way):
    values = drawn(3 * 65536 + 5)
    sketch = reader.sketch(saved(values))
    assert sketch.key == (values.size, hash_values(values.astype(np.float64)))
    expected = np.quantile(values, np.linspace(0, 1, 17))
    np.testing.assert_allclose(sketch.quantiles, expected, rtol=0.01, atol=1e-3)
    assert sketch.figures[2:] == pytest.approx((values.mean(), math.sqrt((values**2).mean())), abs=1e-5)


@pytest.mark.parametrize("mask", [-5000.0, -1e9, -np.inf, np.inf, np.nan])
def test_masks_and_numbers_that_are_not_finite_are_in_no_quantile(reader, saved, way, mask):
    values = np.concatenate([drawn(20), np.full(12, mask, np.float32), np.float32([-4999.0])])
    sketch, bare = reader.sketch(saved(values)), reader.sketch(saved(np.delete(values, np.s_[20:32])))
    np.testing.assert_array_equal(sketch.quantiles, bare.quantiles)
    assert sketch.figures == bare.figures and sketch.figures[1] < -4900
    assert sketch.key[0] == 33 and sketch.key != bare.key


@pytest.mark.parametrize("distinct, is_content", [(1, False), (6, False), (7, True)])
def test_a_tensor_of_few_different_numbers_is_no_content(reader, saved, way, distinct, is_content):
    values = np.arange(24, dtype=np.float32) % distinct
    assert (reader.sketch(saved(values)) is not None) is is_content
    values = np.where(np.arange(24) % 2, values, np.nan).astype(np.float32)  # NaN is no number
    if not is_content:
        assert reader.sketch(saved(values)) is None


def test_a_few_places_show_whether_a_large_tensor_holds_different_numbers(reader, saved, way):
    """Every fourth value of 2048 is looked at; the others need not vary."""
    seen, unseen = np.zeros((2, 2048), np.float32)
    seen[::4] = np.arange(512)
    unseen[1::4] = np.arange(1, 513)
    assert reader.sketch(saved(seen)) is not None
    assert reader.sketch(saved(unseen)) is None


def test_a_mask_of_many_numbers_is_no_content(reader, saved, way):
    values = np.linspace(-1e5, -6e3, 32, dtype=np.float32)
    tensor = saved(values)
    assert reader.sketch(tensor) is None
    assert reader.sketch(tensor) is None  # nor when it is read again
    values[5] = 1.0
    assert reader.sketch(saved(values)).figures == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("change", [{"dtype": "int32"}, {"dtype": "what"}, {"problem": "cut"}, {"file": "/none.npy"}])
def test_integers_and_unreadable_tensors_are_no_contents(reader, saved, way, change):
    tensor = saved(drawn(4, 4))
    assert reader.sketch(tensor) is not None
    assert reader.sketch(tensor._replace(**change)) is None


def test_a_file_that_ends_too_early_has_no_sketch_and_no_values(reader, saved, way, tmp_path):
    tensor = saved(drawn(4, 4))
    with open(tensor.file, "r+b") as file:
        file.truncate(160)
    assert reader.sketch(tensor) is reader.flat(tensor) is reader.order(tensor) is None
    assert reader.picked(tensor, np.arange(16)) is None


@pytest.mark.parametrize("size, is_content", [(7, False), (8, True)])
def test_a_tensor_of_fewer_than_8_elements_is_no_content(reader, saved, size, is_content):
    values = np.arange(size, dtype=np.float32)
    assert (reader.sketch(saved(values)) is not None) is is_content
    recorded = TensorRef("input:0", "float32", (size,), statistics=Statistics(3.0, -1.0, 0.5, 4.0))
    assert (reader.sketch(recorded) is not None) is is_content


def test_recorded_statistics_are_the_sketch_of_a_tensor_without_values(reader, saved):
    recorded = Statistics(3.0, -1.0, 0.5, 8.0)
    tensor = TensorRef("input:0", "float32", (4, 4), statistics=recorded)
    assert reader.sketch(tensor) == Sketch((16, 3.0, -1.0, 0.5, 8.0), None, (3.0, -1.0, 0.5, 2.0))
    assert reader.sketch(tensor._replace(statistics=recorded._replace(norm=0.0))).figures[3] == 0.0
    file = saved(drawn(4, 4))
    assert reader.sketch(file._replace(statistics=recorded)).quantiles is not None
    assert reader.sketch(tensor._replace(payload=rank_run.Values(ANYWHERE).payload(file))).quantiles is not None


@pytest.mark.parametrize("change", [
    None, {"max": None}, {"min": None}, {"mean": None}, {"norm": None}, {"max": -1.0}, {"max": math.inf},
    {"mean": math.nan}, {"norm": math.inf},
])  # fmt: skip
def test_incomplete_statistics_and_those_of_a_constant_are_no_sketch(reader, change):
    found = None if change is None else Statistics(3.0, -1.0, 0.5, 8.0)._replace(**change)
    assert reader.sketch(TensorRef("input:0", "float32", (4, 4), statistics=found)) is None


def test_the_checksum_of_an_order_knows_the_order_and_no_sign_of_zero(reader, saved):
    values = drawn(4, 6)
    values[0, 0] = 0.0
    order = reader.order(saved(values))
    assert order == zlib.crc32(values.tobytes())
    assert reader.order(saved(values.astype(np.float64))) == reader.order(saved(np.asfortranarray(values))) == order
    assert reader.order(saved(values.T.copy())) != order
    values[0, 0] = -0.0
    assert reader.order(saved(values)) == order
    np.testing.assert_array_equal(reader.flat(saved(values)), values.reshape(-1))


def test_a_large_tensor_has_no_flat_values_and_no_checksum(reader, saved, monkeypatch):
    monkeypatch.setattr(rank_run, "WHOLE", 7)
    assert reader.flat(saved(drawn(8))) is reader.order(saved(drawn(8))) is None
    assert reader.flat(saved(drawn(7))).shape == (7,)


@pytest.mark.parametrize("places", [[0, 1, 69999], [65535, 65536], [65536, 3, 65535, 65536], []])
def test_values_are_picked_by_their_places_in_c_order(reader, saved, way, places):
    values = drawn(700, 100)
    found = reader.picked(saved(values), np.array(places, int))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, values.reshape(-1)[places])


def test_the_first_tensor_that_was_written_has_the_shape_of_a_content():
    read, written, again = (TensorRef(slot, "float32", (2, 8)) for slot in ("input:0", "output:0", "output:1"))
    content = Content(4, read, Sketch((16, 1), None, (3.0, -1.0, 0.5, 2.0)), 9)
    assert (content.number, content.shape, content.size, content.first) == (4, (2, 8), 16, 9)
    assert content.rms == 2.0 and not content.is_weight
    content.recordings.append(Recording(9, read))
    assert content.tensor is read
    content.recordings += [Recording(10, written), Recording(11, again)]
    assert content.tensor is written
