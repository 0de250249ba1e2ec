"""Which operators of a dump are not what float64 makes of their own inputs: load → tasks → replay → Replays."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Mapping, Optional

from npucmp.dump.context import ReadContext
from npucmp.dump.formats import calls_of
from npucmp.errors import MissingExtra, UnsupportedError, UsageError
from npucmp.measure.executor import default_jobs
from npucmp.model import REPLAYED, Operator, Replay, Replayed, Replays, Run
from npucmp.replay.numpy_engine import NumpyEngine
from npucmp.replay.peers import doubted, excused, explained
from npucmp.replay.run import replayed
from npucmp.replay.task import GRAPH, Engine, Settings, Task, kind_of, tasks_of
from npucmp.replay.torch_engine import TorchEngine
from npucmp.workflows.graphs import loaded, with_graphs
from npucmp.workflows.misfits import unfit_globs
from npucmp.workflows.runs import Choice, Meter, StrPath

ENGINES: "dict[str, Engine]" = {"torch": TorchEngine(), "numpy": NumpyEngine()}
JOBS = 8  # at most, unless told: each has a torch of its own
NO_CALL = "no data", "the dump does not tell how it was called"
NO_VALUES = "no data", "the dump holds no values of it"


@dataclass(frozen=True)
class ReplayOptions(Choice):
    """What a replay can be told; the command line offers the same under the same names.

    engine       the name of the only one to use; all are tried otherwise
    budget       a factor for all limits
    budget_from  a clean dump, whose largest ratios of each kind of operator are what is due
    limit_memory bytes that replaying one operator may take
    strict       what could not be replayed makes the run undecided
    """

    engine: Optional[str] = None
    budget: float = 1.0
    budget_from: Optional[StrPath] = None
    limit_memory: Optional[int] = None
    strict: bool = False


def replay(dump: StrPath, options: Optional[ReplayOptions] = None, **more: object) -> Replays:
    """Replays a dump and returns a row per output; keyword arguments are fields of the options.

    Raises NpucmpError when there is nothing to replay, or no engine that could. Trouble with single operators is in
    the result.
    """
    options = replace(options or ReplayOptions(), **more)  # type: ignore[arg-type]
    supported()
    started = time.monotonic()
    settings = Settings(scale=options.budget)
    if options.limit_memory:
        settings = settings._replace(memory=options.limit_memory)
    if options.budget_from is not None:
        clean = replay(options.budget_from, replace(options, budget_from=None, budget=1.0, include=(), exclude=()))
        settings = settings._replace(known=ratios_of(clean))
    context = options.context(dump)
    opened = options.runs(dump, context)
    runs = [run for run in opened if not run.problem]
    runs = with_graphs(dump, runs, dump, loaded(options.graph, runs, context.within(*options.graph)), context)
    engines, missing = _engines(options)
    plans = [_Plan(run, options, context, missing if not engines else []) for run in runs]
    tasks = [task for plan in plans for task in plan.tasks]
    total, done, partial = sum(task.bytes for task in tasks), 0, False
    meter = Meter(options.progress, total)
    places = [plan for plan in plans for _ in plan.tasks]
    try:
        results = replayed(tasks, engines, context, settings, options.jobs or min(default_jobs(), JOBS))
        for plan, task, rows in zip(places, tasks, results):
            plan.rows[task.operator.order] = rows
            done += task.bytes
            meter.add(task.bytes)
    except KeyboardInterrupt:
        partial = True
    found = [plan.replay() for plan in plans]
    if not partial and not any(one.rows for one in found):
        raise UsageError(f"nothing to replay: {options.nothing()}")
    undone = all(row.status != REPLAYED for one in found for row in one.rows)
    of_records = any(not task.call.prefix.startswith(GRAPH) for task in tasks) or not engines
    if undone and missing and of_records and not partial:
        raise MissingExtra(missing[0], "replaying the operators of this dump")
    left = any(row.status == "not in table" for one in found for row in one.rows)
    notes = [f"what needs {name} was not replayed: pip install {name}" for name in missing if left]
    return Replays(
        paths=(str(dump),),
        replays=tuple(found),
        broken=tuple(("dump", run) for run in opened if run.problem),
        notes=(*unfit_globs(options, runs), *notes),
        seconds=time.monotonic() - started,
        bytes_read=done,
        partial=partial,
        strict=options.strict,
    )


def supported() -> None:
    """Raises UnsupportedError where there is no fork."""
    if sys.platform != "linux":
        raise UnsupportedError("operators are replayed in child processes that are made by fork", "run it on Linux")


class _Plan:
    """A run: what is to be replayed of it, and the rows of what is not."""

    def __init__(self, run: Run, options: ReplayOptions, context: ReadContext, missing: "list[str]") -> None:
        self.run = run
        self.tasks: list[Task] = []
        self.rows: dict[int, list[Replayed]] = {}
        tasks = {task.operator.order: task for task in tasks_of(run, calls_of(run, context))}
        for operator in options.chosen(run):
            task = tasks.get(operator.order)
            if task is None:
                self.rows[operator.order] = _rows(operator, *NO_CALL)
            elif not any(one.file or one.payload for one in operator.tensors):
                self.rows[operator.order] = _rows(operator, *NO_VALUES)
            elif missing:
                self.rows[operator.order] = _rows(operator, "not in table", f"it needs {' or '.join(missing)}")
            elif task.outputs:
                self.tasks.append(task)

    def replay(self) -> Replay:
        """What was found, by now, in order of execution."""
        operators = _by_kind(self.run)
        ordered = doubted([row for order in sorted(self.rows) for row in self.rows[order]], operators)
        kinds = explained(ordered, operators)
        words = tuple(kind.words for kind in kinds)
        return Replay(self.run, tuple(excused(ordered, kinds)), words, self.run.notes)


def ratios_of(clean: Replays) -> "Mapping[tuple[str, str], float]":
    """The largest rms ratio of each kind of operator and slot, in a run that is clean."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for one in clean.replays:
        operators = _by_kind(one.run)
        for row in one.rows:
            if row.rms_ratio is not None and row.budget != "exact":
                key = operators[row.order].kind, row.slot
                found[key] = max(found[key], row.rms_ratio)
    return dict(found)


def _by_kind(run: Run) -> "dict[int, Operator]":
    """Operators by their place; `kind` is what their peers have in common."""
    prefix = "" if run.format == "msprobe" else GRAPH
    return {one.order: one._replace(kind=kind_of(one, prefix)) for one in run.operators}


def _engines(options: ReplayOptions) -> "tuple[tuple[Engine, ...], list[str]]":
    """Those to use, and the packages that others need."""
    if options.engine is not None and options.engine not in ENGINES:
        raise UsageError(f"no engine {options.engine!r}", [*ENGINES])
    asked = [one for name, one in ENGINES.items() if options.engine in (None, name)]
    missing = [one.missing() for one in asked if one.missing()]
    return tuple(one for one in asked if not one.missing()), missing


def _rows(operator: Operator, status: str, because: str) -> "list[Replayed]":
    """Rows of an operator that is not replayed."""
    return [
        Replayed(operator.order, one.slot, status, explanation=because)
        for one in operator.tensors
        if one.slot.startswith("output:")
    ]
