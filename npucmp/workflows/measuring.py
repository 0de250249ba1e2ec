"""Pairs are measured, and kept in a journal on the way, so that who is interrupted can go on."""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Iterator, Optional, Sequence

from npucmp.dump.context import ReadContext
from npucmp.errors import UsageError
from npucmp.measure.attention import with_hidden_masks
from npucmp.measure.constant_rows import with_constant_rows
from npucmp.measure.executor import default_jobs
from npucmp.measure.pairs import Closeness, measure_pairs, payload_bytes, values_of
from npucmp.model import Measurement, Pair
from npucmp.workflows.options import Options
from npucmp.workflows.runs import Meter

if TYPE_CHECKING:
    from npucmp.measure.journal import Journal


def measured(
    todo: Sequence[list[Pair]], options: Options, context: ReadContext, part: Optional[int] = None, since: float = 0.0
) -> tuple[list[list[Measurement]], tuple[str, ...]]:
    """Measurements of the pairs of each comparison, and notes. Fewer if Ctrl-C ended it: what was done by then. A
    `part` of a comparison that began at `since` (seconds since 1970) has a journal of its own."""
    every = [pair for some in todo for pair in some]
    if not every:
        raise UsageError(f"nothing to compare: {options.nothing()}")
    closeness = Closeness(options.rtol, options.atol)
    total = sum(map(payload_bytes, every))
    meter, jobs = Meter(options.progress, total), (options.jobs or default_jobs()) if total else 1
    journal: Optional[Journal] = None
    found: list[list[Measurement]] = []
    with ExitStack() as stack:
        if options.journal is not None and (total or options.resume):  # statistics were read with the dump
            from npucmp.measure import journal as journals
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


def _each(
    some: list[Pair], known: list[Measurement], closeness: Closeness, jobs: int, context: ReadContext
) -> Iterator[tuple[Measurement, bool]]:
    """The measurements of pairs, those of the first of them known, and whether each is a new one."""
    yield from ((measurement, False) for measurement in known)
    read = {values_of(measurement.pair) for measurement in known} - {None}
    for measurement in measure_pairs(some[len(known) :], closeness, jobs, context):
        if values_of(measurement.pair) in read:
            measurement = measurement._replace(bytes_read=0)  # as in a run that was not interrupted
        yield measurement, True
