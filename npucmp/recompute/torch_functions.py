"""Calls that only torch computes, as formulas (operators without a line in call_table.py). Only child processes import
this.

The function is the one that npucmp's table names, in float64 on the CPU. Before any value is computed, the call is made
on meta tensors, which have shapes but no values: its intermediate tensors must fit into memory.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from functools import cache, partial
from itertools import zip_longest
from operator import attrgetter
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from npucmp.dump.readers.values import Array
from npucmp.model.dtypes import lookup
from npucmp.recompute.arguments import CALL_ERRORS, MissingTensor, NotInTable, RefusedRecord
from npucmp.recompute.call_inputs import CallInputs, Node, map_arrays
from npucmp.recompute.call_table import CallFormula
from npucmp.recompute.noisy_ops import Steps
from npucmp.recompute.rounding_noise import RoundingNoise
from npucmp.recompute.table import COMPOSITE, CallRow
from npucmp.recompute.task import first_line

CLONED = ("batch_norm", "instance_norm")  # write running statistics, which have no gradient
INTEGERS = {
    "bool": torch.bool, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64,
    "uint8": torch.uint8,
}  # fmt: skip
warnings.simplefilter("ignore")  # of recorded calls
torch.set_num_threads(1)
torch.set_flush_denormal(False)


@cache
def formula_of_row(row: CallRow) -> CallFormula:
    """Return the forward and the backward of the function that a line of the table names. Raises NotInTable if this
    torch lacks it."""
    function = _function_of(row)
    return CallFormula(row.call, (partial(_forward, row, function), partial(_backward, row, function)), False)


def _function_of(row: CallRow) -> Callable[..., Any]:
    """Attention is computed by its formula: fused CPU kernels hide their steps."""
    try:
        function: Callable[..., Any] = attrgetter(row.call)(torch)
    except AttributeError:
        raise NotInTable(f"this torch has no {row.call}") from None
    if not row.call.endswith("scaled_dot_product_attention"):
        return function
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        raise NotInTable("attention needs torch 2.3 or newer") from None

    def attention(*args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel([SDPBackend.MATH]):
            return function(*args, **kwargs)

    return attention


def _forward(row: CallRow, function: Callable[..., Any], m: Steps, g: CallInputs, *args: Any, **kwargs: Any) -> Any:
    values, options = _as_torch(args, kwargs, m)
    if m.seed is None:
        _check(row, function, values, options, m)
    noise = None if m.seed is None else RoundingNoise(m.unit, m.accumulator, m.seed)
    with torch.no_grad(), noise or nullcontext():
        results = _called(row, function, values, options)
    return [_as_numpy(one, noise, m.unit) for one in results]


def _backward(
    row: CallRow, function: Callable[..., Any], m: Steps, g: CallInputs, *args: Any, **kwargs: Any
) -> list[Node]:
    """The gradients of the inputs, and those of the last autograd node. The backward uses the recorded results of the
    forward."""
    values, options = _as_torch(args, kwargs, m)
    name = row.call.rpartition(".")[2]
    fixed = {id(one) for one in values[1:3]} if name in CLONED else set()
    every: list[Any] = []

    def leaf(one: Any) -> Any:
        every.append(one.detach().clone().requires_grad_() if one.is_floating_point() and id(one) not in fixed else one)
        return every[-1]

    values, options = _mapped([values, options], leaf)
    leaves = [one for one in every if one.requires_grad]
    if not leaves:
        raise MissingTensor("its forward has no input with a gradient")
    if m.seed is None:
        _check(row, function, values, options, m)
    noise = None if m.seed is None else RoundingNoise(m.unit, m.accumulator, m.seed)
    if noise is not None:
        noise.is_recomputed = name.endswith("attention")
    if row.inplace:
        values, options = _mapped([values, options], torch.clone)
    node: list[Any] = []
    with torch.enable_grad():
        with noise or nullcontext():
            results = _called(row, function, values, options)
        places = {one.untyped_storage().data_ptr() for one in every}
        saved = [g.recorded.get(at) for at in range(len(results))]
        pairs = []
        for result, gradient, stored in zip_longest(results, g.gradients[: len(results)], saved):
            if not isinstance(result, torch.Tensor):
                continue
            if stored is not None and result.untyped_storage().data_ptr() not in places:
                kept = torch.from_numpy(np.ascontiguousarray(stored)).reshape(result.shape)
                result.data.copy_(kept)  # indices too: among equal values a device may have selected others
            if result.requires_grad and gradient is not None:
                pairs.append((result, torch.from_numpy(np.array(gradient)).to(result.dtype).reshape(result.shape)))
        if not pairs:
            raise MissingTensor("no incoming gradient was recorded")
        last = pairs[0][0].grad_fn  # None if the result is an input itself
        hook = last.register_hook(lambda inputs, outputs: node.extend(inputs)) if last is not None else None
        with noise or nullcontext():
            found = torch.autograd.grad([one for one, _ in pairs], leaves, [one for _, one in pairs], allow_unused=True)
        if hook is not None:
            hook.remove()
    by_leaf = {id(one): gradient for one, gradient in zip(leaves, found)}
    nodes = [[by_leaf.get(id(one)) for one in every], node]
    return [[_as_numpy(one, noise, m.unit) for one in some] for some in nodes]


def has_one_node(row: CallRow, inputs: CallInputs) -> bool:
    """Whether a call is a single autograd node, which returns the gradients of its inputs."""
    if row.call.rpartition(".")[2] in COMPOSITE:
        return False
    values, options = _as_torch(inputs.args, inputs.kwargs, Steps(0.0, 0.0, 0))
    values, options = _mapped(
        [values, options], lambda one: one.clone().requires_grad_() if one.is_floating_point() else one
    )
    with torch.enable_grad():
        first = _called(row, _function_of(row), values, options)[0]
    node = first.grad_fn if isinstance(first, torch.Tensor) else None
    before = [one for one, _ in node.next_functions if one is not None] if node is not None else []
    return bool(before) and all(one.name() == "torch::autograd::AccumulateGrad" for one in before)


def _called(row: CallRow, function: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
    """The results as a flat list; the function writes into copies only."""
    name = row.call.rpartition(".")[2]
    if row.inplace or name in CLONED or any(one is True for one in args):
        args, kwargs = _mapped([args, kwargs], torch.clone)
    if name == "embedding" and len(args) > 3:
        args = [*args[:3], None, *args[4:]]  # max_norm: the weight was written to before it was recorded
    result = function(*args, **kwargs)
    if result is None and row.inplace:
        result = args[0]
    return [result] if isinstance(result, torch.Tensor) else tree_flatten(result)[0]


def _check(row: CallRow, function: Callable[..., Any], args: Any, kwargs: Any, m: Steps) -> None:
    """Make the call on meta tensors. Raises RefusedRecord if torch rejects it, CallTooLarge if it needs too much
    memory."""
    shapes = _mapped([args, kwargs], lambda one: torch.empty(one.shape, dtype=one.dtype, device="meta"))
    try:
        with _Counted(m), torch.no_grad():
            _called(row, function, *shapes)
    except RefusedRecord:
        raise
    except NotImplementedError:
        raise RefusedRecord("the shape of the result depends on values") from None
    except CALL_ERRORS as error:
        raise RefusedRecord(f"torch rejects the recorded arguments: {first_line(error)}") from None


class _Counted(TorchDispatchMode):  # type: ignore[misc]
    """Ask for the room of the tensors that aten calls allocate."""

    def __init__(self, m: Steps) -> None:
        super().__init__()
        self._steps = m

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in tree_flatten(out)[0] if not func.is_view else ():
            if isinstance(one, torch.Tensor):
                self._steps.room(one.shape)
        return out


def _as_torch(args: Any, kwargs: Any, m: Steps) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as tensors, in the type to which each step is rounded, if any. Names of element types become
    torch's, those of floats float64."""
    low = None if m.narrow is None else getattr(torch, m.narrow.name)

    def change(one: Array) -> Any:
        found = torch.from_numpy(np.array(one))
        return found.to(low) if low is not None and found.is_floating_point() else found

    values, options = map_arrays([list(args), dict(kwargs)], change)
    return [_typed(one) for one in values], {key: _typed(one) for key, one in options.items()}


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to each tensor among the arguments."""
    return map_arrays(tree, change, torch.Tensor)


def _typed(word: Any) -> Any:
    row = lookup(word) if isinstance(word, str) else None
    if row is None:
        return word
    if row.kind == "f":
        return torch.float64
    if word not in INTEGERS:
        raise RefusedRecord(f"the element type {word!r:.40} is not supported")
    return INTEGERS[word]


def _as_numpy(one: Any, noise: Optional[RoundingNoise], unit: float) -> Optional[Array]:
    if not isinstance(one, torch.Tensor):
        return None
    if noise is not None and one.is_floating_point():
        one = noise.settled(one, unit)
    one = one.detach()
    if one.is_complex():
        raise RefusedRecord("complex results are not supported")
    found: Array = (one.to(torch.float64) if one.is_floating_point() else one).contiguous().numpy()
    return found
