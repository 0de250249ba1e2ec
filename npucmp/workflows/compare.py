"""Which operator diverged first, and did it cause it? load → align → measure → judge → roots → Report."""

from __future__ import annotations

import os
import re
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import AbstractSet, Iterator, NamedTuple, Optional, Sequence, Union

from npucmp.align import Alignment, align, pairs
from npucmp.align.extent import extent
from npucmp.dump.context import ReadContext
from npucmp.errors import UsageError
from npucmp.judge.precision import reduced_products
from npucmp.judge.tolerances import Tolerances, load_noise, load_tolerances
from npucmp.judge.verdicts import DEFAULT_RULES
from npucmp.localise.again import ran_again
from npucmp.localise.limits import judged
from npucmp.localise.notes import notes_of
from npucmp.localise.ranks import with_roots
from npucmp.localise.rules import Rulebook
from npucmp.measure.executor import default_jobs
from npucmp.measure.pairs import Closeness, measure_pairs, payload_bytes, values_of
from npucmp.model import Comparison, Measurement, Pair, Report, Run, Tolerance
from npucmp.model.collector import uncollected
from npucmp.workflows.also import Also, Place, joined, side_of
from npucmp.workflows.graphs import loaded, with_graphs
from npucmp.workflows.keywords import of_two
from npucmp.workflows.looks import looks_of
from npucmp.workflows.misfits import unfit_globs, unfit_names, unfit_noise, unfit_tolerances
from npucmp.workflows.runs import Choice, Meter, StrPath, keys, odd_pairs, pair_runs


@dataclass(frozen=True)
class Options(Choice):
    """What a comparison can be told; the command line offers the same under the same names.

    rtol, atol  decide by |x-y| ≤ atol + rtol·|y| instead of by the default rule
    tolerances  rules of the user's own: a file (CSV, TOML), or a list of Tolerance
    trust_statistics  equal statistics (max, min, mean, norm) pass for agreement
    noise       noise.csv of rerun_diff: what differs no more than reruns do is no fault
    strict      what has no partner is a difference too
    skip_rules  names of rules of localise/rules/ that are not to be applied
    journal     a folder in which finished measurements are kept, until the caller removes them (journal.remove)
    resume      what an interrupted run of the same comparison left in the journal is not measured again

    Of these only compare makes use:
    disk        what the next dump may take on a side, in bytes or as a user writes it ("20GB")
    also        further dumps: "target=DUMP", "golden=DUMP", or "DUMP" of the side that it fits
    replay      "suspects" or "all": operators that are held against float64 too (replay_roots.py)
    precheck    whether to say in one line that the runs are not comparable
    """

    rtol: Optional[float] = None
    atol: Optional[float] = None
    tolerances: Union[StrPath, Sequence[Tolerance], None] = None
    trust_statistics: bool = False
    noise: Optional[StrPath] = None
    strict: bool = False
    skip_rules: Sequence[str] = ()
    disk: Union[int, str, None] = None
    also: Sequence[StrPath] = ()
    replay: Optional[str] = None
    precheck: bool = True
    journal: Optional[StrPath] = None
    resume: bool = False

    def context(self, *dumps: StrPath) -> ReadContext:
        return super().context(*dumps, *(Also.of(further).path for further in self.also))

    def decides(self) -> Tolerances:
        """What a user decides by these options."""
        table = self.tolerances
        if isinstance(table, (str, PathLike)):
            table = load_tolerances(Path(table))
        noise = load_noise(Path(self.noise)) if self.noise is not None else {}
        return Tolerances(
            tuple(table or ()), self.rtol is not None or self.atol is not None, self.trust_statistics, noise
        )

    def bytes_on_disk(self) -> Optional[int]:
        """What the next dump may take. Units are powers of 1000, as disks are sold, or with "i" of 1024."""
        if self.disk is None or isinstance(self.disk, int):
            return self.disk
        found = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([KMGTP]?)(i?)B?\s*", self.disk, re.IGNORECASE)
        if not found or not float(found[1]):
            raise UsageError(f"--disk {self.disk}: a positive size is wanted, as in --disk 20GB")
        return int(float(found[1]) * (1024 if found[3] else 1000) ** " KMGTP".index(found[2].upper() or " "))


@of_two(Options)
def compare(target: StrPath, golden: StrPath, options: Options) -> Report:
    """Compares two dumps and returns the Report.

    Raises NpucmpError when there is nothing to compare. Trouble with single tensors is in the report.
    """
    if options.replay not in (None, "suspects", "all"):
        raise UsageError(f"replay is {options.replay!r}", ["suspects", "all"])
    started = time.monotonic()
    context = options.context(target, golden)
    sides = {
        "target": Place(target, options.runs(target, context)),
        "golden": Place(golden, options.runs(golden, context, golden=True)),
    }
    also = []
    for side, path in map(Also.of, options.also):
        runs = options.runs(path, context, golden=side == "golden")
        side = side or side_of(path, runs, sides)
        sides[side] = Place(sides[side].path, joined(path, runs, side, sides[side].runs))
        also.append(f"{side}={os.fspath(path)}")
    lefts, rights = sides["target"].runs, sides["golden"].runs
    graphs = loaded(options.graph, [*lefts, *rights], context)
    lefts = with_graphs(target, lefts, golden, graphs, context)
    rights = with_graphs(golden, rights, target, graphs, context)
    report = compared(Sides(target, lefts, golden, rights, tuple(also)), options, started)
    if options.precheck and not report.partial:
        from npucmp.precheck.line import unlike

        report = replace(report, unlike=unlike(report.comparisons, context), seconds=time.monotonic() - started)
    if options.replay is None or report.partial:
        return report
    from npucmp.workflows.replay_roots import with_replays

    report = with_replays(report, options.replay, context, options.jobs)
    return replace(report, seconds=time.monotonic() - started)


class Sides(NamedTuple):
    """Two dumps and their runs, which know what their graphs tell, and what further dumps hold: `also`, "side=DUMP"."""

    target_path: StrPath
    targets: "list[Run]"
    golden_path: StrPath
    goldens: "list[Run]"
    also: "tuple[str, ...]" = ()


@uncollected()
def compared(sides: Sides, options: Options, started: float) -> Report:
    """Pairs the runs of two dumps, compares them, and finds the roots."""
    tolerances, rules, names = options.decides(), Rulebook(options.skip_rules), options.names()
    disk = options.bytes_on_disk()
    lefts, rights = sides.targets, sides.goldens
    remarks = [*unfit_globs(options, [*lefts, *rights]), *unfit_names(names, lefts, rights)]
    broken = tuple((side, run) for side, runs in (("target", lefts), ("golden", rights)) for run in runs if run.problem)
    lefts, rights = ([run for run in runs if not run.problem] for runs in (lefts, rights))
    together, unpaired = pair_runs(lefts, rights, options.partners())
    if not together:
        raise UsageError(
            f"no step and rank is in both: {sides.target_path} has {keys(lefts)}, "
            f"{sides.golden_path} has {keys(rights)}"
        )
    remarks += odd_pairs(together)
    context = options.context(sides.target_path, sides.golden_path)
    aligned = [(target, golden, align(target, golden, names, context)) for target, golden in together]
    every = [list(pairs(*one)) for one in aligned]
    split = [options.split(some) for some in every]
    todo, left_out = [meant for meant, _ in split], [others for _, others in split]
    remarks += unfit_tolerances(tolerances, (pair for some in todo for pair in some))
    remarks += unfit_noise(tolerances, (pair for some in every for pair in some))
    remarks += [f"judged without {', '.join(options.skip_rules)}"] if options.skip_rules else []
    measured, interrupted = _measured(todo, options, context)
    comparisons = concluded(aligned, todo, measured, tolerances, rules, left_out)
    looks = () if interrupted else looks_of(comparisons, options.jobs or default_jobs(), context)
    return Report(
        paths=(str(sides.target_path), str(sides.golden_path)),
        comparisons=comparisons,
        unpaired=unpaired,
        broken=broken,
        rules=rules_of(tolerances, options, _dtypes(comparisons)),
        notes=(*remarks, *interrupted),
        seconds=time.monotonic() - started,
        bytes_read=sum(finding.measurement.bytes_read for one in comparisons for finding in one.findings),
        partial=sum(map(len, measured)) < sum(map(len, todo)),
        strict=options.strict,
        disk=disk,
        also=sides.also,
        looks=looks,
    )


Aligned = tuple[Run, Run, Alignment]  # the operators of two runs, lined up


def concluded(
    aligned: Sequence[Aligned],
    todo: "Sequence[Sequence[Pair]]",
    measured: "Sequence[Sequence[Measurement]]",
    tolerances: Tolerances,
    rules: Rulebook,
    left_out: "Optional[Sequence[Sequence[Pair]]]" = None,
) -> tuple[Comparison, ...]:
    """What the measurements of runs that belong together say: verdicts, roots and their places. Opens no dump."""
    comparisons, reduced = [], reduced_products(measured)
    unwanted = left_out if left_out is not None else [()] * len(aligned)
    for (target, golden, alignment), some, measurements, others in zip(aligned, todo, measured, unwanted):
        findings = tuple(judged(measurements, tolerances, rules, reduced))
        alone = len(alignment.only_target), len(alignment.only_golden)
        reach = extent(some, target.ordered and golden.ordered, again=ran_again(findings))
        known = findings, (), alignment.matched, alone, reach.words, reach.incomplete
        comparisons.append(Comparison(target, golden, *known, tuple(others)))
    return tuple(
        replace(one, notes=(*one.notes, *notes_of(one.findings, one.roots, reduced)))
        for one in with_roots(comparisons, tolerances.by_round_off, rules)
    )


def _measured(
    todo: "list[list[Pair]]", options: Options, context: ReadContext
) -> "tuple[list[list[Measurement]], tuple[str, ...]]":
    """Measurements of the pairs of each comparison, and notes. Fewer if Ctrl-C ended it: what was done by then."""
    every = [pair for some in todo for pair in some]
    if not every:
        raise UsageError(f"nothing to compare: {options.nothing()}")
    closeness = Closeness(options.rtol, options.atol)
    total = sum(map(payload_bytes, every))
    meter, jobs = Meter(options.progress, total), (options.jobs or default_jobs()) if total else 1
    journal = None
    measured: list[list[Measurement]] = []
    with ExitStack() as stack:
        if options.journal is not None and (total or options.resume):  # statistics were read with the dump
            from npucmp.measure.journal import Journal
            from npucmp.measure.kernel import native

            settings = closeness, options.limits, native.name()
            journal = stack.enter_context(Journal(options.journal, every, settings, options.resume))
        known = iter(journal.known if journal else ())
        try:
            for some in todo:
                measured.append([])
                known_first = list(islice(known, len(some)))
                for measurement, is_new in _each(some, known_first, closeness, jobs, context):
                    measured[-1].append(measurement)
                    if journal and is_new:
                        journal.add(measurement)
                    meter.add(payload_bytes(measurement.pair))
        except KeyboardInterrupt:
            if journal:
                journal.flush()
    count = sum(map(len, measured))
    notes = [journal.note] if journal and journal.note else []
    if count < len(every):
        more = "; the same command with --resume goes on from there" if journal else ""
        notes.append(f"interrupted: {count} of {len(every)} tensors were measured{more}")
    return measured, tuple(notes)


def _each(
    some: "list[Pair]", known: "list[Measurement]", closeness: Closeness, jobs: int, context: ReadContext
) -> "Iterator[tuple[Measurement, bool]]":
    """The measurements of pairs, those of the first of them known, and whether each is a new one."""
    yield from ((measurement, False) for measurement in known)
    read = {values_of(measurement.pair) for measurement in known} - {None}
    for measurement in measure_pairs(some[len(known) :], closeness, jobs, context):
        if values_of(measurement.pair) in read:
            measurement = measurement._replace(bytes_read=0)  # as in a run that was not interrupted
        yield measurement, True


def rules_of(tolerances: Tolerances, options: Options, dtypes: "AbstractSet[str]") -> tuple[Tolerance, ...]:
    """Those that apply to tensors of these types."""
    if tolerances.closeness:
        limit = f"|x-y| ≤ {options.atol or 0.0:g} + {options.rtol or 0.0:g}·|y| everywhere"
        return (Tolerance("mismatch_ratio", 0.0, why=f"{limit}: --rtol and --atol were given"),)
    return tuple(row for row in (*tolerances.table, *DEFAULT_RULES) if row.dtype in ("", *dtypes))


def _dtypes(comparisons: Sequence[Comparison]) -> "set[str]":
    pairs_of = (finding.pair for one in comparisons for finding in one.findings)
    return {tensor.dtype for pair in pairs_of for tensor in (pair.target, pair.golden) if tensor}
