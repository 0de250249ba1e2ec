"""The relation that the user states in a mapping: views of tensors of the target, which are measured and not doubted.
Steps that join ranks are kept for relations/ranks/, which looks for no other placement of these tensors."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import Iterator, Mapping, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import header_of
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import NpucmpError, SystemFailure, UsageError
from npucmp.model import DIFFERS, Comparison, Operator, Payload, Report, Run, TensorRef, first_of
from npucmp.model.relation import STATED, Relation
from npucmp.relations.stated_view import View, matching_pattern, parse_view, viewed
from npucmp.report.phrases import count_of
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import Sides

KEEPS_FIGURES = frozenset(("permute", "reshape"))  # steps after which recorded statistics still hold: definition


class StatedRelation:
    """The views that a mapping states, by a pattern of "operator slot" of the target."""

    def __init__(self, views: Mapping[str, View], folder: str, context: ReadContext) -> None:
        self._views, self._folder, self._context = views, folder, context
        self._used = Counter[str]()

    def plan(self) -> Sequence[str]:
        """Return the stated views with the numbers of their tensors."""
        words = (f"{self._used[pattern]} x {view.words} ({pattern})" for pattern, view in self._views.items())
        return [f"stated by the user: {', '.join(words)}"]

    def apply(self, sides: Sides) -> Sides:
        """Return the sides in which the target has the stated views of its tensors."""
        targets = [self._run(run) for run in sides.targets]
        return sides._replace(targets=targets, stated=self._views)

    def explain(self, report: Report) -> Report:
        """Return the report with a note on what was stated, and whether all values contradict it."""
        notes = []
        verdicts = [is_far for one in report.comparisons for is_far in _differ(one)]
        if verdicts:
            words = f"in the relation that the user stated: {count_of(len(verdicts), 'tensor')}"
            notes.append(f"{words}; all of them differ: values contradict it" if all(verdicts) else words)
        if unused := [pattern for pattern in self._views if not self._used[pattern]]:
            notes.append(f"relations in --mapping match no tensor of the target: {first_of(unused)}")
        if unplaced := [pattern for pattern in self._views if self._is_unplaced(pattern, report)]:
            notes.append(f"relations in --mapping join ranks that are not put together: {first_of(unplaced)}")
        return replace(report, notes=(*report.notes, *notes))

    def _is_unplaced(self, pattern: str, report: Report) -> bool:
        """Whether a view joins ranks, and those of no tensor were joined."""
        placed = report.layout.placed if report.layout is not None else ()
        slots = (
            (name, one.slot)
            for one in placed
            if one.relation is not None and one.relation.decided_by == STATED
            for name in (one.operator, *(name for _, name in one.relation.operators))
        )
        is_used = self._used[pattern] and self._views[pattern].of_ranks
        return bool(is_used) and not any(matching_pattern([pattern], *slot) for slot in slots)

    def _run(self, run: Run) -> Run:
        return replace(run, operators=tuple(map(self._operator, run.operators)))

    def _operator(self, operator: Operator) -> Operator:
        tensors = tuple(self._tensor(operator, tensor) for tensor in operator.tensors)
        return operator if tensors == operator.tensors else operator._replace(tensors=tensors)

    def _tensor(self, operator: Operator, tensor: TensorRef) -> TensorRef:
        pattern = matching_pattern(self._views, operator.name, tensor.slot)
        if pattern is None:
            return tensor
        self._used[pattern] += 1
        view = self._views[pattern]
        if not view.of_tensor or tensor.problem:
            return tensor
        try:
            payload = viewed(self._payload(tensor), view, self._folder, self._context)
        except SystemFailure:
            raise
        except NpucmpError as error:
            return tensor._replace(problem=f"stated relation {view.words}: {getattr(error, 'because', error)}")
        is_kept = all(step.name in KEEPS_FIGURES for step in view.of_tensor)
        has_values = bool(tensor.file or tensor.payload)
        relation = Relation((), (), decided_by=STATED, of_rank=" · ".join(step.words for step in view.of_tensor))
        return tensor._replace(
            shape=payload.shape,
            payload=payload if has_values else None,
            statistics=tensor.statistics if is_kept else None,
            checksum="",
            relation=relation,
        )

    def _payload(self, tensor: TensorRef) -> Payload:
        """The values of a tensor; without values, what shows the shape of its view."""
        if tensor.payload is not None:
            return tensor.payload
        if not tensor.file:
            return Payload("", tensor.dtype, tensor.shape, 0)
        with open_regular(tensor.file, self._context) as file:
            return header_of(tensor.encoding, file)


def find(sides: Sides, options: Options, context: ReadContext, in_doubt: bool) -> Optional[StatedRelation]:
    """Return what the mapping states; None if it states no relation. Raises UsageError for an unknown view."""
    stated = options.relations()
    if not stated:
        return None
    is_file = isinstance(options.mapping, (str, os.PathLike))
    where = os.fspath(options.mapping) if is_file else "mapping"  # type: ignore[arg-type]
    views = {}
    for pattern, text in stated.items():
        try:
            views[pattern] = parse_view(text)
        except UsageError as error:
            raise UsageError(f"{where}: relation of {pattern!r:.100}: {error}") from None
    return StatedRelation(views, os.path.dirname(where) or os.curdir if is_file else "", context)


def _differ(one: Comparison) -> Iterator[bool]:
    """Yield for each compared tensor with a stated relation whether it differs."""
    for finding in one.findings:
        relation = finding.pair.target.relation if finding.pair.target is not None else None
        if relation is not None and relation.decided_by == STATED and finding.error is not None:
            yield finding.verdict in DIFFERS
