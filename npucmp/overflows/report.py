"""The Answer of `npucmp overflow`: where overflows are born, how they propagate, and which tensors are close to the
limit.

overflow.csv has one row per event.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from itertools import groupby
from typing import Iterator, Mapping, Optional, Sequence

from npucmp.model import Cause, Event, Overflow, Root, Run, Scan, position
from npucmp.model.dtypes import lookup
from npucmp.model.stack import frames, source_line, source_path
from npucmp.overflows.events import AS_INTEGER, headroom
from npucmp.report import tables
from npucmp.report.answer import Answer, Detail, DumpSummary, Line, Listing, PathStep, Row, Section, Suspect, Suspects
from npucmp.report.next_commands import of_overflow
from npucmp.report.phrases import count_of, describe, known_numbers, of_operator, of_runs, problem_of, where_words

COLUMNS = tuple(
    (
        "step rank order op op_type phase slot event origin count ratio first_index dtype shape min max headroom_bits "
        "device_status device_bits golden_event because stack first_at limit"
    ).split(" ")
)
OF_OPERATORS = ("step", "rank", "order", "op", "op_type", "phase", "stack")
OF_FILES = ("first_at", "limit")  # the page derives the first from first_index, and draws its own limit
DEEPEST = 12  # limit of the indentation of a path of propagation
ORIGIN_PHRASES = {  # phrases for the cause of the overflow of one operator, and of several
    Cause.BORN: ("produced by 1 operator", "produced by {count} operators"),
    Cause.GAP: ("already in the inputs of 1 operator", "already in the inputs of {count} operators"),
    Cause.UNKNOWN: ("of unknown origin in 1 operator", "of unknown origin in {count} operators"),
    Cause.PROPAGATED: ("propagated by 1 operator", "propagated by {count} operators"),
}


def answer(report: Overflow, metrics: Sequence[str] = ()) -> Answer:
    """Return the Answer of a search for overflows; metrics are ignored."""
    sections = sorted((_section(scan, report) for scan in report.scans), key=lambda one: one.place)
    suspects = Suspects.of([suspect for one in sections for suspect in one.suspects.first])
    rooted = [(scan.roots, scan.run.step, scan.run.rank) for scan in report.scans]
    word, sentence = _verdict(report)
    notes = [*_notes(report)]
    unreadable = [words for scan in report.scans for words in scan.unreadable]
    unreadable += [problem_of(run) for _, run in report.broken]
    return Answer(
        result=report,
        word=word,
        sentence=sentence,
        sections=sections,
        suspects=suspects,
        places="roots.csv",
        title="Origin" if suspects.first else "",
        compared="Scanned run",
        aligned=f"{count_of(sum(scan.tensors for scan in report.scans), 'tensor')} scanned",
        nothing=[] if suspects.first else ["No tensor reaches a limit of its type."],
        counts=Counter(event.kind or "near the limit" for event in report.events),
        notes=[Listing("note", notes, "summary.json")],
        unreadable=Listing("unreadable", unreadable, "summary.json"),
        undecided=[f"unreadable: {words}" for words in unreadable],
        alike={"cause": "origin"},
        tables=[
            tables.table(
                "overflow.csv", COLUMNS, lambda: (_row(scan, one) for scan in report.scans for one in scan.events)
            ),
            tables.roots(rooted),
        ],
        detail=lambda: _detail(report),
        commands=of_overflow,
        facts=lambda: {
            **_facts(report),
            "unreadable": [words for scan in report.scans for words in scan.unreadable],
            "roots": tables.root_rows(rooted, tables.SUMMARISED),
            "notes": notes,
        },
    )


def _section(scan: Scan, report: Overflow) -> Section:
    children = _children(scan.events)
    births = [root for root in scan.roots if root.cause is not Cause.PROPAGATED] or scan.roots[:1]
    where = where_words(scan.run)
    sides = [DumpSummary("dump", report.path, describe(scan.run))]
    if scan.golden is not None:
        sides.append(DumpSummary("golden", report.golden_path, describe(scan.golden)))
    near = [_what(event) for event in scan.events if not event.kind and event.extremes is not None]
    title = f"Near the limit of their type: {count_of(len(near), 'tensor')}"
    return Section(
        where=" ".join(where),
        sides=sides,
        suspects=Suspects.of([_suspect(root, scan.run, " · ".join(where), children) for root in births]),
        after=[
            Line("device", "UNKNOWN", f"  {event.because}")
            for event in scan.events
            if event.operator is None and event.alarm
        ],
        listings=[Listing(title, near, "overflow.csv")] if near else [],
    )


def _suspect(root: Root, run: Run, where: str, children: Children) -> Suspect:
    operator = root.pair.operator
    word = "CAME IN" if root.cause is Cause.GAP else root.cause.value
    way = partial(_way, root.pair.order, children)
    at = known_numbers(step=run.step, rank=run.rank)
    site = {"line": source_line(operator), "path": source_path(operator)}
    return Suspect.of(root, operator, word=word, where=where, way=way, at=at, **site)


Children = Mapping[int, Sequence[Event]]


def _children(events: Sequence[Event]) -> Children:
    """Return for each operator the first event of each operator that received an event from it, in order."""
    found: dict[int, dict[int, Event]] = defaultdict(dict)
    for event in events:
        for parent in event.parents:
            if event.operator is not None and parent != event.order:
                found[parent].setdefault(event.order, event)
    return {parent: list(by_order.values()) for parent, by_order in found.items()}


def _way(order: int, children: Children) -> list[PathStep]:
    """Return the operators that descend from an operator, each once."""
    steps, seen = [], {order}
    waiting = [(1, event) for event in reversed(children.get(order, ()))]
    while waiting:
        depth, event = waiting.pop()
        if event.order not in seen:
            seen.add(event.order)
            steps.append(PathStep(min(depth, DEEPEST), event.origin.upper(), _what(event)))
            waiting += [(depth + 1, below) for below in reversed(children.get(event.order, ()))]
    return steps


def _what(event: Event) -> str:
    return f"{event.operator.name if event.operator is not None else ''}  {event.evidence[0].sentence()}"


def _notes(report: Overflow) -> Iterator[str]:
    yield from dict.fromkeys([*report.notes, *(note for scan in report.scans for note in scan.notes)])
    silent = [event for event in report.events if event.kind and not event.alarm and event.operator is not None]
    discarded = [event for event in silent if event.evidence[-1].kind == "thrown away"]
    yield from dict.fromkeys(_discarded_words(event) for event in discarded if event.origin == "born")
    raw = (event.operator.name for event in silent if event.operator and event not in discarded)
    yield from (f"{name}: returns uninitialised memory; its content is not reported" for name in dict.fromkeys(raw))


def _discarded_words(event: Event) -> str:
    how = "a selection discards at once, and that no other operator reads"
    if event.evidence[-1] == AS_INTEGER:
        how = "becomes an integer that is discarded"
    return f"{event.operator.name if event.operator else ''}: an Inf that {how}: no alarm"


def _verdict(report: Overflow) -> tuple[str, str]:
    status = report.exit_status
    tensors = sum(scan.tensors for scan in report.scans)
    if status == 130:
        return "PARTIAL", f"interrupted after {count_of(tensors, 'tensor')}"
    if status == 1:
        return "OVERFLOW", _overflow_words(report)
    if status == 0:
        return "CLEAN", f"{count_of(tensors, 'tensor')} scanned, no NaN, no Inf, nothing saturated"
    if tensors:
        return "UNDECIDED", "some tensors could not be read, no overflow in the others"
    return "UNDECIDED", "no tensor could be read, or the dump records no figures"


def _overflow_words(report: Overflow) -> str:
    causes = Counter(root.cause for root in report.roots)
    phrases = ((single, several, causes[cause]) for cause, (single, several) in ORIGIN_PHRASES.items() if causes[cause])
    words = [single if count == 1 else several.format(count=f"{count:,}") for single, several, count in phrases]
    alone = sum(event.operator is None and event.alarm for event in report.events)
    words += [f"{count_of(alone, 'device record')} of operators that were not dumped"] if alone else []
    steps = [scan.run.step for scan in report.scans if scan.roots and scan.run.step is not None]
    several = len({scan.run.step for scan in report.scans}) > 1
    return ", ".join(words) + (f" (first in step {min(steps)})" if several and steps else "")


def _row(scan: Scan, event: Event) -> Row:
    operator, tensor, x = event.operator, event.tensor, event.extremes
    row: Row = {
        "step": scan.run.step,
        "rank": scan.run.rank,
        "order": event.order if operator else None,
        "event": event.kind,
        "origin": event.origin,
        "device_status": event.device_status,
        "device_bits": event.device_bits,
        "golden_event": event.golden,
        "because": event.because,
        "slot": event.slot,
    }
    if operator is not None:
        row.update(of_operator(operator), stack=source_line(operator))
    if tensor is not None and x is not None:
        row.update(dtype=tensor.dtype, shape=str(list(tensor.shape)), headroom_bits=headroom(tensor, x))
        if x.minimum == x.minimum:
            row.update(min=x.minimum, max=x.maximum)
        if event.counted and event.kind:
            count, first = x.of(event.kind)
            row.update(count=count, ratio=count / x.elements if x.elements else None, first_index=first)
            row.update(first_at=position(first, tensor.shape) if first >= 0 else None)
        limits = lookup(tensor.dtype)
        row.update(limit=limits.largest if limits is not None and limits.kind == "f" else None)
    return row


def _detail(report: Overflow) -> Detail:
    """Return a row per event, with the operators that propagated it."""
    operators: list[Row] = []
    rows: list[Row] = []
    for run, scan in enumerate(report.scans):
        _add(run, scan, operators, rows)
    columns = [name for name in COLUMNS if name not in (*OF_OPERATORS, *OF_FILES)]
    return Detail(
        kind="events",
        title="All events",
        chart="Events along the network",
        runs=[" · ".join(where_words(one.run)) for one in report.scans],
        operators=tables.by_column(operators),
        rows=tables.by_column(rows),
        columns=["run", "order", "op", "op_type", "phase", *columns, "stack"],
        shown=["run", "order", "op", "op_type", "slot", "event", "origin", "count", "ratio", "dtype", "min", "max",
               "headroom_bits", "device_status"],
        facets=["run", "event", "origin", "op_type", "phase"],
        more={"lengths": [len(one.run.operators) for one in report.scans]},
    )  # fmt: skip


def _add(run: int, scan: Scan, operators: list[Row], rows: list[Row]) -> None:
    """Append the events of one run to `rows`, and its operators to `operators`; events of operators that were not
    dumped come last."""
    roots = {root.pair.order: root for root in scan.roots}

    def place(event: Event) -> tuple[bool, int]:
        return event.operator is None, event.order

    groups = [[*group] for _, group in groupby(sorted(scan.events, key=place), key=place)]
    dumped = [events_of[0].order for events_of in groups if events_of[0].operator is not None]
    numbers = {order: number for number, order in enumerate(dumped, len(operators))}  # among operators of all runs
    for events_of in groups:
        operators.append(
            {"run": run, "rows": len(events_of), **_operator(events_of, roots.get(events_of[0].order), numbers)}
        )
        for event in events_of:
            own = {name: cell for name, cell in _row(scan, event).items() if name not in (*OF_OPERATORS, *OF_FILES)}
            written = event.tensor is None or event.tensor.is_output
            rows.append({**own, "what": event.evidence[0].sentence(), "alarm": event.alarm, "output": written})


def _operator(events: Sequence[Event], root: Optional[Root], numbers: Mapping[int, int]) -> Row:
    operator, order = events[0].operator, events[0].order
    if operator is None:
        return {"op": "operator that was not dumped"}
    parents = {numbers[one] for event in events for one in event.parents if one in numbers and one != order}
    return {
        "order": order,
        **of_operator(operator),
        "stack": source_line(operator),
        "frames": frames(operator),
        "parents": tuple(sorted(parents)),
        **(tables.of_root(root) if root is not None else {}),
    }


def _facts(report: Overflow) -> Row:
    """Return the values of a search for overflows for summary.json."""
    runs = [scan.run for scan in report.scans]
    return {
        "target": of_runs(report.path, runs, "format", "step", "rank"),
        "golden": {"path": report.golden_path} if report.golden_path else None,
        "scanned": sum(scan.tensors for scan in report.scans),
        "events": dict(Counter(event.kind for event in report.events if event.kind)),
        "origins": dict(Counter(event.origin for event in report.events if event.origin)),
    }
