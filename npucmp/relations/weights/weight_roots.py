"""Verdicts on the parameters of two checkpoints, and the places to look at: one for each wrong parameter, one for a
family that is wrong in all layers.

A checkpoint has no flow. A wrong parameter has the cause GAP and the name of its tensor. Every element counts: a single
one beyond the rounding of the types is a finding.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Mapping, Optional, Sequence, Union

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.weight_payloads import steps_of
from npucmp.errors import NpucmpError
from npucmp.measure import metrics
from npucmp.measure.quantised_steps import StepLimit, elements_beyond
from npucmp.model import DIFFERS, Cause, Evidence, Finding, Root, Verdict
from npucmp.model.cause import Fact
from npucmp.relations.weights.checkpoint_pair import CheckpointPair
from npucmp.relations.weights.moved_experts import MOVED_EXPERTS, moved_experts
from npucmp.relations.weights.next_update import ParameterUpdate, UpdateFinder
from npucmp.relations.weights.weight_fault import JudgedWeight, WeightFault
from npucmp.relations.weights.weight_faults import DIFFERS as UNDESCRIBED
from npucmp.relations.weights.weight_faults import FaultFinder

RULE, BARE = "weight", "scale_missing"
UPDATE = "updated"  # label of parameters that an update moved
METRIC = "mismatch_ratio"
# of the spread: chosen: bfloat16 at ten times the spread moves choices between neighbours, float16 hardly
SPREAD = 0.02
FEW = 6  # members of a family that are all described: work: else its first, middle and last
MOST = 60  # wrong parameters that are described: work
UNRELATED = 4.0  # standard deviations, 1/√n: chosen: of the cosine of unrelated values, not measured
ENOUGH = 64  # elements: chosen: the cosine of fewer says little
SAME_FAMILY = 3  # members that are described of a larger family: chosen


def judged(finding: Finding, pair: CheckpointPair, context: ReadContext) -> JudgedWeight:
    """Return the verdict on a pair of parameters by its single elements."""
    moments = finding.measurement.moments
    target, golden = pair.target, pair.golden
    if moments is None or target is None or golden is None or finding.verdict is Verdict.UNREADABLE:
        return JudgedWeight(finding, pair, 1.0 if finding.verdict in DIFFERS else 0.0)
    error = metrics.rel_l2(moments)
    if moments.mismatched:
        return JudgedWeight(finding, pair, moments.mismatched / max(1, moments.elements))
    if target.is_bare is not golden.is_bare and moments.elements:
        words = "codes without a scale are no values: scale missing"
        return JudgedWeight(_with(finding, Verdict.DIVERGED, words, error, BARE), pair, 1.0)
    if moments.equal == moments.elements:
        words = finding.because if finding.verdict is Verdict.MATCH else "equal values"
        return JudgedWeight(_with(finding, Verdict.MATCH, words, 0.0, "equal"), pair, 0.0)
    try:
        beyond = _beyond(pair, moments.outside, context)
    except NpucmpError as problem:
        return JudgedWeight(_with(finding, Verdict.UNKNOWN, f"the step is unknown: {problem}", None, RULE), pair, 0.0)
    share = beyond / max(1, moments.elements)
    limit = _limit_words(pair)
    words = (
        f"{beyond} of {moments.elements} elements differ by more than {limit}"
        if beyond
        else f"no element differs by more than {limit}"
    )
    spread = moments.golden.maximum - moments.golden.minimum
    by_spread = not beyond and pair.role.is_shift_free and moments.max_abs > SPREAD * spread > 0.0
    if by_spread:
        words = f"the largest difference is {moments.max_abs / spread:.2%} of the spread of its values, {spread:.3g}"
    verdict = Verdict.DIVERGED if beyond or by_spread else Verdict.MATCH
    return JudgedWeight(_with(finding, verdict, words, error, RULE, share), pair, share)


def _beyond(pair: CheckpointPair, outside: int, context: ReadContext) -> int:
    """Return the number of elements beyond the limit; those of codes are counted by the steps of their scale."""
    target, golden = pair.target, pair.golden
    if not pair.limit.is_quantised or target is None or golden is None:
        return outside
    assert target.payload is not None and golden.payload is not None
    side = target if target.scale_dtype else golden
    step = steps_of(side.payload) if side.payload is not None else None
    if step is None:
        return outside
    limit = StepLimit(pair.limit.rtol, pair.limit.atol, pair.limit.steps)
    return elements_beyond(target.payload, golden.payload, step, limit, context)


def _limit_words(pair: CheckpointPair) -> str:
    limit = pair.limit
    if limit.is_quantised and not limit.rtol:
        return f"{limit.steps:.3g} steps of the codes"
    words = f"{limit.rtol:.2g} of the value"
    return f"{words} and {limit.steps:.2g} steps" if limit.is_quantised else words


def _with(
    finding: Finding, verdict: Verdict, words: str, error: Optional[float], rule: str, value: float = 0.0
) -> Finding:
    metric = METRIC if value or rule == BARE else "rel_l2"
    return finding._replace(verdict=verdict, because=words, error=error, limit=0.0, metric=metric, rule=rule,
                            explained_by="", explained_limit=0.0)  # fmt: skip


def weight_roots(rows: Sequence[JudgedWeight], finder: FaultFinder, updates: UpdateFinder) -> tuple[Root, ...]:
    """Return the places to look at, in the order of the network. All parameters of an update are one place."""
    differing = [row for row in rows if row.finding.verdict in DIFFERS]
    moved = {row.finding.row: update for row in differing if (update := updates.update(row.pair)) is not None}
    wrong = [row for row in differing if row.finding.row not in moved]
    in_order = moved_experts(wrong, rows, finder.context)
    placed = {row.finding.row for experts in in_order for row in experts.rows}
    wrong = [row for row in wrong if row.finding.row not in placed]
    families: dict[tuple[str, str], list[JudgedWeight]] = defaultdict(list)
    for row in wrong:
        families[row.pair.role.family].append(row)
    described = _described(families, finder)
    places: list[tuple[JudgedWeight, WeightFault, Sequence[JudgedWeight]]] = []
    for key in dict.fromkeys(map(_key, moved.values())):
        own = [row for row in differing if (update := moved.get(row.finding.row)) and _key(update) == key]
        places.append((own[0], _of_update([moved[row.finding.row] for row in own]), own))
    places += [(experts.rows[0], experts.fault, experts.rows) for experts in in_order]
    layers = _layers(rows)
    for family, members in families.items():
        faults = {described[row.finding.row].label for row in members if row.finding.row in described}
        held = {(row.pair.role.layer, row.pair.role.expert) for row in members}
        if len(faults) == 1 and len(held) > 1 and held == layers[family]:
            places.append((members[0], described[members[0].finding.row], members))
        else:
            places += [(row, described.get(row.finding.row, UNDESCRIBED), [row]) for row in members]
    places.sort(key=lambda one: (one[0].pair.role.position, one[0].pair.copy))
    return tuple(_root(at, *one) for at, one in enumerate(places, 1))


def _key(update: ParameterUpdate) -> tuple[bool, str]:
    return update.is_ahead, f"{update.rate:.3g}"


def _of_update(updates: Sequence[ParameterUpdate]) -> WeightFault:
    """Return the description of the parameters of an update."""
    facts: dict[str, Union[str, int, float]] = {"count": len(updates), "rate": updates[0].rate}
    if updates[0].is_ahead:
        words = (
            "parameters that are one update of the optimizer further than the golden: {count}, by the rate {rate:.3g}"
        )
    else:
        words = "parameters that are one update of the optimizer behind the golden: {count}, by the rate {rate:.3g}"
    return WeightFault(UPDATE, words, facts)


def _layers(rows: Sequence[JudgedWeight]) -> Mapping[tuple[str, str], set[tuple[Optional[int], Optional[int]]]]:
    found: dict[tuple[str, str], set[tuple[Optional[int], Optional[int]]]] = defaultdict(set)
    for row in rows:
        if row.pair.target is not None and row.pair.golden is not None:
            found[row.pair.role.family].add((row.pair.role.layer, row.pair.role.expert))
    return found


def _described(families: Mapping[tuple[str, str], list[JudgedWeight]], finder: FaultFinder) -> dict[int, WeightFault]:
    """Return what wrong parameters are, by the number of the row: of a large family its first, middle and last."""
    found: dict[int, WeightFault] = {}
    chosen = []
    for members in families.values():
        numbers = range(len(members))
        if len(members) > FEW:
            numbers = range(0, len(members), (len(members) - 1) // (SAME_FAMILY - 1))
        chosen += [(turn, members[at]) for turn, at in enumerate(numbers)]
    for _, row in sorted(chosen, key=lambda one: one[0])[:MOST]:  # the first of each family comes first
        found[row.finding.row] = finder.fault(row.pair)
    return found


def size_reasons(members: Sequence[JudgedWeight], fault: WeightFault) -> list[Evidence]:
    """Return how far the parameters of a place are from the golden: their rel_l2 and cosine."""
    known = [row.finding.measurement.moments for row in members]
    moments = [one for one in known if one is not None and one.compared]
    errors = sorted(error for error in map(metrics.rel_l2, moments) if math.isfinite(error))
    cosines = sorted(cosine for cosine in map(metrics.cosine, moments) if math.isfinite(cosine))
    if not errors or not cosines:
        return []
    facts = {"error": Fact(errors[-1]), "cosine": Fact(cosines[0])}
    words = "rel_l2 {error:.2e}, cosine {cosine:.4f}"
    if len(errors) > 1:
        words, facts["least"] = "rel_l2 {least:.2e} to {error:.2e}, cosine {cosine:.4f} or more", Fact(errors[0])
    elements = min(one.compared for one in moments)
    is_small = max(map(abs, cosines)) * math.sqrt(elements) < UNRELATED and elements >= ENOUGH
    if fault == UNDESCRIBED and is_small:
        words += ": unrelated values"
    return [Evidence("size", words, facts)]


def _root(place: int, row: JudgedWeight, fault: WeightFault, members: Sequence[JudgedWeight]) -> Root:
    finding, pair, count = row.finding, row.pair, len(members)
    facts = {name: Fact(value) for name, value in fault.facts.items()}
    words = fault.words
    if count > 1 and fault.label not in (UPDATE, MOVED_EXPERTS):
        what = "layers" if pair.role.expert is None else "experts of all layers"
        words = f"all {count} {what}: {{family}}: {words}"
        facts["family"] = Fact(_short(pair))
    reasons = [Evidence("weight", words, facts), *size_reasons(members, fault)]
    if finding.verdict is Verdict.DIVERGED and 0.0 < row.share < 1.0:
        reasons.append(
            Evidence(
                "share",
                "{share:.3%} of its elements are beyond the rounding of {types}",
                {"types": Fact(_types(pair)), "share": Fact(row.share)},
            )
        )
    elif finding.verdict is Verdict.DIVERGED and not row.share and finding.measurement.moments is not None:
        words = "{because}, between {least:.4g} and {most:.4g}: its reader compares its elements with each other"
        golden = finding.measurement.moments.golden
        facts = {"because": Fact(finding.because), "least": Fact(golden.minimum), "most": Fact(golden.maximum)}
        reasons.append(Evidence("spread", words, facts))
    elif finding.verdict is Verdict.NONFINITE:
        reasons.append(Evidence("nonfinite", finding.because))
    target = finding.pair.target
    relation = target.relation if target is not None else None
    words = relation.words if relation is not None else ""
    names = tuple(dict.fromkeys(name for _, name in pair.target.names)) if pair.target is not None else ()
    if names and names != (finding.pair.operator.name,):
        reasons.append(Evidence("held", "the target holds it in {names}", {"names": Fact(", ".join(names[:3]))}))
    share = row.share if math.isfinite(row.share) else None
    return Root(
        place, finding.pair, Cause.GAP, finding.pair.slot, finding.metric or finding.verdict.value, share,
        finding.limit, None, finding.error if finding.error is not None and math.isfinite(finding.error) else None,
        tuple(reasons), finding.rule, ranks=relation.ranks if relation is not None else (), relation=words,
    )  # fmt: skip


def _short(pair: CheckpointPair) -> str:
    """Return the part of the name of a parameter that is equal in all layers."""
    part = pair.golden or pair.target
    assert part is not None
    words = part.name.removesuffix(".weight").split(".")
    return part.slot.partition(".")[0] or next((word for word in reversed(words) if not word.isdigit()), part.name)


def _types(pair: CheckpointPair) -> str:
    return " and ".join(dict.fromkeys(part.dtype for part in (pair.target, pair.golden) if part is not None))
