"""A backward record → rows: gradients by autograd, from the tensors saved by the forward, matched with the record.

msprobe records the outputs of the last autograd node of the call. They may be the gradients of the inputs, transposed
gradients, or the incoming gradient if the call ends in a view, so the nearest candidate is selected. If no candidate is
near, the gradient is wrong if the call has no other node; else it may belong to another node. numpy's table lists the
calls without other nodes; for calls that it lists without a gradient, torch shows their nodes. Only child processes
import this.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import cache, cached_property
from itertools import zip_longest
from typing import Any, Callable, Optional, Sequence

import numpy as np
import torch

from npucmp.dump.limits import ReadContext
from npucmp.model import ReplayedOutput, ReplayVerdict, TensorRef
from npucmp.model.dtypes import lookup, unit_of
from npucmp.recompute.arguments import CALL_ERRORS, READ_ERRORS, MissingTensor, RefusedRecord, floats_in, read
from npucmp.recompute.call_table import formula_of
from npucmp.recompute.error_budget import ErrorBudget, round_to
from npucmp.recompute.numpy_calls import ANOTHER, DISTANCE_FACTOR, GRADIENT_DISTANCE, is_near
from npucmp.recompute.numpy_engine import NumpyEngine
from npucmp.recompute.rounding_noise import RoundingNoise
from npucmp.recompute.table import COMPOSITE, TURNED, CallRow
from npucmp.recompute.task import ReplaySettings, Task
from npucmp.recompute.torch_bind_call import ANY, CLONED, NARROW, Bound, bind, called, mapped_any, require, widen_values
from npucmp.recompute.torch_blocks import LARGE, Blocks, BlockState, RowSplit, TensorRows, cut_of
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
    wide,
)

Form = Callable[[Any], Any]  # a candidate → its recorded form
NEAR_COMPOSITE = 0.02  # of a call whose decomposition depends on the version
OF_TORCH = ("Functional", "Torch", "Tensor")  # prefixes of calls whose autograd nodes are torch's own
NOT_COMPUTED = (RefusedRecord, ArithmeticError, LookupError, MemoryError, TypeError, ValueError)


def backward(task: Task, row: CallRow, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
    assert task.forward is not None and task.forward_call is not None
    outputs = task.outputs
    recorded = {one.slot: read(one, context) for one in outputs}
    name = row.call.rpartition(".")[2]
    if name in TURNED and _records_gradient_only(recorded, task, context):
        return [
            ReplayedOutput(
                task.operator.order,
                slot,
                verdict=ReplayVerdict.CLEAN,
                budget="exact",
                rms_ratio=0.0,
                max_ratio=0.0,
                explanation="the record holds the incoming gradient, not the computed gradients",
            )
            for slot in recorded
        ]
    if row.kind == "dropout":
        return [unknown_row(task, slot, "random", "its mask is not in this record") for slot in recorded]
    incoming = incoming_gradients(task, context)
    cut = cut_of_backward(task, row)
    if cut is not None:
        require(task.forward, task.forward_call, row, ANY)
        found = BackwardBlocks(task, row, cut, context, settings).rows(due_of_backward)
        if found is not None:
            return found
    bound = bind(task.forward, task.forward_call, row, context, settings.memory)
    if not any(one.is_floating_point() for one in tensors_in([bound.args, bound.kwargs])):
        raise MissingTensor("its forward has no input with a gradient")
    saved = saved_by(task, bound, context)
    candidates = gradients(bound, incoming, saved)
    chosen = choose_candidates(outputs, recorded, candidates, len(leaves_of(bound)))
    rows = sure(settings, lambda now: _of_backward(task, bound, recorded, candidates, chosen, (incoming, saved), now))
    rows = _clear_rows(rows, task, bound, recorded, (incoming, saved), settings)

    def same_types() -> list[Any]:
        native = _native(bound, gradients, incoming, saved)
        natives = [_same(native, at, len(candidates)) if at >= 0 else None for at, _ in chosen]
        return [None if one is None else form(one) for one, (_, form) in zip(natives, chosen)]

    exact = [form(candidates[at]) if at >= 0 else None for at, form in chosen]
    rows = second_opinion(rows, bound, exact, same_types)
    rows = _of_all_nodes(rows, task, context, settings)

    def again(other: Bound) -> list[Any]:
        """The chosen gradients of another call; None if the number of gradients differs, as without a bias."""
        found = gradients(other, incoming, saved)
        same = len(found) == len(candidates)
        return [form(found[at]) if same and at >= 0 and found[at] is not None else None for at, form in chosen]

    return with_hypotheses(rows, outputs, [recorded[one.slot] for one in outputs], exact, bound, again)


def _clear_rows(
    rows: list[ReplayedOutput],
    task: Task,
    bound: Bound,
    recorded: dict[str, Any],
    sources: tuple[list[Any], list[Any]],
    settings: ReplaySettings,
) -> list[ReplayedOutput]:
    """Replace rows that are GUILTY or near no gradient if another rounding of the call's scalars gives a CLEAN row: the
    rounding decides whether a value at the limit of a clamp has a gradient."""
    others = ("float64", "float32", bound.low) if floats_in([bound.args, bound.kwargs]) else ()
    for name in filter(None, others):
        if not any(_is_open(row) for row in rows):
            break
        args, kwargs = bound.with_scalars(NARROW[name])
        other = bound._replace(args=[*args], kwargs=kwargs)
        try:
            candidates = gradients(other, *sources)
        except CALL_ERRORS:  # a rounded scale may give another size
            continue
        chosen = choose_candidates(task.outputs, recorded, candidates, len(leaves_of(other)))
        again = _of_backward(task, other, recorded, candidates, chosen, sources, settings)
        clean = {row.slot: row for row in again if row.verdict is ReplayVerdict.CLEAN}
        rows = [clean.get(row.slot, row) if _is_open(row) else row for row in rows]
    return rows


def _is_open(row: ReplayedOutput) -> bool:
    return row.verdict is ReplayVerdict.GUILTY or row.status == ANOTHER


def _of_backward(
    task: Task,
    bound: Bound,
    recorded: dict[str, Any],
    candidates: list[Any],
    chosen: list[tuple[int, Form]],
    sources: tuple[list[Any], list[Any]],
    settings: ReplaySettings,
) -> list[ReplayedOutput]:
    outputs = task.outputs
    near = NEAR_COMPOSITE if bound.row.call.rpartition(".")[2] in COMPOSITE else GRADIENT_DISTANCE
    unit = max((unit_of(one.dtype) for one in task.operator.tensors), default=0.0)
    noises = [RoundingNoise(unit, bound.accumulator, settings.seed + trial) for trial in range(settings.trials)]
    noisy = [gradients(bound, *sources, noise) for noise in noises]
    one_node = cache(lambda: _has_one_node(task, bound))

    def is_own(at: int, tensor: TensorRef, exact: Any) -> bool:
        """Whether a gradient cannot belong to another node, or is near the gradient that it is compared with."""
        actual = recorded[tensor.slot]
        if is_near(actual, numpy_of(exact), unit_of(tensor.dtype), near):
            return True
        in_place = at == number_of(tensor.slot, -1) and tuple(candidates[at].shape) == tensor.shape
        is_known = in_place and tensor.dtype in bound.dtypes.values() and one_node()
        return is_known and not _passes_gradient(actual, sources[0], tensor.dtype)

    rows = []
    for tensor, (at, form) in zip(outputs, chosen):
        if at < 0:
            rows.append(unknown_row(task, tensor.slot, ANOTHER, "no gradient of this call has its shape"))
            continue
        exact = form(candidates[at])
        own = unit_of(tensor.dtype)
        trials = _differences(noises, noisy, at, len(candidates), own, candidates[at])
        if not trials:
            rows.append(unknown_row(task, tensor.slot, ANOTHER, "its noise cannot be measured"))
            continue
        due = ErrorBudget(root_mean_square([form(one) for one in trials]), "noise")
        one = row_of_output(task, tensor, recorded[tensor.slot], exact, due, settings)
        if one.nonfinite and one.verdict is ReplayVerdict.GUILTY and holds_nan([bound.args, bound.kwargs, sources[0]]):
            one = one._replace(verdict=ReplayVerdict.UNKNOWN, explanation=SPREADS)
        if one.verdict is ReplayVerdict.GUILTY and not is_own(at, tensor, exact):
            words = "it is near no gradient of this call; a device may split the call differently"
            one = unknown_row(task, tensor.slot, ANOTHER, words)  # its distance to another gradient means nothing
        rows.append(one._replace(treated=bound.treated))
    return rows


def leaves_of(bound: Bound) -> list[Any]:
    """Inputs that have a gradient: floats, except for running statistics."""
    fixed = {id(one) for one in bound.args[1:3]} if bound.row.call.rpartition(".")[2] in CLONED else set()
    return [one for one in tensors_in([bound.args, bound.kwargs]) if one.is_floating_point() and id(one) not in fixed]


def choose_candidates(
    outputs: Sequence[TensorRef], recorded: dict[str, Any], candidates: list[Any], leaves: int
) -> list[tuple[int, Form]]:
    """The candidate of each recorded gradient, and its form. All are gradients of one node, in their places: the last
    node, or the gradients of the inputs. If no node has the recorded shapes, each is the nearest of all candidates."""
    places = [number_of(tensor.slot, place) for place, tensor in enumerate(outputs)]
    values = [recorded[tensor.slot] for tensor in outputs]
    every = [*range(len(candidates))]
    nodes = [every[:-leaves], every[-leaves:]] if leaves else [every]
    plain = [[at for at in node if candidates[at] is not None] for node in nodes]  # without missing gradients
    best, found, fits = math.inf, [nearest(one, candidates, place) for one, place in zip(values, places)], []
    for node in [*nodes, *plain]:
        ats = [node[place] if place < len(node) else -1 for place in places]
        if any(at < 0 or candidates[at] is None or not _exact_forms(candidates[at], one.shape)
               for at, one in zip(ats, values)):  # fmt: skip
            continue
        fit = [(at, nearest(one, [candidates[at]], 0)[1]) for at, one in zip(ats, values)]
        away = sum(min(1.0, distance(one, form(candidates[at]))) for one, (at, form) in zip(values, fit))
        fits.append(fit)
        if away * DISTANCE_FACTOR < best or away <= GRADIENT_DISTANCE * len(values) < best:
            best, found = away, fit

    def is_of(fit: list[tuple[int, Form]]) -> bool:
        """Whether each candidate is near its recorded gradient, directly or after scaling."""
        return all(
            is_near(recorded[tensor.slot], numpy_of(form(candidates[at])), unit_of(tensor.dtype))
            for tensor, (at, form) in zip(outputs, fit)
        )

    return found if best <= GRADIENT_DISTANCE * len(values) else next(filter(is_of, fits), found)


def _exact_forms(one: Any, shape: tuple[int, ...]) -> bool:
    """Whether a gradient has that shape, directly or transposed."""
    return shape in (tuple(one.shape), tuple(one.mT.shape) if one.dim() >= 2 else shape and ())


def _of_all_nodes(
    rows: list[ReplayedOutput], task: Task, context: ReadContext, settings: ReplaySettings
) -> list[ReplayedOutput]:
    """Replace rows that are near no gradient of torch's nodes by rows of numpy. Its formulas give the gradients of
    every node that a record may hold, and show whether other nodes exist."""
    if all(row.status != ANOTHER for row in rows) or NumpyEngine().refuses(task)[0]:
        return rows
    from npucmp.recompute import numpy_results

    try:
        others = {row.slot: row for row in numpy_results.replay_rows(task, context, settings)}
    except NOT_COMPUTED:  # by numpy
        return rows
    return [others.get(row.slot, row) if row.status == ANOTHER else row for row in rows]


def _has_one_node(task: Task, bound: Bound) -> bool:
    """Whether a call without a gradient formula in numpy is a single autograd node, which returns input gradients."""
    assert task.forward_call is not None
    formula = formula_of(task.forward_call)
    if task.forward_call.prefix not in OF_TORCH or bound.row.call.rpartition(".")[2] in COMPOSITE:
        return False
    if formula is not None and formula.backward is not None:
        return False
    args, kwargs = mapped_any([[*bound.args], bound.kwargs], _leaf)
    with torch.enable_grad():
        first = called(bound.row, bound.function, args, kwargs)[0]
    node = first.grad_fn if isinstance(first, torch.Tensor) else None
    before = [one for one, _ in node.next_functions if one is not None] if node is not None else []
    return bool(before) and all(one.name() == "torch::autograd::AccumulateGrad" for one in before)


def _leaf(one: Any) -> Any:
    return one.detach().clone().requires_grad_() if one.is_floating_point() else one


def _passes_gradient(recorded: Any, incoming: list[Any], name: str) -> bool:
    """Whether a recorded gradient equals the incoming gradient, element by element, after rounding to its type."""
    tensors, dtype = [one for one in incoming if one is not None], lookup(name)
    if len(tensors) != 1 or tensors[0].numel() != recorded.size or dtype is None:
        return False
    return bool(np.array_equal(round_to(numpy_of(tensors[0]), dtype), recorded.astype(np.float64).reshape(-1)))


def _same(natives: list[Any], at: int, count: int) -> Any:
    """The candidate with number `at` of `count`. If the number of candidates differs, the last node differs too, and
    gradients of inputs are counted from the end."""
    return natives[at] if len(natives) == count else natives[at - count] if count - at <= len(natives) else None


def _differences(
    noises: list[RoundingNoise], noisy: list[list[Any]], at: int, count: int, unit: float, exact: Any
) -> list[Any]:
    """Differences of a candidate under each noise."""
    found = []
    for noise, one in zip(noises, noisy):
        other = _same(one, at, count)
        if other is not None and other.shape == exact.shape:
            found.append(noise.settled(other, unit) - exact)
    return found


def gradients(
    bound: Bound, incoming: list[Any], saved: list[Any], noise: Optional[RoundingNoise] = None, wanted: Any = None
) -> list[Any]:
    """Gradients that a record may hold: those of the last autograd node, then those of the inputs, or only of the input
    `wanted`. The backward uses the recorded results of the forward (`saved`). Raises MissingTensor without any."""
    leaves: list[Any] = []
    name = bound.row.call.rpartition(".")[2]
    fixed = {id(one) for one in bound.args[1:3]} if name in CLONED else set()  # running statistics
    if noise is not None:
        noise.is_recomputed = name.endswith("attention")

    def leaf(one: Any) -> Any:
        if not one.is_floating_point() or id(one) in fixed or (wanted is not None and one is not wanted):
            return one
        leaves.append(one.detach().clone().requires_grad_())
        return leaves[-1]

    args, kwargs = mapped_any([[*bound.args], bound.kwargs], leaf)
    if bound.row.inplace:
        args, kwargs = mapped_any([args, kwargs], lambda one: one.clone())
    with torch.enable_grad():
        with noise or nullcontext():
            results = called(bound.row, bound.function, args, kwargs)
        places = {one.untyped_storage().data_ptr() for one in [*leaves, *tensors_in([args, kwargs])]}
        pairs = []
        for result, gradient, stored in zip_longest(results, incoming[: len(results)], saved[: len(results)]):
            if not isinstance(result, torch.Tensor):
                continue
            if stored is not None and result.untyped_storage().data_ptr() not in places:
                result.data.copy_(stored)  # indices too: among equal values a device may have selected others
            if result.requires_grad and gradient is not None:
                pairs.append((result, gradient.to(result.dtype).reshape(result.shape)))
        if not pairs:
            raise MissingTensor("no incoming gradient was recorded")
        node: list[Any] = []
        last = pairs[0][0].grad_fn  # None if the result is an input itself
        hook = last.register_hook(lambda inputs, outputs: node.extend(inputs)) if last is not None else None
        with noise or nullcontext():
            found = torch.autograd.grad([one for one, _ in pairs], leaves, [one for _, one in pairs], allow_unused=True)
        if hook is not None:
            hook.remove()
    every = [*node, *found]
    return [None if one is None else one.detach() for one in every]


def cut_of_backward(task: Task, row: CallRow, least: int = LARGE) -> Optional[RowSplit]:
    """The split of a large call if all its inputs and their gradients have the shape of its result, else None."""
    assert task.forward is not None and task.forward_call is not None
    cut = cut_of(task.forward, task.forward_call, row, least)
    if cut is None or row.kind == "sum":
        return None
    tensors = [one for one in task.forward.tensors if one.slot.startswith(("input:", "output:"))]
    every = [*tensors, *(one for one in task.operator.tensors if one.slot.startswith(("input:", "output:")))]
    is_alone = {one.shape for one in every} == {tensors[-1].shape} and len(task.call.args) == 1
    return cut._replace(slots=frozenset(one.slot for one in every)) if is_alone else None


class BackwardBlocks(Blocks):
    """A backward record, block by block."""

    chosen: Optional[list[int]] = None  # the candidate of each output

    def called(self, rows: Sequence[tuple[int, int]]) -> tuple[BlockState, list[Any]]:
        assert self.task.forward is not None
        incoming, saved = (
            [widen_values(one.take(rows), one.tensor) for one in streams.values()]
            for streams in (self.gradients, self.results)
        )
        bound = self.bound(rows)
        found = gradients(bound, incoming, saved)
        if self.chosen is None:
            self.chosen = [self._nearest(slot, rows, found) for slot in self.outputs]
        exact = [found[at] if at >= 0 else None for at in self.chosen]
        return BlockState(bound, incoming, saved, self.chosen, len(found)), exact

    @cached_property
    def gradients(self) -> dict[str, TensorRows]:
        """The incoming gradients."""
        return self.streams_of(self.task.operator, "input:")

    @cached_property
    def results(self) -> dict[str, TensorRows]:
        """The recorded results of the forward."""
        assert self.task.forward is not None
        return self.streams_of(self.task.forward, "output:")

    def _nearest(self, slot: str, rows: Sequence[tuple[int, int]], found: list[Any]) -> int:
        recorded = self.outputs[slot].take(rows)
        at, form = nearest(recorded, found, number_of(slot, 0))
        return at if at >= 0 and form is _identity and distance(recorded, found[at]) <= GRADIENT_DISTANCE else -1

    def same_types(self, state: BlockState) -> list[Any]:
        native = _native(state.bound, gradients, state.incoming, state.saved)
        return [_same(native, at, state.candidates) for at in state.chosen]


def due_of_backward(state: BlockState, exact: list[Any], settings: ReplaySettings) -> tuple[list[Any], str]:
    bound = state.bound
    noises = [RoundingNoise(bound.unit, bound.accumulator, settings.seed + trial) for trial in range(settings.trials)]
    noisy = [gradients(bound, state.incoming, state.saved, noise) for noise in noises]
    sigmas = []
    for at, own in zip(state.chosen, exact):
        sigmas.append(root_mean_square(_differences(noises, noisy, at, state.candidates, bound.unit, own)))
    return sigmas, "noise"


def _native(bound: Bound, work: Any, incoming: list[Any], saved: list[Any]) -> list[Any]:
    args, kwargs = narrow_arguments(bound)
    found: list[Any] = work(bound._replace(args=args, kwargs=kwargs), incoming, saved)
    return found


def incoming_gradients(task: Task, context: ReadContext) -> list[Any]:
    """The incoming gradients of the forward's outputs, by place; None for gradients that were not recorded."""
    inputs = {one.slot: one for one in task.operator.tensors if one.slot.startswith("input:")}
    places = [f"input:{at}" for at in range(len(task.call.args))]
    return [wide(inputs[slot], context) if slot in inputs else None for slot in places]


def saved_by(task: Task, bound: Bound, context: ReadContext) -> list[Any]:
    """The recorded values of the forward's outputs, None for outputs without values."""
    assert task.forward is not None
    tensors = {one.slot: one for one in task.forward.tensors}
    found: list[Any] = []
    for slot in bound.slots:
        try:
            found.append(wide(tensors[slot], context) if slot in tensors else None)
        except READ_ERRORS:
            found.append(None)
    return found


def _records_gradient_only(recorded: dict[str, Any], task: Task, context: ReadContext) -> bool:
    """Whether a record holds only the incoming gradient: the last autograd node was a view."""
    inputs = [one for one in task.operator.tensors if one.slot.startswith("input:")]
    if len(inputs) != 1 or any(one.size != math.prod(inputs[0].shape) for one in recorded.values()):
        return False
    source = read(inputs[0], context).reshape(-1)
    alike = (one.reshape(-1) for one in recorded.values())
    return all(bool(np.all((one == source) | ((one != one) & (source != source)))) for one in alike)


def nearest(recorded: Any, candidates: list[Any], place: int) -> tuple[int, Form]:
    """The candidate that fits a recorded gradient, and its form: unchanged, transposed, or reshaped. The unchanged
    candidate in the same place is preferred, unless another is NEARER times nearer, or only the other is near; -1 if no
    candidate has as many elements."""
    best = math.inf
    found: tuple[int, Form] = (-1, _identity)
    order = sorted(range(len(candidates)), key=lambda at: at != place)
    for at in order:
        one = candidates[at]
        if one is None or one.numel() != recorded.size:
            continue
        for form in _forms(one, recorded.shape):
            away = distance(recorded, form(one))
            if away * DISTANCE_FACTOR < best or (away < best and away <= GRADIENT_DISTANCE < best):
                best, found = away, (at, form)
    return found


def _forms(one: Any, shape: tuple[int, ...]) -> list[Form]:
    found: list[Form] = []
    if tuple(one.shape) == shape:
        found.append(_identity)
    if one.dim() >= 2 and tuple(one.transpose(-1, -2).shape) == shape:
        found.append(lambda other: other.transpose(-1, -2))
    return found or [lambda other: other.reshape(shape)]


def _identity(one: Any) -> Any:
    return one


def distance(recorded: Any, exact: Any) -> float:
    """Relative distance over the elements that are finite in both."""
    a, b = recorded.astype(np.float64).reshape(-1), numpy_of(exact).reshape(-1)
    use = np.isfinite(a) & np.isfinite(b)
    size = float(np.linalg.norm(b[use]))
    away = float(np.linalg.norm(a[use] - b[use]))
    return away / size if size else (0.0 if not away else 1e300)


def number_of(slot: str, place: int) -> int:
    number = slot.rpartition(":")[2].partition(".")[0]
    return int(number) if number.isdecimal() else place
