"""Batches of other samples: one source or another, by figures of the samples against random divisions of them."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp import precheck
from npucmp.comparability.batch_statistics import SHARES, batch_of, compare_batches
from npucmp.errors import UsageError
from tests.comparability.craft import CLASSES, Net, differing, held, status, words

ROW = "data.distribution"
OTHER = 11  # seed of other samples


def labels_of(arrays, share=None):
    draw = np.random.default_rng(4)
    return [draw.choice(CLASSES, len(one), p=share) for one in arrays]


def batches(seed, size=16, steps=2):
    draw = np.random.default_rng(seed)
    return [draw.normal(0, 1, (size, 3, 4, 4)).astype("f4") for _ in range(steps)]


def net(arrays, **more):
    return Net(**{"images": arrays, "labels": labels_of(arrays), **more})


GOLDEN = batches(1)


def test_classes_of_labels(tmp_path):
    shares = [0.6, 0.1, 0.1, 0.1, 0.1], [0.05, 0.05, 0.1, 0.2, 0.6]
    arrays = batches(1, 24)
    nets = [net(arrays, labels=labels_of(arrays, share)) for share in shares]
    result = held(tmp_path, *nets, only=("labels", ROW))
    own, other = (np.bincount(np.concatenate(one.labels), minlength=CLASSES) / 48 for one in nets)
    assert f"shares of classes differ by {np.abs(own - other).sum() / 2:.0%}" in words(result, ROW)
    assert differing(result) == {"labels": "error", ROW: "warning"}


def test_arrays_without_dumps(tmp_path):
    draw = np.random.default_rng(8)
    for name, scale in (("train", 1.0), ("test", 1.6)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "images.npy", draw.normal(0, scale, (24, 3, 6)).astype("f4"))
        np.save(tmp_path / name / "labels.npy", draw.integers(0, 5, 24))
    folders = tuple(str(tmp_path / name) for name in ("train", "test"))
    result = precheck("-", "-", data=folders)
    assert differing(result) == {ROW: "error"} and result.exit_status == 1
    assert words(result, ROW).startswith("images output:0: ") and "spread " in words(result, ROW)
    same = precheck("-", "-", data=(f"{folders[0]}/images.npy", f"{folders[0]}/images.npy"))
    assert words(same, ROW) == "images output:0: the same 24 samples" and same.exit_status == 0
    labels = precheck("-", "-", data=tuple(f"{folder}/labels.npy" for folder in folders))
    assert status(labels, ROW) in ("same", "close")
    with pytest.raises(UsageError, match="data="):
        precheck("-", "-")


def test_too_few_samples_and_statistics_are_unknown(tmp_path):
    target, golden = (net([one[:2] for one in batches(seed)]) for seed in (OTHER, 1))
    result = held(tmp_path / "few", target, golden, only=ROW)
    assert status(result, ROW) == "unknown" and "4 samples against 4 are too few to decide" in words(result, ROW)
    result = held(tmp_path / "statistics", net(batches(OTHER)), net(GOLDEN), values=False, only=ROW)
    assert status(result, ROW) == "unknown" and "needs the values" in words(result, ROW)


def test_a_batch_that_is_repeated_counts_once(tmp_path):
    target, golden = (net([batches(seed, 6, 1)[0]] * 2) for seed in (OTHER, 1))
    assert "6 samples against 6 show" in words(held(tmp_path, target, golden, only=ROW), ROW)


@pytest.mark.parametrize("sample", [np.zeros((0, 3)), np.full((2, 3), np.nan), np.float64(np.inf), np.zeros(5)])
def test_samples_without_figures(sample):
    batch = batch_of([sample] * 6, False)
    found = compare_batches(batch, batch_of([np.ones(4)] * 6, False), 0.01)
    assert found.p is not None and 0 < found.p <= 1 and SHARES not in [name for name, *_ in found.odd]
