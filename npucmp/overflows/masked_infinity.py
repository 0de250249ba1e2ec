"""Infinities that a choice discards: they are reported without an alarm.

A network may compute the logarithm of all its positions, 0 among them, and choose another value where the result is
infinite. If no other operator reads the infinity, it has no effect. If an operator computes with it first, bounds it to
a number, or has a disturbed gradient, it is an alarm again.

Integers have no gradient. An infinity that is scaled, becomes the lowest integer of a type, and is discarded or bounded
there, as the logarithms of T5's position buckets are, is not an alarm either. If the integers become floats again, or
select rows, it is an alarm.

All consumers of such an Inf must be operators that fill or select, after which it is gone.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Mapping, Sequence

from npucmp.measure.range_scan import ScanResult
from npucmp.model import Event, Evidence
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import op_type_of

DISCARDED = Evidence("thrown away", "no alarm: a choice discards it, and no other operator reads it")
AS_INTEGER = Evidence("thrown away", "no alarm: it becomes a whole number, which a choice or bound discards")
LOWEST_SHARE = 1 - 2.0**-20  # of the lowest number of a type, to which a small number was added

Family = Mapping[int, Sequence[Event]]  # by operator


def without_discarded(events: Sequence[Event], scanned: Sequence[ScanResult] = ()) -> list[Event]:
    """Return the events with the alarm of such infinities removed. `scanned` are all tensors of the run, in order."""
    heirs: dict[int, list[Event]] = {}
    own: dict[int, list[Event]] = {}
    for event in events:
        own.setdefault(event.order, []).append(event)
        for parent in event.parents:
            heirs.setdefault(parent, []).append(event)
    gone: dict[int, Evidence] = {}
    for order, events_of in own.items():
        if not all(event.origin == "born" and event.kind == "inf" for event in events_of):
            continue
        after = heirs.get(order, ())
        if after and all(map(_is_choice, after)):
            gone.update((id(event), DISCARDED) for event in events_of)
        elif (spread := _spread(order, own, heirs)) and _end_as_integers(spread, scanned):
            gone.update((id(event), AS_INTEGER) for event in spread)
    born = {event.order for event in events if id(event) in gone}
    gone.update((id(one), DISCARDED) for one in events
                if id(one) not in gone and one.parents and born.issuperset(one.parents))  # fmt: skip
    return [
        replace(event, alarm=False, evidence=(*event.evidence, gone[id(event)])) if id(event) in gone else event
        for event in events
    ]


def _is_choice(event: Event) -> bool:
    """Return whether an event ends at an operator that selects one value or another unchanged."""
    return event.origin == "killed" and event.operator is not None and op_type_of(event.operator).has("masks")


def _spread(order: int, own: Family, heirs: Family) -> list[Event]:
    """An infinity and the events that pass it on, element by element; empty if it has any other effect."""
    found = list(own[order])
    first, orders = found[0], {order}
    for event in found:  # grows during the loop
        for heir in heirs.get(event.order, ()):
            if heir.order in orders:
                continue
            orders.add(heir.order)
            found += own[heir.order]
    is_scaled = all(event is first or _is_scaled(event, first) for event in found)
    return found if is_scaled and all(orders.issuperset(event.parents) for event in found) else []


def _is_scaled(event: Event, first: Event) -> bool:
    """Return whether an operator passed on all elements of an infinity, and no others."""
    a, b = event.extremes, first.extremes
    if event.kind != "inf" or event.origin != "propagated" or a is None or b is None or event.tensor is None:
        return False
    return first.tensor is not None and event.tensor.shape == first.tensor.shape and a.inf == b.inf


def _end_as_integers(spread: Sequence[Event], scanned: Sequence[ScanResult]) -> bool:
    """Return whether an infinity becomes integers that are discarded before they become anything else."""
    tensor, last = spread[0].tensor, max(event.order for event in spread)
    shape, seen, ended = tensor.shape if tensor is not None else None, False, False
    for order, group in groupby(scanned, key=lambda one: one.operator.order):
        if order <= last:
            continue
        rows = list(group)
        lowest = [one for one in rows if one.tensor.shape == shape and _is_lowest(one)]
        written = [one for one in rows if one.tensor.is_output]
        if all(one in written for one in lowest):
            continue  # it reads none of them
        if not written or not all(map(_is_whole, written)):
            return False
        if all(one.tensor.dtype == "bool" for one in written):
            continue  # a predicate
        seen, ended = True, not any(one in lowest for one in written)
        if ended and not op_type_of(rows[0].operator).has("masks", "bounds"):
            return False
    return seen and ended


def _is_lowest(one: ScanResult) -> bool:
    """Return whether a tensor has the integer value of an infinity."""
    row, x = lookup(one.tensor.dtype), one.extremes
    if row is None or row.kind != "i" or x is None:
        return False
    limit = 2.0 ** (8 * row.itemsize - 1) * LOWEST_SHARE
    return x.minimum <= -limit or x.maximum >= limit


def _is_whole(one: ScanResult) -> bool:
    row = lookup(one.tensor.dtype)
    return row is not None and row.kind in "biu"
