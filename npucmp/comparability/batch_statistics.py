"""Compare the distributions of two batches: does one source explain the samples of both?

A sample is an element of the first axis. Each sample has figures (FIGURES); integers that name classes or tokens also
have the shares of their classes. If both batches are drawn from one source, every division of all samples into two
batches of these sizes is equally likely. The largest standardised difference of the figures is therefore compared with
its values in DRAWS random divisions: the share of divisions with a larger one is p. The rule needs no threshold per
figure and no assumption about the data: if both batches have one source, p <= 1 % occurs in at most 1 % of all cases.

Figures are compared by their ranks, so that single extreme samples do not hide a difference of all others. Equal
samples within a batch count once, because they are not independent.

Source: permutation test with the maximum of the statistics, Westfall and Young, Resampling-based multiple testing,
1993; p with the observed division counted, Phipson and Smyth, Stat. Appl. Genet. Mol. Biol. 9 (2010). Noise: ratio of
von Neumann, Ann. Math. Statist. 12 (1941).
"""

from __future__ import annotations

import math
import zlib
from typing import NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array

DRAWS = 1999  # random divisions: the smallest p is 0.0005
MOST_SAMPLES = 512  # of a batch
MOST_ELEMENTS = 1 << 23  # of the samples of a batch together; sorting them takes a second
LONG = 16  # elements of a sample that another sample does not equal by chance
MOST_CLASSES = 512  # classes with a share of their own, the most frequent first; the others are one class
ROUNDING = 1e-9  # of sums, in deviations
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
FIGURES = ("mean", "spread", "minimum", "maximum", *(f"quantile {100 * one:.0f} %" for one in QUANTILES), "missing",
           "repeated value", "distinct values", "noise")  # fmt: skip
OF_CLASSES = "repeated value", "distinct values"
IN_SHARES = ("missing", *OF_CLASSES)  # figures that are shares of elements
VARIATION = ("variation of the mean", "variation of the spread")
SHARES = "shares of classes"


class Batch(NamedTuple):
    """The samples of a run.

    figures     samples × FIGURES, float64; NaN if a sample has none
    values      elements of each sample, if they are classes; else None
    hashes      of the samples, if they are long
    duplicates  number of samples that were left out because an earlier one is equal
    """

    figures: Array
    values: Optional[list[Array]]
    hashes: tuple[int, ...]
    duplicates: int


class DistributionTest(NamedTuple):
    """The comparison of two batches; None for `p` if they have too few samples to decide at `alpha`.

    odd      figures beyond sampling error with their medians (target, golden), the clearest first
    shared   samples that are in both batches
    """

    p: Optional[float]
    sizes: tuple[int, int]
    odd: tuple[tuple[str, float, float], ...] = ()
    shared: int = 0


def batch_of(samples: Sequence[Array], are_classes: bool) -> Batch:
    """Return the figures of samples. Equal samples count once if they are long: single numbers are equal by chance.

    If samples are many or large, only the first are used: MOST_SAMPLES, and about MOST_ELEMENTS together.
    """
    rows, left = list[Array](), MOST_ELEMENTS
    for sample in samples[: 4 * MOST_SAMPLES]:
        if left > 0:
            rows.append(np.ascontiguousarray(sample).ravel())
            left -= sample.size
    hashes = [hash(row.tobytes()) for row in rows]
    is_long = bool(rows) and min(row.size for row in rows) >= LONG
    first = dict(zip(reversed(hashes), range(len(rows) - 1, -1, -1)))
    kept = (sorted(first.values()) if is_long else [*range(len(rows))])[:MOST_SAMPLES]
    with np.errstate(all="ignore"):
        figures = np.array([_figures(samples[at]) for at in kept]).reshape(len(kept), len(FIGURES))
    return Batch(figures, [rows[at] for at in kept] if are_classes else None,
                 tuple(hashes[at] for at in kept) if is_long else (),
                 len(hashes) - len(first) if is_long else 0)  # fmt: skip


def _figures(sample: Array) -> tuple[float, ...]:
    """FIGURES of one sample; NaN and infinity are missing values, of which no other figure is computed."""
    values = np.asarray(sample, np.float64).ravel()
    known = np.sort(values[np.isfinite(values)])
    if not known.size:
        return (*[math.nan] * 9, 1.0, math.nan, math.nan, math.nan)
    steps = np.flatnonzero(np.diff(known)) + 1
    runs = np.diff(np.concatenate(([0], steps, [known.size])))
    spread = float(known.std())
    quantiles = known[[min(known.size - 1, int(one * known.size)) for one in QUANTILES]]
    return (float(known.mean()), spread, float(known[0]), float(known[-1]), *map(float, quantiles),
            1.0 - known.size / values.size, float(runs.max()) / known.size, runs.size / known.size,
            _noise(np.asarray(sample, np.float64), spread))  # fmt: skip


def _noise(sample: Array, spread: float) -> float:
    """The mean square of differences of neighbours along the last axis over twice the variance: 1 for white noise, near
    0 for smooth data."""
    if sample.ndim == 0 or sample.shape[-1] < 3 or not spread:
        return math.nan
    steps = np.diff(sample, axis=-1)
    known = steps[np.isfinite(steps)]
    return float(np.square(known).mean()) / (2 * spread * spread) if known.size else math.nan


def compare_batches(target: Batch, golden: Batch, alpha: float) -> DistributionTest:
    """Compare two batches. `p` is the share of random divisions with a difference as large."""
    sizes = len(target.figures), len(golden.figures)
    shared = len({*target.hashes} & {*golden.hashes})
    if not min(sizes) or (1 + (sizes[0] == sizes[1])) / math.comb(sum(sizes), sizes[0]) > alpha:
        return DistributionTest(None, sizes, shared=shared)
    names, columns = _columns(target, golden)
    figures = np.sort(np.concatenate([target.figures, golden.figures]), axis=0)
    divisions = _divisions(*sizes, zlib.crc32(figures.tobytes()))
    found = [_standardised(np.abs(divisions @ columns))] if columns.size else []
    if target.values is not None and golden.values is not None:
        names = [*names, SHARES]
        found.append(_standardised(_share_differences(target.values, golden.values, divisions)[:, None]))
    scores = np.concatenate(found, axis=1) if found else np.zeros((len(divisions), 0))
    if not scores.size:
        return DistributionTest(1.0, sizes, shared=shared)
    largest = scores.max(axis=1)
    p = float(np.mean(largest >= largest[0] - ROUNDING))
    each = [(float(np.mean(largest >= score - ROUNDING)), -score, at) for at, score in enumerate(scores[0])]
    odd = [_medians(names[at], target, golden) for own, _, at in sorted(each) if own <= alpha]
    return DistributionTest(p, sizes, tuple(odd), shared)


def _columns(target: Batch, golden: Batch) -> tuple[list[str], Array]:
    """Ranks of the figures of all samples, with deviation 1; figures that are equal in all samples are left out."""
    both = np.concatenate([target.figures, golden.figures])
    centre = np.abs(both[:, :2] - [_median(column) for column in both[:, :2].T])
    both = np.concatenate([both, centre], axis=1)
    names = [*FIGURES, *VARIATION]
    if target.values is not None:  # numbers of classes have no order
        both, names = both[:, [FIGURES.index(name) for name in OF_CLASSES]], [*OF_CLASSES]
    kept, columns = list[str](), list[Array]()
    for name, column in zip(names, both.T):
        column = np.where(np.isnan(column), np.inf, column)
        _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[place.ravel()]
        if len(counts) > 1:
            kept.append(name)
            columns.append((ranks - ranks.mean()) / ranks.std())
    return kept, np.stack(columns, axis=1) if columns else np.zeros((len(both), 0))


def _divisions(first: int, second: int, seed: int) -> Array:
    """The observed division and DRAWS random ones, one per row: 1/first in the first batch, -1/second in the other.

    The seed comes from the samples in any order: a repeated comparison has the same p, and other samples have other
    divisions, so that the chance of one set of divisions does not shift all of them.
    """
    random = np.random.default_rng(seed).random((DRAWS, first + second))
    chosen = np.zeros((DRAWS + 1, first + second), bool)
    chosen[0, :first] = True
    np.put_along_axis(chosen[1:], np.argpartition(random, first - 1, axis=1)[:, :first], True, axis=1)
    return np.where(chosen, 1 / first, -1 / second)


def _standardised(differences: Array) -> Array:
    """Differences in units of their deviation over all divisions, so that figures can be compared."""
    deviation = differences.std(axis=0)
    kept = deviation > ROUNDING
    return (differences[:, kept] - differences.mean(axis=0)[kept]) / deviation[kept] if kept.any() else (
        np.zeros_like(differences)
    )  # fmt: skip


def _share_differences(target: list[Array], golden: list[Array], divisions: Array) -> Array:
    """The total variation between the shares of classes of both batches, for each division."""
    counts = class_counts(target, golden)
    first = (divisions > 0).astype(np.float32)
    own, all_counts = first @ counts, counts.sum(axis=0)
    other = all_counts - own
    shares = own / own.sum(axis=1, keepdims=True) - other / other.sum(axis=1, keepdims=True)
    return np.asarray(np.abs(shares).sum(axis=1), np.float64) / 2


def class_counts(target: list[Array], golden: list[Array]) -> Array:
    """Samples × classes: how often each class occurs; classes beyond the most frequent ones are one."""
    rows = [*target, *golden]
    names, place, counts = np.unique(np.concatenate(rows), return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    column = np.empty(len(names), np.int64)
    column[order] = np.minimum(np.arange(len(names)), MOST_CLASSES - 1)
    width = int(column.max()) + 1
    lengths = np.array([len(row) for row in rows])
    sample = np.repeat(np.arange(len(rows)), lengths)
    found = np.bincount(sample * width + column[place.ravel()], minlength=len(rows) * width)
    return found.reshape(len(rows), width).astype(np.float32)


def _medians(name: str, target: Batch, golden: Batch) -> tuple[str, float, float]:
    """The median of a figure in both batches; the total variation and 0 for the shares of classes."""
    if name == SHARES and target.values is not None and golden.values is not None:
        counts = class_counts(target.values, golden.values)
        own, other = (part.sum(axis=0) / part.sum() for part in np.split(counts, [len(target.values)]))
        return name, float(np.abs(own - other).sum() / 2), 0.0
    if name in VARIATION:
        column = VARIATION.index(name)
        parts = [one.figures[:, column] for one in (target, golden)]
        own, other = (float(part.std()) if (part := values[~np.isnan(values)]).size else math.nan for values in parts)
        return name, own, other
    column = FIGURES.index(name)
    return name, _median(target.figures[:, column]), _median(golden.figures[:, column])


def _median(column: Array) -> float:
    known = column[~np.isnan(column)]
    return float(np.median(known)) if known.size else math.nan
