"""Recompute large operators with independent rows block by block: memory for one block, noise from a sample.

These are softmax, norms, activations, sums with a weight shared by all rows, and batched products. The call is made for
some rows at a time; tensors without these rows are shared. Every element is compared with float64. Noise is measured
relative to the values, on runs of rows spread over the tensor. Rows with an element above that limit are measured
separately before the operator is GUILTY. Only child processes import this.
"""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np
import torch

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import values
from npucmp.model import Call, Operator, ReplayedOutput, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.recompute.arguments import arguments_of, payload_of, read, slots_of
from npucmp.recompute.error_budget import BudgetTally
from npucmp.recompute.table import ROW_BY_ROW, SEPARATE, CallRow
from npucmp.recompute.task import ReplaySettings, Task
from npucmp.recompute.torch_bind_call import Bound, bound_with, load, widen_values
from npucmp.recompute.torch_results import MORE, narrow_arguments, numpy_of, second_opinion

LARGE = 1 << 17  # elements of an output: smaller calls are made as a whole
BLOCK = 1 << 18  # elements of a block in its widest tensor
SAMPLE = 1 << 16  # elements for the measurement of noise
RUNS = 16  # runs of neighbouring rows
BATCH = 1 << 14  # elements of rows that are measured separately at a time
UNCERTAIN_SHARE = 0.5  # share of a limit above which a ratio by the model is uncertain
MEASURED_ELEMENTS = 1 << 18  # elements measured separately in all; further rows are judged by the model

DueOf = Callable[["BlockState", "list[Any]", ReplaySettings], "tuple[list[Any], str]"]


class RowSplit(NamedTuple):
    """A split of a call: `leading` dimensions of the tensors in these slots form `rows` rows."""

    leading: int
    rows: int
    slots: frozenset[str]


def cut_of(operator: Operator, call: Call, row: CallRow, least: int = LARGE) -> Optional[RowSplit]:
    """The split of a forward record; None for fewer than `least` elements, or if its rows depend on each other."""
    tensors = {one.slot: one for one in operator.tensors}
    outputs = [tensors[slot] for slot in slots_of(call) if slot in tensors]
    if not outputs or row.inplace or math.prod(outputs[0].shape) < least:
        return None
    args, kwargs = arguments_of(call, row, lambda slot: tensors.get(slot), lambda name: name)
    if any(isinstance(one, TensorRef) for one in kwargs.values()):
        return None
    leading = _leading(row.call.rpartition(".")[2], args, kwargs, outputs[0].shape)
    if leading < 1 or any(one.shape != outputs[0].shape for one in outputs):
        return None
    head = outputs[0].shape[:leading]
    inputs = [one for one in args if isinstance(one, TensorRef)]
    is_product = ROW_BY_ROW.get(row.call.rpartition(".")[2]) == "product"
    weights = [one for one in inputs[1:2] if is_product and len(one.shape) == 2]  # never split, even if square
    streamed = [one for one in inputs if one.shape[:leading] == head and len(one.shape) >= len(outputs[0].shape)
                and one not in weights]  # fmt: skip
    shared = [one for one in inputs if one not in streamed]
    if not streamed or any(len(one.shape) > len(outputs[0].shape) - leading for one in shared if row.kind != "sum"):
        return None
    return RowSplit(leading, math.prod(head), frozenset(one.slot for one in [*streamed, *outputs]))


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


class TensorRows:
    """A tensor, some rows at a time; if it is contiguous in its file, only these rows are read."""

    def __init__(self, tensor: TensorRef, cut: RowSplit, context: ReadContext) -> None:
        self.tensor, self.context = tensor, context
        self.inner = tensor.shape[cut.leading :]
        self.shape = (1,) * (cut.leading - 1) + self.inner
        self.payload = payload_of(tensor, context)
        dtype = lookup(tensor.dtype)
        odd = self.payload.strides or self.payload.device or self.payload.parts or self.payload.dataset
        self._bytes = 0 if odd or dtype is None or dtype.bits else dtype.itemsize * math.prod(self.inner)
        self._all = None if self._bytes else read(tensor, context).reshape(cut.rows, *self.inner)

    def take(self, rows: Sequence[tuple[int, int]]) -> Any:
        """The values of these ranges of rows, concatenated."""
        parts = [self._range(start, stop) for start, stop in rows]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined.reshape(len(joined), *self.shape)

    def _range(self, start: int, stop: int) -> Any:
        if self._all is not None:
            return self._all[start:stop]
        shape = (stop - start, *self.inner)
        piece = self.payload._replace(shape=shape, offset=self.payload.offset + start * self._bytes)
        return values.stored_values(piece, self.context)


class BlockState(NamedTuple):
    """A call for some rows: its arguments; for a backward record also the incoming gradients, the saved results and the
    candidate of each output."""

    bound: Bound
    incoming: list[Any]
    saved: list[Any]
    chosen: list[int]
    candidates: int


class Blocks:
    """A forward record, block by block. `due` computes sigma, as for the whole call."""

    def __init__(self, task: Task, row: CallRow, cut: RowSplit, context: ReadContext, settings: ReplaySettings) -> None:
        self.task, self.row, self.cut, self.context, self.settings = task, row, cut, context, settings
        self.outputs = self.streams_of(task.operator, "output:")
        self.inputs = self.streams_of(task.forward or task.operator, "input:")
        self.shared = {
            one.slot: load(one, context)
            for one in (task.forward or task.operator).tensors
            if one.slot.startswith("input:") and one.slot not in self.inputs
        }
        self.width = max(math.prod(one.inner) for one in [*self.inputs.values(), *self.outputs.values()])
        self.unsure = MEASURED_ELEMENTS

    def streams_of(self, operator: Operator, start: str) -> dict[str, TensorRows]:
        tensors = (one for one in operator.tensors if one.slot in self.cut.slots and one.slot.startswith(start))
        return {one.slot: TensorRows(one, self.cut, self.context) for one in tensors}

    def rows(self, due: DueOf) -> Optional[list[ReplayedOutput]]:
        """The rows of replay.csv; None if blocks cannot be used."""
        state, exact = self.called(self.spread())
        if any(one is None for one in exact):
            return None
        sigmas, made_of = due(state, exact, self.settings)
        tallies, models = [], []
        for stream, one, sigma in zip(self.outputs.values(), exact, sigmas):
            dtype = lookup(stream.tensor.dtype)
            if dtype is None or dtype.kind == "c":
                return None
            tallies.append(BudgetTally(dtype, made_of, state.bound.is_rounded_once, stream.tensor.shape))
            models.append(_Model(numpy_of(one), sigma, dtype.round_off) if made_of == "noise" else None)
        step = max(1, BLOCK // self.width)
        for start in range(0, self.cut.rows, step):
            self.add((start, min(start + step, self.cut.rows)), tallies, models, due)
        rows = [self.row_of(slot, tally) for slot, tally in zip(self.outputs, tallies)]
        rows = [one._replace(treated=state.bound.treated) for one in rows]
        return second_opinion(rows, state.bound, exact, lambda: self.same_types(state))

    def spread(self) -> list[tuple[int, int]]:
        """Runs of rows spread over the tensor, with SAMPLE elements in all."""
        long = max(1, SAMPLE // self.width // RUNS)
        runs = max(1, min(RUNS, SAMPLE // self.width, self.cut.rows // long))
        starts = [at * self.cut.rows // runs for at in range(runs)]
        return [(start, min(start + long, self.cut.rows)) for start in starts]

    def bound(self, rows: Sequence[tuple[int, int]]) -> Bound:
        def value(tensor: TensorRef) -> Any:
            stream = self.inputs.get(tensor.slot)
            return self.shared[tensor.slot] if stream is None else widen_values(stream.take(rows), tensor)

        return bound_with(
            self.task.forward or self.task.operator, self.task.forward_call or self.task.call, self.row, value
        )

    def called(self, rows: Sequence[tuple[int, int]]) -> tuple[BlockState, list[Any]]:
        """The results of these rows in float64, by output."""
        bound = self.bound(rows)
        with torch.no_grad():
            return BlockState(bound, [], [], [], 0), bound.call()

    def same_types(self, state: BlockState) -> list[Any]:
        return state.bound.call(narrow_arguments(state.bound))

    def add(
        self, rows: tuple[int, int], tallies: list[BudgetTally], models: list[Optional[_Model]], due: DueOf
    ) -> None:
        state, exact = self.called([rows])
        sigmas: list[Any] = [0.0] * len(exact)
        if any(model is None and not tally.is_exact for tally, model in zip(tallies, models)):
            sigmas, _ = due(state, exact, self.settings)
        for at, (stream, tally, model) in enumerate(zip(self.outputs.values(), tallies, models)):
            wide, recorded = numpy_of(exact[at]), stream.take([rows])
            actual = (recorded.astype(np.float64) if tally.dtype.kind == "f" else recorded).reshape(-1)
            if model is None:
                tally.add(actual, wide, sigmas[at])
                continue
            sigma = model.sigma(wide)
            with np.errstate(invalid="ignore", over="ignore"):
                beyond = (
                    tally.ratios(actual, wide, sigma, model.rms) > UNCERTAIN_SHARE * tally.most * self.settings.scale
                )
            places = np.unique(np.flatnonzero(beyond) // (wide.size // (rows[1] - rows[0])))
            if 0 < places.size * self.width <= self.unsure:
                self.unsure -= places.size * self.width
                self.measure(at, rows[0], places, sigma.reshape(rows[1] - rows[0], -1), due)
            tally.add(actual, wide, sigma, model.rms)

    def measure(self, at: int, first: int, places: Any, sigma: Any, due: DueOf) -> None:
        """Measure sigma by separate trials for rows with an element above its limit by the model."""
        settings = self.settings._replace(trials=self.settings.trials * MORE)
        step = max(1, BATCH // self.width)
        for start in range(0, places.size, step):
            sampled = places[start : start + step]
            state, exact = self.called([(first + int(one), first + int(one) + 1) for one in sampled])
            sigmas, _ = due(state, exact, settings)
            sigma[sampled] = np.reshape(sigmas[at], (sampled.size, -1))

    def row_of(self, slot: str, tally: BudgetTally) -> ReplayedOutput:
        kind = f"{self.task.call.prefix}.{self.task.call.name}.{self.task.operator.phase}"
        known = max(1.0, self.settings.known.get((kind, slot), 1.0))
        return tally.row(self.task.operator.order, slot, known * self.settings.scale)


class _Model:
    """Sigma as a function of the value, measured on a sample: the median ratio to u|r|, combined with the sigma of the
    smallest values."""

    def __init__(self, exact: Any, sigma: Any, unit: float) -> None:
        sigma = np.broadcast_to(sigma, exact.shape)
        size = unit * np.abs(exact)
        use = np.isfinite(size) & (size > 0)
        self.unit, self.factor, self.floor = unit, 0.0, 0.0
        self.rms = math.sqrt(float(np.dot(sigma, sigma)) / max(1, sigma.size))
        if use.any():
            sigma, size = sigma[use], size[use]
            self.factor = float(np.median(sigma / size))
            self.floor = float(np.median(sigma[size <= np.quantile(size, 0.1)]))

    def sigma(self, exact: Any) -> Any:
        with np.errstate(invalid="ignore"):
            found = np.hypot(self.factor * self.unit * np.abs(exact), self.floor)
        return np.nan_to_num(found, nan=0.0, posinf=0.0)
