"""A record with other values and the same verdict. Only child processes import this.

    inputs → other inputs → float64 → + the carried errors → judged again → the same verdict, or another draw

The engine that judges the record judges the drawn one too. Drawn tensors lie in a scratch folder below the case, which
holds no value of the dump.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array
from npucmp.errors import NpucmpError
from npucmp.model import REPLAYED, Operator, Payload, ReplayedOutput, TensorRef
from npucmp.model.dtypes import DTYPES, Dtype, numpy_dtype
from npucmp.recompute.arguments import RefusedRecord, read
from npucmp.recompute.carried_error import carried, moved_apart
from npucmp.recompute.engine import OperatorEngine
from npucmp.recompute.error_budget import round_to
from npucmp.recompute.exact_results import ExactResults
from npucmp.recompute.redacted_values import (
    equal_places,
    fresh_generator,
    has_mantissa,
    is_structure,
    redraw,
    require_plain,
    run_length,
    runs,
)
from npucmp.recompute.repro_case import CALL, NOT_KEPT
from npucmp.recompute.task import ReplaySettings, Task

DRAWS, PERMUTED = 6, 3  # the draws from that number on permute integers, so that sums and counts stay
SECONDS = 40.0  # of all draws: the process has 60
SAME_FIGURE = 0.05  # relative difference of a figure in an explanation
SCRATCH = "scratch"


class DrawnRecord(NamedTuple):
    """A record with other values, by operator ("forward", "") and slot. `carried` has the outputs without the elements
    that follow from the drawn inputs alone."""

    task: Task
    values: dict[tuple[str, str], Array]
    carried: dict[tuple[str, str], Array]
    is_permuted: bool


class OriginalRecord:
    """A record, its values, its verdict and its float64 results."""

    def __init__(self, task: Task, context: ReadContext, settings: ReplaySettings, judge: OperatorEngine) -> None:
        self.task, self.settings, self.judge, self.context = task, settings, judge, context
        self.rows = judge.replay(task, context, settings)
        self.values = {
            (part, tensor.slot): _wide(read(tensor, context), require_plain(tensor.dtype, tensor.slot))
            for part, operator in parts(task)
            for tensor in operator.tensors
            if _has_values(tensor)
        }
        self.exact = ExactResults(task, context, settings)
        self.before = self._exact_forward(task, None) if task.is_backward else None

    def _exact_forward(self, task: Task, like: Optional[ExactResults]) -> Optional[ExactResults]:
        """The results of the forward of a backward record; None if they cannot be computed."""
        assert task.forward is not None and task.forward_call is not None
        try:
            return ExactResults(Task(task.forward, task.forward_call), self.context, self.settings, like)
        except (RefusedRecord, NpucmpError):
            return None

    def draw(self, folder: Path, number: int) -> DrawnRecord:
        """Return the record with other inputs, and the outputs that belong to them."""
        rng = fresh_generator()
        store = _Store(self, folder, rng, keeps_elements=number >= PERMUTED, apart=number < DRAWS - 2)
        task = store.task(self.task, store.inputs())
        if self.before is not None and task.forward is not None:
            task = store.task(task, store.outputs("forward", self.before, self._exact_forward(task, self.before), ()))
        found = ExactResults(task, self.context, self.settings, self.exact)
        return DrawnRecord(
            store.task(task, store.outputs("", self.exact, found, self.rows)),
            store.values,
            store.carried,
            number >= PERMUTED,
        )


class _Store:
    """Draw the tensors of a record, and write each at once. Equal tensors of the record become equal tensors."""

    def __init__(
        self, of: OriginalRecord, folder: Path, rng: np.random.Generator, keeps_elements: bool, apart: bool
    ) -> None:
        self._of, self._folder, self._rng, self._keeps, self._apart = of, folder, rng, keeps_elements, apart
        self._same: dict[bytes, Array] = {}
        self.values: dict[tuple[str, str], Array] = {}
        self.carried: dict[tuple[str, str], Array] = {}

    def inputs(self) -> dict[tuple[str, str], TensorRef]:
        """Draw all inputs; outputs get other mantissas until they are known."""
        found = {}
        for part, operator in parts(self._of.task):
            for tensor in operator.tensors:
                key = part, tensor.slot
                if key not in self._of.values:
                    found[key] = tensor._replace(statistics=None, checksum="")
                    continue
                values, content = self._of.values[key], self._content(key, tensor)
                is_output = tensor.slot.startswith("output")
                if is_output and content not in self._same:
                    drawn = redraw(values, DTYPES[tensor.dtype], self._rng, self._keeps)
                elif content in self._same:
                    drawn = self._same[content]
                else:
                    drawn = redraw(values, DTYPES[tensor.dtype], self._rng, self._keeps)
                    self._same[content] = drawn
                found[key] = self._put(key, tensor, drawn)
        return found

    def outputs(
        self, part: str, exact: ExactResults, other: Optional[ExactResults], rows: Any
    ) -> dict[tuple[str, str], TensorRef]:
        """Return the outputs with carried errors."""
        by_slot = {row.slot: row for row in rows}
        found = {}
        results = other.values if other is not None else {}
        for tensor in dict(parts(self._of.task))[part].tensors:
            key = part, tensor.slot
            if not tensor.slot.startswith("output") or key not in self._of.values:
                continue
            if self._content(key, tensor) in self._same or tensor.slot not in results:
                continue
            values, row, dtype = self._of.values[key], by_slot.get(tensor.slot), DTYPES[tensor.dtype]
            if tensor.slot not in exact.values:
                continue
            models = exact.models(row, other) if row is not None and other is not None else None
            model, moved = models or (exact.values[tensor.slot], results[tensor.slot])
            drawn = carried(values, model.reshape(values.shape), moved.reshape(values.shape), dtype, self._rng)
            low = re.fullmatch(r"all values are (\w+) numbers", row.explained_by) if row is not None else None
            if low:
                drawn, dtype = round_to(drawn, DTYPES[low[1]]), DTYPES[low[1]]
            if self._apart and dtype.kind == "f" and (row is None or row.budget != "exact"):
                drawn = moved_apart(values, drawn, moved.reshape(values.shape), dtype)
            found[key] = self._put(key, tensor, drawn)
            if dtype.kind == "f":
                expected = round_to(moved.reshape(values.shape), dtype)
                self.carried[key] = np.where(drawn == expected, 0.0, drawn)
        return found

    def task(self, task: Task, tensors: Mapping[tuple[str, str], TensorRef]) -> Task:
        """Return a record with these tensors in place of its own."""
        operators = {
            part: operator._replace(tensors=tuple(tensors.get((part, one.slot), one) for one in operator.tensors))
            for part, operator in parts(task)
        }
        return task._replace(operator=operators[""], forward=operators.get("forward"))

    def _content(self, key: tuple[str, str], tensor: TensorRef) -> bytes:
        values = self._of.values[key]
        head = f"{tensor.dtype} {tensor.shape}".encode()
        return hashlib.sha256(head + np.ascontiguousarray(values).tobytes()).digest()

    def _put(self, key: tuple[str, str], tensor: TensorRef, drawn: Array) -> TensorRef:
        """Write a tensor, and return its reference."""
        self.values[key] = drawn
        path = self._folder / f"{len(list(self._folder.iterdir()))}.bin"
        path.write_bytes(np.ascontiguousarray(drawn.astype(numpy_dtype(tensor.dtype))).tobytes())
        payload = Payload(str(path), tensor.dtype, tensor.shape, 0)
        return tensor._replace(
            file=str(path), payload=payload, statistics=None, checksum="", layout="", encoding="", label=""
        )


def parts(task: Task) -> Iterator[tuple[str, Operator]]:
    """Yield the operators of a record: of a backward record its forward too."""
    if task.is_backward and task.forward is not None:
        yield "forward", task.forward
    yield "", task.operator


def write(recorded: OriginalRecord, case: OperatorEngine, folder: Path) -> list[ReplayedOutput]:
    """Write the case of another record with the same verdict, and return its rows; the rows of the record if it cannot
    be replayed. Raises RefusedRecord if no draw keeps the verdict: the folder is then empty."""
    if not any(row.status == REPLAYED for row in recorded.rows):
        return recorded.rows
    scratch, why = folder / SCRATCH, ""
    context, started = recorded.context.confine(folder), time.monotonic()
    for number in range(DRAWS):
        if number and time.monotonic() - started > SECONDS * number / (number + 1):
            break
        try:
            scratch.mkdir()
            drawn = recorded.draw(scratch, number)
            why = _difference(recorded.rows, recorded.judge.replay(drawn.task, context, recorded.settings))
            why = why or _kept_values(recorded, drawn)
            if why:
                continue
            rows = case.replay(drawn.task, context, recorded.settings)
            if (folder / CALL).is_file():
                _describe(folder / CALL, recorded, drawn)
                return rows
            why = "the case cannot be written"
        except RefusedRecord as error:
            why = str(error)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    raise RefusedRecord(f"{NOT_KEPT}: {why}")


def _difference(rows: list[ReplayedOutput], others: list[ReplayedOutput]) -> str:
    """Return the first difference of two replays in words, "" if all verdicts and explanations are the same."""
    if [row.slot for row in rows] != [row.slot for row in others]:
        return "other outputs were replayed"
    for row, other in zip(rows, others):
        if (row.status, row.verdict, row.treated) != (other.status, other.verdict, other.treated):
            return f"{row.slot} became {other.verdict.value if other.status == REPLAYED else other.status}"
        words, again = (one.explained_by or re.sub(r"[\d.,]+", "#", one.explanation) for one in (row, other))
        if not _same_words(words, again):
            return f"{row.slot} has another explanation"
    return ""


def _same_words(words: str, others: str) -> bool:
    """Return whether two explanations differ only in the last digits of figures that are not whole."""
    first, second = words.split(), others.split()
    return len(first) == len(second) and all(a == b or _same_figure(a, b) for a, b in zip(first, second))


def _same_figure(a: str, b: str) -> bool:
    try:
        x, y = float(a), float(b)
    except ValueError:
        return False
    is_whole = a.isdecimal() and b.isdecimal() and abs(x) > 1
    return not is_whole and abs(x - y) <= SAME_FIGURE * abs(x)


def _kept_values(recorded: OriginalRecord, drawn: DrawnRecord) -> str:
    """Return in words which values of the record are in the drawn one: an input in its place, or a run; "" if none.

    An output may keep an element in its place if the operator saturates or rounds there: it follows from the drawn
    inputs alone.
    """
    before = []
    for part, operator in parts(recorded.task):
        for tensor in operator.tensors:
            key = part, tensor.slot
            if key in drawn.values and DTYPES[tensor.dtype].kind == "f":
                if not tensor.slot.startswith("output") and equal_places(recorded.values[key], drawn.values[key]):
                    return f"{tensor.slot} kept values"
                own = recorded.values[key]
                changed = np.where(own == drawn.values[key], 0.0, own)
                before.append((max(2, run_length(own, DTYPES[tensor.dtype])), changed))
    after = [drawn.carried.get(key, one) for key, one in drawn.values.items() if one.dtype.kind == "f"]
    for length in {length for length, _ in before}:
        own = np.concatenate([runs(one, length) for same, one in before if same == length])
        if any(np.isin(runs(one, length), own).any() for one in after):
            return "a run of values recurred"
    return ""


def _describe(path: Path, recorded: OriginalRecord, drawn: DrawnRecord) -> None:
    """Add to call.json how the tensors of the case differ from the dump."""
    call = json.loads(path.read_text(encoding="utf-8"))
    call["redacted"] = {
        f"{part} {tensor.slot}".strip(): _words(
            tensor, recorded.values[part, tensor.slot], drawn.values[part, tensor.slot], drawn.is_permuted
        )
        for part, operator in parts(recorded.task)
        for tensor in operator.tensors
        if (part, tensor.slot) in drawn.values
    }
    path.write_text(json.dumps(call, indent=1) + "\n", encoding="utf-8")


def _words(tensor: TensorRef, before: Array, after: Array, is_permuted: bool) -> str:
    """Describe the change of one tensor."""
    kind = DTYPES[tensor.dtype].kind
    if kind == "b" or (kind in "iu" and is_structure(before)):
        return "kept: mask or counter"
    if tensor.slot.startswith("output"):
        kept = equal_places(before, after) if kind in "fc" else 0
        words = "computed from the redacted inputs, with the recorded error pattern"
        return f"{words}; {kept:,} elements coincide" if kept else words
    if kind in "iu":
        change = "permuted" if is_permuted else "drawn again within their range"
        return f"integers {change}; 0 and negative numbers kept"
    if kind == "f" and not has_mantissa(before).any():
        return "kept: powers of two, zeros, NaN and Inf only"
    return "mantissas drawn again; exponents, signs, zeros, powers of two, NaN and Inf kept"


def _wide(values: Any, dtype: Dtype) -> Array:
    found: Array = values.astype(np.float64) if dtype.kind == "f" else np.asarray(values)
    return found


def _has_values(tensor: TensorRef) -> bool:
    return bool(tensor.file or tensor.payload is not None) and not tensor.problem
