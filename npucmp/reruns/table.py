"""One row per operator that is not bit-equal in all runs: its figures, the run that differs, and the cause.

Inputs of the network and parameters that differ come first: the runs are no repeats. BORN and GAP follow by step, rank
and graph order, then UNKNOWN, then PROPAGATED; random operators and collectives come behind the others of their cause.
With three runs or more, an operator has the gravest cause that it has in any of them, and the largest figures. Runs
agree at an operator if they differ from the first run in the same tensors and hold the same values there. The largest
group is right, at a tie the group with the earliest run; if no two runs agree, none is.

Parameters that differ between the checkpoints of two runs are described in the words of weight_faults.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import Any, Callable, Collection, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.judge.bitwise import same
from npucmp.localise.evidence import is_fed
from npucmp.localise.root_order import SEVERITY
from npucmp.localise.rule_context import differs, error_size
from npucmp.measure.bitwise import PLACES, BitDifferences
from npucmp.model import Cause, Comparison, Evidence, Fact, Finding, Operator, Pair, Rerun, Root, TensorRef, Verdict
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_output
from npucmp.relations.weights.checkpoint_pair import CheckpointPair
from npucmp.relations.weights.limits import limit_of
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.role import named_role
from npucmp.relations.weights.weight_faults import DIFFERS, FaultFinder
from npucmp.reruns.pattern import differing_elements, pattern


class ParameterFaults:
    """The evidence of parameters that differ, by their names in both runs. No kernel computed them."""

    def __init__(self, comparisons: Sequence[Comparison], context: ReadContext) -> None:
        self._finders: dict[int, FaultFinder] = {}  # by the operator of a parameter
        for comparison in comparisons:
            pairs = [pair for finding in comparison.findings if (pair := _checkpoint_pair(finding)) is not None]
            finder = FaultFinder(pairs, 1, context)
            self._finders.update({id(operator): finder for operator in comparison.target.operators})

    def evidence(self, finding: Finding) -> tuple[Evidence, ...]:
        """Return what the parameter of a finding is in the later run; () if its values just differ."""
        pair = _checkpoint_pair(finding)
        fault = self._finders[id(finding.pair.target_op)].fault(pair) if pair is not None else DIFFERS
        if fault == DIFFERS:
            return ()
        return (Evidence("weight", fault.words, {name: Fact(value) for name, value in fault.facts.items()}),)


def _checkpoint_pair(finding: Finding) -> Optional[CheckpointPair]:
    pair = finding.pair
    if pair.target is None or pair.golden is None or pair.target_op is None or pair.golden_op is None:
        return None
    target, golden = _part(pair.target_op, pair.target), _part(pair.golden_op, pair.golden)
    return CheckpointPair(golden.role, target, golden, limit_of(target, golden))


def _part(operator: Operator, tensor: TensorRef) -> Part:
    return Part(named_role(operator.name).role, tensor.payload, operator.name, tensor.file, tensor.dtype)


PATTERNS = 50  # operators: work: number of operators whose differing elements are examined
OTHER_BITS = "{slots}: the same values in other bits"
MAY_MATTER = Evidence("other bits", "a zero's sign or a NaN may matter here")


class FirstRunPlace(NamedTuple):
    """The place of an operator in the first run; -1 if the dump does not record it."""

    step: int
    rank: int
    order: int


class _OperatorRuns(NamedTuple):
    """One operator that differs between the first run and run `number`: its root, and all its tensors that differ.

    `harmless` are the slots of inputs that hold the same values in other bits: zeros of another sign, other NaNs.
    """

    root: Root
    findings: tuple[Finding, ...]
    number: int
    harmless: tuple[str, ...] = ()

    @property
    def finding(self) -> Optional[Finding]:
        """The finding of the root's slot."""
        return next((one for one in self.findings if one.pair.slot == self.root.slot), None)


def reruns_of(
    comparisons: Sequence[Comparison],
    numbers: Sequence[int],
    context: ReadContext = ANYWHERE,
    parameters: Optional[ParameterFaults] = None,
) -> dict[FirstRunPlace, Rerun]:
    """One row per operator that is not bit-equal in all runs, by priority. `parameters` describes those of
    checkpoints."""
    seen: dict[FirstRunPlace, list[_OperatorRuns]] = defaultdict(list)
    for comparison, number in zip(comparisons, numbers):
        different, other_bits = (_by_operator(comparison, wanted) for wanted in (differs, _is_harmless))
        for root in comparison.roots:
            order = root.pair.order
            slots = tuple(finding.pair.slot for finding in other_bits[order])
            seen[place_of(comparison, root.pair)].append(_OperatorRuns(root, tuple(different[order]), number, slots))
    present = _present(seen, comparisons, numbers)
    ranked = sorted(seen.items(), key=lambda one: (*_rank(one[1]), one[0]))
    found = {
        where: _rerun(place, where, operator_runs, present[where], context, parameters)
        for place, (where, operator_runs) in enumerate(ranked, 1)
    }
    return _told_once(found, comparisons)


def _told_once(found: dict[FirstRunPlace, Rerun], comparisons: Sequence[Comparison]) -> dict[FirstRunPlace, Rerun]:
    """Return the rows. Operators of one type that differ in the same slot for the same reason refer to the first of
    them, which has their number."""
    groups: dict[tuple[Any, ...], list[FirstRunPlace]] = defaultdict(list)
    for where, rerun in found.items():
        if rerun.cause is Cause.BORN:
            hints = tuple(one.words for one in rerun.evidence if one.kind in ("hint", "random", "asynchronous"))
            groups[_kind_of(rerun.pair), rerun.slot, rerun.odd, hints].append(where)
    several = {key: places for key, places in groups.items() if len(places) > 1}
    if not several:
        return found
    every: dict[tuple[Any, ...], set[FirstRunPlace]] = defaultdict(set)
    for comparison in comparisons:
        for finding in comparison.findings:
            every[_kind_of(finding.pair), finding.pair.slot].add(place_of(comparison, finding.pair))
    for (kind, slot, *_), places in several.items():
        first = found[places[0]]
        total = len(every[kind, slot])
        words = "all {count} {kind} operators differ so in {slot}"
        if len(places) < total:
            words = "{count} of {total} {kind} operators differ so in {slot}"
        facts = {"count": len(places), "total": total, "slot": slot, "kind": " ".join(filter(None, kind))}
        alike = Evidence("alike", words, {name: Fact(value) for name, value in facts.items()})
        found[places[0]] = replace(first, evidence=(*first.evidence, alike))
        for where in places[1:]:
            found[where] = replace(found[where], alike=first.place)
    return found


def _kind_of(pair: Pair) -> tuple[str, str]:
    return pair.operator.op_type, pair.operator.phase


def _present(
    places: Collection[FirstRunPlace], comparisons: Sequence[Comparison], numbers: Sequence[int]
) -> Mapping[FirstRunPlace, list[int]]:
    """The runs that have an operator, the first among them."""
    found = {place: [1] for place in places}
    for comparison, number in zip(comparisons, numbers):
        both = {f.pair.order: f.pair for f in comparison.findings if f.pair.target_op and f.pair.golden_op}
        for place in (place_of(comparison, pair) for pair in both.values()):
            if place in found:
                found[place].append(number)
    return found


def _by_operator(comparison: Comparison, wanted: Callable[[Finding], bool]) -> Mapping[int, list[Finding]]:
    found: dict[int, list[Finding]] = defaultdict(list)
    for finding in filter(wanted, comparison.findings):
        found[finding.pair.order].append(finding)
    return found


def _is_harmless(finding: Finding) -> bool:
    """Whether an input holds the same values in other bits."""
    moments = finding.measurement.moments
    is_read = finding.verdict is Verdict.MATCH and not is_output(finding.pair)
    return is_read and moments is not None and moments.equal < moments.elements


def place_of(comparison: Comparison, pair: Pair) -> FirstRunPlace:
    """The operator of the first run that belongs to a pair."""
    step = comparison.golden.step if comparison.golden.step is not None else comparison.target.step
    rank = comparison.golden.rank if comparison.golden.rank is not None else comparison.target.rank
    order = pair.golden_op.order if pair.golden_op else pair.order
    return FirstRunPlace(-1 if step is None else step, -1 if rank is None else rank, order)


def _rank(operator_runs: Sequence[_OperatorRuns]) -> tuple[int, bool]:
    """The sort key: inputs of the network before BORN, BORN before other causes; random operators after the faults of
    their kind."""
    worst = _worst(operator_runs).root
    return -1 if is_fed(worst.cause, worst.evidence) else SEVERITY[worst.cause], bool(excuse(worst))


def _worst(operator_runs: Sequence[_OperatorRuns]) -> _OperatorRuns:
    """The gravest cause, in the run with the largest error."""
    return min(
        operator_runs, key=lambda one: (SEVERITY[one.root.cause], -error_size(one.finding) if one.finding else 0.0)
    )


def excuse(root: Root) -> tuple[Evidence, ...]:
    """The reasons why an operator may produce other bits from equal bits without a fault; empty if there is none."""
    op = op_type_of(root.pair.operator)
    if root.cause not in (Cause.BORN, Cause.UNKNOWN):
        return ()
    if op.has("random"):
        return (
            Evidence("random", "a random operator: its output differs unless the runs use the same seed and generator"),
            Evidence("random", "switch it off or fix the seed"),
        )
    if op.has("collective"):
        late = "a collective: its output may have been dumped before it was complete, or summed in the order of arrival"
        return (Evidence("asynchronous", late),)
    return ()


def _rerun(
    place: int,
    where: FirstRunPlace,
    operator_runs: Sequence[_OperatorRuns],
    present: Sequence[int],
    context: ReadContext,
    parameters: Optional[ParameterFaults],
) -> Rerun:
    worst = _worst(operator_runs)
    root, finding = worst.root, worst.finding
    moments = finding.measurement.moments if finding is not None else None
    seen = _looked_at(root, finding, context) if place <= PATTERNS else None
    excuses = excuse(root)
    evidence = [_of_runs(one, worst.number) for one in root.evidence]
    if root.cause is Cause.GAP and not any(one.kind == "between" and one.facts for one in evidence):
        evidence += _changed_on_the_way(finding)
    if worst.harmless:
        slots = {"slots": Fact(", ".join(worst.harmless))}
        evidence = [*map(_in_value, evidence), Evidence("other bits", OTHER_BITS, slots), MAY_MATTER]
    if seen is not None and finding is not None and root.cause is not Cause.PROPAGATED:
        places = pattern(finding.measurement, seen, context)
        if parameters is not None:  # no kernel computed a parameter
            evidence += [_of_runs(one, worst.number) for one in parameters.evidence(finding)]
            places = tuple(one for one in places if one.kind == "places")
        evidence += places
    if not any(one.kind == "random" for one in root.evidence):
        evidence += excuses
    evidence += _run_of_figures(worst, operator_runs) if finding is not None else ()
    return Rerun(
        place=place,
        step=None if where.step < 0 else where.step,
        rank=None if where.rank < 0 else where.rank,
        pair=root.pair,
        slot=root.slot,
        cause=root.cause,
        differing=moments.elements - moments.equal if moments is not None else None,
        max_abs=moments.max_abs if moments is not None else None,
        rel_l2=None if finding is None or finding.error is None or math.isnan(finding.error) else finding.error,
        max_ulp=moments.max_ulp if moments is not None else None,
        odd=_odd(operator_runs, present, context),
        evidence=tuple(evidence),
        excused=bool(excuses),
        picture=seen.picture if seen is not None else None,
        pictured=worst.number,
    )


def _run_of_figures(worst: _OperatorRuns, operator_runs: Sequence[_OperatorRuns]) -> tuple[Evidence, ...]:
    """The run of the figures and the words, if several runs differ from the first."""
    if len(operator_runs) == 1:
        return ()
    words = "figures of run {run}, which has the largest error, against run 1"
    return (Evidence("run", words, {"run": Fact(worst.number)}),)


def _looked_at(root: Root, finding: Optional[Finding], context: ReadContext) -> Optional[BitDifferences]:
    """The differing elements of an operator. If the operator only propagates a difference, only small tensors are read
    again for the picture."""
    if finding is None or finding.pair.golden is None:
        return None
    if root.cause is Cause.PROPAGATED and math.prod(finding.pair.golden.shape) > PLACES:
        return None
    return differing_elements(finding.measurement, context)


def _of_runs(one: Evidence, number: int) -> Evidence:
    """The evidence with run numbers in place of target and golden; its facts do not change."""
    return one._replace(words=one.words.replace("the target", f"run {number}").replace("the golden", "run 1"))


def _in_value(one: Evidence) -> Evidence:
    """The evidence for inputs that agree, some of them with other bits."""
    return one._replace(words="inputs agree (in value)", facts={}) if one.kind == "inputs agree" else one


def _changed_on_the_way(finding: Optional[Finding]) -> tuple[Evidence, ...]:
    """The evidence of an input whose producer is known by content."""
    golden = finding.pair.golden if finding is not None else None
    if golden is None or not golden.source:
        return ()
    words = "{writer} wrote the same tensor in both runs: it was changed before this operator read it"
    return (Evidence("changed on the way", words, {"writer": Fact(golden.source.rpartition(":")[0])}),)


def _odd(operator_runs: Sequence[_OperatorRuns], present: Sequence[int], context: ReadContext) -> tuple[int, ...]:
    """The runs, from 1, that do not agree with the majority; all runs if no two agree."""
    alike: list[list[_OperatorRuns]] = []
    for one in operator_runs:
        group = next((group for group in alike if _agree(one, group[0], context)), None)
        if group is None:
            alike.append([one])
        else:
            group.append(one)
    numbers = {one.number for one in operator_runs}
    classes = [[number for number in present if number not in numbers]]  # these agree with the first run
    classes += [[one.number for one in group] for group in alike]
    largest = max(classes, key=len)
    if len(largest) == 1:
        return tuple(present)
    return tuple(sorted(number for members in classes if members is not largest for number in members))


def _agree(one: _OperatorRuns, other: _OperatorRuns, context: ReadContext) -> bool:
    """Whether two runs that differ from the first differ alike; if statistics differ, values are not read."""
    left = {finding.pair.slot: finding for finding in one.findings}
    right = {finding.pair.slot: finding for finding in other.findings}
    if left.keys() != right.keys():
        return False
    moments = [(left[slot].measurement.moments, right[slot].measurement.moments) for slot in left]
    if any(a and b and (a.target, a.sum_dd) != (b.target, b.sum_dd) for a, b in moments):
        return False
    return all(_same_tensor(left[slot].pair, right[slot].pair, context) for slot in left)


def _same_tensor(one: Pair, other: Pair, context: ReadContext) -> bool:
    if one.target is None or other.target is None:
        return False
    if one.target.has_xor and other.target.has_xor:  # both differ from the first run: most likely alike
        return one.target.checksum.lower() == other.target.checksum.lower()
    return bool(same(one.target, other.target, one, context))
