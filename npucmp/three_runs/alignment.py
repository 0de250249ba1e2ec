"""The runs of the truth, arranged as the golden's by the same relations, and the tensor of the truth for each tensor of
a golden."""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.dump.formats import open_head
from npucmp.dump.limits import ReadContext
from npucmp.errors import UsageError
from npucmp.model import Operator, Report, Run, RunHeader, StoredComparisons, TensorRef
from npucmp.model.comparison import where_of
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import Options
from npucmp.workflows.rank_tasks import paired_runs
from npucmp.workflows.relation_queue import RelationQueue
from npucmp.workflows.select_runs import Sides, distance, keys, meets
from npucmp.workflows.task_choice import runs_of_tasks

TruthRun = Union[Run, RunHeader]
TensorKey = tuple[str, str]


class TruthRuns(NamedTuple):
    """The run of the truth for each comparison, by its number; None without one. `options` are those of its alignment,
    `what` describes the dump, `notes` are on its relations."""

    options: Options
    runs: Sequence[Optional[TruthRun]]
    what: str
    notes: tuple[str, ...] = ()


def truth_runs(truth: StrPath, report: Report, options: Options, context: ReadContext) -> TruthRuns:
    """Return the runs of the truth for the comparisons of a report. Raises UsageError if no step and rank has one."""
    options = replace(options, mapping=None, pair=(), layout=None, golden_layout=None, also=(), batch_invariance=False)
    golden = report.golden_path
    notes: tuple[str, ...] = ()
    pairing = runs_of_tasks(truth, golden, options) if isinstance(report.comparisons, StoredComparisons) else None
    found: Sequence[TruthRun]
    if pairing is not None:
        found = [head for head, _ in pairing.together]
    else:
        opened = [run for run in options.runs(truth, context) if not run.problem]
        goldens = [one.golden for one in report.comparisons]
        related = RelationQueue(options, context).related(Sides(truth, opened, golden, goldens))
        notes = tuple(f"truth: {line}" for step in related.found for line in step.plan())
        options, found = replace(options, **related.sides.changes), related.sides.readable[0]
    places = where_of(report.comparisons)
    runs = [_nearest(found, RunHeader("", "", place.step, place.rank, "")) for place in places]
    if len(found) == len(places) == 1:
        runs = [found[0]]
    if not any(run is not None for run in runs):
        raise UsageError(f"--truth {truth}: it has {keys(found)}, the runs have {keys(places)}")
    first = next(run for run in runs if run is not None)
    detail = first.detail if isinstance(first, Run) else ""
    return TruthRuns(options, runs, " · ".join(filter(None, (first.format, detail))), notes)


def _nearest(runs: Sequence[TruthRun], sought: RunHeader) -> Optional[TruthRun]:
    """Return the run of a step and rank; an absent number matches any."""
    return min((run for run in runs if meets(run, sought)), key=lambda run: distance(run, sought), default=None)


def truth_tensors(
    truth: TruthRun, golden: Run, options: Options, context: ReadContext
) -> Mapping[TensorKey, TensorRef]:
    """Return the tensors of the truth by the key of their golden tensors. Raises UsageError if truth and golden are
    different networks."""
    run = truth if isinstance(truth, Run) else open_head(truth, context)
    found = paired_runs(options, run, golden, context)
    if found.unlike is not None:
        raise UsageError(f"--truth {run.path}: {found.unlike}")
    return {
        key_of(pair.golden_op, pair.golden): pair.target
        for pair in (*found.todo, *found.left_out)
        if pair.golden_op is not None and pair.golden is not None and pair.target is not None
    }


def key_of(operator: Operator, tensor: TensorRef) -> TensorKey:
    """Return the key of a golden tensor: its own name, or its operator and slot."""
    if tensor.label:
        return tensor.label, ""
    return operator.name, tensor.own_slot or tensor.slot
