"""Data for tables and charts of a Health: a row per parameter and step, and the rms of each operator's output."""

from __future__ import annotations

from typing import Iterator

from npucmp.health.detectors import Moved
from npucmp.health.facts import Health, Parameter
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


def _row(health: Health, one: Parameter, step: int, move: Moved | None, same: str) -> ParameterRow:
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
