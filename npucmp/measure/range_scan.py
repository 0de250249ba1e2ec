"""Scan of one run for the extremes of each tensor at the limits of its type, by one pass or from recorded
statistics.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Iterable, Iterator, NamedTuple, Optional

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.errors import NpucmpError
from npucmp.measure.executor import read_distinct, workers
from npucmp.measure.pairs import READ, payload_of
from npucmp.model import Extremes, Operator, Statistics, TensorRef
from npucmp.model.dtypes import lookup, size_of


class ScanResult(NamedTuple):
    """The extremes of one tensor; None if nothing is known. `problem` is the reason why the tensor could not be read.
    If `counted` is False, statistics show that there is a NaN but not how many."""

    operator: Operator
    tensor: TensorRef
    extremes: Optional[Extremes] = None
    counted: bool = True
    problem: str = ""
    bytes_read: int = 0


def scan(operators: Iterable[Operator], jobs: int = 1, context: ReadContext = ANYWHERE) -> Iterator[ScanResult]:
    """Scan every tensor of the operators, in order. Tensors with the same values are read once."""
    pairs = [(operator, tensor) for operator in operators for tensor in operator.tensors]
    read = partial(workers(jobs).map, partial(_scan_values, context=context), lost=_failed, weight=_weight)
    for pair, found, again in read_distinct(pairs, _values, read):
        scanned = ScanResult(*pair, *found)
        yield scanned._replace(bytes_read=0) if again else scanned


def _scan_values(pair: tuple[Operator, TensorRef], context: ReadContext) -> tuple[Any, ...]:
    return scan_tensor(*pair, context)[2:]


def _weight(pair: tuple[Operator, TensorRef]) -> int:
    return size_of(pair[1].dtype, pair[1].shape)


def _failed(pair: tuple[Operator, TensorRef], because: str) -> tuple[Any, ...]:
    return ScanResult(*pair, problem=f"reading it ended the process: {because}")[2:]


def _values(pair: tuple[Operator, TensorRef]) -> Optional[tuple[object, ...]]:
    tensor = pair[1]
    return (tensor.payload or tensor.file, tensor.problem) if tensor.file else None


def scan_tensor(operator: Operator, tensor: TensorRef, context: ReadContext = ANYWHERE) -> ScanResult:
    """Scan one tensor; never raises for the content of a dump."""
    try:
        payload = payload_of(tensor, context=context)
        if payload is None:
            return ScanResult(operator, tensor, recorded_extremes(tensor), counted=False, problem=tensor.problem)
        from npucmp.dump.readers.values import blocks
        from npucmp.measure.kernel.range_stats import extremes_of, merge_extremes

        row = lookup(payload.dtype)
        assert row is not None, payload.dtype  # no payload of another type exists
        total: Optional[Extremes] = None
        start = 0
        for block in blocks(payload, READ, context=context):
            part = extremes_of(block, row, start)
            total = part if total is None else merge_extremes(total, part)
            start += len(block)
    except NpucmpError as error:
        return ScanResult(operator, tensor, problem=str(getattr(error, "because", error)))
    return ScanResult(operator, tensor, total or Extremes(), bytes_read=row.stored(math.prod(payload.shape)))


def recorded_extremes(tensor: TensorRef) -> Optional[Extremes]:
    """The extremes that recorded statistics show. A NaN in any of them means at least one NaN in the tensor."""
    recorded_extremes = tensor.statistics or Statistics()
    count, row = math.prod(tensor.shape), lookup(tensor.dtype)
    known = [value for value in (recorded_extremes.max, recorded_extremes.min) if value is not None]
    if not known:
        return Extremes() if not count else None
    finite = [value for value in known if math.isfinite(value)]
    largest = row.largest if row is not None and row.kind == "f" else math.inf
    return Extremes(
        elements=count,
        nan=int(_shows_nan(recorded_extremes)),
        posinf=int(math.inf in known),
        neginf=int(-math.inf in known),
        high=int(any(value == largest for value in finite)),
        low=int(any(value == -largest for value in finite)),
        minimum=min(finite, default=math.nan),
        maximum=max(finite, default=math.nan),
    )


def _shows_nan(recorded: Statistics) -> bool:
    """Return whether statistics show a NaN. Some producers omit NaN from maximum and minimum. A NaN in mean and norm
    may come from Inf - Inf and shows nothing."""
    limits = [value for value in (recorded.max, recorded.min) if value is not None]
    sums = [value for value in (recorded.mean, recorded.norm) if value is not None]
    return any(map(math.isnan, limits if any(map(math.isinf, limits)) else limits + sums))
