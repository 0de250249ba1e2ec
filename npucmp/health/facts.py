"""What rules see of a run: `Health`, read only. It holds no limit and no opinion; build.py makes it in one pass.

    Health ─ steps ─ Step ─ operators ─ Op ─ tensors ─ Tensor ─ ref (what it is) · figures (what it holds) · found
           └ parameters ─ Parameter ─ by step: weights, gradients (Tensor) · moves between steps (Moved)

A Health is one rank with all its steps. `steps` are in order, and index them everywhere (`Op.step`, `Finding.step` …
are numbers of a step where a reader sees them: `Step.number`). A tensor is there once per record: in a dump of level
mix the same weight is a `param:` of its module and an input of the operator; `parameters` have each but once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.health.curves.curve import Log
from npucmp.health.probes import Moved
from npucmp.measure.figures import Figures
from npucmp.measure.profile import Scanned
from npucmp.model import Event, Operator, Run, TensorRef
from npucmp.model.optypes import OpType, holds_weights_alone, is_gradient, op_type_of
from npucmp.overflow_events.events import events_of


class Tensor(NamedTuple):
    """One dumped tensor: what it is, what it holds, and what probes found of it, by their names (probes.py)."""

    operator: Operator
    ref: TensorRef
    figures: Figures = Figures()
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
        """The bits, or the recorded XOR: two that differ prove a difference, two equal XORs prove nothing."""
        return self.figures.bits or self.ref.checksum


@dataclass(frozen=True)
class Op:
    """One executed operator of a step (its index) with its tensors; `found` is what probes found of several of them."""

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
        """In order, parameters of a module's record (`param:`) among them."""
        return tuple(one for one in self.tensors if not one.is_output)

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(one for one in self.tensors if one.is_output)

    @cached_property
    def is_gradient(self) -> bool:
        return is_gradient(self.operator)

    @property
    def is_module(self) -> bool:
        """Whether it is the record of a module, not of a call within it."""
        return bool(self.operator.path)

    def tensor(self, *names: int | str, role: str = "input") -> Optional[Tensor]:
        """The first of the tensors `role:name` that there is: by place, or as a dump names an argument by its word."""
        slots = {one.slot: one for one in self.tensors}
        return next((slots[f"{role}:{name}"] for name in names if f"{role}:{name}" in slots), None)

    def argument(self, *names: int | str) -> Any:
        """The first of the arguments that there is, by place or word; None if the dump tells none of them."""
        given = self.operator.arguments
        return next((given[f"input:{name}"] for name in names if f"input:{name}" in given), None)


@dataclass(frozen=True)
class Step:
    """One dumped step; index among those of its Health, number as the dump counts (None: it does not).

    forward calls of the forward pass: those of operators, or where none were dumped (L0) of the innermost modules
    inputs  what the network was given: read by an operator, written by none, no parameter; in order of first use,
            labels among them
    losses  the operators that are losses, in order; `labels` are what they hold the network's output against
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
        """Operators of the backward pass by the call whose gradient they are."""
        found: dict[str, list[Op]] = {}
        for one in self.operators:
            if one.is_gradient:
                found.setdefault(one.operator.call, []).append(one)
        return {call: tuple(some) for call, some in found.items()}

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Where NaN, Inf and saturation are born, passed on and killed, as `npucmp overflow` finds them."""
        held = ((one.operator, tensor, tensor.figures) for one in self.operators for tensor in one.tensors)
        rows = [Scanned(one, tensor.ref, x.extremes, x.counted, x.problem) for one, tensor, x in held]
        return tuple(events_of(rows, {}, self.run.ordered))

    @cached_property
    def losses(self) -> tuple[Op, ...]:
        found = tuple(one for one in self.forward if one.type.has("loss"))
        return found or tuple(one for one in self.operators if not one.is_gradient and one.type.has("loss"))

    @cached_property
    def loss_scale(self) -> Optional[float]:
        """What flows into the first loss backward: 1, or the factor that a loss scaler put in; None if unknown."""
        for loss in self.losses:
            for one in self.backward.get(loss.operator.call, ()):
                given = one.tensor(0)
                if given is not None and given.figures.constant is not None:
                    return given.figures.constant
        return None

    @cached_property
    def labels(self) -> tuple[Tensor, ...]:
        """What losses hold the output against: their second input."""
        found = (one.tensor(1, "target") for one in self.losses)
        return tuple(one for one in found if one is not None)


class Updated(NamedTuple):
    """What an optimizer that was dumped did to a parameter in a step: its learning rate, and how far what it made is
    from w - rate · moment, relative to w; None where it computes something else, or not enough is known."""

    step: int
    operator: Operator
    rate: Optional[float]
    residual: Optional[float]


@dataclass(frozen=True)
class Parameter:
    """A parameter by its name, through all steps; what a step does not hold is None.

    type       of the module or operator that it belongs to; `order` of the first that reads it
    trainable  whether a gradient is wanted; None where the dump does not tell
    gradients  as accumulated for the optimizer where the dump has that (`parameters_grad`), else those of its
               operator's backward, which may lie transposed
    moves      (from, to) indices of steps and how it moved; of kernels within a step: (n, n)
    named      False where its name is made of that of the operator that reads it (level L1)
    updates    of kernels: what the optimizer did in each step
    found      what probes found of it in the first steps: "rows" of tables
    """

    name: str
    type: OpType
    order: int
    trainable: Optional[bool]
    weights: tuple[Optional[Tensor], ...]
    gradients: tuple[Optional[Tensor], ...]
    moves: tuple[tuple[int, int, Moved], ...] = ()
    named: bool = True
    updates: tuple[Updated, ...] = ()
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
        """Whether its elements are known not to be all the same at first."""
        return self.first.figures.minimum is not None and self.first.figures.constant is None

    @property
    def is_matrix(self) -> bool:
        """Whether it is one: two axes or more, and more than one row."""
        return len(self.shape) > 1 and self.shape[0] > 1 and self.first.figures.elements > self.shape[0]

    @property
    def fan_in(self) -> int:
        """Inputs of one unit: what a start is scaled by."""
        count = 1
        for length in self.shape[1:]:
            count *= length
        return count

    @property
    def gain(self) -> Optional[float]:
        """Deviation at the start times √fan_in: 1 for Xavier's, 1.41 for He's; None where it says nothing."""
        std = self.first.figures.std
        return None if std is None or not self.is_matrix or self.type.has("looks up") else std * self.fan_in**0.5

    @cached_property
    def kind(self) -> str:
        """Its name without numbers: peers have it, and its shape, in common."""
        return re.sub(r"\d+", "#", self.name)

    def same_bits(self) -> Optional[bool]:
        """Whether it has the same bits in all steps; None where that is not known of any two, or there is one step."""
        if self.moves:
            return all(move.same_bits for _, _, move in self.moves)
        known = [one.figures.bits for one in self.weights if one is not None and one.figures.bits]
        return len(set(known)) == 1 if len(known) > 1 else None


@dataclass(frozen=True)
class Health:
    """One rank of a run; `ranks` are all of them, this one among them, in order.

    starts  "fresh" (all weights of norms are constant), "trained", or "unknown"
    log     the curves that the user gave, of the first rank alone
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
        """Whether the dump holds weights alone."""
        return all(map(holds_weights_alone, self.runs))

    @cached_property
    def has_values(self) -> bool:
        """Whether values of some tensor were kept and read."""
        return any(one.figures.counted for one in self.tensors())

    @cached_property
    def has_figures(self) -> bool:
        """Whether minima, maxima and norms are known of some tensor, by values or records."""
        return any(one.figures.rms is not None for one in self.tensors())

    @cached_property
    def has_bits(self) -> bool:
        """Whether it can be told of some tensors whether they are equal: by values or hashes."""
        return any(one.figures.bits for one in self.tensors())

    @cached_property
    def has_marks(self) -> bool:
        """Whether it can be told of some tensors that they differ: by values or checksums, an XOR among them."""
        return any(one.mark for one in self.tensors())

    @cached_property
    def has_calls(self) -> bool:
        """Whether operators within modules were dumped (levels L1, mix; graphs), with their arguments."""
        return any(not one.is_module and not one.is_gradient for step in self.steps for one in step.operators)

    @cached_property
    def has_names(self) -> bool:
        """Whether parameters have names of their own (levels L0 and mix, MindSpore), not those of an operator."""
        return any(one.named for one in self.parameters)

    def tensors(self) -> Iterator[Tensor]:
        return (tensor for step in self.steps for one in step.operators for tensor in one.tensors)

    def operators(self, *traits: str, path: str = "*") -> Iterator[Op]:
        """Calls of the forward pass in all steps that have any of the traits; `path` is a glob over their names."""
        for step in self.steps:
            for one in step.forward:
                if (not traits or one.type.has(*traits)) and fnmatchcase(one.name, path):
                    yield one

    def number(self, step: int) -> Optional[int]:
        """The number that the dump has for a step."""
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
        """Parameters that have the same bits in every step, in groups of two and more. Constants are in none, nor what
        may be one: checksums alone do not tell, and that of many constants is the same."""
        found: dict[object, list[Parameter]] = {}
        for one in self.parameters:
            bits = tuple(weight.figures.bits if weight is not None else "" for weight in one.weights)
            if all(bits) and one.varies:
                found.setdefault((one.dtype, one.shape, bits), []).append(one)
        return tuple(tuple(some) for some in found.values() if len(some) > 1)

    def peers(self, one: Parameter) -> Sequence[Parameter]:
        """Other parameters of its shape whose names differ from its own in numbers only."""
        return [other for other in self._kinds[one.kind, one.shape] if other is not one]

    @cached_property
    def _kinds(self) -> Mapping[tuple[str, tuple[int, ...]], list[Parameter]]:
        found: dict[tuple[str, tuple[int, ...]], list[Parameter]] = {}
        for one in self.parameters:
            found.setdefault((one.kind, one.shape), []).append(one)
        return found
