"""A recorded call of PyTorch or of MindSpore's mint → its numpy formula and its inputs.

A forward record is computed by the formula of its call. A backward record is computed by the gradients of the same
line, from the inputs and the recorded results of its forward. A backward formula returns several autograd nodes;
npucmp selects the node that fits the record.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Collection, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array, distinct
from npucmp.model import Call, SpelledArgument, TensorRef
from npucmp.model.dtypes import canonical, numpy_dtype, unit_of
from npucmp.recompute.arguments import MissingTensor, arguments_of, floats_in
from npucmp.recompute.call_inputs import CallInputs, Node, arrays_in, map_arrays
from npucmp.recompute.call_table import CallFormula
from npucmp.recompute.noisy_ops import Alternatives, Steps
from npucmp.recompute.table import ROUNDED_ONCE, CallRow, row_of
from npucmp.recompute.task import Task

GRADIENT_DISTANCE = 0.3  # relative distance up to which a recorded gradient may be that of a node
DISTANCE_FACTOR = 10.0  # times nearer: another node then replaces the first node that fits
ALIKE, NEAREST = 64, 0.01  # round-offs, and a share, up to which an element is that of a node
MIN_VALUES = 16  # values: a multiple of fewer may be a gradient of another node
ANOTHER = "another autograd node"
KEYWORDS = {"self": "input", "axis": "dim", "keepdims": "keepdim", "x": "input"}  # older versions, and mint
SIZED = frozenset(["interpolate"])  # their scalars give the size of the result, which is computed in float64
SEVERAL = frozenset("squeeze unsqueeze flatten reshape view to type".split())  # the recorded shape decides


class CallPlan(NamedTuple):
    """The formula of a forward call."""

    formula: CallFormula
    kind: str
    views: bool = False

    def results(self, m: Steps, g: CallInputs) -> list[Any]:
        found = self.formula.forward(m, g, *g.args, **g.kwargs)
        return [*found] if isinstance(found, (list, tuple)) and not isinstance(found, Alternatives) else [found]


class GradientChoice(NamedTuple):
    """The gradient to compare with a recorded gradient: its node, its place in the node, whether it is transposed.
    `is_sure`: no other gradient is possible."""

    node: int
    place: int
    is_turned: bool
    is_sure: bool

    def of(self, nodes: Sequence[Node]) -> Optional[Array]:
        one = nodes[self.node][self.place]
        return one.swapaxes(-1, -2) if one is not None and self.is_turned else one


class BackwardPlan(NamedTuple):
    """The gradients of a call that a record holds. `chosen` has an entry for each recorded gradient, by place."""

    formula: CallFormula
    chosen: Mapping[int, Optional[GradientChoice]]
    kind: str = "noise"
    views: bool = True

    def nodes(self, m: Steps, g: CallInputs) -> list[Node]:
        assert self.formula.backward is not None
        found: list[Node] = self.formula.backward(m, g, *g.args, **g.kwargs)
        plain = [[one for one in node if one is not None] for node in found]  # the node without the missing gradients
        return [*found, *(one for one, node in zip(plain, found) if len(one) < len(node))]

    def results(self, m: Steps, g: CallInputs) -> list[Any]:
        return self.of(self.nodes(m, g))

    def of(self, nodes: Sequence[Node]) -> list[Any]:
        """The recorded gradients among those of all nodes."""
        choices = [self.chosen.get(at) for at in range(max(self.chosen, default=-1) + 1)]
        return [None if one is None else one.of(nodes) for one in choices]


class BoundCall(NamedTuple):
    """inputs, and how they were rounded; `others` are the same inputs with scalars or operands rounded differently."""

    inputs: CallInputs
    treated: str
    others: tuple[CallInputs, ...]
    is_once: bool


def plan_of_call(call: Call, row: CallRow, formula: CallFormula, is_once: bool) -> CallPlan:
    """The formula of a forward call, with the kind of its rounding budget."""
    kind = row.kind
    if kind == "sum" and (_is_scaled(call) or call.name.rstrip("_") in ("mean", "cumsum")):
        kind = "noise"
    if kind == "noise" and is_once:
        kind = "once"
    return CallPlan(formula, "noise" if kind in ("dropout", "npu") else kind, call.name in SEVERAL)


def _is_scaled(call: Call) -> bool:
    return any(
        isinstance(call.kwargs.get(key), SpelledArgument) and getattr(call.kwargs[key], "value", 1) != 1
        for key in ("alpha", "beta")
    )


def bound_call(
    task: Task,
    tensor: Callable[[TensorRef], Array],
    results: Mapping[int, TensorRef],
    recorded: Mapping[int, Array],
    gradients: Sequence[Optional[Array]],
) -> BoundCall:
    """The inputs of a call. Raises RefusedRecord for arguments that are not known to be safe."""
    operator = task.forward if task.is_backward else task.operator
    call = task.called
    assert operator is not None
    row = row_of(call)
    assert row is not None
    refs = {one.slot: one for one in operator.tensors}
    loaded: dict[str, Array] = {}

    def load(slot: str) -> Array:
        if slot not in refs:
            raise MissingTensor(f"the dump holds no {slot}")
        if slot not in loaded:
            loaded[slot] = tensor(refs[slot])
        return loaded[slot]

    args, kwargs = arguments_of(call, row, load, lambda name: name)
    kwargs = {KEYWORDS.get(key, key): one for key, one in kwargs.items()}
    inputs = CallInputs(tuple(args), kwargs, {at: one.shape for at, one in results.items()}, recorded, tuple(gradients))
    low = next((one.dtype for one in results.values() if one.dtype in ("float16", "bfloat16")), "")
    floats = [refs[slot].dtype for slot in loaded if unit_of(refs[slot].dtype)]
    plain, treated = inputs, ""
    if row.autocast and low and any(unit_of(one) < unit_of(low) for one in floats):
        inputs, treated = _rounded(inputs, low), f"autocast {low}"
    cast = _cast_of(call, row)
    if cast and any(unit_of(one) < unit_of(cast) for one in floats):
        inputs = _rounded(inputs, cast)
    unit = max((unit_of(one.dtype) for one in results.values()), default=0.0)
    scalars = floats_in([inputs.args, dict(inputs.kwargs)])
    others: list[CallInputs] = []
    exact = inputs
    if scalars and unit != 2.0**-53 and call.name not in SIZED:
        narrow = min(floats, key=unit_of, default="float32") if unit == 0 else "float32"
        inputs = _with_scalars(exact, narrow)
        others = [_with_scalars(exact, name) for name in ("float64", "float32", low) if name and name != narrow]
    if treated and len(arrays_in([args, kwargs])) > 2:  # some kernels add the bias before they round
        others.append(_with_bias(inputs, plain))
    is_plain = all(float(np.float32(one)) == one for one in scalars)
    name = call.name if call.name.startswith("__") else call.name.rstrip("_")
    is_once = is_plain and name in ROUNDED_ONCE and not call.kwargs
    return BoundCall(inputs, treated, tuple(others), is_once)


def _cast_of(call: Call, row: CallRow) -> str:
    """The float type that the keyword dtype names, "" for none: a sum or a softmax casts its input first."""
    word = call.kwargs.get("dtype")
    is_cast = isinstance(word, SpelledArgument) and row.kind in ("sum", "noise")
    name = canonical(str(word.value)) if is_cast and isinstance(word, SpelledArgument) else ""
    return name if name and unit_of(name) else ""


def _rounded(inputs: CallInputs, name: str) -> CallInputs:
    """Round the tensors among the arguments to a type; gradients and results keep their recorded values."""

    def change(one: Array) -> Array:
        with np.errstate(over="ignore"):
            return one.astype(numpy_dtype(name)).astype(np.float64) if one.dtype.kind == "f" else one

    args, kwargs = map_arrays([inputs.args, dict(inputs.kwargs)], change)
    return CallInputs(args, kwargs, inputs.shapes, inputs.recorded, inputs.gradients)


def _with_bias(inputs: CallInputs, plain: CallInputs) -> CallInputs:
    """Replace the third tensor by its recorded values."""
    wide = iter(arrays_in([plain.args, dict(plain.kwargs)]))
    count = iter(range(1 << 16))

    def change(one: Array) -> Array:
        other = next(wide)
        return other if next(count) >= 2 else one

    args, kwargs = map_arrays([inputs.args, dict(inputs.kwargs)], change)
    return CallInputs(args, kwargs, inputs.shapes, inputs.recorded, inputs.gradients)


def _with_scalars(inputs: CallInputs, name: str) -> CallInputs:
    """Round Python floats to the type that a kernel receives."""

    def change(tree: Any) -> Any:
        if isinstance(tree, float) and math.isfinite(tree):
            with np.errstate(over="ignore"):
                return float(np.asarray(tree).astype(numpy_dtype(name)))
        return tuple(change(one) for one in tree) if isinstance(tree, tuple) else tree

    args, kwargs = change(inputs.args), {key: change(one) for key, one in inputs.kwargs.items()}
    return CallInputs(args, kwargs, inputs.shapes, inputs.recorded, inputs.gradients)


# which gradient a record holds


def chosen_gradients(
    nodes: Sequence[Node],
    recorded: Mapping[int, Array],
    units: Mapping[int, float],
    types: Collection[int],
    limit: float = GRADIENT_DISTANCE,
) -> dict[int, Optional[GradientChoice]]:
    """The gradient to compare with each recorded gradient, by place; None if no gradient has its shape.

    A node fits if each recorded gradient has the shape of the node's gradient in the same place. The first node that
    fits is selected, unless another is NEARER times nearer. A choice is sure if no other node can have been recorded
    (`types` are the places whose type is a type of the inputs of a call without other nodes), if another gradient of
    the same node is near, or if the gradient itself is near. If no node fits, the nearest gradient is selected for
    each; it is sure if near.
    """
    best: Optional[dict[int, GradientChoice]] = None
    least = math.inf
    for number in range(len(nodes)):
        found = _fit(nodes, number, recorded)
        if found is None:
            continue
        away = sum(min(1.0, _distance(recorded[at], one.of(nodes))) for at, one in found.items())
        if best is None or away * DISTANCE_FACTOR < least or (away <= GRADIENT_DISTANCE * len(found) < least):
            best, least = found, away
    if best is not None:
        near = {at: is_near(recorded[at], one.of(nodes), units[at], limit) for at, one in best.items()}
        nonzero = {at: bool(np.any(recorded[at])) for at in best}
        return {
            at: one._replace(is_sure=at in types or near[at] or any(near[k] and nonzero[k] for k in best if k != at))
            for at, one in best.items()
        }
    return {at: _nearest(nodes, one, units[at]) for at, one in recorded.items()}


def _fit(nodes: Sequence[Node], number: int, recorded: Mapping[int, Array]) -> Optional[dict[int, GradientChoice]]:
    node, found = nodes[number], {}
    for at, one in recorded.items():
        forms = _forms(node[at], one) if at < len(node) else []
        if not forms:
            return None
        turned = min(forms, key=lambda is_turned: _distance(one, GradientChoice(number, at, is_turned, True).of(nodes)))
        found[at] = GradientChoice(number, at, turned, True)
    return found


def _forms(one: Optional[Array], recorded: Array) -> list[bool]:
    """Possible values of `is_turned` by the shapes: False, True."""
    if one is None:
        return []
    found = [False] if one.shape == recorded.shape else []
    return [*found, True] if one.ndim >= 2 and one.swapaxes(-1, -2).shape == recorded.shape else found


def _nearest(nodes: Sequence[Node], recorded: Array, unit: float) -> Optional[GradientChoice]:
    """The nearest gradient with the same number of elements; sure if it is near."""
    best, least = None, math.inf
    for number, node in enumerate(nodes):
        for place, one in enumerate(node):
            if one is None or one.size != recorded.size:
                continue
            for turned in _forms(one, recorded) or [False]:
                chosen = GradientChoice(number, place, turned, False)
                away = _distance(recorded, chosen.of(nodes))
                if away < least:
                    best, least = chosen._replace(is_sure=is_near(recorded, chosen.of(nodes), unit)), away
    return best


def _distance(recorded: Array, exact: Optional[Array]) -> float:
    """Relative distance over the elements that are finite in both."""
    assert exact is not None
    a, b = np.ravel(recorded).astype(np.float64), np.ravel(exact)
    use = np.isfinite(a) & np.isfinite(b)
    size, away = float(np.linalg.norm(b[use])), float(np.linalg.norm(a[use] - b[use]))
    return away / size if size else (0.0 if not away else 1e300)


def is_near(recorded: Array, exact: Optional[Array], unit: float, near: float = GRADIENT_DISTANCE) -> bool:
    """Whether a gradient, even a wrong one, belongs to a node: it is near, or most nonzero elements are equal, directly
    or after scaling."""
    if _distance(recorded, exact) <= near:
        return True
    assert exact is not None
    a, b = np.ravel(recorded).astype(np.float64), np.ravel(exact)
    nonzero = (a != 0) | (b != 0)

    def is_most(b: Array) -> bool:
        with np.errstate(invalid="ignore", over="ignore"):
            same = np.abs(a - b) <= min(ALIKE * unit, NEAREST) * np.abs(b)
        return bool(nonzero.any()) and int((same & nonzero).sum()) > int(nonzero.sum()) / 2

    if is_most(b):
        return True
    factor = _factor(a, b)
    return factor != 0 and is_most(factor * b)


def _factor(a: Array, b: Array) -> float:
    """The factor from `b` to `a`; 0 if `b` has fewer than FEW absolute values, so that a factor proves nothing."""
    use = np.isfinite(a) & np.isfinite(b) & (b != 0)
    if len(distinct(np.abs(b[use]))) < MIN_VALUES:
        return 0.0
    ratios = np.sort(a[use] / b[use])
    return float(ratios[(len(ratios) - 1) // 2 : len(ratios) // 2 + 1].mean())  # as np.median, which imports numpy.ma
