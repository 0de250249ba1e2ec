"""Which operator gives different bits for the same bits, in two or more runs of the same thing."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Iterable, NamedTuple, Optional, Sequence

from npucmp.align import align, pairs
from npucmp.bits import judge_bits, measure_bits, pattern, same
from npucmp.errors import UsageError
from npucmp.evidence import RANDOM
from npucmp.model import Cause, Comparison, Finding, Noise, Pair, Report, Rerun, Root, Run, TensorRef, Verdict
from npucmp.recipes.compare import Options, payload_bytes
from npucmp.recipes.graphs import loaded, with_graphs
from npucmp.recipes.runs import StrPath, pair_runs
from npucmp.roots import find_roots
from npucmp.runner import default_jobs, run

ASYNCHRONOUS = re.compile(r"irecv|isend|all_reduce|all_gather|reduce_scatter|all_to_all|broadcast", re.IGNORECASE)
RANK = {Cause.BORN: 0, Cause.GAP: 0, Cause.UNKNOWN: 1, Cause.PROPAGATED: 2, Cause.WORSENED: 2}
PATTERNS = 50  # operators whose differing elements are looked at one by one
DIFFERS = (Verdict.DIVERGED, Verdict.NONFINITE, Verdict.SHAPE)


class Place(NamedTuple):
    """An operator of the first run."""

    step: int
    rank: int
    order: int


def rerun_diff(paths: "Sequence[StrPath]", options: Optional[Options] = None, **more: object) -> Report:
    """Compares all runs with the first, bit for bit; keyword arguments are the fields of Options.

    Raises NpucmpError when there are fewer than two runs or nothing to compare. Trouble with single tensors is in the
    report.
    """
    options = replace(options or Options(), **more)  # type: ignore[arg-type]
    if len(paths) < 2:
        raise UsageError("give at least two runs of the same thing")
    started = time.monotonic()
    opened = [options.runs(path) for path in paths]
    graphs = loaded(options.graph, [one for some in opened for one in some])
    sides = [
        with_graphs(path, [one for one in some if not one.problem], paths[0], graphs)
        for path, some in zip(paths, opened)
    ]
    broken = tuple(("target", one) for some in opened for one in some if one.problem)
    unpaired: list[tuple[str, Run]] = []
    comparisons: list[Comparison] = []
    numbers: list[int] = []
    partial = False
    for number, side in enumerate(sides[1:], 2):
        together, alone = pair_runs(side, sides[0])
        unpaired += alone
        for target, golden in together:
            comparison, partial = _compare(target, golden, options)
            comparisons.append(comparison)
            numbers.append(number)
            if partial:
                break
    if not comparisons:
        raise UsageError(f"no step and rank is in all runs: {', '.join(map(str, paths))}")
    if not partial and not any(one.findings for one in comparisons):
        raise UsageError("nothing to compare: no operator passes --include and --exclude")
    reruns = _reruns(comparisons, numbers, len(paths))
    return Report(
        command="rerun-diff",
        target_path=str(paths[1]),
        golden_path=str(paths[0]),
        comparisons=_placed(comparisons, reruns),
        unpaired=tuple(unpaired),
        broken=broken,
        notes=tuple(_notes(reruns, len(paths))),
        seconds=time.monotonic() - started,
        bytes_read=sum(finding.measurement.bytes_read for one in comparisons for finding in one.findings),
        partial=partial,
        strict=options.strict,
        runs=tuple(map(str, paths)),
        reruns=reruns,
        noise=tuple(_noise(comparisons, len(paths))),
    )


def _compare(target: Run, golden: Run, options: Options) -> "tuple[Comparison, bool]":
    alignment = align(target, golden, options.names())
    todo = [pair for pair in pairs(target, golden, alignment) if options.wants(*_names(pair))]
    total, done, partial = sum(map(payload_bytes, todo)), 0, False
    findings: list[Finding] = []
    try:
        for measurement in run(measure_bits, todo, options.jobs or default_jobs()):
            findings.append(judge_bits(measurement))
            done += payload_bytes(measurement.pair)
            if options.progress:
                options.progress(done, total)
    except KeyboardInterrupt:
        partial = True
    final, roots = find_roots(findings, by_round_off=False)
    roots = [replace(root, cause=Cause.PROPAGATED) if root.cause is Cause.WORSENED else root for root in roots]
    alone = len(alignment.only_target), len(alignment.only_golden)
    return Comparison(target, golden, tuple(final), tuple(roots), alignment.matched, alone), partial


def _names(pair: Pair) -> "list[str]":
    return [operator.name for operator in (pair.target_op, pair.golden_op) if operator is not None]


class _Seen(NamedTuple):
    """One operator that differs between the first run and run `number`."""

    root: Root
    finding: Optional[Finding]
    number: int


def _reruns(comparisons: "Sequence[Comparison]", numbers: "Sequence[int]", runs: int) -> "tuple[Rerun, ...]":
    """One row per operator that is not bit-equal in all runs, the one to look at first on top."""
    seen: dict[Place, list[_Seen]] = defaultdict(list)
    for comparison, number in zip(comparisons, numbers):
        by_slot = {(finding.pair.order, finding.pair.slot): finding for finding in comparison.findings}
        for root in comparison.roots:
            place = _place(comparison, root.pair)
            seen[place].append(_Seen(root, by_slot.get((root.pair.order, root.slot)), number))
    ranked = sorted(seen.items(), key=lambda one: (_rank(one[1]), one[0]))
    return tuple(
        _rerun(number, place, some, runs, number <= PATTERNS) for number, (place, some) in enumerate(ranked, 1)
    )


def _place(comparison: Comparison, pair: Pair) -> Place:
    step = comparison.golden.step if comparison.golden.step is not None else comparison.target.step
    rank = comparison.golden.rank if comparison.golden.rank is not None else comparison.target.rank
    order = pair.golden_op.order if pair.golden_op else pair.order
    return Place(-1 if step is None else step, -1 if rank is None else rank, order)


def _rank(some: "Sequence[_Seen]") -> "tuple[int, bool]":
    """Births before the rest; operators that are random on purpose after the faults of their kind."""
    return min(RANK[one.root.cause] for one in some), bool(excuse(some[0].root.pair))


def excuse(pair: Pair) -> str:
    """Why an operator may differ between runs without a fault; "" if it may not."""
    if RANDOM.search(pair.operator.op_type):
        return "a random operator: it differs unless the runs share seed and generator; switch it off or fix the seed"
    if ASYNCHRONOUS.search(pair.operator.op_type):
        return "a collective: it may have been dumped before it was done, or summed in the order of arrival"
    return ""


def _rerun(place: int, where: Place, some: "Sequence[_Seen]", runs: int, look: bool) -> Rerun:
    worst = min(some, key=lambda one: RANK[one.root.cause])
    root = worst.root
    moments = [one.finding.measurement.moments for one in some if one.finding is not None]
    known = [m for m in moments if m is not None]
    ulps = [m.max_ulp for m in known if m.max_ulp is not None]
    words = [root.evidence]
    if look and root.cause is not Cause.PROPAGATED and worst.finding is not None and known:
        words.append(pattern(worst.finding.pair, max(ulps, default=None)))
    words.append(excuse(root.pair))
    return Rerun(
        place=place,
        step=None if where.step < 0 else where.step,
        rank=None if where.rank < 0 else where.rank,
        pair=root.pair,
        slot=root.slot,
        cause=root.cause,
        differing=max((m.count - m.equal for m in known), default=None),
        max_abs=max((m.max_abs for m in known), default=None),
        rel_l2=max((one.finding.error for one in some if one.finding and one.finding.error is not None), default=None),
        max_ulp=max(ulps, default=None),
        odd=_odd(some, runs) if look or len({one.number for one in some}) == 1 else (),
        because="; ".join(filter(None, words)),
        excused=bool(excuse(root.pair)),
    )


def _odd(some: "Sequence[_Seen]", runs: int) -> "tuple[int, ...]":
    """The runs, from 1, that do not agree with the most; all of them where no two agree."""
    differing = {one.number: one for one in some}
    classes: list[list[int]] = [[number for number in range(1, runs + 1) if number not in differing]]
    for number, one in differing.items():
        tensor = _tensor(one)
        for members in classes[1:]:
            other = _tensor(differing[members[0]])
            if tensor is not None and other is not None and same(tensor, other, one.root.pair):
                members.append(number)
                break
        else:
            classes.append([number])
    largest = max(classes, key=len)
    if len(largest) == 1:
        return tuple(range(1, runs + 1))
    return tuple(number for members in classes if members is not largest for number in sorted(members))


def _tensor(one: _Seen) -> Optional[TensorRef]:
    return one.finding.pair.target if one.finding is not None else None


def _placed(comparisons: "Sequence[Comparison]", reruns: "Sequence[Rerun]") -> "tuple[Comparison, ...]":
    """The comparisons, each root with the place of its operator."""
    places = {(one.step, one.rank, one.pair.golden_op.order if one.pair.golden_op else one.pair.order): one.place
              for one in reruns}  # fmt: skip
    placed = []
    for comparison in comparisons:
        roots = []
        for root in comparison.roots:
            step, rank, order = _place(comparison, root.pair)
            key = None if step < 0 else step, None if rank < 0 else rank, order
            roots.append(replace(root, place=places.get(key, 0)))
        placed.append(replace(comparison, roots=tuple(roots)))
    return tuple(placed)


def _notes(reruns: "Sequence[Rerun]", runs: int) -> "Iterable[str]":
    inputs = [one for one in reruns if one.cause is Cause.GAP and "already differs" in one.because]
    if inputs:
        names = ", ".join(f"{one.pair.operator.name} {one.slot}" for one in inputs[:3])
        yield (
            f"these runs are not repeats: what goes in differs already ({names}); fix seeds, data order and the "
            "determinism switches first (docs/workflow.md)"
        )
    odd = Counter(number for one in reruns if len(one.odd) < runs for number in one.odd)
    if runs > 2 and odd:
        number, times = odd.most_common(1)[0]
        yield f"run {number} is the odd one out in {times} of {len(reruns)} operators that differ"


def _noise(comparisons: "Sequence[Comparison]", runs: int) -> "Iterable[Noise]":
    """Per tensor the largest distance of any run from the first."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for comparison in comparisons:
        for finding in comparison.findings:
            pair, moments = finding.pair, finding.measurement.moments
            if pair.golden_op is None or pair.golden is None or finding.error is None or finding.error != finding.error:
                continue
            key = pair.golden_op.name, pair.golden.slot
            size = moments.max_abs if moments is not None else 0.0
            before = found.get(key, (0.0, 0.0))
            found[key] = max(before[0], finding.error), max(before[1], size)
    return [Noise(op, slot, rel_l2, size, runs) for (op, slot), (rel_l2, size) in found.items()]
