"""The matches of two runs by contents, with what a report shows about them.

The candidates for the partner of a content, in words: for operators without a partner, and for `--explain`.
"""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.model import Match, Run
from npucmp.relations.frameworks.contents.content_alignment import ContentAlignment, align_contents
from npucmp.relations.frameworks.contents.operator_draft import TensorRow
from npucmp.relations.frameworks.contents.operator_pairs import OperatorPairs
from npucmp.relations.frameworks.contents.similarity import LEAST, MARGIN, Likeness

_NAMED = 2  # candidates: chosen: so many are named in the note of an open operator
_LISTED = 8  # candidates: chosen: so many are listed by --explain


class Candidates:
    """The candidates that the last round of the search by similarity left."""

    def __init__(self, found: ContentAlignment, matches: Sequence[Match]) -> None:
        self._found, self._pairs = found, found.pairs
        self._matched = ({one.target.order for one in matches}, {one.golden.order for one in matches})
        self._by_content: dict[tuple[int, int], list[Likeness]] = defaultdict(list)
        for one in sorted(found.likenesses, key=lambda each: -each.score):
            self._by_content[0, one.target].append(one)
            self._by_content[1, one.golden].append(one)

    def open_words(self) -> Mapping[tuple[str, int], str]:
        """Why operators have no partner, by side and order: the two best candidates, and what is missing."""
        found = {}
        for side, (name, graph) in enumerate((("target", self._pairs.target), ("golden", self._pairs.golden))):
            for place, operator in enumerate(graph.operators):
                if operator.order not in self._matched[side]:
                    found[name, operator.order] = self._why_open(side, place)
        return found

    def _why_open(self, side: int, place: int) -> str:
        graph = self._pairs.golden if side else self._pairs.target
        other = "target" if side else "golden"
        written = graph.writes[place]
        if not written:
            return f"the {other} run has no such operator, and values cannot name one"
        number = written[0]
        known = self._pairs.to_target if side else self._pairs.with_copies
        if number in known:
            return "holds values that another operator wrote; these are compared there"
        if number in self._pairs.right[side]:
            return f"the {other} run computes no such tensor: what is computed from it agrees"
        names = [self._name(1 - side, one) for one in self._by_content.get((side, number), ())[:_NAMED]]
        if not names:
            return f"no tensor of the {other} run is near; it may lie inside an operator of that run"
        if len(names) == 1:
            return f"one candidate, {names[0]}, but nothing else speaks for it"
        return f"two candidates are near: {names[0]} and {names[1]}; name the right one with --mapping"

    def _name(self, side: int, one: Likeness) -> str:
        return f"{self._operator_name(side, one.golden if side else one.target)} (score {one.score:.2f})"

    def _operator_name(self, side: int, number: int) -> str:
        graph = self._pairs.golden if side else self._pairs.target
        maker = graph.maker(number)
        if maker is not None:
            return maker.name
        first = graph.tensors_of(number)[0]
        return f"{graph.operators[first.operator].name} {first.tensor.slot}"

    def explain(self, pattern: str) -> Iterator[str]:
        """Yield the partner and the candidates of the outputs of each operator whose name matches, of either run."""
        for side, (name, graph) in enumerate((("target", self._pairs.target), ("golden", self._pairs.golden))):
            for place, operator in enumerate(graph.operators):
                if not fnmatchcase(operator.name, pattern):
                    continue
                for number in graph.writes[place]:
                    yield f"{name} {operator.name}: {self._explanation(side, number)}"

    def _explanation(self, side: int, number: int) -> str:
        target = self._pairs.to_target.get(number) if side else number
        pair = None if target is None else self._pairs.found.get(target)
        if pair is not None:
            partner = self._operator_name(1 - side, pair.target if side else pair.golden)
            return f"partner {partner}, by {pair.via} ({pair.confidence:g}): {pair.reason}"
        if not side and number in self._pairs.copies:
            partner = self._operator_name(1, self._pairs.copies[number])
            return f"partner {partner}, by copy: it hands on what it reads"
        listed = self._by_content.get((side, number), ())[:_LISTED]
        if not listed:
            return "no candidate; " + self._why_open(side, self._place(side, number))
        words = "; ".join(
            f"{self._name(1 - side, one)}, values {one.distance:.2g} apart, {one.kin:.0%} of relatives common"
            for one in listed
        )
        return f"no partner (a score above {LEAST:g} and a lead of {MARGIN:g} are required): {words}"

    def _place(self, side: int, number: int) -> int:
        graph = self._pairs.golden if side else self._pairs.target
        makers = graph.contents[number].makers
        return makers[0] if makers else graph.contents[number].first


LEAST_SHARE = 0.1  # share of contents: chosen: different networks have fewer tensors with equal values
LEAST_WEIGHTS = 0.5  # share of weights: chosen: runs of one checkpoint share more, also where a compiler folds some
LEAST_PAIRED = 0.5  # share of contents: chosen: different networks share no weight, so that none of theirs are paired


class ContentMatches(NamedTuple):
    """The matches of two runs by contents.

    rows        the tensors of each match, by the target's order
    line        the line that a report shows
    open        why operators have no partner, by side and order
    candidates  all candidates of a content, for `--explain`
    """

    matches: Sequence[Match]
    rows: Mapping[int, Sequence[TensorRow]]
    line: str
    open: Mapping[tuple[str, int], str]
    candidates: Candidates


def match_contents(
    target: Run, golden: Run, anchors: Sequence[Match], context: ReadContext, least_paired: float = LEAST_PAIRED
) -> Optional[ContentMatches]:
    """Match two runs by contents; None if they have too few in common to be runs of one network."""
    found = align_contents(target, golden, anchors, context)
    is_one_network = found.share_by_value >= LEAST_SHARE or found.share_of_weights >= LEAST_WEIGHTS
    if not is_one_network and found.share_paired < least_paired:
        return None
    operators = OperatorPairs(found, context)
    if not operators.matches:
        return None
    candidates = Candidates(found, operators.matches)
    return ContentMatches(operators.matches, operators.rows, found.words(), candidates.open_words(), candidates)
