"""The order of axes in which two tensors are compared if a device layout leaves it open.

A stored [2, 1, 16, 16, 16] in NC1HWC0 can be [2, 16, 16, 16] in NCHW or in NHWC. If the graph does not specify the
order, the other tensors of the same kind decide: those whose shapes fit in only one order. The compared tensors keep
one shape, that of the side in plain order.

Statistics of a stored tensor are converted to the shape of its partner. The order of axes does not matter. Padding is
zeros, which change neither sum nor L2 norm.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple, Optional, Sequence

from npucmp.dump.layouts import DEVICE_LAYOUTS, LAYOUTS, fits, origins
from npucmp.model import Device, Pair, Statistics, TensorRef

FAVOURED = ("NCHW", "HWCN", "NCDHW", "DHWCN")  # preferred among equally good orders, as MindSpore assumes


class AxesGuess(NamedTuple):
    """One tensor with a layout: its wanted shape and the orders of axes that produce it."""

    layout: str
    shape: tuple[int, ...]
    orders: tuple[str, ...]


def settle_axes(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs with every tensor in the logical shape of its partner, if its layout can hold that shape."""
    shaped = [_with_logical_statistics(pair) for pair in pairs]
    if all(one is None or one.payload is None for pair in shaped for one in (pair.target, pair.golden)):
        return shaped  # no values whose layout must be undone
    votes: dict[str, Counter[str]] = {}
    for pair in shaped:
        for choice in _choices(pair):
            if choice and len(choice.orders) == 1:
                votes.setdefault(_family(choice.layout), Counter())[choice.orders[0]] += 1
    return [_known_order(pair, votes) for pair in shaped]


def _known_order(pair: Pair, votes: dict[str, Counter[str]]) -> Pair:
    of_target, of_golden = _choices(pair)
    target = _in_order(pair.target, of_target, votes)
    golden = _in_order(pair.golden, of_golden, votes)
    target, golden = _as_stored(target, golden), _as_stored(golden, target)
    if target is pair.target and golden is pair.golden:
        return pair
    return pair._replace(target=target, golden=golden)


def _choices(pair: Pair) -> tuple[Optional[AxesGuess], Optional[AxesGuess]]:
    """The open choices of target and golden. The target adopts the golden's shape first; if both changed, they would
    swap."""
    target, golden = pair.target, pair.golden
    of_target = _choice(target, golden)
    if target is None or of_target is None:
        return of_target, _choice(golden, target)
    if golden is not None and golden.payload is not None and golden.payload.device is None:
        return of_target, None
    return of_target, _choice(golden, target._replace(shape=of_target.shape))


def _choice(one: Optional[TensorRef], other: Optional[TensorRef]) -> Optional[AxesGuess]:
    """The open choice of a tensor; None if nothing is open or nothing can be done."""
    if one is None or one.payload is None or one.layout not in LAYOUTS or one.payload.strides:
        return None
    device = one.payload.device
    there = other.device if other is not None else None
    if device is None and (other is None or there or other.layout == one.layout or len(one.shape) != len(one.layout)):
        return None
    stored = device or Device(one.layout, one.shape)
    is_logical = other is not None and (other.device is None or other.device.shape != other.shape)
    wanted = other.shape if other is not None and is_logical else one.shape
    for shape in dict.fromkeys((wanted, one.shape)):
        orders = tuple(
            order for order in origins(stored.layout) if fits(stored.shape, stored.layout, order, shape, stored.groups)
        )
        layout = stored.origin or (there.origin if there else other.layout if other is not None else "")
        if layout in orders:
            orders = (layout,)
        if orders:
            return AxesGuess(stored.layout, shape, orders)
    return None


def _in_order(
    tensor: Optional[TensorRef], choice: Optional[AxesGuess], votes: dict[str, Counter[str]]
) -> Optional[TensorRef]:
    if tensor is None or tensor.payload is None or choice is None:
        return tensor
    ballot = votes.get(_family(choice.layout), Counter())
    device = tensor.payload.device or Device(tensor.layout, tensor.shape)
    order = max(choice.orders, key=lambda order: (ballot[order], order == device.layout, order in FAVOURED))
    if order == device.layout:
        return tensor
    payload = tensor.payload._replace(shape=choice.shape, device=device._replace(origin=order))
    return tensor._replace(shape=choice.shape, payload=payload)


def _as_stored(one: Optional[TensorRef], other: Optional[TensorRef]) -> Optional[TensorRef]:
    """Return a tensor of unknown logical shape with its stored shape. If its partner has another shape, set a
    problem."""
    device = one.device if one is not None else None
    if one is None or one.payload is None or device is None or device.shape != one.shape or one.problem:
        return one
    if fits(device.shape, device.layout, device.origin, one.shape, device.groups):
        return one
    if other is None or (other.layout == one.layout and other.stored_shape == device.shape):
        return one._replace(payload=one.payload._replace(device=None))
    words = f"layout {device.layout} of stored shape {list(device.shape)} cannot hold shape {list(other.shape)}"
    return one._replace(problem=f"{words}, and no record gives its own shape")


def _with_logical_statistics(pair: Pair) -> Pair:
    """If the shapes of a pair differ, convert the recorded statistics of a stored tensor to the shape of its
    partner."""
    target, golden = pair.target, pair.golden
    if target is None or golden is None or target.shape == golden.shape:
        return pair
    found = _statistics_as(target, golden), _statistics_as(golden, target)
    if found[0] is not target:
        return pair._replace(target=found[0])
    return pair if found[1] is golden else pair._replace(golden=found[1])


def _statistics_as(one: TensorRef, other: TensorRef) -> TensorRef:
    """Convert a tensor without values to the shape of another one, if its layout holds that shape."""
    if one.payload is not None or one.file or one.problem or one.layout not in LAYOUTS or _is_stored(other):
        return one
    orders = origins(one.layout)
    known_orders = (other.layout,) if other.layout in orders else orders
    if not any(fits(one.shape, one.layout, order, other.shape) for order in known_orders):
        return one
    stored, logical = math.prod(one.shape), math.prod(other.shape)
    ratio = stored / logical if logical else 1.0
    recorded = one.statistics and _without_padding(one.statistics, ratio)
    return one._replace(shape=other.shape, statistics=recorded, rounding=one.rounding * ratio, checksum="")


def _is_stored(tensor: TensorRef) -> bool:
    """Return whether the logical shape of a tensor is unknown."""
    device = tensor.device
    return device.shape == tensor.shape if device is not None else tensor.layout in DEVICE_LAYOUTS


def _without_padding(recorded: Statistics, ratio: float) -> Statistics:
    """Remove the zeros of padding from statistics; `ratio` is stored / logical elements. An extreme of 0 may be
    padding."""
    if ratio == 1.0:
        return recorded
    high, low, mean, norm = recorded
    return Statistics(
        None if high is not None and high == 0 else high,
        None if low is not None and low == 0 else low,
        None if mean is None else mean * ratio,
        norm,
    )


def _family(layout: str) -> str:
    """The kind of a layout. Activations and weights of a network each have one order of axes."""
    kind = "weights" if layout.startswith(("FRACTAL_Z", "C1HWN", "HWC", "CHWN", "DHW")) else "activations"
    return f"{kind} {'3-D' if 'D' in layout.replace('FRACTAL', '') else '2-D'}"
