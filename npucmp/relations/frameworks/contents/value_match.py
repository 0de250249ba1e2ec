"""Pairs of contents by their values: nearest by their sketches, and then equal element by element in one order of axes.

Sketches propose, elements decide. A pair whose elements agree far better than those of every other candidate is certain
(0.99); a pair with a near second is not (0.9). Recorded statistics have no elements: a pair of them is near in all four
figures while no other is, and is never certain.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np

from npucmp.model.relation import SAME_ORDER
from npucmp.relations.frameworks.contents.content import Content
from npucmp.relations.frameworks.contents.content_pairs import AGREES, CERTAIN, ContentPair, ContentPairs

VIA = "content"
NEAR_SECOND = 0.9  # confidence: chosen: of equal values with a second candidate that is near
BEST = 3  # candidates: chosen: a content has so few near ones
FAR = 4.0  # times: chosen: a second that is so much farther is no candidate
SKETCHED = 30  # times: chosen: so much larger may the error of all elements be than the distance of sketches
TELLING = 16  # elements: chosen: the order of axes of fewer elements agrees by chance
_ROOM = 1e-5  # distance: chosen: below it two candidates are equally near in float32
_CHUNK = 512  # contents: work
_UNREAD = 8  # times: work: the values of a candidate whose sketch is so much farther are not read
_TINY = 1e-30  # root mean square: definition: keeps a quotient finite
_FARTHEST = 30  # times the noise: work: a candidate that is farther decides nothing


class NearContents(NamedTuple):
    """Two contents of one size whose sketches are near."""

    distance: float
    target: int
    golden: int


def match_values(pairs: ContentPairs) -> None:
    """Add the pairs of contents with the same values."""
    near: dict[int, list[NearContents]] = defaultdict(list)
    rivals: dict[int, list[NearContents]] = defaultdict(list)
    for one in _candidates(pairs):
        near[one.target].append(one)
        rivals[one.golden].append(one)
    for target in sorted(near, key=lambda number: near[number][0].distance):
        _match(pairs, near[target], rivals)


def _match(pairs: ContentPairs, near: Sequence[NearContents], rivals: dict[int, list[NearContents]]) -> None:
    first = near[0]
    if pairs.target.contents[first.target].sketch.quantiles is None or first.distance > pairs.noise:
        _match_figures(pairs, near, rivals)
        return
    enough = max(AGREES * pairs.noise, SKETCHED * first.distance)
    scored = []
    for one in near:
        if one.golden in pairs.to_target or one.distance > _UNREAD * first.distance + _ROOM:
            continue
        error, order = pairs.best_order(one.target, one.golden, first.distance + _ROOM)
        if error is not None and error <= enough:
            is_other_type = not pairs.target.types_of(one.target) & pairs.golden.types_of(one.golden)
            scored.append((error, is_other_type, abs(_place(pairs, one)), one, order))
    if not scored:
        if pairs.golden.contents[first.golden].sketch.quantiles is None:
            _match_figures(pairs, near, rivals)
        return
    equal = [one for one in scored if one[0] <= FAR * min(scored)[0] + _ROOM]
    error, _, _, one, order = min(equal, key=lambda one: one[1:3])
    others = [each for each in rivals[one.golden] if each.target != one.target and each.target not in pairs.to_golden]
    alone = len(equal) == 1 and not any(each.distance <= FAR * one.distance + _ROOM for each in others)
    if not alone and len(equal) == 1:
        alone = not any(_is_near(pairs, each, error) for each in others)
    reason = "equal element by element" if error <= _ROOM else f"equal element by element up to {error:.1e}"
    if not alone:
        reason += ", with a second candidate that is near"
    confidence = CERTAIN if alone else NEAR_SECOND
    is_new = pairs.add(ContentPair(one.target, one.golden, VIA, confidence, reason, order, error))
    if is_new and pairs.target.contents[one.target].size >= TELLING:
        pairs.axes.learn(*pairs.shapes(one.target, one.golden), order)


def _is_near(pairs: ContentPairs, one: NearContents, error: float) -> bool:
    found, _ = pairs.best_order(one.target, one.golden, error + _ROOM)
    return found is not None and found <= FAR * error + _ROOM


def _match_figures(pairs: ContentPairs, near: Sequence[NearContents], rivals: dict[int, list[NearContents]]) -> None:
    """Pair two contents of which one has recorded statistics alone."""
    first = near[0]
    sketches = pairs.target.contents[first.target].sketch, pairs.golden.contents[first.golden].sketch
    if all(one.quantiles is not None for one in sketches) or first.distance > pairs.noise:
        return
    seconds = [*near[1:], *(one for one in rivals[first.golden] if one.target != first.target)]
    if any(one.distance <= FAR * first.distance + pairs.noise for one in seconds):
        return
    reason = "recorded statistics of no other tensor of this size are near"
    pairs.add(ContentPair(first.target, first.golden, VIA, NEAR_SECOND, reason, SAME_ORDER))


def _place(pairs: ContentPairs, one: NearContents) -> float:
    """How far apart two contents are in the order of both runs, as shares of the runs."""
    here = pairs.target.contents[one.target].first / len(pairs.target.operators)
    return here - pairs.golden.contents[one.golden].first / len(pairs.golden.operators)


def _candidates(pairs: ContentPairs) -> Iterator[NearContents]:
    """Yield the nearest contents of one size, of each content of the target in order of distance."""

    groups: dict[int, tuple[list[Content], list[Content]]] = defaultdict(lambda: ([], []))
    for side, graph in enumerate((pairs.target, pairs.golden)):
        for content in graph.contents:
            groups[content.size][side].append(content)
    for targets, goldens in groups.values():
        if not targets or not goldens:
            continue
        values = all(one.sketch.quantiles is not None for one in (*targets, *goldens))
        here, there = (
            np.array([one.sketch.quantiles if values else one.sketch.figures for one in side])
            for side in (targets, goldens)
        )
        scales = [np.array([one.rms for one in side]) for side in (targets, goldens)]
        for start in range(0, len(targets), _CHUNK):
            part = here[start : start + _CHUNK]
            distances = sketch_distances(part, there, scales[0][start : start + _CHUNK], scales[1])
            few = min(BEST, len(goldens))
            best = np.argpartition(distances, few - 1, 1)[:, :few]
            for row, columns in enumerate(best):
                for column in sorted(columns, key=lambda at: float(distances[row, at])):
                    if distances[row, column] < _FARTHEST * pairs.noise:
                        target, golden = targets[start + row].number, goldens[int(column)].number
                        yield NearContents(float(distances[row, column]), target, golden)


def sketch_distances(here: Any, there: Any, scale: Any, other: Any) -> Any:
    """The root mean square distance of each two sketches, relative to the larger root mean square of their values."""

    with np.errstate(over="ignore", invalid="ignore"):  # squares beyond all numbers make NaN, which is near to nothing
        squares = (here**2).sum(1)[:, None] + (there**2).sum(1)[None] - 2 * here @ there.T
        size = np.maximum.outer(scale, other).clip(_TINY)
        return np.sqrt(squares.clip(0.0) / here.shape[1]) / size
