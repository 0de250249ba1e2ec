"""Errors of operators of both runs against float64 of their own recorded inputs, by numpy.

The search asks for one operator at a time (localise/recomputation.py). The result depends only on the two dumps, not
on time or other installed packages, so that two comparisons give the same bytes.

Elements of a function of one element that two runs computed from the same bits, and that differ by more than the
rounding of the result.

A right function in 16 bits is computed in float32 and rounded once, so two of them differ by a unit in the last place.
Its steps in float32 may cancel: 1 + erf(x) far below zero, exp(x) - 1 near zero. So an element x may also be off by
2^-22 of x, and by as much of x times the result, and results below the smallest normal number may be zero.
"""

from __future__ import annotations

import math
import pickle
import zlib
from collections import defaultdict
from functools import cached_property
from typing import Callable, Iterator, Mapping, Optional, Sequence

import numpy as np

from npucmp.dump.formats import calls_of
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array
from npucmp.errors import NpucmpError, SystemFailure
from npucmp.measure.kernel.numpy_kernel import widen
from npucmp.model import REPLAYED, Call, Operator, ReplayedOutput, ReplayVerdict, Run, TensorRef, first_of
from npucmp.model.dtypes import DTYPES, SINGLE, Dtype
from npucmp.model.optypes import op_type_of
from npucmp.model.replayed_output import FarElements
from npucmp.recompute.arguments import READ_ERRORS, read
from npucmp.recompute.engine import OperatorEngine
from npucmp.recompute.error_budget import SHORT, round_to
from npucmp.recompute.kind_baseline import FEWEST, excuse_kinds, explain_kinds
from npucmp.recompute.replayed_rows import replay_rows
from npucmp.recompute.sampled_products import EVERY, HEAVY, LARGE, is_large
from npucmp.recompute.task import GRAPH, ReplaySettings, Task, kind_of, tasks_of

UNITS = 2.5  # units in the last place: chosen: a function with one more rounding inside is off by 2, not measured
INSIDE = 4.0 * SINGLE  # of an operand: chosen: steps in float32 round a few times, not measured


def far_elements(target: Array, golden: Array, source: Array) -> Optional[FarElements]:
    """Return the elements of two flat outputs that are too far apart; `source` is the tensor that both runs read."""
    x, y, read = (np.ravel(widen(one)) for one in (target, golden, source))
    dtype = _type_of(target, golden, x, y)
    if dtype is None or x.size != y.size:
        return None
    with np.errstate(all="ignore"):
        operand = np.abs(read) if read.size == y.size else np.full(y.size, np.abs(read).max(initial=0.0))
        unit = np.ldexp(dtype.round_off, np.frexp(np.maximum(np.abs(y), dtype.tiny))[1])
        units = np.abs(x - y) / unit
        far = np.abs(x - y) > UNITS * unit + INSIDE * operand * (1.0 + np.abs(y)) + dtype.tiny
        far &= np.isfinite(x) & np.isfinite(y)
    return FarElements(int(far.sum()), y.size, float(units[far].max(initial=0.0)), dtype.name)


def _type_of(target: Array, golden: Array, x: Array, y: Array) -> Optional[Dtype]:
    """Return the coarser 16-bit type of either side, by its type or by its values; None if there is none."""
    for dtype in (DTYPES[name] for name in SHORT):
        if dtype.name in (target.dtype.name, golden.dtype.name):
            return dtype
        if any(np.array_equal(round_to(values, dtype), values) for values in (x, y)):
            return dtype
    return None


# elements of the tensors of an operator: work
LARGEST = LARGE
LARGEST_SAMPLED = 1 << 26  # elements of the tensors of a product that is sampled: work
# elements of all operators of both runs: work: a fraction of the elements of a run, and the least limit; measured:
# recomputing an element takes twice as long as measuring one of both runs
PART, LEAST = 4, 1 << 22
# operators: work: one of this many is always recomputed, and the first of each kind, independent of the search
SAMPLE = 16
BATCH = 64  # operators: work: compressed together
PEERS = 8  # operators: work: peers that distinguish a setting of the device from a fault


class RecomputedOperators:
    """The operators of the target (side 0) and the golden (side 1) against float64 of their own inputs.

    runs     opens both runs when the search first asks
    reduced  matrix products of the run have operands of 11 bits, so that no budget of float32 applies to them
    packs    compress tasks in memory, because many ranks are compared
    """

    def __init__(
        self, runs: Callable[[], Sequence[Run]], context: ReadContext, reduced: bool = False, compressed: bool = False
    ) -> None:
        self._open, self._context, self._reduced, self._compressed = runs, context, reduced, compressed
        self._engine, self._settings = OperatorEngine("numpy"), ReplaySettings(library="numpy", explains=False)
        self._found: dict[tuple[int, int], tuple[ReplayedOutput, ...]] = {}
        self._left = LEAST
        self._known_tasks: dict[int, Mapping[int, Task]] = {}  # by side
        self._kinds: dict[int, dict[str, list[int]]] = {}
        self.recomputed: set[int] = set()  # orders of target operators
        self.failed: dict[str, str] = {}  # operators that the system did not let recompute, with the reason
        self._sided: dict[tuple[int, str], int] = {}  # the first operator of each direction of rounding, by side
        self._settings_of: set[int] = set()  # orders of operators whose kind has coarser arithmetic

    def rows(self, side: int, operator: Optional[Operator]) -> tuple[ReplayedOutput, ...]:
        """Return a row for each output of an operator; () if numpy does not recompute the operator.

        If coarser arithmetic explains similar errors of a whole kind, a guilty operator is no fault: its rows become
        AMPLIFIER. If another formula explains them, that is one fault, reported for the first operator of the kind.
        """
        task = None if operator is None else self._tasks_of(side).get(operator.order)
        if task is None or operator is None or task.operator.name != operator.name:
            return ()
        rows = self._rows(side, task)
        if any(row.verdict is ReplayVerdict.GUILTY or _is_sided(row) for row in rows):
            rows = self._among_peers(side, task)
        if side == 0 and any(row.status == REPLAYED for row in rows):
            self.recomputed.add(operator.order)
        return rows

    def gradients_as_golden(self, target: Operator, golden: Operator) -> tuple[ReplayedOutput, ...]:
        """Return the rows of a target gradient, computed from the arguments of the golden's forward; () if the operator
        is no gradient, or if numpy does not recompute it."""
        own, other = (tasks.get(one.order) for tasks, one in zip(self._tasks, (target, golden)))
        if own is None or other is None or own.forward_call is None or other.forward_call is None:
            return ()
        return self._computed(own._replace(forward_call=other.forward_call))

    def far_elements(self, target: Operator, golden: Operator, slot: str) -> Optional[FarElements]:
        """Return the elements of an output that two right functions of the same bits do not give; None if the values
        cannot be read or are no 16-bit values."""

        try:
            tensors = [{tensor.slot: tensor for tensor in one.tensors} for one in (target, golden)]
            source = tensors[1].get("input:0")
            if math.prod(tensors[1][slot].shape) > LARGEST or source is None:
                return None
            x, y = (read(one[slot], self._context) for one in tensors)
            return far_elements(x, y, read(source, self._context))
        except (*READ_ERRORS, LookupError, MemoryError, ValueError) as error:
            self._note(target.name, error)
            return None

    @property
    def by_engine(self) -> Mapping[str, int]:
        """The number of target operators that each engine recomputed."""
        return {"numpy": len(self.recomputed)} if self.recomputed else {}

    def is_sampled(self, operator: Optional[Operator]) -> bool:
        """Return whether a target operator is always recomputed, independent of the search."""
        return operator is not None and operator.order in self._sample

    def is_setting(self, operator: Optional[Operator]) -> bool:
        """Return whether coarser arithmetic explains the errors of a recomputed target operator and its kind."""
        return operator is not None and operator.order in self._settings_of

    @cached_property
    def _sample(self) -> frozenset[int]:
        tasks = self._tasks_of(0)
        orders_sampled = [*tasks][SAMPLE // 2 :: SAMPLE]
        firsts = (
            orders[0]
            for orders in self._kinds_of(0).values()
            if len(orders) >= FEWEST or op_type_of(tasks[orders[0]].operator).has("elementwise")
        )
        return frozenset([*orders_sampled, *firsts])

    @property
    def _tasks(self) -> tuple[Mapping[int, Task], ...]:
        return self._tasks_of(0), self._tasks_of(1)

    @cached_property
    def _runs(self) -> Sequence[Run]:
        runs = self._open()
        sizes = [sum(math.prod(one.shape) for operator in run.operators for one in operator.tensors) for run in runs]
        self._left = max(self._left, *(elements // PART for elements in sizes))
        return runs

    def _tasks_of(self, side: int) -> Mapping[int, Task]:
        """The tasks of a run by order; its records are read when they are first asked for."""
        if side not in self._known_tasks:
            self._known_tasks[side] = self._read_tasks(self._runs[side])
        return self._known_tasks[side]

    def _read_tasks(self, run: Run) -> Mapping[int, Task]:
        try:
            calls = calls_of(run, self._context)
        except (NpucmpError, OSError) as error:  # the records changed since they were read
            self._note("no operator", error)
            return {}
        calls = {**_calls_by_type(run), **calls}
        tasks = [task for task in tasks_of(run, calls) if task.outputs and self._is_due(task)]
        return _CompressedTasks(tasks) if self._compressed else {task.operator.order: task for task in tasks}

    def _is_due(self, task: Task) -> bool:
        op = op_type_of(task.operator)
        if self._reduced and op.has("contracts"):
            return False
        sizes = sorted(math.prod(tensor.shape) for tensor in _tensors(task))
        if not sizes or sizes[-1] > (LARGEST_SAMPLED if is_large(task) else LARGEST):
            return False
        heavy = op.has("contracts") and len(sizes) > 2 and math.sqrt(math.prod(map(float, sizes[-3:]))) > HEAVY
        if heavy and not is_large(task):
            return False  # a product of n·k by k·m elements has n·k·m terms
        return not self._engine.refuses(task)[0]

    def _rows(self, side: int, task: Task) -> tuple[ReplayedOutput, ...]:
        key = side, task.operator.order
        if key not in self._found:
            self._left -= sum(math.prod(one.shape) for one in _tensors(task)) // (EVERY if is_large(task) else 1)
            self._found[key] = self._computed(task) if self._left >= 0 else ()
        return self._found[key]

    def _computed(self, task: Task) -> tuple[ReplayedOutput, ...]:
        """Return the rows of a task; () if its record cannot be read or does not fit its formula."""
        try:
            return tuple(replay_rows(task, self._context, self._settings))
        except (*READ_ERRORS, ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
            self._note(task.operator.name, error)
            return ()

    def _note(self, name: str, error: Exception) -> None:
        """Keep the reason if the system failed: the search then lacks a fact that it would have had."""
        if isinstance(error, (SystemFailure, MemoryError, OSError)):
            because = error.strerror if isinstance(error, OSError) else getattr(error, "because", "")
            self.failed[name] = because or "out of memory"

    @property
    def notes(self) -> tuple[str, ...]:
        """A note on the operators that the system did not let recompute."""
        names = [f"{name}: {because}" for name, because in self.failed.items()]
        return (f"not recomputed, {len(names)}: {first_of(names)}",) if names else ()

    def _kinds_of(self, side: int) -> Mapping[str, list[int]]:
        """The orders of the operators of each kind of a run."""
        if side not in self._kinds:
            self._kinds[side] = defaultdict(list)
            for order, task in self._tasks_of(side).items():
                self._kinds[side][_kind(task)].append(order)
        return self._kinds[side]

    def _among_peers(self, side: int, task: Task) -> tuple[ReplayedOutput, ...]:
        """Return the rows of a guilty operator, excused if its peers have similar errors."""
        orders = [order for order in self._kinds_of(side)[_kind(task)] if order != task.operator.order]
        peers = [self._tasks_of(side)[order] for order in orders[:PEERS]]
        rows: list[ReplayedOutput] = []
        for one in (task, *peers):
            rows += self._rows(side, one)
        operators = {one.operator.order: one.operator._replace(kind=_kind(one)) for one in (task, *peers)}
        kinds = explain_kinds(rows, operators)
        found = excuse_kinds(rows, kinds)
        for kind in kinds:
            self._settings_of.update(rows[place].order for place in kind.rows if side == 0)
            first = min((rows[place].order for place in kind.alike), default=-1)
            if kind.alike and kind.direction:  # kinds that are rounded to one side have one cause, too
                first = self._sided.setdefault((side, kind.direction), first)
                operators[first] = self._tasks_of(side)[first].operator
            for place in kind.alike:
                words = kind.words if rows[place].order == first else f"same as {operators[first].name}: {kind.words}"
                verdict = ReplayVerdict.GUILTY if rows[place].order == first else ReplayVerdict.AMPLIFIER
                found[place] = rows[place]._replace(verdict=verdict, explanation=words)
        return tuple(row for row in found if row.order == task.operator.order)


class _CompressedTasks(Mapping[int, Task]):
    """Tasks by the order of their operator, PACK of them compressed at a time: a third of a kilobyte each instead of
    two. The search asks in order of execution, so the latest group serves most queries."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._places = {task.operator.order: at for at, task in enumerate(tasks)}
        packs = (tasks[at : at + BATCH] for at in range(0, len(tasks), BATCH))
        self._batches = [zlib.compress(pickle.dumps(batch, pickle.HIGHEST_PROTOCOL), 1) for batch in packs]
        self._latest: tuple[int, Sequence[Task]] = -1, ()

    def __getitem__(self, order: int) -> Task:
        number, at = divmod(self._places[order], BATCH)
        if self._latest[0] != number:
            self._latest = number, pickle.loads(zlib.decompress(self._batches[number]))
        return self._latest[1][at]

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _tensors(task: Task) -> list[TensorRef]:
    """Return the tensors of a task and of its forward."""
    return [tensor for one in (task.operator, task.forward) if one is not None for tensor in one.tensors]


def _is_sided(row: ReplayedOutput) -> bool:
    """Return whether a row may be one of a kind that is rounded to one side."""
    return row.rounding is not None and row.rounding.missed > 0 and bool(row.rounding.direction)


def _calls_by_type(run: Run) -> dict[str, Call]:
    """Return the calls of operators that need no arguments, by their types, for a dump without calls. The type may be
    a name alone, so such a call shows something only if one side fits it."""
    return {
        operator.name: Call(f"{GRAPH}{run.format}", operator.op_type)
        for operator in run.operators
        if not operator.phase
        and op_type_of(operator).has("elementwise", "function", "contracts")
        and any(tensor.slot.startswith("input:") for tensor in operator.tensors)
    }


def _kind(task: Task) -> str:
    return kind_of(task.operator, task.call.prefix if task.is_of_graph else "")
