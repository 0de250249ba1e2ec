"""Show the content of a dump: the operators of its runs and, if a pattern selects them, the statistics of their
tensors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple, Optional

from npucmp.dump.context import ReadContext
from npucmp.errors import NpucmpError, UsageError
from npucmp.measure.pairs import measure
from npucmp.measure.preview import peek
from npucmp.model import Measurement, Operator, Pair, Peek, Run, TensorRef
from npucmp.workflows.api_signature import of_one
from npucmp.workflows.option_fields import ShowFields
from npucmp.workflows.select_runs import RunSelection, StrPath
from npucmp.workflows.unused_options import unfit_globs

MOST = 12  # number of suggested slots


class MeasuredTensor(NamedTuple):
    """A measured tensor, and its values if they were requested and can be read."""

    measurement: Measurement
    peek: Optional[Peek] = None


@dataclass(frozen=True)
class ShowOptions(ShowFields, RunSelection):
    """The options of show, and the tensors that they select."""

    @property
    def is_any(self) -> bool:
        return bool(self.slot or self.values or self.at)

    def looks_at(self, tensor: TensorRef) -> bool:
        return not self.slot or any(fnmatchcase(tensor.slot, glob) for glob in self.slot)

    def places(self, tensor: TensorRef) -> list[int]:
        return [place_of(str(text), tensor) for text in self.at]


Rows = list[tuple[Operator, list[MeasuredTensor]]]


class DumpContents(NamedTuple):
    """The content of a dump: each run with its operators and their measured tensors, and notes on globs that match
    nothing."""

    runs: list[tuple[Run, Rows]]
    notes: list[str]


def place_of(text: str, tensor: TensorRef) -> int:
    """Parse an index as a place in C order. Raises UsageError if the tensor has no such element."""
    words = re.fullmatch(r"\s*\[?\s*(-?\d{1,18}(?:\s*,\s*-?\d{1,18})*)?\s*,?\s*\]?\s*", text)
    if words is None:
        raise UsageError(f"--at {text}: needs an index, as in --at 0,3,12")
    numbers = [int(word) for word in words[1].split(",")] if words[1] else []
    shape = (math.prod(tensor.shape),) if len(numbers) == 1 else tensor.shape
    if len(numbers) != len(shape) or any(not -size <= one < size for one, size in zip(numbers, shape)):
        raise UsageError(f"--at {text}: {tensor.slot} has the shape {list(tensor.shape)}; --slot names others")
    place = 0
    for one, size in zip(numbers, shape):
        place = place * size + one % size
    return place


@of_one(ShowOptions, "show(): a pattern is given by its name, as in pattern='*softmax*'")
def show(dump: StrPath, options: ShowOptions) -> DumpContents:
    """Return the content of a dump: its runs, their operators, and the statistics of the tensors that a pattern
    selects.

    Raises NpucmpError if nothing matches.

        for run, rows in npucmp.show("npu_dump", pattern="*softmax*").runs:
            for operator, tensors in rows:
                print(operator.name, [one.measurement.moments for one in tensors])
    """
    pattern = options.pattern
    if options.is_any and pattern is None:
        raise UsageError("--values, --slot and --at need a PATTERN that selects operators")
    context = options.context(dump)
    runs = options.runs(dump, context)
    notes = unfit_globs(options, runs)
    if pattern is not None:
        unfit_globs(replace(options, include=(pattern,), exclude=()), runs, "")
    found = [(run, [*_rows(run, options, context)]) for run in runs]
    if options.slot and not any(seen for _, rows in found for _, seen in rows):
        slots = dict.fromkeys(one.slot for _, rows in found for operator, _ in rows for one in operator.tensors)
        raise UsageError(f"no tensor fits --slot {' '.join(options.slot)}", [*slots][:MOST])
    if not any(rows for _, rows in found) and not any(run.problem for run, _ in found):
        raise UsageError(f"{dump}: no operator passes --include and --exclude")
    return DumpContents(found, notes)


def _rows(run: Run, options: ShowOptions, context: ReadContext) -> Rows:
    pattern = options.pattern
    return [
        (operator, _seen(operator, options, context) if pattern is not None else [])
        for operator in options.chosen(run)
        if pattern is None or fnmatchcase(operator.name, pattern)
    ]


def _seen(operator: Operator, options: ShowOptions, context: ReadContext) -> list[MeasuredTensor]:
    return [_looked(operator, one, options, context) for one in operator.tensors if options.looks_at(one)]


def _looked(operator: Operator, tensor: TensorRef, options: ShowOptions, context: ReadContext) -> MeasuredTensor:
    found = measure(Pair(operator.order, tensor.slot, operator, None, tensor, None), context=context)
    places = options.places(tensor)
    if found.moments is None or not (options.values or places):
        return MeasuredTensor(found)
    try:
        values = peek(tensor, found.moments.target, places, context)
    except NpucmpError:  # the file changed since the measurement
        return MeasuredTensor(found)
    return MeasuredTensor(found, values if options.values else values._replace(largest=(), smallest=(), corners=()))
