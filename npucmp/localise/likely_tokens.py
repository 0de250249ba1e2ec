"""Where the most likely token of logits is another: the first position beyond the noise of the logits, with its margin.

The noise of a logit is the error of the median position, or what the limit allows if that is more. At a position whose
most likely token is another, the difference of the two logits has changed by the sum of both gaps. If it has changed by
less than the noise of such a difference, the tokens were as good as equally likely.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Iterator, NamedTuple, Optional

import numpy as np

from npucmp.localise.evidence import reason
from npucmp.model import Evidence, Finding, position
from npucmp.model.roles import is_logits

if TYPE_CHECKING:
    from npucmp.localise.value_reader import ValueReader


LEAST_TOKENS = 8  # elements: chosen: a shorter last axis is no vocabulary
BEYOND = 4.0  # times the noise of a difference of logits: chosen: normal errors of 10,000 positions reach 3.9
SHOWN = 4  # positions in a sentence: work: readers need no more
READ = 1 << 20  # elements read at once: work


class _Changed(NamedTuple):
    """A position whose most likely token is another: both tokens, the rank of the golden's in the target, the change of
    the difference of their logits."""

    place: int
    target: int
    golden: int
    rank: int
    change: float


def likely_token_reasons(own: Finding, reader: ValueReader) -> Iterator[Evidence]:
    """Yield the evidence of logits, of which each position has a row along the last axis; none for other tensors."""
    pair = own.pair
    shape = pair.golden_shape
    if not is_logits(pair) or len(shape) < 2 or shape[-1] < LEAST_TOKENS:
        return
    found = _changed(own, reader, shape[-1])
    if found is None or not found[0]:
        return
    changed, noise = found
    of_difference = math.sqrt(2.0) * noise
    beyond = [one for one in changed if one.change > BEYOND * of_difference]
    positions = math.prod(shape[:-1])
    if not beyond:
        words = (
            "the most likely token of {count} of {positions} positions is another; all of them were near ties: "
            "their logits change by {change} at most, noise of a logit {noise}"
        )
        largest = max(one.change for one in changed)
        yield reason("likely_token", words, count=len(changed), positions=f"{positions:,}", change=f"{largest:.2g}",
                     noise=f"{noise:.2g}")  # fmt: skip
        return
    first = beyond[0]
    words = (
        "the most likely token is another beyond the noise at {count} of {positions} positions, first at {place}: "
        "token {target} in the target, {golden} in the golden (number {rank} in the target); the difference of "
        "their logits changes by {change}, {times} times its noise"
    )
    yield reason(
        "likely_token",
        words,
        count=len(beyond),
        positions=f"{positions:,}",
        place=position(first.place, shape[:-1]),
        target=first.target,
        golden=first.golden,
        rank=first.rank,
        change=f"{first.change:.2g}",
        times=f"{first.change / of_difference:.3g}" if noise else "inf",
    )
    if len(beyond) > 1:
        shown = [f"{position(one.place, shape[:-1])} ({one.target} for {one.golden})" for one in beyond[1 : SHOWN + 1]]
        more = f" and {len(beyond) - SHOWN - 1} more" if len(beyond) > SHOWN + 1 else ""
        yield reason("likely_token", "other such positions: {places}", places=", ".join(shown) + more)


def _changed(own: Finding, reader: ValueReader, tokens: int) -> Optional[tuple[list[_Changed], float]]:
    """Return the positions whose most likely token is another, and the noise of a logit; None if values are missing."""

    changed: list[_Changed] = []
    errors, sizes, start = [], [], 0
    for x, y in reader.blocks(own, max(1, READ // tokens) * tokens):
        x, y = x.reshape(-1, tokens), y.reshape(-1, tokens)
        a, b = x.argmax(axis=1), y.argmax(axis=1)
        rows = np.arange(len(x))
        with np.errstate(all="ignore"):  # a vocabulary is padded with -inf
            finite = np.isfinite(x) & np.isfinite(y)
            count = np.maximum(finite.sum(axis=1), 1)
            errors.append(np.sqrt(np.where(finite, np.square(x - y), 0.0).sum(axis=1) / count))
            sizes.append(np.sqrt(np.where(finite, np.square(y), 0.0).sum(axis=1) / count))
        known = np.isfinite(x[rows, a]) & np.isfinite(y[rows, b])
        for row in np.flatnonzero(known & (a != b)).tolist():
            left, right = x[row], y[row]
            gaps = float(left[a[row]] - left[b[row]]), float(right[b[row]] - right[a[row]])
            rank = 1 + int((left > left[b[row]]).sum())
            changed.append(_Changed(start + row, int(a[row]), int(b[row]), rank, sum(gaps)))
        start += len(x)
    if not errors:
        return None
    error, size = (float(np.median(np.concatenate(values))) for values in (errors, sizes))
    return changed, max(error, own.limit * size)
