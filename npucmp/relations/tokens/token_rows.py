"""Rows of tensors selected by token: runs of neighbouring rows, and the payload that joins them.

The rows are read block by block, as all payloads that are made of others (dump/readers/assembly.py).
"""

from __future__ import annotations

import math
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import joined, reshaped
from npucmp.dump.readers.strides import compact
from npucmp.dump.readers.values import blocks, stored_values
from npucmp.errors import UnsupportedError
from npucmp.model import Payload, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.relations.held_values import Values
from npucmp.relations.tokens.token_axes import TokenAxes, TokenShape, token_axes

BLOCK = 1 << 20  # elements: work


class RowRun(NamedTuple):
    """Tokens that stand behind each other in one lane of one step."""

    step: int
    lane: int
    place: int
    length: int


class StepTensor(NamedTuple):
    """A tensor of one step with its axes of tokens."""

    payload: Payload
    axes: TokenAxes


def step_tensor(tensor: TensorRef, tokens: TokenShape, values: Values) -> Optional[StepTensor]:
    """The values of a tensor by token; None without readable values or without axes of tokens."""
    payload = values.payload(tensor)
    if payload is None or payload.device or payload.parts or payload.dataset or payload.made_by:
        return None
    axes = token_axes(payload.shape, payload.strides, tokens)
    return None if axes is None else StepTensor(payload, axes)


def all_rows(step: int, tokens: TokenShape) -> list[RowRun]:
    """All tokens of a step, lane by lane."""
    return [RowRun(step, lane, 0, tokens.places) for lane in range(tokens.lanes)]


def coalesced(runs: Sequence[RowRun]) -> list[RowRun]:
    """The same rows in as few runs as possible."""
    found: list[RowRun] = []
    for run in runs:
        last = found[-1] if found else None
        if last is not None and last[:2] == run[:2] and last.place + last.length == run.place:
            found[-1] = last._replace(length=last.length + run.length)
        elif run.length:
            found.append(run)
    return found


def selected(steps: Mapping[int, StepTensor], runs: Sequence[RowRun], rest: tuple[int, ...]) -> Payload:
    """The rows of these runs side by side, each in the shape `rest`. Raises UnsupportedError for values of another
    number, or of a type of less than a byte."""
    parts = []
    for run in runs:
        payload, axes = steps[run.step]
        kind = lookup(payload.dtype)
        if axes.width != math.prod(rest) or kind is None or kind.bits:
            raise UnsupportedError("rows of tokens of different sizes")
        offset = payload.offset + (run.lane * axes.lane_stride + run.place * axes.place_stride) * kind.itemsize
        shape, strides = (run.length, *axes.rest), (axes.place_stride, *axes.rest_strides)
        part = payload._replace(shape=shape, strides=compact(shape, strides), offset=offset)
        parts.append(part)
    found = joined(parts, 0)
    return reshaped(found, (found.shape[0], *rest))


def row_blocks(payload: Payload, context: ReadContext) -> Iterator[Any]:
    """Yield the values of a payload of rows as matrices of whole rows, in its own type."""

    width = max(1, math.prod(payload.shape[1:]))
    for block in blocks(payload, max(1, BLOCK // width) * width, context=context):
        yield block.reshape(-1, width)


def row_values(payload: Payload, context: ReadContext) -> Any:
    """All values of a payload of rows as one matrix of its own type."""

    return stored_values(payload, context).reshape(-1, max(1, math.prod(payload.shape[1:])))
