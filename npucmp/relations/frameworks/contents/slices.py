"""Parts: a content of one run that is a slice of the last axis of a content of the other, as q of a fused qkv.

Values decide, in the agreeing region alone. Both must be computed from weights and share an ancestor, so that no slice
is found by chance.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterator, NamedTuple

import numpy as np

from npucmp.relations.frameworks.contents.content import Content
from npucmp.relations.frameworks.contents.content_graph import ContentGraph
from npucmp.relations.frameworks.contents.content_pairs import ContentPairs

VIA = "parts"
CONFIDENCE = 0.9  # confidence: chosen: values decide, but of a part only
ROWS = 16  # rows: work: so many show where a slice begins
NEAR = 1.5  # times the noise: chosen: rows of a slice are no farther from those of the whole
NARROWEST = 4  # columns: chosen: fewer agree by chance at one of many places


class ContentSlice(NamedTuple):
    """A content that is a slice of another one. `of_golden`: the whole belongs to the golden run.

    whole, part  numbers of the contents in their runs; the slice begins at column `start` of the last axis
    """

    whole: int
    part: int
    start: int
    width: int
    of_golden: bool

    @property
    def words(self) -> str:
        """The relation as tensors.csv has it."""
        return f"slice(last axis, {self.start}-{self.start + self.width - 1})"


def find_slices(pairs: ContentPairs) -> list[ContentSlice]:
    """The slices that values show, of contents without a partner."""
    found: list[ContentSlice] = []
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


def _slices_of(pairs: ContentPairs, whole: Content, parts: list[Content], of_golden: bool) -> Iterator[ContentSlice]:
    rows = _first_rows(pairs, whole, int(of_golden))
    for part in parts if rows is not None else ():
        width = _width(part)
        own = _first_rows(pairs, part, int(not of_golden))
        start = _start(rows, own, NEAR * pairs.noise) if own is not None and width >= NARROWEST else None
        if start is not None:
            yield ContentSlice(whole.number, part.number, start, width, of_golden)


def _start(rows: Any, own: Any, limit: float) -> Any:
    """The column at which the narrower rows agree with the wider ones; None if they do nowhere."""

    windows = np.lib.stride_tricks.sliding_window_view(rows, own.shape[1], axis=1)
    squares = ((windows - own[:, None]) ** 2).sum((0, 2))
    best = int(np.argmin(squares))
    return best if squares[best] < limit**2 * (own * own).sum() else None


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
