"""Evidence of the values of a root's tensor, read once more: a rounding, a region, the negation of a mask, a constant
that is added to ids, a choice among equal values, another most likely token, ids or elements in another order, and
memory that was overwritten before it was read.

The first roots of a step and rank are examined, with tensors that value_reader.py reads. Nothing here changes a cause.

Tensors of root causes that are the other run's tensor rounded once to a coarser type, proven element by element.

Positions, tables of sines, masks and buffers are often cast on one side. Rounding the other side to the type must give
the same elements, all of them: a tensor that is near, shifted or cut off is not called rounded. If both sides have one
type and hold a few simple numbers, rounding changes nothing, and the tensors do not differ.

Where the most likely token of logits is another: the first position beyond the noise of the logits, with its margin.

The noise of a logit is the error of the median position, or what the limit allows if that is more. At a position whose
most likely token is another, the difference of the two logits has changed by the sum of both gaps. If it has changed by
less than the noise of such a difference, the tokens were as good as equally likely.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array, distinct
from npucmp.localise.element_order import choice_reasons, order_reasons
from npucmp.localise.evidence import reason
from npucmp.localise.value_reader import ValueReader
from npucmp.measure.pairs import holds_other_ids
from npucmp.measure.region import Region, region_of
from npucmp.model import Cause, Evidence, Finding, Root, position
from npucmp.model.dtypes import numpy_dtype
from npucmp.model.roles import is_logits, is_output

TYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")  # finest first


def with_rounding(root: Root, finding: Finding, x: Array, y: Array) -> Root:
    """Return a root with the evidence that one side of its tensor, whose values are x and y, was rounded."""
    found = rounding_of(finding, x, y)
    if found is None:
        return root
    at = next((at for at, one in enumerate(root.evidence) if one.kind in ("gap", "fed", "tensor")), 0)
    return replace(root, evidence=(*root.evidence[: at + 1], found, *root.evidence[at + 1 :]))


def rounding_of(finding: Finding, x: Array, y: Array) -> Optional[Evidence]:
    """The evidence that one side of a tensor is the other side rounded to a coarser type; None if no rounding makes
    them equal, or if they hold no numbers."""
    target, golden, moments = finding.pair.target, finding.pair.golden, finding.measurement.moments
    if target is None or golden is None or moments is None or not moments.differing:
        return None
    if x.dtype.kind not in "fi" or y.dtype.kind not in "fi":
        return None
    own = {target.dtype, golden.dtype}
    for name in TYPES:
        words = (
            (
                x,
                y,
                "{slot} is the golden's rounded to {dtype}: after this rounding all {count:,} elements are equal, "
                "before it {changed:,} differ",
            ),
            (
                y,
                x,
                "the golden's {slot} is the target's rounded to {dtype}: after this rounding all {count:,} elements "
                "are equal, before it {changed:,} differ",
            ),
        )
        for coarse, fine, sentence in words:
            if is_rounded(coarse, fine, name) and (name in own or shows_type(coarse, fine)):
                facts = {"count": moments.elements, "changed": moments.differing}
                return reason("rounded", sentence, slot=finding.pair.slot, dtype=name, **facts)
    return None


def shows_type(coarse: Array, fine: Array) -> bool:
    """Whether an element that rounding changed is a finite number other than 0. Zeros and infinities are no numbers of
    one type: every type whose range ends before makes them."""

    values = coarse.astype(np.float64)
    return bool(((values != fine.astype(np.float64)) & np.isfinite(values) & (values != 0.0)).any())


def is_rounded(coarse: Array, fine: Array, name: str) -> bool:
    """Whether each element of `coarse` is that of `fine` rounded to the nearest number of a type; NaN equals NaN."""

    with np.errstate(all="ignore"):
        rounded: Any = fine.astype(np.float32).astype(numpy_dtype(name))
        return bool(np.array_equal(rounded.astype(np.float64), coarse.astype(np.float64), equal_nan=True))


LEAST_TOKENS = 8  # elements: chosen: a shorter last axis is no vocabulary
BEYOND_NOISE = 4.0  # times the noise of a difference of logits: chosen: normal errors of 10,000 positions reach 3.9
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
    beyond = [one for one in changed if one.change > BEYOND_NOISE * of_difference]
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


MOST = 8  # roots of a step and rank: work
# limits: chosen: an element that is off by less, in rms of the tensor, may be one that rounding makes, not measured
BEYOND = 4.0
CLEAR = 16.0  # times: chosen: errors of a clear region exceed those of the rest by as much, not measured
MOSTLY = 0.9  # share: chosen: positions of several requests begin anew in places, not measured
FEWEST = 4  # elements: chosen: fewer may be exchanged or lie in one region by chance, not measured


def with_values(
    findings: Sequence[Finding], roots: Sequence[tuple[int, Root]], context: ReadContext, ordered: bool
) -> list[tuple[int, Root]]:
    """Return the roots with the evidence of their values. `ordered`: the dumps record the order of execution."""
    reader, left = ValueReader(context), MOST
    rows = _rows_of(findings, [root for _, root in roots if root.cause is not Cause.PROPAGATED][:MOST])
    found = []
    for clock, root in roots:
        if root.cause is not Cause.PROPAGATED and left:
            left -= 1
            root = _with_values(findings, rows.get(root.pair.order, ()), root, reader, ordered)
        found.append((clock, root))
    return found


def _rows_of(findings: Sequence[Finding], roots: Sequence[Root]) -> dict[int, list[Finding]]:
    """Return the findings of the operators of roots, by their order."""
    rows: dict[int, list[Finding]] = {root.pair.order: [] for root in roots}
    for finding in findings if rows else ():
        if finding.pair.order in rows:
            rows[finding.pair.order].append(finding)
    return rows


def _with_values(
    findings: Sequence[Finding], node: Sequence[Finding], root: Root, reader: ValueReader, ordered: bool
) -> Root:
    own = next((finding for finding in node if finding.pair.slot == root.slot), None)
    if own is None or own.pair.target is None:
        return root
    if own.pair.target.relation is not None and not own.pair.target.relation.is_read_again:
        return root
    if own.measurement.moments and is_logits(own.pair):
        root = replace(root, evidence=(*root.evidence, *likely_token_reasons(own, reader)))
    if order := order_reasons(findings, node, own, reader):
        return replace(root, evidence=(*root.evidence, *order))
    if not own.measurement.moments:
        return root
    pair = reader.pair(own)
    if pair is None:
        return root
    if root.cause in (Cause.BORN, Cause.GAP):
        root = with_rounding(root, own, *pair)
    if negation := _negation(*pair):
        return replace(root, evidence=(*root.evidence, negation))
    more: list[Evidence] = []
    if offset := _offset(own, *pair):
        return replace(root, evidence=(*root.evidence, offset))
    chosen = own if pair[1].dtype.kind in "bi" and pair[0].dtype.kind in "bi" else _indices_beside(node, own)
    if chosen is not None and (ids := reader.pair(chosen)) is not None:
        more += choice_reasons(node, chosen, *ids, reader)
    if any(each.kind == "between" and not each.facts for each in root.evidence) and not is_output(own.pair):
        from npucmp.localise.overwritten_memory import memory_reasons

        if memory := memory_reasons(findings, own, reader, ordered):
            kept = (each for each in root.evidence if each.kind != "between")
            return replace(root, evidence=(*kept, *memory, *more))
    return replace(root, evidence=(*root.evidence, *more, *_region(own, *pair)))


def _indices_beside(node: Sequence[Finding], own: Finding) -> Optional[Finding]:
    """The indices that an operator wrote beside the values that it chose, if they differ: those of a top-k."""
    golden = own.pair.golden
    if golden is None or not is_output(own.pair):
        return None
    beside = (finding for finding in node if is_output(finding.pair) and holds_other_ids(finding.measurement))
    return next(
        (finding for finding in beside if finding.pair.golden and finding.pair.golden.shape == golden.shape), None
    )


def _negation(x: Array, y: Array) -> Optional[Evidence]:
    """The evidence of a tensor of two values that are exchanged everywhere: a mask that one side negates."""

    if y.size < FEWEST:
        return None
    golden = distinct(y)
    if y.dtype.kind == "b" and x.dtype.kind == "b":
        is_negated = bool((x != y).all())
    else:
        low, high = golden[0], golden[-1]
        is_negated = len(golden) == 2 and bool((x == np.where(y == low, high, low)).all())
        is_negated = is_negated and (0 in (low, high))  # two numbers other than 0 are no mask
    if not is_negated:
        return None
    if y.dtype.kind == "b" or {*golden.tolist()} == {0, 1}:
        return reason("negation", "the target is the negation of the golden in all {elements} elements",
                      elements=f"{y.size:,}")  # fmt: skip
    words = "the target is the negation of the golden: {low} and {high} are exchanged in all {elements} elements"
    return reason("negation", words, low=f"{golden[0]:g}", high=f"{golden[1]:g}", elements=f"{y.size:,}")


def _offset(own: Finding, x: Array, y: Array) -> Optional[Evidence]:
    """The evidence of whole numbers that differ by one constant in all elements, as ids that are counted from another
    number do."""

    if y.size < FEWEST or "b" in (x.dtype.kind, y.dtype.kind) or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    shift = x.flat[0] - y.flat[0]
    if not shift or (x - y != shift).any() or (y % 1 != 0).any() or len(distinct(y)) < FEWEST:
        return None
    words = "{slot} is the golden's {shift} in all {elements} elements"
    facts = {"slot": own.pair.slot, "shift": f"{'+' if shift > 0 else '-'} {abs(shift):g}", "elements": f"{y.size:,}"}
    if (np.diff(y, axis=-1) == 1).mean() >= MOSTLY:
        words += ": positions are counted from {target}, those of the golden from {golden}"
        facts.update(target=f"{x.min():g}", golden=f"{y.min():g}")
    return reason("offset", words, **facts)


def _region(own: Finding, x: Array, y: Array) -> Iterator[Evidence]:
    """The evidence of wrong elements that fill one region, outside of which the tensor agrees."""
    region = region_of(wrong_elements(own, x, y))
    if region is not None and region.elements >= FEWEST and _is_clear(own, x, y, region):
        words = "{slot} differs in {region} only ({share}); the rest agrees"
        if own.pair.target is not None and own.pair.target.relation is not None:  # of block tables: see _with_values
            words = "by the block tables of both runs, {slot} differs in {region} only ({share}); the rest agrees"
        yield reason("region", words, slot=own.pair.slot, region=str(region), share=region.share())


def _is_clear(own: Finding, x: Array, y: Array, region: Region) -> bool:
    """Whether the errors outside of a region are rounding, and far smaller than those within it."""

    if x.dtype.kind != "f" or y.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        errors = np.where(np.isfinite(x) & np.isfinite(y), np.square(x - y), 0.0)
        size = np.where(np.isfinite(y), np.square(y), 0.0)
    inside = np.zeros(y.shape, bool)
    inside[np.ix_(*region.axes)] = True
    within, outside = errors[inside].mean(), errors[~inside].mean()
    is_rounding = outside <= own.limit**2 * size[~inside].mean()
    return bool(is_rounding and (outside * CLEAR**2 <= within or not np.isfinite(x[inside]).all()))


def wrong_elements(own: Finding, x: Array, y: Array) -> Array:
    """Return where two arrays differ by more than rounding."""

    if x.dtype.kind != "f" or y.dtype.kind != "f":
        wrong: Array = x != y
        return wrong
    with np.errstate(all="ignore"):
        finite = np.isfinite(x) & np.isfinite(y)
        alike = (x == y) | (np.isnan(x) & np.isnan(y))
        rms = math.sqrt(float(np.square(y[finite]).mean())) if finite.any() else 0.0
        near = np.abs(x - y) <= BEYOND * own.limit * np.maximum(np.abs(y), rms)
    wrong = ~alike & ~(finite & near)
    return wrong
