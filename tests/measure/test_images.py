"""Pictures of the first samples of an input, of crafted values."""

import numpy as np

from npucmp.measure import images
from npucmp.measure.images import image_batch
from tests.measure.craft import stored

RAMP = np.arange(256.0, dtype=np.float32).reshape(1, 1, 16, 16)


def batch(folder, *values, names=("t", "g")):
    return image_batch([stored(folder, one) for one in values], names[: len(values)])


def pixels(one, run=0, sample=0):
    width, height = one.sizes[run]
    return np.frombuffer(one.pixels[run][sample], np.uint8).reshape(height, width, 3)


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
