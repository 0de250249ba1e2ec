"""Check indices of argmax, topk, sort and similar calls: a device may select any of several equal values.

The recorded inputs are exact, so the value at an index must equal the value that float64 selects. Only child processes
import this.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from npucmp.recompute.torch_bind_call import Bound

AFTER_A_NUMBER = ("topk", "kthvalue")  # their dim follows k
LAST = ("topk", "kthvalue", "sort", "argsort", "mode")  # default to the last axis; other calls to all elements
RANKED = ("topk", "sort", "argsort")  # no element is chosen twice
BEFORE = ("cummax", "cummin")  # select among the preceding elements


def free_choice(bound: Bound, recorded: Any, exact: Any) -> Optional[Any]:
    """Return the expected indices: the recorded indices if they point to the same values as the `exact` indices, else
    the `exact` indices. None if this is undecidable: with NaN, or if results are unsorted."""
    x, axis = _chosen_from(bound)
    name = bound.row.call.rpartition(".")[2]
    unsorted = name == "topk" and not _argument(bound, 4, "sorted", True)
    if x is None or not x.dim() or axis is None or unsorted or bool(torch.isnan(x).any()):
        return None
    own = exact if exact.dim() == x.dim() else exact.reshape(-1) if x.dim() == 1 else exact.unsqueeze(axis)
    indices = torch.from_numpy(recorded.astype("int64")).reshape(own.shape)
    fits = (indices >= 0) & (indices < x.shape[axis])
    taken, wanted = (torch.take_along_dim(x, one, axis) for one in (torch.where(fits, indices, own), own))
    right = fits & (taken == wanted)
    if name in BEFORE:
        place = torch.arange(x.shape[axis]).reshape([-1 if at == axis else 1 for at in range(x.dim())])
        right &= indices <= place
    if name in RANKED:
        once = (indices.sort(axis).values.diff(dim=axis) > 0).all(axis, keepdim=True)
        right = (right.all(axis, keepdim=True) & once).expand(own.shape)
    return torch.where(right, indices, own).reshape(exact.shape)


def _chosen_from(bound: Bound) -> tuple[Any, Optional[int]]:
    """The values and the axis, counted from the front; None if unknown."""
    name = bound.row.call.rpartition(".")[2]
    x = _argument(bound, 0, "input", None)
    axis = _argument(bound, 2 if name in AFTER_A_NUMBER else 1, "dim", -1 if name in LAST else None)
    if not isinstance(x, torch.Tensor):
        return None, None
    if axis is None:
        return x.reshape(-1), 0
    return x, axis % x.dim() if type(axis) is int and x.dim() and -x.dim() <= axis < x.dim() else None


def _argument(bound: Bound, place: int, name: str, default: Any) -> Any:
    return bound.args[place] if len(bound.args) > place else bound.kwargs.get(name, default)
