"""Find the operators that give different bits for equal input bits, in two or more runs of the same network."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace
from os import PathLike
from typing import Iterable, Mapping, Sequence

from npucmp.align import align, pairs
from npucmp.align.pairing_coverage import extent
from npucmp.dump.formats import may_hold_weights
from npucmp.dump.limits import ReadContext
from npucmp.errors import UsageError
from npucmp.judge.bitwise import judge_bits
from npucmp.localise.coverage import coverage_of
from npucmp.localise.evidence import is_fed
from npucmp.localise.notes import notes_of
from npucmp.measure.bitwise import measure_bits
from npucmp.measure.executor import default_jobs
from npucmp.measure.pairs import map_pairs, payload_bytes
from npucmp.model import Cause, Comparison, Finding, Noise, Rerun, RerunResult, Run, Verdict, first_of
from npucmp.model.relation import WeightFacts
from npucmp.reruns.causes import with_causes
from npucmp.reruns.table import FirstRunPlace, ParameterFaults, place_of, reruns_of
from npucmp.workflows.graphs import load_named_graphs, with_graphs
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import Options, of_one
from npucmp.workflows.select_runs import ProgressMeter, odd_pairs, pair_runs
from npucmp.workflows.unused_options import unfit_globs, unfit_names

NO_REPEATS = "these runs are not repeats"


@of_one(Options, "give the runs as one list: rerun_diff([first, second])")
def rerun_diff(paths: Sequence[StrPath], options: Options) -> RerunResult:
    """Compare all runs with the first, bit for bit.

    Raises NpucmpError if there are fewer than two runs or nothing to compare. Errors of single tensors are in the
    report.
    """
    if isinstance(paths, (str, PathLike)) or len(paths) < 2:
        raise UsageError("give at least two runs of the same network")
    started = time.monotonic()
    context = options.context(*paths)
    opened, of_weights = _opened(paths, options, context)
    graphs = load_named_graphs(options.graph, [one for runs_of in opened for one in runs_of], context)
    sides = [
        runs_of
        if of_weights
        else with_graphs(path, [one for one in runs_of if not one.problem], paths[0], graphs, context)
        for path, runs_of in zip(paths, opened)
    ]
    remarks = unfit_globs(options, [one for runs_of in sides for one in runs_of])
    remarks += unfit_names(options.names(), [one for runs_of in sides[1:] for one in runs_of], sides[0])
    broken = tuple(("target", one) for runs_of in opened for one in runs_of if one.problem)
    unpaired: list[tuple[str, Run]] = []
    comparisons: list[Comparison] = []
    numbers: list[int] = []
    interrupted = False
    for number, side in enumerate(sides[1:], 2):
        together, alone = pair_runs(side, sides[0])
        unpaired += alone
        remarks += odd_pairs(together, (f"run {number}", "run 1"))
        found: list[Comparison] = []
        for target, golden in together if not interrupted else ():
            comparison, interrupted = _compare(target, golden, number, options, context)
            found.append(comparison)
            if interrupted:
                break
        comparisons += with_causes(found, context)
        numbers += [number] * len(found)
    comparisons = [replace(one, notes=(*one.notes, *notes_of(one.findings, one.roots))) for one in comparisons]
    if not comparisons:
        raise UsageError(f"no step and rank of the first run is in another: {', '.join(map(str, paths))}")
    if not interrupted and not any(one.findings for one in comparisons):
        raise UsageError(f"nothing to compare: {options.nothing()}")
    faults = ParameterFaults(comparisons, context) if of_weights else None
    found_at = reruns_of(comparisons, numbers, context, faults)
    if of_weights:  # no operator reads a parameter of a checkpoint
        found_at = {key: replace(one, cause=Cause.GAP) for key, one in found_at.items()}
        comparisons = [
            replace(one, roots=tuple(replace(root, cause=Cause.GAP) for root in one.roots)) for one in comparisons
        ]
    reruns = tuple(found_at.values())
    return RerunResult(
        paths=tuple(map(str, paths)),
        comparisons=tuple(_with_places(one, found_at) for one in comparisons),
        weights=WeightFacts() if of_weights else None,
        unpaired=tuple(unpaired),
        broken=broken,
        notes=(*remarks, *_notes(reruns, comparisons, numbers, len(paths))),
        seconds=time.monotonic() - started,
        bytes_read=sum(finding.measurement.bytes_read for one in comparisons for finding in one.findings),
        partial=interrupted,
        strict=options.strict,
        least=options.coverage,
        excluded=options.exclusion_words(),
        warnings=tuple(_warnings(reruns)),
        reruns=reruns,
        noise=tuple(_noise(comparisons, len(paths))),
    )


def _opened(paths: Sequence[StrPath], options: Options, context: ReadContext) -> tuple[list[list[Run]], bool]:
    """Return the runs of each path, and whether all paths are checkpoints, whose ranks are runs."""
    if options.format is None and all(map(may_hold_weights, paths)):
        from npucmp.relations.weights.workflow import checkpoint_runs

        ranks = [checkpoint_runs(path, context) for path in paths]
        known = [one for one in ranks if one is not None]
        if len(known) == len(ranks) and options.step is None and options.rank is None:
            return known, True
    return [options.runs(path, context) for path in paths], False


def _compare(target: Run, golden: Run, number: int, options: Options, context: ReadContext) -> tuple[Comparison, bool]:
    alignment = align(target, golden, options.names(), context)
    every = list(pairs(target, golden, alignment))
    todo, left_out = options.split(every)
    meter, stopped = ProgressMeter(options.progress, sum(map(payload_bytes, todo))), False
    findings: list[Finding] = []
    try:
        for measurement in map_pairs(measure_bits, todo, options.jobs or default_jobs(), context):
            findings.append(judge_bits(measurement, context)._replace(row=len(findings)))
            meter.add(payload_bytes(measurement.pair))
    except KeyboardInterrupt:
        stopped = True
    alone = len(alignment.only_target), len(alignment.only_golden)
    reach = extent(todo, target.ordered and golden.ordered, (f"run {number}", "run 1"))
    known = tuple(findings), (), alignment.matched, alone, reach.words, reach.incomplete, tuple(left_out)
    return Comparison(target, golden, *known, coverage_of(findings, left_out, context=None)), stopped


def _with_places(comparison: Comparison, found: Mapping[FirstRunPlace, Rerun]) -> Comparison:
    """Return a comparison with the place of its operator in each root cause."""
    roots = (replace(root, place=found[place_of(comparison, root.pair)].place) for root in comparison.roots)
    return replace(comparison, roots=tuple(roots))


def _warnings(reruns: Sequence[Rerun]) -> Iterable[str]:
    inputs = [one for one in reruns if is_fed(one.cause, one.evidence)]
    if inputs:
        names = first_of([f"{one.pair.operator.name} {one.slot}" for one in inputs])
        yield (
            f"{NO_REPEATS}: their inputs differ already ({names}); fix seeds, data order, weights and the determinism "
            "switches first (docs/workflow.md)"
        )


def _notes(
    reruns: Sequence[Rerun], comparisons: Sequence[Comparison], numbers: Sequence[int], runs: int
) -> Iterable[str]:
    for comparison, number in zip(comparisons, numbers):
        yield from _only_in_one(comparison, number)
    odd = Counter(number for one in reruns if len(one.odd) < runs for number in one.odd)
    if runs > 2 and odd:
        times = max(odd.values())
        most = sorted(number for number in odd if odd[number] == times)
        who = f"run {most[0]} differs from all others"
        if len(most) > 1:
            who = f"runs {', '.join(map(str, most[:-1]))} and {most[-1]} each differ from all others"
        yield f"{who} in {times} of {len(reruns)} operators that differ"


def _only_in_one(comparison: Comparison, number: int) -> Iterable[str]:
    """Yield notes on operators that one of two runs lacks, since then the runs did not do the same."""
    for there, missing, side in ((number, 1, "golden_op"), (1, number, "target_op")):
        alone = [f.pair for f in comparison.findings if f.verdict is Verdict.MISSING and getattr(f.pair, side) is None]
        names = list(dict.fromkeys(pair.operator.name for pair in alone))
        if names:
            yield f"not in run {missing}, but in run {there}: {first_of(names)} ({len(names)} in all)"


def _noise(comparisons: Sequence[Comparison], runs: int) -> Iterable[Noise]:
    """Return per tensor the largest difference of any run from the first; tensors without a known error are skipped."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for comparison in comparisons:
        for finding in comparison.findings:
            pair, moments = finding.pair, finding.measurement.moments
            if pair.golden_op is None or pair.golden is None or finding.verdict is Verdict.SHAPE:
                continue
            if finding.error is None or math.isnan(finding.error):
                continue
            key = pair.golden_op.name, pair.golden.slot
            size = moments.max_abs if moments is not None else 0.0
            before = found.get(key, (0.0, 0.0))
            found[key] = max(before[0], finding.error), max(before[1], size)
    return [Noise(op, slot, rel_l2, size, runs) for (op, slot), (rel_l2, size) in found.items()]
