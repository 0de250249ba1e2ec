"""Indices, ids and counts that differ: how many and the first, and for indices that an operator chose, whether the
choice is one among equal values, the same ids in another order, or another choice.

An index is a choice if the golden's indices point to the largest or smallest values of an input along an axis, as those
of top-k, argmax and sort do. It is a tie if the values to which the two sides point are equal, row by row.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.localise.evidence import reason
from npucmp.localise.value_reader import ValueReader
from npucmp.model import Evidence, Finding, position
from npucmp.model.roles import is_output

SHOWN = 4  # ids of a row in a sentence: work: readers need no more


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
    chosen = _chosen(node, own, x, y, reader) if is_output(own.pair) else None
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


def _chosen(node: Sequence[Finding], own: Finding, x: Array, y: Array, reader: ValueReader) -> Optional[_Chosen]:
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
    aligned = (target == golden).all(-1)
    tied = changed & alike & (aligned | ~same)
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
    return ", ".join(map(str, shown[:SHOWN])) + (" …" if len(shown) > SHOWN else "")


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
