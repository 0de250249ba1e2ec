"""Pairs of contents as in another layer: made by the same operators up to two steps upstream, from the same partners.

The pattern of a content is the type and size of its maker, of its parents and of their parents. Pairs by value show
which pattern of the target is the partner of which pattern of the golden.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Hashable

from npucmp.relations.frameworks.contents.content_graph import ContentGraph
from npucmp.relations.frameworks.contents.content_pairs import ContentPair, ContentPairs
from npucmp.relations.frameworks.contents.value_match import VIA as BY_VALUE

VIA = "pattern"
CONFIDENCE = 0.75  # confidence: chosen: 4,189 right and 8 wrong on 389 pairs
_HOPS = 4  # steps: chosen: partners upstream are looked for within so many


class LayerPatterns:
    """The patterns of a run pair that the pairs by value show."""

    def __init__(self, pairs: ContentPairs) -> None:
        self._pairs = pairs
        self._patterns: tuple[dict[int, Hashable], dict[int, Hashable]] = ({}, {})
        self._partners: dict[Hashable, set[Hashable]] = defaultdict(set)
        for one in pairs:
            if one.via == BY_VALUE:
                self._partners[self._pattern(0, one.target)].add(self._pattern(1, one.golden))

    def match(self) -> int:
        """Add the pairs by pattern; return their number."""
        pairs = self._pairs
        goldens: dict[Hashable, list[int]] = defaultdict(list)
        for content in pairs.golden.contents:
            if content.makers and pairs.is_open(1, content.number):
                above = frozenset(pairs.golden.ancestors(content.number, pairs.to_target, _HOPS))
                if above:
                    goldens[self._pattern(1, content.number), above].append(content.number)
        known = pairs.with_copies
        targets: dict[Hashable, list[int]] = defaultdict(list)
        for content in pairs.target.contents:
            if not content.makers or not pairs.is_open(0, content.number):
                continue
            above = frozenset(known[one] for one in pairs.target.ancestors(content.number, known, _HOPS))
            for pattern in self._partners.get(self._pattern(0, content.number), ()) if above else ():
                if (pattern, above) in goldens:
                    targets[pattern, above].append(content.number)
        count = 0
        for key, numbers in targets.items():
            if len(numbers) == len(goldens[key]) == 1 and pairs.same_pass(numbers[0], goldens[key][0]):
                reason = "made as in another layer, from the same partners"
                count += pairs.add(ContentPair(numbers[0], goldens[key][0], VIA, CONFIDENCE, reason))
        return count

    def _pattern(self, side: int, number: int) -> Hashable:
        known = self._patterns[side]
        if number not in known:
            graph = self._pairs.golden if side else self._pairs.target
            parents = (
                (_node(graph, one), tuple(sorted(_node(graph, each) for each in graph.parents[one])))
                for one in graph.parents[number]
            )
            known[number] = _node(graph, number), tuple(sorted(parents))
        return known[number]


def _node(graph: ContentGraph, number: int) -> tuple[str, int]:
    content = graph.contents[number]
    return "weight" if content.is_weight else graph.type_of(number), content.size
