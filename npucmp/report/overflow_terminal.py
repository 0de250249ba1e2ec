"""What the screen shows of `npucmp overflow`: where it is born, how it spreads, what is close to the edge."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Iterator, Optional, Sequence

from npucmp.model import Cause, Event, Overflow, Root, Scan
from npucmp.model.stack import source_line
from npucmp.report.sanitise import visible
from npucmp.report.status import overflow_status
from npucmp.report.terminal import NOTES, Paint, count_of, describe, rate_of

CHAIN = 8  # steps of the way that are shown of one birth


def render(
    report: Overflow, top: int = 10, files: "Sequence[Path]" = (), paint: Optional[Paint] = None, verbose: bool = False
) -> str:
    """The whole screen as text; every word from a dump has its invisible characters shown.

    verbose shows the whole way of every birth, and every note.
    """
    colour = paint or (lambda text, _: text)
    lines: list[str] = []
    for scan in sorted(report.scans, key=lambda one: min((root.place for root in one.roots), default=1 << 60)):
        lines.append(f"dump    {visible(report.path)}  {describe(scan.run)}")
        if scan.golden is not None:
            lines.append(f"golden  {visible(report.golden_path)}  {describe(scan.golden)}")
        lines.append("")
        lines += _answer(scan, top, colour, verbose)
    lines += _notes(report, None if verbose else NOTES)
    lines.append(last(report, colour))
    if files:
        lines.append("  ".join(visible(str(file)) for file in files))
    return "\n".join(lines) + "\n"


def _answer(scan: Scan, top: int, paint: Paint, verbose: bool) -> "Iterator[str]":
    births = [root for root in scan.roots if root.cause in (Cause.BORN, Cause.GAP, Cause.UNKNOWN)]
    rest = [root for root in scan.roots if root not in births]
    children = _children(scan.events)
    for root in sorted(births or rest[:1], key=lambda one: one.place)[:top]:
        yield from _root(root, paint)
        way = list(_way(root.pair.order, children, 1, {root.pair.order}))
        shown = way if verbose else way[:CHAIN]
        yield from (f"     {'  ' * depth}{event.origin.upper():10}  {_what(event)}" for depth, event in shown)
        if len(way) > len(shown):
            yield f"       … and {count_of(len(way) - len(shown), 'operator')} more on its way"
    if len(births) > top:
        yield f"     … and {len(births) - top} more in roots.csv"
    for event in (one for one in scan.events if one.operator is None and one.alarm):
        yield f"     {paint('device', 'UNKNOWN')}  {visible(event.because)}"
    yield from _edge(scan, top)
    if scan.roots or scan.events:
        yield ""


def _root(root: Root, paint: Paint) -> "Iterator[str]":
    word = "CAME IN" if root.cause is Cause.GAP else root.cause.value
    where = f"{visible(root.pair.operator.name)}  {visible(root.slot)}".rstrip()
    yield f"{root.place:3}  {paint(f'{word:10}', root.cause.value)}  {where}"
    for sentence in (one.sentence() for one in root.evidence):
        yield f"                 {visible(sentence)}"
    line = source_line(root.pair.operator)
    if line:
        yield f"                 {visible(line)}"


def _children(events: "Sequence[Event]") -> "dict[int, list[Event]]":
    """For each operator the first event of each operator that it handed something on to, in order."""
    found: dict[int, dict[int, Event]] = defaultdict(dict)
    for event in events:
        for parent in event.parents:
            if event.operator is not None and parent != event.order:
                found[parent].setdefault(event.order, event)
    return {parent: list(some.values()) for parent, some in found.items()}


def _way(order: int, children: "dict[int, list[Event]]", depth: int, seen: "set[int]") -> "Iterator[tuple[int, Event]]":
    """(depth, event) of what descends from an operator, each operator once; deep chains are not indented for ever."""
    waiting = [(depth, event) for event in reversed(children.get(order, ()))]
    while waiting:
        level, event = waiting.pop()
        if event.order in seen:
            continue
        seen.add(event.order)
        yield min(level, 12), event
        waiting += [(level + 1, below) for below in reversed(children.get(event.order, ()))]


def _what(event: Event) -> str:
    name = event.operator.name if event.operator is not None else ""
    return visible(f"{name}  {event.because.partition('; ')[0]}")


def _edge(scan: Scan, top: int) -> "Iterator[str]":
    near = [event for event in scan.events if not event.kind and event.extremes is not None]
    if near:
        yield f"Close to the edge: {count_of(len(near), 'tensor')}"
    for event in near[:top]:
        yield f"     {_what(event)}"
    if len(near) > top:
        yield f"     … and {len(near) - top} more in overflow.csv"


def _notes(report: Overflow, most: Optional[int]) -> "Iterator[str]":
    notes = [*dict.fromkeys([*report.notes, *(note for scan in report.scans for note in scan.notes)])]
    raw = Counter(event.operator.name for event in report.events if event.kind and not event.alarm and event.operator)
    notes += [f"{name}: hands out memory that nobody has written; what is in it is not blamed" for name in raw]
    broken = [words for scan in report.scans for words in scan.unreadable]
    broken += [f"{run.path}: {run.problem}" for run in report.broken]
    for kind, words in (("note", notes), ("unreadable", broken)):
        yield from (f"{kind}: {visible(word)}" for word in words[:most])
        if most is not None and len(words) > most:
            yield f"{kind}: and {len(words) - most} more in summary.json"


def last(report: Overflow, paint: Paint) -> str:
    status = overflow_status(report)
    tensors = sum(scan.tensors for scan in report.scans)
    if status == 130:
        word, text = "PARTIAL", f"interrupted after {count_of(tensors, 'tensor')}"
    elif status == 1:
        word, text = "OVERFLOW", _overflow_words(report)
    elif status == 0:
        word, text = "CLEAN", f"{count_of(tensors, 'tensor')} scanned, no NaN, no Inf, nothing saturated"
    else:
        word, text = "UNDECIDED", "some tensors could not be read, none of the others overflowed"
        if not tensors:
            text = "nothing could be read, or nothing is known of any tensor"
    return f"{paint(word, word)}: {text}.   {rate_of(report.seconds, report.bytes_read)}"


def _overflow_words(report: Overflow) -> str:
    causes = Counter(root.cause for root in report.roots)
    words = [
        f"{what} {count_of(causes[cause], 'operator')}"
        for cause, what in (
            (Cause.BORN, "born in"),
            (Cause.GAP, "came in at"),
            (Cause.UNKNOWN, "of unknown origin in"),
            (Cause.PROPAGATED, "passed on by"),
        )
        if causes[cause]
    ]
    alone = sum(event.operator is None and event.alarm for event in report.events)
    words += [f"{count_of(alone, 'device record')} of operators that were not dumped"] if alone else []
    steps = [scan.run.step for scan in report.scans if scan.roots and scan.run.step is not None]
    several = len({scan.run.step for scan in report.scans}) > 1
    where = f" (first in step {min(steps)})" if several and steps else ""
    return ", ".join(words) + where
