"""Evidence of the values of a root's tensor, read once more: a rounding, a region, the negation of a mask, a constant
that is added to ids, a choice among equal values, another most likely token, ids or elements in another order, and
memory that was overwritten before it was read.

The first roots of a step and rank are examined, with tensors that value_reader.py reads. Nothing here changes a cause.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Iterator, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import distinct
from npucmp.localise.element_order import order_reasons
from npucmp.localise.evidence import reason
from npucmp.localise.rounded_tensors import with_rounding
from npucmp.localise.value_reader import ValueReader
from npucmp.measure.pairs import holds_other_ids
from npucmp.model import Cause, Evidence, Finding, Root
from npucmp.model.roles import is_logits, is_output

if TYPE_CHECKING:
    from npucmp.dump.readers.values import Array
    from npucmp.measure.region import Region


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
    if own.pair.target.relation is not None:
        from npucmp.model.relation import BlockRelation

        if not isinstance(own.pair.target.relation, BlockRelation):
            return root
    if own.measurement.moments and is_logits(own.pair):
        from npucmp.localise.likely_tokens import likely_token_reasons

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
        from npucmp.localise.choice_evidence import choice_reasons

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
    from npucmp.measure.region import region_of

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
