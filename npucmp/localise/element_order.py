"""Evidence that a tensor holds the right numbers in another order: its axes or the slices of one axis are permuted, its
elements are those of the golden in any order, or it is another tensor of the golden that differs too.

The error in that order must be within the limit of the tensor, or all elements must be equal. A tensor of few
distinct values has no order.
"""

from __future__ import annotations

import math
from itertools import permutations
from typing import Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array, distinct
from npucmp.localise.evidence import reason
from npucmp.localise.value_reader import ValueReader
from npucmp.model import DIFFERS, Evidence, Finding
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
                own = turned.shape
                return words if shape == own else f"as {[*shape]}, {words}"
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
