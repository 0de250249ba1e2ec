"""Facts about all ranks of a step that the noise test of recorded statistics needs before its first operator, gathered
rank by rank; and the noise baseline, which is how far all operators before an operator shifted.
"""

from __future__ import annotations

import math
from collections import Counter
from heapq import heappop, heappush
from typing import Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.flow.operators import OperatorFindings, of_row
from npucmp.judge.precision import SINGLE
from npucmp.judge.products import VOTE_MAJORITY
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import scale_of
from npucmp.localise.effective_precision import COMMON_SHARE
from npucmp.localise.rule_context import AVERAGED_ELEMENTS
from npucmp.localise.seen_errors import QUANTILE, RECENT_OPERATORS
from npucmp.localise.stat_columns import StatColumns
from npucmp.localise.stat_shift import Level
from npucmp.model import Finding
from npucmp.model.dtypes import lookup

# rel_l2: evidence: products of numbers rounded to 11 bits are off by 2e-4 to 4e-4 (judge/products.py), and figures
# scatter more than errors
REDUCED_ERROR = 2.0**-17, 2.0**-8.5
# round-off: chosen: half of that of 11 bits, to which HF32 and TF32 round operands, not measured
REDUCED_ROUND_OFF = 2.0**-12


class ShiftedProduct(NamedTuple):
    """A float32 product: its name, the incoming shift (None: the latest before it), the largest shift written before,
    and whether it shifted as far as HF32 shifts it; None if it shifted further, which is another fault."""

    name: str
    incoming: Optional[float]
    before: float
    is_reduced: Optional[bool]


class RankFacts(NamedTuple):
    """The facts about one rank that the noise test needs from all ranks of a step before its first operator.

    containing  modules that have operators inside; units: the number of tensors by round-off
    mixed       float tensors with another type on the other side, and all float tensors
    parameter_shift  the largest shift of parameters; None if there are none
    products    of float32; most: the largest shift of any output
    """

    containing: frozenset[str]
    units: dict[float, int]
    mixed: tuple[int, int]
    parameter_shift: Optional[float]
    products: tuple[ShiftedProduct, ...]
    most: float


class Facts(NamedTuple):
    """The merged facts of all ranks."""

    containing: frozenset[str]
    coarse: float
    apart: bool
    drift: float
    unproven: float
    reduced: float
    first: bool


def facts_of(columns: StatColumns) -> RankFacts:
    """The facts of one rank."""
    network = columns.network
    wrote = network.outputs.any(np.ones(len(network.elements), dtype=bool))
    of_outputs, of_inputs = (side.most(network.most_round_off) for side in (network.outputs, network.inputs))
    coarse = np.where(wrote, of_outputs, of_inputs).tolist()
    rows = network.inputs.rows
    shifts = columns.largest[rows[(network.is_parameter & columns.is_known)[rows]]]
    written = np.maximum.accumulate([0.0, *network.outputs.most(columns.largest, columns.is_known)]).tolist()
    return RankFacts(
        network.containing,
        dict(Counter(unit for unit in coarse if unit)),
        network.mixed_types,
        float(shifts.max()) if len(shifts) else None,
        tuple(_shifted_products(columns, written)),
        written[-1],
    )


def _shifted_products(columns: StatColumns, written: Sequence[float]) -> Iterator[ShiftedProduct]:
    """Yield the float32 products; `written` are the largest shifts that were written before each operator."""
    network, (low, high) = columns.network, REDUCED_ERROR
    for at, (node, op) in enumerate(zip(network.nodes, network.ops)):
        if network.gradient[at] or not op.has("contracts"):
            continue
        wrote = [row for row in node.outputs if columns.is_known[row]]
        if not wrote or any(columns.unit[row] != SINGLE for row in wrote):
            continue
        read = [float(columns.largest[row]) for row in node.inputs if columns.is_known[row]]
        came = max(read, default=math.inf) if node.inputs else None
        moved = [float(columns.sums[row]) for row in wrote]
        most = [high * columns.reuse(at, row) for row in wrote]
        is_reduced = None if any(one >= bar for one, bar in zip(moved, most)) else min(moved) > low
        yield ShiftedProduct(network.names[at], came, written[at], is_reduced)


def merge_facts(ranks: Sequence[RankFacts], first: bool = True, unproven: float = 0.0) -> Facts:
    """Merge the facts of all ranks. unproven: the error that earlier steps may have made in parameters and that
    statistics do not prove."""
    units: Counter[float] = Counter()
    for one in ranks:
        units.update(one.units)
    least = COMMON_SHARE * sum(units.values())
    coarse = max((unit for unit, count in units.items() if count >= least), default=0.0)
    mixed, floats = (sum(numbers) for numbers in zip(*(one.mixed for one in ranks))) if ranks else (0, 0)
    parameter_shifts = [] if first else [one.parameter_shift for one in ranks if one.parameter_shift is not None]
    return Facts(
        frozenset().union(*(one.containing for one in ranks)),
        coarse,
        mixed > COMMON_SHARE * floats,
        max(parameter_shifts, default=0.0),
        0.0 if parameter_shifts else unproven,  # the records of parameters show their shift
        REDUCED_ROUND_OFF if _are_reduced(ranks) else 0.0,
        first,
    )


def _are_reduced(ranks: Sequence[RankFacts]) -> bool:
    """Whether nearly all float32 products whose operands hardly shifted have shifted as far as HF32 and TF32 round.

    Figures of a product with shifted operands do not show the error that it adds, so a single product may decide.
    """
    said: dict[bool, set[str]] = {True: set(), False: set()}
    most = 0.0
    for rank in ranks:
        for one in rank.products:
            came = max(most, one.before) if one.incoming is None else one.incoming
            if came <= FACTOR * SINGLE and one.is_reduced is not None:
                said[one.is_reduced].add(one.name)
        most = max(most, rank.most)
    reduced = len(said[True] - said[False])
    return reduced > 0 and reduced >= VOTE_MAJORITY * len(said[False])


def reuse(node: OperatorFindings, elements: int, last: tuple[int, ...] = ()) -> float:
    """√ of the number of elements that share one element of the smallest operand; of the last axis, if none was
    recorded."""
    sizes = [
        one.elements for one in map(scale_of, (*node.inputs, *node.extra_inputs)) if one.elements >= AVERAGED_ELEMENTS
    ]
    return math.sqrt(max(1.0, elements / max(min(sizes or last, default=1), 1)))


@of_row
def round_offs(finding: Finding) -> set[float]:
    sides = finding.pair.target, finding.pair.golden
    return {row.round_off for tensor in sides if tensor and (row := lookup(tensor.dtype)) and row.round_off}


class Contribution(NamedTuple):
    """The contribution of an operator to the noise baseline.

    came  the largest incoming shift; is_open: it read unrecorded tensors, whose shift is assumed to be the usual one
    """

    kind: object
    highest: Level
    incoming: float
    is_open: bool
    still: bool
    sums: bool


class NoiseBaseline(NamedTuple):
    """The noise before an operator: the usual shift, the latest, whether any tensor shifted, and the shift of its
    kind."""

    levels: float = 0.0
    sums: float = 0.0
    last: float = 0.0  # the largest of the RECENT
    seen: int = 0
    moved: bool = False
    still: int = 0
    kind: Level = Level()

    @property
    def unseen(self) -> float:
        """The assumed shift of a tensor that was not recorded."""
        return max(self.levels, self.last) if self.seen else 0.0


class History:
    """The shifts seen so far, of all ranks of a step, in order of execution."""

    def __init__(self) -> None:
        self._levels, self._sums = _Usual(), _Usual()
        self._kinds: dict[object, Level] = {}
        self._now = NoiseBaseline()  # for an operator of an unseen kind
        self.largest: list[float] = []

    def before(self, kind: object) -> NoiseBaseline:
        return NoiseBaseline(*self._now[:-1], self._kinds[kind]) if kind in self._kinds else self._now

    def add(self, one: Contribution, before: NoiseBaseline) -> None:
        self.largest.append(max(one.highest))
        if max(one.highest) > max(
            one.incoming, before.unseen if one.is_open else 0.0
        ):  # otherwise it propagated its input
            self._kinds[one.kind] = self._kinds.get(one.kind, Level()).most(one.highest)
        usual = self._levels.add(one.highest.extremes), self._sums.add(one.highest.sums)
        last = max(self.largest[-RECENT_OPERATORS:])
        moved, still = self._now.moved or not one.still, self._now.still + (one.still and one.sums)
        self._now = NoiseBaseline(*usual, last, len(self.largest), moved, still)


class _Usual:
    """The quantile of the added numbers: of n numbers in ascending order the one at int(QUANTILE * (n - 1)). One heap
    holds the numbers up to the quantile, the other heap holds the rest."""

    def __init__(self) -> None:
        self._low: list[float] = []  # negated, because heaps have the smallest first
        self._high: list[float] = []

    def add(self, one: float) -> float:
        """Add a number and return the quantile."""
        low, high = self._low, self._high
        if low and one < -low[0]:
            heappush(low, -one)
        else:
            heappush(high, one)
        count = int(QUANTILE * (len(low) + len(high) - 1)) + 1
        if len(low) < count:
            heappush(low, -heappop(high))
        elif len(low) > count:
            heappush(high, -heappop(low))
        return -low[0]
