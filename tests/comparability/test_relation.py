"""What one array is of another, by plain transformations of random arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.comparability.data_relation import by_statistics, relation

RANDOM = np.random.default_rng(3)
IMAGES = RANDOM.normal(0.2, 1.3, (4, 3, 6, 5)).astype("f4")
NOISE = np.random.default_rng(8).normal(0, 4e-6, IMAGES.shape).astype("f4")
TABLE = RANDOM.normal(0, 1, (40, 6)).astype("f4")
IDS = RANDOM.integers(5, 99, (4, 12))
STD = np.array([0.229, 0.224, 0.225], "f4")[:, None, None]
MEAN = np.array([0.485, 0.456, 0.406], "f4")[:, None, None]


def bfloat16(x):
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16).astype("f4")


def padded(left):
    found = IDS.copy()
    found[:, :4] = 0 if left else found[:, :4]
    found[:, 8:] = found[:, 8:] if left else 0
    return found


CASES = {  # name: (target, golden, kind, words)
    "the same": (IMAGES, IMAGES.copy(), "same bits", ""),
    "NaN is NaN": (np.array([1.0, math.nan]), np.array([1.0, math.nan]), "same bits", ""),
    "empty": (np.empty((0, 3)), np.empty((0, 3)), "same bits", ""),
    "close": (IMAGES * (1 + 3e-6), IMAGES, "close", ""),
    "close but for what is near 0": (IMAGES + NOISE, IMAGES, "close", "within rounding"),
    "nearly a factor of one": (IMAGES * (1 + 5e-5), IMAGES, "rounded", ""),
    "divided by 256": (IMAGES * (255 / 256), IMAGES, "normalised", "target = 0.9961·golden"),
    "float16": (IMAGES.astype("f2").astype("f4"), IMAGES, "rounded", "rounded to float16"),
    "bfloat16 on the other side": (IMAGES, bfloat16(IMAGES), "rounded", "rounded to bfloat16"),
    "8 bits": (np.round(IMAGES * 64) / 64, IMAGES, "rounded", "rounded on one side"),
    "shuffled": (IMAGES[[1, 2, 3, 0]], IMAGES, "shuffled", "the same 4 samples in another order (4 moved)"),
    "other samples among them": (
        np.concatenate([IMAGES[:3], IMAGES[:1] + 9]),
        IMAGES,
        "differs",
        "other samples: 1 of 4; the rest is equal in place",
    ),
    "a line": ((IMAGES - 0.3) / 0.7, IMAGES, "normalised", "target = 1.429·golden − 0.4286"),
    "a shift alone": (IMAGES + 2, IMAGES, "normalised", "target = golden + 2"),
    "0 to 255": (IMAGES * 255, IMAGES, "normalised", "target = 255·golden"),
    "a line per channel": ((IMAGES - MEAN) / STD, IMAGES, "normalised", "per channel: target = 4.367·golden − 2.118"),
    "a line per feature": (TABLE * np.arange(1, 7) + 1, TABLE, "normalised", "target = golden + 1, 2·golden + 1"),
    "BGR": (IMAGES[:, ::-1], IMAGES, "channels reversed", "RGB against BGR"),
    "BGR, normalised": (
        (IMAGES[:, ::-1] - 0.5) / 0.5,
        IMAGES,
        "channels reversed",
        "RGB against BGR); and normalised differently: target = 2·golden − 1",
    ),
    "NHWC": (IMAGES.transpose(0, 2, 3, 1), IMAGES, "layout", "NHWC against NCHW"),
    "NCHW": (IMAGES, IMAGES.transpose(0, 2, 3, 1), "layout", "NCHW against NHWC"),
    "NHWC, normalised": (IMAGES.transpose(0, 2, 3, 1) * 2, IMAGES, "layout", "target = 2·golden"),
    "NHWC and BGR": (IMAGES[:, ::-1].transpose(0, 2, 3, 1), IMAGES, "layout", "NHWC against NCHW, and the channels"),
    "height and width": (TABLE[:6].T, TABLE[:6], "layout", "axes [1, 0] of golden"),
    "mirrored": (IMAGES[..., ::-1], IMAGES, "mirrored", "mirrored along axis 3"),
    "another batch": (IMAGES[:2], IMAGES, "shape", "[2, 3, 6, 5] against [4, 3, 6, 5]"),
    "other values": (RANDOM.normal(0, 1, IMAGES.shape), IMAGES, "differs", "no relation explains it"),
    "a constant": (np.ones(40, "f4"), RANDOM.normal(0, 1, 40).astype("f4"), "differs", "40 of 40 elements differ"),
    "few elements lie on any line": (np.array([1.0, 5.0]), np.array([2.0, 3.0]), "differs", ""),
    "truth": (np.array([True, False]), np.array([True, True]), "differs", "1 of 2 elements differ"),
    "labels": (np.array([1, 2, 3]), np.array([1, 2, 4]), "differs", "1 of 3 numbers differ"),
    "tokens of others": (IDS[:, ::-1] + 1, IDS, "differs", "4 of 4 samples differ, from the first position on"),
    "tokens, cut": (
        np.where(np.arange(12) < 9, IDS, IDS[:, ::-1] + 100),
        IDS,
        "differs",
        "equal up to position 9: truncation, special tokens or padding",
    ),
    "tokens, padded": (padded(True), padded(False), "differs", "target pads on the left with 0, golden on the right"),
    "tokens, shorter": (IDS[:, :9], IDS, "differs", "equal up to position 9, then one side ends"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_told(name):
    target, golden, kind, words = CASES[name]
    found = relation(target, golden)
    assert (found.kind, words in found.words) == (kind, True), found


def figures(x):
    return float(x.max()), float(x.min()), float(x.mean()), float(np.sqrt((x.astype("f8") ** 2).sum()))


def test_sums_of_another_device_are_close():
    high, low, mean, norm = figures(IMAGES)
    assert by_statistics((high, low, mean + 1e-7, norm * (1 + 1e-6)), figures(IMAGES), IMAGES.size).kind == "close"


def test_no_figures_tell_nothing():
    assert by_statistics((None,) * 4, (1.0, 0.0, None, None), 8).kind == "unknown"
    assert by_statistics((4, 0, None, None), (4, 0, None, None), 8).kind == "same statistics"
    assert by_statistics((4, 0, None, None), (5, 0, None, None), 8).kind == "differs"
