"""Shared views of several families of rules: operators through all steps, the data of a network, its losses."""

from __future__ import annotations

import math
from functools import wraps
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional

from npucmp.health.facts import Health, Op, Step, Tensor
from npucmp.health.rule import Found
from npucmp.measure.tensor_stats import TensorStats
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import op_type_of

FIGURES = ("abs_mean", "max", "min", "mean")
WATCHPOINTS = " ".join(
    f"{name}_{side}" for name in FIGURES for side in ("gt", "lt")
)  # names of MindInsight's watchpoints
SHARES, RANGE = "range_percentage_gt range_percentage_lt", ("range_start_inclusive", "range_end_inclusive")


def range_in(limits: Mapping[str, float]) -> Optional[tuple[float, float]]:
    """The range whose share of values is watched; None if no share is watched. An end that is not given is open."""
    if not any(word in limits for word in SHARES.split()):
        return None
    return limits.get(RANGE[0], -math.inf), limits.get(RANGE[1], math.inf)


def exceeded_limit(
    x: TensorStats, limits: Mapping[str, float], inside: Optional[float] = None
) -> Optional[tuple[str, float, float]]:
    """The first limit that a tensor exceeds: (words, figure, limit). `inside` is the share of its elements within the
    range."""
    known = {"abs_mean": x.mean_abs, "max": x.maximum, "min": x.minimum, "mean": x.mean, "range_percentage": inside}
    for word, bound in limits.items():
        name, _, side = word.rpartition("_")
        value = known.get(name)
        if value is not None and (value > bound if side == "gt" else value < bound):
            return f"{name} is {value:.4g} {'>' if side == 'gt' else '<'} {bound:g}", value, bound
    return None


def by_name(operators: Iterable[Op]) -> dict[str, list[Op]]:
    """Operators of all steps, grouped by name."""
    found: dict[str, list[Op]] = {}
    for one in operators:
        found.setdefault(one.name, []).append(one)
    return found


def per_operator(
    *traits: str, select: Optional[Callable[[Health], Iterable[Op]]] = None
) -> Callable[[Callable[[Health, Op, Any], Optional[Found]]], Callable[[Health, Any], Iterator[Found]]]:
    """Make a function of (health, op, limit), which returns the finding of one operator in one step, the function of a
    rule. It examines the forward calls that have any of the traits, or those that `select` returns. The rule yields one
    finding per operator: that of the first affected step, with the number of affected steps."""

    def decorator(finding_of: Callable[[Health, Op, Any], Optional[Found]]) -> Callable[[Health, Any], Iterator[Found]]:
        @wraps(finding_of)
        def findings(health: Health, limit: Any) -> Iterator[Found]:
            examined = health.operators(*traits) if select is None else select(health)
            for steps in by_name(examined).values():
                found = [one for one in (finding_of(health, op, limit) for op in steps) if one is not None]
                if found:
                    count = f", in {len(found)} steps" if len(found) > 1 else ""
                    yield found[0]._replace(because=found[0].because + count, step=_step_of(found[0]))

        return findings

    return decorator


def _step_of(found: Found) -> Optional[int]:
    return found.at.step if isinstance(found.at, Op) else found.step


def is_float(tensor: Tensor) -> bool:
    return is_float_type(tensor.dtype)


def is_float_type(dtype: str) -> bool:
    row = lookup(dtype)
    return row is not None and row.kind == "f"


def is_whole(tensor: Tensor) -> bool:
    """Whether the dtype is an integer."""
    row = lookup(tensor.dtype)
    return row is not None and row.kind in "iu"


def data_of(step: Step) -> tuple[Tensor, ...]:
    """The training data among the inputs of a step: the first tokens or batched floats, and other floats of the same
    batch size. Masks, positions, tables and buffers to be filled are left out."""
    losses = {id(one.operator) for one in step.losses}
    tensors = [one for one in step.inputs if id(one.operator) not in losses and one.shape and not _is_filled(one)]
    floats = [one for one in tensors if is_float(one) and len(one.shape) > 1 and one.shape[0] > 1]
    tokens = [one for one in tensors if is_whole(one) and _looked_up(step, one)]
    outputs = [one for one in tensors if one.is_output]  # a graph records inputs as outputs
    first = next((one for one in tensors if any(one is other for other in (*floats, *tokens, *outputs))), None)
    if first is None:
        return ()
    return (first, *(one for one in floats if one is not first and one.shape[0] == first.shape[0]))


def _is_filled(tensor: Tensor) -> bool:
    """Whether the operator writes values of another tensor into this one."""
    tensors = tensor.operator.tensors
    others = [one for one in tensors if one is not tensor.ref and not one.is_output and is_float_type(one.dtype)]
    return tensor.slot == "input:0" and op_type_of(tensor.operator).has("picks") and bool(others)


def _looked_up(step: Step, tensor: Tensor) -> bool:
    return op_type_of(tensor.operator).has("looks up") and tensor.shape != (1,)


def data_in(health: Health) -> dict[tuple[str, str], list[tuple[int, Tensor]]]:
    """The data by operator and slot: (index of the step, tensor) for each step that has it."""
    found: dict[tuple[str, str], list[tuple[int, Tensor]]] = {}
    for step in health.steps:
        for one in data_of(step):
            found.setdefault((one.operator.name, one.slot), []).append((step.index, one))
    return found


class Loss(NamedTuple):
    """A loss in one step: its inputs, the number of classes, and the recorded arguments of the call."""

    op: Op
    step: Step
    logits: Optional[Tensor]
    labels: Optional[Tensor]

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def value(self) -> Optional[float]:
        """The mean of its output; None if unknown."""
        return self.op.outputs[0].figures.mean if self.op.outputs else None

    @property
    def classes(self) -> int:
        """The number of classes in the logits; 0 if the loss has no classes."""
        if self.logits is None or not self.op.type.has("classes"):
            return 0
        shape = self.logits.shape
        return shape[1] if len(shape) > 1 else shape[0] if shape else 0

    @property
    def ignored(self) -> int:
        """The label that is ignored."""
        label = self.op.argument("ignore_index", 4)
        return label if isinstance(label, int) and not isinstance(label, bool) else -100

    @property
    def reduction(self) -> str:
        return str(self.op.argument("reduction", 6, 2) or "mean")

    @property
    def flows(self) -> tuple[Tensor, ...]:
        """The gradient that enters the loss in the backward pass: 1, or the loss scale."""
        backward = self.step.backward.get(self.op.operator.call, ()) if self.op.operator.call else ()
        return tuple(tensor for one in backward for tensor in one.inputs[:1])


def losses_in(health: Health) -> list[Loss]:
    """The losses of all steps."""
    found = []
    for step in health.steps:
        for op in step.losses:
            logits, labels = op.tensor(0, "input", "logits"), op.tensor(1, "target", "labels")
            found.append(Loss(op, step, logits, labels))
    return found


def full_values(tensor: Optional[Tensor]) -> Any:
    """The values of a tensor that was kept whole; None for other tensors."""
    return None if tensor is None else tensor.found.get("whole")
