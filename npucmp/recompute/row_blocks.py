"""Recompute large operators with independent rows block by block: memory for one block, noise from a sample.

These are softmax, norms, activations, sums with a weight shared by all rows, and batched products. A block is a task of
some rows of the record; tensors without these rows are shared. Every element is compared with float64. Noise is
measured relative to the values, on runs of rows spread over the tensor. Rows with an element above that limit are
measured separately. Only child processes import this.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import assembly
from npucmp.dump.readers.values import Array
from npucmp.errors import UnsupportedError
from npucmp.model import Operator, Payload, ReplayedOutput, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.recompute.arguments import arguments_of, payload_of, slots_of
from npucmp.recompute.computation import MORE, Computation, compute_operator, sigmas_of
from npucmp.recompute.error_budget import BudgetTally
from npucmp.recompute.table import ROW_BY_ROW, SEPARATE, CallRow, row_of
from npucmp.recompute.task import ReplaySettings, Task, kind_of

BLOCK = 1 << 18  # elements of a block in its widest tensor
SAMPLE = 1 << 16  # elements for the measurement of noise
RUNS = 16  # runs of neighbouring rows
UNCERTAIN_SHARE = 0.5  # share of a limit above which a ratio by the model is uncertain
MEASURED_ELEMENTS = 1 << 18  # elements measured separately in all; further rows are judged by the model
Ranges = Sequence[tuple[int, int]]


class RowSplit(NamedTuple):
    """A split of a call: `leading` dimensions of the tensors in these slots form `rows` rows of up to `width`
    elements."""

    leading: int
    rows: int
    width: int
    slots: frozenset[str]


def split_of(task: Task) -> Optional[RowSplit]:
    """The split of a record; None if its rows depend on each other. All tensors of a backward record must have the
    shape of the result."""
    operator, row = task.forward if task.is_backward else task.operator, row_of(task.called)
    tensors = {one.slot: one for one in operator.tensors} if operator is not None else {}
    outputs = [tensors[slot] for slot in slots_of(task.called) if slot in tensors]
    if row is None or not outputs or row.inplace:
        return None
    found = _split_of_forward(task, row, tensors, outputs)
    if found is None or not task.is_backward:
        return found
    ends = ("input:", "output:")
    every = [
        one for op in (operator, task.operator) if op is not None for one in op.tensors if one.slot.startswith(ends)
    ]
    is_alone = {one.shape for one in every} == {outputs[0].shape} and len(task.call.args) == 1 and row.kind != "sum"
    return found._replace(slots=frozenset(one.slot for one in every)) if is_alone else None


def _split_of_forward(
    task: Task, row: CallRow, tensors: dict[str, TensorRef], outputs: Sequence[TensorRef]
) -> Optional[RowSplit]:
    args, kwargs = arguments_of(task.called, row, lambda slot: tensors.get(slot), lambda name: name)
    if any(isinstance(one, TensorRef) for one in kwargs.values()):
        return None
    name, shape = row.call.rpartition(".")[2], outputs[0].shape
    leading = _leading(name, args, kwargs, shape)
    if leading < 1 or any(one.shape != shape for one in outputs):
        return None
    inputs = [one for one in args if isinstance(one, TensorRef)]
    is_product = ROW_BY_ROW.get(name) == "product"
    weights = [one for one in inputs[1:2] if is_product and len(one.shape) == 2]  # never split, even if square
    alike = (one for one in inputs if one.shape[:leading] == shape[:leading] and len(one.shape) >= len(shape))
    streamed = [one for one in alike if one not in weights]
    shared = [one for one in inputs if one not in streamed]
    if not streamed or any(len(one.shape) > len(shape) - leading for one in shared if row.kind != "sum"):
        return None
    width = max(math.prod(one.shape[leading:]) for one in (*streamed, *outputs))
    return RowSplit(leading, math.prod(shape[:leading]), width, frozenset(one.slot for one in (*streamed, *outputs)))


def _leading(name: str, args: list[Any], kwargs: dict[str, Any], shape: tuple[int, ...]) -> int:
    """The number of dimensions that may be split; 0 for none or if unknown."""
    tensors = [one for one in args if isinstance(one, TensorRef)]
    dims = len(shape)
    if not tensors or tensors[0].shape[:-1] != shape[:-1]:
        return 0
    if name in SEPARATE:
        return dims - max((len(one.shape) for one in tensors if one.shape != shape), default=0)
    how = ROW_BY_ROW.get(name)
    if how == "last":
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        return dims - 1 if dim in (-1, dims - 1) and not isinstance(dim, bool) else 0
    if how == "norm":
        sizes = kwargs.get("normalized_shape", args[1] if len(args) > 1 else None)
        return dims - len(sizes) if isinstance(sizes, tuple) else 0
    if how == "product" and len(tensors) >= 2:
        if len(tensors[1].shape) == 2:
            return dims - 1
        alike = all(one.shape[:-2] == shape[:-2] for one in tensors)
        return dims - 2 if alike and name != "linear" else 0
    if how == "attention" and len(tensors) == 3 and len(args) == 3:
        return dims - 2 if all(one.shape[:-2] == shape[:-2] for one in tensors) else 0
    return 0


def task_of_rows(task: Task, split: RowSplit, ranges: Ranges, context: ReadContext) -> Task:
    """The record of these ranges of rows. Raises UnsupportedError for a tensor that cannot be read in parts, and the
    errors of the readers."""

    def of_rows(operator: Operator) -> Operator:
        tensors = (
            _rows_of(one, split, ranges, context) if one.slot in split.slots else one for one in operator.tensors
        )
        return operator._replace(tensors=tuple(tensors))

    forward = of_rows(task.forward) if task.forward is not None else None
    return task._replace(operator=of_rows(task.operator), forward=forward)


def _rows_of(tensor: TensorRef, split: RowSplit, ranges: Ranges, context: ReadContext) -> TensorRef:
    if not tensor.file and tensor.payload is None:
        return tensor
    payload, inner = payload_of(tensor, context), tensor.shape[split.leading :]
    shape = (split.rows, *inner)
    if split.leading > 1:
        if payload.strides or payload.device or payload.parts or payload.dataset:
            raise UnsupportedError("its tensors cannot be read in rows")
        payload = payload._replace(shape=shape)
    parts: list[Payload] = [assembly.sliced(payload, 0, start, stop) for start, stop in ranges]
    rows = parts[0] if len(parts) == 1 else assembly.joined(parts, 0)
    whole = (rows.shape[0], *(1,) * (split.leading - 1), *inner)
    if split.leading > 1:
        rows = assembly.reshaped(rows, whole)
    return tensor._replace(shape=whole, payload=rows, statistics=None)


def by_blocks(task: Task, context: ReadContext, settings: ReplaySettings) -> Optional[list[ReplayedOutput]]:
    """The rows of replay.csv; None if blocks cannot be used."""
    split = split_of(task)
    if split is None:
        return None
    try:
        return _Blocks(task, split, context, settings).rows()
    except UnsupportedError:
        return None


class _Blocks:
    def __init__(self, task: Task, split: RowSplit, context: ReadContext, settings: ReplaySettings) -> None:
        self.task, self.split, self.context, self.settings = task, split, context, settings
        self.sample, self.exact = self._computed(self._spread(), None)
        self.unsure = MEASURED_ELEMENTS

    def rows(self) -> Optional[list[ReplayedOutput]]:
        work, tensors = self.sample, {one.slot: one for one in self.task.operator.tensors}
        if any(at >= len(self.exact) or self.exact[at] is None for at in work.recorded) or work.versions:
            return None
        sigmas, made_of = sigmas_of(work, self.exact, self.settings)
        tallies, models = {}, {}
        for at, tensor in work.recorded.items():
            dtype = lookup(tensor.dtype)
            if dtype is None or dtype.kind == "c" or self.exact[at].size != math.prod(tensor.shape):
                return None
            tallies[at] = BudgetTally(dtype, made_of, work.plan.kind == "once", tensors[tensor.slot].shape)
            models[at] = _Model(np.ravel(self.exact[at]), sigmas[at], dtype.round_off) if made_of == "noise" else None
        step = max(1, BLOCK // self.split.width)
        for start in range(0, self.split.rows, step):
            self._add((start, min(start + step, self.split.rows)), tallies, models)
        return [self._row(work.recorded[at].slot, tally) for at, tally in tallies.items()]

    def _computed(self, ranges: Ranges, like: Optional[Computation]) -> tuple[Computation, list[Any]]:
        return compute_operator(task_of_rows(self.task, self.split, ranges, self.context), self.context, self.settings,
                                like)  # fmt: skip

    def _spread(self) -> list[tuple[int, int]]:
        """Runs of rows spread over the tensor, with SAMPLE elements in all."""
        rows, width = self.split.rows, self.split.width
        long = max(1, SAMPLE // width // RUNS)
        runs = max(1, min(RUNS, SAMPLE // width, rows // long))
        starts = [at * rows // runs for at in range(runs)]
        return [(start, min(start + long, rows)) for start in starts]

    def _add(self, rows: tuple[int, int], tallies: dict[int, BudgetTally], models: dict[int, Optional[_Model]]) -> None:
        work, exact = self._computed([rows], self.sample)
        sigmas: Any = None
        for at, tally in tallies.items():
            model, wide = models[at], np.ravel(exact[at])
            actual = np.ravel(work.values[at].astype(np.float64) if tally.dtype.kind == "f" else work.values[at])
            if model is None:
                sigmas = sigmas_of(work, exact, self.settings)[0] if sigmas is None and not tally.is_exact else sigmas
                tally.add(actual, wide, 0.0 if sigmas is None else sigmas[at])
                continue
            sigma = model.sigma(wide)
            with np.errstate(invalid="ignore", over="ignore"):
                most = UNCERTAIN_SHARE * tally.most * self.settings.scale
                beyond = tally.ratios(actual, wide, sigma, model.rms) > most
            places = np.unique(np.flatnonzero(beyond) // (wide.size // (rows[1] - rows[0])))
            if 0 < places.size * self.split.width <= self.unsure:
                self.unsure -= places.size * self.split.width
                self._measure(at, rows[0], places, sigma.reshape(rows[1] - rows[0], -1))
            tally.add(actual, wide, sigma, model.rms)

    def _measure(self, at: int, first: int, places: Array, sigma: Array) -> None:
        """Measure sigma by separate trials for rows with an element above its limit by the model."""
        ranges = [(first + int(one), first + int(one) + 1) for one in places]
        work, exact = self._computed(ranges, self.sample)
        sigmas, _ = sigmas_of(work, exact, self.settings._replace(trials=self.settings.trials * MORE))
        sigma[places] = np.reshape(sigmas[at], (places.size, -1))

    def _row(self, slot: str, tally: BudgetTally) -> ReplayedOutput:
        known = max(1.0, self.settings.known.get((kind_of(self.task.operator, self.task.call.prefix), slot), 1.0))
        row = tally.row(self.task.operator.order, slot, known * self.settings.scale)
        return row._replace(treated=self.sample.treated)


class _Model:
    """Sigma as a function of the value, measured on a sample: the median ratio to u|r|, combined with the sigma of the
    smallest values."""

    def __init__(self, exact: Array, sigma: Any, unit: float) -> None:
        sigma = np.broadcast_to(sigma, exact.shape)
        size = unit * np.abs(exact)
        use = np.isfinite(size) & (size > 0)
        self.unit, self.factor, self.floor = unit, 0.0, 0.0
        self.rms = math.sqrt(float(np.dot(sigma, sigma)) / max(1, sigma.size))
        if use.any():
            sigma, size = sigma[use], size[use]
            self.factor = float(np.median(sigma / size))
            self.floor = float(np.median(sigma[size <= np.quantile(size, 0.1)]))

    def sigma(self, exact: Array) -> Array:
        with np.errstate(invalid="ignore"):
            found = np.hypot(self.factor * self.unit * np.abs(exact), self.floor)
        return np.nan_to_num(found, nan=0.0, posinf=0.0)
