"""Images of an input on report.html."""

from __future__ import annotations

import base64
import re
import struct
import zlib

import numpy as np
import pytest

import npucmp
from npucmp.model.tensor_detail import image_axes
from npucmp.report import answer_of, html
from npucmp.report.png import png
from tests.browser import opened, skip_reason
from tests.report.steps import image_batch
from tests.synthetic import write_run

in_chromium = pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "a browser is here")


def reads(folder, batch):
    out = np.ascontiguousarray(batch.astype(np.float32).reshape(len(batch), -1)[:, :8])
    return write_run(folder, {"Functional.conv2d.0.forward": {"in": [batch], "out": [out]}})


def page_of(report) -> str:
    return html.render(answer_of(report))["report.html"].decode()


def pictures(page: str) -> list[np.ndarray]:
    """The pictures of a page, decoded by the rules of the standard for rows without filters."""
    found = []
    for text in re.findall(r'<img src="data:image/png;base64,([^"]+)"', page):
        data, at, parts = base64.b64decode(text), 8, {}
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        while at < len(data):
            (size,) = struct.unpack(">I", data[at : at + 4])
            name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
            assert struct.unpack(">I", data[at + 8 + size : at + 12 + size]) == (zlib.crc32(name + body),)
            parts[name], at = body, at + 12 + size
        width, height, *kind = struct.unpack(">IIBBBBB", parts[b"IHDR"])
        assert kind == [8, 2, 0, 0, 0]
        rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
        assert not rows[:, 0].any()
        found.append(rows[:, 1:].reshape(height, width, 3))
    return found


def shades(sample, low, high):
    return np.rint((sample.transpose(1, 2, 0).astype(np.float64) - low) / (high - low) * 255)


def test_both_runs_are_side_by_side_on_one_scale(tmp_path):
    golden = image_batch()
    target = golden * np.float32(0.5)
    page = page_of(npucmp.compare(reads(tmp_path / "t", target), reads(tmp_path / "g", golden)))
    found = pictures(page)
    low, high = float(min(golden.min(), target.min())), float(golden.max())
    wanted = [shades(batch[at], low, high) for at in range(2) for batch in (target, golden)]
    assert len(found) == 4 and all(np.array_equal(one, other) for one, other in zip(found, wanted))
    assert f"largest difference {np.abs(target.astype(np.float64) - golden).max():.3g}" in page


def test_one_run_shows_at_most_eight_and_small_ones(tmp_path):
    batch = np.random.default_rng(0).integers(0, 256, (12, 130, 200, 3)).astype(np.uint8)
    found = pictures(page_of(npucmp.check(reads(tmp_path, batch))))
    assert len(found) == 8 and {one.shape for one in found} == {(43, 66, 3)}
    low, high = float(batch[:8].min()), float(batch[:8].max())
    cells = batch[2, :129, :198].astype(np.float64).reshape(43, 3, 66, 3, 3).mean(axis=(1, 3))
    assert np.array_equal(found[2], np.rint((cells - low) / (high - low) * 255))


def test_values_that_are_not_finite_are_marked(tmp_path):
    batch = image_batch()
    batch[0, 0, 3, 4] = np.nan
    (first, _) = pictures(page_of(npucmp.check(reads(tmp_path, batch))))
    assert tuple(first[3, 4]) == (255, 0, 255) and tuple(first[3, 5]) != (255, 0, 255)


@pytest.mark.parametrize("batch", [
    np.where(np.tri(32, dtype=bool), np.float32(0), np.float32(-1e9))[None, None],  # a mask of attention
    np.zeros((2, 3, 32, 32), np.float32), np.full((2, 3, 32, 32), np.nan, np.float32),
    np.zeros((2, 4, 32, 32), np.float32), np.zeros((2, 3, 8, 32), np.float32), np.zeros((2, 3, 32, 32), np.int32),
])  # fmt: skip
def test_other_tensors_are_no_images(tmp_path, batch):
    assert "<img" not in page_of(npucmp.check(reads(tmp_path, batch)))


@pytest.mark.parametrize("dtype, shape, axes", [
    ("float32", (1, 3, 16, 16), "NCHW"), ("bfloat16", (4, 1, 28, 28), "NCHW"), ("uint8", (4, 224, 224, 3), "NHWC"),
    ("float32", (0, 3, 16, 16), ""), ("float32", (1, 3, 16, 500), ""), ("float32", (3, 16, 16), ""),
    ("int8", (1, 3, 16, 16), ""), ("complex64", (1, 3, 16, 16), ""),
])  # fmt: skip
def test_shapes_of_images(dtype, shape, axes):
    assert image_axes(dtype, shape) == axes


def test_a_picture_of_one_pixel():
    assert png(1, 1, b"\x01\x02\x03").endswith(b"IEND\xaeB`\x82")


def test_an_unreadable_file_shows_none(tmp_path):
    run = reads(tmp_path, image_batch())
    (file,) = run.rglob("*input.0.npy")
    file.write_bytes(file.read_bytes()[:600])
    assert "<img" not in page_of(npucmp.check(run))


@in_chromium
def test_pictures_are_shown(tmp_path):
    file = tmp_path / "report.html"
    file.write_text(page_of(npucmp.check(reads(tmp_path / "run", image_batch()))), encoding="utf-8")
    with opened(file) as page:
        sizes = page.eval_on_selector_all(
            ".samples img", "all => all.map((one) => [one.naturalWidth, one.naturalHeight])"
        )
        assert sizes == [[32, 24]] * 2 and page.complaints == []
