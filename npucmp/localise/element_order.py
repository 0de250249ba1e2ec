"""Evidence that a tensor holds the right numbers in another order: its axes or the slices of one axis are permuted, its
elements are those of the golden in any order, or it is another tensor of the golden that differs too.

The error in that order must be within the limit of the tensor, or all elements must be equal. A tensor of few
distinct values has no order.

Indices, ids and counts that differ: how many and the first, and for indices that an operator chose, whether the
choice is one among equal values, the same ids in another order, or another choice.

An index is a choice if the golden's indices point to the largest or smallest values of an input along an axis, as those
of top-k, argmax and sort do. It is a tie if the values to which the two sides point are equal, row by row.
"""

from __future__ import annotations

import math
from itertools import permutations
from typing import Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array, distinct
from npucmp.localise.evidence import reason
from npucmp.localise.value_reader import ValueReader
from npucmp.model import DIFFERS, Evidence, Finding, position
from npucmp.model.roles import is_output

ROUNDING = 2.0**-20  # rel_l2: chosen: the limit of a tensor without one of its own, not measured
FEWEST = 6  # elements: chosen: fewer are in some order by chance, not measured
DISTINCT = 16  # values: chosen: with fewer ones an order is hardly the only one, not measured
SLICES = 1 << 13  # of one axis: work
SHOWN = 16  # slices of an axis in a sentence: work: readers need no more
OTHERS = 32  # tensors that are compared with one: work
MOST_AXES = 5  # axes: work: 6 have 720 orders


def order_reasons(
    findings: Sequence[Finding], node: Sequence[Finding], own: Finding, reader: ValueReader
) -> list[Evidence]:
    """Return the evidence of the order of a tensor's elements; `node` has the tensors of its operator."""
    golden, target = own.pair.golden, own.pair.target
    x, y = reader.of(target), reader.of(golden)
    if x is None or y is None or not _is_telling(y):
        return []
    if x.size == y.size and (words := _own_order(node, x, y, _limit(own))):
        words = f"{{slot}} holds the golden's values in another order: {words}"
        return [reason("order of elements", words, slot=own.pair.slot)]
    if x.shape == y.shape:
        other = _other_tensor(findings, own, x, reader)
        if other is not None:
            back = reader.of(other.pair.target)
            is_mutual = back is not None and back.shape == y.shape and _is_near(back, y, _limit(own))
            words = "{slot} holds the values of {name} {other} of the golden"
            if is_mutual:
                words = "{slot} and {name} {other} are exchanged: each holds the golden's values of the other"
            return [reason("order of elements", words, slot=own.pair.slot, name=other.pair.operator.name,
                           other=other.pair.slot)]  # fmt: skip
    return []


def _is_telling(values: Array) -> bool:
    """Whether a tensor has finite elements that distinguish its orders."""

    is_finite = values.dtype.kind == "f" and values.size >= FEWEST and bool(np.isfinite(values).all())
    return is_finite and len(distinct(values)) >= min(DISTINCT, values.size)


def _limit(finding: Finding) -> float:
    limit = finding.limit
    return limit if finding.metric == "rel_l2" and math.isfinite(limit) and limit else ROUNDING


def _own_order(node: Sequence[Finding], x: Array, y: Array, limit: float) -> str:
    """The order in words; "" without one."""

    if x.shape == y.shape and _is_near(x, y, limit):
        return ""
    if words := _axes_order(node, x, y, limit):
        return words
    if x.shape == y.shape:
        for axis in range(x.ndim):
            if 1 < x.shape[axis] <= SLICES and x.size > x.shape[axis]:
                slices = _slice_order(np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0), limit)
                if slices is not None:
                    return _slice_words(axis, slices)
    return "all elements are equal after sorting" if np.array_equal(np.sort(x, None), np.sort(y, None)) else ""


def _axes_order(node: Sequence[Finding], x: Array, y: Array, limit: float) -> str:
    """The permutation of axes, of the tensor or of an input of its operator that it flattens, in words."""
    shapes = {x.shape: ""}
    for finding in node:
        for tensor, side in ((finding.pair.target, ""), (finding.pair.golden, " of the golden")):
            if tensor is not None and not tensor.is_output and math.prod(tensor.shape) == x.size:
                shapes.setdefault(tensor.shape, side)
    shapes.setdefault(y.shape, " of the golden")
    for shape, side in shapes.items():
        bare = [axis for axis, size in enumerate(shape) if size != 1]
        if not 1 < len(bare) <= MOST_AXES:
            continue
        turned, other = (y, x) if side else (x, y)
        for order in permutations(bare):
            if order == tuple(bare):
                continue
            full, rest = [*range(len(shape))], iter(order)
            full = [axis if shape[axis] == 1 else next(rest) for axis in full]
            if _is_near(turned.reshape(shape).transpose(full).reshape(-1), other.reshape(-1), limit):
                if not side and other.ndim == len(shape):  # axes of length one where the golden has them
                    full = _with_units(shape, other.shape, order)
                words = f"permute({', '.join(map(str, full))}){side}"
                return words if shape == turned.shape else f"as {[*shape]}, {words}"
    return ""


def _with_units(shape: tuple[int, ...], wanted: tuple[int, ...], order: Sequence[int]) -> list[int]:
    """The order of all axes, with those of length one where the other shape has them."""
    units = [axis for axis, size in enumerate(shape) if size == 1]
    rest = [*order]
    return [units.pop(0) if (size == 1 and units) or not rest else rest.pop(0) for size in wanted]


def _slice_order(x: Array, y: Array, limit: float) -> Optional[Array]:
    """For each slice along the first axis of the golden the number of the target's that is equal; None unless each is
    found, and only one."""

    a, b = x.reshape(len(x), -1), y.reshape(len(y), -1)
    turn = np.random.RandomState(0).standard_normal(a.shape[1])
    keys = a @ turn, b @ turn
    orders = np.argsort(keys[0], kind="stable"), np.argsort(keys[1], kind="stable")
    found = np.empty(len(x), int)
    found[orders[1]] = orders[0]
    if (found == np.arange(len(found))).all() or len(distinct(keys[1])) < len(found):
        return None
    return found if _is_near(a[found], b, limit) else None


def _slice_words(axis: int, order: Array) -> str:
    moved = [at for at, other in enumerate(order) if at != other]
    if len(moved) == 2:
        return f"{moved[0]} and {moved[1]} along axis {axis} are exchanged"
    names = ", ".join(map(str, order[:SHOWN])) + (" …" if len(order) > SHOWN else "")
    if (order == range(len(order))[::-1]).all():
        return f"axis {axis} is reversed"
    return f"along axis {axis}, the golden's are the target's {names}"


def _other_tensor(findings: Sequence[Finding], own: Finding, x: Array, reader: ValueReader) -> Optional[Finding]:
    """The output of the golden that a tensor is, among those that differ."""
    golden = own.pair.golden
    others = (
        finding
        for finding in findings
        if finding.verdict in DIFFERS and is_output(finding.pair) and finding.pair.golden is not None
        and finding.pair.golden is not golden and golden is not None and finding.pair.golden.shape == golden.shape
    )  # fmt: skip
    limit = _limit(own)
    for _, finding in zip(range(OTHERS), others):
        y = reader.of(finding.pair.golden)
        if y is not None and _is_telling(y) and _is_near(x, y, limit):
            return finding
    return None


def _is_near(x: Array, y: Array, limit: float) -> bool:
    """Whether two arrays agree within a limit of rel_l2."""

    with np.errstate(all="ignore"):
        error = float(np.square(x - y).sum())
        return error <= limit**2 * float(np.square(y).sum())


SHOWN_IDS = 4  # ids of a row in a sentence: work: readers need no more


def choice_reasons(
    node: Sequence[Finding], own: Finding, x: Array, y: Array, reader: ValueReader
) -> Iterator[Evidence]:
    """Yield the evidence of a tensor of whole numbers or booleans that differs; `node` has the tensors of its
    operator."""

    differing = np.flatnonzero(x != y)
    if not len(differing):
        return
    first = int(differing[0])
    words = "the first differing element is {place}: target {target}, golden {golden}"
    elements = reason("elements", words, place=position(first, y.shape), target=str(x.flat[first]),
                      golden=str(y.flat[first]))  # fmt: skip
    if y.dtype.kind == "b" or x.dtype.kind == "b":
        yield elements
        return
    chosen = _chosen(node, x, y, reader) if is_output(own.pair) else None
    if chosen is not None:
        yield from _choice(chosen)
    elif (rows := _id_rows(x, y)) is not None:
        yield from _sets(*rows, y.shape)
    else:
        yield elements


class _Chosen(NamedTuple):
    """Indices along the last axis of both sides, one row for each choice, the values to which they point, and the slot
    of the input that has the values."""

    x: Array
    y: Array
    target: Array
    golden: Array
    slot: str


def _chosen(node: Sequence[Finding], x: Array, y: Array, reader: ValueReader) -> Optional[_Chosen]:
    """Return the choice that the indices are, None if they are none."""

    for finding in node:
        if is_output(finding.pair):
            continue
        both = reader.pair(finding)
        if both is None or both[1].dtype.kind == "b" or not both[1].ndim:
            continue
        for axis in reversed(range(both[1].ndim)):
            moved = [np.moveaxis(values, axis, -1) for values in both]
            along = [_along(ids, axis, moved[1].shape) for ids in (x, y)]
            indices = [ids for ids in along if ids is not None]
            if len(indices) < len(along):
                continue
            length = moved[1].shape[-1]
            if min(indices[1].min(), indices[0].min()) < 0 or max(indices[1].max(), indices[0].max()) >= length:
                continue
            if _is_extreme(moved[1], indices[1]):
                picked = [np.take_along_axis(moved[0], ids, -1) for ids in indices]
                rows = [part.reshape(-1, indices[1].shape[-1]) for part in (*indices, *picked)]
                return _Chosen(rows[0], rows[1], rows[2], rows[3], finding.pair.slot)
    return None


def _along(ids: Array, axis: int, shape: tuple[int, ...]) -> Optional[Array]:
    """Return indices with the axis along which they choose at the end; None if they do not fit values of a shape."""

    lead = shape[:-1]
    if ids.ndim == len(lead) and ids.shape == lead:  # argmax drops the axis
        return ids[..., None]
    if ids.ndim != len(shape):
        return None
    moved = np.moveaxis(ids, axis, -1)
    return moved if moved.shape[:-1] == lead and moved.shape[-1] <= shape[-1] else None


def _is_extreme(values: Array, ids: Array) -> bool:
    """Whether indices point to the largest or the smallest values of each row, each index once."""

    count = ids.shape[-1]
    ordered = np.sort(ids, -1)
    if values.shape[-1] < 2 or (ordered[..., 1:] == ordered[..., :-1]).any() or np.isnan(values).any():
        return False
    picked, ranked = np.take_along_axis(values, ids, -1), np.sort(values, -1)
    if count == values.shape[-1]:  # a sort: only its order shows that it chose
        return any(np.array_equal(picked, wanted) for wanted in (ranked, ranked[..., ::-1]))
    picked = np.sort(picked, -1)
    return any(np.array_equal(picked, wanted) for wanted in (ranked[..., :count], ranked[..., -count:]))


def _choice(chosen: _Chosen) -> Iterator[Evidence]:
    x, y, target, golden, slot = chosen
    changed = (x != y).any(-1)
    same = (np.sort(x, -1) == np.sort(y, -1)).all(-1)
    alike = (np.sort(target, -1) == np.sort(golden, -1)).all(-1)
    tied = changed & alike & ((target == golden).all(-1) | ~same)
    rows = f"{int(changed.sum()):,} of {len(y):,} rows differ" if len(y) > 1 else "the chosen indices differ"
    if tied.sum() == changed.sum():
        words = "{rows}, all among equal values of {slot}: ties, which an operator may break either way"
        yield reason("ties", words, rows=rows, slot=slot)
        return
    if (changed & same & ~tied).sum() == changed.sum():
        yield reason("ids", "{rows}, all by the order of the same ids", rows=rows)
        return
    missed = changed & ~tied & ~same
    at = int((missed if missed.any() else changed & ~tied).argmax())
    words = (
        "{rows}, {missed} of them by a choice of other values; the first is row {row}: target {target}, golden {golden}"
    )
    if moved := int((changed & same & ~tied).sum()):
        words = (
            "{rows}, {moved} of them by the order of the same ids, {missed} by a choice of other values; the first is "
            "row {row}: target {target}, golden {golden}"
        )
    yield reason("choice", words, rows=rows, moved=f"{moved:,}", missed=f"{int(missed.sum()):,}", row=at,
                 target=_ids(x[at], y[at]), golden=_ids(y[at], x[at]))  # fmt: skip


def _ids(own: Array, other: Array) -> str:
    """Return the ids that the other row lacks, or the first ids of the row if it lacks none."""

    alone = own[~np.isin(own, other)]
    shown = (alone if len(alone) else own).tolist()
    return ", ".join(map(str, shown[:SHOWN_IDS])) + (" …" if len(shown) > SHOWN_IDS else "")


def _id_rows(x: Array, y: Array) -> Optional[tuple[Array, Array]]:
    """Return the rows of the last axis if they are sets of ids, of which a row has the same set in another order."""

    if not y.ndim or y.shape[-1] < 2 or min(x.min(), y.min()) < 0:
        return None
    rows = [values.reshape(-1, y.shape[-1]) for values in (x, y)]
    ordered = [np.sort(values, -1) for values in rows]
    if any((values[:, 1:] == values[:, :-1]).any() for values in ordered):
        return None
    same = (ordered[0] == ordered[1]).all(-1)
    return (rows[0], rows[1]) if (same & (rows[0] != rows[1]).any(-1)).any() else None


def _sets(x: Array, y: Array, shape: tuple[int, ...]) -> Iterator[Evidence]:
    """The evidence of rows of ids, of which some have the same ids in another order."""

    changed = (x != y).any(-1)
    other = (np.sort(x, -1) != np.sort(y, -1)).any(-1)
    words = "{count} of {rows} rows have the same ids in another order"
    yield reason("ids", words, count=f"{int((changed & ~other).sum()):,}", rows=f"{len(y):,}")
    if other.any():
        at = int(other.argmax())
        words = "{count} of {rows} rows have other ids, the first is {place}: target {target}, golden {golden}"
        yield reason("choice", words, count=f"{int(other.sum()):,}", rows=f"{len(y):,}",
                     place=position(at, shape[:-1] or (1,)), target=_ids(x[at], y[at]),
                     golden=_ids(y[at], x[at]))  # fmt: skip
