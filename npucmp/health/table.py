"""Data of a Health for tables, charts and notes: a row per parameter and step, the rms of each operator's output, and
facts that are not findings (the dtypes of operators, the loss scale).
"""

from __future__ import annotations

from collections import Counter
from typing import Iterator, Sequence

from npucmp.health.detectors import StepChange
from npucmp.health.facts import Health, Parameter
from npucmp.health.rules.locations import is_float
from npucmp.model import first_of
from npucmp.model.check_finding import ParameterRow, Spread


def parameter_rows(health: Health) -> Iterator[ParameterRow]:
    """Yield a row per parameter and step; parameters in order of first use."""
    same = {
        id(one): ", ".join(other.name for other in group if other is not one)
        for group in health.groups
        for one in group
    }
    for one in health.parameters:
        moves = {step: move for step, _, move in one.moves}
        for step in range(len(health.steps)):
            if one.weights[step] is not None:
                yield _row(health, one, step, moves.get(step), same.get(id(one), ""))


def _row(health: Health, one: Parameter, step: int, move: StepChange | None, same: str) -> ParameterRow:
    weight, gradient = one.weights[step], one.gradients[step]
    assert weight is not None
    x, g = weight.figures, gradient.figures.rms if gradient is not None else None
    return ParameterRow(
        one.name,
        weight.shape,
        weight.dtype,
        one.trainable,
        x.rms,
        x.largest,
        one.gain if weight is one.first else None,
        x.zeros,
        g,
        g / x.rms if g is not None and x.rms else None,
        move.ratio if move is not None and not one.first.figures.is_zero else None,
        move.along if move is not None else None,
        same,
        health.number(step),
        health.rank,
        one.order,
    )


def spreads(health: Health) -> Iterator[Spread]:
    """Yield the rms of the first output of each forward call in the first dumped step, if its statistics are known."""
    for op in health.steps[0].forward if health.steps else ():
        rms = op.outputs[0].figures.rms if op.outputs else None
        if rms is not None:
            yield Spread(op.operator, health.number(0), health.rank, rms)


NAMED_TYPES = 4  # operator types that are named


def notes_of(healths: Sequence[Health]) -> Iterator[str]:
    """Yield the notes of the first rank's first step."""
    for step in [step for one in healths for step in one.steps][:1]:
        types: dict[str, Counter[str]] = {}
        for op in step.forward:
            for tensor in op.outputs[:1]:
                if is_float(tensor):
                    types.setdefault(tensor.dtype, Counter())[op.operator.op_type] += 1
        counts = {dtype: sum(kinds.values()) for dtype, kinds in types.items()}
        dtypes = sorted(counts, key=lambda dtype: -counts[dtype])
        if dtypes[1:]:
            words = [f"{counts[dtype]:,} in {dtype}" for dtype in dtypes]
            kinds = first_of([kind for kind, _ in types[dtypes[1]].most_common()], NAMED_TYPES)
            yield f"operators that write floats: {', '.join(words)} ({dtypes[1]}: {kinds})"
        if step.loss_scale is not None and step.loss_scale not in (0, 1):
            yield f"the gradient that enters the loss is {step.loss_scale:g}: the loss scale"
