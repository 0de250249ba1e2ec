"""Producers and consumers in one dump without a graph: tensors with equal marks are the same tensor.

A tensor is `loose` if unknown code computes it from earlier tensors: it is an input that no operator wrote, that is no
known function of outputs (gaps.py), that did not exist before, and that gets a gradient. The other inputs of this code
are unknown, so if a gradient does not fit, some of its consumers may be unknown. Parameters are not loose: they are in
the places of PARAMETERS, or are vectors.

The mark of a tensor is the sum of the scrambled bits of its elements. Two tensors with equal marks hold the same
values, in any order, so a tensor is recognised after a view, a transpose or a copy. A constant, or a tensor of fewer
than four numbers that people write, would match everywhere, so it has no mark. A tensor without values has none either.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import values
from npucmp.flow.contents import MIN_ELEMENTS, is_computed
from npucmp.model import Gap, Operator, TensorRef
from npucmp.model.dtypes import lookup, size_of
from npucmp.recompute.arguments import READ_ERRORS, payload_of
from npucmp.recompute.table import SEPARATE, row_of
from npucmp.recompute.task import Task

BLOCK = 1 << 18  # elements
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class ContentHash(NamedTuple):
    """Content of a tensor: its number of elements, type and sum of bits."""

    elements: int
    dtype: str
    bits: int


def marks_of(operator: Operator, context: ReadContext) -> dict[str, ContentHash]:
    """Return the marks of the float tensors of an operator, by slot."""
    found = {}
    for tensor in operator.tensors:
        dtype = lookup(tensor.dtype)
        if dtype is None or dtype.kind != "f" or (not tensor.shape and not tensor.file and tensor.payload is None):
            continue
        try:
            blocks = values.blocks(payload_of(tensor, context), BLOCK, context=context)
            bits = mark_of(blocks)
        except READ_ERRORS:  # the row of its operator has the error
            continue
        if bits is not None:
            found[tensor.slot] = ContentHash(math.prod(tensor.shape), tensor.dtype, bits)
    return found


def mark_of(blocks: Any) -> Optional[int]:
    """Return the sum for the blocks of one tensor; None if equality would prove nothing."""
    total, size, first, same, few = np.uint64(0), 0, None, True, False
    for block in blocks:
        if not block.size:
            continue
        bits = bits_of(block)
        size += bits.size
        first = bits[0] if first is None else first
        same = same and bool((bits == first).all())
        few = few or (size < MIN_ELEMENTS and any(is_computed(float(one)) for one in block))
        with np.errstate(over="ignore"):
            total += hash_numbers(bits).sum(dtype=np.uint64)
    if size < MIN_ELEMENTS:
        return int(total) if few else None
    return None if same else int(total)


def bits_of(array: Any) -> Any:
    """Return the elements as unsigned numbers of the same width."""
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")


def hash_numbers(bits: Any) -> Any:
    """Return numbers whose sums distinguish sets (the finaliser of splitmix64)."""
    found = bits.astype(np.uint64)
    with np.errstate(over="ignore"):
        found = (found + _ODD[0]) * _ODD[1]
        found ^= found >> np.uint64(29)
        found *= _ODD[2]
        found ^= found >> np.uint64(32)
    return found


PARAMETERS = {
    name: frozenset(f"input:{one}" for one in slots.split())
    for names, slots in (
        ("linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d", "1 2 weight bias"),
        ("layer_norm group_norm", "2 3 weight bias"),
        ("rms_norm", "2 weight"),
        ("batch_norm instance_norm", "1 2 3 4 running_mean running_var weight bias"),
        ("embedding prelu npu_rms_norm", "1 weight"),
        ("addmm", "0 2"),
    )
    for name in names.split()
}
CANDIDATES, BYTES = 128, 1 << 28  # earlier outputs that may explain a gap, the nearest first
SMALLER = 8  # a part may be this many times smaller than the input
_LAST = chr(0x10FFFF)  # after every slot

PART = "part"  # a gap with some unknown elements


class Consumer(NamedTuple):
    """A consumer of an output: its backward record with the forward, the input that depends on the output, and the gap
    between them. `sources` are the tensors of the gap, `own` the places among them that are the output."""

    task: Task
    slot: str
    gap: Optional[Gap] = None
    sources: tuple[TensorRef, ...] = ()
    own: tuple[int, ...] = ()


class EdgeTask(NamedTuple):
    """A gradient to check: the input `slot` of a backward record, for the output `tensor` of its forward.

    missing  why some consumers may be unknown, "" if all are known
    """

    task: Task
    slot: str
    tensor: TensorRef
    parts: tuple[Consumer, ...]
    missing: str

    @property
    def bytes(self) -> int:
        return sum(part.task.bytes for part in self.parts) + size_of(self.tensor.dtype, self.tensor.shape)


class GapTask(NamedTuple):
    """An input without a producer, and earlier outputs, the nearest first."""

    order: int
    tensor: TensorRef
    sources: tuple[tuple[int, TensorRef], ...]

    @property
    def bytes(self) -> int:
        return sum(size_of(one.dtype, one.shape) for _, one in self.sources)


class ForwardLinks:
    """The forward operators of a run by the marks of their tensors: marks by order and slot. Writers and readers of a
    mark are in order of execution, so a search between two operators does not visit all of them."""

    def __init__(self, tasks: Sequence[Task], marks: Mapping[int, Mapping[str, ContentHash]]) -> None:
        tasks = sorted(tasks, key=lambda task: task.operator.order)
        self.forwards = {task.operator.order: task for task in tasks if not task.is_backward}
        self.backwards = {task.forward.order: task for task in tasks if task.is_backward and task.forward is not None}
        self._marks = marks
        self.writers: dict[ContentHash, list[tuple[int, str]]] = defaultdict(list)
        self.readers: dict[ContentHash, list[tuple[int, str]]] = defaultdict(list)
        for order in self.forwards:
            for slot, mark in marks.get(order, {}).items():
                (self.writers if slot.startswith("output:") else self.readers)[mark].append((order, slot))
        self._orders = [*self.forwards]
        self._owned: dict[ContentHash, list[int]] = {}
        self._consumers: dict[ContentHash, list[tuple[int, str]]] = {}
        self.is_spread = any((row := row_of(task.call)) is not None and row.kind == "ranks" for task in tasks)

    def tensor(self, order: int, slot: str) -> TensorRef:
        return next(one for one in self.forwards[order].operator.tensors if one.slot == slot)

    def mark(self, order: int, slot: str) -> Optional[ContentHash]:
        return self._marks.get(order, {}).get(slot)

    def is_copy(self, order: int, mark: ContentHash) -> bool:
        """Return whether an operator reads and writes a tensor with this mark."""
        slots = [slot for slot, one in self._marks.get(order, {}).items() if one == mark]
        return len({slot.partition(":")[0] for slot in slots}) > 1

    # gaps

    def gaps(self) -> Iterator[GapTask]:
        """Yield each input without an earlier producer once, except parameters."""
        for mark, places in self.readers.items():
            order, slot = places[0]
            if any(writer < order for writer, _ in self.writers.get(mark, ())):
                continue
            if all(self._is_parameter(*place) for place in places) or mark.elements < 4:
                continue
            sources = self._before(order, mark)
            if sources:
                yield GapTask(order, self.tensor(order, slot), tuple(sources))

    def _before(self, order: int, mark: ContentHash) -> list[tuple[int, TensorRef]]:
        """Return outputs that an input may depend on."""
        found: list[tuple[int, TensorRef]] = []
        bytes_left = BYTES
        for at in range(bisect_left(self._orders, order) - 1, -1, -1):
            earlier = self._orders[at]
            for tensor in self.forwards[earlier].outputs:
                own = self.mark(earlier, tensor.slot)
                if own is not None and own.elements * SMALLER >= mark.elements and not self.is_copy(earlier, own):
                    found.append((earlier, tensor))
                    bytes_left -= size_of(tensor.dtype, tensor.shape)
            if len(found) >= CANDIDATES or bytes_left < 0:
                break
        return found

    def _is_parameter(self, order: int, slot: str) -> bool:
        """Return whether an input is a parameter: by its place, as a vector, or because the whole batch shares it."""
        task, shape = self.forwards[order], self.tensor(order, slot).shape
        if slot in PARAMETERS.get(task.call.name, ()) or len(shape) == 1:
            return True
        if task.call.name not in SEPARATE or not task.outputs:
            return False
        whole = task.outputs[0].shape
        return len(shape) < len(whole) or (shape[:1] == (1,) and whole[:1] != (1,))

    # edges

    def edges(self, gaps: Sequence[Gap]) -> Iterator[EdgeTask]:
        """Yield each gradient that reached an output."""
        by_source: dict[ContentHash, list[Gap]] = defaultdict(list)
        for gap in gaps:
            for mark in {self.mark(*writer) for writer in gap.writers}:
                if mark is not None:
                    by_source[mark].append(gap)
        loose, ends = self._loose(gaps), self._ends(by_source)
        for order, task in self.backwards.items():
            recorded = {one.slot for one in task.operator.tensors if one.slot.startswith("input:")}
            for place, tensor in enumerate(self.forwards[order].outputs):
                slot = f"input:{place}"
                mark = self.mark(order, tensor.slot)
                if slot not in recorded or mark is None:
                    continue
                parts, without = self._parts(order, mark, by_source.get(mark, ()))
                missing = without or self._missing(order, mark, loose, ends)
                yield EdgeTask(task, slot, tensor, tuple(parts), missing)

    def _parts(self, order: int, mark: ContentHash, gaps: Sequence[Gap]) -> tuple[list[Consumer], str]:
        """Return the consumers of an output, and a message if a consumer has no gradient in this dump."""
        found: list[Consumer] = []
        without = ""
        first, last = self._reach(order, mark)
        places: list[tuple[tuple[int, str], Optional[Gap]]] = [
            (place, None) for place in self._between(first, last, mark)
        ]
        for one in gaps:
            own = self.mark(one.order, one.slot)
            if own is not None:
                places += [(place, one) for place in self._between(first, last, own)]
        for (reader, slot), gap in places:
            if reader == order:
                continue
            backward = self.backwards.get(reader)
            if backward is None:
                if any(self.mark(reader, one.slot) is not None for one in self.forwards[reader].outputs):
                    without = f"{self.forwards[reader].operator.name} reads it and has no gradient in this dump"
                continue
            writers = gap.writers if gap is not None else ()
            sources = tuple(self.tensor(*writer) for writer in writers)
            own_places = tuple(at for at, writer in enumerate(writers) if self.mark(*writer) == mark)
            found.append(Consumer(backward, slot, gap, sources, own_places))
        return found, without

    def _between(self, first: float, last: float, mark: ContentHash) -> list[tuple[int, str]]:
        """Return the readers of a mark after one operator and before another, without operators that copy it."""
        if mark not in self._consumers:
            self._consumers[mark] = [one for one in self.readers.get(mark, ()) if not self.is_copy(one[0], mark)]
        consumers = self._consumers[mark]
        return consumers[bisect_right(consumers, (first, _LAST)) : bisect_left(consumers, (last, ""))]

    def _owners(self, mark: ContentHash) -> list[int]:
        """Return the operators that computed a tensor, without operators that copied it."""
        if mark not in self._owned:
            writers = [one for one, _ in self.writers.get(mark, ()) if one in self.backwards]
            self._owned[mark] = [one for one in writers if not self.is_copy(one, mark)]
        return self._owned[mark]

    def _reach(self, order: int, mark: ContentHash) -> tuple[float, float]:
        """Return the operators between which the consumers lie. If this operator copies the tensor, consumers follow
        it; if several operators wrote it, they also precede the next writer. Otherwise there is no limit: a tensor that
        is recomputed for the backward is read earlier."""
        if self.is_copy(order, mark):
            return order, math.inf
        owners = self._owners(mark)
        if len(owners) > 1:
            at = bisect_right(owners, order)
            return order, owners[at] if at < len(owners) else math.inf
        return -1, math.inf

    def _missing(self, order: int, mark: ContentHash, loose: Sequence[tuple[int, str]], ends: list[int]) -> str:
        """Return why some consumers may be unknown; "" if all are known."""
        if self.is_copy(order, mark):
            return "an earlier operator wrote an equal tensor"
        if len(self._owners(mark)) > 1:
            return f"{len(self._owners(mark))} operators wrote equal tensors"
        if self.is_spread:
            return "ranks may exchange gradients in code that was not dumped"
        at = bisect_right(loose, (order, _LAST))
        if at < len(loose):
            reader, slot = loose[at]
            return f"{self.forwards[reader].operator.name} {slot} may depend on it through code that was not dumped"
        if len(ends) > 1:
            names = [self.forwards[one].operator.name for one in ends[:2]]
            return f"code that was not dumped reads {' and '.join(names)}, and may read it too"
        return ""

    def _loose(self, gaps: Sequence[Gap]) -> list[tuple[int, str]]:
        """Return inputs of unknown origin at their first reads, in order of execution."""
        known = {self.mark(gap.order, gap.slot) for gap in gaps if gap.function and gap.function != PART}
        found = []
        for mark, places in self.readers.items():
            order = places[0][0]
            if mark in known or any(writer < order for writer, _ in self.writers.get(mark, ())):
                continue
            readers = [place for place in places if place[0] in self.backwards and not self._is_parameter(*place)]
            readers = [place for place in readers if not self._is_without_gradient(*place)]
            if readers and len(readers) == len([place for place in places if place[0] in self.backwards]):
                found.append(places[0])
        return sorted(found, key=lambda place: place[0])

    def _is_without_gradient(self, order: int, slot: str) -> bool:
        """Return whether the backward record has null at the place of an argument."""
        outputs, number = self.backwards[order].call.outputs, slot.partition(":")[2]
        arguments = self.forwards[order].call.args
        return (
            len(outputs) == len(arguments)
            and number.isdecimal()
            and int(number) < len(outputs)
            and outputs[int(number)] is None
        )

    def _ends(self, by_source: Mapping[ContentHash, object]) -> list[int]:
        """Return operators with a gradient whose results have no reader."""
        found = []
        for order in self.backwards:
            marks = [mark for slot, mark in self._marks.get(order, {}).items() if slot.startswith("output:")]
            if not any(mark in by_source or self._last_reader(mark) > order for mark in marks):
                found.append(order)
        return found

    def _last_reader(self, mark: ContentHash) -> int:
        places = self.readers.get(mark)
        return places[-1][0] if places else -1
