"""A forward record → rows: the call in float64, and its rounding budget. Only child processes import this.

A device may select any of several equal values in argmax, topk, sort and similar calls, so their indices are checked by
value: the recorded inputs are exact, so the value at an index must equal the value that float64 selects.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Callable, Optional

import numpy as np
import torch

from npucmp.dump.limits import ReadContext
from npucmp.model import ReplayedOutput, ReplayVerdict, TensorRef
from npucmp.recompute import rounding_noise
from npucmp.recompute.arguments import CALL_ERRORS, Arguments, CallTooLarge, floats_in, read
from npucmp.recompute.error_budget import ErrorBudget
from npucmp.recompute.rounding_noise import RoundingNoise
from npucmp.recompute.table import INDICES, STEPPED, STEPPED_BY, CallRow
from npucmp.recompute.task import ReplaySettings, Task
from npucmp.recompute.torch_bind_call import ANY, NARROW, Bound, bind, mapped_any, require
from npucmp.recompute.torch_blocks import Blocks, cut_of
from npucmp.recompute.torch_hypotheses import with_hypotheses
from npucmp.recompute.torch_results import (
    SPREADS,
    holds_nan,
    narrow_arguments,
    numpy_of,
    root_mean_square,
    row_of_output,
    second_opinion,
    sure,
    tensors_in,
    unknown_row,
)
from npucmp.recompute.torch_sampled_matmul import by_sample, product_of

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


_THIRD = "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d".split()
ADDED = {**dict.fromkeys(_THIRD, (2, "bias")), "addmm": (0, "input"), "baddbmm": (0, "input")}  # bias


def forward(task: Task, row: CallRow, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
    product = product_of(task, row)
    found = by_sample(task, row, product, context, settings) if product is not None else None
    if found is not None:
        return found
    found, cut = None, cut_of(task.operator, task.call, row)
    if cut is not None:
        require(task.operator, task.call, row, ANY)
        found = Blocks(task, row, cut, context, settings).rows(lambda state, *more: due_of(state.bound, *more))
        if found is not None and _is_guilty(found) and row.call.rpartition(".")[2] in ADDED:
            either = Blocks(task, row, cut, context, settings)
            found = _clean_of(found, either.rows(lambda state, *more: due_of_either(state.bound, *more)) or [])
        if found is not None and not (row.kind == "exact" and _is_guilty(found)):
            return found
    try:
        bound = bind(task.operator, task.call, row, context, settings.memory)
    except CallTooLarge:
        if found is None:
            raise
        return found
    tensors = {one.slot: one for one in task.outputs}
    recorded = {slot: read(tensors[slot], context) for slot in bound.slots if slot in tensors}
    if _overwrites_input(bound, recorded, task, context):
        return [
            unknown_row(task, slot, "overwritten", "the first input was recorded after the operator overwrote it")
            for slot in recorded
        ]
    if row.kind == "dropout":
        return _dropout(task, bound, recorded, tensors, settings)
    with torch.no_grad():
        exact = bound.call()
    rows = sure(settings, lambda now: _of_forward(task, bound, recorded, exact, now))
    if _is_guilty(rows):
        rows = _clear_rows(rows, task, bound, recorded, exact, settings)
    elif any(one.rounding and one.rounding.direction for one in rows) and _alternative_results(bound, exact):
        rows = [row._replace(rounding=None) for row in rows]  # a rounded scalar has an error of one sign
    rows = second_opinion(rows, bound, exact, lambda: same_types(bound))
    slots = [slot for slot in bound.slots if slot in recorded]
    results = [one for slot, one in zip(bound.slots, exact) if slot in recorded]

    def again(other: Bound) -> list[Any]:
        return [one for slot, one in zip(other.slots, other.call()) if slot in recorded]

    return with_hypotheses(
        rows, [tensors[slot] for slot in slots], [recorded[slot] for slot in slots], results, bound, again
    )


def _is_guilty(rows: list[ReplayedOutput]) -> bool:
    return any(row.verdict is ReplayVerdict.GUILTY for row in rows)


def _of_forward(
    task: Task, bound: Bound, recorded: dict[str, Any], exact: list[Any], settings: ReplaySettings, either: bool = False
) -> list[ReplayedOutput]:
    """`either`: a bias may be added before or after the product is rounded."""
    with torch.no_grad():
        sigmas, made_of = (due_of_either if either else due_of)(bound, exact, settings)
    tensors = {one.slot: one for one in task.outputs}
    name = bound.row.call.rpartition(".")[2]
    rows = []
    for at, slot in enumerate(bound.slots):
        if slot not in recorded or slot not in tensors:
            continue
        due = ErrorBudget(sigmas[at], made_of, bound.is_rounded_once)
        one = row_of_output(task, tensors[slot], recorded[slot], exact[at], due, settings)
        if one.nonfinite and one.verdict is ReplayVerdict.GUILTY and holds_nan([bound.args, bound.kwargs]):
            one = one._replace(verdict=ReplayVerdict.UNKNOWN, explanation=SPREADS)
        if one.verdict is ReplayVerdict.GUILTY and name in INDICES and not exact[at].is_floating_point():
            chosen = free_choice(bound, recorded[slot], exact[at])
            if chosen is None:
                one = one._replace(
                    verdict=ReplayVerdict.UNKNOWN, explanation="indices differ; NaN or unsorted results allow any"
                )
            else:
                one = row_of_output(task, tensors[slot], recorded[slot], chosen, due, settings)
        rows.append(one._replace(treated=bound.treated))
    return rows


def _is_stepped(bound: Bound) -> bool:
    """Whether the call rounds a quotient or a product before it applies a step function."""
    name = bound.row.call.rpartition(".")[2]
    name = name if name.startswith("__") else name.rstrip("_")
    return name in STEPPED and (name not in STEPPED_BY or bool(bound.kwargs.get(STEPPED_BY[name])))


def _clear_rows(
    rows: list[ReplayedOutput],
    task: Task,
    bound: Bound,
    recorded: dict[str, Any],
    exact: list[Any],
    settings: ReplaySettings,
) -> list[ReplayedOutput]:
    """Replace GUILTY rows if another rounding of the call's scalars, or of a product before its bias is added, gives a
    CLEAN row. Near a step, an operator with steps may round each element to either side, in the recorded types."""
    others = _alternative_results(bound, exact)
    tries = [other for other, is_whole in others if is_whole]
    if bound.row.kind == "exact" or _is_stepped(bound):
        tries.append([_nearest(recorded.get(slot or ""), [exact[at], *(other[at] for other, _ in others)])
                      for at, slot in enumerate(bound.slots[: len(exact)])])  # fmt: skip
    for other in tries:
        rows = _clean_of(rows, _of_forward(task, bound, recorded, other, settings))
    if _is_guilty(rows) and bound.row.call.rpartition(".")[2] in ADDED:
        rows = _clean_of(rows, _of_forward(task, bound, recorded, exact, settings, either=True))
    return rows


def _clean_of(rows: list[ReplayedOutput], others: list[ReplayedOutput]) -> list[ReplayedOutput]:
    """Replace GUILTY rows by the CLEAN rows of the same slot in `others`."""
    again = {row.slot: row for row in others if row.verdict is ReplayVerdict.CLEAN}
    return [again.get(row.slot, row) if row.verdict is ReplayVerdict.GUILTY else row for row in rows]


def _alternative_results(bound: Bound, exact: list[Any]) -> list[tuple[list[Any], bool]]:
    """Results of the same call with scalars rounded differently; if the call has steps, also with an input changed by a
    rounding, and in the recorded types. The flag marks results that are also compared as a whole."""
    names = ("float64", "float32", *([bound.low] if bound.low else []))
    calls: list[tuple[Callable[[], list[Any]], bool]] = []
    if floats_in([bound.args, bound.kwargs]):
        calls += [(partial(bound.call, bound.with_scalars(NARROW[name])), True) for name in names]
    if bound.row.kind == "exact" or _is_stepped(bound):
        calls.append((lambda: bound.call(narrow_arguments(bound)), False))
    if _is_stepped(bound) and bound.unit:
        for step in (-2, 2):
            calls.append((partial(bound.call, _scale_input(bound, 1 + step * bound.unit)), False))
    found = []
    for call, is_whole in calls:
        try:
            with torch.no_grad():
                other = call()
        except CALL_ERRORS:  # not every kernel exists for every type
            continue
        if [_shape(one) for one in other] == [_shape(one) for one in exact]:
            found.append((other, is_whole))
    return found


def _scale_input(bound: Bound, factor: float) -> Arguments:
    """Arguments with the first tensor multiplied by `factor`."""
    first = next(iter(tensors_in([bound.args, bound.kwargs])), None)
    args, kwargs = mapped_any([[*bound.args], bound.kwargs], lambda one: _times(one, factor) if one is first else one)
    return Arguments(args, kwargs)


def _times(one: Any, factor: float) -> Any:
    return one * factor if one.is_floating_point() else one


def _shape(one: Any) -> Any:
    return (one.shape, one.is_floating_point()) if isinstance(one, torch.Tensor) else None


def _nearest(recorded: Any, candidates: list[Any]) -> Any:
    """Select for each element the result that is nearest to the record."""
    best = candidates[0]
    if recorded is None or not isinstance(best, torch.Tensor) or best.is_complex() or best.numel() != recorded.size:
        return best
    wide = recorded.astype(np.float64) if recorded.dtype.kind not in "biu" else recorded
    actual = torch.from_numpy(np.ascontiguousarray(wide)).reshape(best.shape)
    for other in candidates[1:]:
        better = (other == actual) if not best.is_floating_point() else (
            (other - actual).abs() < (best - actual).abs()) | (other == actual)  # fmt: skip
        best = torch.where(better, other, best)
    return best


def due_of(bound: Bound, exact: list[Any], settings: ReplaySettings) -> tuple[list[Any], str]:
    """Sigma of each result, and the kind of the budget."""
    kind, scalars = bound.row.kind, floats_in([bound.args, bound.kwargs])
    floats = [isinstance(one, torch.Tensor) and one.is_floating_point() for one in exact]
    if kind == "exact" or not any(floats):
        return [0.0] * len(exact), "exact"
    if kind == "sum" and not any(one not in (0.0, 1.0) for one in scalars) and not _is_scaled(bound):
        return [_walk(bound, exact)], "walk"
    trials = []
    for trial in range(settings.trials):
        noise = RoundingNoise(bound.unit, bound.accumulator, settings.seed + trial)
        with noise:
            results = bound.call()
        trials.append([noise.settled(one, bound.unit) if is_float else one for one, is_float in zip(results, floats)])
    sigmas = [
        root_mean_square([trial[at] - exact[at] for trial in trials]) if is_float else 0.0
        for at, is_float in enumerate(floats)
    ]
    if bound.low and scalars:
        sigmas = _with_scalars(bound, exact, sigmas)
    return sigmas, "noise"


def due_of_either(bound: Bound, exact: list[Any], settings: ReplaySettings) -> tuple[list[Any], str]:
    """Sigma if a 16-bit kernel may round a product before it adds the bias, and under autocast the bias too."""
    sigmas, made_of = due_of(bound, exact, settings)
    place, name = ADDED[bound.row.call.rpartition(".")[2]]
    bias = bound.args[place] if len(bound.args) > place else bound.kwargs.get(name)
    if not bound.low or not isinstance(bias, torch.Tensor):
        return sigmas, made_of
    args, kwargs = mapped_any([[*bound.args], bound.kwargs], lambda one: one * 0.0 if one is bias else one)
    product = bound.call(Arguments(args, kwargs))[0]
    rounded = [product, exact[0] - product] if bound.treated else [product]
    before = torch.from_numpy(np.broadcast_to(sigmas[0], product.numel()).copy()).reshape(product.shape)
    return [numpy_of(rounding_noise.of_rounded(before, rounded, bound.unit)), *sigmas[1:]], made_of


def _walk(bound: Bound, exact: list[Any]) -> Any:
    """Sigma of the single result of a sum."""
    name, result = bound.row.call.rpartition(".")[2], exact[0]
    squares, ones = (bound.call(Arguments(*change([bound.args, bound.kwargs])))[0]
                     for change in (rounding_noise.squared, rounding_noise.all_ones))  # fmt: skip
    if name == "mean":
        found = rounding_noise.of_mean(
            result, squares, bound.args[0].numel() / max(1, result.numel()), bound.accumulator
        )
    else:
        scatters = name.startswith(("index_add", "scatter_add"))
        found = rounding_noise.sigma(result, squares, ones, bound.unit if scatters else bound.accumulator)
    return numpy_of(found)


def _is_scaled(bound: Bound) -> bool:
    return any(bound.kwargs.get(key, 1) != 1 for key in ("alpha", "beta"))


def _with_scalars(bound: Bound, exact: list[Any], sigmas: list[Any]) -> list[Any]:
    """Add to sigma the effect of scalars in 16 bits: some kernels round Python scalars to the type of the tensor."""
    other = bound.call(bound.with_scalars(NARROW[bound.low]))
    if [_shape(one) for one in other] != [_shape(one) for one in exact]:
        return sigmas
    return [np.hypot(sigma, np.abs(numpy_of(one - wide))) if isinstance(sigma, np.ndarray) else sigma
            for sigma, one, wide in zip(sigmas, other, exact)]  # fmt: skip


def _dropout(
    task: Task, bound: Bound, recorded: dict[str, Any], tensors: dict[str, TensorRef], settings: ReplaySettings
) -> list[ReplayedOutput]:
    """The rows of a dropout: the mask is read from the zeros of the output; other elements must be x / (1 - p)."""
    args = dict(zip(("x", "p", "training"), bound.args), **bound.kwargs)
    x, p, training = args["x"] if "x" in args else args["input"], args.get("p", 0.5), args.get("training", True)
    (slot, actual), *_ = recorded.items()
    p = float(p) if training else 0.0
    zero = torch.from_numpy(np.asarray(actual, dtype=np.float64) == 0)
    nonzero = int((~zero & (x != 0)).sum())
    possible = int((x != 0).sum())
    spread = math.sqrt(possible * p * (1 - p)) + 1
    if p and not task.call.name.startswith("dropout1") and abs(nonzero - possible * (1 - p)) > 8 * spread:
        return [unknown_row(task, slot, "random", f"{nonzero:,} of {possible:,} elements are kept, p is {p:g}")]
    exact = torch.where(zero, 0.0, x / (1 - p)) if 0 < p < 1 else (x if p == 0 else x * 0)
    sigma = numpy_of(exact.abs() * bound.unit) if p else 0.0
    due = ErrorBudget(sigma, "noise") if p else ErrorBudget(0.0, "exact")
    return [row_of_output(task, tensors[slot], actual, exact, due, settings)]


def same_types(bound: Bound) -> list[Any]:
    with torch.no_grad():
        return bound.call(narrow_arguments(bound))


def _overwrites_input(bound: Bound, recorded: dict[str, Any], task: Task, context: ReadContext) -> bool:
    """Whether an operator overwrites its input and the record holds the overwritten values."""
    if not bound.row.inplace or not recorded or not bound.args or not isinstance(bound.args[0], torch.Tensor):
        return False
    output = next(iter(recorded.values()))
    before = bound.args[0].numpy()
    if before.shape != output.shape or not np.array_equal(before, output.astype(before.dtype), equal_nan=True):
        return False
    after = bound.call()[0]
    return not (after.shape == bound.args[0].shape and torch.equal(after, bound.args[0]))
