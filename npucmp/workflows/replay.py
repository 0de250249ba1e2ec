"""Which operators of a dump are not what float64 makes of their own inputs: load → tasks → replay → Replays."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Iterable, Mapping, Optional

from npucmp.dump.context import ReadContext
from npucmp.dump.formats import calls_of
from npucmp.errors import MissingExtra, UsageError
from npucmp.measure.executor import default_jobs
from npucmp.model import Judged, Operator, Replay, Replayed, Replays, Run
from npucmp.replay.peers import excused, explained
from npucmp.replay.run import replayed
from npucmp.replay.task import Engine, Settings, Task, tasks_of
from npucmp.replay.torch_engine import TorchEngine
from npucmp.workflows.misfits import unfit_globs
from npucmp.workflows.runs import Choice, Meter, StrPath

ENGINES: "dict[str, Engine]" = {"torch": TorchEngine()}
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
    found: list[Replay] = []
    total, partial = sum(task.bytes for run in runs for task in _tasks(run, options, context)), False
    meter = Meter(options.progress, total)
    for run in runs:
        one, partial = _replayed(run, options, settings, context, meter)
        found.append(one)
        if partial:
            break
    if not partial and not any(one.rows for one in found):
        raise UsageError(f"nothing to replay: {options.nothing()}")
    missing = _engines(options)[1]
    undone = all(row.status != "replayed" for one in found for row in one.rows)
    if undone and missing and not partial:
        raise MissingExtra(missing[0], "replaying the operators of this dump")
    notes = [f"without {name} the rest was not replayed: pip install {name}" for name in missing]
    return Replays(
        paths=(str(dump),),
        replays=tuple(found),
        broken=tuple(("dump", run) for run in opened if run.problem),
        notes=(*unfit_globs(options, runs), *notes),
        seconds=time.monotonic() - started,
        bytes_read=total,
        partial=partial,
        strict=options.strict,
    )


def ratios_of(clean: Replays) -> "Mapping[tuple[str, str], float]":
    """The largest rms ratio of each kind of operator and slot, in a run that is clean."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for one in clean.replays:
        operators = one.operators
        for row in one.rows:
            if row.rms_ratio is not None and row.budget != "exact":
                key = operators[row.order].kind, row.slot
                found[key] = max(found[key], row.rms_ratio)
    return dict(found)


def _engines(options: ReplayOptions) -> "tuple[tuple[Engine, ...], list[str]]":
    """Those to use, and the packages that others need."""
    if options.engine is not None and options.engine not in ENGINES:
        raise UsageError(f"no engine {options.engine!r}", [*ENGINES])
    asked = [one for name, one in ENGINES.items() if options.engine in (None, name)]
    missing = [one.missing() for one in asked if one.missing()]
    return tuple(one for one in asked if not one.missing()), missing


def _tasks(run: Run, options: ReplayOptions, context: ReadContext) -> "list[Task]":
    return [task for task in tasks_of(run, calls_of(run, context)) if options.wants(task.operator)]


def _replayed(
    run: Run, options: ReplayOptions, settings: Settings, context: ReadContext, meter: Meter
) -> "tuple[Replay, bool]":
    """The run, replayed, and whether it was interrupted."""
    engines, missing = _engines(options)
    tasks = {task.operator.order: task for task in _tasks(run, options, context)}
    work, rows, partial = [], {}, False
    for operator in options.chosen(run):
        task = tasks.get(operator.order)
        if task is None:
            rows[operator.order] = [*_rows(operator, *NO_CALL)]
        elif not any(one.file or one.payload for one in operator.tensors):
            rows[operator.order] = [*_rows(operator, *NO_VALUES)]
        elif not engines:
            rows[operator.order] = [*_rows(operator, "not in table", f"it needs {' or '.join(missing)}")]
        elif task.outputs:
            work.append(task)
    try:
        for task, some in zip(work, replayed(work, engines, context, settings, options.jobs or default_jobs())):
            rows[task.operator.order] = some
            meter.add(task.bytes)
    except KeyboardInterrupt:
        partial = True
    ordered = [row for order in sorted(rows) for row in rows[order]]
    operators = {operator.order: operator for operator in run.operators}
    kinds = explained(ordered, operators)
    words = tuple(kind.words for kind in kinds)
    return Replay(run, tuple(excused(ordered, kinds)), words, run.notes), partial


def _rows(operator: Operator, status: str, because: str) -> "Iterable[Replayed]":
    return (
        Replayed(operator.order, one.slot, status, Judged.UNKNOWN, because)
        for one in operator.tensors
        if one.slot.startswith("output:")
    )
