"""Parts: a content of one run that is a slice of the last axis of a content of the other, as q of a fused qkv.

Values decide, in the agreeing region alone. Both must be computed from weights and share an ancestor, so that no slice
is found by chance. Where a fault begins, the values of the weights decide: if the weight of one product is a slice of
that of another, and the data that both read agree, their outputs are slices too.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterator, NamedTuple, Optional

import numpy as np

from npucmp.relations.frameworks.contents.content import Content
from npucmp.relations.frameworks.contents.content_graph import ContentGraph
from npucmp.relations.frameworks.contents.content_pairs import ContentPair, ContentPairs

VIA = "parts"
CONFIDENCE = 0.9  # confidence: chosen: values decide, but of a part only
OF_WEIGHTS = 0.85  # confidence: chosen: as of pairs by weights
ROWS = 16  # rows: work: so many show where a slice begins
NEAR = 1.5  # times the noise: chosen: rows of a slice are no farther from those of the whole
NARROWEST = 4  # columns: chosen: fewer agree by chance at one of many places
_FIRST = 32  # columns: work: so many of a slice choose where it may begin


class ContentSlice(NamedTuple):
    """A content that is a slice of another one. `of_golden`: the whole belongs to the golden run.

    whole, part  numbers of the contents in their runs; the slice begins at column `start` of the last axis
    by_weights   whether the weights show it, and not the values of both contents
    view         the pair of a view of the whole: the part is the partner of the view
    """

    whole: int
    part: int
    start: int
    width: int
    of_golden: bool
    by_weights: bool = False
    view: Optional[ContentPair] = None

    @property
    def confidence(self) -> float:
        """The confidence of its pair."""
        if self.view is not None:
            return self.view.confidence
        return OF_WEIGHTS if self.by_weights else CONFIDENCE

    @property
    def reason(self) -> str:
        """Why the contents are a pair."""
        if self.view is not None:
            return f"columns {self.start} to {self.start + self.width - 1}: {self.view.reason}"
        if self.by_weights:
            return f"the weight is that of columns {self.start} to {self.start + self.width - 1}"
        return f"columns {self.start} to {self.start + self.width - 1} are equal"

    @property
    def words(self) -> str:
        """The relation as tensors.csv has it."""
        return f"slice(last axis, {self.start}-{self.start + self.width - 1})"


def find_slices(pairs: ContentPairs) -> list[ContentSlice]:
    """The slices that values show, of contents without a partner."""
    found = [*_views(pairs)]
    for of_golden in (False, True):
        wholes, parts = (pairs.golden, pairs.target) if of_golden else (pairs.target, pairs.golden)
        known, back = (pairs.to_target, pairs.to_golden) if of_golden else (pairs.to_golden, pairs.to_target)
        groups: dict[int, list[Content]] = defaultdict(list)
        for content in parts.contents:
            if content.number not in back and not content.is_weight and _is_projected(parts, content):
                groups[_rows(content)].append(content)
        for content in wholes.contents:
            if content.number in known or content.is_weight or not groups.get(_rows(content)):
                continue
            above = {known[one] for one in wholes.ancestors(content.number, known)}
            narrower = [one for one in groups[_rows(content)] if _width(one) < _width(content)]
            related = [one for one in narrower if above & parts.ancestors(one.number, back)]
            if related and _is_projected(wholes, content):
                found += _slices_of(pairs, content, related, of_golden)
    return found


def _views(pairs: ContentPairs) -> Iterator[ContentSlice]:
    """Yield the parts of computed contents of the target of which only views, as of a split, have partners."""
    known = pairs.with_copies
    for content in pairs.target.contents:
        children = [pairs.target.contents[one] for one in pairs.target.children[content.number]]
        if content.number in known or not content.makers or not children or len(content.tensor.shape) < 2:
            continue
        is_moved = pairs.target.hands_on(content.makers[0]) or content.number in pairs.right[0]
        if is_moved or not all(one.makers and pairs.target.hands_on(one.makers[0]) for one in children):
            continue
        rows = _first_rows(pairs, content, 0)
        for part in children:
            own = _first_rows(pairs, part, 0) if part.number in pairs.found else None
            if rows is None or own is None or _rows(part) != _rows(content) or _width(part) >= _width(content):
                continue
            start = _start(rows, own, pairs.noise)
            if start is not None:
                pair = pairs.found[part.number]
                yield ContentSlice(content.number, pair.golden, start, _width(part), False, view=pair)


def _slices_of(pairs: ContentPairs, whole: Content, parts: list[Content], of_golden: bool) -> Iterator[ContentSlice]:
    rows = _first_rows(pairs, whole, int(of_golden))
    for part in parts if rows is not None else ():
        width = _width(part)
        own = _first_rows(pairs, part, int(not of_golden))
        if own is None or width < NARROWEST:
            continue
        start, of_weights = _start(rows, own, NEAR * pairs.noise), _start_of_weights(pairs, whole, part, of_golden)
        by_weights = of_weights is not None and of_weights != start  # exchanged parts agree in other columns
        start = of_weights if by_weights else start
        if start is not None:
            yield ContentSlice(whole.number, part.number, start, width, of_golden, by_weights)


def _start_of_weights(pairs: ContentPairs, whole: Content, part: Content, of_golden: bool) -> Optional[int]:
    """The column at which the weight of one product is in that of another, if both read data that agree; else None."""
    wide, narrow = (_Factors(pairs, side, one) for side, one in ((of_golden, whole), (not of_golden, part)))
    if not wide.data or wide.data != narrow.data or wide.has_bias != narrow.has_bias:
        return None
    for rows in wide.columns():
        for own in narrow.columns():
            start = _start(rows, own, pairs.noise) if len(rows) == len(own) else None
            if start is not None:
                return start
    return None


class _Factors:
    """The inputs of a product: equal data, by numbers of the golden, its weight, and whether it adds a bias."""

    def __init__(self, pairs: ContentPairs, of_golden: bool, product: Content) -> None:
        self._pairs, self._side, self._width = pairs, int(of_golden), _width(product)
        graph = pairs.golden if of_golden else pairs.target
        read = [graph.contents[one] for one in graph.parents[product.number]]
        data = [one.number for one in read if not one.is_weight and pairs.is_by_value(self._side, one.number)]
        self.data = {one if of_golden else pairs.to_golden[one] for one in data}
        weights = [one for one in read if one.is_weight]
        self._weights = [one for one in weights if len(one.shape) == 2]
        self.has_bias = len(weights) > len(self._weights)

    def columns(self) -> Iterator[Any]:
        """Yield the first rows of a weight that make columns of a product; a weight may be transposed."""
        for weight in self._weights:
            height, width = weight.shape
            if width == self._width:
                yield self._values(weight, np.arange(min(ROWS, height))[:, None] * width + np.arange(width))
            if height == self._width:
                yield self._values(weight, np.arange(min(ROWS, width))[:, None] + np.arange(height) * width)

    def _values(self, weight: Content, places: Any) -> Any:
        values = self._pairs.picked_values(self._side, weight.number, places.reshape(-1))
        return np.empty((0, self._width)) if values is None else values.reshape(places.shape)


def _start(rows: Any, own: Any, limit: float) -> Optional[int]:
    """The column at which the narrower rows agree with the wider ones; None if they do nowhere."""

    width, rest = own.shape[1], rows.shape[1] - own.shape[1]
    first = min(width, _FIRST)
    windows = np.lib.stride_tricks.sliding_window_view(rows[:, : rest + first], first, axis=1)
    best = int(np.argmin(((windows - own[:, None, :first]) ** 2).sum((0, 2))))
    return best if ((rows[:, best : best + width] - own) ** 2).sum() < limit**2 * (own * own).sum() else None


def _first_rows(pairs: ContentPairs, content: Content, side: int) -> Any:
    width, rows = _width(content), min(ROWS, _rows(content))
    values = pairs.picked_values(side, content.number, np.arange(rows * width))
    return None if values is None else values.reshape(rows, width)


def _width(content: Content) -> int:
    return content.tensor.shape[-1]


def _rows(content: Content) -> int:
    return content.size // _width(content)


def _is_projected(graph: ContentGraph, content: Content) -> bool:
    """Whether a content with rows, or what it is computed from, is computed from a weight."""
    if len(content.tensor.shape) < 2:
        return False
    near = [content.number, *graph.parents[content.number]]
    return any(graph.contents[parent].is_weight for one in near for parent in graph.parents[one])
