"""All parts of a comparison, one for each step and rank (rank_summary.py), their sums, and their values for
summary.json."""

from __future__ import annotations

from functools import partial
from typing import Any, Iterator, Sequence

from npucmp.model import Report, StepRankNumbers, Verdict, VerdictTally, brief, map_comparisons
from npucmp.model.cause import first_of
from npucmp.model.comparison import where_of
from npucmp.model.tensor_detail import TicketFacts
from npucmp.report import tables
from npucmp.report.answer import DumpSummary, Listing, Row
from npucmp.report.coverage import AlignedShare, coverage_facts
from npucmp.report.phrases import count_of, in_bytes, known_numbers, numbers
from npucmp.report.rank_summary import (
    LEFT_OUT,
    SIDES,
    RankSummary,
    RunInfo,
    SummaryRequest,
    lost_part,
    part_of,
    with_titles,
)

OF_FIRST = ("format", "detail", "step", "rank")  # values of the first run of a side in summary.json
LOST = "the process ended while it summarised the result: {because}"


class Parts:
    """All parts of a comparison, and their sums.

    metrics  further columns of tensors.csv
    paged    the comparison is one of several, and the parts are for its page
    """

    def __init__(self, report: Report, metrics: Sequence[str] = (), paged: bool = False) -> None:
        request = SummaryRequest(
            (report.target_path, report.golden_path), len(report.comparisons) > 1, report.least, paged
        )
        self.report, self.metrics = report, tuple(metrics)
        self.every: list[RankSummary] = []
        pool: dict[object, Any] = {}  # shares the names of tensors, which ranks have in common
        lost = partial(_lost_part, where_of(report.comparisons))
        for part in map_comparisons(report.comparisons, partial(part_of, request, report.strict), lost):
            self.every.append(part.share_names(pool))
        self.every = with_titles(self.every)
        self.tally = VerdictTally.sum(one.tally for one in self.every)
        self.coverage = AlignedShare.sum([one.coverage for one in self.every])

    @property
    def notes(self) -> list[str]:
        """The notes for the reader, each once, with the steps and ranks of a note that not all have."""
        runs = [note for one in self.every for note in one.run_notes]
        noted: dict[str, list[str]] = {}
        for one in self.every:
            where = known_numbers(step=one.step, rank=one.rank)
            for note in dict.fromkeys(one.notes):
                noted.setdefault(note, []).append(" ".join(f"{name} {number}" for name, number in where.items()))
        own = [
            note if len(places) == len(self.every) or not any(places) else f"{note} ({first_of(places, 3)})"
            for note, places in noted.items()
        ]
        return [*dict.fromkeys([*self.report.unreplayed, *runs, *own, *self.report.notes])]

    @property
    def unreadable(self) -> Listing:
        lines = [words for one in self.every for words in one.unreadable]
        more = self.tally.verdicts[Verdict.UNREADABLE] - len(lines)
        return Listing("unreadable", lines, "tensors.csv", more)

    def undecided_words(self) -> Iterator[str]:
        for verdict, what in LEFT_OUT.items():
            if count := self.tally.verdicts[verdict]:
                example = next(one.examples[verdict] for one in self.every if verdict in one.examples)
                yield f"{count_of(count, 'tensor')} {what}, for example {example}"

    def within_noise(self) -> Iterator[str]:
        """Yield the number of tensors that --noise excused, and the largest error."""
        count = sum(one.excused.tensors for one in self.every)
        if count:
            worst = max((one.excused for one in self.every), key=lambda one: one.error)
            where = f"rel_l2 {brief(worst.error)} at {worst.where}"
            yield f"{count_of(count, 'tensor')} above the limit, within measured noise; largest {where}"

    def sides(self) -> list[DumpSummary]:
        """Return both dumps in one line each, if they have several runs."""
        if len(self.every) < 2:
            return []
        paths = self.report.target_path, self.report.golden_path
        runs = [[one.runs[at] for one in self.every if one.runs] for at in range(len(SIDES))]
        return [DumpSummary(name, path, several(side_runs)) for name, path, side_runs in zip(SIDES, paths, runs)]


def several(runs: Sequence[RunInfo]) -> str:
    """Describe the runs of one dump in one line."""
    kinds = dict.fromkeys(" · ".join(filter(None, (run.format, run.detail))) for run in runs)
    operators, tensors, size = (sum(getattr(run, name) for run in runs) for name in ("operators", "tensors", "bytes"))
    content = f"{count_of(operators, 'operator')}, {count_of(tensors, 'tensor')}"
    known = ((name, {getattr(run, name) for run in runs} - {None}) for name in ("step", "rank"))
    which = [numbers(name, sorted(found)) for name, found in known]
    return " · ".join(filter(None, [*kinds, *which, content + (f", {in_bytes(size)}" if size else "")]))


def _lost_part(where: Sequence[StepRankNumbers], number: int, because: str) -> RankSummary:
    return lost_part(number, where[number], LOST.format(because=because))


def facts(parts: Parts) -> Row:
    """Return the values of a comparison for summary.json."""
    report = parts.report
    rows = sorted((row for one in parts.every for row in one.roots), key=lambda row: int(row["place"]))
    return {
        "target": _of_runs(parts, 0),
        "golden": _of_runs(parts, 1),
        "also": list(report.also),
        "aligned": parts.coverage.facts(),
        "coverage": coverage_facts(report, report.coverage),
        "verdicts": {verdict.value: count for verdict, count in parts.tally.verdicts.items()},
        "causes": {cause.value: count for cause, count in parts.tally.causes.items()},
        "roots": rows[: tables.SUMMARISED],
        "rules": [row.__dict__ for row in report.rules],
        "notes": parts.notes,
        "unlike": report.unlike,
        **_layout(report),
        **({"tokens": report.tokens._asdict()} if report.tokens is not None else {}),
        "accused": [_ticket_facts(one) for one in report.accused],
        "passes": [],
        "unpaired": [
            {"side": side, "path": run.path, "step": run.step, "rank": run.rank} for side, run in report.unpaired
        ],
    }


def _ticket_facts(one: TicketFacts) -> Row:
    """Return the ticket data of an operator that its rows lack."""
    below = {name: [fact._asdict() for fact in getattr(one, name)] for name in ("arguments", "vendor")}
    return {**one._asdict(), **below}


def _of_runs(parts: Parts, at: int) -> Row:
    """Return the values of a dump for summary.json."""
    runs = [one.runs[at] for one in parts.every if one.runs]
    return {
        "path": (parts.report.target_path, parts.report.golden_path)[at],
        "operators": sum(run.operators for run in runs),
        "tensors": sum(run.tensors for run in runs),
        "bytes": sum(run.bytes for run in runs),
        "runs": [{"path": run.path, "step": run.step, "rank": run.rank, "notes": list(run.notes)} for run in runs],
        **{name: getattr(runs[0], name) if runs else None for name in OF_FIRST},
    }


def _layout(report: Report) -> Row:
    """Return the layout for summary.json, if ranks were put together."""
    if report.layout is None:
        return {}
    from npucmp.relations.ranks.report import layout_facts

    return {"layout": layout_facts(report.layout)}
