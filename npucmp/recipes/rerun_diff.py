"""Which operator gives different bits for the same bits, in two or more runs of the same thing."""

from __future__ import annotations

import math
import re
import time
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Callable, Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.align import align, pairs
from npucmp.bits import judge_bits, measure_bits, pattern, same
from npucmp.errors import UsageError
from npucmp.evidence import RANDOM
from npucmp.model import Cause, Comparison, Finding, Noise, Pair, Report, Rerun, Root, Run, Verdict
from npucmp.nodes import is_output
from npucmp.recipes.compare import Options, payload_bytes
from npucmp.recipes.graphs import loaded, with_graphs
from npucmp.recipes.rerun_causes import causes, differs, settled
from npucmp.recipes.runs import StrPath, pair_runs
from npucmp.runner import default_jobs, run

ASYNCHRONOUS = re.compile(
    r"^_*(i?send|i?recv|receive|broadcast)$|batch_isend_irecv|all_?(reduce|gather|to_?all)|reduce_?scatter|^Hcom",
    re.IGNORECASE,
)
NO_REPEATS = "these runs are not repeats"
FED = "already differs"  # in the evidence of what a run was given, as evidence.py writes it
RANK = {Cause.BORN: 1, Cause.GAP: 1, Cause.UNKNOWN: 2, Cause.PROPAGATED: 3}
PATTERNS = 50  # operators whose differing elements are looked at one by one


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
        found: list[Comparison] = []
        for target, golden in together if not partial else ():
            comparison, partial = _compare(target, golden, options)
            found.append(comparison)
            if partial:
                break
        comparisons += settled(found)
        numbers += [number] * len(found)
    if not comparisons:
        raise UsageError(f"no step and rank of the first run is in another: {', '.join(map(str, paths))}")
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
        notes=tuple(_notes(reruns, comparisons, numbers, len(paths))),
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
    final, roots = causes(findings)
    alone = len(alignment.only_target), len(alignment.only_golden)
    return Comparison(target, golden, tuple(final), tuple(roots), alignment.matched, alone), partial


def _names(pair: Pair) -> "list[str]":
    return [operator.name for operator in (pair.target_op, pair.golden_op) if operator is not None]


class _Seen(NamedTuple):
    """One operator that differs between the first run and run `number`: its root, and all its tensors that differ.

    `harmless` are the slots of inputs that hold the same values in other bits: zeros of another sign, other NaNs.
    """

    root: Root
    findings: tuple[Finding, ...]
    number: int
    harmless: tuple[str, ...] = ()

    @property
    def finding(self) -> Optional[Finding]:
        """That of the slot that stands for the operator."""
        return next((one for one in self.findings if one.pair.slot == self.root.slot), None)


def _reruns(comparisons: "Sequence[Comparison]", numbers: "Sequence[int]", runs: int) -> "tuple[Rerun, ...]":
    """One row per operator that is not bit-equal in all runs, the one to look at first on top."""
    seen: dict[Place, list[_Seen]] = defaultdict(list)
    for comparison, number in zip(comparisons, numbers):
        different, other_bits = (_by_operator(comparison, wanted) for wanted in (differs, _is_harmless))
        for root in comparison.roots:
            order = root.pair.order
            slots = tuple(finding.pair.slot for finding in other_bits[order])
            seen[_place(comparison, root.pair)].append(_Seen(root, tuple(different[order]), number, slots))
    ranked = sorted(seen.items(), key=lambda one: (*_rank(one[1]), one[0]))
    return tuple(
        _rerun(number, place, some, runs, number <= PATTERNS) for number, (place, some) in enumerate(ranked, 1)
    )


def _by_operator(comparison: Comparison, wanted: "Callable[[Finding], bool]") -> "Mapping[int, list[Finding]]":
    found: dict[int, list[Finding]] = defaultdict(list)
    for finding in filter(wanted, comparison.findings):
        found[finding.pair.order].append(finding)
    return found


def _is_harmless(finding: Finding) -> bool:
    """Whether an input holds the same values in other bits."""
    moments = finding.measurement.moments
    if moments is None or finding.verdict is not Verdict.MATCH or is_output(finding.pair):
        return False
    return moments.equal < moments.count


def _place(comparison: Comparison, pair: Pair) -> Place:
    step = comparison.golden.step if comparison.golden.step is not None else comparison.target.step
    rank = comparison.golden.rank if comparison.golden.rank is not None else comparison.target.rank
    order = pair.golden_op.order if pair.golden_op else pair.order
    return Place(-1 if step is None else step, -1 if rank is None else rank, order)


def _rank(some: "Sequence[_Seen]") -> "tuple[int, bool]":
    """What goes in before births, births before the rest; what is random on purpose after the faults of its kind."""
    worst = _worst(some).root
    return 0 if _is_fed(worst.cause, worst.evidence) else RANK[worst.cause], bool(excuse(worst))


def _worst(some: "Sequence[_Seen]") -> _Seen:
    return min(some, key=lambda one: RANK[one.root.cause])


def _is_fed(cause: Cause, words: str) -> bool:
    """Whether it is an input of the network or a parameter that differs."""
    return cause is Cause.GAP and FED in words


def excuse(root: Root) -> str:
    """Why an operator may give other bits for the same bits without a fault; "" if it may not, or does not."""
    op_type = root.pair.operator.op_type
    if root.cause not in (Cause.BORN, Cause.UNKNOWN):
        return ""
    if RANDOM.search(op_type):
        return "a random operator: it differs unless the runs share seed and generator; switch it off or fix the seed"
    if ASYNCHRONOUS.search(op_type):
        return "a collective: it may have been dumped before it was done, or summed in the order of arrival"
    return ""


def _rerun(place: int, where: Place, some: "Sequence[_Seen]", runs: int, look: bool) -> Rerun:
    worst = _worst(some)
    root, finding = worst.root, worst.finding
    moments = [one.finding.measurement.moments for one in some if one.finding is not None]
    known = [m for m in moments if m is not None]
    evidence = _told(root.evidence, worst.number)
    if worst.harmless:
        evidence = evidence.replace("inputs agree (bit for bit)", "inputs agree (in value)")
    words = [evidence, _changed_on_the_way(finding) if root.cause is Cause.GAP else ""]
    if worst.harmless:
        words.append(
            f"{', '.join(worst.harmless)}: the same values in other bits; a zero's sign or a NaN may matter here"
        )
    if look and root.cause is not Cause.PROPAGATED and finding is not None:
        words.append(pattern(finding.measurement))
    if "a random operator" not in root.evidence:
        words.append(excuse(root))
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
        max_ulp=max((m.max_ulp for m in known if m.max_ulp is not None), default=None),
        odd=_odd(some, runs),
        because="; ".join(filter(None, words)),
        excused=bool(excuse(root)),
    )


def _told(evidence: str, number: int) -> str:
    """The sentences that were made for target and golden, of runs."""
    return evidence.replace("the target", f"run {number}").replace("the golden", "run 1")


def _changed_on_the_way(finding: Optional[Finding]) -> str:
    """Of an input whose producer is known by its content."""
    source = finding.pair.golden.source if finding is not None and finding.pair.golden is not None else ""
    return f"{source.rpartition(':')[0]} wrote it, the same in both runs: it was changed on the way" if source else ""


def _odd(some: "Sequence[_Seen]", runs: int) -> "tuple[int, ...]":
    """The runs, from 1, that do not agree with the most; all of them where no two agree."""
    numbers = [one.number for one in some]
    classes: list[list[int]] = [[number for number in range(1, runs + 1) if number not in numbers]]
    heads: list[_Seen] = []
    for one in some:
        place = next((place for place, head in enumerate(heads) if _agree(one, head)), None)
        if place is None:
            heads.append(one)
            classes.append([one.number])
        else:
            classes[place + 1].append(one.number)
    largest = max(classes, key=len)
    if len(largest) == 1:
        return tuple(range(1, runs + 1))
    return tuple(sorted(number for members in classes if members is not largest for number in members))


def _agree(one: _Seen, other: _Seen) -> bool:
    """Whether two runs that differ from the first do so alike; figures that differ settle it without reading."""
    left = {finding.pair.slot: finding for finding in one.findings}
    right = {finding.pair.slot: finding for finding in other.findings}
    if left.keys() != right.keys():
        return False
    moments = [(left[slot].measurement.moments, right[slot].measurement.moments) for slot in left]
    if any(a and b and (a.target, a.sum_dd) != (b.target, b.sum_dd) for a, b in moments):
        return False
    return all(_same_tensor(left[slot].pair, right[slot].pair) for slot in left)


def _same_tensor(one: Pair, other: Pair) -> bool:
    return one.target is not None and other.target is not None and bool(same(one.target, other.target, one))


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


def _notes(
    reruns: "Sequence[Rerun]", comparisons: "Sequence[Comparison]", numbers: "Sequence[int]", runs: int
) -> "Iterable[str]":
    inputs = [one for one in reruns if _is_fed(one.cause, one.because)]
    if inputs:
        names = ", ".join(f"{one.pair.operator.name} {one.slot}" for one in inputs[:3])
        yield (
            f"{NO_REPEATS}: what goes in differs already ({names}{' …' if len(inputs) > 3 else ''}); fix seeds, data "
            "order, weights and the determinism switches first (docs/workflow.md)"
        )
    for comparison, number in zip(comparisons, numbers):
        yield from _only_in_one(comparison, number)
    odd = Counter(number for one in reruns if len(one.odd) < runs for number in one.odd)
    if runs > 2 and odd:
        number, times = odd.most_common(1)[0]
        yield f"run {number} is the odd one out in {times} of {len(reruns)} operators that differ"


def _only_in_one(comparison: Comparison, number: int) -> "Iterable[str]":
    """Operators that one of two runs lacks: they did not do the same."""
    for there, missing, side in ((number, 1, "golden_op"), (1, number, "target_op")):
        alone = [f.pair for f in comparison.findings if f.verdict is Verdict.MISSING and getattr(f.pair, side) is None]
        names = list(dict.fromkeys(pair.operator.name for pair in alone))
        if names:
            more = " …" if len(names) > 3 else ""
            yield f"not in run {missing}, but in run {there}: {', '.join(names[:3])}{more} ({len(names)} in all)"


def _noise(comparisons: "Sequence[Comparison]", runs: int) -> "Iterable[Noise]":
    """Per tensor the largest distance of any run from the first; none where it is not known."""
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
