"""The Answer of `npucmp diff`: findings that are new, worse or gone. diff.csv has a row for each change."""

from __future__ import annotations

from typing import Iterator, Optional, Sequence

from npucmp.model import Evidence, Fact, brief
from npucmp.model.saved_report import Change, Difference, Key, SavedReport, SavedRow, SavedSuspect
from npucmp.report import tables
from npucmp.report.answer import Answer, Detail, DumpSummary, Line, Listing, Row, Section, Suspect, Suspects
from npucmp.report.phrases import count_of

COLUMNS = "what", *("step rank op slot rule before after error_before error_after limit because stack".split(" "))
FIRST = 50  # changes of each kind in summary.json
MEANING = {
    "new": "the earlier report does not list it",
    "gone": "suspect before; examined again, and no longer a suspect",
    "worse": "beyond the limit, and the error grew by more than noise",
    "open": "suspect before; now it was not examined, or it propagates the error of another operator",
    "same": "suspect in both reports",
    "better": "was beyond the limit, and the error shrank by more than noise",
}
TITLES = {  # titles of the lists below the new findings, in this order
    "gone": "Gone",
    "worse": "Worse",
    "open": "Open: not examined again, or downstream of another suspect",
    "same": "Unchanged",
    "better": "Better",
}


def answer(report: Difference, metrics: Sequence[str] = ()) -> Answer:
    """Return the Answer of a comparison of two reports; metrics are ignored."""
    word, sentence = _verdict(report)
    suspects = Suspects.of([_suspect(place, one) for place, one in enumerate(report.new, 1)])
    kinds = by_kind(report)
    both = (("before", report.before), ("after", report.after))
    sides = [DumpSummary(name, one.path, _words(one)) for name, one in both if one]
    listings = [
        Listing(f"{title}: {len(kinds[name])}", [*map(one_line, kinds[name])], "diff.csv")
        for name, title in TITLES.items()
        if kinds[name]
    ]  # fmt: skip
    lines = [] if report.new else [Line("No new finding", "good")]
    return Answer(
        result=report,
        word=word,
        sentence=sentence,
        sections=[Section("", sides, "", title="New" if report.new else "", suspects=suspects, lines=lines,
                          listings=listings)],
        suspects=suspects,
        places="diff.csv",
        title="New findings" if report.new else "",
        compared="Compared reports",
        aligned=", ".join(f"{len(members)} {name}" for name, members in kinds.items() if members),
        nothing=[] if report.new else ["No new finding."],
        counts={name: len(members) for name, members in kinds.items() if members},
        notes=[Listing("note", report.notes, "summary.json")],
        unreadable=Listing("unreadable", [], "summary.json"),
        undecided=[f"open: {one_line(one)}" for one in report.open],
        tables=[tables.table("diff.csv", COLUMNS, lambda: _rows(kinds))],
        detail=lambda: _detail(kinds),
        facts=lambda: _facts(report, kinds),
        meaning=MEANING,
    )  # fmt: skip


def by_kind(report: Difference) -> dict[str, Sequence[Change]]:
    return {name: getattr(report, name) for name in MEANING}


def _words(one: SavedReport) -> str:
    status = one.summary.get("exit_status")
    places = sum(place.counts for place in one.places.values())
    return (
        f"{one.command} · {count_of(places, 'place')} · exit status {status if isinstance(status, int) else 'unknown'}"
    )


def _verdict(report: Difference) -> tuple[str, str]:
    tail = [
        f"{len(suspects)} {word}" for suspects, word in ((report.gone, "gone"), (report.same, "unchanged")) if suspects
    ]
    if report.exit_status == 1:
        words = [f"{count_of(len(report.new), 'place')} new"] if report.new else []
        words += [f"{count_of(len(report.worse), 'tensor')} worse"] if report.worse else []
        return "NEW", ", ".join([*words, *tail])
    if report.exit_status == 2:
        if report.open:
            words = [f"{count_of(len(report.open), 'place')} not examined again, or downstream of another suspect"]
        else:
            words = ["the later report is undecided; no new finding in its decided part"]
        return "UNDECIDED", ", ".join([*words, *tail])
    if report.gone and not report.same:
        return "FIXED", f"{count_of(len(report.gone), 'place')} gone, none new"
    return "SAME", ", ".join([*tail, "none new"])


def _suspect(place: int, one: Change) -> Suspect:
    after, because = one.after, ""
    if isinstance(after, SavedSuspect):
        because = after.because
    elif isinstance(after, SavedRow):
        because = f"rel_l2 {brief(after.error)}, limit {brief(after.limit)}"
    evidence = [Evidence("because", "{because}", {"because": Fact(because)})] if because else []
    evidence += [Evidence("before", "before: {words}", {"words": Fact(_state(one.before) or "not there")})]
    cause = _cause(after)
    where = " · ".join(f"{name} {at}" for name, at in (("step", one.key.step), ("rank", one.key.rank)) if at)
    line = after.stack if isinstance(after, SavedSuspect) else ""
    rule = one.key.rule
    return Suspect(
        place, cause, one.key.op, "", one.key.slot, tuple(evidence), cause, where=where, line=line, rule=rule
    )


def _cause(one: Optional[SavedSuspect | SavedRow]) -> str:
    return one.cause if isinstance(one, SavedSuspect) else one.verdict if isinstance(one, SavedRow) else ""


def _error(one: Optional[SavedSuspect | SavedRow]) -> Optional[float]:
    return one.value if isinstance(one, SavedSuspect) else one.error if isinstance(one, SavedRow) else None


def _state(one: Optional[SavedSuspect | SavedRow]) -> str:
    """ "BORN 1.7e-03"."""
    error = _error(one)
    return " ".join(filter(None, (_cause(one), brief(error) if error else "")))


def one_line(one: Change) -> str:
    """ "Functional.softmax.1.forward output:0  BORN 1.7e-03 → gone"."""
    states = [_state(one.before), _state(one.after)]
    return f"{_name(one.key)}  {' → '.join(states) if all(states) else ''.join(states)}"


def _name(key: Key) -> str:
    where = [f"{name} {at}" for name, at in (("step", key.step), ("rank", key.rank)) if at not in ("", "0")]
    return "  ".join(filter(None, (*where, key.rule, f"{key.op} {key.slot}".strip())))


def _rows(kinds: dict[str, Sequence[Change]]) -> Iterator[Row]:
    for name, suspects in kinds.items():
        for one in suspects:
            latest = one.after or one.before
            yield {
                "what": name, **one.key._asdict(), "before": _cause(one.before) or None,
                "after": _cause(one.after) or None, "error_before": _error(one.before),
                "error_after": _error(one.after), "limit": latest.limit if isinstance(latest, SavedRow) else None,
                "because": latest.because if isinstance(latest, SavedSuspect) else None,
                "stack": latest.stack if isinstance(latest, SavedSuspect) else None,
            }  # fmt: skip


def _detail(kinds: dict[str, Sequence[Change]]) -> Detail:
    """Return a row per row of diff.csv."""
    rows = [*_rows(kinds)]
    return Detail(
        kind="pairs",
        title="All changes",
        chart="",
        runs=["both reports"],
        operators=tables.by_column([{"run": 0, "op": row["op"], "rows": 1} for row in rows]),
        rows=tables.by_column([{**row, "verdict": row["what"]} for row in rows]),
        columns=["op", "verdict", *(name for name in COLUMNS if name not in ("op", "what"))],
        shown=["op", "slot", "verdict", "rule", "before", "after", "error_before", "error_after"],
        facets=["verdict", "before", "after", "rule"],
    )


def _facts(report: Difference, kinds: dict[str, Sequence[Change]]) -> Row:
    """Return the values of a diff for summary.json."""
    first = {name: list(_rows({name: suspects[:FIRST]})) for name, suspects in kinds.items()}
    return {
        "before": report.paths[0],
        "after": report.paths[1],
        "of": report.before.command if report.before else "",
        "counts": {name: len(suspects) for name, suspects in kinds.items()},
        "changes": first,
        "notes": [*report.notes],
        "roots": [],
    }
