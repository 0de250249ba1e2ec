"""Pictures of the first samples of an input, of crafted values."""

import numpy as np
import pytest

from npucmp.measure import images
from npucmp.measure.images import image_batch
from tests.measure.craft import stored

CHANCE = np.random.default_rng(5)
RAMP = np.arange(256.0, dtype=np.float32).reshape(1, 1, 16, 16)
COLOURS = np.stack([RAMP[0, 0], RAMP[0, 0].T, RAMP[0, 0, ::-1]])[None]


def batch(folder, *values, names=("t", "g")):
    return image_batch([stored(folder, one) for one in values], names[: len(values)])


def pixels(one, run=0, sample=0):
    width, height = one.sizes[run]
    return np.frombuffer(one.pixels[run][sample], np.uint8).reshape(height, width, 3)


def test_the_range_of_all_runs_is_black_to_white(tmp_path):
    one = batch(tmp_path, RAMP, RAMP * 2 - 255)
    assert (one.low, one.high, one.names, one.sizes) == (-255.0, 255.0, ("t", "g"), ((16, 16), (16, 16)))
    expected = np.rint((RAMP[0, 0] + 255) / 510 * 255)
    assert (pixels(one) == expected[..., None]).all()  # the same in all colours
    assert pixels(one, 1)[0, 0].tolist() == [0] * 3 and pixels(one, 1)[-1, -1].tolist() == [255] * 3
    assert one.largest == 255.0 and batch(tmp_path, RAMP).largest is None


@pytest.mark.parametrize("axes", ["NCHW", "NHWC"])
def test_channels_are_colours(tmp_path, axes):
    values = COLOURS if axes == "NCHW" else COLOURS.transpose(0, 2, 3, 1).copy()
    assert (pixels(batch(tmp_path, values)) == COLOURS[0].transpose(1, 2, 0)).all()


@pytest.mark.parametrize("runs, count, shown", [(1, 9, 8), (1, 3, 3), (2, 9, 4), (2, 1, 1)])
def test_at_most_eight_pictures_are_shown(tmp_path, runs, count, shown):
    values = np.concatenate([RAMP + at for at in range(count)])
    one = batch(tmp_path, *[values] * runs)
    assert [len(samples) for samples in one.pixels] == [shown] * runs
    assert one.high == 255.0 + shown - 1
    assert (pixels(one, 0, shown - 1)[-1, -1] == 255).all()


def test_runs_with_unequal_batches_show_the_samples_of_both(tmp_path):
    one = batch(tmp_path, RAMP, np.concatenate([RAMP, RAMP + 1]))
    assert [len(samples) for samples in one.pixels] == [1, 1] and one.largest == 0.0
    assert batch(tmp_path, RAMP, COLOURS).largest is None  # other shapes


def test_cells_of_a_large_picture_are_averaged(tmp_path):
    """A picture of 194 × 40: three elements in a cell, and the rest is left out."""
    values = CHANCE.random((1, 1, 194, 40)).astype(np.float32)
    one = batch(tmp_path, values)
    assert one.sizes == ((13, 64),)
    cells = values[0, 0, :192, :39].astype(float).reshape(64, 3, 13, 3).mean(axis=(1, 3))
    expected = np.rint((cells - one.low) / (one.high - one.low) * 255)
    assert (pixels(one)[..., 0] == expected).all()
    assert batch(tmp_path, values[:, :, :96]).sizes == ((40, 96),)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_has_a_colour_of_its_own(tmp_path, value):
    values = COLOURS.copy()
    values[0, 1, 2, 3] = value
    one = batch(tmp_path, values, COLOURS)
    lost = (pixels(one) == (255, 0, 255)).all(axis=-1)
    assert np.argwhere(lost).tolist() == [[2, 3]] and (one.low, one.high) == (0.0, 255.0)
    assert one.largest == (0.0 if np.isnan(value) else np.inf)


@pytest.mark.parametrize(
    "values, shown",
    [
        (RAMP % 8, True),
        (RAMP % 7, False),  # a mask
        (COLOURS % 2, True),
        (RAMP * 0, False),
        (RAMP * np.nan, False),
        (COLOURS * 0 + 3, False),
        ((RAMP.astype(float) - 128) * 1.3e306, False),  # a range beyond float64
        (RAMP[0, 0], False),
        (RAMP[:0], False),
    ],
)
def test_only_pictures_are_shown(tmp_path, values, shown):
    assert (batch(tmp_path, values) is not None) is shown
    if not shown:
        assert batch(tmp_path, values, values) is None


def test_a_tensor_without_values_shows_nothing(tmp_path):
    known = stored(tmp_path, RAMP)
    for other in (known._replace(file=""), known._replace(file=f"{tmp_path}/none.npy")):
        assert image_batch([known, other], "tg") is None and image_batch([other], "t") is None


def test_the_elements_that_are_read_are_bounded(tmp_path, monkeypatch):
    values = np.concatenate([RAMP] * 4)
    for limit, shown in ((512, 2), (511, 1)):
        monkeypatch.setattr(images, "ELEMENTS", limit)
        assert len(batch(tmp_path, values).pixels[0]) == shown
    monkeypatch.setattr(images, "ELEMENTS", 255)
    assert batch(tmp_path, values) is None
    monkeypatch.undo()
    monkeypatch.setattr(images, "READ", 100)
    assert (pixels(batch(tmp_path, values), 0, 3) == RAMP[0, 0][..., None]).all()
