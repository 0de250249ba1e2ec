"""Pairs are measured, and kept in a journal on the way, so that who is interrupted can go on."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from itertools import islice
from typing import Iterator, Optional, Sequence

from npucmp.dump.context import ReadContext
from npucmp.dump.readers.strides import c_strides
from npucmp.errors import NpucmpError, UsageError
from npucmp.measure import journal as journals
from npucmp.measure.attention import with_hidden_masks
from npucmp.measure.constant_rows import with_constant_rows
from npucmp.measure.executor import default_jobs
from npucmp.measure.metrics import rel_l2
from npucmp.measure.pairs import Closeness, measure, measure_pairs, payload_bytes, payload_of, values_of
from npucmp.model import Measurement, Pair, TensorRef
from npucmp.workflows.options import Options
from npucmp.workflows.runs import Meter


def measured(
    todo: "Sequence[list[Pair]]", options: Options, context: ReadContext, part: Optional[int] = None, since: float = 0.0
) -> "tuple[list[list[Measurement]], tuple[str, ...]]":
    """Measurements of the pairs of each comparison, and notes. Fewer if Ctrl-C ended it: what was done by then. A
    `part` of a comparison that began at `since` (seconds since 1970) has a journal of its own."""
    every = [pair for some in todo for pair in some]
    if not every:
        raise UsageError(f"nothing to compare: {options.nothing()}")
    closeness = Closeness(options.rtol, options.atol)
    total = sum(map(payload_bytes, every))
    meter, jobs = Meter(options.progress, total), (options.jobs or default_jobs()) if total else 1
    journal: "Optional[journals.Journal]" = None
    found: list[list[Measurement]] = []
    with ExitStack() as stack:
        if options.journal is not None and (total or options.resume):  # statistics were read with the dump
            from npucmp.measure.kernel import native

            settings = closeness, options.limits, native.name()
            journal = stack.enter_context(journals.Journal(options.journal, every, settings, options.resume, part))
        known = iter(journal.known if journal else ())
        try:
            for some in todo:
                found.append([])
                known_first = list(islice(known, len(some)))
                for measurement, is_new in _each(some, known_first, closeness, jobs, context):
                    found[-1].append(measurement)
                    if journal and is_new:
                        journal.add(measurement)
                    meter.add(payload_bytes(measurement.pair))
                found[-1] = with_constant_rows(with_hidden_masks(found[-1], closeness, context), context)
            if journal and part is not None and time.time() - since >= journals.EVERY:
                journal.flush()  # it is done, its comparison may go on for hours
        except KeyboardInterrupt:
            if journal:
                journal.flush()
    count = sum(map(len, found))
    notes = [journal.note] if journal and journal.note else []
    if count < len(every):
        more = "; the same command with --resume goes on from there" if journal else ""
        notes.append(f"interrupted: {count} of {len(every)} tensors were measured{more}")
    return found, tuple(notes)


def rel_l2_of(context: ReadContext, pair: Pair) -> Optional[float]:
    """rel_l2 of the values of a pair, of which the target may hold the last two axes the other way round; infinity for
    NaN or Inf on one side, None for a pair without comparable values."""
    if pair.target is not None and pair.golden is not None and pair.target.shape != pair.golden.shape:
        pair = pair._replace(target=_turned(pair.target, pair.golden.shape, context))
    moments = measure(pair, context=context).moments
    if moments is None:
        return None
    return math.inf if moments.mismatched else rel_l2(moments)


def _turned(tensor: TensorRef, shape: "tuple[int, ...]", context: ReadContext) -> TensorRef:
    """A tensor with its last two axes exchanged, where that gives this shape; else the tensor as it is."""
    if len(shape) < 2 or (*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2]) != shape:
        return tensor
    try:
        payload = payload_of(tensor, context=context)
    except NpucmpError:
        return tensor
    if payload is None or payload.device or payload.parts or payload.dataset or payload.shape != tensor.shape:
        return tensor
    strides = payload.strides or c_strides(payload.shape)
    turned = payload._replace(shape=shape, strides=(*strides[:-2], strides[-1], strides[-2]))
    return tensor._replace(shape=shape, payload=turned)


def _each(
    some: "list[Pair]", known: "list[Measurement]", closeness: Closeness, jobs: int, context: ReadContext
) -> "Iterator[tuple[Measurement, bool]]":
    """The measurements of pairs, those of the first of them known, and whether each is a new one."""
    yield from ((measurement, False) for measurement in known)
    read = {values_of(measurement.pair) for measurement in known} - {None}
    for measurement in measure_pairs(some[len(known) :], closeness, jobs, context):
        if values_of(measurement.pair) in read:
            measurement = measurement._replace(bytes_read=0)  # as in a run that was not interrupted
        yield measurement, True
