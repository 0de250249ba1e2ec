"""Data of a Health for the drawings of a page: the figures of tensors in each step, and the operators of one step with
the producers of what they read."""

from __future__ import annotations

import math
from collections import Counter
from typing import Hashable, Iterator, Optional, Sequence

from npucmp.flow.contents import MIN_ELEMENTS
from npucmp.flow.edges import Producers
from npucmp.health.facts import Health, Tensor
from npucmp.model.check_finding import RunNetwork, StepFigures

MOST = 250_000  # figures of tensors of all steps


def measured_tensors(healths: Sequence[Health]) -> tuple[tuple[StepFigures, ...], int]:
    """Return the figures of all ranks and steps, and the number of tensors of a step that are left out beyond MOST. A
    dump of one step has no curves, so nothing is returned for it."""
    kept: list[StepFigures] = []
    left = 0
    steps = sum(len(one.steps) for one in healths)
    for health in healths:
        counts: Counter[Optional[int]] = Counter()
        for found in _figures(health):
            counts[found.step] += 1
            if counts[found.step] <= MOST // steps:
                kept.append(found)
        left = max(left, *(count - MOST // steps for count in counts.values()), 0) if counts else left
    return tuple(kept), left


def _figures(health: Health) -> Iterator[StepFigures]:
    """Yield the parameters, their gradients and the outputs of operators of each step."""
    if len(health.steps) < 2:
        return
    for step in health.steps:
        for parameter in health.parameters:
            yield from _measured(health, step.index, parameter.name, "", "parameter", parameter.weights)
            yield from _measured(health, step.index, parameter.name, "gradient", "gradient", parameter.gradients)
        for one in step.operators:
            kind = "gradient" if one.is_gradient else "activation"
            for tensor in one.outputs:
                if (found := _of(tensor, one.name, tensor.slot, kind, health, step.index)) is not None:
                    yield found


def _measured(
    health: Health, step: int, name: str, slot: str, kind: str, tensors: Sequence[Optional[Tensor]]
) -> Iterator[StepFigures]:
    tensor = tensors[step]
    found = None if tensor is None else _of(tensor, name, slot, kind, health, step)
    if found is not None:
        yield found


def _of(tensor: Tensor, name: str, slot: str, kind: str, health: Health, step: int) -> Optional[StepFigures]:
    """Return the figures of a tensor; None if nothing is known of it."""
    figures = tensor.figures
    if figures.extremes is None and figures.rms is None:
        return None
    extremes = figures.extremes
    finite = math.prod(tensor.shape) - (extremes.nan + extremes.inf if extremes is not None and figures.counted else 0)
    norm = None if figures.rms is None else _known(figures.rms * math.sqrt(max(0, finite)))
    return StepFigures(
        name, slot, kind, health.number(step), health.rank, norm, _known(figures.mean), figures.minimum, figures.maximum
    )


def _known(figure: Optional[float]) -> Optional[float]:
    return None if figure is None or math.isnan(figure) else figure


def run_network(health: Health) -> Optional[RunNetwork]:
    """Return the operators of the first step with their producers: those that a graph names, else the latest earlier
    output of equal bits."""
    if not health.steps:
        return None
    step = health.steps[0]
    producers: Producers[int] = Producers()
    edges: dict[tuple[int, int], None] = {}
    for number, one in enumerate(step.operators):
        for tensor in one.inputs:
            found = producers.graph_producer(tensor.ref)
            content = _content(tensor) if found is None else None
            found = producers.by_content.get(content) if content is not None else found
            if found is not None and found != number:
                edges[found, number] = None
        for tensor in one.outputs:
            producers.add_output(one.operator, tensor.slot, number)
            if (content := _content(tensor)) is not None:
                producers.by_content[content] = number
    return RunNetwork(step.number, health.rank, tuple(one.operator for one in step.operators), tuple(edges))


def _content(tensor: Tensor) -> Optional[Hashable]:
    """Return what identifies the values of a tensor; None for constants and few elements, which agree by chance."""
    figures = tensor.figures
    if not figures.bits or math.prod(tensor.shape) < MIN_ELEMENTS or figures.constant is not None:
        return None
    return tensor.dtype, tensor.shape, figures.bits
