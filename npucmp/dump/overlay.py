"""Join several dumps of one run into one Run: statistics of all tensors and values of a few that were dumped later, or
the micro batches of one step.

Operators match by name, executions of the same name counted from the last; tensors match by slot. Values come from the
dump that has them; other recorded facts of a tensor come from the first dump that has them. If micro batches are
joined, operator names begin with the name of the batch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Sequence

from npucmp.dump.readers.names import natural
from npucmp.model import Operator, Run, TensorRef, first_of
from npucmp.model.optypes import op_type_of


def join(run: Run, other: Run) -> Run:
    """Return a run with the additional content of another dump of it.

    Operators keep the order of the larger dump. An operator that the larger dump lacks follows the operator that
    precedes it in the other dump.
    """
    is_larger = len(run.operators) >= len(other.operators)
    base, more = (run, other) if is_larger else (other, run)
    partners = _partners(base.operators, more.operators)
    found = _Found()
    rows = []
    for at, operator in enumerate(base.operators):
        if at in partners:
            both = operator, more.operators[partners[at]]
            operator = found.merged_operator(*(both if is_larger else both[::-1]))
        rows.append(((at, 0, 0), operator))
    follows, places = -1, {theirs: mine for mine, theirs in partners.items()}
    for at, operator in enumerate(more.operators):
        follows = places.get(at, follows)
        if at not in places:
            rows.append(((follows, 1, at), operator))
    rows.sort(key=lambda row: row[0])
    return replace(
        run,
        operators=tuple(operator._replace(order=order) for order, (_, operator) in enumerate(rows)),
        step=other.step if run.step is None else run.step,
        rank=other.rank if run.rank is None else run.rank,
        detail=_detail(run.detail, other.detail),
        notes=(*run.notes, *other.notes, *found.notes(run, other, len(partners))),
        records=(*run.records, *other.records),
        ordered=run.ordered and other.ordered,
    )


def _detail(one: str, other: str) -> str:
    """Return a detail such as "pytorch · L1 statistics + L1 tensor"."""
    head, _, tail = other.rpartition(" · ")
    more = tail if one.startswith(head) else other
    return one if more in one else f"{one} + {more}" if one else more


def _partners(base: Sequence[Operator], more: Sequence[Operator]) -> dict[int, int]:
    """Map operators of `base` to operators of the same name in `more`, both by position.

    If the numbers of executions differ, the newest executions match.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for at, operator in enumerate(more):
        places[operator.name].append(at)
    return {at: places[one.name].pop() for at, one in reversed([*enumerate(base)]) if places.get(one.name)}


@dataclass
class _Found:
    """Counts of joined tensors: new values, different shapes or types (`unlike`), different statistics (`moved`)."""

    values: int = 0
    unlike: list[str] = field(default_factory=list)
    recorded: int = 0
    moved: int = 0

    def merged_operator(self, one: Operator, other: Operator) -> Operator:
        """Return the operator joined from both dumps."""
        left: dict[str, list[TensorRef]] = defaultdict(list)
        for tensor in other.tensors:
            left[tensor.slot].append(tensor)
        tensors = [self._tensor(one, t, left[t.slot].pop(0)) if left.get(t.slot) else t for t in one.tensors]
        return one._replace(
            tensors=(*tensors, *(tensor for tensors_left in left.values() for tensor in tensors_left)),
            arguments={**other.arguments, **one.arguments},
            stack=one.stack or other.stack,
            scope=one.scope or other.scope,
            reads_recorded=one.reads_recorded or other.reads_recorded,
        )

    def _tensor(self, op: Operator, one: TensorRef, other: TensorRef) -> TensorRef:
        """Return the tensor joined from both dumps; if shape or type differs, return the first unchanged."""
        if (one.shape, one.dtype) != (other.shape, other.dtype) and not (one.problem or other.problem):
            self.unlike.append(f"{op.name} {one.slot}")
            return one
        if one.statistics is not None and other.statistics is not None:
            self.recorded += 1
            self.moved += _differs(one, other) and not (one.is_output and op_type_of(op).has("uninitialised"))
        values = other if (other.file or other.problem) and not _has_values(one) else one
        self.values += values is other and _has_values(other)
        return values._replace(
            statistics=one.statistics or other.statistics,
            checksum=one.checksum or other.checksum,
            source=one.source or other.source,
            origin=one.origin or other.origin,
        )

    def notes(self, run: Run, other: Run, operators: int) -> list[str]:
        """Return the notes for the report."""
        of = f"{other.path} joins {run.path}"
        found = [f"{of}: {operators} operators are in both dumps, {self.values} tensors receive values"]
        if self.unlike:
            found.append(
                f"{of}: {len(self.unlike)} tensors differ in shape or type ({first_of(self.unlike)}) and are not joined"
            )
        if self.moved:
            found.append(
                f"{of}: statistics of {self.moved} of {self.recorded} tensors differ between the dumps: the values are "
                "of another execution"
            )
        return found


def _differs(one: TensorRef, other: TensorRef) -> bool:
    """Return whether a figure recorded in both dumps differs by more than its rounding; NaN equals NaN."""
    statistics = zip(one.statistics or (), other.statistics or ())
    both = [(a, b) for a, b in statistics if a is not None and b is not None and a != b and (a == a or b == b)]
    return any(not abs(a - b) <= one.rounding + other.rounding for a, b in both)


def _has_values(tensor: TensorRef) -> bool:
    return bool(tensor.file) and not tensor.problem


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
