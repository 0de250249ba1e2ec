"""Wrong parameters of experts that are those of other experts of the same layer: the same experts in another order.

Some rows of each wrong expert are compared with those of all wrong experts of its layer. If each is one of the others,
and all kinds of weights stand in one order, the layer is one place; layers alike are one place too. The router is
another parameter: whether it agrees is said beside, because it decides which expert a token gets.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.errors import NpucmpError, SystemFailure
from npucmp.model import DIFFERS, first_of
from npucmp.relations.weights.expert_order import ROUTERS, STACKS, Order, matched_rows, sampled_experts
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.weight_fault import JudgedWeight, WeightFault

MOVED_EXPERTS = "experts moved"  # label of experts in another order
SHOWN = 16  # experts in a sentence: work: readers need no more
MOST = 1 << 12  # parameters of experts of which rows are read: work
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
    left = MOST
    for layer, own in by_layer.items():
        left -= len(own)
        try:
            moved = _moved(own, context) if left >= 0 else None
        except SystemFailure:
            raise
        except NpucmpError:
            continue
        if moved is not None:
            found[moved, _router(layer, rows)][layer] = own
    return [
        MovedExperts([row for own in layers.values() for row in own], _fault(moved, router, [*layers], rows))
        for (moved, router), layers in found.items()
    ]


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
