"""The Answer of `npucmp compare`, the base of the Answers of fusion-diff and rerun-diff: the sum of one part for each
step and rank (comparison_parts.py), wherever the parts are stored; and the files of the rows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.model import (
    Comparison,
    Report,
    StepRankNumbers,
    StoredComparisons,
    Verdict,
    map_comparisons,
)
from npucmp.model.comparison import where_of
from npucmp.model.table import bare_pairs, network_fact
from npucmp.report import tables, worst_elements
from npucmp.report.answer import (
    Answer,
    Columns,
    Detail,
    Listing,
    PageContext,
    Piece,
    Plot,
    ReportTable,
    Row,
    Shown,
    Suspects,
    Text,
)
from npucmp.report.comparison_parts import LOST, Parts, facts
from npucmp.report.next_commands import of_comparison
from npucmp.report.phrases import problem_of, where_words
from npucmp.report.rank_summary import PropagatedSummary, RankSummary, keys_of, word_of
from npucmp.report.verdict_sentence import sentence_of

if TYPE_CHECKING:
    from npucmp.plans.next_dump import NextDump
    from npucmp.report.producers import Linked
    from npucmp.report.rank_tables import RankTables, RowSettings
    from npucmp.report.tensor_rows import PairedOperators

MEANING = {
    "BORN": "inputs agree, output differs",
    "GAP": "an input differs although all tensors dumped upstream agree",
    "WORSENED": "output differs far more than its inputs explain",
    "SUSPECT": "statistics only: exceeds the upstream noise; not proven",
    "UNKNOWN": "output differs; its inputs are not known",
    "PROPAGATED": "propagates an upstream error",
}
NEXT = {  # docs/workflow.md explains each in more words
    "BORN": "compare its arguments and source line with the golden; then run it alone: npucmp extract writes the case",
    "GAP": "read the source between the two operators, or dump at level mix: the fault is in code not compared",
    "WORSENED": "check the suspects before it first; the first suspect may be ill-conditioned, or have a second fault",
    "SUSPECT": "dump the values of this operator and of its inputs (next_dump.json), then compare again",
    "UNKNOWN": "dump inputs too, or values instead of statistics (next_dump.json); a graph may name their producers",
    "PROPAGATED": "no action: the error comes from an upstream operator",
}
FIGURES = ("rel_l2", "limit", "cosine", "max_abs_err", "max_ulp")  # columns that a page shows first


def _lost_files(where: Sequence[StepRankNumbers], filing: RowSettings, number: int, because: str) -> RankTables:
    from npucmp.report.rank_tables import lost_files

    return lost_files(filing, where[number], LOST.format(because=because))


def answer(report: Report, metrics: Sequence[str] = ()) -> Answer:
    """Return the Answer of a comparison; `metrics` are further columns of tensors.csv."""
    found = _two_run_answer(report, metrics)
    if report.three_runs is None:
        return found
    from npucmp.three_runs.report import three_run_answer

    return three_run_answer(found, report, report.three_runs)


def _two_run_answer(report: Report, metrics: Sequence[str]) -> Answer:
    parts = Parts(report, metrics)
    files = _Files(parts)
    found = compare_answer(parts, files=files)
    if report.weights is not None:
        from npucmp.relations.weights.report import weight_answer

        return weight_answer(found, report, report.weights)
    if len(parts.every) < 2:
        return found
    from npucmp.report.matrix import cells_of_runs
    from npucmp.report.overview import multi_rank_answer

    found = multi_rank_answer(found, parts.every, cells_of_runs(report), files.pages)
    return replace(found, series=files.series, first=lambda: answer(_first_alone(report), metrics))


def tensor_table(report: Report, metrics: Sequence[str] = ()) -> ReportTable:
    """Return tensors.csv as a table, which needs no other part of the Answer."""
    return ReportTable("tensors.csv", (*tables.TENSOR_COLUMNS, *metrics), lambda: _tensor_columns(report, metrics))


def first_table(report: Report) -> Optional[ReportTable]:
    """Return the first table of the Answer, if the Answer is not needed for it."""
    return tensor_table(report) if report.weights is None else None


def _first_alone(report: Report) -> Report:
    """Return the report of the step and rank of the first suspect."""
    from npucmp.report.network_plot import first_comparison

    one = first_comparison(report.comparisons)
    comparisons = (one,) if one is not None else ()
    return replace(report, comparisons=comparisons, broken=(), unpaired=(), looks=(), images=None, three_runs=None)


def _error_plot(report: Report) -> Optional[Plot]:
    from npucmp.report.network_plot import error_plot, first_comparison

    return error_plot(first_comparison(report.comparisons))


class _PageInputs(NamedTuple):
    """The inputs of the pages of single comparisons: the report without comparisons, and the paths of the pages in a
    folder."""

    report: Report
    filing: RowSettings
    within: Mapping[int, PageContext]
    shown: Shown


def _page(paged: _PageInputs, number: int, one: Comparison) -> tuple[Piece, RankTables]:
    """Make the page of a comparison, and its rows of the tables, which have the same cells."""
    seen = tuple(look for look in paged.report.looks if look.run == number)
    parts = Parts(replace(paged.report, comparisons=(one,), looks=seen), paged.filing.metrics, paged=True)
    files = _Files(parts)
    alone = replace(
        compare_answer(parts, files=files), remarks=lambda folder: ()
    )  # the remarks concern all comparisons together
    page = paged.filing.piece(number, "html", paged.shown(alone, paged.within[number]))
    return page, files.table_rows(paged.filing, number, 0, one)


def _lost_page(number: int, because: str) -> tuple[Piece, Optional[RankTables]]:
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
        from npucmp.relations.ranks.report import layout_line

        line = layout_line(report.layout)
        sections = [one._replace(aligned=f"{line}\n{one.aligned}") if one is sections[0] else one for one in sections]
    if report.tokens is not None:
        from npucmp.relations.tokens.report import token_line

        line = token_line(report.tokens)
        if report.token_bits:
            from npucmp.relations.tokens.batch_invariance_report import invariance_line

            line = f"{line}\n{invariance_line(report.token_bits)}"
        sections = [one._replace(aligned=f"{line}\n{one.aligned}") if one is sections[0] else one for one in sections]
    routing = [one for one in parts.every if one.routing]
    if routing:
        from npucmp.report.routing import routing_line

        line = routing_line(routing)
        sections = [one._replace(aligned=f"{line}\n{one.aligned}") if one is sections[0] else one for one in sections]
    sections = worst_elements.with_worst_elements(sections, report.looks)
    suspects = Suspects.of([suspect for one in sections for section_part in one.suspects for suspect in section_part])
    lines = [line.head + line.rest for one in sections for line in one.lines]
    further = _NextDump(report, files)
    listed = [
        words
        for one in sections
        for section_part in one.listings
        for words in (section_part.title, *section_part.lines)
    ]
    return Answer(
        result=report,
        word=word_of(report.exit_status, parts.tally),
        sentence=sentence_of(report, parts.tally),
        sections=sections,
        suspects=suspects,
        places="roots.csv",
        title=next((one.title for one in sections if one.title), ""),
        compared="Compared runs",
        sides=parts.sides(),
        aligned=parts.coverage.words(),
        passed_words=PropagatedSummary.sum([one.passed for one in parts.every]).words(),
        counts={verdict.value: parts.tally.verdicts[verdict] for verdict in Verdict if parts.tally.verdicts[verdict]},
        notes=[Listing("note", parts.notes, "summary.json"), Listing("noise", [*parts.within_noise()], "")],
        unreadable=parts.unreadable,
        tables=[
            *files.tables(),
            *_placements(report),
            *_routing_tables(routing),
            worst_elements.worst_rows(report.looks),
        ],
        detail=lambda: files.detail(figures),
        commands=of_comparison,
        facts=lambda: {**facts(parts), "next_dump": further.facts()},
        nothing=[] if suspects.first else [*lines, *listed],
        left_out=[*_runs_left_out(report)],
        undecided=[*parts.undecided_words()],
        unlisted=sum(one.unlisted[0] for one in sections),
        remarks=lambda folder: further.remarks(folder) if folder else [],
        remarks_title="Next steps",
        texts=lambda: [*further.texts(), *_mapping(parts)],
        rules=report.rules,
        meaning=MEANING,
        advice=NEXT,
        looks=report.looks,
        along=lambda: _error_plot(report),
    )


class _Files:
    """The contents that only a written report needs: rows, pages and dump requests of each comparison."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._metrics = parts, parts.metrics
        self._comparisons = parts.report.comparisons
        self._cells = cache(lambda number: _columns_of(self._comparisons[number], parts.metrics))
        self._linked = cache(lambda number: _linked_in(self._comparisons[number]))
        self._paged: dict[int, RankTables] = {}  # rows that were made together with a page
        self.every = cache(self._every)

    def table_rows(self, filing: RowSettings, number: int, at: int, one: Comparison) -> RankTables:
        """Return the rows of a comparison; `number` is its index among all, `at` its index here."""
        from npucmp.report.rank_tables import write_rank_tables

        return write_rank_tables(filing, number, one, self._cells(at), partial(self._linked, at))

    def _every(self) -> list[RankTables]:
        from npucmp.report.rank_tables import write_rank_tables

        if len(self._comparisons) == 1 and not isinstance(self._comparisons, StoredComparisons):
            return [self.table_rows(self._filing, 0, 0, self._comparisons[0])]
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
    def _filing(self) -> RowSettings:
        from npucmp.report.rank_tables import RowSettings

        folder = self._comparisons.folder if isinstance(self._comparisons, StoredComparisons) else ""
        where = where_of(self._comparisons)
        several = len({one.step for one in where} - {None}) > 1
        return RowSettings(self._metrics, folder, len(where) if several else 0)

    def pages(self, within: Mapping[int, PageContext], shown: Shown) -> Iterator[tuple[int, Piece]]:
        """Yield the pages of these comparisons, made by the process that has the comparison."""
        common = replace(
            self._parts.report, comparisons=(), broken=(), unpaired=(), unlike="", images=None, three_runs=None
        )
        numbers, paged = sorted(within), _PageInputs(common, self._filing, within, shown)
        made = map_comparisons(self._comparisons, partial(_page, paged), _lost_page, numbers)
        pool: dict[object, Any] = {}  # shares the names of operators and tensors, which ranks have in common
        for number, (page, filed) in zip(numbers, made):
            if filed is not None:
                steps = filed.steps.share_names(pool) if filed.steps is not None else None
                self._paged[number] = filed._replace(steps=steps)
            yield number, page

    def series(self) -> Optional[Row]:
        """Return the data over the steps; None if there is one step."""
        slices = [one.steps for one in self.every() if one.steps is not None]
        if len({one.step for one in slices}) < 2:
            return None
        from npucmp.report.step_series import series_data

        return series_data(slices, self._parts.report.looks)

    def tables(self) -> list[ReportTable]:
        report = self._parts.report
        parts = [(key, partial(self._of_one, at)) for at, key in enumerate(keys_of(self._parts.every))]
        tensors = tensor_table(report, self._metrics)._replace(rows=self._tensors, parts=parts)
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
        paired = [tensor_rows.paired_rows(one, self._cells(at), self._linked(at)) for at, one in every]
        return tensor_rows.detail(paired, self._metrics, figures, self._parts.report.rules, self._ranks(paired))

    def _ranks(self, paired: Sequence[PairedOperators]) -> Optional[Mapping[str, Any]]:
        """Return the map of ranks of a page of one comparison, if its ranks were put together."""
        layout = self._parts.report.layout
        if layout is None or len(paired) != 1:
            return None
        from npucmp.report.rank_map import rank_map, ranks_held

        (one,) = self._comparisons
        ranks = ranks_held(network_fact(one.columns, bare_pairs))
        return rank_map(layout, one.step, ranks, paired[0].operators["op"]) if len(ranks) > 1 else None


class _NextDump:
    """The next dump that a report requests, planned when a file first needs it."""

    def __init__(self, report: Report, files: _Files) -> None:
        self._report, self._files = report, files

    @cached_property
    def _next_dump(self) -> Optional[NextDump]:
        from npucmp.plans.next_dump import next_dump

        return next_dump(self._report, [one.wanted for one in self._files.every()])

    def facts(self) -> Optional[Row]:
        """Return its values for summary.json."""
        return None if self._next_dump is None else self._next_dump.facts()

    def remarks(self, folder: str) -> list[str]:
        """Return the command to run next, in one line."""
        return [] if self._next_dump is None else [self._next_dump.remark(self._report, folder)]

    def texts(self) -> list[Text]:
        """Return the dump configurations."""
        return [] if self._next_dump is None else [Text(*file) for file in self._next_dump.files.items()]


def _routing_tables(routing: Sequence[RankSummary]) -> Iterator[ReportTable]:
    if routing:
        from npucmp.report.routing import routing_table

        yield routing_table(routing)


def _placements(report: Report) -> Iterator[ReportTable]:
    if report.layout is not None:
        from npucmp.relations.ranks.report import placements

        yield placements(report.layout)
    if report.token_bits:
        from npucmp.relations.tokens.batch_invariance_report import invariance_table

        yield invariance_table(report.token_bits)


def _mapping(parts: Parts) -> Iterator[Text]:
    """Yield mapping.yaml, if values aligned the runs."""
    if parts.coverage.contents:
        from npucmp.relations.frameworks.report import mapping_texts

        yield from mapping_texts(parts.report)


def _columns_of(one: Comparison, metrics: Sequence[str]) -> Columns:
    from npucmp.report.tensor_rows import columns_of

    return columns_of(one, metrics)


def _tensor_columns(report: Report, metrics: Sequence[str]) -> Columns:
    from npucmp.report.tensor_rows import tensor_columns

    return tensor_columns(report, metrics)


def _linked_in(one: Comparison) -> Linked:
    from npucmp.report.producers import producers_read

    return producers_read(one)


def _runs_left_out(report: Report) -> Iterator[str]:
    for side, run in report.broken:
        yield f"unreadable {side}: {problem_of(run)}"
    for side, run in report.unpaired:
        yield f"only in {side}: {' '.join(where_words(run))} ({run.path})"
