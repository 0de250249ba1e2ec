"""A task → rows: float64, the rounding that is due, the verdict. Only child processes import this."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from npucmp.dump.context import ReadContext
from npucmp.model import Judged, Replayed, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.replay import walk
from npucmp.replay.arguments import Arguments, Missing, Refused, floats_in
from npucmp.replay.budget import SAME, Due, judged
from npucmp.replay.noise import Noise
from npucmp.replay.table import INDICES, TURNED, Row
from npucmp.replay.task import Settings, Task
from npucmp.replay.torch_call import (
    DTYPES,
    Bound,
    bind,
    called,
    mapped_any,
    read,
    rounded_scalars,
)

Form = Callable[[Any], Any]  # of a candidate → as it was recorded
MORE = 8  # times the trials, before somebody is guilty by their noise
NEAR = 0.3  # relative distance up to which a recorded gradient may be that of a candidate
ROUNDED_ONCE = frozenset(
    "add sub mul div true_divide sqrt reciprocal square __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ "
    "__rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__".split()
)
ANOTHER = "another autograd node"
SPREADS = "it reads NaN or Inf, which kernels spread in their own ways"


def forward(task: Task, row: Row, context: ReadContext, settings: Settings) -> "list[Replayed]":
    bound = bind(task.operator, task.call, row, context, settings.memory)
    tensors = {one.slot: one for one in task.outputs}
    recorded = {slot: read(tensors[slot], context) for slot in bound.slots if slot in tensors}
    if _overwritten(bound, recorded, task, context):
        return [_unknown(task, slot, "overwritten", "its input was recorded after it was written") for slot in recorded]
    if row.kind == "dropout":
        return _dropout(task, bound, recorded, tensors, settings)
    with torch.no_grad():
        exact = bound.call()
    rows = _sure(settings, lambda now: _of_forward(task, bound, recorded, exact, now))
    return _second_opinion(rows, bound, exact, lambda: _same_types(bound))


def _sure(settings: Settings, work: Callable[[Settings], "list[Replayed]"]) -> "list[Replayed]":
    """With more trials, where few of them make somebody guilty: the noise of one element is uncertain then."""
    rows = work(settings)
    if any(row.verdict is Judged.GUILTY and row.budget == "noise" and not row.nonfinite for row in rows):
        rows = work(settings._replace(trials=settings.trials * MORE))
    return rows


def _of_forward(
    task: Task, bound: Bound, recorded: "dict[str, Any]", exact: "list[Any]", settings: Settings
) -> "list[Replayed]":
    with torch.no_grad():
        sigmas, made_of = _due(bound, exact, settings)
    tensors = {one.slot: one for one in task.outputs}
    name = bound.row.call.rpartition(".")[2]
    rows = []
    for at, slot in enumerate(bound.slots):
        if slot not in recorded or slot not in tensors:
            continue
        due = Due(sigmas[at], made_of, name.rstrip("_") in ROUNDED_ONCE or name in ROUNDED_ONCE)
        one = _judged(task, tensors[slot], recorded[slot], exact[at], due, settings)
        if one.nonfinite and one.verdict is Judged.GUILTY and _holds_nan([bound.args, bound.kwargs]):
            one = one._replace(verdict=Judged.UNKNOWN, explanation=SPREADS)
        if one.verdict is Judged.GUILTY and name in INDICES and not exact[at].is_floating_point():
            one = one._replace(verdict=Judged.UNKNOWN, explanation="indices differ, as those of equal values may")
        rows.append(one._replace(treated=bound.treated))
    return rows


def backward(task: Task, row: Row, context: ReadContext, settings: Settings) -> "list[Replayed]":
    assert task.forward is not None and task.forward_call is not None
    outputs = task.outputs
    recorded = {one.slot: read(one, context) for one in outputs}
    given = _given(task, context)
    name = row.call.rpartition(".")[2]
    if name in TURNED and _handed_on(recorded, given):
        return [Replayed(task.operator.order, slot, verdict=Judged.CLEAN, budget="exact", rms_ratio=0.0, max_ratio=0.0,
                         explanation="hands the gradient on; what it computes is not in this record")
                for slot in recorded]  # fmt: skip
    if row.kind == "dropout":
        return [_unknown(task, slot, "random", "its mask is not in this record") for slot in recorded]
    bound = bind(task.forward, task.forward_call, row, context, settings.memory)
    if not any(one.is_floating_point() for one in _tensors([bound.args, bound.kwargs])):
        raise Missing("its forward has no input with a gradient")
    saved = _saved(task, bound, context)
    candidates = gradients(bound, given, saved)
    chosen = [
        _nearest(recorded[tensor.slot], candidates, _number_of(tensor.slot, place))
        for place, tensor in enumerate(outputs)
    ]
    rows = _sure(settings, lambda now: _of_backward(task, bound, recorded, candidates, chosen, (given, saved), now))

    def same_types() -> "list[Any]":
        native = _native(bound, gradients, given, saved)
        return [form(native[at]) if at >= 0 and native[at] is not None else None for at, form in chosen]

    exact = [form(candidates[at]) if at >= 0 else None for at, form in chosen]
    return _second_opinion(rows, bound, exact, same_types)


def _of_backward(
    task: Task,
    bound: Bound,
    recorded: "dict[str, Any]",
    candidates: "list[Any]",
    chosen: "list[tuple[int, Form]]",
    sources: "tuple[list[Any], list[Any]]",
    settings: Settings,
) -> "list[Replayed]":
    outputs = task.outputs
    unit = max((_unit(one.dtype) for one in outputs), default=0.0)
    noisy = [gradients(bound, *sources, Noise(unit, bound.accumulator, settings.seed + trial))
             for trial in range(settings.trials)]  # fmt: skip
    rows = []
    for tensor, (at, form) in zip(outputs, chosen):
        if at < 0:
            rows.append(_unknown(task, tensor.slot, ANOTHER, "no gradient of this call has its shape"))
            continue
        exact = form(candidates[at])
        trials = [form(one[at]) - exact for one in noisy if one[at] is not None]
        due = Due(_root_mean_square(trials), "noise")
        one = _judged(task, tensor, recorded[tensor.slot], exact, due, settings)
        if one.nonfinite and one.verdict is Judged.GUILTY and _holds_nan([bound.args, bound.kwargs, sources[0]]):
            one = one._replace(verdict=Judged.UNKNOWN, explanation=SPREADS)
        if one.verdict is Judged.GUILTY and _distance(recorded[tensor.slot], exact) > NEAR:
            words = "it is near no gradient of this call; a device may take it apart in another way"
            one = one._replace(status=ANOTHER, verdict=Judged.UNKNOWN, explanation=words)
        rows.append(one._replace(treated=bound.treated))
    return rows


def gradients(bound: Bound, given: "list[Any]", saved: "list[Any]", noise: Optional[Noise] = None) -> "list[Any]":
    """Gradients that a record may hold: those of the last autograd node, then those of the inputs. What the forward
    keeps of its result is what was recorded of it (`saved`)."""
    leaves: list[Any] = []

    def leaf(one: Any) -> Any:
        if not one.is_floating_point():
            return one
        leaves.append(one.detach().clone().requires_grad_())
        return leaves[-1]

    args, kwargs = mapped_any([[*bound.args], bound.kwargs], leaf)
    if bound.row.inplace:
        args, kwargs = mapped_any([args, kwargs], lambda one: one.clone())
    with torch.enable_grad():
        with noise or _nothing():
            results = called(bound.row, bound.function, args, kwargs)
        places = {one.untyped_storage().data_ptr() for one in [*leaves, *_tensors([args, kwargs])]}
        pairs = []
        for result, gradient, kept in zip(results, given, saved):
            if isinstance(result, torch.Tensor) and result.requires_grad and gradient is not None:
                if kept is not None and result.untyped_storage().data_ptr() not in places:
                    result.data.copy_(kept)
                pairs.append((result, gradient.to(result.dtype).reshape(result.shape)))
        if not pairs:
            raise Missing("no gradient reached it")
        node: list[Any] = []
        hook = pairs[0][0].grad_fn.register_hook(lambda inputs, outputs: node.extend(inputs))
        with noise or _nothing():
            found = torch.autograd.grad([one for one, _ in pairs], leaves, [one for _, one in pairs], allow_unused=True)
        hook.remove()
    every = [*node, *found]
    if noise is not None:
        return [None if one is None else noise.settled(one) for one in every]
    return [None if one is None else one.detach() for one in every]


def _due(bound: Bound, exact: "list[Any]", settings: Settings) -> "tuple[list[Any], str]":
    """Sigma of each result."""
    kind, scalars = bound.row.kind, floats_in([bound.args, bound.kwargs])
    floats = [isinstance(one, torch.Tensor) and one.is_floating_point() for one in exact]
    if kind == "exact" or not any(floats):
        return [0.0] * len(exact), "exact"
    if kind == "sum" and not any(one not in (0.0, 1.0) for one in scalars) and not _scaled(bound):
        return [_walk(bound, exact)], "walk"
    trials = []
    for trial in range(settings.trials):
        noise = Noise(bound.unit, bound.accumulator, settings.seed + trial)
        with noise:
            results = bound.call()
        trials.append([noise.settled(one) if is_float else one for one, is_float in zip(results, floats)])
    sigmas = [
        _root_mean_square([trial[at] - exact[at] for trial in trials]) if is_float else 0.0
        for at, is_float in enumerate(floats)
    ]
    if bound.low and scalars:
        sigmas = _with_scalars(bound, exact, sigmas)
    return sigmas, "noise"


def _walk(bound: Bound, exact: "list[Any]") -> Any:
    """Of a sum: its one result."""
    name, result = bound.row.call.rpartition(".")[2], exact[0]
    squares, ones = (bound.call(Arguments(*change([bound.args, bound.kwargs])))[0]
                     for change in (walk.squared, walk.all_ones))  # fmt: skip
    if name == "mean":
        found = walk.of_mean(result, squares, bound.args[0].numel() / max(1, result.numel()), bound.accumulator)
    else:
        scatters = name.startswith(("index_add", "scatter_add"))
        found = walk.sigma(result, squares, ones, bound.unit if scatters else bound.accumulator)
    return _numpy(found)


def _scaled(bound: Bound) -> bool:
    return any(bound.kwargs.get(key, 1) != 1 for key in ("alpha", "beta"))


def _with_scalars(bound: Bound, exact: "list[Any]", sigmas: "list[Any]") -> "list[Any]":
    """In 16 bits some kernels round Python's scalars to the type of the tensor."""
    narrow: Callable[[float], Any] = np.float16 if bound.low == "float16" else _bfloat16
    args, kwargs = rounded_scalars([[*bound.args], bound.kwargs], narrow)
    other = bound.call(Arguments(args, kwargs))
    return [np.hypot(sigma, np.abs(_numpy(one - wide))) if isinstance(sigma, np.ndarray) else sigma
            for sigma, one, wide in zip(sigmas, other, exact)]  # fmt: skip


def _bfloat16(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.bfloat16))


def _dropout(
    task: Task, bound: Bound, recorded: "dict[str, Any]", tensors: "dict[str, TensorRef]", settings: Settings
) -> "list[Replayed]":
    """The mask is where the output is zero; what is left is x / (1 - p)."""
    args = dict(zip(("x", "p", "training"), bound.args), **bound.kwargs)
    x, p, training = args["x"] if "x" in args else args["input"], args.get("p", 0.5), args.get("training", True)
    (slot, actual), *_ = recorded.items()
    p = float(p) if training else 0.0
    zero = torch.from_numpy(np.asarray(actual, dtype=np.float64) == 0)
    kept = int((~zero & (x != 0)).sum())
    possible = int((x != 0).sum())
    spread = math.sqrt(possible * p * (1 - p)) + 1
    if p and not task.call.name.startswith("dropout1") and abs(kept - possible * (1 - p)) > 8 * spread:
        return [_unknown(task, slot, "random", f"{kept:,} of {possible:,} elements are kept, p is {p:g}")]
    exact = torch.where(zero, 0.0, x / (1 - p)) if 0 < p < 1 else (x if p == 0 else x * 0)
    sigma = _numpy(exact.abs() * bound.unit) if p else 0.0
    due = Due(sigma, "noise") if p else Due(0.0, "exact")
    return [_judged(task, tensors[slot], actual, exact, due, settings)]


def _judged(task: Task, tensor: TensorRef, recorded: Any, exact: Any, due: Due, settings: Settings) -> Replayed:
    dtype = lookup(tensor.dtype)
    if dtype is None or dtype.kind == "c" or not isinstance(exact, torch.Tensor):
        raise Refused(f"results of the type {tensor.dtype!r:.40} are not judged")
    known = settings.known.get((f"{task.call.prefix}.{task.call.name}.{task.operator.phase}", tensor.slot), 1.0)
    wide = np.float64 if dtype.kind == "f" else recorded.dtype
    return judged(
        task.operator.order, tensor.slot, recorded.astype(wide), _numpy(exact), dtype, due, settings.scale, known
    )


def _second_opinion(
    rows: "list[Replayed]", bound: Bound, exact: "list[Any]", same_types: Callable[[], "list[Any]"]
) -> "list[Replayed]":
    """Where something is guilty: the same call on this CPU in the recorded types. If that is as far off, the operator
    is coarse everywhere."""
    if not any(row.verdict is Judged.GUILTY and not row.nonfinite and row.budget != "exact" for row in rows):
        return rows
    try:
        others = same_types()
    except Exception:  # not every kernel exists for every type
        return rows
    found = []
    for row, other, wide in zip(rows, others, exact):
        if row.verdict is Judged.GUILTY and isinstance(other, torch.Tensor) and row.rmse and not row.nonfinite:
            error = other.to(torch.float64).reshape(-1) - wide.reshape(-1)
            error = error[torch.isfinite(error)]
            rms = float(error.square().mean().sqrt()) if error.numel() else 0.0
            row = row._replace(same_dtype_ratio=row.rmse / rms if rms else math.inf)
            if row.same_dtype_ratio is not None and row.same_dtype_ratio <= SAME and row.budget != "exact":
                row = row._replace(verdict=Judged.AMPLIFIER, explanation="a CPU is as far off in the same types")
        found.append(row)
    return found


def _same_types(bound: Bound) -> "list[Any]":
    with torch.no_grad():
        return bound.call(_narrowed(bound))


def _narrowed(bound: Bound) -> Arguments:
    """Arguments in the types that they were recorded in."""
    to = DTYPES[bound.low] if bound.treated else None
    kinds = iter([DTYPES.get(one, torch.float64) for one in bound.dtypes.values()])

    def narrow(one: Any) -> Any:
        dtype = next(kinds)
        return one.to(to or dtype) if one.is_floating_point() else one

    args, kwargs = mapped_any([[*bound.args], bound.kwargs], narrow)
    return Arguments(args, kwargs)


def _native(bound: Bound, work: Any, given: "list[Any]", saved: "list[Any]") -> "list[Any]":
    args, kwargs = _narrowed(bound)
    found: list[Any] = work(bound._replace(args=args, kwargs=kwargs), given, saved)
    return found


def _overwritten(bound: Bound, recorded: "dict[str, Any]", task: Task, context: ReadContext) -> bool:
    """Whether an operator that writes into its input was recorded with the input as it was afterwards."""
    if not bound.row.inplace or not recorded or not bound.args or not isinstance(bound.args[0], torch.Tensor):
        return False
    output = next(iter(recorded.values()))
    before = bound.args[0].numpy()
    if before.shape != output.shape or not np.array_equal(before, output.astype(before.dtype), equal_nan=True):
        return False
    after = bound.call()[0]
    return not (after.shape == bound.args[0].shape and torch.equal(after, bound.args[0]))


def _given(task: Task, context: ReadContext) -> "list[Any]":
    """The gradients that reached the outputs of the forward, by place; None where none was recorded."""
    inputs = {one.slot: one for one in task.operator.tensors if one.slot.startswith("input:")}
    places = [f"input:{at}" for at in range(len(task.call.args))]
    return [_wide(inputs[slot], context) if slot in inputs else None for slot in places]


def _wide(tensor: TensorRef, context: ReadContext) -> Any:
    return torch.from_numpy(read(tensor, context).astype(np.float64))


def _saved(task: Task, bound: Bound, context: ReadContext) -> "list[Any]":
    """What was recorded of the forward's outputs, None where there are no values."""
    assert task.forward is not None
    tensors = {one.slot: one for one in task.forward.tensors}
    found: list[Any] = []
    for slot in bound.slots:
        try:
            found.append(_wide(tensors[slot], context) if slot in tensors else None)
        except Exception:
            found.append(None)
    return found


def _handed_on(recorded: "dict[str, Any]", given: "list[Any]") -> bool:
    """Whether all that a record holds is the gradient that came in: the last autograd node was a view."""
    source = next((one for one in given if one is not None), None)
    if source is None or not recorded:
        return False
    values = source.reshape(-1).numpy()
    return all(
        one.size == values.size and np.array_equal(one.reshape(-1).astype(np.float64), values, equal_nan=True)
        for one in recorded.values()
    )


def _holds_nan(tree: Any) -> bool:
    """Whether an input holds NaN or +Inf; -Inf is what masks are made of."""
    return any(one.is_floating_point() and bool((torch.isnan(one) | (one == math.inf)).any()) for one in _tensors(tree))


def _nearest(recorded: Any, candidates: "list[Any]", place: int) -> "tuple[int, Form]":
    """The candidate that a recorded gradient is of, and the form in which it is: as it is, transposed, or in another
    shape. That of its own place if it is near, else the nearest; -1 where none has as many elements."""
    best = math.inf
    found: "tuple[int, Form]" = (-1, _as_it_is)
    order = sorted(range(len(candidates)), key=lambda at: at != place)
    for at in order:
        one = candidates[at]
        if one is None or one.numel() != recorded.size:
            continue
        for form in _forms(one, recorded.shape):
            distance = _distance(recorded, form(one))
            if distance < best:
                best, found = distance, (at, form)
        if at == place and best <= NEAR:
            break
    return found


def _forms(one: Any, shape: "tuple[int, ...]") -> "list[Form]":
    found: list[Form] = []
    if tuple(one.shape) == shape:
        found.append(_as_it_is)
    if one.dim() >= 2 and tuple(one.transpose(-1, -2).shape) == shape:
        found.append(lambda other: other.transpose(-1, -2))
    return found or [lambda other: other.reshape(shape)]


def _as_it_is(one: Any) -> Any:
    return one


def _distance(recorded: Any, exact: Any) -> float:
    """Relative, over what is finite on both sides."""
    a, b = recorded.astype(np.float64).reshape(-1), _numpy(exact).reshape(-1)
    use = np.isfinite(a) & np.isfinite(b)
    size = float(np.linalg.norm(b[use]))
    away = float(np.linalg.norm(a[use] - b[use]))
    return away / size if size else (0.0 if not away else 1e300)


def _number_of(slot: str, place: int) -> int:
    number = slot.rpartition(":")[2].partition(".")[0]
    return int(number) if number.isdecimal() else place


def _root_mean_square(trials: "list[Any]") -> Any:
    if not trials:
        return 0.0
    total = sum(one.reshape(-1).square() for one in trials) / len(trials)
    return np.nan_to_num(_numpy(torch.sqrt(total)), nan=0.0, posinf=0.0)


def _numpy(one: Any) -> Any:
    return one.detach().contiguous().numpy().reshape(-1)


def _tensors(tree: Any) -> "list[Any]":
    return [one for one in tree_flatten(tree)[0] if isinstance(one, torch.Tensor)]


def _unknown(task: Task, slot: str, status: str, because: str) -> Replayed:
    return Replayed(task.operator.order, slot, status, explanation=because)


def _unit(name: str) -> float:
    dtype = lookup(name)
    return dtype.round_off if dtype is not None else 0.0


class _nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        return None
