"""Show the content of a dump: the operators of its runs and, if a pattern selects them, the statistics of their
tensors; or load the values of one tensor as an array.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence

from npucmp.dump.limits import Limits, ReadContext
from npucmp.errors import NpucmpError, UsageError
from npucmp.measure.pairs import measure
from npucmp.measure.preview import array_of, preview
from npucmp.model import Measurement, Operator, Pair, Run, TensorPreview, TensorRef
from npucmp.workflows.graphs import load_named_graphs, with_graphs
from npucmp.workflows.option_fields import ShowFields, StrPath
from npucmp.workflows.options import of_one
from npucmp.workflows.select_runs import MOST_SUGGESTED, RunSelection, operator_of
from npucmp.workflows.selectors import Numbers
from npucmp.workflows.unused_options import unfit_globs

if TYPE_CHECKING:
    import numpy.typing as npt

MOST = 12  # number of suggested slots


class MeasuredTensor(NamedTuple):
    """A measured tensor, and its values if they were requested and can be read."""

    measurement: Measurement
    peek: Optional[TensorPreview] = None


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

    def __repr__(self) -> str:
        operators = sum(len(rows) for _, rows in self.runs)
        return f"<{len(self.runs)} runs, {operators} operators, {len(self.notes)} notes>"


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
    if options.is_any and options.pattern is None:
        raise UsageError("--values, --slot and --at need a PATTERN that selects operators")
    context = options.context(dump)
    runs = options.runs(dump, context)
    notes = unfit_globs(options, runs)
    pattern = options.pattern
    if pattern is not None and _is_part_of_names(pattern, runs):
        notes.append(f"no operator is named {pattern!r:.100}; the operators whose names contain it are shown")
        pattern = f"*{pattern}*"
        options = replace(options, pattern=pattern)
    if pattern is not None:
        unfit_globs(replace(options, include=(pattern,), exclude=()), runs, "")
    found = [(run, [*_rows(run, options, context)]) for run in runs]
    if options.slot and not any(seen for _, rows in found for _, seen in rows):
        slots = dict.fromkeys(one.slot for _, rows in found for operator, _ in rows for one in operator.tensors)
        raise UsageError(f"no tensor fits --slot {' '.join(options.slot)}", [*slots][:MOST])
    if not any(rows for _, rows in found) and not any(run.problem for run, _ in found):
        raise UsageError(f"{dump}: no operator passes --include and --exclude")
    return DumpContents(found, notes)


def _is_part_of_names(pattern: str, runs: Sequence[Run]) -> bool:
    """Return whether a pattern without wildcards is the name of no operator, and a part of some names."""
    names = {operator.name for run in runs for operator in run.operators}
    return (
        not any(sign in pattern for sign in "*?[") and pattern not in names and any(pattern in name for name in names)
    )


def _rows(run: Run, options: ShowOptions, context: ReadContext) -> Rows:
    pattern = options.pattern
    return [
        (operator, _measured_tensors(operator, options, context) if pattern is not None else [])
        for operator in options.operators_of(run)
        if pattern is None or fnmatchcase(operator.name, pattern)
    ]


def _measured_tensors(operator: Operator, options: ShowOptions, context: ReadContext) -> list[MeasuredTensor]:
    return [_tensor_preview(operator, one, options, context) for one in operator.tensors if options.looks_at(one)]


def _tensor_preview(
    operator: Operator, tensor: TensorRef, options: ShowOptions, context: ReadContext
) -> MeasuredTensor:
    found = measure(Pair(operator.order, tensor.slot, operator, None, tensor, None), context=context)
    places = options.places(tensor)
    if found.moments is None or not (options.values or places):
        return MeasuredTensor(found)
    try:
        values = preview(tensor, found.moments.target, places, context)
    except NpucmpError:  # the file changed since the measurement
        return MeasuredTensor(found)
    return MeasuredTensor(found, values if options.values else values._replace(largest=(), smallest=(), corners=()))


def load(
    dump: StrPath,
    op: Optional[str] = None,
    slot: Optional[str] = None,
    *,
    step: Numbers = None,
    rank: Numbers = None,
    format: Optional[str] = None,
    limits: Limits = Limits(),
) -> npt.NDArray[Any]:
    """Return the values of a tensor in its logical shape: device layouts are undone, slices are joined, bfloat16 is the
    type of ml_dtypes.

    op      the operator, by its whole name; None for the only one
    slot    "output:0", "input:1", "param:weight"; None for the only tensor, or the only output
    step, rank, format, limits  as for compare

    Raises UsageError with the nearest names for an unknown name, and NpucmpError if no values were dumped.
    """
    choice = RunSelection(format=format, step=step, rank=rank, limits=limits)
    context = choice.context(dump)
    runs = [run for run in choice.runs(dump, context) if not run.problem]
    runs = with_graphs(
        dump, runs, dump, load_named_graphs((), runs, context), context
    )  # graphs name the axes of a layout
    if op is None:
        names = [operator.name for run in runs for operator in run.operators]
        if len(names) != 1:
            raise UsageError(f"{dump}: name one of {len(names)} operators", names[:MOST_SUGGESTED])
        op = names[0]
    _, operator = operator_of(op, dump, runs)
    return array_of(_tensor(dump, operator, slot), context)


def _tensor(dump: StrPath, operator: Operator, slot: Optional[str]) -> TensorRef:
    outputs = [one for one in operator.tensors if one.is_output]
    if slot is not None:
        found = [one for one in operator.tensors if one.slot == slot]
    else:
        found = [*operator.tensors] if len(operator.tensors) == 1 else outputs
    if len(found) == 1:
        return found[0]
    words = f"has no {slot}" if slot is not None else "has several tensors: name a slot"
    raise UsageError(f"{dump}: {operator.name} {words}", [one.slot for one in operator.tensors])
