"""What is in a dump: the operators of its runs and, for those a pattern names, the figures of their tensors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple, Optional, Sequence

from npucmp.dump.context import ReadContext
from npucmp.errors import NpucmpError, UsageError
from npucmp.measure.pairs import measure
from npucmp.measure.peek import peek
from npucmp.model import Measurement, Operator, Pair, Peek, Run, TensorRef
from npucmp.workflows.misfits import unfit_globs
from npucmp.workflows.runs import Choice, StrPath

MOST = 12  # slots that are proposed


class Seen(NamedTuple):
    """A tensor, measured; its values, if somebody wanted to look at them and they are there."""

    measurement: Measurement
    peek: Optional[Peek] = None


@dataclass(frozen=True)
class Looking:
    """What is looked at: tensors in slots that fit one of the globs; their values; elements by their indices, as a user
    writes them ("0,3,12" or "[0, 3, 12]", or one number in C order)."""

    slot: Sequence[str] = ()
    values: bool = False
    at: Sequence[str] = ()

    @property
    def is_any(self) -> bool:
        return bool(self.slot or self.values or self.at)

    def wants(self, tensor: TensorRef) -> bool:
        return not self.slot or any(fnmatchcase(tensor.slot, glob) for glob in self.slot)

    def places(self, tensor: TensorRef) -> "list[int]":
        return [place_of(text, tensor) for text in self.at]


Rows = list[tuple[Operator, list[Seen]]]


def place_of(text: str, tensor: TensorRef) -> int:
    """The place in C order that a user means. UsageError for one that the tensor does not have."""
    words = re.fullmatch(r"\s*\[?\s*(-?\d{1,18}(?:\s*,\s*-?\d{1,18})*)?\s*,?\s*\]?\s*", text)
    if words is None:
        raise UsageError(f"--at {text}: an index is wanted, as in --at 0,3,12")
    numbers = [int(word) for word in words[1].split(",")] if words[1] else []
    shape = (math.prod(tensor.shape),) if len(numbers) == 1 else tensor.shape
    if len(numbers) != len(shape) or any(not -size <= one < size for one, size in zip(numbers, shape)):
        raise UsageError(f"--at {text}: {tensor.slot} has the shape {list(tensor.shape)}; --slot names others")
    place = 0
    for one, size in zip(numbers, shape):
        place = place * size + one % size
    return place


def inspect(
    dump: StrPath, pattern: Optional[str] = None, choice: Optional[Choice] = None, looking: Looking = Looking()
) -> "tuple[list[tuple[Run, Rows]], list[str]]":
    """The runs that are meant, their operators with their measured tensors (without a pattern nothing is measured), and
    notes on globs that fit nothing.

    Raises NpucmpError when nothing fits.
    """
    choice = choice or Choice()
    if looking.is_any and pattern is None:
        raise UsageError("--values, --slot and --at need a PATTERN: the operators whose values are meant")
    context = choice.context(dump)
    runs = choice.runs(dump, context)
    notes = unfit_globs(choice, runs)
    if pattern is not None:
        unfit_globs(replace(choice, include=(pattern,), exclude=()), runs, "")
    found = [(run, [*_rows(run, pattern, choice, looking, context)]) for run in runs]
    if looking.slot and not any(seen for _, rows in found for _, seen in rows):
        slots = dict.fromkeys(one.slot for _, rows in found for operator, _ in rows for one in operator.tensors)
        raise UsageError(f"no tensor fits --slot {' '.join(looking.slot)}", [*slots][:MOST])
    if not any(rows for _, rows in found) and not any(run.problem for run, _ in found):
        raise UsageError(f"{dump}: no operator passes --include and --exclude")
    return found, notes


def _rows(run: Run, pattern: Optional[str], choice: Choice, looking: Looking, context: ReadContext) -> Rows:
    return [
        (operator, _seen(operator, looking, context) if pattern is not None else [])
        for operator in choice.chosen(run)
        if pattern is None or fnmatchcase(operator.name, pattern)
    ]


def _seen(operator: Operator, looking: Looking, context: ReadContext) -> "list[Seen]":
    return [_looked(operator, one, looking, context) for one in operator.tensors if looking.wants(one)]


def _looked(operator: Operator, tensor: TensorRef, looking: Looking, context: ReadContext) -> Seen:
    found = measure(Pair(operator.order, tensor.slot, operator, None, tensor, None), context=context)
    places = looking.places(tensor)
    if found.moments is None or not (looking.values or places):
        return Seen(found)
    try:
        values = peek(tensor, found.moments.target, places, context)
    except NpucmpError:  # it was there a moment ago
        return Seen(found)
    return Seen(found, values if looking.values else values._replace(largest=(), smallest=(), corners=()))
