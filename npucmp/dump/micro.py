"""The micro batches of one step, each dumped by itself → one Run, whose operators bear the names of their batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from npucmp.model import Operator, Run


def whole(path: str, batches: "Sequence[tuple[str, Run]]") -> Run:
    """One Run of the batches in their order, of which each has a name ("micro_batch_0")."""
    operators: "list[Operator]" = []
    for name, run in batches:
        operators += (_named(one, name, len(operators) + at) for at, one in enumerate(run.operators))
    notes = dict.fromkeys(note for _, run in batches for note in run.notes)
    return replace(batches[0][1], path=path, operators=tuple(operators), notes=tuple(notes))


def _named(operator: Operator, batch: str, order: int) -> Operator:
    def of(text: str) -> str:
        return f"{batch}/{text}" if text else ""

    return operator._replace(
        name=of(operator.name),
        kind=of(operator.kind),
        call=of(operator.call),
        scope=of(operator.scope),
        path=of(operator.path),
        order=order,
    )
