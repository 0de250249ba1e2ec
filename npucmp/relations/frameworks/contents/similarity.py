"""Pairs of contents behind a fault, where values differ: the nearest in all respects together.

A score adds nearness of values in the learned order of axes, common relatives, learned types and the place in the order
of execution between pairs that are known. The best pair is taken first, and only if no other candidate of either
content is within a margin. The margin is the confidence. Blocks that repeat keep their order, because the place counts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.model.relation import AxisOrder
from npucmp.relations.frameworks.contents.axis_orders import places_in
from npucmp.relations.frameworks.contents.content import MASKED, Content
from npucmp.relations.frameworks.contents.content_graph import adds_bias_apart
from npucmp.relations.frameworks.contents.content_pairs import ContentPair, ContentPairs, sample_places
from npucmp.relations.frameworks.contents.learned_types import LearnedTypes
from npucmp.relations.frameworks.contents.value_match import sketch_distances

VIA = "similar"
SAMPLES = 512  # elements: work: nearness is measured on so many
MARGIN = 0.12  # score: chosen: a second candidate within it leaves both open (6,108 right, 28 wrong on 389 pairs)
LEAST = 1.1  # score: chosen: nearness alone (1.0) is not enough
FARTHEST = 0.7  # distance: chosen: unrelated values have 1.4
CLOSE_KIN = 0.3  # share of relatives: chosen: more of them need no near values
CLOSE = 0.2  # distance: chosen: so near values need no common relatives
MOST_SURE = 0.85  # confidence: chosen: never as sure as equal values
KIN = 0.6  # score: chosen: of two contents whose relatives are all common
READER = 0.3  # score: chosen: of two contents from which partners are computed
PLACE = 0.3  # score: chosen: of two contents at one place in the order of execution
WIDTH = 4  # operators: chosen: a place so far away counts 1/e
WIDTH_SHARE = 0.01  # share of operators: chosen: in a long run a place is so much less certain
BESIDE = 3  # operators: chosen: a content that one run does not compute has no relatives, but a place
BARE_FARTHEST = 0.65  # distance: chosen: two contents, one of which is not computed, are nearer
BARE_KIN = 0.7  # share of relatives: chosen: in place of those that such a content lacks
WORTH = 0.9  # distance: chosen: farther contents are no second candidates
SAME_SKETCH = 1e-5  # distance of sketches: chosen: equal in float32
SORTED = 0.1  # distance: chosen: of contents with equal sketches, whose order is unknown
UNSORTED = 0.45  # distance: chosen: of contents whose sketches begin to differ
BEYOND = 1e3  # value: chosen: in place of infinity and NaN, so that a distance stays a number
MANY = 1024  # contents: work: more of one size are compared in blocks
_BLOCK = 256  # contents: work
_TRIED = 4  # candidates: work: of each content
_WINDOW = 8  # times the width: work: contents so far away in the order of execution are not compared
_FLOOR = 1e-12  # square of a norm: definition: keeps a quotient finite


class Likeness(NamedTuple):
    """A candidate with its score, the distance of values, and the share of common relatives."""

    score: float
    target: int
    golden: int
    distance: float
    kin: float


def match_similar(pairs: ContentPairs, types: LearnedTypes) -> tuple[int, Sequence[Likeness]]:
    """Add the pairs that are most alike and leave no choice; return their number, and all candidates."""
    found = [*_likenesses(pairs, types)]
    scores: dict[tuple[int, int], list[float]] = defaultdict(list)
    for one in found:
        scores[0, one.target].append(one.score)
        scores[1, one.golden].append(one.score)
    for each in scores.values():
        each.sort(reverse=True)
    count = 0
    for one in sorted(found, key=lambda each: -each.score):
        margin = one.score - max(_second(scores[0, one.target], one.score), _second(scores[1, one.golden], one.score))
        margin = min(margin, 0.5)
        enough = one.kin > CLOSE_KIN or one.distance < CLOSE
        if margin >= MARGIN and one.score > LEAST and one.distance < FARTHEST and enough:
            reason = f"nearest of all (distance {one.distance:.2g}); the second candidate is {margin:.2f} behind"
            confidence = round(min(MOST_SURE, 0.5 + margin), 2)
            count += pairs.add(ContentPair(one.target, one.golden, VIA, confidence, reason))
    return count, found


def _second(scores: Sequence[float], own: float) -> float:
    """The best other score; 0 without one."""
    others = scores[1:] if scores[0] == own else scores[:1]
    return others[0] if others else 0.0


def _likenesses(pairs: ContentPairs, types: LearnedTypes) -> Iterator[Likeness]:
    groups: dict[int, tuple[list[Content], list[Content]]] = defaultdict(lambda: ([], []))
    for side, graph in enumerate((pairs.target, pairs.golden)):
        for content in graph.contents:
            fits = content.makers or len(content.shape) > 2
            if fits and not (content.is_weight and content.makers) and pairs.is_open(side, content.number):
                groups[content.size][side].append(content)
    place = golden_place(pairs)
    width = WIDTH + WIDTH_SHARE * len(pairs.golden.operators)
    relatives = _Relatives(pairs)
    for targets, goldens in groups.values():
        for target, golden, distance in _near(pairs, targets, goldens, place, width):
            if not (target.makers or golden.makers) or not pairs.same_pass(target.number, golden.number):
                continue
            if types.are_inner(target.number, golden.number) or lacks_bias(pairs, target.number, golden.number):
                continue
            apart = abs(place(target.first) - golden.first)
            common, kin = relatives.of(target.number, golden.number)
            below = relatives.share_reader(target.number, golden.number)
            bare = not (target.makers and golden.makers)
            if not (common or below or (bare and apart <= BESIDE)):
                continue
            if bare:
                kin = BARE_KIN if distance < BARE_FARTHEST and (apart <= BESIDE or below) else 0.0
            fit = types.fit(target.number, golden.number)
            score = 1 - distance + KIN * kin + READER * below + fit + PLACE * math.exp(-apart / width)
            yield Likeness(score, target.number, golden.number, distance, kin)


def lacks_bias(pairs: ContentPairs, target: int, golden: int) -> bool:
    """Whether one content is computed from a weight whose partner is added to the other content only below: then the
    sum is the partner, and not the product."""
    makers = pairs.target.maker(target), pairs.golden.maker(golden)
    if adds_bias_apart(*makers):
        return True
    for one, other, near, far, known in (
        (target, golden, pairs.target, pairs.golden, pairs.to_golden),
        (golden, target, pairs.golden, pairs.target, pairs.to_target),
    ):
        own = {known.get(parent) for parent in near.parents[one]}
        missing = {parent for parent in far.parents[other] if far.contents[parent].is_weight} - own
        size = near.contents[one].size
        for child in near.children[one]:
            more = {known.get(parent) for parent in near.parents[child]}
            if near.contents[child].size == size and missing & more:
                return True
    return False


def _near(
    pairs: ContentPairs,
    targets: Sequence[Content],
    goldens: Sequence[Content],
    place: Callable[[int], float],
    width: float,
) -> Iterator[tuple[Content, Content, float]]:
    """Yield the nearest candidates and their distances. If very many contents have one size, only
    those that are near in the order of execution are compared."""
    if len(targets) * len(goldens) <= MANY**2:
        blocks = [(targets, goldens)]
    else:
        sorted_targets = sorted(targets, key=lambda one: one.first)
        blocks = []
        for start in range(0, len(targets), _BLOCK):
            some = sorted_targets[start : start + _BLOCK]
            low, high = place(some[0].first) - _WINDOW * width, place(some[-1].first) + _WINDOW * width
            blocks.append((some, [one for one in goldens if low <= one.first <= high]))
    for rows, columns in blocks:
        if not rows or not columns:
            continue
        distances = value_distances(pairs, rows, columns)
        for row, column in _nearest(distances):
            yield rows[row], columns[column], float(distances[row, column])


class _Relatives:
    """The nearest ancestors with partners, as numbers of the golden."""

    def __init__(self, pairs: ContentPairs) -> None:
        self._pairs, self._known = pairs, pairs.with_copies
        self._found: tuple[dict[int, set[int]], dict[int, set[int]]] = ({}, {})

    def of(self, target: int, golden: int) -> tuple[bool, float]:
        """Whether two contents have a common ancestor, and the share of their ancestors that is common."""
        here, there = self._found
        if target not in here:
            here[target] = {self._known[one] for one in self._pairs.target.ancestors(target, self._known)}
        if golden not in there:
            there[golden] = self._pairs.golden.ancestors(golden, self._pairs.to_target)
        every = here[target] | there[golden]
        common = here[target] & there[golden]
        return bool(common), len(common) / len(every) if every else 0.0

    def share_reader(self, target: int, golden: int) -> bool:
        """Whether two partners are computed from the contents."""
        here = {self._pairs.to_golden.get(one) for one in self._pairs.target.children[target]}
        return not here.isdisjoint(self._pairs.golden.children[golden])


def _nearest(distances: Any) -> set[tuple[int, int]]:
    """The few nearest candidates of each content of either side."""

    found = set()
    for turned, matrix in ((False, distances), (True, distances.T)):
        few = min(_TRIED, matrix.shape[1])
        for row, columns in enumerate(np.argpartition(matrix, few - 1, 1)[:, :few]):
            for column in columns:
                if matrix[row, column] < WORTH:
                    found.add((int(column), row) if turned else (row, int(column)))
    return found


def value_distances(pairs: ContentPairs, targets: Sequence[Content], goldens: Sequence[Content]) -> Any:
    """The distance of the values of each two contents of one size, in learned orders of axes, else by sketches."""

    found = np.full((len(targets), len(goldens)), np.inf)
    if any(one.sketch.quantiles is None for one in (*targets, *goldens)):
        here, there = (np.array([one.sketch.figures for one in side]) for side in (targets, goldens))
    else:
        here, there = (np.array([one.sketch.quantiles for one in side]) for side in (targets, goldens))
        rows, columns = _by_shape(targets), _by_shape(goldens)
        for mine in rows.values():
            for theirs in columns.values():
                shapes = pairs.shapes(targets[mine[0]].number, goldens[theirs[0]].number)
                for order in pairs.axes.learned(*shapes):
                    both = _samples(pairs, order, [targets[at] for at in mine], [goldens[at] for at in theirs])
                    if both is not None:
                        places = np.ix_(mine, theirs)
                        found[places] = np.minimum(found[places], _distances(*both))
    scales = [np.array([one.rms for one in side]) for side in (targets, goldens)]
    sketches = sketch_distances(here, there, *scales)
    return np.minimum(found, np.where(sketches < SAME_SKETCH, SORTED, UNSORTED + 2 * sketches))


def _by_shape(contents: Sequence[Content]) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for at, one in enumerate(contents):
        found[one.tensor.shape].append(at)
    return found


def _samples(
    pairs: ContentPairs, order: AxisOrder, targets: Sequence[Content], goldens: Sequence[Content]
) -> Optional[tuple[Any, Any]]:
    """Samples of contents of two shapes at corresponding places, one row each; None if one cannot be read."""

    shapes = pairs.shapes(targets[0].number, goldens[0].number)
    both = places_in(order, *shapes, sample_places(targets[0].size, SAMPLES))
    found = []
    for side, (contents, places) in enumerate(zip((targets, goldens), both)):
        rows = [pairs.picked_values(side, one.number, places) for one in contents]
        if any(one is None for one in rows):
            return None
        values = np.nan_to_num(np.array(rows), nan=BEYOND, posinf=BEYOND, neginf=0.0)
        found.append(np.where(values < MASKED, 0.0, values))
    return found[0], found[1]


def _distances(x: Any, y: Any) -> Any:
    """‖x - y‖ / max(‖x‖, ‖y‖) of each two rows."""

    squares, others = (x * x).sum(1)[:, None], (y * y).sum(1)[None]
    apart = (squares + others - 2 * x @ y.T).clip(0.0)
    return np.sqrt(apart / np.maximum(squares, others).clip(_FLOOR))


def golden_place(pairs: ContentPairs) -> Callable[[int], float]:
    """A function that gives the place in the golden's order for a place in the target's: between the pairs that are in
    one order on both sides."""

    both = sorted(
        (pairs.target.contents[one.target].first, pairs.golden.contents[one.golden].first)
        for one in pairs
        if pairs.target.contents[one.target].makers
    )
    chain = _longest_rising(both)
    ends = len(pairs.target.operators), len(pairs.golden.operators)
    here = np.array([-1, *(one for one, _ in chain), ends[0]], float)
    there = np.array([-1, *(other for _, other in chain), ends[1]], float)
    return lambda place: float(np.interp(place, here, there))


def _longest_rising(both: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of these points in which the second numbers never fall."""
    tails: list[int] = []
    at: list[int] = []
    before: list[Optional[int]] = []
    for number, (_, place) in enumerate(both):
        where = bisect_right(tails, place)
        before.append(at[where - 1] if where else None)
        tails[where : where + 1] = [place]
        at[where : where + 1] = [number]
    found = []
    last = at[-1] if at else None
    while last is not None:
        found.append(both[last])
        last = before[last]
    return sorted({*found})
