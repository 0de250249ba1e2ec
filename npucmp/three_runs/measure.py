"""One pass over target, golden and truth of a step and rank: the sums of errors of each tensor.

The values of all three are read in blocks at the same time, and tensors that share values once, so no tensor is in
memory as a whole.
"""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import blocks
from npucmp.errors import NpucmpError
from npucmp.measure.executor import TASKS_TO_FORK, read_distinct, workers
from npucmp.measure.pairs import READ, payload_bytes, payload_of
from npucmp.model import Pair, TensorRef
from npucmp.model.dtypes import lookup, size_of
from npucmp.three_runs.alignment import TensorKey, key_of
from npucmp.three_runs.sums import ErrorSums


class Triple(NamedTuple):
    """A tensor of all three runs. `problem` is the reason why its values cannot be compared, "" if they can."""

    pair: Pair
    truth: Optional[TensorRef]
    problem: str = ""


def triples_of(pairs: Sequence[Pair], truths: Mapping[TensorKey, TensorRef]) -> Iterator[Triple]:
    """Yield the triples of pairs of floats; pairs without a tensor in the truth have a problem."""
    for pair in pairs:
        if pair.target is None or pair.golden is None or pair.golden_op is None or not _is_float(pair.golden):
            continue
        truth = truths.get(key_of(pair.golden_op, pair.golden))
        yield Triple(pair, truth, "" if truth is not None else "the truth has no such tensor")


def _is_float(tensor: TensorRef) -> bool:
    kind = lookup(tensor.dtype)
    return kind is not None and kind.kind == "f"


Sums = tuple[Optional[ErrorSums], str]


def measured(
    triples: Sequence[Triple], context: ReadContext, jobs: int
) -> Iterator[tuple[Triple, Optional[ErrorSums]]]:
    """Yield the sums of each triple, which worker processes make; None with a problem."""

    def read(firsts: Sequence[Triple]) -> Iterator[Sums]:
        return workers(jobs, least=TASKS_TO_FORK).map(partial(_sums, context=context), firsts, _failed, _bytes)

    found = read_distinct(triples, _values, read)
    for triple, (sums, problem), _ in found:
        yield (triple, sums) if not problem else (triple._replace(problem=problem), None)


def _values(triple: Triple) -> Optional[tuple[object, ...]]:
    tensors = triple.pair.target, triple.pair.golden, triple.truth
    if triple.problem or any(one is None or not (one.payload or one.file) for one in tensors):
        return None
    return tuple((one.payload or one.file, one.dtype, one.shape) for one in tensors if one is not None)


def _failed(_: Triple, because: str) -> Sums:
    return None, f"reading it ended the process: {because}"


def _bytes(triple: Triple) -> int:
    return payload_bytes(triple.pair) + (size_of(triple.truth.dtype, triple.truth.shape) if triple.truth else 0)


def _sums(triple: Triple, context: ReadContext) -> Sums:
    """Return the sums, or the reason why there are none."""
    if triple.problem or triple.truth is None:
        return None, triple.problem
    try:
        payloads = [payload_of(one, context=context) for one in (triple.pair.target, triple.pair.golden, triple.truth)
                    if one is not None]  # fmt: skip
        if None in payloads:
            return None, "a run has no values of it"
        shapes = {tuple(length for length in one.shape if length != 1) for one in payloads if one is not None}
        if len(shapes) > 1:
            return None, f"the truth has the shape {list(triple.truth.shape)}"
        size = int(np.prod(triple.truth.shape, dtype=np.int64))
        sums, at = ErrorSums(), 0
        for x, y, z in zip_longest(*(blocks(one, READ, context=context) for one in payloads if one is not None)):
            sums.add(x, y, z, at, size)
            at += z.size
        return sums, "" if size else "it has no elements"
    except NpucmpError as error:
        return None, str(getattr(error, "because", error))
