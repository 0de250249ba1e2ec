"""The Answer of `npucmp compare`, the base of the Answers of fusion-diff and rerun-diff: the sum of one part for each
step and rank (rank_summary.py), wherever the parts are stored."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.model import (
    DIFFERS,
    Cause,
    Comparison,
    Report,
    StoredComparisons,
    Verdict,
    VerdictTally,
    Where,
    brief,
    map_comparisons,
)
from npucmp.model.comparison import where_of
from npucmp.model.ticket_facts import Accused
from npucmp.report import tables, worst_elements
from npucmp.report.answer import (
    Answer,
    Columns,
    Detail,
    DumpSummary,
    Listing,
    Piece,
    ReportTable,
    Row,
    Shown,
    Suspects,
    Text,
    Within,
)
from npucmp.report.coverage import AlignedShare, coverage_facts, covered_words, open_words
from npucmp.report.phrases import count_of, in_bytes, numbers, problem_of, where_words
from npucmp.report.rank_summary import (
    LEFT_OUT,
    SIDES,
    Passed,
    Ran,
    RankSummary,
    SummaryRequest,
    keys_of,
    lost_part,
    part_of,
    word_of,
)

if TYPE_CHECKING:
    from npucmp.report.next_dump import NextDump
    from npucmp.report.rank_tables import Filed, Filing
    from npucmp.report.tensor_rows import Linked

MEANING = {
    "BORN": "inputs agree, output does not",
    "GAP": "an input differs although everything dumped upstream agrees",
    "WORSENED": "differs far more than its inputs explain",
    "SUSPECT": "by statistics alone it stands out of the noise before it; not proven",
    "UNKNOWN": "its inputs are not known",
    "PROPAGATED": "passes on what it got",
}
NEXT = {  # docs/workflow.md explains each in more words
    "BORN": "hold its arguments and source line against the golden's; then run it alone: npucmp extract makes the case",
    "GAP": "read the source between the two operators, or dump at level mix: the fault is in what was not compared",
    "WORSENED": "look at the places before it first; alone at the top it may be ill-conditioned, or a second fault",
    "SUSPECT": "dump the values of this operator and of what it reads (next_dump.json), then compare again",
    "UNKNOWN": "dump inputs too, or values instead of statistics (next_dump.json); a graph may tell who wrote them",
    "PROPAGATED": "nothing: it follows from an operator before it",
}
FIGURES = ("rel_l2", "limit", "cosine", "max_abs_err", "max_ulp")  # columns that a page shows first
OF_FIRST = ("format", "detail", "step", "rank")  # values of the first run of a side in summary.json


class Parts:
    """All parts of a comparison, and their sums.

    metrics  further columns of tensors.csv
    paged    the comparison is one of several, and the parts are for its page
    """

    def __init__(self, report: Report, metrics: Sequence[str] = (), paged: bool = False) -> None:
        asked = SummaryRequest(
            (report.target_path, report.golden_path), len(report.comparisons) > 1, report.least, paged
        )
        self.report, self.metrics = report, tuple(metrics)
        self.every: list[RankSummary] = []
        pool: dict[object, Any] = {}  # shares the names of tensors, which ranks have in common
        lost = partial(_lost_part, where_of(report.comparisons))
        for part in map_comparisons(report.comparisons, partial(part_of, asked, report.strict), lost):
            self.every.append(part.pooled(pool))
        self.tally = VerdictTally.sum(one.tally for one in self.every)
        self.coverage = AlignedShare.sum([one.coverage for one in self.every])

    @property
    def notes(self) -> list[str]:
        """The notes for the reader, each once."""
        runs = [note for one in self.every for note in one.run_notes]
        own = [note for one in self.every for note in one.notes]
        return [*dict.fromkeys([*self.report.unreplayed, *runs, *own, *self.report.notes])]

    @property
    def unreadable(self) -> Listing:
        lines = [words for one in self.every for words in one.unreadable]
        more = self.tally.verdicts[Verdict.UNREADABLE] - len(lines)
        return Listing("unreadable", lines, "tensors.csv", more)

    def undecided(self) -> Iterator[str]:
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
        return [DumpSummary(name, path, several(some)) for name, path, some in zip(SIDES, paths, runs)]


def several(runs: Sequence[Ran]) -> str:
    """Describe the runs of one dump in one line."""
    kinds = dict.fromkeys(" · ".join(filter(None, (run.format, run.detail))) for run in runs)
    operators, tensors, size = (sum(getattr(run, name) for run in runs) for name in ("operators", "tensors", "bytes"))
    content = f"{count_of(operators, 'operator')}, {count_of(tensors, 'tensor')}"
    known = ((name, {getattr(run, name) for run in runs} - {None}) for name in ("step", "rank"))
    which = [numbers(name, sorted(found)) for name, found in known]
    return " · ".join(filter(None, [*kinds, *which, content + (f", {in_bytes(size)}" if size else "")]))


LOST = "telling what came of it ended the process: {because}"


def _lost_part(where: Sequence[Where], number: int, because: str) -> RankSummary:
    return lost_part(number, where[number], LOST.format(because=because))


def _lost_files(where: Sequence[Where], filing: Filing, number: int, because: str) -> Filed:
    from npucmp.report.rank_tables import lost_files

    return lost_files(filing, where[number], LOST.format(because=because))


def answer(report: Report, metrics: Sequence[str] = ()) -> Answer:
    """Return the Answer of a comparison; `metrics` are further columns of tensors.csv."""
    parts = Parts(report, metrics)
    files = _Files(parts)
    found = compare_answer(parts, files=files)
    if len(parts.every) < 2:
        return found
    from npucmp.report.matrix import cells_of_runs
    from npucmp.report.overview import multi_rank_answer

    return multi_rank_answer(found, parts.every, cells_of_runs(report), files.pages)


class _Paged(NamedTuple):
    """The inputs of the pages of single comparisons: the report without comparisons, and the paths of the pages in a
    folder."""

    report: Report
    filing: Filing
    within: Mapping[int, Within]
    shown: Shown


def _page(paged: _Paged, number: int, one: Comparison) -> tuple[Piece, Filed]:
    """Make the page of a comparison, and its rows of the tables, which have the same cells."""
    seen = tuple(look for look in paged.report.looks if look.run == number)
    parts = Parts(replace(paged.report, comparisons=(one,), looks=seen), paged.filing.metrics, paged=True)
    files = _Files(parts)
    alone = replace(
        compare_answer(parts, files=files), remarks=lambda folder: ()
    )  # the remarks concern all comparisons together
    page = paged.filing.piece(number, "html", paged.shown(alone, paged.within[number]))
    return page, files.filed(paged.filing, number, 0, one)


def _lost_page(number: int, because: str) -> tuple[Piece, Optional[Filed]]:
    page = b"<!doctype html><meta charset=utf-8><p>Making this page ended the process. tensors.csv has its rows.</p>\n"
    return page, None


def compare_answer(parts: Parts, figures: Sequence[str] = FIGURES, files: Optional[_Files] = None) -> Answer:
    """Return the Answer from the parts of a comparison; `figures` are the columns that a page shows first."""
    report = parts.report
    files = files or _Files(parts)
    sections = sorted((one.section for one in parts.every), key=lambda one: one.place)
    if report.unlike:
        first = parts.every[0].section
        sections = [one._replace(warnings=[report.unlike]) if one is first else one for one in sections]
    if report.layout is not None:
        from npucmp.report.placements import layout_line

        line = layout_line(report.layout)
        sections = [one._replace(aligned=f"{line}\n{one.aligned}") if one is sections[0] else one for one in sections]
    sections = worst_elements.with_worst_elements(sections, report.looks)
    suspects = Suspects.of([suspect for one in sections for some in one.suspects for suspect in some])
    word, sentence = _verdict(report, parts)
    lines = [line.head + line.rest for one in sections for line in one.lines]
    further = _NextDump(report, files)
    listed = [words for one in sections for some in one.listings for words in (some.title, *some.lines)]
    return Answer(
        result=report,
        word=word,
        sentence=sentence,
        sections=sections,
        suspects=suspects,
        places="roots.csv",
        title=next((one.title for one in sections if one.title), ""),
        compared="What was compared",
        sides=parts.sides(),
        aligned=parts.coverage.words(),
        passed_words=Passed.sum([one.passed for one in parts.every]).words(),
        counts={verdict.value: parts.tally.verdicts[verdict] for verdict in Verdict if parts.tally.verdicts[verdict]},
        notes=[Listing("note", parts.notes, "summary.json"), Listing("noise", [*parts.within_noise()], "")],
        unreadable=parts.unreadable,
        tables=[*files.tables(), *_placements(report), worst_elements.worst(report.looks)],
        detail=lambda: files.detail(figures),
        facts=lambda: {**facts(parts), "next_dump": further.facts()},
        nothing=[] if suspects.first else [*lines, *listed],
        left_out=[*_runs_left_out(report)],
        undecided=[*parts.undecided()],
        unlisted=sum(one.unlisted[0] for one in sections),
        remarks=lambda folder: further.remarks(folder) if folder else [],
        remarks_title="What to do next",
        texts=further.texts,
        rules=report.rules,
        meaning=MEANING,
        advice=NEXT,
        looks=report.looks,
    )


class _Files:
    """The contents that only a written report needs: rows, pages and dump requests of each comparison."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._metrics = parts, parts.metrics
        self._comparisons = parts.report.comparisons
        self._cells = cache(lambda number: _columns_of(self._comparisons[number], parts.metrics))
        self._linked = cache(lambda number: _linked_in(self._comparisons[number]))
        self._paged: dict[int, Filed] = {}  # rows that were made together with a page
        self.every = cache(self._every)

    def filed(self, filing: Filing, number: int, at: int, one: Comparison) -> Filed:
        """Return the rows of a comparison; `number` is its index among all, `at` its index here."""
        from npucmp.report.rank_tables import write_rank_tables

        return write_rank_tables(filing, number, one, self._cells(at), partial(self._linked, at))

    def _every(self) -> list[Filed]:
        from npucmp.report.rank_tables import write_rank_tables

        if len(self._comparisons) == 1 and not isinstance(self._comparisons, StoredComparisons):
            return [self.filed(self._filing, 0, 0, self._comparisons[0])]
        lost = partial(_lost_files, where_of(self._comparisons), self._filing)
        numbers = [at for at in range(len(self._comparisons)) if at not in self._paged]
        found = {
            **self._paged,
            **dict(
                zip(
                    numbers, map_comparisons(self._comparisons, partial(write_rank_tables, self._filing), lost, numbers)
                )
            ),
        }
        return [found[at] for at in range(len(self._comparisons))]

    @property
    def _filing(self) -> Filing:
        from npucmp.report.rank_tables import Filing

        folder = self._comparisons.folder if isinstance(self._comparisons, StoredComparisons) else ""
        return Filing(self._metrics, folder)

    def pages(self, within: Mapping[int, Within], shown: Shown) -> Iterator[tuple[int, Piece]]:
        """Yield the pages of these comparisons, made by the process that has the comparison."""
        common = replace(self._parts.report, comparisons=(), broken=(), unpaired=(), unlike="")
        numbers, paged = sorted(within), _Paged(common, self._filing, within, shown)
        made = map_comparisons(self._comparisons, partial(_page, paged), _lost_page, numbers)
        for number, (page, filed) in zip(numbers, made):
            if filed is not None:
                self._paged[number] = filed
            yield number, page

    def tables(self) -> list[ReportTable]:
        report = self._parts.report
        names = (*tables.TENSOR_COLUMNS, *self._metrics)
        parts = [(key, partial(self._of_one, at)) for at, key in enumerate(keys_of(self._parts.every))]
        tensors = ReportTable(
            "tensors.csv", names, lambda: _tensor_columns(report, self._metrics), self._tensors, parts
        )
        rooted = ((one.roots, one.step, one.rank) for one in report.comparisons)
        return [tensors, tables.roots(rooted)._replace(rows=self._roots)]

    def _tensors(self) -> Iterator[Piece]:
        return (one.tensors for one in self.every())

    def _of_one(self, at: int) -> list[Piece]:
        return [self.every()[at].tensors]

    def _roots(self) -> Iterator[Piece]:
        from npucmp.report.rank_tables import by_place

        return by_place((part.step, one.roots) for part, one in zip(self._parts.every, self.every()))

    def detail(self, figures: Sequence[str]) -> Detail:
        from npucmp.report import tensor_rows

        every = enumerate(self._comparisons)
        paired = [tensor_rows.paired(one, self._cells(at), self._linked(at)) for at, one in every]
        return tensor_rows.detail(paired, self._metrics, figures, self._parts.report.rules)


class _NextDump:
    """The next dump that a report requests, planned when a file first needs it."""

    def __init__(self, report: Report, files: _Files) -> None:
        self._report, self._files = report, files

    @cached_property
    def _found(self) -> Optional[NextDump]:
        from npucmp.report.next_dump import next_dump

        return next_dump(self._report, [one.wanted for one in self._files.every()])

    def facts(self) -> Optional[Row]:
        """Return its values for summary.json."""
        return None if self._found is None else self._found.facts()

    def remarks(self, folder: str) -> list[str]:
        """Return the command to run next, in one line."""
        return [] if self._found is None else [self._found.remark(self._report, folder)]

    def texts(self) -> list[Text]:
        """Return the dump configurations."""
        return [] if self._found is None else [Text(*file) for file in self._found.files.items()]


def _placements(report: Report) -> Iterator[ReportTable]:
    if report.layout is not None:
        from npucmp.report.placements import placements

        yield placements(report.layout)


def _layout(report: Report) -> Row:
    """Return the layout for summary.json, if ranks were put together."""
    if report.layout is None:
        return {}
    from npucmp.report.placements import layout_facts

    return {"layout": layout_facts(report.layout)}


def _columns_of(one: Comparison, metrics: Sequence[str]) -> Columns:
    from npucmp.report.columns import columns_of

    return columns_of(one, metrics)


def _tensor_columns(report: Report, metrics: Sequence[str]) -> Columns:
    from npucmp.report.columns import tensor_columns

    return tensor_columns(report, metrics)


def _linked_in(one: Comparison) -> Linked:
    from npucmp.report import tensor_rows

    return tensor_rows.linked_in(one)


def _runs_left_out(report: Report) -> Iterator[str]:
    for side, run in report.broken:
        yield f"unreadable {side}: {problem_of(run)}"
    for side, run in report.unpaired:
        yield f"only in {side}: {' '.join(where_words(run))} ({run.path})"


def _verdict(report: Report, parts: Parts) -> tuple[str, str]:
    status = report.exit_status
    return word_of(status, parts.tally), _sentence(report, parts.tally, status)


def _sentence(report: Report, tally: VerdictTally, status: int) -> str:
    counts = tally.verdicts
    if status == 130:
        return f"interrupted after {count_of(tally.tensors, 'tensor')}"
    if status == 1:
        return found_words(tally, len(report.unpaired))
    if status == 0:
        words = [f"{count_of(counts[Verdict.MATCH], 'tensor')} compared, none diverged"]
        words += [f"{counts[one]} {what}" for one, what in LEFT_OUT.items() if counts[one]]
        words += [f"{count_of(len(report.unpaired), 'run')} without a partner"] if report.unpaired else []
        return ", ".join([*words, *covered_words(report, report.coverage)])
    if report.broken:
        return f"{count_of(len(report.broken), 'run')} could not be read, the others agree"
    if counts[Verdict.UNREADABLE]:
        unreadable = count_of(counts[Verdict.UNREADABLE], "tensor")
        return f"{unreadable} could not be read, none of the others diverged"
    bare = ""
    if tally.bare and counts[Verdict.MATCH]:
        bare = f"nothing could be compared in {tally.bare:,} of {len(report.comparisons):,} steps and ranks"
    uncompared = counts[Verdict.MATCH] and (tally.coverage.tensors > tally.undecided or not tally.undecided)
    unpaired = [run for side, run in report.unpaired if side == "golden"]
    if uncompared and (tally.coverage.tensors or unpaired):
        return "; ".join(filter(None, [bare, open_words(tally.coverage, counts[Verdict.MATCH], unpaired)]))
    if undecided := tally.undecided:
        what, advice = "statistics prove", "dump with task tensor or md5, or pass --trust-statistics"
        if any("XOR" in one.because for one in tally.coverage.first):
            what, advice = "equal XOR checksums prove", "dump with task tensor, or with md5 as the summary mode"
        return f"{what} no agreement of {count_of(undecided, 'tensor')}; {advice}"
    if bare:
        return f"{bare}, {count_of(counts[Verdict.MATCH], 'tensor')} of the others agree"
    why = "partners are missing, of types that have nothing in common, or empty"
    return f"nothing could be compared: {why}"


def found_words(tally: VerdictTally, unpaired: int = 0) -> str:
    """Describe the tensors that differ, or that statistics suggest."""
    if tally.is_suspected:
        return ", ".join(["by statistics; not proven", *_suspected_words(tally.causes)])
    return ", ".join(_diverged_words(tally, unpaired))


def _suspected_words(causes: Counter[Cause]) -> Iterator[str]:
    """Describe the operators that are suspects by statistics alone."""
    yield f"{count_of(causes[Cause.SUSPECT], 'operator')} out of the noise before it"
    if causes[Cause.PROPAGATED]:
        yield f"{causes[Cause.PROPAGATED]} behind it proven to differ"


def _diverged_words(tally: VerdictTally, unpaired: int) -> Iterator[str]:
    causes, counts = tally.causes, tally.verdicts
    differing = sum(counts[verdict] for verdict in DIFFERS)
    if causes[Cause.BORN] + causes[Cause.GAP]:
        yield f"error is born in {count_of(causes[Cause.BORN] + causes[Cause.GAP], 'place')}"
    if causes[Cause.WORSENED]:
        yield f"worsened in {causes[Cause.WORSENED]}"
    if causes[Cause.UNKNOWN]:
        yield f"{count_of(causes[Cause.UNKNOWN], 'operator')} of unknown cause"
    if causes[Cause.PROPAGATED]:
        yield f"{causes[Cause.PROPAGATED]} pass it on"
    if not causes and differing:
        yield f"{count_of(differing, 'tensor')} differ"
    elif not causes:
        alone = count_of(counts[Verdict.MISSING], "tensor"), count_of(unpaired, "run")
        yield f"--strict: {' and '.join(alone)} without a partner"
    told = [Verdict.UNREADABLE, *([Verdict.MISSING] if causes or differing else [])]
    yield from (f"{count_of(counts[one], 'tensor')} {LEFT_OUT[one]}" for one in told if counts[one])


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
        "accused": [_accused(one) for one in report.accused],
        "passes": [],
        "unpaired": [
            {"side": side, "path": run.path, "step": run.step, "rank": run.rank} for side, run in report.unpaired
        ],
    }


def _accused(one: Accused) -> Row:
    """Return the ticket data of an operator that its rows lack."""
    below = {name: [some._asdict() for some in getattr(one, name)] for name in ("arguments", "vendor")}
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
