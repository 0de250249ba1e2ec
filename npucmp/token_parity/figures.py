"""Figures over the tokens of a step, and the rows of parity.csv."""

from __future__ import annotations

from typing import Any, Iterator, Optional

import numpy as np

from npucmp.model.parity_result import ParityFigures, ParityFinding, RequestParity, TokenClass, TokenMap
from npucmp.model.token_batch import Bools, Floats, Integers
from npucmp.token_parity.noise import BEYOND, estimate_floor
from npucmp.token_parity.token_pair import Sums, TokenPair

CLAMP = 10.0  # d: literature, estimates of KL in trainers (k3) clamp alike
MOST_POINTS = 400  # points of a curve: work, of a drawing
MOST_CELLS = (64, 160)  # cells of a map, down and across: work, of a drawing
NOT_A_NUMBER = float("nan")


def figures_of(pairs: list[TokenPair]) -> ParityFigures:
    """Return the figures over all finite tokens of some steps."""
    used = [_finite(pair) for pair in pairs]
    target = np.concatenate([pair.target[one] for pair, one in zip(pairs, used)] or [np.empty(0)])
    golden = np.concatenate([pair.golden[one] for pair, one in zip(pairs, used)] or [np.empty(0)])
    far = sum(int(pair.far[one].sum()) for pair, one in zip(pairs, used))
    count = len(target)
    if not count:
        return ParityFigures(0, *[NOT_A_NUMBER] * 8)
    d = target - golden
    k1, k3 = divergence(d)
    p, q = np.exp(np.minimum(target, 0)), np.exp(np.minimum(golden, 0))
    varies = count > 1 and float(p.std()) > 0 and float(q.std()) > 0
    pearson = float(np.corrcoef(p, q)[0, 1]) if varies else NOT_A_NUMBER
    size = np.abs(d)
    floor = estimate_floor(d, np.minimum(target, golden))
    return ParityFigures(
        count, float(size.mean()), float(size.max()), k1, k3, float(np.abs(p - q).mean()), pearson, far / count, floor
    )


def divergence(difference: Floats) -> tuple[float, float]:
    """Return the estimates k1 and k3 of the KL divergence from differences, clamped to ±10; NaN without tokens."""
    if not len(difference):
        return NOT_A_NUMBER, NOT_A_NUMBER
    d = np.clip(difference, -CLAMP, CLAMP)
    return float(d.mean()), float((np.expm1(-d) + d).mean())


def rows_of(pair: TokenPair, finding: ParityFinding) -> Iterator[RequestParity]:
    """Yield the row of the step, then a row for each request, in the order of the rollout."""
    finite = _finite(pair)
    counts = pair.far.sum(axis=1), pair.counted.sum(axis=1)
    yield RequestParity(
        pair.step, None, None, None, None, None, None, None, int(counts[0].sum()), finding.token_class.value,
        int(counts[1].sum()), None, *_sizes(pair.difference[finite]),
    )  # fmt: skip
    for row, request in enumerate(pair.numbers.tolist()):
        at = _token_of(pair, row, finding)
        far, tokens = int(counts[0][row]), int(counts[1][row])
        word = _class_of(finding, request, far)
        token, target, golden, gap, noise, margin = (None,) * 6 if at is None else _cells(pair, row, at)
        d = pair.difference[row][finite[row]]
        yield RequestParity(
            pair.step, request, at, token, target, golden, gap, noise, far, word, tokens, margin, *_sizes(d)
        )
    if pair.sums is not None:
        yield from _rows_of_sums(pair.step, pair.sums, finding)


def _rows_of_sums(step: Optional[int], sums: Sums, finding: ParityFinding) -> Iterator[RequestParity]:
    """Yield the rows of requests with one number; the margin is of the sum."""
    for at, request in enumerate(sums.requests.tolist()):
        gap, noise = float(sums.target[at] - sums.golden[at]), float(sums.noise[at])
        margin = abs(gap) / noise
        word = finding.token_class.value if finding.request == request else ""
        yield RequestParity(
            step, request, None, None, float(sums.target[at]), float(sums.golden[at]), gap, noise,
            int(margin > BEYOND), word, int(sums.tokens[at]), margin, *_sizes(np.array([gap])),
        )  # fmt: skip


def _finite(pair: TokenPair) -> Bools:
    return pair.counted & np.isfinite(pair.target) & np.isfinite(pair.golden)


def _sizes(difference: Floats) -> tuple[float, float, float, float]:
    """Return mean and largest |d|, k1 and k3; NaN without tokens."""
    if not len(difference):
        return (NOT_A_NUMBER,) * 4
    size = np.abs(difference)
    return float(size.mean()), float(size.max()), *divergence(difference)


def _cells(pair: TokenPair, row: int, at: int) -> tuple[Any, ...]:
    """Return token, log-probabilities, difference, noise and margin of a token; None for an id that is not recorded."""
    token = max(int(pair.target_ids[row, at]), int(pair.golden_ids[row, at]))
    values = pair.target, pair.golden, pair.difference, pair.noise, pair.margin
    return (None if token < 0 else token, *(float(one[row, at]) for one in values))


def _class_of(finding: ParityFinding, request: int, far: int) -> str:
    """Return the class of the request with the first bad token, and of requests with tokens beyond noise."""
    if finding.request == request:
        return finding.token_class.value
    silent = finding.token_class in (TokenClass.CLEAN, TokenClass.UNDECIDED)
    return finding.token_class.value if far and not silent else ""


def _token_of(pair: TokenPair, row: int, finding: ParityFinding) -> Optional[int]:
    """Return the token of a row: of the finding, the first beyond noise, else that with the largest margin."""
    if finding.request == pair.numbers[row] and finding.position is not None:
        return finding.position
    counted, far = pair.counted[row], pair.far[row]
    if far.any() or not counted.any():
        return int(np.argmax(far)) if far.any() else None
    margins = np.where(counted & np.isfinite(pair.margin[row]), pair.margin[row], -1.0)
    return int(np.argmax(margins))


def curve_of(pair: TokenPair) -> tuple[Integers, Floats]:
    """Return mean |d| by position, in at most 400 windows of positions."""
    finite = _finite(pair)
    width = finite.shape[1]
    if not finite.any():
        return np.empty(0, np.int64), np.empty(0)
    window = -(-width // MOST_POINTS)
    starts = np.arange(0, width, window)
    sums = np.add.reduceat(np.where(finite, np.abs(np.where(finite, pair.difference, 0.0)), 0.0).sum(axis=0), starts)
    counts = np.add.reduceat(finite.sum(axis=0), starts)
    used = counts > 0
    return starts[used], sums[used] / counts[used]


def map_of(pair: TokenPair) -> Optional[TokenMap]:
    """Return the map of requests and positions; None without tokens."""
    if not pair.counted.any():
        return None
    sides = []
    for values in (pair.counted, pair.far):
        cells = values.astype(np.int64)
        for axis, most in enumerate(MOST_CELLS):
            cells = np.add.reduceat(cells, np.arange(0, cells.shape[axis], -(-cells.shape[axis] // most)), axis=axis)
        sides.append(cells)
    return TokenMap(*pair.counted.shape, *sides)
