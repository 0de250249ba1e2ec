"""Types of operators that are partners, and types that have none, as the pairs by value show them.

A graph compiler folds: behind it a Conv is the partner of a batch norm, and not of a convolution. Types are therefore
learned from each pair of runs. A content upstream of an agreement is right: if it has no partner by value,
it has none at all, because the other run does not compute it.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from npucmp.relations.frameworks.contents.content_pairs import ContentPair, ContentPairs
from npucmp.relations.frameworks.contents.value_match import VIA

KNOWN = 0.1  # score: chosen: types that are partners elsewhere
OFTEN = 0.3  # score: chosen: types that are partners wherever they occur have so much more
LONELY = 0.2  # score: chosen: so much less for a type that has none more than twice as often as it has this partner
SAME_TYPE = 0.25  # score: chosen: equal types that were not seen as partners
STRANGE = 0.3  # score: chosen: so much less for a type that has none, or other partners
ROUNDING = 1e-3  # share of the noise: chosen: an error below it is rounding alone


class LearnedTypes:
    """The types of operators that pairs by value show."""

    def __init__(self, pairs: ContentPairs) -> None:
        self._pairs = pairs
        self.alone: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self.together: Counter[tuple[str, str]] = Counter()
        self.seen: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        _agree_on_weights(pairs)
        self._whole: dict[tuple[str, str], set[bool]] = defaultdict(set)
        self._learn_partners()
        self._learn_whole()
        self._learn_right()

    def _learn_partners(self) -> None:
        for one in self._pairs:
            here, there = self._types(one.target, one.golden)
            if one.via == VIA and here and there:
                self.together[here, there] += 1
                self.seen[0][here] += 1
                self.seen[1][there] += 1

    def _types(self, target: int, golden: int) -> tuple[str, str]:
        return self._pairs.target.type_of(target), self._pairs.golden.type_of(golden)

    def _agreeing(self) -> list[ContentPair]:
        limit = self._pairs.noise * ROUNDING
        return [one for one in self._pairs if one.error is not None and one.error < limit]

    def _learn_whole(self) -> None:
        known, back = self._pairs.to_golden, self._pairs.to_target
        for one in self._agreeing():
            targets = self._pairs.target.weights_above(one.target, known)
            goldens = self._pairs.golden.weights_above(one.golden, back)
            is_whole = targets <= known.keys() and goldens <= back.keys()
            self._whole[self._types(one.target, one.golden)].add(is_whole)

    def _learn_right(self) -> None:
        agreeing = self._agreeing()
        by_figures = [one for one in self._pairs if one.error is None and one.via == VIA]
        sides = (
            (
                self._pairs.target,
                self._pairs.to_golden,
                [[one.target for one in some] for some in (agreeing, by_figures)],
            ),
            (
                self._pairs.golden,
                self._pairs.to_target,
                [[one.golden for one in some] for some in (agreeing, by_figures)],
            ),
        )
        for side, (graph, known, (numbers, figures)) in enumerate(sides):
            above = {
                parent for one in figures for parent in graph.parents[one]
            }  # figures of later tensors may hide more
            self._pairs.right[side].update(
                one for one in above if one not in known and graph.children[one] <= {*figures}
            )
            computed = [one for one in numbers if not graph.contents[one].is_weight]
            right = graph.above_agreement(computed)
            self._pairs.right[side].update(one for one in right if one not in known)
            for one in right:
                if one not in known and not graph.contents[one].is_weight:
                    self.alone[side][graph.type_of(one)] += 1

    def read_all_weights(self, target: int, golden: int) -> bool:
        """Whether all weights of operators of these types have partners wherever they agree: no compiler folds them."""
        return self._whole[self._types(target, golden)] == {True}

    def alike(self, target: int, golden: int) -> bool:
        """Whether two contents are computed by operators of one type, or of types that are partners elsewhere."""
        if self._pairs.target.types_of(target) & self._pairs.golden.types_of(golden):
            return True
        return self.together[self._types(target, golden)] > 1

    def are_inner(self, target: int, golden: int) -> bool:
        """Whether the types of both contents had no partner wherever the runs agree: each computes what lies inside an
        operator of the other run."""
        types = self._types(target, golden)
        return all(self.alone[side][one] and not self.seen[side][one] for side, one in enumerate(types))

    def fit(self, target: int, golden: int) -> float:
        """How much the types speak for a pair, from -0.6 to 0.4: how often they are partners, and how often one of them
        has none."""
        here, there = self._types(target, golden)
        count = self.together[here, there]
        lonely = self.alone[0][here], self.alone[1][there]
        if count:
            often = count / max(self.seen[0][here], self.seen[1][there])
            return KNOWN + OFTEN * often - LONELY * (lonely[0] > 2 * count) - LONELY * (lonely[1] > 2 * count)
        seen = self.seen[0][here], self.seen[1][there]
        others = sum(alone > 0 if not partners else alone + partners >= 2 for alone, partners in zip(lonely, seen))
        same = self._pairs.target.types_of(target) & self._pairs.golden.types_of(golden)
        return (SAME_TYPE if same else 0.0) - STRANGE * others


def _agree_on_weights(pairs: ContentPairs) -> None:
    """Let a content that one run computes be no weight of the other, which did not record the code that computes it."""
    for one in pairs:
        here, there = pairs.target.contents[one.target], pairs.golden.contents[one.golden]
        if here.is_weight != there.is_weight:
            here.is_weight = there.is_weight = False
