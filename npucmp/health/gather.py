"""Build the `Health` of each rank: plan which tensors are read together, read all of them in one pass, assemble the
facts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.health.detectors import MOST_ELEMENTS, PROBES, IntervalShare, StepChange
from npucmp.health.facts import Health, Op, Parameter, Step, Tensor
from npucmp.health.optimizer_kernels import UpdateGroup, groups_of, parameter_names, parameters_of
from npucmp.measure.tensor_stats import Probe, StatsResult, StatsTask, TensorStats, work_through
from npucmp.model import Operator, Run, TensorRef
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import Held, Weight, forward_of, inputs_of, is_layer, running_statistics, weights_of

SIDE_BY_SIDE = 64  # steps of a parameter that are read together
NONE: Mapping[str, Any] = MappingProxyType({})
NOTHING = TensorRef("", "", ())  # placeholder for a step that lacks the tensor
Done = Callable[[int], None]  # called with the number of bytes of each StatsTask


@dataclass
class ReadFacts:
    """The results of reading, for passes over a run that grows: a later pass reads only tensors of new steps, and the
    parameters of the step before a new one. The key of a tensor is its payload or file; without them, its identity."""

    figures: dict[object, tuple[TensorStats, Mapping[str, Any]]] = field(default_factory=dict)
    together: dict[tuple[object, ...], Mapping[str, Any]] = field(default_factory=dict)

    def forget(self, run: Run) -> None:
        """Remove the results of all tensors of a run."""
        gone = {_key(tensor) for operator in run.operators for tensor in operator.tensors}
        for key in gone:
            self.figures.pop(key, None)
        for keys in [keys for keys in self.together if not gone.isdisjoint(keys)]:
            del self.together[keys]


@dataclass
class _ReadPlan:
    """The tensors to read and the results. `is_stepwise`: the parameters of neighbouring steps are read in pairs."""

    probes: Mapping[str, Callable[..., Probe]] = field(default_factory=lambda: PROBES)
    works: list[StatsTask] = field(default_factory=list)
    claimed: set[object] = field(default_factory=set)
    facts: ReadFacts = field(default_factory=ReadFacts)
    is_stepwise: bool = False

    @property
    def width(self) -> int:
        """The number of steps of a parameter that are read together."""
        return 2 if self.is_stepwise else SIDE_BY_SIDE

    def windows(self, steps: Sequence[_Read]) -> Iterator[tuple[int, Sequence[_Read]]]:
        """Yield the steps that are read together, each with the index of its first step."""
        starts = range(len(steps) - 1) if self.is_stepwise else range(0, len(steps), SIDE_BY_SIDE)
        return ((at, steps[at : at + self.width]) for at in starts)

    def neighbours(self, work: StatsTask) -> None:
        """Plan to read a parameter in two neighbouring steps, unless an earlier pass has read this pair."""
        key = tuple(map(_key, work.tensors))
        if key not in self.facts.together:
            self.works.append(work)
            self.claimed |= {one for one in key if one is not None}

    def side_by_side(self, work: StatsTask) -> None:
        """Plan to read these tensors together. Skip the request if another one already includes any of them."""
        key = tuple(map(_key, work.tensors))
        if not any(one in self.claimed for one in key if one is not None):
            self.works.append(work)
            self.claimed |= {one for one in key if one is not None}

    def probe_results(self, tensors: Sequence[TensorRef]) -> Mapping[str, Any]:
        """The probe results of tensors that were read together; empty if they were not."""
        return self.facts.together.get(tuple(map(_key, tensors)), NONE)

    def alone(self, tensor: TensorRef, probes: Sequence[str]) -> None:
        if _key(tensor) not in self.claimed:
            self.claimed.add(_key(tensor))
            self.works.append(StatsTask((tensor,), {name: self.probes[name] for name in probes}))

    def take(self, work: StatsTask, found: StatsResult) -> None:
        keys = tuple(map(_key, work.tensors))
        alone = found.found if len(keys) == 1 else {}
        for key, figures in zip(keys, found.figures):
            if not (self.is_stepwise and key in self.facts.figures):  # the step before was read by an earlier pass
                self.facts.figures[key] = figures, alone
        if len(keys) > 1:
            self.facts.together[keys] = found.found

    def tensor(self, held: Held) -> Tensor:
        operator, ref = held
        return Tensor(operator, ref, *self.facts.figures.get(_key(ref), (TensorStats(), {})))


def _key(tensor: TensorRef) -> object:
    return None if tensor is NOTHING else tensor.payload or tensor.file or id(tensor)


@dataclass(frozen=True)
class _Read:
    """One step before any tensor is read."""

    run: Run
    operators: tuple[Operator, ...]
    weights: Mapping[str, Weight]
    forward: tuple[Operator, ...]
    inputs: tuple[Held, ...]
    groups: tuple[UpdateGroup, ...]


def build(
    path: str,
    runs: Sequence[Run],
    wants: Callable[[Operator], bool] = lambda operator: True,
    jobs: int = 1,
    context: ReadContext = ANYWHERE,
    done: Done = lambda size: None,
    expect: Mapping[str, Any] = NONE,
    inside: Optional[tuple[float, float]] = None,
    facts: Optional[ReadFacts] = None,
) -> tuple[Health, ...]:
    """Return the facts of a dump, one Health per rank. A tensor that cannot be read has the problem in its figures. If
    `inside` gives a range, each output also has the share of its elements within that range. If `facts` has the
    results of earlier passes over the first steps, it gets those of the others."""
    by_rank: dict[Optional[int], list[Run]] = {}
    for run in sorted(runs, key=lambda one: (one.rank or 0, one.step or 0)):
        by_rank.setdefault(run.rank, []).append(run)
    read = {rank: [_looked_at(run, wants) for run in runs_of_rank] for rank, runs_of_rank in by_rank.items()}
    probes: Mapping[str, Callable[..., Probe]] = PROBES
    if inside:
        probes = {**PROBES, "inside": partial(IntervalShare, *inside)}
    plan = _ReadPlan(probes) if facts is None else _ReadPlan(probes, [], {*facts.figures}, facts, True)
    for steps in read.values():
        _plan(steps, plan)
    for work, found in zip(plan.works, work_through(plan.works, jobs, context)):
        plan.take(work, found)
        done(work.bytes)
    healths = tuple(_health(path, rank, steps, plan, expect) for rank, steps in read.items())
    return tuple(replace(one, ranks=healths) for one in healths)


def _looked_at(run: Run, wants: Callable[[Operator], bool]) -> _Read:
    run = replace(run, operators=tuple(filter(wants, run.operators)))
    groups = tuple(groups_of(run))
    weights = weights_of(run) if not groups else {}
    return _Read(run, run.operators, weights, tuple(forward_of(run)), tuple(inputs_of(run, weights)), groups)


def _plan(steps: Sequence[_Read], plan: _ReadPlan) -> None:
    for group in (group for step in steps for group in step.groups):
        plan.side_by_side(group.work(NOTHING))
    for name, weight in _names(steps).items():
        probes = ("moves", "rows") if weight.type.has("looks up") else ("moves",)
        for _, window in plan.windows(steps):
            work = StatsTask(tuple(_through_steps(name, window)), {probe: PROBES[probe] for probe in probes})
            if plan.is_stepwise:
                plan.neighbours(work)
            elif len(window) > 1:
                plan.side_by_side(work)
    for step in steps:
        for one in step.forward:
            pair = _dropout_tensors(one)
            if pair:
                plan.side_by_side(StatsTask(pair, {"dropped": PROBES["dropped"]}))
        wanted = _probes(step)
        for operator in step.operators:
            for tensor in operator.tensors:
                detectors = ("inside",) if tensor.is_output and "inside" in plan.probes else ()
                plan.alone(tensor, (*wanted.get(id(tensor), ()), *detectors))


def _names(steps: Sequence[_Read]) -> dict[str, Weight]:
    """Parameters of all steps by name, in order of first use."""
    found: dict[str, Weight] = {}
    for step in steps:
        for name, one in step.weights.items():
            found.setdefault(name, one)
    return dict(sorted(found.items(), key=lambda item: item[1].order))


def _through_steps(name: str, steps: Sequence[_Read]) -> list[TensorRef]:
    """A parameter in each step, followed by its gradients. A gradient of another shape (transposed) is left out."""
    parameters = [step.weights.get(name) for step in steps]
    weights = [one.weight[1] if one else NOTHING for one in parameters]
    shape = next(one.shape for one in weights if one is not NOTHING) if any(parameters) else ()
    gradients = [
        one.gradient[1] if one and one.gradient and one.gradient[1].shape == shape else NOTHING for one in parameters
    ]
    return weights + gradients


def _dropout_tensors(operator: Operator) -> tuple[TensorRef, ...]:
    """The input and the output of a dropout; () for other operators, or if the shapes differ."""
    if not op_type_of(operator).has("drops"):
        return ()
    slots = {one.slot: one for one in operator.tensors}
    both = slots.get("input:0"), slots.get("output:0")
    return (both[0], both[1]) if both[0] and both[1] and both[0].shape == both[1].shape else ()


def _probes(step: _Read) -> dict[int, tuple[str, ...]]:
    """The probes of each single tensor (by identity), chosen by its role."""
    found: dict[int, tuple[str, ...]] = {id(tensor): ("samples", "whole") for _, tensor in step.inputs}
    found.update((id(one.weight[1]), ("rows",)) for one in step.weights.values() if one.type.has("looks up"))
    first = next((one for one in step.forward if op_type_of(one).has("averages")), None)
    evaluates = not any(map(is_gradient, step.operators))
    for one in step.forward:
        kind, statistics = op_type_of(one), running_statistics(one)
        for tensor in one.tensors:
            more: tuple[str, ...] = ()
            if kind.has("rectifies") and tensor.is_output:
                more = ("channels",)
            elif kind.has("saturates") and tensor.slot == "input:0":
                more = ("beyond",)
            elif kind.has("loss") and not tensor.is_output:
                more = ("samples", "whole")
            elif tensor.slot in statistics:
                more = ("whole",)
            elif one is first and tensor.slot == "input:0" and evaluates:
                more = ("means",)
            elif is_layer(kind) and tensor.slot == "output:0" and math.prod(tensor.shape) <= MOST_ELEMENTS:
                more = ("samples",)
            if more:
                found[id(tensor)] = tuple(dict.fromkeys((*found.get(id(tensor), ()), *more)))
    return found


def _health(
    path: str, rank: Optional[int], steps: Sequence[_Read], plan: _ReadPlan, expect: Mapping[str, Any]
) -> Health:
    made = tuple(_step(index, step, plan) for index, step in enumerate(steps))
    parameters = tuple(_parameter(name, one, steps, plan) for name, one in _names(steps).items())
    parameters = parameters or tuple(_of_kernels(steps, plan))
    training = any(is_gradient(one) for step in steps for one in step.operators)
    return Health(path, made, parameters, rank, training, _starts(parameters), expect=expect)


def _step(index: int, step: _Read, plan: _ReadPlan) -> Step:
    operators = tuple(_op(index, one, plan) for one in step.operators)
    forward = {id(one) for one in step.forward}
    inputs = tuple(plan.tensor(held) for held in step.inputs)
    return Step(index, step.run, operators, tuple(one for one in operators if id(one.operator) in forward), inputs)


def _op(step: int, operator: Operator, plan: _ReadPlan) -> Op:
    tensors = tuple(plan.tensor((operator, tensor)) for tensor in operator.tensors)
    pair = _dropout_tensors(operator)
    return Op(operator, step, tensors, plan.probe_results(pair) if pair else NONE)


def _parameter(name: str, one: Weight, steps: Sequence[_Read], plan: _ReadPlan) -> Parameter:
    parameters = [step.weights.get(name) for step in steps]
    wanted = [held.weight[1].trainable for held in parameters if held and held.weight[1].trainable is not None]
    weights = tuple(plan.tensor(held.weight) if held else None for held in parameters)
    return Parameter(
        name,
        one.type,
        one.order,
        any(wanted) if wanted else None,
        weights,
        tuple(plan.tensor(held.gradient) if held and held.gradient else None for held in parameters),
        tuple(_moves(name, steps, plan)),
        one.named,
        found=plan.probe_results(_through_steps(name, steps[: plan.width])) or next(filter(None, weights)).found,
    )


def _moves(name: str, steps: Sequence[_Read], plan: _ReadPlan) -> Iterator[tuple[int, int, StepChange]]:
    for at, window in plan.windows(steps):
        found = plan.probe_results(_through_steps(name, window)).get("moves") or ()
        for number, move in enumerate(found, at):
            if move is not None:
                yield number, number + 1, move


def _of_kernels(steps: Sequence[_Read], plan: _ReadPlan) -> list[Parameter]:
    """Parameters identified by the optimizer's updates; equal names in several steps are joined into one parameter."""
    found: dict[str, list[Optional[Parameter]]] = {}
    for index, step in enumerate(steps):
        names = parameter_names(step.run, plan.tensor) if step.groups else {}
        for group in step.groups:
            nearest = plan.probe_results(group.tensors(NOTHING)).get("steps") or ()
            for one in parameters_of(index, group, nearest, plan.tensor, names):
                found.setdefault(one.name, [None] * len(steps))[index] = one
    return sorted((_merged_parameter(parameters) for parameters in found.values()), key=lambda one: one.order)


def _merged_parameter(steps: Sequence[Optional[Parameter]]) -> Parameter:
    known = [one for one in steps if one is not None]
    return replace(
        known[0],
        weights=tuple(one.weights[0] if one else None for one in steps),
        gradients=tuple(one.gradients[0] if one else None for one in steps),
        moves=tuple(move for one in known for move in one.moves),
        updates=tuple(update for one in known for update in one.updates),
    )


def _starts(parameters: Sequence[Parameter]) -> str:
    """ "fresh" if all weights of norms are constant (their initial state); "unknown" if no norm is recorded."""
    norms = [one.first.figures for one in parameters if one.type.has("normalises") and len(one.shape) == 1]
    known = [one for one in norms if one.minimum is not None]
    if not known:
        return "unknown"
    return "fresh" if all(one.constant is not None for one in known) else "trained"
