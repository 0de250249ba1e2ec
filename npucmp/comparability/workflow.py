"""Check whether two runs are comparable: load → pair runs → items → Precheck."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Sequence

from npucmp.comparability.check_item import CheckItem
from npucmp.comparability.option_fields import PrecheckFields
from npucmp.comparability.registry import NAMES, ROWS
from npucmp.comparability.run_pair import Curves, RunPair, UserInput
from npucmp.dump.formats import open_runs
from npucmp.errors import UsageError, nearest
from npucmp.health.rules import RULES
from npucmp.health.settings import CheckSettings, load_settings
from npucmp.measure.executor import default_jobs
from npucmp.model import Run
from npucmp.model.dtypes import size_of
from npucmp.model.item_result import ItemResult
from npucmp.model.precheck_result import CurvePair, Precheck
from npucmp.workflows.graphs import load_named_graphs, with_graphs
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import of_two
from npucmp.workflows.select_runs import ProgressMeter, RunSelection, keys, odd_pairs, pair_runs, pair_suggestion
from npucmp.workflows.unused_options import unfit_names

NO_DUMP = "-"  # in place of a dump: only files are compared


@dataclass(frozen=True)
class PrecheckOptions(PrecheckFields, RunSelection):
    """The options of a precheck."""


@of_two(PrecheckOptions)
def precheck(target: StrPath, golden: StrPath, options: PrecheckOptions) -> Precheck:
    """Compare two dumps, and files beside them, item by item. "-" for both dumps compares the files alone.

    Raises NpucmpError if there is nothing to compare. Errors of single items are in the result.
    """
    started = time.monotonic()
    settings = CheckSettings() if options.rules is None else load_settings(os.fspath(options.rules), RULES, NAMES)
    rows = select_items(options.only, options.skip, settings)
    user_input = UserInput(
        mixed=options.mixed,
        env=options.env,
        config=options.config,
        curve=options.curve,
        data=None if options.data is None else _recorded_batches(options.data, options),
        repeat_curve=options.repeat_curve,
        column=options.column,
        repeated=None if options.repeat is None else partial(_compare_repeat, target, options.repeat, options),
        settings=settings,
    )
    broken: tuple[tuple[str, Run], ...] = ()
    remarks: tuple[str, ...] = ()
    without = [os.fspath(path) == NO_DUMP for path in (target, golden)]
    if any(without):
        if not all(without) or not (options.env or options.config or options.curve or options.data):
            raise UsageError('"-" must replace both dumps, and needs --env, --config, --curve or --data')
        both = RunPair((), (), context=options.context(*(options.data or ())), user_input=user_input)
        rows = [row for row in rows if not row.of_dumps]
    else:
        both, broken, remarks = _open_pair(target, golden, options, user_input)
    both.rows = {row.name: row.evaluate for row in ROWS if both.targets or not row.of_dumps}
    found: list[ItemResult] = []
    interrupted = False
    try:
        for row in rows:
            found.append(both.found.get(row.name) or row.evaluate(both))
    except KeyboardInterrupt:
        interrupted = True
    return Precheck(
        paths=(str(target), str(golden)),
        broken=broken,
        notes=(*remarks, *both.notes),
        seconds=time.monotonic() - started,
        bytes_read=both.bytes_read,
        rows=tuple(found),
        inputs=tuple(both.inputs),
        targets=tuple(both.targets),
        goldens=tuple(both.goldens),
        curves=tuple(map(_curve_pair, both.curves)),
        partial=interrupted,
        strict=options.strict,
    )


def select_items(
    only: Sequence[str], skip: Sequence[str], settings: CheckSettings = CheckSettings()
) -> list[CheckItem]:
    """Return the selected items. The settings file may skip further items, and may also name rules of check. Raises
    UsageError for a glob that matches no item."""
    for glob in (*only, *skip):
        if not any(fnmatchcase(name, glob) for name in NAMES):
            raise UsageError(f"no row {glob!r}", nearest(glob, NAMES) or NAMES)
    of_rows = [glob for glob in settings.only if any(fnmatchcase(name, glob) for name in NAMES)]
    wanted, unwanted = (*only,) or (*of_rows,), (*skip, *settings.skip)
    return [
        row
        for row in ROWS
        if (not wanted or any(fnmatchcase(row.name, glob) for glob in wanted))
        and not any(fnmatchcase(row.name, glob) for glob in unwanted)
    ]


def _compare_repeat(target: StrPath, repeat: StrPath, options: PrecheckOptions) -> tuple[bool, str]:
    """Return whether two dumps of the target have the same bits, with a description."""
    from npucmp.reruns.workflow import rerun_diff

    chosen = {name: getattr(options, name) for name in ("format", "step", "rank", "limits", "jobs")}
    found = rerun_diff([target, repeat], **chosen)
    if not found.differs:
        return found.is_decided, "the repeat has the same bits" if found.is_decided else "the repeat cannot be compared"
    first = found.reruns[0].pair.operator.name if found.reruns else ""
    return False, f"a repeat of the target has different bits (first: {first}): npucmp rerun-diff"


def _recorded_batches(paths: tuple[str, str], options: PrecheckOptions) -> tuple[list[Run], list[Run]]:
    """Return the arrays of --data, as the runs of their files."""
    context = options.context(*paths)
    target, golden = (open_runs(path, None, context) for path in paths)
    return target, golden


def _curve_pair(one: Curves) -> CurvePair:
    """Return the data of two curves for a report."""
    windows = tuple((*window,) for window in one.found.windows)
    return CurvePair(one.name, one.found.because, one.target.drawn_points(), one.golden.drawn_points(), windows)


def _open_pair(
    target: StrPath, golden: StrPath, options: PrecheckOptions, user_input: UserInput
) -> tuple[RunPair, tuple[tuple[str, Run], ...], tuple[str, ...]]:
    context = options.context(target, golden, *(options.data or ()))
    lefts, rights = options.runs(target, context), options.runs(golden, context, golden=True)
    graphs = load_named_graphs(options.graph, [*lefts, *rights], context)
    lefts = with_graphs(target, lefts, golden, graphs, context)
    rights = with_graphs(golden, rights, target, graphs, context)
    names = options.names()
    remarks = [*unfit_names(names, lefts, rights)]
    broken = tuple((side, run) for side, runs in (("target", lefts), ("golden", rights)) for run in runs if run.problem)
    lefts, rights = ([run for run in runs if not run.problem] for runs in (lefts, rights))
    if not lefts or not rights:
        raise UsageError(f"{target if not lefts else golden} cannot be read: {broken[0][1].problem}")
    together, _ = pair_runs(lefts, rights, options.partners())
    if not together:
        hint = pair_suggestion(lefts, rights)
        remarks.append(f"no step and rank is in both: target has {keys(lefts)}, golden has {keys(rights)}{hint}")
    remarks += odd_pairs(together)
    jobs = options.jobs or default_jobs()
    tensors = (one for run in (*lefts, *rights) for operator in run.operators for one in operator.tensors)
    meter = ProgressMeter(options.progress, sum(size_of(one.dtype, one.shape) for one in tensors if one.file))
    both = RunPair(lefts, rights, together, names, context, jobs, user_input, done=meter.add)
    return both, broken, tuple(remarks)
