"""Indices that a call may return: a device may select any of several equal values in argmax, topk, sort and similar
calls, so indices are checked by value. The recorded inputs are exact, so the value at an index must equal the value
that float64 selects."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.call_inputs import CallInputs

AFTER_A_NUMBER = ("topk", "kthvalue")  # their dim follows k
LAST = ("topk", "kthvalue", "sort", "argsort", "mode")  # default to the last axis; other calls to all elements
RANKED = ("topk", "sort", "argsort")  # no element is chosen twice
BEFORE = ("cummax", "cummin")  # select among the preceding elements


def free_choice(name: str, inputs: CallInputs, recorded: Array, exact: Array) -> Optional[Array]:
    """Return the expected indices: the recorded indices if they point to the same values as the `exact` indices, else
    the `exact` indices. None if this is undecidable: with NaN, or if results are unsorted."""
    x, axis = _chosen_from(name, inputs)
    unsorted = name == "topk" and not _argument(inputs, 4, "sorted", True)
    is_nan = x is not None and x.dtype.kind == "f" and bool(np.isnan(x).any())
    if x is None or not x.ndim or axis is None or unsorted or is_nan:
        return None
    own = exact if exact.ndim == x.ndim else exact.reshape(-1) if x.ndim == 1 else np.expand_dims(exact, axis)
    indices = recorded.astype(np.int64).reshape(own.shape)
    fits = (indices >= 0) & (indices < x.shape[axis])
    taken, wanted = (np.take_along_axis(x, one, axis) for one in (np.where(fits, indices, own), own))
    right = fits & (taken == wanted)
    if name in BEFORE:
        right &= indices <= np.arange(x.shape[axis]).reshape([-1 if at == axis else 1 for at in range(x.ndim)])
    if name in RANKED:
        once = (np.diff(np.sort(indices, axis), axis=axis) > 0).all(axis, keepdims=True)
        right = np.broadcast_to(right.all(axis, keepdims=True) & once, own.shape)
    return np.where(right, indices, own).reshape(exact.shape)


def _chosen_from(name: str, inputs: CallInputs) -> tuple[Optional[Array], Optional[int]]:
    """The values and the axis, counted from the front; None if unknown."""
    x = _argument(inputs, 0, "input", None)
    axis = _argument(inputs, 2 if name in AFTER_A_NUMBER else 1, "dim", -1 if name in LAST else None)
    if not isinstance(x, np.ndarray):
        return None, None
    if axis is None:
        return x.reshape(-1), 0
    return x, axis % x.ndim if type(axis) is int and x.ndim and -x.ndim <= axis < x.ndim else None


def _argument(inputs: CallInputs, place: int, name: str, default: Any) -> Any:
    if len(inputs.args) > place:
        return inputs.args[place]
    return inputs.kwargs.get(name, default)
