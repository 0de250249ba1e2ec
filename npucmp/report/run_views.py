"""The views of `npucmp check` on a page: the network of the run with its findings, and its tensors over the steps."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Optional

import numpy as np

from npucmp.model.check_finding import SEVERITIES, CheckResult, StepFigures, Symptom
from npucmp.report.answer import Plot
from npucmp.report.step_series import (
    ABOVE,
    EQUAL,
    FIGURES,
    NAMES,
    SteppedTensors,
    StepSlice,
    operators_of,
    series_data,
)

Findings = dict[str, Symptom]  # by the name of an operator


def graph_data(report: CheckResult) -> Optional[dict[str, Any]]:
    """Return the operators of the first step with their findings and producers; None without operators."""
    network = report.network
    if network is None or not network.operators:
        return None
    found, paths = _findings(report), {one.name: one.path for one in network.operators}
    marks = [found.get(one.name) for one in network.operators]
    return {
        "op": [one.name for one in network.operators],
        "path": [one.path or paths.get(one.scope) or None for one in network.operators],
        "phase": [one.phase or None for one in network.operators],
        "order": [one.order for one in network.operators],
        "cause": [None if one is None else one.severity for one in marks],
        "place": [None if one is None else one.place for one in marks],
        "from": [producer for producer, _ in network.edges],
        "to": [consumer for _, consumer in network.edges],
    }


def rms_plot(report: CheckResult) -> Optional[Plot]:
    """Return the outputs of operators in the order of execution; None if none was measured."""
    known = [(one.operator.order, one.rms) for one in report.spreads if one.rms is not None]
    if not known:
        return None
    curve = ("rms of the output", [order for order, _ in known], [rms for _, rms in known])
    return Plot("The outputs along the network", "in order of execution", [curve], dots=(1,))


def _findings(report: CheckResult, step: Optional[int] = None) -> Findings:
    """Return the worst finding of each operator. A finding of a parameter is that of the operator that reads it. With a
    step, findings of other steps are left out."""
    at = {one.order: one.name for one in report.network.operators} if report.network is not None else {}
    orders = {one.parameter: one.order for one in reversed(report.parameters)}
    found: Findings = {}
    for one in sorted(report.symptoms, key=lambda one: (-SEVERITIES.index(one.severity), one.place)):
        name = one.operator.name if one.operator is not None else at.get(orders.get(one.parameter, -1), "")
        if name and (step is None or one.step is None or one.step == step):
            found.setdefault(name, one)
    return found


def run_series(report: CheckResult) -> Optional[dict[str, Any]]:
    """Return the data over the steps; None if there is one step."""
    if len({one.step for one in report.measured}) < 2:
        return None
    tensors: dict[Any, list[StepFigures]] = defaultdict(list)
    for one in report.measured:
        tensors[one.step, one.rank].append(one)
    most = max(1, FIGURES // (len(NAMES) * len(tensors)))
    slices = []
    for run in report.runs:
        found, every = _findings(report, run.step), tensors.get((run.step, run.rank), [])
        marks, own = [_marks(found.get(one.name)) for one in run.operators], every[:most]
        cells = [(one.norm, one.mean, one.minimum, one.maximum) for one in own]
        known = np.array([[cell is not None for cell in row] for row in cells], bool).reshape(-1, len(NAMES))
        curves = (tuple(getattr(one, name) for one in own) for name in ("name", "slot", "kind"))
        slices.append(
            StepSlice(
                run.step, run.rank, operators_of(run.operators), SteppedTensors(*curves),
                np.array([level for level, *_ in marks], np.uint8),
                [(at, cause, place) for at, (_, cause, place) in enumerate(marks) if cause],
                np.array(cells, np.float64).reshape(known.shape), known, {},
                max(0, len(every) - most) + report.unmeasured,
            )
        )  # fmt: skip
    return {**series_data(slices, sides=["run"]), "kind": "finding"}


def _marks(one: Optional[Symptom]) -> tuple[int, str, int]:
    return (EQUAL, "", 0) if one is None else (ABOVE + SEVERITIES.index(one.severity), one.severity, one.place)
