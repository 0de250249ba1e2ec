"""Pairs of contents by weights: the one content of a size that descends from the partners of all weights that an
operator reads, and from no other weight on the way.

A weight that a compiler folded has no partner, and anchors nothing. Where one run adds a bias apart from the product,
the partner is the sum. Where the weights leave a choice, learned types and nearness decide, or the content stays open.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Mapping, NamedTuple, Optional

from npucmp.model.optypes import op_type
from npucmp.relations.frameworks.contents.content_graph import ContentGraph, adds_bias_apart, operands
from npucmp.relations.frameworks.contents.content_pairs import AGREES, ContentPair, ContentPairs, Near
from npucmp.relations.frameworks.contents.learned_types import ROUNDING, LearnedTypes

VIA = "weights"
CONFIDENCE = 0.85  # confidence: chosen: above structure, because values pair the weights
REACH = 3  # steps: chosen: a decomposed product and bias are two
DATA_REACH = 4  # steps: chosen: one more than the weights, for a view between
MARGIN = 0.2  # score: chosen: the best of several candidates leads by so much
PER_STEP = 0.5  # score: chosen: a step farther from the weights; more than types alone decide
PER_PRODUCT_STEP = 0.25  # score: chosen: the same of a product, whose bias the other run may add apart
UNRELATED = 0.5  # relative error: chosen: behind a fault, larger errors show nothing


def match_operands(pairs: ContentPairs) -> int:
    """Add the pairs of data that products read with the same weights: the only ones that read these, or as many in the
    same order, if values show the order; return their number. A product is not decomposed, so what it reads
    corresponds."""
    found: list[tuple[int, int]] = []
    several: list[tuple[int, int]] = []
    for weight, partner in pairs.to_golden.items():
        if pairs.target.contents[weight].is_weight:
            targets, goldens = _data_of_products(pairs.target, weight), _data_of_products(pairs.golden, partner)
            both = [(target, golden) for target, golden in zip(targets, goldens) if target is not None is not golden]
            (several if len(targets) > 1 else found).extend(both if len(targets) == len(goldens) else ())
    known = [pair for pair in several if pair[0] in pairs.to_golden or pair[1] in pairs.to_target]
    is_ordered = pairs.target.run.ordered and pairs.golden.run.ordered
    if known and is_ordered and all(_are_partners(pairs, *pair) for pair in known):
        found += several
    count = 0
    for target, golden in found:
        sizes = pairs.target.contents[target].size, pairs.golden.contents[golden].size
        is_open = pairs.is_open(0, target) and pairs.is_open(1, golden) and pairs.same_pass(target, golden)
        if is_open and sizes[0] == sizes[1]:
            reason = "read with the same weight, by the only products that read it"
            count += pairs.add(ContentPair(target, golden, VIA, CONFIDENCE, reason))
    return count


def _are_partners(pairs: ContentPairs, target: int, golden: int) -> bool:
    """Whether two contents are a pair, or have the values of another one: what adds zeros computes the same again."""
    error = pairs.learned_error(target, golden)[0]
    return pairs.to_golden.get(target) == golden or (error is not None and error <= AGREES * pairs.noise)


def _data_of_products(graph: ContentGraph, weight: int) -> list[Optional[int]]:
    """The data that each product with a weight reads, in order; None for one that reads no other data or several; none
    if an operator that is no product reads the weight."""
    readers = [
        place
        for place in graph.contents[weight].readers
        if weight not in graph.writes[place] and not graph.gradients[place]
    ]
    readers = [place for place in readers if not graph.operators[place].path] or readers  # else modules alone
    if not all(op_type(graph.operators[place].op_type).has("contracts") for place in readers):
        return []
    data = [graph.data_of(place) for place in readers]
    return [one[0] if len(one) == 1 else None for one in data]


class _View(NamedTuple):
    """One run as the side whose contents look for partners, and the other run. `side` is 0 for the target."""

    side: int
    own: ContentGraph
    other: ContentGraph
    known: dict[int, int]
    back: dict[int, int]


def match_weights(pairs: ContentPairs, types: LearnedTypes, near: Near = None) -> int:
    """Add the pairs by weights, of all contents or of those `near` new pairs; return their number."""
    count = 0
    for view in (
        _View(1, pairs.golden, pairs.target, pairs.to_target, pairs.to_golden),
        _View(0, pairs.target, pairs.golden, pairs.to_golden, pairs.to_target),
    ):
        for content in view.own.among(near[view.side] if near else None):
            if not content.is_weight and pairs.is_open(view.side, content.number):
                count += _match(pairs, types, view, content.number)
    return count


def _match(pairs: ContentPairs, types: LearnedTypes, view: _View, number: int) -> bool:
    own, known = view.own, view.known
    data = [one for one in own.parents[number] if own.is_data(one)]
    weights = [one for one in own.parents[number] if one not in data]
    if not weights or any(one not in known for one in weights):
        return False
    if sum({*weights} <= {*own.parents[child]} for child in own.children[weights[0]]) != 1:
        return False  # several operators read these weights
    partners = {known[one] for one in weights}
    found = _choose(pairs, types, view, number, _below(pairs, view, number, partners))
    if found is None or not _reads_only(view, found, partners) or not pairs.same_pass(*_ordered(view, number, found)):
        return False
    if data and all(one in known for one in data):
        expected = {known[one] for one in data}
        if not expected.issubset(view.other.cone(found, expected, DATA_REACH)):
            return False
    elif data and not _is_related(pairs, view, number, found):
        return False
    if _adds_bias_below(view, number, found, partners):
        return False
    target, golden = _ordered(view, number, found)
    is_certain = bool(data) and all(pairs.is_by_value(view.side, one) for one in data)  # the first with these inputs
    if not is_certain and types.fit(target, golden) < _LEAST_FIT:
        return False
    names = "weight" if len(weights) == 1 else "weights"
    reason = f"reads the same {len(weights)} {names}, the only content of this size below"
    return pairs.add(ContentPair(target, golden, VIA, CONFIDENCE, reason))


def match_other_weights(pairs: ContentPairs, types: LearnedTypes) -> int:
    """Add the pairs of weights with other values; return their number. Both are the only ones of their size without a
    partner: of all, or of those from which two partners are computed, if no compiler folds weights of their types."""
    targets, goldens = (
        {one.number for one in graph.contents if pairs.is_open(side, one.number) and not graph.is_data(one.number)}
        for side, graph in enumerate((pairs.target, pairs.golden))
    )
    count = 0
    if len(targets) == len(goldens) == 1:
        count += _add_last_weights(pairs, targets, goldens, CONFIDENCE)
    for pair in [one for one in pairs if one.error is None or one.error > pairs.noise * ROUNDING]:
        if types.read_all_weights(pair.target, pair.golden):
            target = pairs.target.weights_above(pair.target, pairs.to_golden)
            golden = pairs.golden.weights_above(pair.golden, pairs.to_target)
            count += _add_last_weights(pairs, target, golden, min(CONFIDENCE, pair.confidence))
    return count


def _add_last_weights(pairs: ContentPairs, targets: set[int], goldens: set[int], confidence: float) -> int:
    by_size: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, (graph, numbers) in enumerate(((pairs.target, targets), (pairs.golden, goldens))):
        for number in sorted(numbers):
            if pairs.is_open(side, number):
                by_size[graph.contents[number].size][side].append(number)
    reason = "the only weights of their size without partners of operators that are partners"
    last = [(one[0], other[0]) for one, other in by_size.values() if len(one) == len(other) == 1]
    return sum(pairs.add(ContentPair(*both, VIA, confidence, reason)) for both in last)


_LEAST_FIT = -0.3  # score: chosen: both types have other partners or none


def _is_related(pairs: ContentPairs, view: _View, number: int, found: int) -> bool:
    """Whether two contents share the nearest ancestors that have partners, apart from weights; True if one has none."""
    here = {view.known[one] for one in view.own.ancestors(number, view.known) if not view.own.contents[one].is_weight}
    there = {one for one in view.other.ancestors(found, view.back) if not view.other.contents[one].is_weight}
    return not here or not there or bool(here & there)


def _ordered(view: _View, number: int, found: int) -> tuple[int, int]:
    return (number, found) if view.side == 0 else (found, number)


def _below(pairs: ContentPairs, view: _View, number: int, partners: set[int]) -> dict[int, int]:
    """The open contents of the other run of this size that descend from all these weights within a few steps, and how
    many steps they are below the first of them."""
    common: Optional[dict[int, int]] = None
    for partner in partners:
        steps: dict[int, int] = {}
        level = {*view.other.children[partner]}
        for step in range(REACH + 1):
            for one in level:
                steps.setdefault(one, step)
            level = {child for one in level for child in view.other.children[one]} - steps.keys()
        common = steps if common is None else {one: max(n, steps[one]) for one, n in common.items() if one in steps}
    size = view.own.contents[number].size
    found = {
        one: steps
        for one, steps in sorted((common or {}).items())
        if view.other.contents[one].size == size and pairs.is_open(1 - view.side, one)
    }
    first = min(found.values(), default=0)
    return {one: steps - first for one, steps in found.items()}


def _choose(
    pairs: ContentPairs, types: LearnedTypes, view: _View, number: int, found: Mapping[int, int]
) -> Optional[int]:
    """The candidate for which learned types, nearness to the weights and values speak; None if they leave a choice."""
    own = view.own.maker(number)
    each = PER_PRODUCT_STEP if own is not None and op_type(own.op_type).has("contracts") else PER_STEP
    bare = set()
    for one in found:
        other = view.other.maker(one)
        if own is None or other is None or not adds_bias_apart(own, other):
            continue
        if len(operands(own)) < len(operands(other)):
            return None  # the partner of the other product is the own sum
        bare.add(one)  # the partner is the sum below
    scored = sorted(
        (
            (_score(pairs, types, *_ordered(view, number, one)) - each * steps, one)
            for one, steps in found.items()
            if one not in bare
        ),
        reverse=True,
    )
    if not scored or (len(scored) > 1 and scored[0][0] - scored[1][0] < MARGIN):
        return None
    return scored[0][1]


def _score(pairs: ContentPairs, types: LearnedTypes, target: int, golden: int) -> float:
    error, _ = pairs.learned_error(target, golden)
    return types.fit(target, golden) + max(0.0, UNRELATED - (UNRELATED if error is None else error))


def _reads_only(view: _View, found: int, partners: set[int]) -> bool:
    """Whether no weight but these is on the way from contents with partners to a content."""
    cone = view.other.cone(found, view.back, REACH)
    return not any(view.other.contents[one].is_weight and one not in partners for one in cone)


def _adds_bias_below(view: _View, number: int, found: int, partners: set[int]) -> bool:
    """Whether the next operator of the other run adds a further weight to a product, of which the own product knows
    nothing: then the sum is the partner."""
    maker = view.own.maker(number)
    if maker is None or not op_type(maker.op_type).has("contracts"):
        return False
    for child in view.other.children[found]:
        more = [one for one in view.other.parents[child] if view.other.contents[one].is_weight and one not in partners]
        kind = op_type(view.other.type_of(child))
        if more and kind.has("sums") and kind.has("shifts"):
            return True
    return False
