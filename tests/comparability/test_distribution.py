"""Batches of other samples: one source or another, by figures of the samples against random divisions of them."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp import precheck
from npucmp.comparability.batch_statistics import FIGURES, SHARES, batch_of, compare_batches
from npucmp.errors import UsageError
from tests.comparability.craft import CLASSES, Net, differing, held, images, status, words

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


def changed(change):
    return [change(one.copy()) for one in batches(OTHER)]


def with_nan(one):
    one[:, 0, 0, 0] = np.nan
    return one


def padded(one):
    one[:, :, 3] = 0
    return one


GOLDEN = batches(1)
CASES = {  # name: (images of the target, words of the row)
    "brighter": (changed(lambda one: one + 0.5), "mean 0."),
    "more contrast": (changed(lambda one: one * 1.5), "spread 1.4"),
    "noise": (changed(lambda one: np.cumsum(one, -1) / 2), "noise 0."),
    "missing values": (changed(with_nan), "missing 2.08% against 0.00%"),
    "padding": (changed(padded), "repeated value 25.00% against 2.08%"),
    "another size": ([one[:9] * 2 for one in batches(OTHER)], "18 samples against 32"),
    "a mixture": (changed(lambda one: one + np.where(np.arange(16) % 2, 1, -1)[:, None, None, None]), "variation"),
}


@pytest.mark.parametrize("name", CASES)
def test_another_distribution_is_named(tmp_path, name):
    arrays, told = CASES[name]
    result = held(tmp_path, net(arrays), net(GOLDEN), only=("input", ROW))
    assert differing(result) == {"input": "error", ROW: "warning"}
    assert told in words(result, ROW) and "beyond sampling error" in words(result, ROW)


@pytest.mark.parametrize("golden", [[one[:7] for one in GOLDEN], batches(1, 8, 1)])
def test_other_samples_of_one_distribution(tmp_path, golden):
    result = held(tmp_path, net(batches(OTHER)[: len(golden)], steps=(0, 1)[: len(golden)]),
                  net(golden, steps=(0, 1)[: len(golden)]), only=("input", ROW))  # fmt: skip
    assert status(result, ROW) in ("same", "close") and set(differing(result)) == {"input"}
    assert "one distribution as far as" in words(result, ROW)


def test_classes_of_labels(tmp_path):
    shares = [0.6, 0.1, 0.1, 0.1, 0.1], [0.05, 0.05, 0.1, 0.2, 0.6]
    arrays = batches(1, 24)
    nets = [net(arrays, labels=labels_of(arrays, share)) for share in shares]
    result = held(tmp_path, *nets, only=("labels", ROW))
    own, other = (np.bincount(np.concatenate(one.labels), minlength=CLASSES) / 48 for one in nets)
    assert f"shares of classes differ by {np.abs(own - other).sum() / 2:.0%}" in words(result, ROW)
    assert differing(result) == {"labels": "error", ROW: "warning"}


@pytest.mark.parametrize("change", [lambda one: one, lambda one: (one - 0.3) / 0.7, lambda one: one[::-1].copy()])
def test_nothing_new_of_inputs_that_are_related(tmp_path, change):
    target = Net(images=[change(one) for one in images()])
    result = held(tmp_path, target, Net(), only=("input", ROW))
    assert status(result, ROW) == "n/a" and ROW not in differing(result)


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


def pixels(draw, size):
    return np.cumsum(draw.normal(0, 1, (size, 3, 6)), -1) * draw.gamma(2, 1, (size, 1, 1))


def heavy(draw, size):
    return draw.standard_cauchy((size, 20))


def ids(draw, size):
    found = (draw.zipf(1.3, (size, 24)) + draw.integers(0, 4, (size, 1)) * 7) % 3000
    return np.where(np.arange(24) < draw.integers(4, 25, (size, 1)), found, 0)


SOURCES = {"pixels": (pixels, False), "heavy tails": (heavy, False), "tokens": (ids, True),
           "labels": (lambda draw, size: draw.integers(0, 9, size), True)}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("name", SOURCES)
def test_two_halves_of_a_batch_do_not_differ(name):
    source, are_classes = SOURCES[name]
    low = 0
    for seed in range(40):
        samples = [*source(np.random.default_rng(seed), 24)]
        found = compare_batches(batch_of(samples[:12], are_classes), batch_of(samples[12:], are_classes), 0.01)
        low += found.p <= 0.01
    assert low <= 2  # 3 or more of 40 have a probability of 0.7 % at a rate of 1 %


def test_p_of_two_separate_batches_is_the_share_of_such_divisions():
    draw = np.random.default_rng(0)
    low, high = ([*draw.uniform(start, start + 1, 6)] for start in (0, 5))
    found = compare_batches(
        batch_of([np.array(x) for x in low], False), batch_of([np.array(x) for x in high], False), 0.01
    )
    assert 0.0005 <= found.p <= 3 * 2 / 924  # 2 of 924 divisions separate them
    assert {name: own for name, own, _ in found.odd}["mean"] == pytest.approx(np.median(low))


def test_figures_of_a_sample():
    draw = np.random.default_rng(2)
    sample = draw.normal(3, 2, (4, 32)).astype("f4")
    sample[0, :8] = 1.5
    sample[1, 0] = np.inf
    (found,) = batch_of([sample], False).figures
    known = sample[np.isfinite(sample)].astype("f8")
    told = dict(zip(FIGURES, found))
    assert told["mean"] == pytest.approx(known.mean()) and told["spread"] == pytest.approx(known.std())
    assert (told["minimum"], told["maximum"]) == (known.min(), known.max())
    assert told["missing"] == 1 / 128 and told["repeated value"] == 8 / 127
    assert told["distinct values"] == len(np.unique(known)) / 127
    steps = np.diff(sample.astype("f8"), axis=-1)
    assert told["noise"] == pytest.approx((steps[np.isfinite(steps)] ** 2).mean() / 2 / known.var())
    assert told["quantile 50 %"] == pytest.approx(np.median(known), abs=0.1)


@pytest.mark.parametrize("sample", [np.zeros((0, 3)), np.full((2, 3), np.nan), np.float64(np.inf), np.zeros(5)])
def test_samples_without_figures(sample):
    batch = batch_of([sample] * 6, False)
    found = compare_batches(batch, batch_of([np.ones(4)] * 6, False), 0.01)
    assert found.p is not None and 0 < found.p <= 1 and SHARES not in [name for name, *_ in found.odd]
