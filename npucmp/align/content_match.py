"""The similarity of two operators by the content of their tensors, used where names and order leave a choice.

One product may correspond to three, or two multiplications to one. Shapes and order do not
decide such cases; the weights that an operator reads do, and so do equal data. Equal content supports a pair. Different
content does not contradict it, because a fault looks the same. A sample is the first values of a tensor, or its
recorded statistics or checksum if it has no values. Zeros, constants and unreadable tensors have no sample.

Cost: one read of at most 1 MiB per tensor of the operators in question, and at most MOST tensors of a stretch; above
that, content is not read.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import header
from npucmp.errors import if_unreadable
from npucmp.model import Operator, Payload, TensorRef
from npucmp.model.optypes import is_gradient, op_type_of

VALUES = 0.25  # relative distance without similarity: chosen: noise of 16 bits is 1e-2 of values
STATISTICS = 0.03  # relative distance without similarity: chosen: two weights of one layer can be as near as 4e-2
CHECKSUMS = 0.25  # relative distance without similarity: chosen: checksums are equal, or unlike in half of their bits
SIMILAR_DISTANCE = {"values": VALUES, "statistics": STATISTICS, "checksum": CHECKSUMS}
OTHER = 0.0625  # relative distance: chosen: data differ above it, partial sums of one gradient are at least 0.1 apart
FEWEST = 4  # elements: chosen: fewer identify no tensor
FLAT = 1e-3  # of the largest value: chosen: values in so narrow a range are those of a constant
MOST = 4096  # tensors of a stretch: work
_FIRST = 1024  # elements from which a sample is taken: work
_SAMPLE = 64  # elements of a sample: work
_LARGEST = 1 << 20  # bytes: work: of a tensor that must be read whole, or nearly so, to get its first values
_WIDEST = 8  # bytes of an element: definition: of the widest real types
_BITS = 32  # bits: definition: of a CRC-32


class ContentMatrices(NamedTuple):
    """Matrices of the similarity of each operator of one side to each operator of the other."""

    like: Any  # from 0 (nothing known) to 1 (all tensors equal)
    other: Any  # both read data in one slot, and the data differ
    same_weights: Any  # both read the same parameter


def content(target: Sequence[Operator], golden: Sequence[Operator], context: ReadContext) -> ContentMatrices:
    """Compare the content of all pairs. A stretch with more than MOST tensors yields zeros."""

    shape = len(target), len(golden)
    found = ContentMatrices(np.zeros(shape), np.zeros(shape, bool), np.zeros(shape, bool))
    if sum(len(operator.tensors) for operator in (*target, *golden)) > MOST:
        return found
    left, right = ([_marks(operator, context) for operator in side] for side in (target, golden))
    for key in {key for marks in left for key in marks}:
        rows = [i for i, marks in enumerate(left) if key in marks]
        columns = [j for j, marks in enumerate(right) if key in marks]
        if columns:
            distances = _distances(np.array([left[i][key] for i in rows]), np.array([right[j][key] for j in columns]))
            place = np.ix_(rows, columns)
            found.like[place] += np.clip(1.0 - distances / SIMILAR_DISTANCE[key.kind], 0.0, 1.0)
            if key.role == "data":
                found.other[place] |= distances > OTHER
            elif key.role == "parameter":
                found.same_weights[place] |= distances < SIMILAR_DISTANCE[key.kind] / 2
    counts = ([max(1, len(marks)) for marks in side] for side in (left, right))
    return found._replace(like=found.like / np.maximum.outer(*counts))


def _distances(a: Any, b: Any) -> Any:
    """Relative distances of all rows of one matrix to all rows of another."""

    with np.errstate(all="ignore"):  # squares of large numbers may overflow: the distance is then infinite
        sizes = (a * a).sum(1)[:, None], (b * b).sum(1)[None, :]
        found = np.sqrt((sizes[0] + sizes[1] - 2.0 * (a @ b.T)).clip(0.0) / np.maximum(*sizes))
    return np.nan_to_num(found, nan=np.inf)


class _Key(NamedTuple):
    """The properties that two samples must share to be compared."""

    slot: str
    shape: tuple[int, ...]
    kind: str
    role: str  # "parameter", "data" (any other input), or "output"


def _marks(operator: Operator, context: ReadContext) -> dict[_Key, Any]:
    """The samples of the tensors that have one."""
    found = {}
    places = () if is_gradient(operator) else op_type_of(operator).parameters
    parameters = {f"input:{place}" for place in places}
    for tensor in operator.tensors:
        mark = _of_values(tensor, context) or _of_record(tensor)
        if mark is not None:
            is_parameter = tensor.slot.startswith("param") or tensor.slot in parameters
            role = "output" if tensor.is_output else "parameter" if is_parameter else "data"
            found[_Key(tensor.slot, tensor.shape, mark[0], role)] = mark[1]
    return found


@if_unreadable(None, StopIteration)
def _of_values(tensor: TensorRef, context: ReadContext) -> Optional[tuple[str, Any]]:
    """The first values as a vector of fixed length; None for constants and for tensors that cannot be read cheaply."""

    if tensor.problem or not (tensor.file or tensor.payload) or math.prod(tensor.shape) < FEWEST:
        return None
    from npucmp.dump.readers.values import blocks

    payload = tensor.payload or header(tensor.encoding, tensor.file, context)
    if payload.shape != tensor.shape or not _is_cheap(payload):
        return None
    block = next(blocks(payload, _FIRST, context=context))
    if block.dtype.kind == "c":
        return None
    with np.errstate(all="ignore"):
        values = np.nan_to_num(block[:: max(1, len(block) // _SAMPLE)][:_SAMPLE].astype(np.float64), posinf=0, neginf=0)
    if values.max() - values.min() <= FLAT * np.abs(values).max():
        return None
    return "values", np.pad(values, (0, _SAMPLE - len(values)))


def _is_cheap(payload: Payload) -> bool:
    """Return whether the first values can be read without reading much more."""
    in_one_piece = not (payload.strides or payload.device or payload.parts or payload.dataset)
    return in_one_piece or math.prod(payload.shape) * _WIDEST <= _LARGEST


def _of_record(tensor: TensorRef) -> Optional[tuple[str, Any]]:
    """The recorded statistics or checksum as a vector; None if none identifies the tensor."""
    recorded = tensor.statistics
    if recorded is not None and recorded.max == recorded.min:
        return None
    if tensor.checksum and not tensor.identity:
        return None
    if tensor.checksum:
        digest = zlib.crc32(tensor.checksum.encode("utf-8", "backslashreplace"))
        return "checksum", [1.0 if digest >> bit & 1 else -1.0 for bit in range(_BITS)]
    if recorded is None:
        return None
    figures = [figure for figure in recorded if figure is not None and math.isfinite(figure)]
    if len(figures) < len(recorded):
        return None
    return "statistics", [*figures[:3], figures[3] / math.sqrt(max(1, math.prod(tensor.shape)))]
