"""Find the operator that diverged first, and whether it caused the error: two dumps → matching runs → pipeline →
Report."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Mapping, Sequence, Union

from npucmp.dump.formats import graph_source, mentions_log_probs
from npucmp.dump.limits import ReadContext
from npucmp.errors import UsageError
from npucmp.measure.executor import Executor, default_jobs, kept_by, workers
from npucmp.model import Cause, Comparison, Report, Root, Run, map_comparisons
from npucmp.model.roles import is_parameter
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import Options, of_two
from npucmp.workflows.pipeline import ComparisonSource, compare_steps
from npucmp.workflows.relation_queue import OF_FILES, Related, RelationQueue
from npucmp.workflows.select_runs import PairedRuns, Sides, keys, pair_runs, pair_suggestion
from npucmp.workflows.task_choice import runs_of_tasks
from npucmp.workflows.tensor_details import with_accused, with_images, with_looks

if TYPE_CHECKING:
    from npucmp.workflows.comparison_plan import ComparisonPlan

Dump = Union[StrPath, Mapping[str, Any]]
ALIASES = {"suspects": "auto", "all": "all"}  # replay → recompute
MOST_OPENED = 4  # comparisons that are searched for calls without records: steps and ranks are alike
FEW = 32  # tensors of a batch of log-probabilities


@of_two(Options)
def compare(target: Dump, golden: Dump, options: Options) -> Report:
    """Compare two dumps and return the Report. A dump is a path, or a mapping of names to arrays or tensors in memory,
    in the order of execution: npucmp.compare(model.state_dict(), {"fc.weight": array}).

    Raises NpucmpError if there is nothing to compare. Errors of single tensors are in the report.
    """
    truth = options.truth
    if (
        not isinstance(target, (str, os.PathLike))
        or not isinstance(golden, (str, os.PathLike))
        or not isinstance(truth, (str, os.PathLike, type(None)))
    ):
        from npucmp.workflows.arrays import as_paths

        with as_paths(target, golden, truth) as (left, right, third):
            report = compare(left, right, replace(options, truth=third))
        sides = ("target", target), ("golden", golden)
        names = [side if isinstance(dump, Mapping) else os.fspath(dump) for side, dump in sides]
        return replace(report, paths=tuple(names))
    if options.replay not in (None, *ALIASES):
        raise UsageError(f"replay is {options.replay!r}", [*ALIASES])
    if options.recompute not in ("none", "auto", "all"):
        raise UsageError(f"recompute is {options.recompute!r}", ["none", "auto", "all"])
    if options.replay is not None:
        options = replace(options, recompute=ALIASES[options.replay], replay=None)
    started = time.monotonic()
    context = options.context(target, golden)
    queue = RelationQueue(options, context)
    related = queue.related(Sides(target, [], golden, []), OF_FILES)
    executor = options.executor or workers(options.jobs or default_jobs(), isolated=True)
    with kept_by(executor):
        if related.found:
            report = _explained(related, options, context)
        else:
            report = _compared_dumps(target, golden, options, context, executor)
        report = _with_remarks(report, options, context)
        if truth is not None and not report.partial:
            from npucmp.three_runs.workflow import three_runs

            report = replace(report, three_runs=three_runs(report, truth, options, context))
    return replace(report, seconds=time.monotonic() - started)


def _with_remarks(report: Report, options: Options, context: ReadContext) -> Report:
    """Return the report with what further readings of its comparisons add: a warning of unlike runs, notes, details of
    tensors and suspects, and pictures."""
    if options.precheck and not report.partial and report.comparisons and report.weights is None:
        (line,) = map_comparisons(report.comparisons, partial(_unlike, context), numbers=[0])
        report = replace(report, unlike=line)
    if report.tally.causes.get(Cause.GAP) and report.weights is None:
        report = _with_omitted_calls(report)
    if options.recompute == "all" and not report.partial and report.weights is None:
        from npucmp.recompute.replay_gaps import with_gap_words

        report = with_gap_words(report, context, options.jobs)
    report = with_looks(report, options, context, vendor=report.weights is None)
    if report.partial or report.weights is not None:
        return report
    return with_images(with_accused(report, context), context)


@of_two(Options)
def comparison_plan(target: Dump, golden: Dump, options: Options) -> ComparisonPlan:
    """Return what `compare` of two dumps would do: the relations that it finds, with their proofs, and how many tensors
    it would measure. Raises NpucmpError as `compare` does."""
    from npucmp.workflows.comparison_plan import ComparisonPlan, plan_of

    if not isinstance(target, (str, os.PathLike)) or not isinstance(golden, (str, os.PathLike)):
        from npucmp.workflows.arrays import as_paths

        with as_paths(target, golden) as (left, right, _):
            return comparison_plan(left, right, options)
    context = options.context(target, golden)
    queue = RelationQueue(options, context)
    related = queue.related(Sides(target, [], golden, []), OF_FILES)
    if related.found:
        return plan_of(related, options, context)
    pairing = runs_of_tasks(target, golden, options)
    if pairing is not None:
        return ComparisonPlan(("each step and rank is compared with its own",), len(pairing.together), 0, {}, 0, 0)
    sides = _open_sides(target, golden, options, context)
    return plan_of(queue.related(sides), options, context)


def _with_omitted_calls(report: Report) -> Report:
    """Return the report of a GAP with a note on calls that the configuration of the dumps leaves out."""
    numbers = range(min(len(report.comparisons), MOST_OPENED))
    found = (note for notes in map_comparisons(report.comparisons, _omitted_calls, numbers=numbers) for note in notes)
    return replace(report, notes=(*report.notes, *dict.fromkeys(found)))


def _omitted_calls(_: int, comparison: Comparison) -> list[str]:
    from npucmp.dump.readers.msprobe_config import omitted_calls, selected_calls

    if not any(map(_has_hidden_writer, comparison.roots)):
        return []
    settings = (omitted_calls, '"risk_level": "ALL"'), (selected_calls, '"list": [] and "scope": []')
    return [
        f"{words}; the error of a GAP may originate there; to record all: {setting} in config.json"
        for reason, setting in settings
        for words in map(reason, (comparison.target, comparison.golden))
        if words
    ]


def _has_hidden_writer(root: Root) -> bool:
    """Return whether an input differs that an operator without a record may have written: not a parameter, a tensor
    that ranks share, or an input of the network, which its first operator reads."""
    if root.cause is not Cause.GAP or root.ranks or is_parameter(root.pair):
        return False
    kinds = {reason.kind for reason in root.evidence}
    return "between" in kinds or ("fed" in kinds and root.pair.order > 0)


def _holds_log_probs(runs: Sequence[Run], context: ReadContext) -> bool:
    """Return whether the tensors of runs have the names of log-probabilities, masks and tokens alone."""
    if any(len(run.operators) > FEW for run in runs):
        return False
    tensors = [(op, tensor) for run in runs for op in run.operators for tensor in op.tensors]
    if tensors and all(tensor.problem for _, tensor in tensors):
        return any(mentions_log_probs(tensor.file, context) for _, tensor in tensors[:FEW] if tensor.file)
    names = {tensor.label or op.name for op, tensor in tensors}
    if not any("log_prob" in name or "logprob" in name for name in names):
        return False
    from npucmp.dump.log_probs.field_names import KNOWN

    return all(any(part in KNOWN for part in name.split(".")) for name in names)


def _compared_dumps(
    target: StrPath, golden: StrPath, options: Options, context: ReadContext, executor: Executor
) -> Report:
    """Return the report of two dumps of operators. If both are files of log-probabilities, a note, or the error, names
    the command for them. Raises UsageError for an option that only checkpoints have."""
    given = [name for name in ("kv_heads", "lora_scale", "fc1") if getattr(options, name) is not None]
    if given:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{words}: only for two checkpoints, compared whole; {target} and {golden} are dumps")
    pairing = runs_of_tasks(target, golden, options)
    if pairing is not None:
        return compare_steps(ComparisonSource(target, golden, *pairing), options, executor)
    sides = _open_sides(target, golden, options, context)
    if not all(_holds_log_probs(runs, context) for runs in (sides.targets, sides.goldens)):
        return _compare_sides(sides, options, context)
    words = "both sides hold log-probabilities of tokens: npucmp parity compares them, token by token"
    try:
        report = _compare_sides(sides, options, context)
    except UsageError as error:
        raise UsageError(words) from error
    return replace(report, notes=(*report.notes, words))


def _compare_sides(sides: Sides, options: Options, context: ReadContext) -> Report:
    """Put both sides into one arrangement, compare them, and report in their own words."""
    queue = RelationQueue(options, context)
    related = queue.related(sides)
    report = _explained(related, options, context)
    if options.batch_invariance or any(map(_is_other_input, report.roots)):
        again = queue.related(sides, in_doubt=True)
        if len(again.found) > len(related.found):
            report = _explained(again, options, context)
    if options.batch_invariance and not report.token_bits:
        raise UsageError(
            "--batch-invariance needs the same tokens with values on both sides: there is no index of tokens"
        )
    return report


def _explained(related: Related, options: Options, context: ReadContext) -> Report:
    paired: Sequence[PairedRuns] = ()
    if options.announce is not None and related.found:
        from npucmp.workflows.comparison_plan import plan_of

        plan = plan_of(related, options, context)
        options.announce(plan.lines)
        paired = plan.paired
    return related.explained(compare_runs(related.sides, options, paired))


def _is_other_input(root: Root) -> bool:
    """Return whether the runs were given other inputs, perhaps the same tokens in another order: an input differs, a
    saved record of tokens, or the first output of an operator whose inputs were not recorded."""
    pair = root.pair
    is_bare = root.place == 1 and not pair.operator.reads_recorded and root.cause is Cause.UNKNOWN
    if is_bare or (root.cause is Cause.GAP and root.slot.startswith("input")):
        return True
    if pair.golden is None or root.cause is Cause.PROPAGATED:
        return False
    if len(pair.operator.tensors) > 1 and not root.slot.startswith("input"):
        return False
    from npucmp.relations.token_records import record_of

    return record_of(pair.operator, pair.golden) is not None


def _unlike(context: ReadContext, _: int, one: Comparison) -> str:
    from npucmp.comparability.warning import comparability_warning

    return comparability_warning(one, context)


def _open_sides(target: StrPath, golden: StrPath, options: Options, context: ReadContext) -> Sides:
    sides = Sides(target, options.runs(target, context), golden, options.runs(golden, context, golden=True))
    if options.also:
        sides = _with_further_dumps(sides, options, context)
    if options.graph or any(graph_source(run.format) is not None for run in (*sides.targets, *sides.goldens)):
        sides = _with_graphs(sides, options, context)
    return sides


def _with_further_dumps(sides_found: Sides, options: Options, context: ReadContext) -> Sides:
    """Return the runs of both sides, joined with the dumps of --also."""
    from npucmp.workflows.extra_dumps import DumpSide, ExtraDump, join_runs, side_of

    sides = {
        "target": DumpSide(sides_found.target_path, sides_found.targets),
        "golden": DumpSide(sides_found.golden_path, sides_found.goldens),
    }
    also = []
    for side, path in map(ExtraDump.of, options.also):
        runs = options.runs(path, context, golden=side == "golden")
        side = side or side_of(path, runs, sides)
        sides[side] = DumpSide(sides[side].path, join_runs(path, runs, side, sides[side].runs))
        also.append(f"{side}={os.fspath(path)}")
    return sides_found._replace(targets=sides["target"].runs, goldens=sides["golden"].runs, also=tuple(also))


def _with_graphs(sides: Sides, options: Options, context: ReadContext) -> Sides:
    """Return the runs of both sides, annotated with their graphs."""
    from npucmp.workflows.graphs import load_named_graphs, with_graphs

    target, lefts, golden, rights = sides[:4]
    graphs = load_named_graphs(options.graph, [*lefts, *rights], context)
    return sides._replace(
        targets=with_graphs(target, lefts, golden, graphs, context),
        goldens=with_graphs(golden, rights, target, graphs, context),
    )


def compare_runs(sides: Sides, options: Options, paired: Sequence[PairedRuns] = ()) -> Report:
    """Pair open runs, and compare them in this process. `paired` has the pairs of the first steps and ranks, if they
    are known.

    Raises UsageError if no step and rank is in both dumps.
    """
    lefts, rights = sides.readable
    together, unpaired = pair_runs(lefts, rights, options.partners())
    if not together:
        raise UsageError(
            f"no step and rank is in both: {sides.target_path} has {keys(lefts)}, "
            f"{sides.golden_path} has {keys(rights)}{pair_suggestion(lefts, rights)}"
        )
    parts = [sides.parts.get((target.step, target.rank), {}) for target, _ in together]
    source = ComparisonSource(
        sides.target_path, sides.golden_path, together, unpaired, sides.broken, sides.also, parts, paired
    )
    return compare_steps(source, replace(options, **sides.changes))
