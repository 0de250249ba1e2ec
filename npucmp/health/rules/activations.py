"""Rules of operator outputs: dead, saturated or constant outputs, and growth along the depth.

Sources: MindInsight's watchpoints, SageMaker Debugger, AUTOTRAINER, DeepDiagnosis, TheDeepChecker, msprobe, the tuning
guides of Ascend and MindSpore. The limits were measured on 66 clean runs and 53 planted faults; published limits fire
on healthy networks.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any, Iterator, Mapping, Optional

from npucmp.health.facts import Health, Op, Step, Tensor
from npucmp.health.rule import Found, rule
from npucmp.health.rules.locations import RANGE, SHARES, WATCHPOINTS, exceeded_limit, is_float, per_operator
from npucmp.health.rules.weights import step_words
from npucmp.model.roles import is_layer

MANY_VALUES = 64  # per channel: no channel of a healthy network has this many zeros by chance
FEW_VALUES_LIMIT = 0.75
FLAT = {True: 8.0, False: 5.0}  # sigmoid, tanh: beyond this input their slope is below 3.4e-4
LAYERS = 4
SPIKE_STEPS = 3  # least other steps that show the usual size of a tensor
LEAST_ELEMENTS = 8  # of a tensor whose size is stable between batches: chosen
CONSTANT_ELEMENTS = 16  # an output with more elements must not be constant


@rule(
    "relu.dead",
    "error",
    "figures, relus",
    0.999,
    "a ReLU writes only zeros",
    "check its bias, the learning rate, and whether its input is negative everywhere",
    "MindInsight (> 99.9 %), SageMaker DeadRelu, AUTOTRAINER, DeepDiagnosis 0.7",
)
@per_operator("rectifies")
def dead(health: Health, op: Op, limit: float) -> Optional[Found]:
    """Report the share of zeros. Clean runs have 24 to 66 %."""
    share = op.outputs[0].figures.zeros if op.outputs else None
    if share is None or share < limit or op.outputs[0].figures.elements < 2:
        return None
    return Found(op, f"{share:.1%} of its output elements are 0", 100 * share, limit=100 * limit, unit="%")


@rule(
    "relu.dead_channels",
    "warning",
    "values, relus",
    0.25,
    "channels of a ReLU are zero for all samples and positions",
    "lower the learning rate, or check the biases of the preceding layer",
    "SageMaker (50 % of a layer), DeepDiagnosis",
)
@per_operator("rectifies")
def dead_channels(health: Health, op: Op, limit: float) -> Optional[Found]:
    """Report the share of zero channels. Clean and trained networks have up to 3.9 % if a channel has 64 values or
    more, and up to 59 % over 8 samples."""
    dead, channels, each = (op.outputs[0].found.get("channels") if op.outputs else None) or (0, 0, 0)
    least = limit if each >= MANY_VALUES else max(limit, FEW_VALUES_LIMIT)
    if not channels or dead == channels or dead < least * channels or dead == 0:
        return None
    words = f"{dead} of {channels} channels are 0 in all {each:,} values"
    return Found(op, words, 100 * dead / channels, limit=100 * least, unit="%")


@rule(
    "activation.saturated",
    "warning",
    "values, saturating",
    0.5,
    "the inputs of a sigmoid or tanh lie where its gradient vanishes",
    "initialise with smaller weights, or normalise its input",
    "MindInsight (99.9 % beyond 16.2 and 8.8), SageMaker, DeepDiagnosis (5, 50 %)",
)
@per_operator("saturates")
def saturated(health: Health, op: Op, limit: float) -> Optional[Found]:
    """Report the share of inputs in the flat range. No clean run has it. The last operator of a run without a backward
    pass is skipped, because confident predictions saturate."""
    is_last = not health.training and op is health.steps[op.step].forward[-1]
    read = op.tensor(0, "input", "x")
    flat = FLAT[op.type.has("exponential")]
    share = (read.found.get("beyond") or {}).get(flat) if read is not None else None
    if share is None or share <= limit or is_last:
        return None
    return Found(
        op, f"{share:.0%} of its input elements lie beyond ±{flat:g}", 100 * share, limit=100 * limit, unit="%"
    )


@rule(
    "attention.collapsed",
    "warning",
    "figures, calls, tensors",
    0.99,
    "attention selects a single position, or weights all positions equally",
    "check the scale of queries and keys, and the learning rate",
    "msprobe monitor: entropy, softmax_max",
    off=True,
)
@per_operator("exponential")
def collapsed(health: Health, op: Op, limit: float) -> Optional[Found]:
    """Examine rows that sum to 1 over the last axis: their mean sum of squares is 1 if each row has one position, and
    1/n if all n positions are equal. The second case is judged only for trained networks without masked positions."""
    made = op.outputs[0] if op.outputs else None
    x, keys = (made.figures, made.shape[-1]) if made is not None and len(made.shape) > 2 else (None, 0)
    if x is None or keys < 4 or not x.mean or x.rms is None or abs(x.mean * keys - 1) > 1e-3:
        return None
    share = x.rms**2 * keys
    if share > limit:
        return Found(op, f"each row selects one of {keys} positions ({share:.3f} of 1)", share, limit=limit)
    even = health.starts == "trained" and bool(x.minimum)
    if even and share * keys < 2 - limit:
        return Found(op, f"each row weights all {keys} positions equally", share * keys, limit=2 - limit)
    return None


def _layers(health: Health) -> Iterator[Op]:
    """Operators with weights, norms and activations, whose outputs are floats."""
    for op in health.operators("contracts", "normalises", "looks up", "exponential", "saturates"):
        if (op.type.parameters or not op.type.has("contracts")) and op.outputs and is_float(op.outputs[0]):
            yield op


@rule(
    "tensor.zero",
    "warning",
    "figures, tensors",
    says="an operator with weights, a norm or an activation writes only zeros",
    remedy="check its weights and its inputs",
    source="MindInsight tensor_all_zero, SageMaker AllZero",
)
@per_operator(select=_layers)
def zero(health: Health, op: Op, limit: None) -> Optional[Found]:
    """Report where zeros start: an operator that reads zeros may write zeros. On every tensor it would fire in 5 clean
    runs (masks, dropout, positions)."""
    made = op.outputs[0].figures if op.outputs else None
    read = op.tensor(0, "input")
    if made is None or made.elements < 2 or not made.is_zero or (read is not None and read.figures.is_zero):
        return None
    own = _starts_at_zero(op)
    words = "all output elements are 0" + (", and so are its weights" if own else "")
    return Found(op, words, 0.0, severity="hint" if own else "")


def _starts_at_zero(op: Op) -> bool:
    """Whether its weights are zero (for norms, the bias too): the last layer of a branch may start so."""
    places = {*(f"input:{place}" for place in op.type.parameters), "input:weight", "input:bias"}
    places |= {"param:weight", "param:bias"}  # slots of a module's record
    wanted = [one for one in op.inputs if one.ref.trainable and one.slot in places]
    if op.type.has("normalises"):
        return bool(wanted) and all(one.figures.is_zero for one in wanted)
    return any(len(one.shape) > 1 and one.figures.is_zero for one in wanted)


@rule(
    "tensor.constant",
    "warning",
    "figures, tensors",
    says="the output of an operator with weights is constant",
    remedy="check its weights and its inputs",
    source="DeepDiagnosis UnchangeTensor, MindInsight max_min_lt",
)
@per_operator(select=_layers)
def constant(health: Health, op: Op, limit: None) -> Optional[Found]:
    """Report an output with largest = smallest, not 0, and more than 16 elements; silent if neither is recorded. No
    clean run has it."""
    made = op.outputs[0].figures if op.outputs else None
    value = made.constant if made is not None else None
    if made is None or not value or made.elements <= CONSTANT_ELEMENTS or not op.type.parameters:
        return None
    return Found(op, f"all {made.elements:,} elements are {value:.6g}", value)


@rule(
    "tensor.range",
    "warning",
    "figures, tensors",
    says="a tensor exceeds the range that you set",
    remedy="",
    source="MindInsight tensor_too_large, tensor_too_small, tensor_range, activation_range",
    off=True,
    words=f"{WATCHPOINTS} {SHARES} {' '.join(RANGE)}",
)
@per_operator()
def range_(health: Health, op: Op, limit: Mapping[str, float]) -> Optional[Found]:
    """Report outputs beyond limits that the user sets; names and meaning are those of MindInsight's watchpoints. The
    share of values in a range (per cent) has one range for all outputs. Outputs of dropouts have no share, because they
    are read together with their inputs."""
    for tensor in op.outputs:
        found = exceeded_limit(tensor.figures, limit, tensor.found.get("inside"))
        if found is not None:
            words, value, bound = found
            return Found(op, f"{tensor.slot}: {words}", value, limit=bound)
    return None


@rule(
    "tensor.jump",
    "warning",
    "figures, tensors",
    100.0,
    "the norm of an output is many times that of the inputs",
    "",
    "msprobe NumericalMutation 100; fires in 14 of 64 clean runs",
    off=True,
)
@per_operator()
def jump(health: Health, op: Op, limit: float) -> Optional[Found]:
    """Compare the norms of output and inputs. Off by default: norms of sums over many elements grow like this in 14 of
    64 clean runs."""
    read, made = [_norm(one.figures) for one in op.inputs], [_norm(one.figures) for one in op.outputs]
    most, least = max((x for x in made if x is not None), default=None), [x for x in read if x]
    if most is None or not least or most <= limit * max(least):
        return None
    times = most / max(least)
    return Found(op, f"{times:.3g} times the norm of its inputs", times, limit=limit, unit="times")


def _norm(figures: Any) -> Optional[float]:
    return None if figures.rms is None else figures.rms * math.sqrt(figures.elements)


@rule(
    "tensor.spike",
    "warning",
    "figures, four steps, tensors",
    10.0,
    "a tensor is many times its size of the other steps",
    "recompute this call from its recorded inputs: npucmp replay",
    "chosen; 144 clean runs of 4 to 20 steps have at most 3.4",
)
def spike(health: Health, limit: float) -> Iterator[Found]:
    """Report the first tensor of a step whose rms leaves the range of its own earlier steps, or of all other steps if
    fewer than three are earlier. A range that spans a factor above the limit widens the limit to that factor. The first
    step, warm-up in many runs, is not judged, and a loss varies with its batch."""
    sizes: dict[tuple[str, str], dict[int, float]] = {}
    for step in health.steps:
        for op in _calls(step):
            for tensor in op.tensors:
                rms = tensor.figures.rms
                if is_float(tensor) and rms and math.isfinite(rms) and tensor.figures.elements >= LEAST_ELEMENTS:
                    sizes.setdefault((op.name, tensor.slot), {})[step.index] = rms
    for step in health.steps[1:]:
        for op in _calls(step):
            for tensor in (*op.inputs, *op.outputs):
                known = sizes.get((op.name, tensor.slot), {})
                others = [rms for index, rms in known.items() if index < step.index]
                if len(others) < SPIKE_STEPS:
                    others = [rms for index, rms in known.items() if index != step.index]
                if step.index not in known or len(others) < SPIKE_STEPS:
                    continue
                times, most = known[step.index] / median(others), max(limit, max(others) / min(others))
                if known[step.index] > most * max(others):
                    yield _spike(health, op, tensor, times, most)
                    return


def _calls(step: Step) -> list[Op]:
    """The calls of a step in order, and those of their backward pass; without losses and modules around calls."""
    forward = {op.operator.call or op.name for op in step.forward}
    calls = [op for op in step.operators if (op.operator.call or op.name) in forward and not op.type.has("loss")]
    return sorted(calls, key=lambda op: op.operator.order)


def _spike(health: Health, op: Op, tensor: Tensor, times: float, limit: float) -> Found:
    """Return the finding of a spike: of an operator that reads inputs of usual size, or of a tensor that it reads."""
    where = step_words(health, op.step)
    if not tensor.is_output:
        words = f"{tensor.slot} is {times:.3g} times its usual rms in {where}: this operator reads it first"
        remedy = "check where this tensor comes from: data, a parameter, or code that was not dumped"
        return Found(op, words, times, "hint", remedy, step=op.step, limit=limit, unit="times")
    most = tensor.figures.maximum
    bounded = op.type.has("at most 1") and most is not None and most > 1.01
    words = f"{tensor.slot} is {times:.3g} times its usual rms in {where}"
    words += ", no tensor that it reads is" if any(read.figures.rms for read in op.inputs) else ""
    words += f"; its maximum {most:.4g} is above 1, the most that this operator returns" if bounded else ""
    return Found(op, words, times, "error" if bounded else "", step=op.step, limit=limit, unit="times")


@rule(
    "activation.growth",
    "warning",
    "figures, calls, tensors",
    1e4,
    "outputs of layers explode or vanish along the depth",
    "initialise weights with another scale (Xavier, He), or add norms",
    "SageMaker PoorWeightInitialization; 37 reasons #28 #35",
)
def growth(health: Health, limit: float) -> Iterator[Found]:
    """Report the largest over the smallest rms of the outputs of linear layers and convolutions; clean runs have 1 to
    170."""
    for step in health.steps:
        sizes = [(op, op.outputs[0].figures.rms) for op in step.forward if is_layer(op.type) and op.outputs]
        known = [(op, rms) for op, rms in sizes if rms]
        if len(known) < LAYERS:
            continue
        (small, least), (large, most) = (pick(known, key=lambda one: one[1]) for pick in (min, max))
        if most > limit * least:
            words = f"rms {most:.3g}, {most / least:.2g} times that of {small.name} ({least:.3g})"
            yield Found(large, words, most / least, step=step.index, limit=limit, unit="times")
            return


@rule(
    "activation.scale",
    "warning",
    "figures, calls, tensors",
    2.0,
    "the deviation of an output is outside 1/2 to 2",
    "",
    "DL4J; 37 reasons #35; fires in 64 of 64 clean runs",
    off=True,
)
@per_operator(select=_layers)
def scale(health: Health, op: Op, limit: float) -> Optional[Found]:
    """Report the deviation of outputs. Off by default: all of 64 clean runs have such outputs."""
    std = op.outputs[0].figures.std if op.outputs else None
    if std is None or op.outputs[0].figures.elements < 2 or 1 / limit <= std <= limit:
        return None
    return Found(op, f"deviation {std:.3g}", std, limit=limit)


@rule(
    "activation.mean",
    "warning",
    "figures, calls, tensors",
    3.0,
    "the mean of an output is far from zero",
    "",
    "37 reasons #33",
    off=True,
)
@per_operator(select=_layers)
def mean(health: Health, op: Op, limit: float) -> Optional[Found]:
    """Report the mean of outputs over their deviation. Off by default: not yet measured on healthy networks of many
    kinds."""
    x = op.outputs[0].figures if op.outputs else None
    if x is None or x.mean is None or not x.std or abs(x.mean) <= limit * x.std:
        return None
    return Found(op, f"mean {x.mean:.3g}, deviation {x.std:.3g}", abs(x.mean) / x.std, limit=limit, unit="times")
