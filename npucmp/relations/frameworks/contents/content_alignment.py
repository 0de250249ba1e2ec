"""The alignment of two runs by their contents: the stages in their order, and the line that a report shows.

Pairs of contents as in another layer: made by the same operators up to two steps upstream, from the same partners.

The pattern of a content is the type and size of its maker, of its parents and of their parents. Pairs by value show
which pattern of the target is the partner of which pattern of the golden.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Hashable, Iterable, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.model import Match, Run
from npucmp.relations.frameworks.contents.block_orders import match_blocks
from npucmp.relations.frameworks.contents.content import ContentReader
from npucmp.relations.frameworks.contents.content_graph import ContentGraph
from npucmp.relations.frameworks.contents.content_pairs import CERTAIN, ContentPair, ContentPairs, Near
from npucmp.relations.frameworks.contents.learned_types import LearnedTypes
from npucmp.relations.frameworks.contents.similarity import Likeness, match_similar
from npucmp.relations.frameworks.contents.slices import ContentSlice, find_slices
from npucmp.relations.frameworks.contents.structure_match import add_copies, match_first, match_structure
from npucmp.relations.frameworks.contents.value_match import VIA as BY_VALUE
from npucmp.relations.frameworks.contents.value_match import match_values
from npucmp.relations.frameworks.contents.weight_anchors import match_operands, match_other_weights, match_weights
from npucmp.relations.held_values import Values

VIA = "pattern"
CONFIDENCE = 0.75  # confidence: chosen: 4,189 right and 8 wrong on 389 pairs
CERTAIN_INPUT = 0.8  # confidence: chosen: as of pairs by structure
_HOPS = 4  # steps: chosen: partners upstream are looked for within so many


class LayerPatterns:
    """The patterns of a run pair that the pairs by value show."""

    def __init__(self, pairs: ContentPairs) -> None:
        self._pairs = pairs
        self._patterns: tuple[dict[int, Hashable], dict[int, Hashable]] = ({}, {})
        self._partners: dict[Hashable, set[Hashable]] = defaultdict(set)
        self._cuts: dict[tuple[str, str], set[int]] = defaultdict(set)
        for one in pairs:
            if one.via == BY_VALUE:
                self._partners[self._pattern(0, one.target)].add(self._pattern(1, one.golden))
                self._learn_input(one)

    def _learn_input(self, pair: ContentPair) -> None:
        """Note which data of the target are the only data that a golden operator reads."""
        read = self._only_data(pair.golden)
        target = None if read is None else self._pairs.to_target.get(read)
        if target is not None:
            cuts = self._pairs.target.data_cuts(pair.target)
            self._cuts[self._types(pair)].add(cuts.index(target) if target in cuts else -1)

    def _only_data(self, number: int) -> Optional[int]:
        makers = self._pairs.golden.contents[number].makers
        data = self._pairs.golden.data_of(makers[0]) if makers else []
        return data[0] if len(data) == 1 else None

    def _types(self, pair: ContentPair) -> tuple[str, str]:
        return self._pairs.target.type_of(pair.target), self._pairs.golden.type_of(pair.golden)

    def match_inputs(self) -> int:
        """Add the pairs of the only data that partners are computed from, as many operators above as in other layers;
        return their number."""
        count = 0
        for pair in [*self._pairs]:
            read = self._only_data(pair.golden)
            cuts = self._cuts.get(self._types(pair), set())
            if read is None or not self._pairs.is_open(1, read) or len(cuts) != 1 or -1 in cuts:
                continue
            above = self._pairs.target.data_cuts(pair.target)[min(cuts) :][:1]
            sizes = [self._pairs.target.contents[one].size == self._pairs.golden.contents[read].size for one in above]
            if any(sizes) and self._pairs.is_open(0, above[0]):
                reason = "read as in another layer, by operators that are partners"
                count += self._pairs.add(ContentPair(above[0], read, VIA, CERTAIN_INPUT, reason))
        return count

    def match_executions(self) -> int:
        """Add the pairs of what the executions of one module read: in the order in which the target computes contents
        of one pattern, if other executions show where the order begins; return their number."""
        pairs, count = self._pairs, 0
        series: dict[Hashable, list[int]] = defaultdict(list)
        for place, operator in enumerate(pairs.golden.operators):
            data = pairs.golden.data_of(place) if operator.path else []
            if len(data) == 1 and data[0] not in series[operator.path]:
                series[operator.path].append(data[0])
        for goldens in series.values() if pairs.target.run.ordered and pairs.golden.run.ordered else ():
            shown = [(pairs.to_target[one], place) for place, one in enumerate(goldens) if one in pairs.to_target]
            patterns = {self._pattern(0, target) for target, _ in shown if pairs.is_by_value(0, target)}
            for pattern in patterns if len(shown) < len(goldens) else ():
                targets = [one.number for one in pairs.target.contents if self._pattern(0, one.number) == pattern]
                begins = {place - targets.index(target) for target, place in shown if target in targets}
                for at, target in enumerate(targets if len(begins) == 1 else ()):
                    place = at + min(begins)
                    golden = goldens[place] if 0 <= place < len(goldens) else target
                    if 0 <= place < len(goldens) and pairs.is_open(0, target) and pairs.is_open(1, golden):
                        reason = "read by one module, computed as for its other executions"
                        count += pairs.add(ContentPair(target, golden, VIA, CERTAIN_INPUT, reason))
        return count

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


NOISE = 1e-3  # relative error: chosen: two frameworks in float32 differ by less
COARSE_NOISE = 1e-2  # relative error: chosen: the same in 16-bit types, whose round-off is 4e-3
TRUE_NAMES = 20  # times: chosen: so many names that values confirm for each that they contradict
TURNS = 12  # rounds: work: of the stages behind a fault; each finds at least one pair
STEPS = 2000  # rounds: work: of structure, weights and patterns between two of them
_COARSE = ("float16", "bfloat16")


class ContentAlignment(NamedTuple):
    """The pairs of contents, the slices among contents without a partner, and the candidates that are left."""

    pairs: ContentPairs
    slices: Sequence[ContentSlice]
    likenesses: Sequence[Likeness]

    @property
    def share_by_value(self) -> float:
        """The share of the contents of the run with fewer contents that were paired by value, weights and inputs
        aside."""
        return self._share(one for one in self.pairs if one.via == BY_VALUE)

    @property
    def share_paired(self) -> float:
        """The same share of all pairs of recorded values; statistics alone are near by chance."""
        contents = self.pairs.target.contents
        return self._share(one for one in self.pairs if contents[one.target].sketch.quantiles is not None)

    def _share(self, pairs: Iterable[ContentPair]) -> float:
        graphs = self.pairs.target, self.pairs.golden
        smaller = min(sum(not one.is_weight for one in graph.contents) for graph in graphs)
        return sum(not self.pairs.target.contents[one.target].is_weight for one in pairs) / max(1, smaller)

    @property
    def share_of_weights(self) -> float:
        """The share of the weights of the run with fewer weights that were paired by value; 0 without weights."""
        sides = [sum(one.is_weight for one in graph.contents) for graph in (self.pairs.target, self.pairs.golden)]
        weights = self.pairs.target.contents
        return sum(one.via == BY_VALUE and weights[one.target].is_weight for one in self.pairs) / max(1, min(sides))

    def words(self) -> str:
        """The line that a report shows."""
        counts = Counter(one.via for one in self.pairs)
        counts["copy"] += len(self.pairs.copies)
        counts["parts"] += len({one.part for one in self.slices})
        smaller = min(len(self.pairs.target.contents), len(self.pairs.golden.contents))
        value = f"{counts.pop(BY_VALUE, 0):,} by value"
        others = [f"{count:,} {via}" for via, count in counts.items() if count]
        axes = self.pairs.axes.words()
        words = f"aligned {len(self.pairs.found):,} of {smaller:,} distinct tensors: {', '.join([value, *others])}"
        return f"{words}; axes {axes}" if axes else words


def align_contents(target: Run, golden: Run, anchors: Sequence[Match], context: ReadContext) -> ContentAlignment:
    """Align two runs by the values that they compute. `anchors` are matches by names, graphs or the user, which count
    where values do not contradict them."""
    reader = ContentReader(Values(context))
    graphs = ContentGraph(target, reader), ContentGraph(golden, reader)
    pairs = ContentPairs(*graphs, reader, _noise(target, golden))
    match_values(pairs)
    match_blocks(pairs)
    _add_anchors(pairs, anchors)
    types = LearnedTypes(pairs)
    patterns = LayerPatterns(pairs)
    add_copies(pairs)
    _match_graph(pairs, types, patterns)
    add_copies(pairs)
    likenesses: Sequence[Likeness] = ()
    for _ in range(TURNS):
        count, likenesses = match_similar(pairs, types)
        if not count + match_other_weights(pairs, types):
            break
        _match_graph(pairs, types, patterns)
    add_copies(pairs)
    return ContentAlignment(pairs, find_slices(pairs), likenesses)


def _match_graph(pairs: ContentPairs, types: LearnedTypes, patterns: LayerPatterns) -> None:
    """Pair what the graphs decide, until nothing is new. After a round of all contents, only those near new pairs are
    tried, until none of them is paired."""
    match_operands(pairs)
    near: Near = None
    for _ in range(STEPS):
        if match_structure(pairs, types, near) + match_weights(pairs, types, near):
            near = pairs.take_recent()
        elif near is not None:
            near = None
        elif not (
            patterns.match() or patterns.match_inputs() or patterns.match_executions() or match_first(pairs, types)
        ):
            return
        else:
            near = pairs.take_recent()


def _add_anchors(pairs: ContentPairs, anchors: Sequence[Match]) -> None:
    """Add the outputs of operators that names, graphs or the user pair, if values do not pair one of them. Names that
    count calls (add.3) also occur in a run that computes in another order: names anchor nothing if values contradict
    many of them."""
    outputs = [_first_outputs(graph) for graph in (pairs.target, pairs.golden)]
    found = [(one, outputs[0].get(one.target.order), outputs[1].get(one.golden.order)) for one in anchors]
    verdicts = Counter(
        pairs.to_golden.get(target) == golden
        for one, target, golden in found
        if one.via == "name" and target is not None and (target in pairs.to_golden or golden in pairs.to_target)
    )
    are_names_certain = verdicts[True] >= TRUE_NAMES * verdicts[False]
    for match, target, golden in found:
        if target is None or golden is None or (match.via == "name" and not are_names_certain):
            continue
        if pairs.target.contents[target].size != pairs.golden.contents[golden].size:
            continue
        if match.via == "mapping":
            _make_room(pairs, target, golden)
        pairs.add(ContentPair(target, golden, match.via, match.confidence, f"operators paired by {match.via}"))


def _first_outputs(graph: ContentGraph) -> dict[int, int]:
    """The content of the first output of each operator, by its order; outputs that are no contents are left out."""
    numbers = ((one.order, graph.content_of.get((place, "output:0"))) for place, one in enumerate(graph.operators))
    return {order: number for order, number in numbers if number is not None}


def _make_room(pairs: ContentPairs, target: int, golden: int) -> None:
    """Remove uncertain pairs that contradict the user's mapping."""
    other = pairs.to_target.get(golden)
    for number in (target, other):
        found: Optional[ContentPair] = None if number is None else pairs.found.get(number)
        if found is not None and (found.target, found.golden) != (target, golden) and found.confidence < CERTAIN:
            pairs.remove(found)


def _noise(*runs: Run) -> float:
    coarse = any(tensor.dtype in _COARSE for run in runs for one in run.operators for tensor in one.tensors)
    return COARSE_NOISE if coarse else NOISE
