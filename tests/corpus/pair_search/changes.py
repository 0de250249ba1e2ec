"""Changes of runs: pure functions from a run to another run, and what they do to the values in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Callable, Optional, Sequence

import numpy as np

from tests.corpus.tape import FLOATS
from tests.corpus.trace import Item, Record, Run, Tensor

Change = Callable[[Tensor], Tensor]


def distance(x: np.ndarray, y: np.ndarray) -> float:
    """‖x − y‖ / ‖y‖ in float64; inf where one side alone is not finite, or where y is zero and x is not."""
    kind = np.complex128 if "c" in (x.dtype.kind, y.dtype.kind) else np.float64
    x, y = x.astype(kind), y.astype(kind)
    finite = np.isfinite(x) & np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return math.inf
    error, size = np.linalg.norm((x - y)[finite]), np.linalg.norm(y[finite])
    return float(error / size) if size else 0.0 if not error else math.inf


def changed(run: Run, change: Change, key: int) -> Run:
    """Every recording of the value of that key, changed."""
    return Run(tuple(_record(one, change, lambda _, __, t: t.key == key) for one in run.records), run.step, run.rank)


def changed_once(run: Run, change: Change, record: Record, role: str, path: str) -> Run:
    """One recording of a value, changed."""
    records = tuple(
        _record(one, change, lambda r, p, _: (r, p) == (role, path)) if one is record else one for one in run.records
    )
    return Run(records, run.step, run.rank)


def everywhere(run: Run, change: Change) -> Run:
    """Every tensor, changed; what is one value stays one."""
    made: dict[int, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = change(tensor)
        return made[id(tensor)]

    return Run(tuple(_record(one, once, lambda *_: True) for one in run.records), run.step, run.rank)


def _record(one: Record, change: Change, chosen: Callable[[str, str, Tensor], bool]) -> Record:
    def item(value: Item, role: str, path: str) -> Item:
        if isinstance(value, Tensor):
            return change(value) if chosen(role, path, value) else value
        if isinstance(value, list):
            return [item(each, role, f"{path}.{k}") for k, each in enumerate(value)]
        return value

    def output(value: Optional[Tensor], k: int) -> Optional[Tensor]:
        return value if value is None else item(value, "output", str(k))  # type: ignore[return-value]

    return replace(
        one,
        inputs=tuple(item(value, "input", str(k)) for k, value in enumerate(one.inputs)),
        keywords={k: item(value, "input_kwargs", k) for k, value in one.keywords.items()},
        outputs=tuple(output(value, k) for k, value in enumerate(one.outputs)),
        parameters={k: item(value, "parameters", k) for k, value in one.parameters.items()},  # type: ignore[misc]
    )


def with_values(tensor: Tensor, values: np.ndarray) -> Tensor:
    return replace(tensor, values=np.asarray(values, order="C"))


def doubled(tensor: Tensor) -> Tensor:
    """Twice a float tensor; any other as it is."""
    return with_values(tensor, tensor.values * tensor.values.dtype.type(2)) if tensor.dtype in FLOATS else tensor


def rows_shuffled(order: np.ndarray) -> Change:
    """Rows, of the first axis, in that order."""
    return lambda tensor: (
        with_values(tensor, tensor.values[order]) if tensor.values.shape[:1] == order.shape else tensor
    )


def bit_flipped(index: int, bit: int) -> Change:
    """One bit of one float32 element; a slice that has the tensor's key and ends before that stays as it is."""

    def change(tensor: Tensor) -> Tensor:
        if index >= tensor.values.size:
            return tensor
        values = tensor.values.copy()
        values.reshape(-1).view(np.uint32)[index] ^= np.uint32(1 << bit)
        return with_values(tensor, values)

    return change


def inserted(run: Run, at: int, record: Record) -> Run:
    """One record more before the record at that place; calls of its kind that follow have the next number."""
    before = sum(one.kind == record.kind and one.phase == "forward" for one in run.records[:at])
    record = replace(record, call=before)

    def renumbered(one: Record) -> Record:
        return replace(one, call=one.call + 1) if one.kind == record.kind and one.call >= before else one

    some = [renumbered(one) for one in run.records]
    return Run((*some[:at], record, *some[at:]), run.step, run.rank)


def without(run: Run, some: Sequence[Record]) -> Run:
    """The run without these records; other calls keep their numbers."""
    gone = set(map(id, some))
    return Run(tuple(one for one in run.records if id(one) not in gone), run.step, run.rank)


def split(runs: Sequence[Run], at: int) -> list[Run]:
    """The records of the only run as two steps."""
    (run,) = runs
    return [Run(run.records[:at], 0, run.rank), Run(run.records[at:], 1, run.rank)]


def as_type(tensor: Tensor, values: Any, dtype: str) -> Tensor:
    """The same value in another element type."""
    return replace(tensor, values=np.asarray(values, order="C"), dtype=dtype)
