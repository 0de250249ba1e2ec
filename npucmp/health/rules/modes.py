"""Rules of modes: dropout and BatchNorm in training or evaluation. A run with a backward pass is a training run."""

from __future__ import annotations

import math
from typing import Iterator, Optional

import numpy as np

from npucmp.health.facts import Health, Op, Tensor
from npucmp.health.rule import Found, rule
from npucmp.health.rules.locations import by_name, full_values, per_operator
from npucmp.model.roles import running_statistics

Finds = Iterator[Found]
DEFAULT = 0.5  # default share of a dropout
DEVIATIONS = 5.0  # standard deviations of a share
SLACK = 0.001
NORMALISED = 0.02  # relative error of the mean square of a normalised output, by epsilon and rounding: chosen
LEAST_STD = 0.3  # of an input: below, epsilon (1e-3 in TensorFlow) changes the size of a normalised output
ACTIVE = 0.01  # least share of new zeros of an active dropout without recorded arguments


class _Dropout:
    """A dropout: its nominal share, and whether it is active; None where the dump does not record this."""

    def __init__(self, health: Health, op: Op) -> None:
        has_defaults = _has_defaults(health, op)
        share, active = op.argument("p", "keep_prob", 1), op.argument("training", "train", 2)
        self.share = share if _is_number(share) else DEFAULT if has_defaults and share is None else None
        self.active = active if isinstance(active, bool) else True if has_defaults and active is None else None
        counts: tuple[int, int] = op.found.get("dropped") or (0, 0)
        self.zeroed, self.there = counts
        if self.active is None and self.there:
            self.active = self.zeroed > ACTIVE * self.there

    @property
    def drops(self) -> bool:
        return self.share is None or self.share > 0


def _has_defaults(health: Health, op: Op) -> bool:
    """Whether a missing argument has its default: true for records of calls, not for those of modules or kernels."""
    return not op.is_module and health.steps[op.step].run.format == "msprobe"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _words(one: _Dropout) -> str:
    return "" if one.share is None else f"p = {one.share:g}, "


@rule(
    "dropout.in_eval",
    "warning",
    "evaluation, dropouts",
    says="dropout is active in a run without a backward pass",
    remedy="call eval() (set_train(False)) before inference",
    source="guides of MindSpore: node mode; 37 reasons #32",
)
@per_operator("drops")
def in_eval(health: Health, op: Op, limit: Optional[float]) -> Optional[Found]:
    """Decide by the argument `training`; if calls were not dumped, by the zeros in the output."""
    one = _Dropout(health, op)
    return Found(op, f"{_words(one)}active in a run without a backward pass") if one.drops and one.active else None


@rule(
    "dropout.off_in_training",
    "hint",
    "backward, calls, dropouts",
    says="dropout has a nonzero p but is inactive in training",
    remedy="fine for a comparison; else call train() (set_train(True))",
    source="msprobe's training guide",
)
@per_operator("drops")
def off_in_training(health: Health, op: Op, limit: Optional[float]) -> Optional[Found]:
    """Report p above 0 with `training` False in a run with a backward pass. Clean and faulty runs both do this on
    purpose."""
    one = _Dropout(health, op)
    return Found(op, f"{_words(one)}inactive in training") if one.share and one.active is False else None


@rule(
    "dropout.share",
    "warning",
    "values, calls, dropouts",
    says="a dropout drops another share than its p",
    remedy="the probabilities of keeping and of dropping may be mixed up (MindSpore's old Dropout takes the former)",
    source="guides of MindSpore: API constraints",
)
@per_operator("drops")
def share(health: Health, op: Op, limit: Optional[float]) -> Optional[Found]:
    """Report a share that differs by more than five standard deviations. A dropout without any zeros is of another kind
    (alpha dropout)."""
    one = _Dropout(health, op)
    if not one.active or not one.share or not 0 < one.share < 1 or not one.zeroed:
        return None
    found = one.zeroed / one.there
    bound = DEVIATIONS * math.sqrt(one.share * (1 - one.share) / one.there) + SLACK
    if abs(found - one.share) <= bound:
        return None
    return Found(op, f"drops {found:.1%}, but p is {one.share:.1%}", 100 * found, limit=100 * one.share, unit="%")


@rule(
    "dropout.high",
    "hint",
    "calls, dropouts",
    0.5,
    "a dropout drops more than half",
    "lower p",
    "UMLAUT",
)
@per_operator("drops")
def high(health: Health, op: Op, limit: float) -> Optional[Found]:
    """Report active dropouts only."""
    one = _Dropout(health, op)
    return Found(op, f"p = {one.share:g}", one.share) if one.share and one.share > limit and one.active else None


def _trains(health: Health, op: Op) -> Optional[bool]:
    """Whether a BatchNorm normalises by its batch; None if the dump does not record this."""
    training = op.argument("training", 5)
    if training is None:
        training = op.operator.attributes.get("is_training")
    return training if isinstance(training, bool) else False if training is None and _has_defaults(health, op) else None


def _evaluates(health: Health, op: Op) -> bool:
    """Whether the size of an output proves, in a run without a backward pass, that its operator did not normalise by
    the batch: then its mean square is that of scale plus that of offset."""
    slots = running_statistics(op.operator)
    affine = [one.figures for one in op.inputs[1:] if one.slot not in slots]
    x, y = (tensor.figures if tensor else None for tensor in (op.tensor(0, "input"), op.tensor(0, role="output")))
    if health.training or len(affine) != 2 or x is None or y is None or not x.std or x.std < LEAST_STD:
        return False
    if None in (y.rms, y.mean, affine[1].mean, affine[0].rms, affine[1].rms):
        return False
    square = (affine[0].rms or 0.0) ** 2 + (affine[1].rms or 0.0) ** 2
    moved = abs((y.mean or 0.0) - (affine[1].mean or 0.0))
    return abs((y.rms or 0.0) ** 2 - square) > NORMALISED * square or moved > NORMALISED * math.sqrt(square)


def _statistics(op: Op) -> tuple[Tensor, ...]:
    """Running mean and variance; () unless both exist."""
    slots = running_statistics(op.operator)
    both = tuple(tensor for tensor in op.inputs if tensor.slot in slots)
    return both if len(both) == 2 else ()


@rule(
    "batchnorm.train_in_eval",
    "warning",
    "evaluation, calls, batch norms",
    says="BatchNorm normalises by the batch in a run without a backward pass",
    remedy="call eval() (set_train(False)) before inference",
    source="guides of MindSpore: node mode; 37 reasons #32",
)
@per_operator("averages")
def train_in_eval(health: Health, op: Op, limit: Optional[float]) -> Optional[Found]:
    """Decide by the argument `training`. Without running statistics, BatchNorm always normalises by the batch and is
    skipped."""
    return (
        Found(op, "training = True in a run without a backward pass")
        if _statistics(op) and _trains(health, op)
        else None
    )


@rule(
    "batchnorm.eval_in_training",
    "warning",
    "backward, calls, batch norms",
    says="BatchNorm uses its running statistics in training",
    remedy="call train() (set_train(True)); fine-tuning may freeze it on purpose",
    source="guides of MindSpore: node mode",
)
@per_operator("averages")
def eval_in_training(health: Health, op: Op, limit: Optional[float]) -> Optional[Found]:
    """Decide by the argument `training`, in runs with a backward pass. No clean training run has it."""
    if not _statistics(op) or _trains(health, op) is not False:
        return None
    return Found(op, "training = False in a run with a backward pass")


@rule(
    "batchnorm.never_updated",
    "warning",
    "figures, calls, batch norms",
    says="BatchNorm evaluates with mean 0 and variance 1: its statistics were never collected or not loaded",
    remedy="load the checkpoint with its buffers, or train it first",
    source="msprobe config_check",
)
@per_operator("averages")
def never_updated(health: Health, op: Op, limit: Optional[float]) -> Optional[Found]:
    """Report running means that are all 0 with variances that are all 1, their initial values. Fires in one clean run,
    which is untrained."""
    both, trains = _statistics(op), _trains(health, op)
    if not both or len(both[0].shape) != 1 or trains or (trains is None and not _evaluates(health, op)):
        return None
    if both[0].figures.is_zero and both[1].figures.constant == 1:
        return Found(op, "its running mean is 0 and its variance 1 in all channels")
    return None


@rule(
    "batchnorm.statistics_stand",
    "error",
    "figures, steps, calls, batch norms",
    says="running statistics do not change between steps",
    remedy="its momentum is 0, or a copy of it is updated",
    source="measured",
)
def statistics_stand(health: Health, limit: Optional[float]) -> Finds:
    """Report buffers that are equal in all steps of a training run: both by bits, or by mean and norm."""
    for ops in by_name(health.operators("averages")).values():
        marks = [tuple(_mark(one) for one in _statistics(op)) for op in ops if _trains(health, op)]
        if len(marks) > 1 and len({*marks}) == 1 and marks[0] and None not in marks[0]:
            yield Found(ops[0], f"running mean and variance are the same in {len(marks)} steps")


def _mark(tensor: Tensor) -> object:
    x = tensor.figures
    return x.bits or (None if x.mean is None or x.rms is None else (x.mean, x.rms))


@rule(
    "batchnorm.one_value",
    "error",
    "calls, batch norms",
    says="BatchNorm has one value per channel in training: the result is its bias",
    remedy="use larger batches, or another norm",
    source="TheDeepChecker",
)
@per_operator("averages")
def one_value(health: Health, op: Op, limit: Optional[float]) -> Optional[Found]:
    """Report batch × height × width = 1: the deviation is then 0 for every channel."""
    read = op.tensor(0, "input")
    shape = read.shape if read is not None else ()
    if len(shape) < 2 or not _trains(health, op) or math.prod(shape) != shape[1]:
        return None
    return Found(op, f"normalises {shape[1]} channels of one value each", 1.0)


@rule(
    "batchnorm.drift",
    "hint",
    "values, evaluation, calls, batch norms",
    3.0,
    "the batch lies far from the statistics that BatchNorm was trained with",
    "check the preprocessing: evaluation may use another than training",
    "guides of MindSpore: processing differs from the training set; 37 reasons #14 #15",
)
def drift(health: Health, limit: float) -> Finds:
    """Compare the first BatchNorm of an evaluation with its batch: the median over channels of |batch mean - running
    mean|, in running deviations."""

    for op in [*health.operators("averages")][:1]:
        running, read = [full_values(one) for one in _statistics(op)], op.tensor(0, "input")
        means = read.found.get("means") if read is not None else None
        if means is None or len(running) < 2 or any(one is None or one.shape != means.shape for one in running):
            continue
        with np.errstate(all="ignore"):
            far = float(np.median(np.abs(means - running[0]) / np.sqrt(running[1])))
        if math.isfinite(far) and far > limit:
            yield Found(op, f"channels lie {far:.3g} deviations from the running means", far, limit=limit)
