"""Rules of outputs: the same output for every sample, and the origin of NaN and Inf."""

from __future__ import annotations

import math
from typing import Iterator, Optional

import numpy as np

from npucmp.health.facts import Health
from npucmp.health.rule import Found, rule
from npucmp.health.rules.locations import Loss, data_of, full_values, losses_in
from npucmp.model.roles import is_layer


@rule(
    "output.same_for_all",
    "error",
    "values, losses",
    1e-6,
    "the output is the same for every sample: the input does not reach it",
    "look for a dead layer, a wrong axis or a constant input before it",
    "37 reasons #4; TheDeepChecker",
)
def same_for_all(health: Health, limit: float) -> Iterator[Found]:
    """Report a loss whose logits do not vary over the samples in any dumped step. Clean runs have at least 2.4e-3,
    except one fresh head of zeros in its first step."""
    found: dict[str, list[tuple[Loss, Optional[float]]]] = {}
    for loss in losses_in(health):
        found.setdefault(loss.name, []).append((loss, _spread(loss)))
    for spreads in found.values():
        if any(spread is None or spread > limit for _, spread in spreads):
            continue
        loss, spread = spreads[0]
        assert loss.logits is not None
        zero = len(health.steps) == 1 and loss.logits.figures.is_zero
        words = f"{loss.logits.shape[0]} samples have the same output" + (
            f" in {len(spreads)} steps" if spreads[1:] else ""
        )
        yield Found(loss.op, words + (", 0: does the head start at zero?" if zero else ""), spread,
                    "hint" if zero else "", limit=limit)  # fmt: skip


def _spread(loss: Loss) -> Optional[float]:
    """The largest deviation over the samples, in units of the largest value. From digests only: 0 or infinite. None
    with one sample, or if neither values nor digests are known."""

    values, digests = full_values(loss.logits), loss.logits.found.get("samples") if loss.logits is not None else None
    if values is not None and values.dtype.kind != "c" and values.ndim > 1 and values.shape[0] > 1:
        with np.errstate(all="ignore"):
            spread, most = float(np.std(values, axis=0, dtype=np.float64).max()), float(np.abs(values).max())
        return (spread / most if most else 0.0) if math.isfinite(spread) and math.isfinite(most) else None
    if digests and len(digests) > 1:
        return 0.0 if len({*digests}) == 1 else math.inf
    return None


@rule(
    "output.ignores_input",
    "hint",
    "values, calls, inputs",
    says="from this operator on, all samples have the same output",
    remedy="check the inputs of the operator: the network's input does not reach it",
    source="brief of this tool",
)
def ignores_input(health: Health, limit: None) -> Iterator[Found]:
    """Report the first linear layer or convolution from which on no such layer's output varies over the samples,
    although the data do. Required in every dumped step; outputs of up to a million elements are examined."""
    places = []
    for step in health.steps:
        data = [one.found.get("samples") or () for one in data_of(step)[:1]]
        layers = [
            (op, op.outputs[0].found.get("samples") or ()) for op in step.forward if is_layer(op.type) and op.outputs
        ]
        if not data or len({*data[0]}) < 2 or not layers:
            return
        alike = [len(one) > 1 and len({*one}) == 1 for _, one in layers]
        first = len(alike) - next((n for n, same in enumerate(reversed(alike)) if not same), len(alike))
        if first == len(layers):
            return
        places.append(layers[first][0])
    if places:
        yield Found(
            places[0], f"its {places[0].outputs[0].shape[0]} samples have the same bits, but those of the data differ"
        )


@rule(
    "divide.zero",
    "error",
    "figures, tensors",
    says="an operator divides by zero",
    remedy="add an epsilon to the divisor, or use DivNoNan in MindSpore",
    source="tuning guides (API constraints); 37 reasons #37",
)
def divide_zero(health: Health, limit: None) -> Iterator[Found]:
    """Report NaN or Inf that is born at a quotient whose divisor has 0 as its largest or smallest value."""
    for step in health.steps:
        ops = {one.operator.order: one for one in step.operators}
        for event in step.events:
            op = ops.get(event.order)
            if event.origin != "born" or not event.alarm or op is None or not op.type.has("quotient", "reciprocal"):
                continue
            divisor = op.inputs[-1] if op.inputs else None
            low, high = (divisor.figures.minimum, divisor.figures.maximum) if divisor is not None else (None, None)
            if divisor is not None and low is not None and high is not None and 0 in (low, high):
                yield Found(op, f"its divisor {divisor.slot} holds 0, and {event.slot} holds {event.kind}", 0.0)
                break


@rule(
    "overflow.summary",
    "error",
    "figures, tensors",
    says="NaN, Inf or saturation is born or comes in",
    remedy="npucmp overflow lists the operators, and how the values propagate",
    source="MindInsight tensor_overflow, operator_overflow; msprobe overflow_check",
)
def overflow(health: Health, limit: None) -> Iterator[Found]:
    """Report the scan of `npucmp overflow`, unchanged: masks and uninitialised memory raise no alarm."""
    found = [
        (step, event)
        for step in health.steps
        for event in step.events
        if event.alarm and event.operator is not None and (event.origin == "born" or event.outside)
    ]
    if not found:
        return
    step, first = found[0]
    names = [*dict.fromkeys(event.operator.name for _, event in found if event.operator is not None)]
    op = next((one for one in step.operators if one.operator.order == first.order), None)
    words = f"{first.slot}: {first.kind} is {first.origin or 'there'}" if not first.outside else (
        f"{first.slot}: {first.kind} comes in")  # fmt: skip
    more = f"; {len(names)} operators in all" if names[1:] else ""
    yield Found(op, words + more, float(len(names)), step=step.index, places=len(names), also=tuple(names[1:]))
