"""Scales of codes, and samples of rows."""

import numpy as np
import pytest

from npucmp.align.weights.quantised import block_of, scaled_matrix
from npucmp.align.weights.sample import agrees, part_agrees, row_numbers, share_agreeing
from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.values import blocks
from npucmp.errors import UnsupportedError
from npucmp.model import Payload, TensorRef


def stored(folder, name, values, **more):
    values.tofile(folder / name)
    return Payload(str(folder / name), values.dtype.name, values.shape, 0, **more)


def values_of(payload):
    return np.concatenate([*blocks(payload, 1 << 20, context=ANYWHERE)]).reshape(payload.shape)


@pytest.mark.parametrize(
    "size, count, stated, length",
    [
        (300, 300, None, 1),
        (300, 1, None, 300),
        (300, 3, None, 128),
        (256, 2, 200, 200),  # the configuration decides
        (256, 4, 200, 64),  # unless it does not fit
        (256, 8, None, 32),
        (48, 6, None, 8),
        (15, 5, None, 3),  # an equal division
        (0, 1, None, 1),
    ],
)
def test_the_length_of_a_block_of_codes(size, count, stated, length):
    assert block_of(size, count, stated) == length


@pytest.mark.parametrize("size, count", [(10, 7), (3, 5), (4, 0)])
def test_no_block_fits(size, count):
    with pytest.raises(UnsupportedError, match=f"{count} scales of {size} places"):
        block_of(size, count)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (4,), (4, 1), (2, 3), (4, 6), (1, 6)])
def test_codes_times_their_scale(tmp_path, shape):
    chance = np.random.default_rng(4)
    codes = chance.integers(-128, 127, (4, 6)).astype(np.int8)
    scale = chance.random(shape).astype(np.float32)
    ref = TensorRef("scale", "float32", shape, payload=stored(tmp_path, "scale", np.asarray(scale)))
    found = values_of(scaled_matrix(stored(tmp_path, "codes", codes), ref, None))
    grid = scale.reshape(-1, 1) if shape == (4,) else scale.reshape((1, 1) if np.size(scale) == 1 else shape)
    whole = np.repeat(np.repeat(grid, 4 // grid.shape[0], 0), 6 // grid.shape[1], 1)
    assert np.allclose(found, codes * whole.astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize(
    "codes, shape, more, words",
    [
        ((4, 6), (2, 2, 2), {}, "a scale of shape"),
        ((4,), (4,), {}, "codes of shape"),
        ((4, 6), (3, 6), {}, "scales of 4 places"),
        ((4, 6), (4,), {"problem": "cut"}, "cannot be read: cut"),
        ((4, 6), None, {}, "without values"),
        ((4, 6), (4,), {"strides": (2,)}, "strided"),
    ],
)
def test_scales_of_other_shapes_are_refused(tmp_path, codes, shape, more, words):
    strides = more.pop("strides", ())
    payload = None if shape is None else Payload("scale", "float32", shape, 0, strides)
    ref = TensorRef("scale", "float32", shape or (), payload=payload, **more)
    with pytest.raises(UnsupportedError, match=words):
        scaled_matrix(Payload("codes", "int8", codes, 0), ref, None)


def test_samples_of_rows(tmp_path):
    assert row_numbers(5) == [0, 1, 2, 3, 4] and row_numbers(0) == []
    numbers = row_numbers(1000)
    assert len(numbers) == 16 and numbers == sorted({*numbers}) and numbers[0] >= 0 and numbers[-1] < 1000
    assert len({one % 16 for one in row_numbers(1024)}) > 4  # no pattern of the rows is sampled alone
    x = np.linspace(1, 2, 12).reshape(3, 4)
    y = x.copy()
    y[0, 0] = 9.0
    assert share_agreeing(x, y, 1e-3) == 11 / 12 and share_agreeing(x, x, 0.0) == 1.0
    assert share_agreeing(x, x * 0, 1e-3) == share_agreeing(x[:0], x[:0], 1e-3) == share_agreeing(x, x[:2], 1e-3) == 0.0
    assert agrees(x, x * (1 + 1e-4), 1e-3) and not agrees(x, x * (1 + 1e-2), 1e-3)
    assert agrees(x * 0, x, 1.0) and not agrees(x, x * 0, 1.0)  # a limit is a share of the second
    assert agrees(x, x + 1e-2, 0.0, atol=0.02) and not agrees(x, x + 1e-2, 0.0)
    assert agrees(x, x * (1 + 2e-3), 1e-3, quantised=True) and not agrees(x, x * 1.2, 1e-3, quantised=True)
    a, b = stored(tmp_path, "a", x), stored(tmp_path, "b", x * 1.5)
    assert part_agrees(a, a, 1e-6, ANYWHERE) is True and part_agrees(a, b, 1e-6, ANYWHERE) is False
    assert part_agrees(a, a._replace(shape=(4, 3)), 1e-6, ANYWHERE) is None
    assert part_agrees(a._replace(shape=()), a._replace(shape=()), 1e-6, ANYWHERE) is None
