"""The tasks of a comparison: measure and judge one step and rank, search all ranks of a step, read a result.

A task is a plain function, so this process, another process or a worker of a cluster can run it. Tasks exchange results
through the store (scratch.py).
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import repeat
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Union,
    cast,
)

from npucmp.align import align_or_part, pairs
from npucmp.align.pairing_coverage import PairingCoverage, extent
from npucmp.align.updates import is_update
from npucmp.dump.formats import open_head
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.node_outputs import in_node_names
from npucmp.errors import UsageError
from npucmp.judge.products import are_reduced_alike, votes_of
from npucmp.localise.coverage import coverage_of
from npucmp.localise.effective_precision import holds_steps, with_types_of, with_value_types
from npucmp.localise.explained_rows import ExplainedRows
from npucmp.localise.notes import notes_of, with_parameters
from npucmp.localise.parameter_drift import Updates
from npucmp.localise.root_cause import SearchResult
from npucmp.localise.root_order import side_by_side
from npucmp.localise.rule_context import QUANTISED
from npucmp.localise.rules import Rulebook
from npucmp.localise.thresholds import make_findings
from npucmp.measure.constant_rows import with_constant_rows
from npucmp.measure.executor import default_jobs
from npucmp.measure.hidden_masks import with_hidden_masks
from npucmp.measure.pairs import Closeness, holds_other_ids, measure_pairs, payload_bytes, values_of
from npucmp.measure.recorded_stats import measured_by_record
from npucmp.model import (
    Cause,
    Comparison,
    Finding,
    Measurement,
    Pair,
    Root,
    Run,
    RunHeader,
    StepRankNumbers,
    VerdictTally,
)
from npucmp.model.comparison import Coverage, StoredRoots
from npucmp.model.network import StructuredOperators, by_network, pairs_by_network
from npucmp.model.table import Columns, Table, bare_pairs, have_both_sides, network_fact, orders_of, rows_of_rule
from npucmp.workflows.option_fields import Progress, StrPath
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import PairedRuns, ProgressMeter, odd_pairs
from npucmp.workflows.unused_options import unfit_globs, unfit_names, unfit_noise, unfit_tolerances

if TYPE_CHECKING:
    from npucmp.measure.checkpoint import Checkpoint
    from npucmp.model.routing import RoutedLayer
    from npucmp.recompute.estimator import RecomputedOperators
    from npucmp.recompute.rank_operators import RankOperators

Names = Mapping[int, Mapping[str, str]]  # number of a step and rank → kind of result → the name of its file


class Store(Protocol):
    """The results of steps and ranks, by their number and by the kind of result."""

    made: dict[int, dict[str, str]]

    def about(self, numbers: Iterable[int]) -> Store:
        """Return the store that a task for these steps and ranks needs."""

    def put(self, number: int, kind: str, result: object) -> None:
        """Store a result, completely or not at all; it replaces an earlier one."""

    def get(self, number: int, kind: str) -> Any:
        """Return the latest result. Raises KeyError if there is none."""

    def learn(self, made: Names) -> None:
        """Take over the results that a task put into its own copy of the store."""


class Memory:
    """Results in this process."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, str], object] = {}
        self.made: dict[int, dict[str, str]] = {}

    def about(self, numbers: Iterable[int]) -> Memory:
        return self

    def put(self, number: int, kind: str, result: object) -> None:
        self._results[number, kind] = result

    def get(self, number: int, kind: str) -> Any:
        return self._results[number, kind]

    def learn(self, made: Names) -> None:
        """Do nothing: tasks put their results here."""


class StepRank(NamedTuple):
    """One step and rank of both dumps: two open runs, or the heads of runs that a task opens."""

    number: int
    target: Union[RunHeader, Run]
    golden: Union[RunHeader, Run]

    @property
    def step(self) -> int:
        return self.target.step or self.golden.step or 0

    @property
    def rank(self) -> Optional[int]:
        return self.golden.rank if self.target.rank is None else self.target.rank

    @property
    def where(self) -> StepRankNumbers:
        """Step and rank by the numbers of the dumps."""
        return StepRankNumbers(self.golden.step if self.target.step is None else self.target.step, self.rank)


@dataclass(frozen=True)
class ComparisonWork:
    """The data that all tasks of a comparison share. `began` is in seconds since 1970; `alone`: there is one step and
    rank; `in_memory`: runs are open, and results stay in this process; `reduced`: products keep 11 bits in
    all steps and ranks; `alike`: some do so on both sides. Both are known after the measurement. `ranks`: for each
    target that was put together, the runs of its ranks; `paired`: the pairs of the first steps and ranks, if they are
    known."""

    target: StrPath
    golden: StrPath
    options: Options
    store: Store
    began: float
    alone: bool = False
    in_memory: bool = False
    reduced: bool = False
    alike: bool = False
    ranks: Sequence[Mapping[int, Run]] = ()
    paired: Sequence[PairedRuns] = ()

    def rules(self) -> Rulebook:
        return Rulebook(self.options.skip_rules, self.alike)


class RankMeasurement(NamedTuple):
    """The results of the measurement of one step and rank, without the table.

    tensors  rows of the table; `wanted`: tensors that the user selected
    size     bytes that were read, including the records of the dump
    products votes of products on their precision
    alike    whether a product keeps 11 bits on both sides
    odd      notes on the two runs; `unfit`: notes on options that match nothing in them
    mismatch  the reason if the two runs cannot be compared
    broken   runs that cannot be read, by side; `died`: reading them ended the process
    checkpoint_notes   notes on the checkpoint
    """

    tensors: int = 0
    wanted: int = 0
    bytes_read: int = 0
    size: int = 0
    products: Mapping[str, float] = {}
    alike: bool = False
    dtypes: frozenset[str] = frozenset()
    odd: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()
    mismatch: Optional[UsageError] = None
    broken: tuple[tuple[str, Run], ...] = ()
    checkpoint_notes: tuple[str, ...] = ()
    died: bool = False


def measure(work: ComparisonWork, one: StepRank, progress: Optional[Progress] = None) -> RankMeasurement:
    """Open two runs, align, measure and judge them, and put the comparison without its roots into the store."""
    started = time.monotonic()
    options = work.options
    context = options.context(work.target, work.golden)
    target, golden = (side if isinstance(side, Run) else open_head(side, context) for side in one[1:])
    broken = tuple((side, run) for side, run in (("target", target), ("golden", golden)) if run.problem)
    if broken:
        return RankMeasurement(broken=broken)
    network = None
    if not options.resume and all(isinstance(run.operators, StructuredOperators) for run in (target, golden)):
        from npucmp.workflows.recorded_frames import RecordedNetwork, recorded_network

        rules, comparison = Rulebook(options.skip_rules), (work.target, work.golden, work.began)
        network = recorded_network(
            target,
            golden,
            comparison,
            lambda left, right: RecordedNetwork(
                paired_runs(options, left, right, context), options.decides(), rules, context
            ),
        )
    if network is not None:
        paired = network.paired
    elif one.number < len(work.paired):
        paired = work.paired[one.number]
    else:
        paired = paired_runs(options, target, golden, context)
    if work.alone and paired.refused:
        raise paired.refused
    todo, notes, alignment = paired.todo, paired.notes, paired.alignment
    part, sizes = None if work.alone else str(one.number), [*map(payload_bytes, todo)] if network is None else []
    if options.reuse:
        part = f"step{'' if target.step is None else target.step}-rank{'' if target.rank is None else target.rank}"
    found: list[Measurement] = []
    remarks: tuple[str, ...] = ()
    if network is None and todo:
        found, remarks = _measure_pairs(todo, sizes, options, context, part, work.began, progress)
        if len(found) < len(todo) and not work.in_memory:
            raise KeyboardInterrupt
    routing: tuple[RoutedLayer, ...] = ()
    if any(map(holds_other_ids, found)):
        from npucmp.judge.routing import routed_layers
        from npucmp.measure.chosen_sets import with_sets_of_ids

        routing = tuple(routed_layers(found, context))
        found, more = with_sets_of_ids(found, Closeness(options.rtol, options.atol), context)
        notes = (*notes, *more)
    rows: Sequence[Measurement] = found
    others: Sequence[Pair] = paired.left_out
    if not (target.ordered or golden.ordered):
        from npucmp.flow.execution_order import in_content_order

        rows, others, more = in_content_order(paired.target, paired.golden, found, paired.left_out)
        notes = (*notes, *more)
    alone = len(alignment.only_target), len(alignment.only_golden)
    took = None if work.in_memory else time.monotonic() - started
    runs = (paired.target, paired.golden) if network is None else (target, golden)
    known = Comparison(
        *runs, (), (), alignment.matched, alone, notes, left_out=tuple(others), seconds=took, routing=routing
    )
    if alignment.contents is not None:
        contents = alignment.contents
        lines = (f"explain: {line}" for name in options.explain for line in contents.candidates.explain(name))
        known = replace(known, aligned_by_content=contents.line, notes=(*known.notes, *lines))
    if network is None:
        _put_judged(work, one, known, rows)
    else:
        _put(work, one, network.comparison(target, golden, known))
    records = 0 if work.in_memory else sum(os.path.getsize(head.path) for head in one[1:])
    return RankMeasurement(
        tensors=len(found) if network is None else len(todo),
        wanted=len(todo),
        bytes_read=sum(each.bytes_read for each in found),
        size=sum(sizes) + records,
        products=votes_of(found),
        alike=are_reduced_alike(found, context),
        dtypes=(network or paired).dtypes,
        odd=(*odd_pairs([runs]), *([str(paired.unlike)] if paired.unlike else [])),
        unfit=paired.unfit,
        mismatch=paired.unlike or paired.refused,
        checkpoint_notes=remarks,
    )


def paired_runs(options: Options, target: Run, golden: Run, context: ReadContext) -> PairedRuns:
    """Return the pairs of two runs."""
    tolerances, names = options.decides(), options.names()
    target, golden = in_node_names(target, golden)
    refused = None
    try:
        unfit = unfit_globs(options, [target, golden])
    except UsageError as error:
        unfit, refused = [], error
    alignment, unlike = align_or_part(target, golden, names, context, options.align)
    every: Sequence[Pair] = [*pairs(target, golden, alignment)]
    notes: tuple[str, ...] = ()
    if any(pair.target and pair.golden and pair.target.shape != pair.golden.shape for pair in every):
        from npucmp.relations.frameworks.turned_axes import in_golden_axes

        every, notes = in_golden_axes(every, context, bool(target.ordered and golden.ordered))
    if any("table" in pair.slot or "slot_" in pair.slot or "cache" in pair.slot for pair in every):
        from npucmp.relations.ranks.cache_blocks import by_cache_blocks

        every = by_cache_blocks(every, context)
    todo, left_out = options.split([*every])
    unfit += unfit_names(names, [target], [golden])
    unfit += [*unfit_tolerances(tolerances, todo), *unfit_noise(tolerances, every)]
    return PairedRuns(target, golden, alignment, todo, left_out, notes, tuple(unfit), refused or unlike, unlike)


def _measure_pairs(
    todo: list[Pair],
    sizes: Sequence[int],
    options: Options,
    context: ReadContext,
    part: Optional[str] = None,
    since: float = 0.0,
    progress: Optional[Progress] = None,
) -> tuple[list[Measurement], tuple[str, ...]]:
    """Return the measurement of each pair, and notes on the checkpoint; if Ctrl-C interrupts, the first measurements.
    `sizes` are the bytes to read for each pair.

    A `part` of a comparison that began at `since` (seconds since 1970) has its own checkpoint.
    """
    total = sum(sizes)
    closeness = Closeness(options.rtol, options.atol)
    meter, jobs = ProgressMeter(progress, total), (options.jobs or default_jobs()) if total else 1
    checkpoint: Optional[Checkpoint] = None
    found: list[Measurement] = []
    with ExitStack() as stack:
        if options.journal is not None and (total or options.resume):  # statistics were read with the dump
            from npucmp.measure import checkpoint as checkpoints
            from npucmp.measure.kernel import library

            settings = closeness, options.limits, library.name()
            checkpoint = stack.enter_context(
                checkpoints.Checkpoint(options.journal, todo, settings, options.resume, part)
            )
        try:
            known = checkpoint.known if checkpoint else []
            for (measurement, is_new), size in zip(_each_measured(todo, known, closeness, jobs, context), sizes):
                found.append(measurement)
                if checkpoint and is_new:
                    checkpoint.add(measurement)
                if total:
                    meter.add(size)
            if any(one.moments is not None for one in found):
                found = with_constant_rows(with_hidden_masks(found, closeness, context), context)
            if checkpoint and part is not None and (options.reuse or time.time() - since >= checkpoints.EVERY):
                checkpoint.flush()  # this part is done, but the comparison may take hours
        except KeyboardInterrupt:
            if checkpoint:
                checkpoint.flush()
    return found, (checkpoint.note,) if checkpoint and checkpoint.note else ()


def _each_measured(
    requested: list[Pair], known: list[Measurement], closeness: Closeness, jobs: int, context: ReadContext
) -> Iterator[tuple[Measurement, bool]]:
    """Yield the measurements of pairs, and whether each is new; the first ones are `known`."""
    yield from ((measurement, False) for measurement in known)
    read = {values_of(measurement.pair) for measurement in known} - {None}
    left = requested[len(known) :]
    recorded = measured_by_record(left)
    others = measure_pairs([pair for pair, one in zip(left, recorded) if one is None], closeness, jobs, context)
    for one in recorded:
        measurement = next(others) if one is None else one
        if read and values_of(measurement.pair) in read:
            measurement = measurement._replace(bytes_read=0)  # as in an uninterrupted run
        yield measurement, True


def judge(work: ComparisonWork, one: StepRank) -> None:
    """Judge a step and rank again, for runs whose products keep 11 bits."""
    known: Comparison = work.store.get(one.number, "judged")
    _put_judged(work, one, known, [each.measurement for each in known.findings])


def _put_judged(work: ComparisonWork, one: StepRank, known: Comparison, found: Sequence[Measurement]) -> None:
    """Judge each tensor by itself, and put the comparison into the store."""
    by_values = with_value_types(found, work.options.context(work.target, work.golden))
    found = by_values.measurements
    findings = make_findings(found, work.options.decides(), work.rules(), work.reduced, by_values.quantised)
    _put(work, one, replace(known, findings=findings), by_values.notes)


def _put(work: ComparisonWork, one: StepRank, judged: Comparison, notes: Sequence[str] = ()) -> None:
    """Put a judged comparison into the store, with notes on operators that one side lacks."""
    findings, reach = judged.findings, PairingCoverage()
    if not network_fact(judged.columns, _are_all_paired):
        ordered = judged.target.ordered and judged.golden.ordered
        reach = extent(pairs_by_network(findings), ordered, again=_ran_again(findings))
    said = (*notes, *reach.words)
    more = (note for note in judged.notes if note not in said)
    work.store.put(one.number, "judged", replace(judged, notes=(*said, *more)))


def _are_all_paired(columns: Columns) -> bool:
    operators = all(one.target is not None and one.golden is not None for one in columns.operators)
    return operators and bool(network_fact(columns, have_both_sides).all())


def _ran_again(findings: Sequence[Finding]) -> frozenset[int]:
    """Return the places of operators that one side ran once more; none if each operator has a partner."""
    if all(pair.target_op is not None and pair.golden_op is not None for pair in pairs_by_network(findings)):
        return frozenset()
    from npucmp.flow.execution_order import ran_again

    return ran_again(findings)


class EarlierStep(NamedTuple):
    """The number of the same rank in an earlier step, None if there is none, and whether an error originates in an
    earlier step."""

    number: Optional[int]
    faulty: bool


class RankRoots(NamedTuple):
    """The results of the search in one step and rank: counts, the clock and cause of each root. `recomputed` is the
    number of operators of the target that each engine recomputed, and of all operators; None without recomputation."""

    tally: VerdictTally
    roots: list[tuple[int, Cause]]
    recomputed: Optional[tuple[Mapping[str, int], int]] = None


class _Roots(NamedTuple):
    """The result of a search in the store: explained and other changed rows, the coverage, notes, and the roots, each
    with its clock and the row of its pair, which it lacks."""

    explained: ExplainedRows
    changes: dict[int, tuple[Any, ...]]
    coverage: Coverage
    notes: tuple[str, ...]
    roots: list[tuple[int, int, Root]]


def search(
    work: ComparisonWork, _: StepRank, places: Sequence[StepRank], before: Sequence[EarlierStep]
) -> list[RankRoots]:
    """Search all ranks of a step for operators in which an error originates."""
    known: list[Comparison] = [work.store.get(one.number, "judged") for one in places]
    updates = [_updates(work, one) for one in before]
    estimators = [_estimator(work, *both, several=len(places) > 1) for both in zip(places, known)]
    found = side_by_side(known, updates, work.options.decides().by_round_off, work.rules(), estimators)
    return [_put_roots(work, *of_rank) for of_rank in zip(places, known, found, estimators, before)]


def _estimator(
    work: ComparisonWork, one: StepRank, known: Comparison, several: bool
) -> Union[RecomputedOperators, RankOperators, None]:
    """Return the object that recomputes operators of a step and rank for the search; None if the user excluded
    recomputation, or if no value was compared."""
    if work.options.recompute == "none" or not cast(Table, known.findings).has_values:
        return None
    if rows_of_rule(known.findings, QUANTISED) and holds_steps(known.findings):
        return None
    from npucmp.recompute.estimator import RecomputedOperators

    context = work.options.context(work.target, work.golden)
    if one.number < len(work.ranks) and work.ranks[one.number]:
        from npucmp.recompute.rank_operators import RankOperators

        assert isinstance(one.golden, Run)
        return RankOperators(work.ranks[one.number], one.golden, context, work.reduced or work.alike)

    def runs() -> tuple[Run, Run]:
        known: Comparison = work.store.get(one.number, "judged")
        return with_types_of(cast(Table, known.findings).columns, (known.target, known.golden))

    if work.options.recompute == "all" and sys.platform == "linux":  # the child processes need fork
        from npucmp.recompute.every_operator import JOBS, EveryOperator

        jobs = work.options.jobs or min(default_jobs(), JOBS)
        return EveryOperator(runs, context, work.reduced or work.alike, jobs)
    return RecomputedOperators(runs, context, work.reduced or work.alike, several)


def _updates(work: ComparisonWork, before: EarlierStep) -> Updates:
    """Return the facts on parameters of the step before."""
    findings = () if before.number is None else work.store.get(before.number, "judged").findings
    return Updates(findings, before.faulty)


def _put_roots(
    work: ComparisonWork,
    one: StepRank,
    known: Comparison,
    found: SearchResult,
    estimator: Union[RecomputedOperators, RankOperators, None],
    before: EarlierStep,
) -> RankRoots:
    findings, roots, explained = found
    context = work.options.context(work.target, work.golden)
    if before.number is not None and any(root.cause is Cause.GAP for _, root in roots):
        from npucmp.localise.update_roots import with_updates

        earlier: Comparison = work.store.get(before.number, "judged")
        roots = with_updates(findings, roots, [*earlier.findings], earlier.step, context)
    if any(root.cause is not Cause.PROPAGATED for _, root in roots) and cast(Table, known.findings).has_values:
        from npucmp.localise.root_values import with_values

        roots = with_values(findings, roots, context, known.target.ordered and known.golden.ordered)
    rows = _rows(findings, (root.pair for _, root in roots))
    bare = [(clock, row, replace(root, pair=cast(Pair, None))) for row, (clock, root) in zip(rows, roots)]
    coverage = coverage_of(findings, known.left_out, context)
    changes = {at: tuple(one[1:-2]) for at, one in findings.changes.items() if one[1:-2] != findings.rows[at][1:-2]}
    every = tuple(root for _, root in roots)
    blamed = [findings.network.pairs[row].order for row in explained.propagated[:, 1].tolist()]
    notes = (
        *notes_of(findings, every, work.reduced, work.alike, blamed),
        *(estimator.notes if estimator is not None else ()),
    )
    work.store.put(one.number, "roots", _Roots(explained, changes, coverage, notes, bare))
    table = _with_verdicts(known, explained, changes)
    counted = replace(known, findings=table, roots=every, coverage=coverage)
    share = None if estimator is None else (estimator.by_engine, len(known.target.operators))
    tally, passed = (
        VerdictTally.of(counted),
        [(clock, Cause.PROPAGATED) for clock in explained.propagated[:, 0].tolist()],
    )
    tally.causes.update(cause for _, cause in passed)
    return RankRoots(tally, [*((clock, root.cause) for clock, root in roots), *passed], share)


def _with_verdicts(known: Comparison, explained: ExplainedRows, changes: Mapping[int, Sequence[Any]]) -> Table:
    """Return the table of a comparison after a search."""
    table = cast(Table, known.findings)
    if len(explained.rows):
        table = Table(columns=explained.in_columns(table.columns))
    return table.with_verdicts(changes)


def _rows(findings: Sequence[Finding], selected: Iterable[Pair]) -> list[int]:
    """Return the row of each pair."""
    rows = rows_by_place(findings)
    return [rows.get((pair.order, pair.slot), rows[pair.order, None]) for pair in selected]


@by_network
def rows_by_place(pairs: Sequence[Pair]) -> dict[tuple[int, Optional[str]], int]:
    """Return the first row of each operator and slot, by merged order and slot, and of each operator with slot None."""
    found: dict[tuple[int, Optional[str]], int] = {}
    for at, pair in enumerate(pairs):
        found.setdefault((pair.order, None), at)
        found.setdefault((pair.order, pair.slot), at)
    return found


@dataclass(frozen=True)
class RankResult:
    """A step and rank after the search: its counts, and the places of its roots."""

    one: StepRank
    tally: VerdictTally
    places: tuple[int, ...]

    def read(self, work: ComparisonWork, is_reported: bool = False) -> Comparison:
        """Return the comparison from the store, or as it was read before in this process. `is_reported`: pairs of its
        roots need no statistics."""
        if work.in_memory:
            return self._read(work)
        key = work.began, work.target, work.golden, self.one.number, self.places, is_reported
        found = _read.get(key)
        if found is None:
            found = _read[key] = self._read(work, is_reported)
            while sum(len(one.findings) for one in _read.values()) > KEPT_ROWS and len(_read) > 1:
                _read.popitem(last=False)
        return found

    def _read(self, work: ComparisonWork, is_reported: bool = False) -> Comparison:
        known: Comparison = work.store.get(self.one.number, "judged")
        found: _Roots = work.store.get(self.one.number, "roots")
        judged, table = cast(Table, known.findings), _with_verdicts(known, found.explained, found.changes)
        rows = [*(row for _, row, *_ in found.roots), *found.explained.propagated[:, 1].tolist()]

        def made() -> Sequence[Root]:
            bare = network_fact(table.columns, bare_pairs)
            pairs = [*map(bare.__getitem__, rows)] if is_reported else table.pairs(rows)
            roots = [
                replace(root, place=place, pair=pair)
                for place, pair, (_, _, root) in zip(self.places, pairs, found.roots)
            ]
            count = len(roots)
            roots += found.explained.roots(self.places[count:], pairs[count:], judged.columns, bare)
            return _with_parameters(table, sorted(roots, key=attrgetter("place")))

        orders = network_fact(table.columns, orders_of)[rows].tolist()
        causes = [*(root.cause for _, _, root in found.roots), *repeat(Cause.PROPAGATED, len(rows))]
        by_place = [(order, cause) for _, order, cause in sorted(zip(self.places, orders, causes))]
        roots = StoredRoots(len(rows), dict(by_place), made)
        notes = (*known.notes, *found.notes)
        comparison = replace(known, findings=table, roots=roots, notes=notes, coverage=found.coverage)
        counted = Counter(cause for _, cause in by_place)
        vars(comparison)["tally"] = self.tally._replace(causes=counted)  # the rest was counted after the search
        return comparison


KEPT_ROWS = 100_000  # of finished comparisons: work: parts of a report are made one after the other; 250 bytes each
_read: OrderedDict[tuple[object, ...], Comparison] = OrderedDict()  # the latest at the end


def _with_parameters(findings: Sequence[Finding], roots: Sequence[Root]) -> tuple[Root, ...]:
    """Return the roots; for roots that are optimizer calls, the evidence begins with the parameter."""
    if not any(is_update(root.pair.operator) for root in roots):
        return tuple(roots)

    return with_parameters(findings, roots)


PartTask = Callable[[int, Comparison], Any]


def part(work: ComparisonWork, one: RankResult, number: int, function: PartTask) -> Any:
    """Return the result of a function for a comparison and its number."""
    return function(number, one.read(work, is_reported=True))
