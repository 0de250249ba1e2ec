"""The facts that rules read: `Health`, read only. It holds no limits and no verdicts; gather.py makes it in one pass.

    Health ─ steps ─ Step ─ operators ─ Op ─ tensors ─ Tensor ─ ref (record) · figures (statistics) · found (probes)
           └ parameters ─ Parameter ─ by step: weights, gradients (Tensor) · moves between steps (Moved)

A Health is one rank with all its steps. `steps` are in order; `Op.step`, `Found.step` and the like are indices into
them. Users see the number of the dump instead: `Step.number`. A tensor appears once per record: in a dump of level mix
the same weight is a `param:` of its module and an input of the operator; `parameters` holds each parameter once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.health.curves.curve import Log
from npucmp.health.detectors import StepChange
from npucmp.measure.range_scan import ScanResult
from npucmp.measure.tensor_stats import TensorStats
from npucmp.model import Event, Operator, Run, TensorRef
from npucmp.model.optypes import OpType, holds_weights_alone, is_gradient, op_type_of
from npucmp.overflows.events import events_of


class Tensor(NamedTuple):
    """One dumped tensor: its record, its statistics, and the results of probes by their names (detectors.py)."""

    operator: Operator
    ref: TensorRef
    figures: TensorStats = TensorStats()
    found: Mapping[str, Any] = {}

    @property
    def slot(self) -> str:
        return self.ref.slot

    @property
    def shape(self) -> tuple[int, ...]:
        return self.ref.shape

    @property
    def dtype(self) -> str:
        return self.ref.dtype

    @property
    def is_output(self) -> bool:
        return self.ref.is_output

    @property
    def mark(self) -> str:
        """The hash of the bits, or the recorded XOR. Different marks prove a difference; equal XORs prove nothing."""
        return self.figures.bits or self.ref.checksum


@dataclass(frozen=True)
class Op:
    """One executed operator of a step (index) with its tensors; `found` holds results of probes that read several of
    them."""

    operator: Operator
    step: int
    tensors: tuple[Tensor, ...]
    found: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def type(self) -> OpType:
        return op_type_of(self.operator)

    @property
    def name(self) -> str:
        return self.operator.name

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """Inputs in order, including the parameters in a module's record (`param:`)."""
        return tuple(one for one in self.tensors if not one.is_output)

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(one for one in self.tensors if one.is_output)

    @cached_property
    def is_gradient(self) -> bool:
        return is_gradient(self.operator)

    @property
    def is_module(self) -> bool:
        """Whether the record describes a module, not a call within a module."""
        return bool(self.operator.path)

    def tensor(self, *names: int | str, role: str = "input") -> Optional[Tensor]:
        """Return the first existing tensor `role:name`; a name is a position or the keyword of an argument."""
        slots = {one.slot: one for one in self.tensors}
        return next((slots[f"{role}:{name}"] for name in names if f"{role}:{name}" in slots), None)

    def argument(self, *names: int | str) -> Any:
        """Return the first recorded argument among these positions or keywords; None if none of them is recorded."""
        arguments = self.operator.arguments
        return next((arguments[f"input:{name}"] for name in names if f"input:{name}" in arguments), None)


@dataclass(frozen=True)
class Step:
    """One dumped step. `index` is its position in its Health, `number` the number in the dump (None if it has none).

    forward  calls of the forward pass: operators; if no operators were dumped (L0), the innermost modules
    inputs   inputs of the network: tensors that an operator reads, that no operator writes and that are not parameters;
             in order of first use, including labels
    losses   the operators that are losses, in order; `labels` are their second inputs
    """

    index: int
    run: Run
    operators: tuple[Op, ...]
    forward: tuple[Op, ...] = ()
    inputs: tuple[Tensor, ...] = ()

    @property
    def number(self) -> Optional[int]:
        return self.run.step

    @cached_property
    def backward(self) -> Mapping[str, tuple[Op, ...]]:
        """Operators of the backward pass, by the forward call whose gradients they compute."""
        found: dict[str, list[Op]] = {}
        for one in self.operators:
            if one.is_gradient:
                found.setdefault(one.operator.call, []).append(one)
        return {call: tuple(operators) for call, operators in found.items()}

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Events of NaN, Inf and saturation (born, propagated, killed), as `npucmp overflow` finds them."""
        held = ((one.operator, tensor, tensor.figures) for one in self.operators for tensor in one.tensors)
        rows = [ScanResult(one, tensor.ref, x.extremes, x.counted, x.problem) for one, tensor, x in held]
        return tuple(events_of(rows, {}, self.run.ordered))

    @cached_property
    def losses(self) -> tuple[Op, ...]:
        found = tuple(one for one in self.forward if one.type.has("loss"))
        return found or tuple(one for one in self.operators if not one.is_gradient and one.type.has("loss"))

    @cached_property
    def loss_scale(self) -> Optional[float]:
        """The gradient that enters the first loss: 1, or the factor of a loss scaler; None if unknown."""
        for loss in self.losses:
            for one in self.backward.get(loss.operator.call, ()):
                gradient = one.tensor(0)
                if gradient is not None and gradient.figures.constant is not None:
                    return gradient.figures.constant
        return None

    @cached_property
    def labels(self) -> tuple[Tensor, ...]:
        """The second input of each loss."""
        found = (one.tensor(1, "target") for one in self.losses)
        return tuple(one for one in found if one is not None)


class OptimizerUpdate(NamedTuple):
    """The update of a parameter by a dumped optimizer in one step. `residual` is the distance of the result from w -
    rate · moment, relative to w; None if the optimizer has another formula, or if inputs are missing."""

    step: int
    operator: Operator
    rate: Optional[float]
    residual: Optional[float]


@dataclass(frozen=True)
class Parameter:
    """A parameter by its name through all steps; None for each step that lacks it.

    type       type of the module or operator that owns it; `order` is that of the first operator that reads it
    trainable  whether it requires a gradient; None if the dump does not record this
    gradients  as accumulated for the optimizer if the dump has them (`parameters_grad`); else those of its operator's
               backward, which may be transposed
    moves      (from, to, Moved) with indices of steps; for kernels within one step: (n, n, Moved)
    named      False if its name is derived from the operator that reads it (level L1)
    updates    kernels only: the optimizer's update in each step
    found      results of probes of the weight in the first steps: "rows" of tables
    """

    name: str
    type: OpType
    order: int
    trainable: Optional[bool]
    weights: tuple[Optional[Tensor], ...]
    gradients: tuple[Optional[Tensor], ...]
    moves: tuple[tuple[int, int, StepChange], ...] = ()
    named: bool = True
    updates: tuple[OptimizerUpdate, ...] = ()
    found: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def first(self) -> Tensor:
        """The weight in the first step that has it."""
        return next(one for one in self.weights if one is not None)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.first.shape

    @property
    def dtype(self) -> str:
        return self.first.dtype

    @property
    def operator(self) -> Operator:
        return self.first.operator

    @property
    def varies(self) -> bool:
        """Whether its elements in the first step are known to differ from each other."""
        return self.first.figures.minimum is not None and self.first.figures.constant is None

    @property
    def is_matrix(self) -> bool:
        """Whether it has two axes or more, more than one row and more than one element per row."""
        return len(self.shape) > 1 and self.shape[0] > 1 and self.first.figures.elements > self.shape[0]

    @property
    def fan_in(self) -> int:
        """Number of inputs per unit; initialisations scale by it."""
        count = 1
        for length in self.shape[1:]:
            count *= length
        return count

    @property
    def gain(self) -> Optional[float]:
        """Initial deviation times √fan_in: 1 for Xavier, 1.41 for He. None if the deviation is unknown, and for vectors
        and tables."""
        std = self.first.figures.std
        return None if std is None or not self.is_matrix or self.type.has("looks up") else std * self.fan_in**0.5

    @cached_property
    def kind(self) -> str:
        """Its name with numbers masked; peers share it and the shape."""
        return re.sub(r"\d+", "#", self.name)

    def same_bits(self) -> Optional[bool]:
        """Whether its bits are equal in all steps; None with one step only, or if the bits of fewer than two steps are
        known."""
        if self.moves:
            return all(move.same_bits for _, _, move in self.moves)
        known = [one.figures.bits for one in self.weights if one is not None and one.figures.bits]
        return len(set(known)) == 1 if len(known) > 1 else None


@dataclass(frozen=True)
class Health:
    """One rank of a run; `ranks` are all ranks in order, including this rank.

    starts  "fresh" (all weights of norms are constant), "trained", or "unknown"
    log     curves that the user passed; on the first rank only
    """

    path: str
    steps: tuple[Step, ...]
    parameters: tuple[Parameter, ...]
    rank: Optional[int] = None
    training: bool = False
    starts: str = "unknown"
    ranks: tuple[Health, ...] = ()
    expect: Mapping[str, Any] = field(default_factory=dict)
    log: Optional[Log] = None

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(step.run for step in self.steps)

    @cached_property
    def is_checkpoint(self) -> bool:
        """Whether the dump holds only weights."""
        return all(map(holds_weights_alone, self.runs))

    @cached_property
    def has_values(self) -> bool:
        """Whether the values of any tensor were recorded and read."""
        return any(one.figures.counted for one in self.tensors())

    @cached_property
    def has_figures(self) -> bool:
        """Whether minimum, maximum and norm of any tensor are known, from values or recorded statistics."""
        return any(one.figures.rms is not None for one in self.tensors())

    @cached_property
    def has_bits(self) -> bool:
        """Whether equality is decidable for any tensor: by values or hashes."""
        return any(one.figures.bits for one in self.tensors())

    @cached_property
    def has_marks(self) -> bool:
        """Whether a difference is detectable for any tensor: by values or checksums, including an XOR."""
        return any(one.mark for one in self.tensors())

    @cached_property
    def has_calls(self) -> bool:
        """Whether operators within modules were dumped with their arguments (levels L1, mix; graphs)."""
        return any(not one.is_module and not one.is_gradient for step in self.steps for one in step.operators)

    @cached_property
    def has_names(self) -> bool:
        """Whether any parameter has a name of its own (levels L0 and mix, MindSpore), not derived from an operator."""
        return any(one.named for one in self.parameters)

    def tensors(self) -> Iterator[Tensor]:
        return (tensor for step in self.steps for one in step.operators for tensor in one.tensors)

    def operators(self, *traits: str, path: str = "*") -> Iterator[Op]:
        """Yield the forward calls of all steps that have any of the traits; `path` is a glob over their names."""
        for step in self.steps:
            for one in step.forward:
                if (not traits or one.type.has(*traits)) and fnmatchcase(one.name, path):
                    yield one

    def number(self, step: int) -> Optional[int]:
        """The number of a step in the dump."""
        return self.steps[step].number

    @cached_property
    def matrices(self) -> tuple[Parameter, ...]:
        """Matrices in order of first use."""
        return tuple(one for one in self.parameters if one.is_matrix)

    @cached_property
    def by_name(self) -> Mapping[str, Parameter]:
        return {one.name: one for one in self.parameters}

    @cached_property
    def groups(self) -> tuple[tuple[Parameter, ...], ...]:
        """Groups of two or more parameters that have equal bits in every step. Constants and parameters without known
        minima are left out: with checksums alone, many constants have the same checksum."""
        found: dict[object, list[Parameter]] = {}
        for one in self.parameters:
            bits = tuple(weight.figures.bits if weight is not None else "" for weight in one.weights)
            if all(bits) and one.varies:
                found.setdefault((one.dtype, one.shape, bits), []).append(one)
        return tuple(tuple(members) for members in found.values() if len(members) > 1)

    def peers(self, one: Parameter) -> Sequence[Parameter]:
        """Other parameters of the same shape whose names differ only in numbers."""
        return [other for other in self._kinds[one.kind, one.shape] if other is not one]

    @cached_property
    def _kinds(self) -> Mapping[tuple[str, tuple[int, ...]], list[Parameter]]:
        found: dict[tuple[str, tuple[int, ...]], list[Parameter]] = {}
        for one in self.parameters:
            found.setdefault((one.kind, one.shape), []).append(one)
        return found
