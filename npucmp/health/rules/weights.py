"""Rules of parameters: initialisation, range, sharing and tables.

Figures in the docstrings: clean is a set of 66 dumps of sound training and inference runs of 24 networks; planted are
faults in 53 training scripts. Published limits are not used, because most of them fire in a third of the clean runs.
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from statistics import median
from typing import Any, Iterator, Mapping, Optional, Sequence

from npucmp.health.facts import Health, Parameter, Tensor
from npucmp.health.rule import Found, rule
from npucmp.health.rules.locations import WATCHPOINTS, exceeded_limit
from npucmp.model.roles import kind_of

Finds = Iterator[Found]
DEVIATION_TOLERANCE = 0.05  # relative difference of the deviations of two weights from one distribution


@rule(
    "weight.nonfinite",
    "error",
    "figures, parameters",
    says="a parameter holds NaN or Inf",
    remedy="the gradient of an earlier step produced it, or the checkpoint holds it; dump the preceding step",
    source="MindInsight weight_overflow, AUTOTRAINER",
)
def nonfinite(health: Health, limit: Optional[float]) -> Finds:
    """Report NaN or Inf in any step: the first step of each parameter, the earliest first."""
    ill = ((one, first_ill(one.weights)) for one in health.parameters)
    for one, (step, what) in sorted(((one, found) for one, found in ill if found), key=lambda item: item[1][0]):
        yield Found(one, f"holds {what} in {step_words(health, step)}", step=step)


def first_ill(tensors: Sequence[Optional[Tensor]]) -> Optional[tuple[int, str]]:
    """The first step in which a tensor holds NaN or Inf, and which of them; None if no step does."""
    for step, one in enumerate(tensors):
        x = one.figures.extremes if one is not None else None
        if x is not None and (x.nan or x.inf):
            return step, "/".join(word for word, count in (("NaN", x.nan), ("Inf", x.inf)) if count)
    return None


@rule(
    "weight.zero",
    "warning",
    "figures, matrices",
    says="a weight starts at zero",
    remedy="initialise it randomly (Xavier, He)",
    source="MindInsight weight_initialization (100 %), SageMaker AllZero",
)
def zero(health: Health, limit: Optional[float]) -> Finds:
    """Report a matrix that is all zero in the first step. It is an error if its gradient is zero in all steps, so that
    it never learns; a warning if a peer is not zero; else a hint, because LoRA's B, a head and the last layer of a
    branch may start so. On every parameter the rule would fire in 43 of 64 clean runs (biases), so only matrices are
    examined. A later update does not excuse the first step."""
    for one in health.matrices:
        if not one.first.figures.is_zero:
            continue
        gradients = [gradient for gradient in one.gradients if gradient is not None]
        words = f"all {one.first.figures.elements:,} elements are 0 in {step_words(health, first_step(one))}"
        if gradients and all(gradient.figures.is_zero for gradient in gradients):
            steps = f"{len(gradients)} steps" if len(gradients) > 1 else "the one step"
            words += f" and its gradient is 0 in {steps}: it does not learn"
            yield Found(one, words, 0.0, "error", step=first_step(one))
        elif any(not peer.first.figures.is_zero for peer in health.peers(one)):
            yield Found(one, f"{words}, while the same weight of other layers is not", 0.0, step=first_step(one))
        else:
            meant = "correct for LoRA's B, a head, or the last layer of a branch; else initialise it randomly"
            yield Found(one, words, 0.0, "hint", meant, step=first_step(one))


@rule(
    "weight.constant",
    "warning",
    "figures, matrices",
    says="all elements of a weight are equal",
    remedy="its units stay identical: initialise it randomly",
    source="TheDeepChecker wrong_init",
)
def constant(health: Health, limit: Optional[float]) -> Finds:
    """Report a matrix with largest = smallest, not 0; silent if neither is recorded. No clean run has it."""
    for one in health.matrices:
        value = one.first.figures.constant
        if value:
            words = (
                f"all {one.first.figures.elements:,} elements are {value:.6g} in {step_words(health, first_step(one))}"
            )
            yield Found(one, words, value, step=first_step(one))


def _scales(health: Health) -> Iterator[tuple[Parameter, float, str]]:
    """Matrices with their gain and severity; none for trained networks, whose initialisation is unknown. Tables have no
    gain. A matrix with the shape and deviation of a table is skipped: it is a tied head, or has the same distribution.
    """
    if health.starts == "trained":
        return
    tables = [one for one in health.parameters if one.type.has("looks up")]
    for one in health.matrices:
        gain, std = one.gain, one.first.figures.std
        alike = any(
            table.shape == one.shape
            and math.isclose(std or 0.0, table.first.figures.std or 0.0, rel_tol=DEVIATION_TOLERANCE)
            for table in tables
        )
        if gain and not alike and one.first.figures.constant is None:
            yield one, gain, "warning" if health.starts == "fresh" else "hint"


@rule(
    "weight.scale_large",
    "warning",
    "figures, matrices",
    limit=6.0,
    says="a weight starts far larger than with Xavier or He initialisation",
    remedy="scale its initial values by 1/√(inputs of a unit)",
    source="measured; SageMaker PoorWeightInitialization",
)
def scale_large(health: Health, limit: Optional[float]) -> Finds:
    """Report the deviation times √fan_in: Xavier 1, He 1.41, PyTorch 0.58; clean 0.055 … 0.72, planted ×50 7.9 … 29. It
    is a hint if no norm shows whether the network is fresh. Trained networks reach 72 and are not judged."""
    for one, gain, severity in _scales(health):
        if limit is not None and gain > limit:
            yield Found(one, _scale_words(one, gain), gain, severity, unit="times 1/√fan_in")


@rule(
    "weight.scale_small",
    "warning",
    "figures, matrices",
    limit=0.01,
    says="a weight starts far smaller than with Xavier or He initialisation",
    remedy="scale its initial values by 1/√(inputs of a unit)",
    source="measured; SageMaker PoorWeightInitialization",
)
def scale_small(health: Health, limit: Optional[float]) -> Finds:
    """Report a small gain, as weight.scale_large does a large gain; the smallest clean gain is 0.055."""
    for one, gain, severity in _scales(health):
        if limit is not None and gain < limit:
            yield Found(one, _scale_words(one, gain), gain, severity, unit="times 1/√fan_in")


def _scale_words(one: Parameter, gain: float) -> str:
    return f"its deviation is {gain:.3g}/√{one.fan_in}; Xavier uses 1/√{one.fan_in}, He 1.41/√{one.fan_in}"


@rule(
    "weight.unlike_peers",
    "warning",
    "figures, names, matrices",
    limit=4.0,
    says="a weight has another deviation than the same weight of other layers",
    remedy="it was initialised or loaded differently: check its part of the checkpoint",
    source="measured",
)
def unlike_peers(health: Health, limit: Optional[float]) -> Finds:
    """Compare the deviation with the median of at least three peers, in both directions; clean runs have at most 1.1.
    Peers have the same shape and names that differ only in numbers, so parameters need names."""
    spreads: dict[object, list[float]] = {}
    for one in health.matrices:
        spreads.setdefault((one.kind, one.shape), []).append(one.first.figures.std or 0.0)
    for one in health.matrices:
        std, known = one.first.figures.std, [*filter(None, spreads[one.kind, one.shape])]
        if limit is None or not std or len(known) < 4:
            continue
        known.remove(std)
        times = std / median(known)
        if times > limit or times < 1 / limit:
            yield Found(
                one, f"its deviation is {times:.3g} times the median of its {len(known)} peers", times, unit="times"
            )


@rule(
    "weight.range",
    "warning",
    "figures, parameters",
    says="a parameter exceeds the range that you set",
    source="MindInsight weight_too_large, weight_too_small; AUTOTRAINER (5)",
    off=True,
    words=WATCHPOINTS,
)
def range_(health: Health, limit: Mapping[str, float]) -> Finds:
    """Report parameters beyond limits that the user sets, by the names of MindInsight's watchpoints, in the first such
    step."""
    for one in health.parameters:
        for step, weight in enumerate(one.weights):
            found = exceeded_limit(weight.figures, limit) if weight is not None else None
            if found is not None:
                words, value, bound = found
                yield Found(one, f"{words} in {step_words(health, step)}", value, step=step, limit=bound)
                break


@rule(
    "weight.outlier",
    "warning",
    "figures, matrices",
    limit=100.0,
    says="one element of a weight is far larger than the others",
    remedy="compare it with the checkpoint: memory or file may be damaged",
    source="DL4J histograms; clean at most 5 when fresh",
    off=True,
)
def outlier(health: Health, limit: Optional[float]) -> Finds:
    """Report the largest magnitude over the rms. Off by default, because large language models develop such
    elements."""
    for one in health.matrices:
        x = one.first.figures
        if limit is not None and x.largest is not None and x.rms and x.largest / x.rms > limit:
            yield Found(one, f"its largest element is {x.largest / x.rms:.3g} times its rms", x.largest / x.rms)


@rule(
    "weight.shared",
    "hint",
    "bits, parameters",
    says="parameters share one tensor",
    remedy="if they are tied on purpose, list them in expect.shared",
    source="guides of MindSpore: weight sharing",
)
def shared(health: Health, limit: Optional[float]) -> Finds:
    """Report parameters with equal bits in all steps, except constants. With `expect.shared` (lists of names or globs),
    parameters that should be shared and are not are an error; listed parameters that are shared are not reported."""
    wanted: Sequence[Sequence[str]] = health.expect.get("shared", ())
    for globs in wanted:
        meant = [one for one in health.parameters if any(fnmatchcase(one.name, glob) for glob in globs)]
        together = any(all(one in group for one in meant) for group in health.groups)
        if len(meant) > 1 and not together and all(map(bits_of, meant)):
            because = f"should share its tensor with {meant[1].name}, but does not"
            yield Found(meant[0], because, severity="error", remedy="tie them again after loading or copying the model")
    for group in health.groups:
        if not any(all(any(fnmatchcase(one.name, glob) for glob in globs) for one in group) for globs in wanted):
            names = tuple(one.name for one in group[1:])
            yield Found(group[0], f"has the same bits as {', '.join(names[:3])} in all steps", also=names)


@rule(
    "weight.equal_then_apart",
    "warning",
    "bits, steps, matrices",
    says="two weights start with the same bits and diverge",
    remedy="they are copies but should be shared, or two layers used one seed",
    source="measured",
)
def equal_then_apart(health: Health, limit: Optional[float]) -> Finds:
    """Report matrices with equal bits in the first step and different bits in a later step, except constants. If either
    requires no gradient, it is a teacher that follows the other (DINO, BYOL, target networks) and is not reported. No
    clean run has it."""
    first: dict[object, Parameter] = {}
    for one in health.matrices:
        bits = bits_of(one)
        if len(bits) < 2 or not one.varies:
            continue
        other = first.setdefault((one.dtype, one.shape, bits[0]), one)
        taught = False in (one.trainable, other.trainable)
        if other is not one and bits_of(other) != bits and not taught:
            yield Found(one, f"starts with the same bits as {other.name}, and differs from it later")


@rule(
    "embedding.dead_rows",
    "hint",
    "values, parameters",
    limit=0.1,
    says="rows of a table are zero",
    remedy="the vocabulary exceeds what was loaded or trained; check those rows of the checkpoint",
    source="measured on no fault",
)
def dead_rows(health: Health, limit: Optional[float]) -> Finds:
    """Report if more than a tenth of the rows, plus one row for padding, are zero. A table of zeros is left to
    weight.zero."""
    for one in health.parameters:
        zeros, rows = one.found.get("rows") or (0, 0)
        if limit is not None and rows > zeros > 1 + limit * rows:
            words = f"{zeros:,} of {rows:,} rows are zero in {step_words(health, first_step(one))}"
            yield Found(one, words, zeros / rows)


@rule(
    "embedding.index_range",
    "error",
    "figures, tensors",
    says="an index lies outside its table",
    remedy="tokenizer and model do not match; a device may read other memory without an error",
    source="DeepDiagnosis",
)
def index_range(health: Health, limit: Optional[float]) -> Finds:
    """Report a largest index that is not below the number of rows, or a smallest index below 0 that is not the padding
    index. Modules with unknown names may compute positions from their inputs and are skipped."""
    for op in health.operators("looks up"):
        if op.is_module and not op.type.name:
            continue
        table = next((one for one in op.inputs if len(one.shape) == 2 and kind_of(one.dtype) == "f"), None)
        index = next((one for one in op.inputs if kind_of(one.dtype) in ("i", "u")), None)
        if table is None or index is None or index.figures.maximum is None or index.figures.minimum is None:
            continue
        rows, low, high = table.shape[0], index.figures.minimum, index.figures.maximum
        padding = op.argument("padding_idx", 2)
        if high >= rows:
            yield Found(op, f"index {high:.0f} in a table of {rows:,} rows", high, limit=float(rows))
        elif low < 0 and low != padding:
            yield Found(op, f"index {low:.0f} in a table of {rows:,} rows", low, limit=0.0)


def bits_of(one: Parameter) -> tuple[str, ...]:
    """The hash of its bits in each step that has it; () if any of them is unknown."""
    found = tuple(weight.figures.bits for weight in one.weights if weight is not None)
    return found if all(found) else ()


def first_step(one: Parameter) -> int:
    return next(step for step, weight in enumerate(one.weights) if weight is not None)


def step_words(health: Health, step: int) -> str:
    number: Any = health.number(step)
    return f"step {number}" if number is not None else "the dumped step"
