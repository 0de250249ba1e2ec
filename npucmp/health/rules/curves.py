"""Rules of logged curves (`--loss FILE`): faults of a training run that its loss alone shows. See single_curve.py."""

from __future__ import annotations

import math
from typing import Iterator, Optional

from npucmp.health.curves import single_curve
from npucmp.health.curves.curve import Log
from npucmp.health.facts import Health
from npucmp.health.rule import Found, rule
from npucmp.health.rules.locations import losses_in

Finds = Iterator[Found]


def _found(seen: Optional[single_curve.CurveEvent], severity: str = "") -> Finds:
    if seen is not None:
        yield Found(None, seen.because, seen.value, severity, places=1)


def _log(health: Health) -> Log:
    assert health.log is not None  # the need "curve"
    return health.log


@rule(
    "curve.nonfinite",
    "error",
    "curve",
    says="the loss becomes NaN or infinite",
    remedy="dump the preceding step, and run npucmp overflow on the dump",
    source="guides of MindSpore; 37 reasons #37",
)
def nonfinite(health: Health, limit: Optional[float]) -> Finds:
    """Report the first logged step with NaN or Inf."""
    yield from _found(single_curve.nonfinite(_log(health).column()))


@rule(
    "curve.flat",
    "warning",
    "curve",
    says="the loss does not change",
    remedy="check the learning rate and frozen parameters, and run npucmp check on a dumped step",
    source="SageMaker LossNotDecreasing; guides of MindSpore",
)
def flat(health: Health, limit: Optional[float]) -> Finds:
    """Report a curve with neither a slope of 1 % over its length nor scatter about it; at least ten steps."""
    chance = tuple({math.log(one.classes) for one in losses_in(health) if one.classes > 1})
    yield from _found(single_curve.flat(_log(health).column(), chance))


@rule(
    "curve.spike",
    "hint",
    "curve",
    says="the loss jumps",
    remedy="dump that step, and check its batch and gradients",
    source="msprobe's training guide",
)
def spike(health: Health, limit: Optional[float]) -> Finds:
    """Report values above the running median of 20 steps by 10 median deviations, and above 1.5 times that median."""
    yield from _found(single_curve.spiking(_log(health).column()))


@rule(
    "curve.rising",
    "warning",
    "curve",
    says="the loss rises",
    remedy="lower the learning rate; check the sign of the loss",
    source="37 reasons #36",
)
def rising(health: Health, limit: Optional[float]) -> Finds:
    """Report a last fifth that exceeds the first by 1 % and by four errors of their means."""
    yield from _found(single_curve.rising(_log(health).column()))


@rule(
    "curve.oscillating",
    "warning",
    "curve",
    0.25,
    "the loss oscillates",
    "lower the learning rate",
    "AUTOTRAINER; batch noise oscillates in healthy runs",
    off=True,
)
def oscillating(health: Health, limit: float) -> Finds:
    """Report frequent reversals. Off by default: batch noise oscillates in healthy runs."""
    yield from _found(single_curve.oscillating(_log(health).column(), limit))


@rule(
    "curve.validation_apart",
    "hint",
    "curve, validation",
    says="the validation loss stays above the training loss",
    remedy="add data or regularisation, or stop earlier",
    source="SageMaker Overfit (0.1); 37 reasons #24 #30",
)
def validation_apart(health: Health, limit: Optional[float]) -> Finds:
    """Report if each of the last three evaluations is 10 % above the mean training loss since the previous
    evaluation."""
    validation = _log(health).validation
    if validation is not None:
        yield from _found(single_curve.diverging_validation(_log(health).column(), validation))


@rule(
    "curve.loss_scale",
    "warning",
    "curve, loss scale",
    says="the loss scale falls repeatedly: gradients overflow in float16",
    remedy="find the overflow with npucmp overflow, or use bfloat16",
    source="guides of MindSpore: loss scale falls many times or to 1",
)
def loss_scale(health: Health, limit: Optional[float]) -> Finds:
    """Report a second fall without a rise between, after the first tenth of the curve, or a fall to 1, which is an
    error."""
    scale = _log(health).scale
    found = single_curve.falls(scale) if scale is not None else ()
    if found:
        worst = min(found, key=lambda one: one.value)
        more = f"; {len(found)} falls in all" if found[1:] else ""
        yield from _found(worst._replace(because=worst.because + more), "error" if worst.value <= 1 else "")
