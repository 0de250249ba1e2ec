"""Which operator diverged first, and did it cause it? load → align → measure → judge → roots → Report."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Optional, Sequence

from npucmp.align import Alignment, align_or_part, pairs
from npucmp.align.extent import extent
from npucmp.dump.context import ReadContext
from npucmp.dump.formats import graph_source
from npucmp.errors import UsageError
from npucmp.judge.precision import reduced_products
from npucmp.judge.tolerances import Tolerances
from npucmp.localise.again import ran_again
from npucmp.localise.coverage import coverage_of
from npucmp.localise.limits import judged
from npucmp.localise.notes import notes_of
from npucmp.localise.ranks import with_roots
from npucmp.localise.rules import Rulebook
from npucmp.localise.updated_parameters import with_parameters
from npucmp.model import Comparison, Measurement, Pair, Report, Run, each
from npucmp.model.collector import uncollected
from npucmp.workflows.accused import with_accused
from npucmp.workflows.keywords import of_two
from npucmp.workflows.looks import with_looks
from npucmp.workflows.measuring import measured
from npucmp.workflows.misfits import unfit_globs, unfit_names, unfit_noise, unfit_numbers, unfit_tolerances
from npucmp.workflows.options import Options, rules_of
from npucmp.workflows.runs import StrPath, how_to_pair, keys, odd_pairs, pair_runs
from npucmp.workflows.several_runs import paying


@of_two(Options)
def compare(target: StrPath, golden: StrPath, options: Options) -> Report:
    """Compares two dumps and returns the Report.

    Raises NpucmpError when there is nothing to compare. Trouble with single tensors is in the report.
    """
    if options.replay not in (None, "suspects", "all"):
        raise UsageError(f"replay is {options.replay!r}", ["suspects", "all"])
    started = time.monotonic()
    context = options.context(target, golden)
    report = _compared_apart(target, golden, options) or _compared_at_once(target, golden, options, context, started)
    if options.precheck and not report.partial and report.comparisons:
        (line,) = each(report.comparisons, partial(_unlike, context), numbers=[0])
        report = replace(report, unlike=line, seconds=time.monotonic() - started)
    if options.replay is not None and not report.partial:
        from npucmp.workflows.replay_roots import with_replays

        report = with_replays(report, options.replay, context, options.jobs)
    report = with_looks(report, options, context, vendor=True)
    if not report.partial:
        report = with_accused(report, context)
    return replace(report, seconds=time.monotonic() - started)


def _compared_apart(target: StrPath, golden: StrPath, options: Options) -> Optional[Report]:
    """Of many steps and ranks each by itself, so that no more than a few are in memory; None of others."""
    pairing = paying(target, golden, options) if options.executor is None else None
    if options.executor is None and pairing is None:
        return None
    from npucmp.workflows.shards import compared_in_shards

    return compared_in_shards(target, golden, options, pairing)


def _unlike(context: ReadContext, _: int, one: Comparison) -> str:
    from npucmp.run_differences.warning import comparability_warning

    return comparability_warning([one], context)


def _compared_at_once(
    target: StrPath, golden: StrPath, options: Options, context: ReadContext, started: float
) -> Report:
    sides = Sides(target, options.runs(target, context), golden, options.runs(golden, context, golden=True))
    if options.also:
        sides = _with_further_dumps(sides, options, context)
    if options.graph or any(graph_source(run.format) is not None for run in (*sides.targets, *sides.goldens)):
        sides = _with_graphs(sides, options, context)
    return compared(sides, options, started)


class Sides(NamedTuple):
    """Two dumps and their runs, which know what their graphs tell, and what further dumps hold: `also`, "side=DUMP"."""

    target_path: StrPath
    targets: list[Run]
    golden_path: StrPath
    goldens: list[Run]
    also: tuple[str, ...] = ()


def _with_further_dumps(given: Sides, options: Options, context: ReadContext) -> Sides:
    """The runs of both sides, joined by what --also names."""
    from npucmp.workflows.also import Also, Place, joined, side_of

    sides = {"target": Place(given.target_path, given.targets), "golden": Place(given.golden_path, given.goldens)}
    also = []
    for side, path in map(Also.of, options.also):
        runs = options.runs(path, context, golden=side == "golden")
        side = side or side_of(path, runs, sides)
        sides[side] = Place(sides[side].path, joined(path, runs, side, sides[side].runs))
        also.append(f"{side}={os.fspath(path)}")
    return given._replace(targets=sides["target"].runs, goldens=sides["golden"].runs, also=tuple(also))


def _with_graphs(sides: Sides, options: Options, context: ReadContext) -> Sides:
    """The runs of both sides, which know what their graphs tell."""
    from npucmp.workflows.graphs import loaded, with_graphs

    target, lefts, golden, rights, _ = sides
    graphs = loaded(options.graph, [*lefts, *rights], context)
    return sides._replace(
        targets=with_graphs(target, lefts, golden, graphs, context),
        goldens=with_graphs(golden, rights, target, graphs, context),
    )


@uncollected()
def compared(sides: Sides, options: Options, started: float) -> Report:
    """Pairs the runs of two dumps, compares them, and finds the roots."""
    tolerances, rules, names = options.decides(), Rulebook(options.skip_rules), options.names()
    disk = options.bytes_on_disk()
    lefts, rights = sides.targets, sides.goldens
    remarks = [*unfit_numbers(options, [*lefts, *rights]), *unfit_globs(options, [*lefts, *rights])]
    remarks += unfit_names(names, lefts, rights)
    broken = tuple((side, run) for side, runs in (("target", lefts), ("golden", rights)) for run in runs if run.problem)
    lefts, rights = ([run for run in runs if not run.problem] for runs in (lefts, rights))
    together, unpaired = pair_runs(lefts, rights, options.partners())
    if not together:
        raise UsageError(
            f"no step and rank is in both: {sides.target_path} has {keys(lefts)}, "
            f"{sides.golden_path} has {keys(rights)}{how_to_pair(lefts, rights)}"
        )
    remarks += odd_pairs(together)
    context = options.context(sides.target_path, sides.golden_path)
    lined_up = [align_or_part(*both, names, context) for both in together]
    unlike = [error for _, error in lined_up if error is not None]
    if len(unlike) == len(together):
        raise unlike[0]
    remarks += map(str, unlike)
    aligned = [(*both, alignment) for both, (alignment, _) in zip(together, lined_up)]
    every = [list(pairs(*one)) for one in aligned]
    split = [options.split(some) for some in every]
    todo, left_out = [meant for meant, _ in split], [others for _, others in split]
    remarks += unfit_tolerances(tolerances, (pair for some in todo for pair in some))
    remarks += unfit_noise(tolerances, (pair for some in every for pair in some))
    remarks += [f"judged without {', '.join(options.skip_rules)}"] if options.skip_rules else []
    found, interrupted = measured(todo, options, context)
    comparisons = concluded(aligned, todo, found, tolerances, rules, left_out, context)
    return Report(
        paths=(str(sides.target_path), str(sides.golden_path)),
        comparisons=comparisons,
        unpaired=unpaired,
        broken=broken,
        rules=rules_of(tolerances, options, _dtypes(comparisons)),
        notes=(*remarks, *interrupted),
        seconds=time.monotonic() - started,
        bytes_read=sum(finding.measurement.bytes_read for one in comparisons for finding in one.findings),
        partial=sum(map(len, found)) < sum(map(len, todo)),
        strict=options.strict,
        least=options.coverage,
        excluded=options.excluded(),
        disk=disk,
        also=sides.also,
    )


Aligned = tuple[Run, Run, Alignment]  # the operators of two runs, lined up


def concluded(
    aligned: Sequence[Aligned],
    todo: Sequence[Sequence[Pair]],
    measured: Sequence[Sequence[Measurement]],
    tolerances: Tolerances,
    rules: Rulebook,
    left_out: Optional[Sequence[Sequence[Pair]]] = None,
    context: Optional[ReadContext] = None,
) -> tuple[Comparison, ...]:
    """What the measurements of runs that belong together say: verdicts, roots, their places, and the coverage, for
    which tensors that one side has alone are read within `context`."""
    comparisons, reduced = [], reduced_products(measured)
    unwanted = left_out if left_out is not None else [()] * len(aligned)
    for (target, golden, alignment), some, measurements, others in zip(aligned, todo, measured, unwanted):
        notes: tuple[str, ...] = ()
        if not (target.ordered or golden.ordered):
            from npucmp.localise.execution_order import in_content_order

            measurements, others, notes = in_content_order(target, golden, measurements, others)
            some = [one.pair for one in measurements] if notes else some
        findings = tuple(judged(measurements, tolerances, rules, reduced))
        alone = len(alignment.only_target), len(alignment.only_golden)
        reach = extent(some, target.ordered and golden.ordered, again=ran_again(findings))
        known = findings, (), alignment.matched, alone, (*reach.words, *notes)
        comparisons.append(Comparison(target, golden, *known, left_out=tuple(others)))
    return tuple(
        replace(
            one,
            roots=with_parameters(one.findings, one.roots),
            notes=(*one.notes, *notes_of(one.findings, one.roots, reduced)),
            coverage=coverage_of(one.findings, one.left_out, context),
        )
        for one in with_roots(comparisons, tolerances.by_round_off, rules)
    )


def _dtypes(comparisons: Sequence[Comparison]) -> set[str]:
    pairs_of = (finding.pair for one in comparisons for finding in one.findings)
    return {tensor.dtype for pair in pairs_of for tensor in (pair.target, pair.golden) if tensor}
