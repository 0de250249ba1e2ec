"""Are two runs comparable at all? load → line up → rows → Precheck."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Optional, Sequence

from npucmp.errors import UsageError
from npucmp.measure.executor import default_jobs
from npucmp.model import Run
from npucmp.model.prechecked import Precheck
from npucmp.precheck.both import Both, Given
from npucmp.precheck.order import ROWS
from npucmp.precheck.row import Row
from npucmp.workflows.graphs import loaded, with_graphs
from npucmp.workflows.misfits import unfit_names
from npucmp.workflows.runs import Choice, StrPath, keys, odd_pairs, pair_runs

NO_DUMP = "-"  # stands for a dump where files alone are compared


@dataclass(frozen=True)
class PrecheckOptions(Choice):
    """What a precheck can be told; the command line offers the same under the same names.

    env, config  files beside the dumps, target's and golden's: zips of msprobe's config_check, or text
    mixed        a run in mixed precision against one in full precision is meant
    only, skip   globs over the names of rows
    strict       what wants an explanation makes the runs not comparable too
    """

    env: "Optional[tuple[str, str]]" = None
    config: "Optional[tuple[str, str]]" = None
    mixed: bool = False
    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    strict: bool = False


def precheck(target: StrPath, golden: StrPath, options: Optional[PrecheckOptions] = None, **more: object) -> Precheck:
    """Holds two dumps, and files beside them, against each other row by row; keyword arguments are fields of the
    options. "-" for both dumps compares the files alone.

    Raises NpucmpError when there is nothing to compare. Trouble with single rows is in the result.
    """
    options = replace(options or PrecheckOptions(), **more)  # type: ignore[arg-type]
    started = time.monotonic()
    rows = chosen(options.only, options.skip)
    given = Given(mixed=options.mixed, env=options.env, config=options.config)
    broken: "tuple[tuple[str, Run], ...]" = ()
    remarks: "tuple[str, ...]" = ()
    without = [os.fspath(path) == NO_DUMP for path in (target, golden)]
    if any(without):
        if not all(without) or not (options.env or options.config):
            raise UsageError('"-" stands for both dumps, and needs --env, --config or --curve')
        both = Both((), (), given=given)
    else:
        both, broken, remarks = _opened(target, golden, options, given)
    found = [row.held(both) for row in rows]
    return Precheck(
        paths=(str(target), str(golden)),
        broken=broken,
        notes=tuple(remarks),
        seconds=time.monotonic() - started,
        bytes_read=both.bytes_read,
        rows=tuple(found),
        inputs=tuple(both.inputs),
        targets=tuple(both.targets),
        goldens=tuple(both.goldens),
        strict=options.strict,
    )


def chosen(only: Sequence[str], skip: Sequence[str]) -> "list[Row]":
    """The rows that are meant. Raises UsageError for a glob that fits none."""
    import difflib

    names = [row.name for row in ROWS]
    for glob in (*only, *skip):
        if not any(fnmatchcase(name, glob) for name in names):
            raise UsageError(f"no row {glob!r}", difflib.get_close_matches(glob, names) or names)
    return [
        row
        for row in ROWS
        if (not only or any(fnmatchcase(row.name, glob) for glob in only))
        and not any(fnmatchcase(row.name, glob) for glob in skip)
    ]


def _opened(
    target: StrPath, golden: StrPath, options: PrecheckOptions, given: Given
) -> "tuple[Both, tuple[tuple[str, Run], ...], tuple[str, ...]]":
    context = options.context(target, golden)
    lefts, rights = options.runs(target, context), options.runs(golden, context)
    graphs = loaded(options.graph, [*lefts, *rights], context)
    lefts = with_graphs(target, lefts, golden, graphs, context)
    rights = with_graphs(golden, rights, target, graphs, context)
    names = options.names()
    remarks = [*unfit_names(names, lefts, rights)]
    broken = tuple((side, run) for side, runs in (("target", lefts), ("golden", rights)) for run in runs if run.problem)
    lefts, rights = ([run for run in runs if not run.problem] for runs in (lefts, rights))
    if not lefts or not rights:
        raise UsageError(f"nothing can be read of {target if not lefts else golden}: {broken[0][1].problem}")
    together, _ = pair_runs(lefts, rights)
    if not together:
        remarks.append(f"no step and rank is in both: target has {keys(lefts)}, golden has {keys(rights)}")
    remarks += odd_pairs(together)
    jobs = options.jobs or default_jobs()
    return Both(lefts, rights, together, names, context, jobs, given), broken, tuple(remarks)
