"""Verdicts on the parameters of two checkpoints, and the places to look at: one for each wrong parameter, one for a
family that is wrong in all layers.

A checkpoint has no flow. A wrong parameter has the cause GAP and the name of its tensor. Every element counts: a single
one beyond the rounding of the types is a finding.

Wrong parameters of experts that are those of other experts of the same layer: the same experts in another order.

Some rows of each wrong expert are compared with those of all wrong experts of its layer. If each is one of the others,
and all kinds of weights stand in one order, the layer is one place; layers alike are one place too. The router is
another parameter: whether it agrees is said beside, because it decides which expert a token gets.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.weight_payloads import steps_of
from npucmp.errors import NpucmpError, if_unreadable
from npucmp.measure import metrics
from npucmp.measure.quantised_steps import StepLimit, elements_beyond
from npucmp.model import DIFFERS, Cause, Evidence, Finding, Root, Verdict, first_of
from npucmp.model.cause import Fact
from npucmp.relations.weights.checkpoint_pair import CheckpointPair, JudgedWeight, WeightFault
from npucmp.relations.weights.expert_order import ROUTERS, STACKS, Order, matched_rows, sampled_experts
from npucmp.relations.weights.next_update import ParameterUpdate, UpdateFinder
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.weight_faults import DIFFERS as UNDESCRIBED
from npucmp.relations.weights.weight_faults import FaultFinder

MOVED_EXPERTS = "experts moved"  # label of experts in another order
SHOWN = 16  # experts in a sentence: work: readers need no more
MOST_READ = 1 << 12  # parameters of experts of which rows are read: work
FEWEST = 2  # experts: definition: one expert has no other place

Rows = Sequence[JudgedWeight]


class MovedExperts(NamedTuple):
    """Wrong parameters of experts that stand in another order, and what they are."""

    rows: list[JudgedWeight]
    fault: WeightFault


class _Layer(NamedTuple):
    """The places of experts of a layer, the golden's experts in them, and the kinds that stand so."""

    places: tuple[int, ...]
    experts: tuple[int, ...]
    kinds: tuple[str, ...]


def moved_experts(wrong: Rows, rows: Rows, context: ReadContext) -> list[MovedExperts]:
    """Return the wrong parameters that are experts in another order; `rows` are the parameters of the checkpoint."""
    by_layer: dict[Optional[int], list[JudgedWeight]] = defaultdict(list)
    for row in wrong:
        role, target, golden = row.pair.role, row.pair.target, row.pair.golden
        if row.pair.copy or row.pair.is_slot or target is None or golden is None or target.shape != golden.shape:
            continue
        if role.kind in STACKS or role.expert is not None:
            by_layer[role.layer].append(row)
    found: dict[tuple[_Layer, str], dict[Optional[int], list[JudgedWeight]]] = defaultdict(dict)
    left = MOST_READ
    for layer, own in by_layer.items():
        left -= len(own)
        moved = _moved(own, context) if left >= 0 else None
        if moved is not None:
            found[moved, _router(layer, rows)][layer] = own
    return [
        MovedExperts([row for own in layers.values() for row in own], _fault(moved, router, [*layers], rows))
        for (moved, router), layers in found.items()
    ]


@if_unreadable(None)
def _moved(own: Rows, context: ReadContext) -> Optional[_Layer]:
    """Return the order in which the wrong experts of a layer stand; None if they do not stand in one."""
    by_kind: dict[tuple[str, str], list[JudgedWeight]] = defaultdict(list)
    for row in own:
        by_kind[row.pair.role.family].append(row)
    orders = {_order(members, context) for members in by_kind.values()}
    order = orders.pop() if len(orders) == 1 else None
    if order is None:
        return None
    return _Layer(*order, tuple(sorted({kind for kind, _ in by_kind})))


def _order(members: Rows, context: ReadContext) -> Optional[tuple[Order, Order]]:
    """Return the places of the wrong experts of a kind of weights and the golden's experts in them."""
    parts = [(row.pair.target, row.pair.golden) for row in members]
    sides: list[list[Part]] = [[], []]
    for both in parts:
        for side, part in zip(sides, both):
            assert part is not None
            side.append(part)
    x, y = (sampled_experts(side, context) for side in sides)
    if x is None or y is None or x.shape != y.shape or len(x) < FEWEST:
        return None
    order = matched_rows(x, y, members[0].pair.limit)
    if order is None:
        return None
    is_stack = members[0].pair.role.kind in STACKS
    names = [*range(len(x))] if is_stack else [row.pair.role.expert or 0 for row in members]
    moved = [(names[at], names[of]) for at, of in enumerate(order) if at != of]
    if not is_stack and len(moved) < len(names):
        return None
    places, experts = zip(*sorted(moved))
    return places, experts


def _router(layer: Optional[int], rows: Rows) -> str:
    """Return whether the router of a layer agrees, in words."""
    own = [row for row in rows if row.pair.role.layer == layer and row.pair.role.kind in ROUTERS]
    own = [row for row in own if row.pair.target is not None and row.pair.golden is not None]
    if not own:
        return "no router shows their order"
    if any(row.finding.verdict in DIFFERS for row in own):
        return "the router differs too"
    return "the router keeps its order"


def _fault(moved: _Layer, router: str, layers: Sequence[Optional[int]], rows: Rows) -> WeightFault:
    held = {row.pair.role.kind for row in rows if row.pair.role.expert is not None or row.pair.role.kind in STACKS}
    what = "experts" if {*moved.kinds} >= held else f"{', '.join(moved.kinds)} of the experts"
    known = [str(layer) for layer in layers if layer is not None]
    of = f"layer {known[0]}" if len(known) == 1 else f"the layers {first_of(known, SHOWN)}"
    facts = {
        "what": what,
        "places": first_of([*map(str, moved.places)], SHOWN),
        "experts": first_of([*map(str, moved.experts)], SHOWN),
        "layers": of,
        "router": router,
    }
    words = (
        "the same experts in another order: {what} {places} of {layers} are the golden's experts {experts}; {router}"
    )
    return WeightFault(MOVED_EXPERTS, words, facts)


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
    _name_copies(described, rows, finder)
    places: list[tuple[JudgedWeight, WeightFault, Sequence[JudgedWeight]]] = []
    for key in dict.fromkeys(map(_key, moved.values())):
        own = [row for row in differing if (update := moved.get(row.finding.row)) and _key(update) == key]
        places.append((own[0], _of_update([moved[row.finding.row] for row in own]), own))
    places += [(experts.rows[0], experts.fault, experts.rows) for experts in in_order]
    layers = _layers(rows)
    for family, members in families.items():
        known = [described[row.finding.row] for row in members if row.finding.row in described]
        faults = {(fault.label, fault.rank) for fault in known}
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


def _name_copies(described: dict[int, WeightFault], rows: Rows, finder: FaultFinder) -> None:
    """Add the rank that holds a wrong copy of a parameter if a copy on another rank agrees."""
    right = {row.pair.role for row in rows if row.finding.verdict is Verdict.MATCH}
    for row in rows:
        fault = described.get(row.finding.row)
        if fault is not None and fault.rank is None and row.pair.role in right:
            described[row.finding.row] = fault._replace(rank=finder.rank_of_copy(row.pair))


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
    finding, pair = row.finding, row.pair
    count = len({(one.pair.role.layer, one.pair.role.expert) for one in members})  # copies are of one layer
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
    if fault.rank is not None:
        reasons.append(Evidence("rank", "in the part of rank {rank} alone", {"rank": Fact(fault.rank)}))
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
        tuple(reasons), finding.rule, rank=fault.rank,
        ranks=relation.ranks if relation is not None else (), relation=words,
    )  # fmt: skip


def _short(pair: CheckpointPair) -> str:
    """Return the part of the name of a parameter that is equal in all layers."""
    part = pair.golden or pair.target
    assert part is not None
    words = part.name.removesuffix(".weight").split(".")
    return part.slot.partition(".")[0] or next((word for word in reversed(words) if not word.isdigit()), part.name)


def _types(pair: CheckpointPair) -> str:
    return " and ".join(dict.fromkeys(part.dtype for part in (pair.target, pair.golden) if part is not None))
