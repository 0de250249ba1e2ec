"""The summary of one step and rank: small, made by the process that has the comparison, and added up by
report/compare.py. So a report needs no more than one comparison in memory at a time, and workers may keep the
comparisons."""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.measure.metrics import METRICS
from npucmp.model import DIFFERS, Cause, Comparison, Root, Run, StepRankNumbers, Verdict, VerdictTally, brief
from npucmp.model.table import Columns as TableColumns
from npucmp.model.table import (
    Flags,
    has_bound,
    has_error,
    have_elements,
    network_fact,
    pair_at,
    verdict_rows,
    with_field,
    with_verdict,
)
from npucmp.report import tables
from npucmp.report.answer import DumpSummary, Line, Listing, Row, Section, Suspect, Suspects
from npucmp.report.coverage import AlignedShare, UndecidedTensors, undecided_tensors
from npucmp.report.phrases import (
    count_of,
    describe,
    flow_of,
    known_numbers,
    line_of,
    partner_of,
    path_of,
    size_of_run,
    where_words,
)

if TYPE_CHECKING:
    from npucmp.localise.rank_digest import RankDigest
    from npucmp.model.routing import RoutedLayer
    from npucmp.report.rank_cell import Cell

LEFT_OUT = {  # verdicts that leave a tensor undecided
    Verdict.UNREADABLE: "unreadable",
    Verdict.UNKNOWN: "undecided",
    Verdict.MISSING: "without a partner",
    Verdict.DTYPE: "of types that cannot be compared",
}
SIDES = ("target", "golden")
_OTHER_METRICS = {metric.name for metric in METRICS} - {"rel_l2"}
MOST = 50  # suspects and lines of a kind in a part if there are several parts; the tables have all


class SummaryRequest(NamedTuple):
    """The settings for making parts.

    paths    the paths of both sides
    several  there are several parts
    least    the least share of golden elements that the user accepts
    paged    the part is for the page of one of several steps and ranks, which shows few suspects
    """

    paths: tuple[str, str]
    several: bool
    least: float = 1.0
    paged: bool = False

    @property
    def most(self) -> int:
        """The limit of suspects, and of lines of a kind, in a part."""
        return MOST if self.several or self.paged else sys.maxsize


class PropagatedSummary(NamedTuple):
    """Operators that propagate an error: their number, the largest error, its operator, and `where` among several steps
    and ranks."""

    operators: int = 0
    largest: float = 0.0
    op: str = ""
    where: str = ""

    @classmethod
    def of(cls, roots: Sequence[Root], where: str = "") -> PropagatedSummary:
        """Count the operators of `roots` that propagate an error."""
        propagated = [root for root in roots if root.cause is Cause.PROPAGATED]
        measured = (root for root in propagated if root.metric not in _OTHER_METRICS)  # a count is no rel_l2
        worst = max(measured, key=lambda root: root.value or 0.0, default=None)
        return (
            cls(len(propagated), worst.value, worst.pair.operator.name, where)
            if worst and worst.value
            else cls(len(propagated))
        )

    @classmethod
    def sum(cls, summaries: Sequence[PropagatedSummary]) -> PropagatedSummary:
        """Return the sum."""
        worst = max(summaries, key=lambda one: one.largest, default=cls())
        return worst._replace(operators=sum(one.operators for one in summaries))

    def words(self) -> str:
        """Describe them in one line."""
        where = f" ({self.where})" if self.where else ""
        size = f", largest rel_l2 {brief(self.largest)} at {self.op}{where}" if self.largest else ""
        return f"{count_of(self.operators, 'operator')} downstream{size}"


class Agreement(NamedTuple):
    """Tensors that agree: their number and how they agree; agreements of several parts are added. `explained`: the
    largest error exceeds its limit, and the errors of the operator's inputs explain it."""

    tensors: int = 0
    largest: float = 0.0
    explained: bool = False
    trusted: bool = False
    in_bits: bool = True
    masks: bool = False

    @classmethod
    def of(cls, columns: TableColumns) -> Agreement:
        """Return the agreement of a comparison."""
        rows, agrees = columns.rows, with_verdict(columns, (Verdict.MATCH,))
        worst, error = _worst(columns, np.arange(len(rows)))
        moments = columns.moments[rows["moments"][agrees & (rows["moments"] >= 0)]]
        has_other_type = agrees & (rows["moments"] >= 0) & network_fact(columns, _have_other_types)
        masked = (columns.moments["masked"] > 0) & (columns.moments["equal"] < columns.moments["elements"])
        return cls(
            int(np.count_nonzero(agrees & network_fact(columns, have_elements))),
            error,
            worst >= 0 and bool(rows["explained_by"][worst]),
            bool(np.any(agrees & has_bound(columns))),
            bool(np.all(moments["equal"] == moments["elements"])) and not np.any(has_other_type),
            bool(np.any(masked[rows["moments"][rows["moments"] >= 0]])),
        )

    @classmethod
    def sum(cls, agreements: Sequence[Agreement]) -> Agreement:
        """Return the sum."""
        worst = max(agreements, key=lambda one: one.largest, default=cls())
        return cls(
            sum(one.tensors for one in agreements),
            worst.largest,
            worst.explained,
            any(one.trusted for one in agreements),
            all(one.in_bits for one in agreements),
            any(one.masks for one in agreements),
        )

    def line(self) -> Line:
        """Describe the agreement in one line."""
        how = "all compared tensors "
        how += "are bit-identical" if self.in_bits else "have the same values"
        how += " except for masks" if self.masks else ""
        if self.largest or self.trusted:
            beyond = ", above its limit but explained by upstream errors" if self.explained else ""
            how = "by statistics only" if self.trusted else f"largest rel_l2 {brief(self.largest)}{beyond}"
        return Line("No operator diverged", "good", f": {count_of(self.tensors, 'tensor')} agree, {how}")


class SuspectsTitle(NamedTuple):
    """The facts about the first operator of a section that its title states."""

    cause: Cause
    is_ordered: bool
    is_alignment_uncertain: bool
    unseen: UndecidedTensors

    @classmethod
    def of(cls, one: Comparison) -> Optional[SuspectsTitle]:
        """Return the facts of a comparison; None without a root."""
        if not one.roots:
            return None
        first = min(one.roots, key=lambda root: (root.cause is Cause.PROPAGATED, root.place))
        unseen = undecided_tensors(one, first.pair.order)
        return cls(first.cause, one.target.ordered or one.golden.ordered, first.is_alignment_uncertain, unseen)

    def words(self, earlier: UndecidedTensors) -> str:
        """Return the title. It says "first" only if everything upstream was compared, in this step and in `earlier`
        ones, and the order of execution is known."""
        unseen = self.unseen.and_earlier(earlier)
        if not self.is_ordered:
            return "Diverging operators (the dumps do not record the order of execution, so the first is unknown)"
        if unseen and self.cause is not Cause.SUSPECT and not self.is_alignment_uncertain:
            return f"First operator that diverges among those compared ({unseen.words()})"
        if self.is_alignment_uncertain:
            return "First diverging operator found (the alignment is uncertain; not proven)"
        if self.cause is Cause.SUSPECT:
            return "First operator above the upstream noise (statistics only; not proven)"
        if self.cause is Cause.UNKNOWN:
            return "Earliest diverging operator found (some of its inputs are unknown)"
        return "First diverging operator"


class NoiseExcuses(NamedTuple):
    """Tensors that --noise excused: their number, and the worst of them."""

    tensors: int = 0
    error: float = 0.0
    where: str = ""


@dataclass(frozen=True)
class RankSummary:
    """The summary of one step and rank.

    number       its index among all; `word` and `exit_status` are those of its comparison alone
    tally        counts of verdicts and causes; `coverage`: the share that was compared
    section      its paragraph of the report: the first suspects and lines, MOST of each if there are several parts
    runs         values of both runs for summary.json: `Ran` of target and golden
    run_notes    notes on its runs; `notes` are its own
    unreadable   the first lines, all are counted in the tally; `examples`: a tensor of each verdict that leaves tensors
                 undecided
    roots        the first rows of roots.csv
    title        facts for the title of its section, None without suspects; `undecided`: all its undecided tensors
    agreement    of its tensors; `cell`: its cell in the matrix, `joint`: its data for the comparison with other ranks
    routing      the layers whose experts were compared
    """

    number: int
    step: Optional[int]
    rank: Optional[int]
    word: str
    exit_status: int
    tally: VerdictTally
    section: Section
    coverage: AlignedShare
    runs: tuple[RunInfo, ...] = ()
    run_notes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    passed: PropagatedSummary = PropagatedSummary()
    excused: NoiseExcuses = NoiseExcuses()
    unreadable: tuple[str, ...] = ()
    examples: Mapping[Verdict, str] = field(default_factory=dict)
    roots: tuple[Row, ...] = ()
    title: Optional[SuspectsTitle] = None
    undecided: UndecidedTensors = UndecidedTensors()
    agreement: Agreement = Agreement()
    cell: Optional[Cell] = None
    joint: Optional[RankDigest] = None
    routing: tuple[RoutedLayer, ...] = ()

    @property
    def key(self) -> str:
        """ "step-rank", as in file names; a missing number counts as 0."""
        return f"{self.step or 0}-{self.rank or 0}"

    def share_names(self, pool: dict[object, Any]) -> RankSummary:
        """Return the part with its names shared through the pool, so that equal names of several ranks are stored
        once."""
        if self.joint is None:
            return self
        return replace(self, joint=self.joint._replace(names=pool.setdefault(self.joint.names, self.joint.names)))


class RunInfo(NamedTuple):
    """The values of a run for reports."""

    path: str
    format: str
    detail: str
    step: Optional[int]
    rank: Optional[int]
    operators: int
    tensors: int
    bytes: int
    notes: tuple[str, ...]

    @classmethod
    def of(cls, run: Run) -> RunInfo:
        return cls(
            run.path, run.format, run.detail, run.step, run.rank, len(run.operators), *size_of_run(run), run.notes
        )


def part_of(request: SummaryRequest, strict: bool, number: int, one: Comparison) -> RankSummary:
    """Return the part of a comparison."""
    tally = one.tally
    differs = tally.differs or (strict and bool(tally.verdicts[Verdict.MISSING]))
    status = 1 if differs else 0 if tally.is_decided(request.least) else 2
    unreadable = [*_unreadable(one.columns)]
    coverage, word = AlignedShare.of(one), word_of(status, tally)
    agreement = Agreement.of(one.columns)
    cell, joint = _among_others(one, word, coverage) if request.several else (None, None)
    return RankSummary(
        number=number,
        step=one.step,
        rank=one.rank,
        word=word,
        exit_status=status,
        tally=tally,
        section=_section(request, one, coverage, agreement),
        coverage=coverage,
        runs=(RunInfo.of(one.target), RunInfo.of(one.golden)),
        run_notes=(*one.target.notes, *one.golden.notes),
        notes=one.notes,
        passed=PropagatedSummary.of(one.roots, " ".join(where_words(one.target)) if request.several else ""),
        excused=_noise_excused(one.columns),
        unreadable=tuple(unreadable[:MOST] if request.several else unreadable),
        examples=dict(_examples(one.columns)),
        roots=() if request.paged else tuple(tables.root_rows([(one.roots, one.step, one.rank)], tables.SUMMARISED)),
        title=SuspectsTitle.of(one),
        undecided=undecided_tensors(one) if request.several else UndecidedTensors(),
        agreement=agreement,
        cell=cell,
        joint=joint,
        routing=one.routing,
    )


def _among_others(one: Comparison, word: str, coverage: AlignedShare) -> tuple[Cell, RankDigest]:
    """Return the cell of a comparison in the matrix, and its data for the comparison with other ranks."""
    from npucmp.localise.rank_digest import joint_of
    from npucmp.report.matrix import cell_of

    return cell_of(one, word, coverage), joint_of(one)


def keys_of(parts: Sequence[RankSummary]) -> list[str]:
    """Return "step-rank" of each part, as in file names; a missing number counts as 0. If several parts have the same
    key, the number of the part is appended."""
    keys = [f"{one.step or 0}-{one.rank or 0}" for one in parts]
    several = Counter(keys)
    return [key if several[key] == 1 else f"{key}-{one.number}" for key, one in zip(keys, parts)]


def lost_part(number: int, where: StepRankNumbers, because: str) -> RankSummary:
    """Return the part of a comparison that ends its worker process."""
    tally = VerdictTally(Counter({Verdict.UNREADABLE: 1}), Counter())
    from npucmp.report.rank_cell import Cell

    cell = Cell(*where, "", "", "UNREADABLE", because=because)
    lines = [Line("No result", "UNKNOWN", f": {because}")]
    section = Section(where=cell.where, sides=(), lines=lines)
    words = f"{cell.where}: {because}"
    known = number, *where, "UNDECIDED", 2, tally, section, AlignedShare({}, (0, 0), 0, 0, 0)
    return RankSummary(*known, unreadable=(words,), examples={Verdict.UNREADABLE: words}, cell=cell)


def word_of(status: int, tally: VerdictTally) -> str:
    """Return the verdict in one word."""
    if status == 1:
        return "SUSPECTED" if tally.is_suspected else "DIVERGED"
    return {0: "AGREES", 130: "PARTIAL"}.get(status, "UNDECIDED")


def _section(request: SummaryRequest, one: Comparison, coverage: AlignedShare, agreement: Agreement) -> Section:
    where = where_words(one.target)
    among = " · ".join(where) if request.several else ""
    kinds, most = _by_kind(one.roots), request.most
    if len(kinds[0]) > 1:
        from npucmp.report.same_cause import with_members

        kinds = with_members(kinds[0]), kinds[1]
    runs = one.target, one.golden
    section = Section(
        where=" ".join(where),
        sides=[DumpSummary(name, path, describe(run)) for name, path, run in zip(SIDES, request.paths, runs)],
        aligned=coverage.words(),
        suspects=Suspects(*([_suspect(root, one.target, among) for root in roots_of[:most]] for roots_of in kinds)),
        unlisted=(max(0, len(kinds[0]) - most), max(0, len(kinds[1]) - most)),
    )
    if one.roots:
        return section._replace(passed_words=PropagatedSummary.of(one.roots).words())
    differing = np.flatnonzero(with_verdict(one.columns, DIFFERS))
    if len(differing):
        listed = ["  ".join(_name_and_reason(one.columns, row)) for row in differing[:most].tolist()]
        title = f"{count_of(len(differing), 'tensor')} diverged, but their operators could not be evaluated:"
        return section._replace(listings=[Listing(title, listed, "tensors.csv", len(differing) - len(listed))])
    if agreement.tensors:
        return section._replace(agreeing=agreement.tensors, lines=[agreement.line()])
    return section._replace(lines=[Line("No tensor could be evaluated", "UNKNOWN")])


def _by_kind(roots: Sequence[Root]) -> tuple[Sequence[Root], Sequence[Root]]:
    """Sort roots by place as in Suspects: operators to look at, and operators that only propagate an error; if all
    propagate it, all are first."""
    ordered = sorted(roots, key=lambda root: root.place)
    first = [root for root in ordered if root.cause is not Cause.PROPAGATED]
    passed = [root for root in ordered if root.cause is Cause.PROPAGATED]
    return (first, passed) if first else (passed, ())


def _suspect(root: Root, run: Run, where: str) -> Suspect:
    pair = root.pair
    rank, ranks = run.rank if root.rank is None else root.rank, tables.ranks_of(root)
    at = known_numbers(
        step=run.step, rank=rank, ranks=ranks, relation=root.relation, request=root.request, position=root.position
    )
    more = {
        "golden": partner_of(pair),
        "where": where,
        "line": line_of(pair),
        "path": path_of(pair),
        "at": at,
        "flow": flow_of(root),
    }
    return Suspect.of(root, pair.operator, **more)


def _worst(columns: TableColumns, rows: npt.NDArray[np.int64]) -> tuple[int, float]:
    """Return the row of the largest error among rows, and the error; -1 and 0 without rows. An error that is unknown
    counts as 0."""
    errors = np.where(has_error(columns), columns.rows["error"], 0.0)[rows]
    if not len(errors):
        return -1, 0.0
    at = 0 if np.isnan(errors[0]) else int(np.nanargmax(errors))
    return int(rows[at]), float(errors[at])


def _have_other_types(columns: TableColumns) -> Flags:
    """Return whether the tensors of each row are of two types."""
    both = zip(columns.targets, columns.goldens)
    return np.array([len({tensor.dtype for tensor in sides if tensor}) != 1 for sides in both], bool)


def _name_and_reason(columns: TableColumns, row: int) -> tuple[str, str, str]:
    """Return the operator and the slot of a row, and the reason of its verdict."""
    pair = pair_at(columns, row)
    return pair.operator.name, pair.slot, columns.words[columns.rows["because"][row]]


def _noise_excused(columns: TableColumns) -> NoiseExcuses:
    rows = np.flatnonzero(columns.rows["metric"] == columns.words.index("noise")) if "noise" in columns.words else ()
    if not len(rows):
        return NoiseExcuses()
    worst, error = _worst(columns, np.asarray(rows))
    return NoiseExcuses(len(rows), error, " ".join(_name_and_reason(columns, worst)[:2]))


def _unreadable(columns: TableColumns) -> Iterator[str]:
    rows = np.flatnonzero(with_verdict(columns, (Verdict.UNREADABLE,))).tolist()
    whole = with_field(columns, "file") if rows else columns
    sides = {"target": whole.targets, "golden": whole.goldens}
    for row in rows:
        tensors = sides.get(columns.words[columns.rows["problem"][row]].partition(":")[0])
        tensor = tensors[row] if tensors is not None else None
        file = tensor.file if tensor is not None else ""
        name, slot, because = _name_and_reason(columns, row)
        because = because.removesuffix(f" ({os.path.basename(file)})")  # the line below has the whole path
        yield f"{f'{name} {slot}'.rstrip()}: {because}" + (f" ({file})" if file else "")


def _examples(columns: TableColumns) -> Iterator[tuple[Verdict, str]]:
    for verdict, (row, _) in verdict_rows(columns).items():
        if verdict in LEFT_OUT:
            name, slot, because = _name_and_reason(columns, row)
            yield verdict, f"{name} {slot}: {because}"


def with_titles(parts: Sequence[RankSummary]) -> list[RankSummary]:
    """Return the parts with the titles of their sections, which count the undecided tensors of earlier steps too."""
    of_step: defaultdict[int, UndecidedTensors] = defaultdict(UndecidedTensors)
    for part in parts:
        of_step[part.step or 0] = part.undecided.and_earlier(of_step[part.step or 0])
    before, seen = {}, UndecidedTensors()
    for step in sorted(of_step):
        before[step] = seen
        seen = of_step[step].and_earlier(seen)
    return [
        part if part.title is None
        else replace(part, section=part.section._replace(title=part.title.words(before[part.step or 0])))
        for part in parts
    ]  # fmt: skip
