"""Join the micro batches of one step, dumped separately, into one Run. Operator names begin with the batch name."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from npucmp.dump.readers.name_rules import natural
from npucmp.model import Operator, Run


def join_batches(path: str, batches: Sequence[tuple[str, Run]]) -> Run:
    """Return one Run of the batches, in the order of the numbers in their names ("micro_batch_0")."""
    sorted_batches = sorted(batches, key=lambda one: natural(one[0]))
    operators = [(name, one) for name, run in sorted_batches for one in run.operators]
    notes = dict.fromkeys(note for _, run in batches for note in run.notes)
    named = tuple(_batch_operator(one, name, order) for order, (name, one) in enumerate(operators))
    return replace(batches[0][1], path=path, operators=named, notes=tuple(notes))


def _batch_operator(operator: Operator, batch: str, order: int) -> Operator:
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
