"""Find the operators that produce NaN, Inf and saturation in a dump: load → scan → flow → Overflow."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.align import align, pairs
from npucmp.align.msprobe_mapping import Names
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import overflow_records
from npucmp.errors import DumpError, UsageError
from npucmp.flow.collectives import Communications
from npucmp.flow.operators import OperatorPlace
from npucmp.localise.root_order import SEVERITY
from npucmp.measure.executor import default_jobs
from npucmp.measure.range_scan import ScanResult, scan, scan_tensor
from npucmp.model import Cause, Event, Evidence, Fact, Operator, Overflow, Pair, Root, Run, Scan, TensorRef
from npucmp.model.dtypes import lookup, size_of
from npucmp.overflows.events import amount, device_event, event_of, events_of, headroom, kinds_of
from npucmp.overflows.option_fields import OverflowFields
from npucmp.workflows.graphs import load_named_graphs, with_graphs
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import of_one
from npucmp.workflows.select_runs import ProgressMeter, RunSelection, keys, pair_runs
from npucmp.workflows.unused_options import unfit_globs, unfit_names

NO_TENSOR = Evidence("no tensor", "the dump has no tensor of this operator")
UNREADABLE = Evidence("unreadable", "unreadable: {problem}")
BLAMES = "it names task {task} of stream {stream}, but the dump has no operator of this task"
CAUSES = {"born": Cause.BORN, "propagated": Cause.PROPAGATED, "unknown": Cause.UNKNOWN}


@dataclass(frozen=True)
class OverflowOptions(OverflowFields, RunSelection):
    """The options of a search for overflows."""


class DeviceFlags(NamedTuple):
    """Device records of a run: `flagged` by the order of its operators, `others` as events of operators that are not in
    the dump, `broken` if they cannot be read."""

    flagged: Mapping[int, tuple[str, str]]
    others: tuple[Event, ...]
    broken: tuple[str, ...]


@of_one(OverflowOptions)
def overflow(dump: StrPath, options: OverflowOptions) -> Overflow:
    """Scan a dump and return the events at the limits of its types.

    Raises NpucmpError if there is nothing to scan. Errors of single tensors and records are in the result.
    """
    started = time.monotonic()
    other = dump if options.golden is None else options.golden
    context = options.context(dump, other)
    opened = options.runs(dump, context)
    far = options.runs(other, context, golden=True) if options.golden is not None else []
    goldens = [run for run in far if not run.problem]
    graphs = load_named_graphs(options.graph, [*opened, *goldens], context)
    runs = with_graphs(dump, [run for run in opened if not run.problem], other, graphs, context)
    goldens = with_graphs(other, goldens, dump, graphs, context)
    paired, alone = pair_runs(runs, goldens, options.partners()) if goldens else ([], ())
    partners = {id(target): golden for target, golden in paired}
    scans, read, found, partial = [], 0, 0, False
    unfit = unfit_globs(options, [*runs, *goldens]) + (unfit_names(options.names(), runs, goldens) if goldens else [])
    chosen = [operator for run in runs for operator in options.operators_of(run)]
    meter = ProgressMeter(options.progress, sum(size_of(t.dtype, t.shape) for op in chosen for t in op.tensors))
    for run in runs:
        rows: list[ScanResult] = []
        try:
            for row in scan(options.operators_of(run), options.jobs or default_jobs(), context):
                rows.append(row)
                meter.add(size_of(row.tensor.dtype, row.tensor.shape))
        except KeyboardInterrupt:
            partial = True
        read += sum(row.bytes_read for row in rows)
        found += len(rows)
        scans.append(_scan_run(run, rows, partners.get(id(run)), options, context))
        if partial:
            break
    records = any(run.records for run in runs)
    if not (partial or found or records or len(runs) < len(opened)):
        raise UsageError("nothing to scan: no operator passes --include and --exclude")
    return Overflow(
        paths=(str(dump), *([] if options.golden is None else [str(options.golden)])),
        scans=_over_ranks(scans),
        broken=tuple(("dump", run) for run in opened if run.problem),
        notes=(*unfit, *(f"{side} {keys([run])} of {run.path} has no partner" for side, run in alone)),
        seconds=time.monotonic() - started,
        bytes_read=read,
        partial=partial,
    )


def _scan_run(
    run: Run, rows: Sequence[ScanResult], golden: Optional[Run], options: OverflowOptions, context: ReadContext
) -> Scan:
    blame = _blame(run, context)
    events = events_of(rows, blame.flagged, run.ordered)
    if golden is not None:
        events = _against(run, golden, events, options.names(), context)
    seen = {row.operator.order for row in rows}
    empty = [
        device_event(one.order, one, "unknown", blame.flagged[one.order], NO_TENSOR)
        for one in options.operators_of(run)
        if one.order in blame.flagged and one.order not in seen
    ]
    edge = list(_close_to_the_edge(rows, options.headroom))
    lost = [one for one in rows if one.problem]
    broken = [f"{one.operator.name} {one.tensor.slot or one.tensor.label}: {one.problem}" for one in lost]
    return Scan(
        run=run,
        events=(*blame.others, *empty, *events, *edge, *(_unreadable(one) for one in lost)),
        roots=(),
        tensors=sum(one.extremes is not None for one in rows),
        unreadable=(*broken, *blame.broken),
        golden=golden,
        notes=run.notes,
    )


def _unreadable(one: ScanResult) -> Event:
    because = UNREADABLE._replace(facts={"problem": Fact(one.problem)})
    return event_of(one._replace(extremes=None), "", "", because, alarm=False)


def _blame(run: Run, context: ReadContext) -> DeviceFlags:
    """Match device records with the operators of the run, by task, stream, context and thread."""
    flagged: dict[int, tuple[str, str]] = {}
    others, broken = [], []
    for path in sorted(run.records, key=_time):
        try:
            records = overflow_records.read_records(path, context)
        except DumpError as error:
            broken.append(f"{Path(path).name}: {error.because}")
            evidence = UNREADABLE._replace(facts={"problem": Fact(broken[-1])})
            others.append(Event(-1, None, None, "device", "unknown", (evidence,), alarm=False))
            continue
        for record in filter(overflow_records.has_overflow, records):
            status = next(f"0x{word:x}" for word in record.status if word > 0)
            bits = f"{record.unit}: {overflow_records.status_words(record)}"
            operator = _first_operator(run, record)
            if operator is not None:
                flagged.setdefault(operator.order, (status, bits))
            else:
                where = {"task": Fact(str(record.task_id)), "stream": Fact(str(record.stream_id))}
                others.append(device_event(-1, None, "unknown", (status, bits), Evidence("task", BLAMES, where)))
    return DeviceFlags(flagged, tuple(others), tuple(broken))


def _time(path: str) -> tuple[int, str]:
    """Return a sort key for records of one folder: the time in the name."""
    numbers = [int(word) for word in Path(path).name.split(".") if word.isdecimal()]
    return max(numbers, default=0), path


def _first_operator(run: Run, record: overflow_records.DeviceRecord) -> Optional[Operator]:
    """Return the first operator that ran as this task; if the operator was sliced, the record must name the slice."""
    for operator in run.operators:
        for task in operator.tasks:
            stream = None if task.stream < 0 else task.stream
            slices = (record.context_id, task.context), (record.thread_id, task.thread)
            same_slice = all(mine == theirs for mine, theirs in slices if mine >= 0 and theirs >= 0)
            if task.task >= 0 and overflow_records.same_task(record, task.task, stream) and same_slice:
                return operator
    return None


def _close_to_the_edge(rows: Iterable[ScanResult], bits: Optional[float]) -> Iterable[Event]:
    """Return outputs without an event that are within `bits` of the limit of their type, the closest first."""
    if bits is None:
        return []
    near = [
        (left, row)
        for row in rows
        if not kinds_of(row.tensor, row.extremes)
        and (left := headroom(row.tensor, row.extremes)) is not None
        and left < bits
        and row.tensor.is_output
    ]
    return [
        event_of(row, "", "", _near(row.tensor, left), alarm=False)
        for left, row in sorted(near, key=lambda one: one[0])
    ]


def _near(tensor: TensorRef, left: float) -> Evidence:
    facts = {"slot": Fact(tensor.slot), "left": Fact(left), "dtype": Fact(tensor.dtype)}
    return Evidence("near", "{slot}: {left:.2f} bits below the largest {dtype}", facts)


def _against(run: Run, golden: Run, events: Sequence[Event], names: Names, context: ReadContext) -> list[Event]:
    """Add to the events the values of the golden run at the same places."""
    alignment = align(run, golden, names, context)
    partners = {
        (pair.target_op.order, pair.target.slot): pair
        for pair in pairs(run, golden, alignment)
        if pair.target_op is not None and pair.target is not None and pair.golden is not None
    }
    known: dict[tuple[int, str], ScanResult] = {}  # cached, because a tensor may have several events
    compared = []
    for event in events:
        place = event.order, event.slot
        pair = partners.get(place)
        if pair is not None and pair.golden is not None and pair.golden_op is not None and event.tensor is not None:
            if place not in known:
                known[place] = scan_tensor(pair.golden_op, pair.golden, context)
            event = _with_golden(event, known[place])
        compared.append(event)
    return compared


def _with_golden(event: Event, golden: ScanResult) -> Event:
    x, kinds = golden.extremes, kinds_of(golden.tensor, golden.extremes)
    if x is None or event.tensor is None:
        return event
    row = lookup(event.tensor.dtype)
    facts = {"size": Fact(x.largest), "dtype": Fact(event.tensor.dtype)}
    if event.kind in kinds:
        found, what = event.kind, amount(event.kind, golden)
        words, facts = f"the golden run has it too ({what.words})", dict(what.facts)
    elif row is not None and row.kind == "f" and x.largest > row.largest * (1 + row.round_off / 2):
        found, words = "would overflow", "the golden values reach {size:.4g}, beyond {dtype}: the type is the cause"
    else:
        found = kinds[0] if kinds else "none"
        words = f"the golden run has {'/'.join(kinds) or 'no such value'} there (largest {{size:.4g}})"
    return replace(event, golden=found, evidence=(*event.evidence, Evidence("golden", words, facts)))


def _over_ranks(scans: Sequence[Scan]) -> tuple[Scan, ...]:
    """Return the scans with their root causes and with events from other ranks. Places count over all scans: by cause,
    by step, and within a step after all operators on any rank for which the root waits."""
    steps: dict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(scans):
        steps[one.run.step or 0].append(number)
    found, ranked = list(scans), []
    for step, numbers in steps.items():
        own = [scans[number] for number in numbers]
        communications = Communications([one.run.operators for one in own], [one.run.rank for one in own])
        places = [{operator.order: OperatorPlace(rank, at) for at, operator in enumerate(one.run.operators)}
                  for rank, one in enumerate(own)]  # fmt: skip
        for number, where, one in zip(numbers, places, _with_communicated(own, places, communications)):
            roots = _roots(one.events)
            found[number] = replace(one, roots=tuple(roots))
            ranked += [
                (SEVERITY[root.cause], step, communications.clock(*where[root.pair.order]), number, root)
                for root in roots
            ]
    ranked.sort(key=lambda one: one[:4])
    placed = {id(root): place for place, (*_, root) in enumerate(ranked, 1)}
    return tuple(
        replace(one, roots=tuple(replace(root, place=placed[id(root)]) for root in one.roots)) for one in found
    )


def _with_communicated(
    scans: Sequence[Scan], places: Sequence[Mapping[int, OperatorPlace]], communications: Communications
) -> Iterator[Scan]:
    """Yield the scans of one step, in which events that a communication brought from another rank are propagated: an
    operator of that rank sent the data after it read such an event."""
    readers: dict[OperatorPlace, Scan] = {}
    for where, one in zip(places, scans):
        for event in one.events:
            read = event.origin == "propagated" or (event.outside and event.slot.startswith("input"))
            if read and event.alarm and event.order in where:
                readers[where[event.order]] = one
    for where, one in zip(places, scans):
        events = []
        for event in one.events:
            senders = communications.senders.get(where[event.order], ()) if event.order in where else ()
            sender = next((readers[place] for place in senders if place in readers), None)
            if sender and event.origin in ("born", "unknown") and not event.slot.startswith("input"):
                who = Fact("another rank" if sender.run.rank is None else f"rank {sender.run.rank}")
                evidence = *event.evidence, Evidence("arrived", "{who} had read it before", {"who": who})
                event = replace(event, origin="propagated", outside=False, evidence=evidence)
            events.append(event)
        yield replace(one, events=tuple(events))


def _roots(events: Sequence[Event]) -> list[Root]:
    """Return one Root per operator with an alarm, in order."""
    by_operator: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.alarm and event.operator is not None and event.origin in CAUSES:
            by_operator[event.order].append(event)
    roots = []
    for order, events_at in by_operator.items():
        first = min(events_at, key=lambda event: (event.kind == "device", not event.outside, event.origin != "born"))
        cause = Cause.GAP if first.outside else CAUSES[first.origin]
        bits = [one.device_bits for one in events_at if one.device_bits][: first.kind != "device"]
        device = (Evidence("device", "the device recorded {bits}", {"bits": Fact(text)}) for text in bits)
        pair = Pair(order, first.slot, first.operator, None, first.tensor, None)
        count = float(first.extremes.of(first.kind)[0]) if first.extremes is not None and first.counted else None
        evidence = *first.evidence, *device
        roots.append(Root(0, pair, cause, first.slot, first.kind, count, 0.0, None, None, evidence))
    return roots
