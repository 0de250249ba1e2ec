"""Runs of one network with batches of unequal sizes: an engine of a fixed batch is filled up, or a run has other
samples.

Every activation has the batch as its first axis. Which samples of the target are those of the golden is read from the
values of the network's input, row by row. A sample that no row of the target equals stands between those that do; if
no sample agrees, both batches begin with the same one. Runs whose inputs are ids of tokens, and training, in which
losses and gradients depend on the whole batch, are left to others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.align import DifferentNetworks, align, pairs
from npucmp.align.msprobe_mapping import Names
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import joined, sliced
from npucmp.errors import NpucmpError, SystemFailure
from npucmp.model import Operator, Pair, Run, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import op_type_of
from npucmp.model.relation import ranks_in_words
from npucmp.model.roles import is_output, is_parameter
from npucmp.relations.held_values import Values

AGREE = 2.0**-9  # rel_l2 of a sample: chosen: rounding of an input is below, another sample is not, not measured
RELATED = 0.7  # rel_l2: chosen: another sample is further away, not measured
PROJECTIONS = 4  # projections of a sample: work: they show which samples need not be compared
SPREAD = 8  # times: chosen: a projection of a difference is no longer than so many of its norms
MOST = 1 << 12  # samples: work
_TINY = 1e-300  # norm: definition: keeps a limit above 0
SHOWN = 8  # samples in a sentence: work: readers need no more
Tensors = frozenset[tuple[int, str]]


class BatchRows(NamedTuple):
    """The samples of both runs that correspond.

    sizes    samples of target and golden
    rows     for each sample of the golden the row of the target, -1 for none
    agree    whether the values of a sample are equal
    name     the operator and slot whose values decided, "" if no values were read
    tensors  the tensors of target and golden that have samples as rows, by the order of their operator and their slot
    """

    sizes: tuple[int, int]
    rows: tuple[int, ...]
    agree: tuple[bool, ...]
    name: str
    tensors: tuple[Tensors, Tensors]

    @property
    def kept(self) -> list[int]:
        """The samples of the golden with a row."""
        return [sample for sample, row in enumerate(self.rows) if row >= 0]

    @property
    def words(self) -> str:
        target, golden = self.sizes
        rows = [self.rows[sample] for sample in self.kept]
        names = [_in_words(numbers, rows == sorted(rows)) for numbers in (self.kept, rows)]
        found = f"another batch size: {target} samples in the target, {golden} in the golden"
        count = sum(self.agree)
        if not count:  # nothing shows which samples correspond
            found += f"; samples {names[0]} of the golden are compared with {names[1]} of the target, by their places"
        else:
            found += f"; samples {names[0]} of the golden are {names[1]} of the target"
        if not self.name:
            return found
        equal = f"{count} samples of {self.name} are equal" if count else f"no sample of {self.name} is equal"
        return f"{found}; {equal}"


def _in_words(numbers: Sequence[int], is_sorted: bool) -> str:
    if is_sorted:
        return ranks_in_words(numbers)
    return ", ".join(map(str, numbers[:SHOWN])) + (" …" if len(numbers) > SHOWN else "")


def batch_rows(target: Run, golden: Run, names: Optional[Names], context: ReadContext) -> Optional[BatchRows]:
    """The samples that correspond; None for equal batches, and for runs that differ in other ways."""
    if any(op.phase == "backward" for run in (target, golden) for op in run.operators):
        return None
    try:
        alignment = align(target, golden, names, context, "names")
    except DifferentNetworks:
        return None
    every = [*pairs(target, golden, alignment)]
    unlike = [pair for pair in every if _has_other_rows(pair)]
    if not unlike or not _is_of_samples(unlike[0], target) or not _are_kept(every):
        return None
    first = unlike[0]
    assert first.target is not None and first.golden is not None
    sizes = first.target.shape[0], first.golden.shape[0]
    if max(sizes) > MOST or sizes[0] == sizes[1] or not all(_is_multiple(pair, sizes) for pair in unlike):
        return None
    of_target = frozenset(
        (pair.target_op.order, _slot(pair.target)) for pair in unlike if pair.target_op and pair.target
    )
    of_golden = frozenset(
        (pair.golden_op.order, _slot(pair.golden)) for pair in unlike if pair.golden_op and pair.golden
    )
    return BatchRows(sizes, *_matched(first, sizes, Values(context)), (of_target, of_golden))


def _slot(tensor: TensorRef) -> str:
    return tensor.own_slot or tensor.slot


def with_samples(run: Run, size: int, rows: Sequence[int], tensors: Tensors, context: ReadContext) -> Run:
    """The run with these samples of a batch of a size."""
    if [*rows] == [*range(size)]:
        return run
    values = Values(context)
    operators = []
    for op in run.operators:
        found = (
            _of_rows(tensor, size, rows, values) if (op.order, tensor.slot) in tensors else tensor
            for tensor in op.tensors
        )
        operators.append(op._replace(tensors=tuple(found)))
    return replace(run, operators=tuple(operators))


def _has_other_rows(pair: Pair) -> bool:
    target, golden = pair.target, pair.golden
    return target is not None and golden is not None and target.shape != golden.shape


def _are_kept(every: Sequence[Pair]) -> bool:
    """Whether each operator that reads other rows writes other rows: one that does not has an operand of another shape,
    or reduces the batch."""
    reading = {pair.order for pair in every if _has_other_rows(pair) and not is_output(pair)}
    written = [
        pair for pair in every if pair.order in reading and is_output(pair) and pair.golden and pair.golden.shape
    ]
    return all(map(_has_other_rows, written))


def _is_of_samples(pair: Pair, run: Run) -> bool:
    """Whether the first tensor of another shape is an input or an output with samples as rows, not tokens."""
    if pair.golden is None or is_parameter(pair):
        return False
    kind = lookup(pair.golden.dtype)
    if kind is None or kind.kind != "f" or len(pair.golden.shape) < 2:
        return False
    return len(pair.golden.shape) > 2 or not any(map(_is_of_tokens, run.operators))


def _is_of_tokens(op: Operator) -> bool:
    """Whether its matrices may have an axis of tokens: embeddings, attention, positions, norms of rows."""
    kind = op_type_of(op)
    of_rows = kind.has("normalises rows") or (kind.has("normalises") and not kind.has("centres"))
    return of_rows or kind.has("looks up") or (kind.has("contracts") and kind.has("fades")) or kind.name == "rotary"


def _is_multiple(pair: Pair, sizes: tuple[int, int]) -> bool:
    """Whether shapes differ in the first axis as the sizes of the batches do, and in the others by their order alone
    (NHWC against NCHW, which turned_axes.py reads in one order)."""
    assert pair.target is not None and pair.golden is not None
    a, b = pair.target.shape, pair.golden.shape
    is_multiple = (
        len(a) == len(b) > 0
        and sorted(a[1:]) == sorted(b[1:])
        and a[0] * sizes[1] == b[0] * sizes[0]
        and not a[0] % sizes[0]
    )
    return is_multiple and not is_parameter(pair)


def _matched(pair: Pair, sizes: tuple[int, int], values: Values) -> tuple[tuple[int, ...], tuple[bool, ...], str]:
    assert pair.target is not None and pair.golden is not None
    x, y = values.array(pair.target), values.array(pair.golden)
    by_place = tuple(sample if sample < sizes[0] else -1 for sample in range(sizes[1]))
    if x is None or y is None:
        return by_place, (False,) * sizes[1], ""
    if x.shape[1:] != y.shape[1:]:  # other axes: the same numbers in another order
        x, y = (np.sort(side.reshape(len(side), -1), 1) for side in (x, y))
    found = _equal_rows(x, y)
    name = f"{pair.operator.name} {pair.slot}"
    if all(row < 0 for row in found):
        return by_place, (False,) * sizes[1], name
    rows, free = [*found], {*range(sizes[0])} - {*found}
    for sample, row in enumerate(rows):
        if row < 0:  # it stands where its neighbours show
            near = min((at for at, known in enumerate(found) if known >= 0), key=lambda at: abs(at - sample))
            place = found[near] + sample - near
            if place not in free:
                place = _nearest(x, y[sample], free)
            if place in free:
                rows[sample] = place
                free.discard(place)
    return tuple(rows), tuple(row >= 0 for row in found), name


def _nearest(x: Any, row: Any, free: set[int]) -> int:
    """The free row of the target that is nearest to a row of the golden; -1 if none is related to it."""

    errors = {place: float(np.square(x[place] - row).sum()) for place in free}
    best = min(errors, key=errors.__getitem__, default=-1)
    return best if best >= 0 and errors[best] <= RELATED**2 * float(np.square(row).sum()) else -1


def _equal_rows(x: Any, y: Any) -> list[int]:
    """For each row of the golden the row of the target that is equal, its own place first; -1 without one."""

    a, b = (np.nan_to_num(each.reshape(len(each), -1).astype(np.float64)) for each in (x, y))
    marks = np.random.RandomState(0).standard_normal((a.shape[1], PROJECTIONS))
    keys, sought = a @ marks, b @ marks
    free = np.ones(len(a), bool)
    found = [-1] * len(b)
    for at_own_place in (True, False):
        for sample, row in enumerate(b):
            if found[sample] >= 0:
                continue
            size = float(np.sqrt((row * row).sum()))
            reach = AGREE * max(size, _TINY)
            near = (
                [sample] if at_own_place else np.flatnonzero((np.abs(keys - sought[sample]) <= SPREAD * reach).all(1))
            )
            for place in near:
                if place < len(a) and free[place] and float(np.sqrt(((a[place] - row) ** 2).sum())) <= reach:
                    found[sample], free[place] = int(place), False
                    break
    return found


def _of_rows(tensor: TensorRef, size: int, rows: Sequence[int], values: Values) -> TensorRef:
    """Samples of a tensor whose first axis is the batch. Without values, its shape alone."""
    times = tensor.shape[0] // size
    shape = (len(rows) * times, *tensor.shape[1:])
    bare = tensor._replace(shape=shape, file="", payload=None, statistics=None, checksum="")
    payload = values.payload(tensor)
    if payload is None or payload.device:
        return bare
    try:
        parts = [sliced(payload, 0, start * times, stop * times) for start, stop in _runs(rows)]
        return bare._replace(file=tensor.file, payload=joined(parts, 0))
    except SystemFailure:
        raise
    except NpucmpError:
        return bare


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and found[-1][1] == row:
            found[-1] = found[-1][0], row + 1
        else:
            found.append((row, row + 1))
    return found
