"""Whether worker processes, or the tasks of a scheduler, open and compare the steps and ranks of two dumps.

One process opens all runs if their records are small: then it finds relations between ranks, and starts no process. If
the records are large, each step and rank is a task, whose measurements go to disk (scratch.py).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple, Optional, Sequence

from npucmp.dump.formats import graph_source
from npucmp.errors import UsageError
from npucmp.model import RunHeader
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import keys, most_ranks, pair_runs

SMALL = 4 << 20  # bytes of records up to which this process opens all runs; they take about 50 MB of memory


class RunPairing(NamedTuple):
    """The heads of runs that are paired, and of runs without a partner."""

    together: Sequence[tuple[RunHeader, RunHeader]]
    unpaired: Sequence[tuple[str, RunHeader]]


def runs_of_tasks(target: StrPath, golden: StrPath, options: Options) -> Optional[RunPairing]:
    """Return the paired steps and ranks of both dumps if tasks open the runs: the user gave an executor, or the records
    are large. None if this process opens all runs."""
    if options.executor is None:
        return _large_runs(target, golden, options)
    context = options.context(target, golden)
    lefts, rights = options.heads(target, context), options.heads(golden, context, golden=True)
    formats = {head.format for head in (*lefts, *rights)}
    if not _fits(options, formats):
        reasons = [f"--{name}" for name in ("graph", "also") if getattr(options, name)]
        reasons += ["--recompute all"] * (options.recompute == "all")
        reasons += ["a relation of --mapping"] * bool(options.relations())
        what = reasons[0] if reasons else f"the graph of {' and '.join(sorted(filter(graph_source, formats)))} dumps"
        raise UsageError(f"--scheduler: {what} belongs to all steps and ranks, so a single process compares them")
    pairing = RunPairing(*pair_runs(lefts, rights, options.partners()))
    if not pairing.together:
        raise UsageError(f"no step and rank is in both: {target} has {keys(lefts)}, {golden} has {keys(rights)}")
    return pairing


def _fits(options: Options, formats: set[str]) -> bool:
    """Return whether tasks can open the runs; graphs and further dumps belong to all runs together."""
    alone = not (options.graph or options.also or options.recompute == "all" or options.relations())
    return alone and all(graph_source(name) is None for name in formats)


def _large_runs(target: StrPath, golden: StrPath, options: Options) -> Optional[RunPairing]:
    """Return the heads of the runs if tasks should open them: there are several, folders name them, and their records
    are large. None otherwise."""
    if not _fits(options, set()):
        return None
    context = options.context(target, golden)
    lefts = options.early_heads(target, context)
    rights = options.early_heads(golden, context, golden=True) if lefts else None
    if not lefts or not rights or not _fits(options, {head.format for head in (*lefts, *rights)}):
        return None
    if not options.ranks_apart and most_ranks(lefts) != most_ranks(rights):
        return None  # ranks may belong together
    pairing = RunPairing(*pair_runs(lefts, rights, options.partners()))
    large = sum(_size(head) for both in pairing.together for head in both) > SMALL
    return pairing if large and len(pairing.together) > 1 else None


def _size(head: RunHeader) -> int:
    """Return the bytes of the records of a run; 0 if they are not a file."""
    with suppress(OSError):
        return os.stat(head.path).st_size if os.path.isfile(head.path) else 0
    return 0
