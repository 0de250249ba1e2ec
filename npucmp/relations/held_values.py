"""The values of a run's tensors, held in memory, and the operators that read and write them.

Values are read through the context, cached up to a number of bytes, and are float32 or float64. Tensors larger than
WHOLE are never held: they are read block by block.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, Callable, Hashable, Iterator, Optional

import numpy as np

from npucmp.align.content_hash import WIDTH, hash_values
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import assembly, header_of
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.values import blocks, values_in_memory
from npucmp.errors import NpucmpError, SystemFailure, if_unreadable
from npucmp.model import Operator, Payload, RankGroup, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import op_type_of

WHOLE = 1 << 22  # elements: work: larger tensors are not held in memory
HELD = 128 << 20  # bytes of values in memory: work
SHORT = 8  # elements of a row: chosen: shorter rows are alike by chance
BLOCK = 1 << 16  # elements: work
MARKS = 24  # projections: chosen: rows that are unlike in so many projections of their values are unlike
FEW_BITS = 256.0  # times: chosen: a number of which so many times it is whole identifies no tensor


class Values:
    """The values of tensors as arrays of floats, the most recently used ones in memory. `problems` has the reasons why
    files cannot be read, by file and label."""

    def __init__(self, context: ReadContext) -> None:
        self.context = context
        self._held: OrderedDict[object, Any] = OrderedDict()
        self._size = 0
        self._payloads: dict[object, Optional[Payload]] = {}
        self.problems: dict[tuple[str, str], str] = {}

    def problem(self, tensor: TensorRef) -> str:
        """The reason why the values of a tensor cannot be read; "" if they can, or if it has none."""
        self.payload(tensor)
        return tensor.problem or self.problems.get((tensor.file, tensor.label), "")

    def payload(self, tensor: TensorRef) -> Optional[Payload]:
        """The place of the values of a tensor; None without readable values."""
        if tensor.payload is not None:
            return tensor.payload
        if not tensor.file or tensor.problem:
            return None
        key = tensor.file, tensor.label
        if key not in self._payloads:
            found = values = None
            try:
                with open_regular(tensor.file, self.context) as file:
                    found = header_of(tensor.encoding, file)
                    values = values_in_memory(found, file)
            except SystemFailure:
                raise
            except NpucmpError as error:
                found, self.problems[key] = None, getattr(error, "because", str(error))
            self._payloads[key] = found if found is not None and found.shape == tensor.shape else None
            if self._payloads[key] is not None and values is not None:  # a small file is read once
                self._keep(key, tensor, values.array().copy())
        return self._payloads[key]

    @if_unreadable(None)
    def array(self, tensor: TensorRef) -> Optional[Any]:
        """All values of a tensor in its shape; None if there are none, or too many."""
        if math.prod(tensor.shape) > WHOLE:
            return None
        key = tensor.payload or (tensor.file, tensor.label)
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        payload = self.payload(tensor)
        if payload is None or key in self._held:
            return self._held.get(key)

        pieces = [np.array(block) for block in blocks(payload, max(1, math.prod(payload.shape)), context=self.context)]
        return self._keep(
            key, tensor, pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.empty(0)
        )

    def _keep(self, key: object, tensor: TensorRef, flat: Any) -> Optional[Any]:
        """Hold the values of a tensor as an array of floats in its shape; None if they are complex."""
        if flat.dtype.kind == "c":
            return None
        kind = "float32" if flat.dtype in ("float16", "float32") else "float64"
        found = flat.astype(kind, copy=False).reshape(tensor.shape)
        self._hold(key, found)
        return found

    def ordered(self, tensor: TensorRef) -> Optional[Any]:
        """All values of a tensor in order of size; None if there are none, or too many."""

        return self._derived("ordered", tensor, lambda values: np.sort(values.reshape(-1)))

    def vector_marks(self, tensor: TensorRef, axis: int) -> Optional[Any]:
        """A few projections of every row, or of every vector along another axis, float64[length, MARKS]; for a tensor
        of one axis, of SHORT elements from every element on. None as for `array`."""

        def marks(values: Any) -> Any:
            if values.ndim == 1:
                rows = np.lib.stride_tricks.sliding_window_view(values, SHORT)
            else:
                rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
            turn = np.random.RandomState(0).standard_normal((rows.shape[1], MARKS))
            with np.errstate(all="ignore"):
                found = np.einsum("ij,jk->ik", rows, turn)  # not BLAS, whose threads wait
            return np.nan_to_num(found, posinf=0.0, neginf=0.0)

        return self._derived(f"marks {axis}", tensor, marks)

    def _derived(self, name: str, tensor: TensorRef, make: Callable[[Any], Any]) -> Optional[Any]:
        key = name, tensor.payload or (tensor.file, tensor.label)
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        values = self.array(tensor)
        if values is None:
            return None
        found = make(values)
        self._hold(key, found)
        return found

    def _hold(self, key: object, found: Any) -> None:
        self._held[key] = found
        self._size += found.nbytes
        while self._size > HELD and len(self._held) > 1:
            self._size -= self._held.popitem(last=False)[1].nbytes


def norm_of(values: Any) -> float:
    """The L2 norm of numbers of any size; inf or NaN if they are among them. Not by BLAS, whose threads wait."""

    with np.errstate(all="ignore"):
        found = math.sqrt((values * values).sum(dtype=float))
        if math.isfinite(found) or not np.isfinite(values).all():
            return found
        largest = float(np.abs(values).max())
        return largest * math.sqrt(((values / largest) ** 2).sum(dtype=float))


class HeldTensor:
    """A tensor of one rank, or of the golden run."""

    __slots__ = ("_content", "_norm", "_values", "is_float", "operator", "ref", "shape", "shares", "size", "slot")

    def __init__(self, operator: RankOperator, ref: TensorRef, values: Values) -> None:
        self.operator, self.ref, self._values = operator, ref, values
        self.slot, self.shape = ref.slot, ref.shape
        row = lookup(ref.dtype)
        self.is_float = row is not None and row.kind == "f"
        self.size = math.prod(ref.shape)
        self._content: Optional[Hashable] = None
        self._norm: Optional[float] = None
        self.shares: dict[Hashable, Optional[float]] = {}  # of other tensors that are found in it (lane_match.py)

    @property
    def array(self) -> Optional[Any]:
        return self._values.array(self.ref)

    @property
    def payload(self) -> Optional[Payload]:
        return self._values.payload(self.ref)

    @property
    def figures(self) -> Optional[tuple[Optional[float], ...]]:
        """Largest, smallest, mean and norm as recorded; None if they were not."""
        found = self.ref.statistics
        if found is None or found.max is None or found.min is None:
            return None
        return found.max, found.min, found.mean, found.norm

    def in_rows(self, row: tuple[int, ...]) -> HeldTensor:
        """Return the tensor as rows of a shape; itself if its numbers are no whole rows."""
        if not row or not math.prod(row) or self.size % math.prod(row):
            return self
        shape = (self.size // math.prod(row), *row)
        payload = self.payload and assembly.reshaped(self.payload, shape)
        ref = self.ref._replace(shape=shape, payload=payload, file="" if payload else self.ref.file)
        return HeldTensor(self.operator, ref, self._values)

    @property
    def norm(self) -> Optional[float]:
        """The L2 norm; None if it is not known."""
        values = self.array if self._norm is None else None
        if values is not None:
            self._norm = norm_of(values)
        if self._norm is not None:
            return self._norm
        figures = self.figures
        return None if figures is None else figures[3] if figures[3] is not None or self.size > 1 else figures[0]

    @property
    def content(self) -> Hashable:
        """The content of the tensor, in any order of its elements; None if it cannot be known or identifies nothing."""
        if self._content is None:
            self._content = self._hash() or ()
        return self._content or None

    def _hash(self) -> Hashable:
        values = self.array
        if values is None and (self.payload is not None and self.size > WHOLE):
            return self._hash_of_blocks()
        if values is None:
            figures = self.figures
            if figures is None or not self.size or (self.size > 1 and figures[0] == figures[1]):
                return None
            if self.size == 1 and _is_simple(figures[0]):
                return None
            return self.size, *figures
        if not values.size:
            return None
        low, high = float(values.min()), float(values.max())
        if (values.size > 1 and low == high) or (values.size == 1 and _is_simple(low)):
            return None
        if not math.isfinite(high - low):
            return _hash_of_finite(values)
        return values.size, hash_values(np.ascontiguousarray(values).reshape(-1)), low

    @if_unreadable(None)
    def _hash_of_blocks(self) -> Hashable:
        total, low, high = 0, math.inf, -math.inf
        for block in self.blocks():
            total = (total + hash_values(block)) & WIDTH
            low, high = min(low, float(block.min())), max(high, float(block.max()))
        return (self.size, total, low) if low < high else None

    def blocks(self, elements: int = BLOCK) -> Iterator[Any]:
        """The values block by block."""
        payload = self.payload
        assert payload is not None
        return blocks(payload, elements, context=self._values.context)

    @property
    def context(self) -> ReadContext:
        return self._values.context

    @property
    def ordered(self) -> Any:
        """The values in order of size."""
        found = self._values.ordered(self.ref)
        assert found is not None
        return found

    def vector_marks(self, axis: int) -> Any:
        """A few projections of every row (axis 0), column or window."""
        found = self._values.vector_marks(self.ref, axis)
        assert found is not None
        return found


def _hash_of_finite(values: Any) -> Hashable:
    """The content of a tensor with NaN or infinities: how many of each, and the other values; None without others."""

    finite = values[np.isfinite(values)]
    counts = [int((values == one).sum()) for one in (math.inf, -math.inf)]
    if not finite.size:
        return None
    return values.size, *counts, hash_values(finite)


def _is_simple(value: Any) -> bool:
    """Whether a number occurs everywhere: 0, 1, a half."""
    return not isinstance(value, (int, float)) or not math.isfinite(value) or float(value * FEW_BITS).is_integer()


class RankOperator:
    """An operator of one rank. `key`: what it shares with its partner in another layout, in which numbers of calls and
    layers differ. `parameter_places`: of the parameters among the inputs."""

    __slots__ = (
        "arguments", "by_slot", "inputs", "key", "name", "op", "order", "outputs", "parameter_places", "rank", "ranks",
        "tensors", "type", "values", "weights",
    )  # fmt: skip

    def __init__(self, op: Operator, rank: int, values: Values) -> None:
        self.op, self.rank, self.type, self.values = op, rank, op_type_of(op), values
        self.name, self.order = op.name, op.order
        self.ranks: tuple[int, ...] = (rank,)  # several hold the parts of a flat buffer
        self.inputs = [HeldTensor(self, one, values) for one in op.tensors if not one.is_output]
        self.outputs = [HeldTensor(self, one, values) for one in op.tensors if one.is_output]
        self.tensors = self.inputs + self.outputs
        self.by_slot = {one.slot: one for one in reversed(self.tensors)}
        # a module may be of another class: ColumnParallelLinear in the place of Linear
        place = f"{op.path}.{op.phase}" if op.path and op.kind.startswith(f"{op.path}.") else op.path and op.kind
        self.key = ".".join("#" if part.isdecimal() else part for part in place.split(".")) or op.kind
        own = [(slot, value) for slot, value in op.arguments.items() if not isinstance(value, RankGroup)]
        self.arguments = tuple((slot, repr(value)) for slot, value in own)
        first = op.op_type.endswith("_")  # it writes into its first input: a gradient that adds up
        self.parameter_places = (
            [at for at, one in enumerate(self.inputs) if one.slot.startswith("param:")]
            if op.path
            else [at for at in self.type.parameters if first <= at < len(self.inputs)]
        )
        self.weights = [self.inputs[at] for at in self.parameter_places if self.inputs[at].is_float]  # biases too

    @property
    def is_backward(self) -> bool:
        return self.op.phase == "backward" or self.is_gradient_record

    @property
    def is_gradient_record(self) -> bool:
        """Whether it is the record of a module's parameter gradients, and no operator."""
        return not self.inputs and any(one.slot.startswith("grad") for one in self.outputs)

    @property
    def is_collective(self) -> bool:
        return self.type.has("collective")

    @property
    def groups(self) -> list[tuple[int, ...]]:
        return [tuple(one) for one in self.op.arguments.values() if isinstance(one, RankGroup)]


def tensor_in(operator: RankOperator, slot: str) -> Optional[HeldTensor]:
    """The tensor in a slot of an operator; None if it has none."""
    return operator.by_slot.get(slot)
