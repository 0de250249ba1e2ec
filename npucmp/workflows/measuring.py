"""The measurements of the pairs of one step and rank, kept in a checkpoint while they arrive."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Iterator, Optional

from npucmp.dump.context import ReadContext
from npucmp.measure.attention import with_hidden_masks
from npucmp.measure.constant_rows import with_constant_rows
from npucmp.measure.executor import default_jobs
from npucmp.measure.pairs import Closeness, measure_pairs, payload_bytes, values_of
from npucmp.measure.recorded import measured_by_record
from npucmp.model import Measurement, Pair
from npucmp.workflows.options import Options
from npucmp.workflows.runs import Meter, Progress

if TYPE_CHECKING:
    from npucmp.measure.checkpoint import Checkpoint


def measured(
    todo: list[Pair],
    options: Options,
    context: ReadContext,
    part: Optional[int] = None,
    since: float = 0.0,
    progress: Optional[Progress] = None,
) -> tuple[list[Measurement], tuple[str, ...]]:
    """The measurement of each pair, and notes on the checkpoint. Ctrl-C ends it early, with the first measurements.

    A `part` of a comparison that began at `since` (seconds since 1970) has a checkpoint of its own.
    """
    total = sum(map(payload_bytes, todo))
    closeness = Closeness(options.rtol, options.atol)
    meter, jobs = Meter(progress, total), (options.jobs or default_jobs()) if total else 1
    checkpoint: Optional[Checkpoint] = None
    found: list[Measurement] = []
    with ExitStack() as stack:
        if options.journal is not None and (total or options.resume):  # statistics were read with the dump
            from npucmp.measure import checkpoint as checkpoints
            from npucmp.measure.kernel import native

            settings = closeness, options.limits, native.name()
            checkpoint = stack.enter_context(
                checkpoints.Checkpoint(options.journal, todo, settings, options.resume, part)
            )
        try:
            known = checkpoint.known if checkpoint else []
            for measurement, is_new in _each(todo, known, closeness, jobs, context):
                found.append(measurement)
                if checkpoint and is_new:
                    checkpoint.add(measurement)
                if total:
                    meter.add(payload_bytes(measurement.pair))
            found = with_constant_rows(with_hidden_masks(found, closeness, context), context)
            if checkpoint and part is not None and time.time() - since >= checkpoints.EVERY:
                checkpoint.flush()  # it is done, its comparison may go on for hours
        except KeyboardInterrupt:
            if checkpoint:
                checkpoint.flush()
    return found, (checkpoint.note,) if checkpoint and checkpoint.note else ()


def _each(
    some: list[Pair], known: list[Measurement], closeness: Closeness, jobs: int, context: ReadContext
) -> Iterator[tuple[Measurement, bool]]:
    """The measurements of pairs, those of the first of them known, and whether each is a new one."""
    yield from ((measurement, False) for measurement in known)
    read = {values_of(measurement.pair) for measurement in known} - {None}
    left = some[len(known) :]
    recorded = measured_by_record(left)
    others = measure_pairs([pair for pair, one in zip(left, recorded) if one is None], closeness, jobs, context)
    for one in recorded:
        measurement = next(others) if one is None else one
        if read and values_of(measurement.pair) in read:
            measurement = measurement._replace(bytes_read=0)  # as in a run that was not interrupted
        yield measurement, True
