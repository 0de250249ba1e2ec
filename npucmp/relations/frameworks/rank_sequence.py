"""The partners of the operators of one rank in the run of another framework on one card.

Both run the same operators in the same order, under other names and with parts of the tensors. The common sequence of
the largest similarity is taken: of operators of one type whose outputs are parts of the golden's by their sizes.
A fault does not change weights, so these show partners best. Values of activations are not asked: a faulty one has the
partner of a right one.

Modules are partners of modules and functions of functions. An operator that is left, as attention in a module against a
function, is the partner of the only one of its type between the same partners. A sum that adds the bias of a product,
which ranks do behind their reduction, is the partner of that product. Several functions that write what partners read
are together the partner of the module that writes all of it, as rotary embeddings of queries and keys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from typing import Any, Hashable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.model import Operator, Run
from npucmp.model.optypes import same_type
from npucmp.relations.common_sequence import common_sequence
from npucmp.relations.held_values import SHORT, HeldTensor, RankOperator, Values

OF_WEIGHTS = 2.0  # score: chosen: a weight shows a pair better than a place in the sequence
DIGITS = 5  # digits: chosen: equal rows have projections that are equal to float64
SAMPLE = 8  # rows and columns of a part: work: so many are looked for in the golden's weights
CELLS = 1 << 25  # cells: work: longer runs have no partners here


class Source(NamedTuple):
    """A tensor of a rank, by its operator and slot, in a slot of the golden partner."""

    operator: str
    slot: str
    golden: str


class RankSequence:
    """The operators of a rank with their golden partners. `by` counts them by what shows them."""

    def __init__(self, many: Run, few: Run, ranks: int, values: Values, names: Mapping[str, str]) -> None:
        self.ranks, self._names = ranks, names
        self.own = [one for one in _operators(many, values) if not one.is_collective]
        self.golden = _operators(few, values)
        self._weights = _Weights(self.golden, few)
        self._hits = [self._weights.hits(one) for one in self.own]
        inside: dict[str, set[int]] = defaultdict(set)
        for one, hits in zip(self.own, self._hits):
            if one.op.scope:
                inside[one.op.scope] |= hits
        self._hits = [hits | self._weights.modules(inside[one.name]) for one, hits in zip(self.own, self._hits)]
        self._added = {content for one in self.own if one.type.has("sums") for content in _vectors(one)}
        self.pairs = self._common() if len(self.own) * len(self.golden) <= CELLS else []
        self.pairs = sorted([*self.pairs, *self._left()])

    def partners(self) -> Iterator[tuple[str, Operator]]:
        """Yield the names of operators and their partners."""
        for place, other in self.pairs:
            yield self.own[place].name, self.golden[other].op

    def composites(self) -> Iterator[tuple[str, Operator, list[Source]]]:
        """Yield an operator in place of several, its golden partner, and the tensors of all of them."""
        flows = _Writers(self.own), _Writers(self.golden)
        taken = {place for place, _ in self.pairs}, {other for _, other in self.pairs}
        partners = {other: place for place, other in self.pairs}
        for place, other in self.pairs:
            sides = [[one for one in side.inputs if one.is_float] for side in (self.own[place], self.golden[other])]
            wrote, whole = (
                [found for one in side if (found := flow.of(one)) is not None and flow.place(found) not in used]
                for side, flow, used in zip(sides, flows, taken)
            )
            if len({flows[1].place(one) for one in whole}) != 1 or len({flows[0].place(one) for one in wrote}) < 2:
                continue
            golden = whole[0].operator
            outputs = [one for one in golden.outputs if one.is_float]
            if len(outputs) != len(wrote):
                continue
            sources = [Source(one.operator.name, one.slot, output.slot) for one, output in zip(wrote, outputs)]
            for one in golden.inputs:
                found = flows[1].of(one)
                own = partners.get(flows[1].place(found)) if found is not None and one.is_float else None
                if own is not None:
                    sources.append(Source(self.own[own].name, self.own[own].outputs[0].slot, one.slot))
            taken[1].add(flows[1].place(whole[0]))
            yield max((one.operator for one in wrote), key=lambda one: one.order).name, golden.op, sources

    @property
    def by(self) -> Mapping[str, int]:
        """The number of partners by what shows them."""
        return Counter("weights" if other in self._hits[place] else "order" for place, other in self.pairs)

    def _common(self) -> list[tuple[int, int]]:
        """The common sequence of the largest similarity."""
        by_type: dict[str, list[int]] = defaultdict(list)
        for place, one in enumerate(self.golden):
            by_type[same_type(one.op.op_type)].append(place)

        def gains_of(i: int) -> np.ndarray[Any, Any]:
            gains = np.zeros(len(self.golden), np.float32)
            for j in {*by_type.get(same_type(self.own[i].op.op_type), ()), *self._hits[i]}:
                gains[j] = self._similarity(i, j)
            return gains

        return common_sequence(len(self.own), len(self.golden), gains_of)

    def _similarity(self, i: int, j: int) -> float:
        """0 for operators that cannot be partners, else 1, and more if both read one weight."""
        one, other, hits = self.own[i], self.golden[j], self._hits[i]
        if self._names.get(one.name) == other.name:
            return 2 * OF_WEIGHTS
        if bool(one.op.path) is not bool(other.op.path) or not self._is_part(one, other) or (hits and j not in hits):
            return 0.0
        if self._is_bare(one, other):
            return 0.0
        return 1.0 + OF_WEIGHTS * (j in hits)

    def _is_part(self, one: RankOperator, other: RankOperator) -> bool:
        """Whether the first output of an operator may be a part of the golden's by its size."""
        if not one.outputs or not other.outputs:
            return not one.outputs and not other.outputs
        part, whole = one.outputs[0].size, other.outputs[0].size
        return bool(part) and not whole % part and whole // part <= self.ranks

    def _is_bare(self, one: RankOperator, other: RankOperator) -> bool:
        """Whether an operator lacks the bias of the golden's, which a later sum of the rank adds."""
        return not one.type.has("sums") and bool((_vectors(other) & self._added) - _vectors(one))

    def _left(self) -> Iterator[tuple[int, int]]:
        """Yield the operators that are left, each the only one of its type between the same partners on both sides."""
        ends = [place for place, _ in self.pairs], [place for _, place in self.pairs]
        gaps: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for side, operators in enumerate((self.own, self.golden)):
            taken = {*ends[side]}
            for place, one in enumerate(operators):
                if place not in taken:
                    gaps[bisect_right(ends[side], place), same_type(one.op.op_type)][side].append(place)
        for own, golden in gaps.values():
            if len(own) == len(golden) == 1:
                one, other = self.own[own[0]], self.golden[golden[0]]
                if self._is_part(one, other) and not self._is_bare(one, other):
                    yield own[0], golden[0]


class _Writers:
    """The operators of a run that wrote its tensors."""

    def __init__(self, operators: Sequence[RankOperator]) -> None:
        self._places = {one.name: place for place, one in enumerate(operators)}
        self._first: dict[Hashable, HeldTensor] = {}
        for operator in operators:
            for one in operator.outputs:
                if one.is_float and one.size > 1 and one.content is not None:
                    self._first.setdefault(one.content, one)

    def of(self, tensor: HeldTensor) -> Optional[HeldTensor]:
        """The output that held what an operator reads first."""
        found = self._first.get(tensor.content) if tensor.content is not None else None
        return found if found is not None and found.operator.order < tensor.operator.order else None

    def place(self, tensor: HeldTensor) -> int:
        """The place of the operator of a tensor."""
        return self._places[tensor.operator.name]


def _operators(run: Run, values: Values) -> list[RankOperator]:
    return [RankOperator(one, 0, values) for one in run.operators if one.phase != "backward"]


def _vectors(operator: RankOperator) -> set[Hashable]:
    """The contents of vectors that an operator reads: biases and weights of norms."""
    vectors = (one for one in operator.inputs if one.is_float and len(one.shape) == 1 and one.size > 1)
    return {one.content for one in vectors if one.content is not None}


class _Weights:
    """The places of golden operators by what they read: rows and columns of matrices, and vectors."""

    def __init__(self, golden: Sequence[RankOperator], run: Run) -> None:
        self._places: dict[Hashable, set[int]] = defaultdict(set)
        self._around: dict[int, int] = {}
        modules = {one.name: place for place, one in enumerate(golden) if one.op.path}
        for place, one in enumerate(golden):
            for key in (*_vectors(one), *(key for weight in one.weights for key in _lines(weight))):
                self._places[key].add(place)
            if one.op.scope in modules:
                self._around[place] = modules[one.op.scope]

    def hits(self, operator: RankOperator) -> set[int]:
        """The places of operators that read a weight of which this one reads a part."""
        found = [self._places.get(content, set()) for content in _vectors(operator)]
        for one in operator.inputs:
            counts = Counter(place for key in _lines(one, SAMPLE) for place in self._places.get(key, ()))
            found.append({place for place, count in counts.items() if 2 * count >= max(counts.values())})
        known = [places for places in found if places]
        return set.intersection(*known) or known[0] if known else set()

    def modules(self, places: set[int]) -> set[int]:
        """The places of the modules in which operators run."""
        return {self._around[place] for place in places if place in self._around}


def _lines(tensor: HeldTensor, most: Optional[int] = None) -> Iterator[Hashable]:
    """Yield a key of each row and column of a matrix of floats, or of so many of each."""
    if not tensor.is_float or len(tensor.shape) != 2 or min(tensor.shape) < SHORT or tensor.array is None:
        return
    for axis in (0, 1):
        marks = tensor.vector_marks(axis)[:, :2]
        for row in marks if most is None else marks[:: max(1, len(marks) // most)]:
            yield tensor.shape[1 - axis], *(f"{number:.{DIGITS}e}" for number in row.tolist())
