"""Rules of the gradients of parameters."""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from statistics import median
from typing import Iterator, Optional, Sequence

from npucmp.health.facts import Health, Parameter, Tensor
from npucmp.health.rule import Found, rule
from npucmp.health.rules.weights import first_ill, step_words
from npucmp.model.roles import mark_of

Finds = Iterator[Found]
GATE = 1e-2  # a constant factor below it blocks a branch; LayerScale starts at 1e-6 to 1e-4


@rule(
    "grad.missing",
    "error",
    "backward, gradients",
    says="a parameter requires a gradient but has none",
    remedy="look for detach, no_grad, or a missing path to the loss",
    source="TrainCheck; guides of MindSpore: node connection",
)
def missing(health: Health, limit: Optional[float]) -> Finds:
    """Report a parameter that requires a gradient but has none in any step, while others have gradients. Without names
    (L1), neither its operator nor another operator that reads the same weight has a backward record: a recomputed
    forward (checkpointing) has the backward. Experts without tokens have no record and are not reported."""
    reached = set() if health.has_names else _reached(health)
    for one in health.parameters:
        if not one.trainable or any(one.gradients):
            continue
        weights = [weight for weight in one.weights if weight is not None]
        if one.named or not any(_content(weight) in reached for weight in weights):
            steps = f"{len(weights)} steps" if len(weights) > 1 else "the dumped step"
            yield Found(one, f"requires a gradient but has none in {steps}")


@rule(
    "grad.zero",
    "warning",
    "figures, backward, gradients",
    says="the gradient of a parameter is exactly 0",
    remedy="a later operator blocks the gradient, or the loss does not depend on the parameter",
    source="MindInsight tensor_all_zero, AUTOTRAINER, SageMaker VanishingGradient",
)
def zero(health: Health, limit: Optional[float]) -> Finds:
    """Report a gradient of 0 in every dumped step. It is a hint for vectors, and for a single step: behind a head that
    starts at 0 all gradients are 0 once. Without names (L1) each call that reads a weight has its own gradient; the
    first iteration of a loop has 0, because its state is 0."""
    alive = {_content(one.first) for one in health.parameters if not all(map(_is_zero, one.gradients))}
    for one in health.parameters:
        known = [gradient for gradient in one.gradients if gradient is not None]
        if not one.named and one.varies and _content(one.first) in alive:
            continue
        if known and all(gradient.figures.is_zero for gradient in known):
            is_sure = one.is_matrix and len(known) > 1
            words = (
                f"its gradient is 0 in {len(known)} steps" if len(known) > 1 else "its gradient is 0 in the one step"
            )
            yield Found(one, words, 0.0, "" if is_sure else "hint")


def _is_zero(gradient: Optional[Tensor]) -> bool:
    return gradient is None or gradient.figures.is_zero


def _reached(health: Health) -> set[object]:
    """The contents of all tensors read by calls that have a backward record."""
    calls = ((step, op) for step in health.steps for op in step.forward if step.backward.get(op.operator.call))
    return {_content(tensor) for _, op in calls for tensor in op.inputs}


def _content(tensor: Tensor) -> object:
    """The key that identifies a weight if only calls have names."""
    return tensor.shape, tensor.figures.bits or mark_of(tensor.ref)


def _along_depth(health: Health) -> Iterator[tuple[int, float, Parameter, Parameter]]:
    """For each step: the ratio of gradients at the input to those at the output, each over its weight, and the first
    and the last matrix. Scales of loss and batch cancel. Matrices that start at zero are skipped: they are still small,
    so all others would seem to vanish before such a head. If gates start near zero, matrices behind them have small
    gradients; then only peers are compared, which have similar gates."""
    matrices = [one for one in health.matrices if not one.first.figures.is_zero]
    if any(map(_is_gate, health.parameters)):
        peers: dict[object, list[Parameter]] = {}
        for one in matrices:
            peers.setdefault((one.kind, one.shape), []).append(one)
        matrices = max(peers.values(), key=len, default=[])
    for step in range(len(health.steps)):
        known = [(one, over) for one in matrices if (over := _over_weight(one, step))]
        quarter = max(1, len(known) // 4)
        if len(known) >= 4:
            first, last = ([over for _, over in part] for part in (known[:quarter], known[-quarter:]))
            yield step, median(first) / median(last), known[0][0], known[-1][0]


def _is_gate(one: Parameter) -> bool:
    """Whether it is a factor that starts near zero: the last norm of a branch, LayerScale, ReZero, a convolution of
    zeros."""
    start = one.first.figures.constant
    is_vector = sum(size > 1 for size in one.shape) < 2
    return start is not None and abs(start) < GATE and (one.is_matrix or is_vector) and not one.name.endswith("bias")


def _over_weight(one: Parameter, step: int) -> Optional[float]:
    weight, gradient = one.weights[step], one.gradients[step]
    if weight is None or gradient is None or not weight.figures.rms or not gradient.figures.rms:
        return None
    return gradient.figures.rms / weight.figures.rms


@rule(
    "grad.vanishing",
    "warning",
    "figures, backward, names, gradients",
    limit=1e-4,
    says="gradients shrink towards the input",
    remedy="add residuals or norms, or use another activation or initialisation",
    source="measured; MindInsight gradient_vanishing (mean < 1e-9 fires in 19 of 64 clean runs)",
)
def vanishing(health: Health, limit: Optional[float]) -> Finds:
    """Compare rms(g)/rms(w) of matrices in forward order: the median of the first quarter over that of the last, in
    every dumped step, for at least four matrices. Clean 0.0097 … 848, planted 4.7e-14 and 5.5e-7."""
    found = list(_along_depth(health))
    if limit is not None and found and all(times < limit for _, times, _, _ in found):
        step, times, first, last = max(found, key=lambda one: one[1])
        words = f"its gradient is {times:.2g} times that of {last.name}, each relative to its weight"
        yield Found(first, words, times, step=step, unit="times")


@rule(
    "grad.exploding",
    "warning",
    "figures, backward, gradients",
    limit=1e4,
    says="gradients grow towards the input",
    remedy="clip gradients, initialise with smaller weights, or add norms",
    source="measured; AUTOTRAINER's 70 would fire on sound nets (848)",
)
def exploding(health: Health, limit: Optional[float]) -> Finds:
    """Report a large ratio in every dumped step; see grad.vanishing."""
    found = list(_along_depth(health))
    if limit is not None and found and all(times > limit for _, times, _, _ in found):
        step, times, first, last = min(found, key=lambda one: one[1])
        words = f"its gradient is {times:.2g} times that of {last.name}, each relative to its weight"
        yield Found(first, words, times, step=step, unit="times")


@rule(
    "grad.nonfinite",
    "error",
    "figures, backward, gradients",
    says="a gradient of a parameter holds NaN or Inf",
    remedy="npucmp overflow finds the operators that produce it",
    source="MindInsight gradient_exploding, SageMaker ExplodingTensor, msprobe AnomalyNan",
)
def nonfinite(health: Health, limit: Optional[float]) -> Finds:
    """Report NaN or Inf in any step. It is a hint if the loss scale falls in the next step: the scaler skipped the step
    by design."""
    ill = ((one, first_ill(one.gradients)) for one in reversed(health.parameters))  # in the order of the backward pass
    for one, (step, what) in sorted(((one, found) for one, found in ill if found), key=lambda item: item[1][0]):
        skipped = _scale_falls(health, step)
        words = f"its gradient holds {what} in {step_words(health, step)}"
        words += "; the loss scale then falls, so the step was skipped" if skipped else ""
        yield Found(one, words, severity="hint" if skipped else "", step=step)


def _scale_falls(health: Health, step: int) -> bool:
    scales = [one.loss_scale for one in health.steps[step : step + 2]]
    return len(scales) == 2 and None not in scales and abs(scales[1] or 0) < abs(scales[0] or 0)


@rule(
    "grad.accumulated",
    "hint",
    "figures, calls, names, steps, backward, gradients",
    limit=0.5,
    says="gradients of parameters differ from those that their step computed",
    remedy="they were not cleared (zero_grad), or are accumulated on purpose",
    source="measured",
)
def accumulated(health: Health, limit: Optional[float]) -> Finds:
    """Report a falling share of matrices whose gradient has the norm (to 1e-4) of an output of a backward operator: at
    least half in the first step, and less than half of that share in a later step. The share is constant in clean runs.
    """
    shares = [_share_of_own(health, step) for step in range(len(health.steps))]
    first = shares[0]
    if limit is None or first is None or first < limit:
        return
    for step, share in enumerate(shares):
        if share is not None and share < first / 2:
            words = f"the backward pass wrote {first:.0%} of the gradients in step {_number(health, 0)}"
            yield Found(None, f"{words}, {share:.0%} in step {_number(health, step)}", share, step=step)
            return


def _number(health: Health, step: int) -> int | str:
    number = health.number(step)
    return step if number is None else number


def _share_of_own(health: Health, step: int) -> Optional[float]:
    """The share of matrices whose gradient has the norm of a backward output of this step; None without gradients."""
    written: dict[int, list[float]] = {}
    for group in health.steps[step].backward.values():
        for op in group:
            for one in op.outputs:
                norm = _norm(one) if one.slot.startswith("output") and not op.is_module else None
                if norm is not None:
                    written.setdefault(one.figures.elements, []).append(norm)
    known = [gradient for one in health.matrices if (gradient := one.gradients[step]) is not None]
    norms = [(gradient.figures.elements, norm) for gradient in known if (norm := _norm(gradient))]
    if not norms:
        return None
    ordered = {count: sorted(group) for count, group in written.items()}
    return sum(_is_near(norm, ordered.get(count, ())) for count, norm in norms) / len(norms)


def _is_near(norm: float, ordered: Sequence[float]) -> bool:
    """Whether the sorted list holds an equal norm to 1e-4."""
    at = bisect(ordered, norm)
    return any(math.isclose(norm, one, rel_tol=1e-4) for one in ordered[max(0, at - 1) : at + 1])


def _norm(tensor: Tensor) -> Optional[float]:
    x = tensor.figures
    return None if x.rms is None else x.rms * math.sqrt(x.elements)


@rule(
    "grad.norm_jump",
    "hint",
    "figures, steps, backward, gradients",
    limit=10.0,
    says="the gradient of a parameter jumps between steps",
    remedy="check the batch and the loss of that step",
    source="msprobe AnomalyTurbulence (its 0.5 is for a human who watches)",
)
def norm_jump(health: Health, limit: Optional[float]) -> Finds:
    """Report a norm of more than ten times the median of the other steps, with at least five steps; matrices only."""
    for one in health.matrices:
        norms = [(step, norm) for step, g in enumerate(one.gradients) if g is not None and (norm := _norm(g))]
        if limit is None or len(norms) < 5:
            continue
        step, norm = max(norms, key=lambda item: item[1])
        usual = median(other for at, other in norms if at != step)
        if norm > limit * usual:
            words = f"the norm of its gradient is {norm / usual:.3g} times the usual norm in {step_words(health, step)}"
            yield Found(one, words, norm / usual, step=step, unit="times")


@rule(
    "grad.underflow16",
    "hint",
    "values, backward, gradients",
    limit=0.1,
    says="float16 gradients are subnormal",
    remedy="raise the loss scale",
    source="measured: clean 0.73 % with scale 65536",
)
def underflow16(health: Health, limit: Optional[float]) -> Finds:
    """Report the share of subnormal elements among nonzero float16 elements, over all outputs of the backward pass."""
    small = count = 0
    for step in health.steps:
        for one in (one for operators in step.backward.values() for op in operators for one in op.outputs):
            x = one.figures
            if one.dtype == "float16" and x.counted and x.extremes is not None and x.subnormal is not None:
                small += x.subnormal
                count += x.elements - x.extremes.zeros
    if limit is not None and count and small / count > limit:
        yield Found(None, f"{small / count:.0%} of the float16 gradients that are not 0 are subnormal", small / count)


@rule(
    "grad.rank_differs",
    "error",
    "marks, ranks, backward, tensors",
    says="the output of an all-reduce differs between ranks",
    remedy="a rank is out of step, or its link is faulty: compare the inputs rank by rank",
    source="TrainCheck",
)
def rank_differs(health: Health, limit: Optional[float]) -> Finds:
    """Report an all-reduce (one name and shape) whose output on a rank has bits that no other rank has. Ranks of one
    group share their bits."""
    for step in range(len(health.steps)):
        outputs: dict[tuple[str, str], list[tuple[Optional[int], Tensor]]] = {}
        for one in health.ranks:
            for op in one.steps[step].operators if step < len(one.steps) else ():
                if op.type.has("sums ranks") and not op.type.has("receives", "one to all"):
                    for tensor in op.outputs:
                        outputs.setdefault((op.name, tensor.slot), []).append((one.rank, tensor))
        for tensors in outputs.values():
            times = Counter(tensor.mark for _, tensor in tensors if tensor.mark)
            alone = [rank for rank, tensor in tensors if times[tensor.mark] == 1]
            same_shape = len({tensor.shape for _, tensor in tensors}) == 1
            if len(tensors) > 1 and alone and same_shape and sum(times.values()) == len(tensors):
                ranks = ", ".join(map(str, alone[:4]))
                yield Found(tensors[0][1], f"its output on rank {ranks} has bits that no other rank has", step=step)
