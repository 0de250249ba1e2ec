"""Find operators whose outputs differ from float64 of their recorded inputs: load → tasks → replay → ReplayResult.

With a golden run, which is also replayed, the two replays are compared to find the wrong run, and the vendor's double
benchmark of their errors is computed. The operators of each run were compared with float64 of their own inputs, so the
errors are those of the kernels only.
"""

from __future__ import annotations

import glob
import math
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.align import align, pairs
from npucmp.align.msprobe_mapping import Names
from npucmp.dump.formats import calls_of
from npucmp.dump.limits import ReadContext
from npucmp.errors import MissingExtra, UnsupportedError, UsageError, install_line
from npucmp.measure.executor import default_jobs
from npucmp.model import (
    REPLAYED,
    Edge,
    Gap,
    Operator,
    Pair,
    Replay,
    ReplayedOutput,
    ReplayResult,
    ReplayVerdict,
    Run,
    first_of,
)
from npucmp.recompute.data_flow import EdgeTask
from npucmp.recompute.engine import OperatorEngine
from npucmp.recompute.error_budget import vendor_level
from npucmp.recompute.every_operator import JOBS
from npucmp.recompute.kernel_case import replay_kernel
from npucmp.recompute.kind_baseline import excuse_kinds, explain_kinds, mark_doubtful
from npucmp.recompute.library import LIBRARIES
from npucmp.recompute.option_fields import ReplayFields
from npucmp.recompute.repro_case import CALL
from npucmp.recompute.run import finish_edges, link_operators, with_edges
from npucmp.recompute.task import GRAPH, ReplaySettings, Task, kind_of, tasks_of
from npucmp.workflows.graphs import load_named_graphs, with_graphs
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import of_one
from npucmp.workflows.select_runs import ProgressMeter, RunSelection, keys, pair_runs
from npucmp.workflows.unused_options import unfit_globs

RATIOS = {"golden_mare_ratio": "mare", "golden_mere_ratio": "mere", "golden_rmse_ratio": "rmse"}


class GoldenOutputs(NamedTuple):
    """Outputs of the golden run by outputs of the target: (order, slot) → (order, slot, whether types are equal)."""

    golden: Run
    outputs: Mapping[tuple[int, str], tuple[int, str, bool]]

    def names(self, orders: set[int]) -> list[str]:
        """Return globs of the golden partners of these operators of the target."""
        wanted = {there for (order, _), (there, _, _) in self.outputs.items() if order in orders}
        return [glob.escape(one.name) for one in self.golden.operators if one.order in wanted]


def partners(target: Run, golden: Run, names: Names, context: ReadContext) -> GoldenOutputs:
    """Align two runs and return the golden outputs by outputs of the target; merged operators are left out."""
    own = {one.order: one.name for one in golden.operators}
    paired: Sequence[Pair] = [*pairs(target, golden, align(target, golden, names, context))]
    found = {}
    for pair in paired:
        ops, tensors = (pair.target_op, pair.golden_op), (pair.target, pair.golden)
        if None in ops or None in tensors:
            continue
        (a, b), (x, y) = ops, tensors
        assert a is not None and b is not None and x is not None and y is not None
        if x.slot.startswith("output:") and own.get(b.order) == b.name:
            found[a.order, x.slot] = b.order, y.slot, x.dtype == y.dtype
    return GoldenOutputs(golden, found)


def with_golden_rows(one: Replay, golden: Replay, known: GoldenOutputs) -> Replay:
    """Return the replay of the target with the results of the golden's rows."""
    there = {(row.order, row.slot): row for row in golden.rows}
    rows, wrong = [], defaultdict(list)
    operators = one.operators
    for row in one.rows:
        place = known.outputs.get((row.order, row.slot))
        other = there.get(place[:2]) if place is not None else None
        if place is not None and other is not None:
            row = _with(row, other, same_type=place[2])
            if other.verdict is ReplayVerdict.GUILTY:
                wrong[row.verdict is ReplayVerdict.GUILTY].append(operators[row.order].name)
        rows.append(row)
    return replace(one, rows=tuple(rows), golden=tuple(_words(wrong)), golden_run=known.golden)


def _with(row: ReplayedOutput, other: ReplayedOutput, same_type: bool) -> ReplayedOutput:
    if same_type:
        ratios = {name: _ratio(getattr(row, figure), getattr(other, figure)) for name, figure in RATIOS.items()}
        row = row._replace(**ratios)  # type: ignore[arg-type]
        level = vendor_level(row.golden_mare_ratio, row.golden_mere_ratio, row.golden_rmse_ratio)
        row = row._replace(vendor_level=level)
    words = ""
    if row.verdict is ReplayVerdict.GUILTY and other.verdict is ReplayVerdict.CLEAN:
        words = "the golden is clean here: the target is wrong"
    elif row.verdict is ReplayVerdict.GUILTY and other.verdict is ReplayVerdict.GUILTY:
        words = "the golden is guilty here too"
    elif row.verdict is ReplayVerdict.CLEAN and other.verdict is ReplayVerdict.GUILTY:
        words = "the golden is guilty here: the golden is wrong, not the target"
    return row._replace(explanation="; ".join(filter(None, (row.explanation, words))))


def _ratio(mine: Optional[float], golden: Optional[float]) -> Optional[float]:
    """Return the ratio of two errors; 1 if both are 0, None if one is unknown."""
    if mine is None or golden is None:
        return None
    return mine / golden if golden else (math.inf if mine else 1.0)


def _words(wrong: Mapping[bool, Sequence[str]]) -> Iterator[str]:
    """Yield notes on GUILTY golden operators, by whether the target's operator is GUILTY too."""
    for both, words in ((False, "guilty in the golden, not in the target"), (True, "guilty in both")):
        names = [*dict.fromkeys(wrong.get(both, ()))]
        if names:
            yield f"{len(names):,} {words}: {first_of(names)}"


NO_CALL = "no data", "the dump has no call of this operator"
NO_VALUES = "no data", "the dump has no values of this operator"


@dataclass(frozen=True)
class ReplayOptions(ReplayFields, RunSelection):
    """The options of a replay."""


@of_one(ReplayOptions)
def replay(dump: StrPath, options: ReplayOptions) -> ReplayResult:
    """Replay a dump and return a row per output.

    Raises NpucmpError if there is nothing to replay, or no engine can. Errors of single operators are in the result.
    """
    supported()
    started = time.monotonic()
    settings = ReplaySettings(scale=options.budget)
    if options.limit_memory:
        settings = settings._replace(memory=options.limit_memory)
    if options.budget_from is not None:
        clean = replay(
            options.budget_from, replace(options, golden=None, budget_from=None, budget=1.0, include=(), exclude=())
        )
        settings = settings._replace(known=ratios_of(clean))
    context = options.context(dump, *(() if options.golden is None else (options.golden,)))
    if options.against is not None:
        run, rows = replay_kernel(Path(dump), options.against, context, settings)
        return ReplayResult(
            paths=(str(dump),),
            replays=(Replay(run, tuple(rows)),),
            seconds=time.monotonic() - started,
            strict=options.strict,
        )
    if Path(dump, CALL).is_file():
        raise UsageError(f"{dump}: a case of npucmp extract; judge a function by it with --against MODULE:FUNCTION")
    opened = options.runs(dump, context)
    runs = [run for run in opened if not run.problem]
    runs = with_graphs(
        dump, runs, dump, load_named_graphs(options.graph, runs, context.confine(*options.graph)), context
    )
    remarks = unfit_globs(options, runs)
    if options.engine not in (None, *LIBRARIES):
        raise UsageError(f"no engine {options.engine!r}", [*LIBRARIES])
    engine = OperatorEngine(options.engine or "")
    missing = engine.missing()
    plans = [_ReplayPlan(run, options, context) for run in runs]
    tasks = [task for plan in plans for task in plan.tasks]
    done, partial, jobs = 0, False, options.jobs or min(default_jobs(), JOBS)
    try:
        for plan in plans:
            plan.link(context, settings, jobs)
        edges = [edge for plan in plans for edge in plan.open_edges]
        items: list[Task | EdgeTask] = [*tasks, *edges]
        places = [*(plan for plan in plans for _ in plan.tasks), *(plan for plan in plans for _ in plan.open_edges)]
        meter = ProgressMeter(options.progress, sum(one.bytes for one in items))
        for plan, item, found_one in zip(places, items, with_edges(tasks, edges, engine, context, settings, jobs)):
            done += plan.take(item, found_one)
            meter.add(item.bytes)
    except KeyboardInterrupt:
        partial = True
    found = [plan.replay() for plan in plans]
    if not partial and not any(one.rows for one in found):
        raise UsageError(f"nothing to replay: {options.nothing()}")
    undone = all(row.status != REPLAYED for one in found for row in one.rows)
    of_records = any(not task.is_of_graph for task in tasks)
    if undone and missing and of_records and not partial:
        raise MissingExtra(missing, "replaying the operators of this dump")
    left = any(row.status == "not in table" for one in found for row in one.rows)
    notes = [f"operators that need {missing} were not replayed: {install_line(missing)}"] if missing and left else []
    result = ReplayResult(
        paths=(str(dump),),
        replays=tuple(found),
        broken=tuple(("dump", run) for run in opened if run.problem),
        notes=(*remarks, *notes),
        seconds=time.monotonic() - started,
        bytes_read=done,
        partial=partial,
        strict=options.strict,
    )
    if options.golden is None or partial:
        return result
    return replace(_with_golden(result, options.golden, options, context), seconds=time.monotonic() - started)


def _with_golden(found: ReplayResult, golden: StrPath, options: ReplayOptions, context: ReadContext) -> ReplayResult:
    """Add the results of a replay of the golden run for the same operators."""
    goldens = [run for run in options.runs(golden, context, golden=True) if not run.problem]
    together, _ = pair_runs([one.run for one in found.replays], goldens, options.partners())
    if not together:
        own = keys([one.run for one in found.replays])
        raise UsageError(f"no step and rank is in both: {found.paths[0]} has {own}, {golden} has {keys(goldens)}")
    known = {target.path: partners(target, other, options.names(), context) for target, other in together}
    include: list[str] = []
    if options.include:
        include = [name for one in found.replays if one.run.path in known
                   for name in known[one.run.path].names({row.order for row in one.rows})]  # fmt: skip
        if not include:
            return replace(found, notes=(*found.notes, f"no selected operator has a partner in {golden}"))
    again = replace(options, golden=None, budget_from=None, budget=1.0, include=include, strict=False, pair=())
    steps, ranks = (
        [number or 0 for number in numbers] for numbers in zip(*((one.step, one.rank) for _, one in together))
    )
    again = replace(again, step=steps, rank=ranks)
    other = replay(golden, again)
    theirs = {one.run.path: one for one in other.replays}
    replays = [
        with_golden_rows(one, theirs[known[one.run.path].golden.path], known[one.run.path])
        if one.run.path in known
        else one
        for one in found.replays
    ]
    more = [f"golden: {note}" for note in other.notes if note not in found.notes]
    return replace(
        found,
        paths=(*found.paths, str(golden)),
        replays=tuple(replays),
        notes=(*found.notes, *more),
        bytes_read=found.bytes_read + other.bytes_read,
        partial=other.partial,
    )


def supported() -> None:
    """Raise UnsupportedError on systems without fork."""
    if sys.platform != "linux":
        raise UnsupportedError("replaying operators needs fork", "run it on Linux")


class _ReplayPlan:
    """The tasks of a run, and the rows of operators that are not replayed."""

    def __init__(self, run: Run, options: ReplayOptions, context: ReadContext) -> None:
        self.run = run
        self.tasks: list[Task] = []
        self.rows: dict[int, list[ReplayedOutput]] = {}
        self.open_edges: list[EdgeTask] = []
        self.edges: list[Edge] = []
        self.gaps: list[Gap] = []
        tasks = {task.operator.order: task for task in tasks_of(run, calls_of(run, context))}
        self._chosen = options.operators_of(run)
        for operator in self._chosen:
            task = tasks.get(operator.order)
            if task is None:
                self.rows[operator.order] = _rows(operator, *NO_CALL)
            elif not any(one.file or one.payload for one in operator.tensors):
                self.rows[operator.order] = _rows(operator, *NO_VALUES)
            elif task.outputs:
                self.tasks.append(task)
        self._every = [*tasks.values()]  # consumers of replayed operators may not be selected

    def link(self, context: ReadContext, settings: ReplaySettings, jobs: int) -> None:
        """Find the gaps and gradients between the selected operators."""
        if self.tasks:
            chosen = {operator.order for operator in self._chosen}
            links, gaps = link_operators(self._every, context, settings, jobs)
            self.open_edges = [one for one in links.edges(gaps) if one.task.operator.order in chosen]
            self.gaps = [gap for gap in gaps if gap.order in chosen]

    def take(self, item: Task | EdgeTask, found: list[ReplayedOutput] | Edge) -> int:
        """Take over the result of a task or of an edge; return the bytes of its record."""
        if isinstance(found, Edge):
            self.edges.append(found)
        elif isinstance(item, Task):
            self.rows[item.operator.order] = found
            return item.bytes
        return 0

    def replay(self) -> Replay:
        """Return the results so far, in order of execution."""
        operators = _by_kind(self.run)
        ordered = mark_doubtful([row for order in sorted(self.rows) for row in self.rows[order]], operators)
        kinds = explain_kinds(ordered, operators)
        words = [kind.words for kind in kinds]
        settings = [kind.words for kind in kinds if kind.is_setting]
        rows = excuse_kinds(ordered, kinds)
        edges, alike = finish_edges(self.edges, rows, operators)
        return Replay(
            self.run, tuple(rows), (*words, *alike), tuple(edges), tuple(self.gaps), self.run.notes,
            settings=(*settings, *alike),
        )  # fmt: skip


def ratios_of(clean: ReplayResult) -> Mapping[tuple[str, str], float]:
    """Return the largest rms ratio of each kind of operator and slot in a clean run."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for one in clean.replays:
        operators = _by_kind(one.run)
        for row in one.rows:
            if row.rms_ratio is not None and row.budget != "exact":
                key = operators[row.order].kind, row.slot
                found[key] = max(found[key], row.rms_ratio)
    return dict(found)


def _by_kind(run: Run) -> dict[int, Operator]:
    """Return operators by their order, with the `kind` that they share with their peers."""
    prefix = "" if run.format == "msprobe" else GRAPH
    return {one.order: one._replace(kind=kind_of(one, prefix)) for one in run.operators}


def _rows(operator: Operator, status: str, because: str) -> list[ReplayedOutput]:
    """Return the rows of an operator that is not replayed."""
    return [
        ReplayedOutput(operator.order, one.slot, status, explanation=because)
        for one in operator.tensors
        if one.slot.startswith("output:")
    ]
