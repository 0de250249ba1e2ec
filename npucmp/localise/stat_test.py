"""Test how far operators with recorded statistics only exceed the noise before them.

A norm that shifted by less than the limit of its tensor proves nothing. It is a strong sign all the same if it shifted
a hundred times as far as rounding shifts a norm of that many elements, and no tensor before it did. So every tensor is
compared with the incoming noise of its operator, and with the noise of earlier operators of its kind.

The numbers below were chosen on planted runs (open families 0 to 319, all as statistics) and on msprobe's dumps without
their values; docs/benchmark.md has the figures of unseen pairs. With 3 instead of OUT_SUMS and 3.5 instead of OUT
four times as many clean pairs have a suspect, for two more faults in 100.

The noise of a tensor is the largest of these levels:

    inputs            the shift of the inputs and of the saved tensors of the forward, times the condition number and
                      √(n / n of the input) for sums, at least a rounding if the condition number is above 1; for an
                      addition by the share of each input
    hidden figures    if a mask hides the figures of the tensor: the shift of the inputs alone; for readers of the
                      output of exp: also the shift of the operand of exp, times its condition number
    earlier outputs   the largest shift that an operator of the same type added, and the 90 % quantile of all operators
    rounding          2 roundings to the coarsest type that the operator reads or writes, or that a good part of the run
                      has. 1 if all sums and products agree to the last digit (a repeated run); 0.5 for parameters and
                      the first input, of 16 bits on both sides
    other types       √(n / n of the smallest operand) if the runs round to other types: weights are rounded once and
                      read again and again. A type that few tensors have on one side only does not count
    HF32, TF32        roundings to 11 bits, if all float32 products with agreeing operands moved so
    norms             √n / 2 times the limit of the norm, if that is large: the squares of errors add up
    later steps       the shift of the parameters; if none was recorded, the shift that updates may have caused. A
                      forward pass behind a backward pass of the first step, as a validation is, is a later step too
    other arguments   if the figures of all inputs are equal, 2 roundings to the types of the operator alone
    cancelling sums   their terms
    flips             for gradients of choices whose mask was not recorded

A tensor that exceeds the noise 5 times makes its operator a SUSPECT unless the operator is a root already. The factor
is 3.5 for mean and norm in the forward pass of the first step and 8 in later steps; each is multiplied by 1 + 16/n for
n elements. An input is compared with the same tensor at its producer; an input without a producer with 4 times all
levels before. A number without a producer may remain of a cancelling sum and is not judged, unless it is larger than
the latest gradients, or changed by more than 8 times the noise of a sum of the latest outputs.

Facts about all ranks of a step that the noise test of recorded statistics needs before its first operator, gathered
rank by rank; and the noise baseline, which is how far all operators before an operator shifted.

Runs with statistics only: separate proven roots, suspects and noise.

The first operator that exceeds the noise before it is suspected, unless it is a root already. Proven
differences before it are reverted: statistics give only a lower bound of an error, and prove nothing about the inputs
of an operator. Proven roots behind it count as PROPAGATED.

Differences that values or checksums prove stay. On other ranks the same operator is named too if it exceeds the noise
there. If the first operator is an input of the network, the runs received different inputs, and that is the only
suspect. An operator whose output is proven to differ is BORN if the statistics of all inputs agree and an argument
differs. Statistics of masks, whole numbers and tensors with infinities do not show most values: if the first operator
reads such a tensor and an earlier operator made it with another argument, the earlier operator is the SUSPECT. The
same holds for a tensor whose axes an earlier operator moved otherwise, because figures do not show the order. An
operator of one run alone that may have moved the elements of an input is named by its reader.
Checksums of runs that work in different types prove nothing, and neither does an equal XOR: the first operator with
another XOR is UNKNOWN.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from heapq import heappop, heappush
from typing import Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.flow.contents import is_few
from npucmp.flow.operators import OperatorFindings, OperatorRows, of_row
from npucmp.judge.precision import SINGLE
from npucmp.judge.products import VOTE_MAJORITY
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import Scale, amplification, scale_of, terms
from npucmp.localise.effective_precision import COMMON_SHARE
from npucmp.localise.evidence import argument_reasons, draw_reasons, is_fed, reason, tensor_fact
from npucmp.localise.root_cause import SearchResult
from npucmp.localise.rule_context import AVERAGED_ELEMENTS, FLIP_SHARE, QUANTILE, RECENT_OPERATORS
from npucmp.localise.rules.limits import REDUCED_ROUND_OFF
from npucmp.localise.search import RootSearch
from npucmp.localise.seen_errors import below_rounding, may_cancel, rounding_of_sums
from npucmp.localise.sources import source_of
from npucmp.localise.stat_columns import (
    FIGURES,
    SUMS,
    Level,
    ShiftBars,
    StatColumns,
    StatShift,
    is_hidden,
    level,
    movement,
    round_offs_of,
)
from npucmp.localise.sweep import Sweep
from npucmp.model import Cause, Finding, Operator, Pair, Root, Verdict
from npucmp.model.arguments import moves_other_axes
from npucmp.model.dtypes import MOST, lookup
from npucmp.model.finding import DIFFERS
from npucmp.model.roles import is_meaningless, is_parameter
from npucmp.model.table import ChangedRows, rows_of_verdicts, with_changes

# rel_l2: evidence: products of numbers rounded to 11 bits are off by 2e-4 to 4e-4 (judge/products.py), and figures
# scatter more than errors
REDUCED_ERROR = 2.0**-17, 2.0**-8.5
REDUCED_NOISE = 0.5 * REDUCED_ROUND_OFF  # round-off: chosen: half of that to which HF32 and TF32 round, not measured


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
    fields = columns.is_known, columns.unit, columns.largest, columns.sums
    is_known, unit, largest, sums = (column.tolist() for column in fields)
    for at in network.products:
        node = network.nodes[at]
        wrote = [row for row in node.outputs if is_known[row]]
        if not wrote or any(unit[row] != SINGLE for row in wrote):
            continue
        read = [largest[row] for row in node.inputs if is_known[row]]
        came = max(read, default=math.inf) if node.inputs else None
        moved = [sums[row] for row in wrote]
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
        REDUCED_NOISE if _are_reduced(ranks) else 0.0,
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
    return round_offs_of(finding.pair)


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


NOISE_FACTOR = 5.0  # times the noise before: evidence: planted runs
# times the noise before: evidence: mean and norm in the forward pass of the first step scatter least
NOISE_FACTOR_SUMS = 3.5
NOISE_FACTOR_LATER = 8.0  # times the noise before: evidence: in later steps parameters have errors that no figure shows
# roundings to the coarsest type that an operator reads or writes: evidence: noise that is always there
BASE_NOISE = 2.0
SUMMED = 2.0  # times: chosen: what several ranks make stands behind sums over ranks, which round their terms
INPUT_NOISE = 0.5  # roundings: evidence: for parameters and inputs of 16 bits, which no operator has computed yet
UNKNOWN_WRITER_FACTOR = 4.0  # times the noise before: evidence: for tensors that no recorded operator wrote
REPEAT_OPERATORS = 4  # operators: evidence: a run is a repeat if as many sum and agree to the last digit
EXPECTED_FLIPS = 0.05  # elements: chosen: fewer expected flips count as none, not measured
ROUNDING_FACTOR = 4.0  # times the rest of rounding: chosen: the limit of a shift is so much larger, not measured


class Outlier(NamedTuple):
    """An operator that exceeds the noise: the tensor that shifted, its shift and the noise before it, in roundings, and
    the ratio of the shift to the required one."""

    finding: Finding
    moved: StatShift
    figure: int
    noise: float
    ratio: float
    before: int = 0  # operators before it
    as_much: int = 0  # earlier operators that shifted as much


class InputNoise(NamedTuple):
    """The contribution of one input: its level, its number of elements and their size."""

    level: Level
    elements: int
    scale: Scale = Scale()

    def share(self, rms: float) -> Level:
        """The level relative to a sum of size rms: a small term affects it little."""
        if not (math.isfinite(rms) and rms and self.scale.rms):
            return self.level
        extremes, sums = min(1.0, self.scale.largest / rms), min(1.0, self.scale.rms / rms)
        return Level(self.level.extremes * extremes, self.level.sums * sums)


class NoiseTest:
    """The comparison of operators with the noise before them; `now` is the baseline of the visited operator."""

    def __init__(self, facts: Facts) -> None:
        self._containing, self._coarse, self._drift, self._unproven = (
            facts.containing, facts.coarse, facts.drift, facts.unproven
        )  # fmt: skip
        self._own: Callable[[set[float]], float] = max if facts.apart else min
        self._reduced, self._is_first_step = facts.reduced, facts.first
        self._any_backward = False
        self._updated = False  # a parameter that shifted was read after a backward pass
        self._units: Optional[tuple[OperatorFindings, float]] = None  # the operator of the last query
        self._now = NoiseBaseline()
        self._chosen: set[int] = set()
        self._hidden: dict[int, InputNoise] = {}  # by row of an output that a mask hides: the incoming noise
        self.outliers: dict[int, Outlier] = {}  # by the row of the operator
        self._suspected: set[str] = set()  # the names of their operators

    def is_candidate(self, name: str) -> bool:
        """Whether an operator may be the first that exceeds the noise, or is the same as the first on another rank."""
        return not self._suspected or name in self._suspected

    def contribution_of(self, columns: StatColumns, at: int, inside: bool) -> Contribution:
        """The contribution of an operator of a rank in columns that does not exceed the noise; `inside`: it is a module
        with operators inside."""
        network, (extremes, sums) = columns.network, columns.highest
        incoming = 0.0 if inside else columns.incoming[at]
        is_open = not inside and not network.nodes[at].inputs
        highest = Level(extremes[at], sums[at])
        return Contribution(network.kinds[at], highest, incoming, is_open, columns.still[at], network.sums[at])

    def visit(self, node: OperatorFindings, walk: RootSearch, now: NoiseBaseline) -> Optional[Contribution]:
        """Compare an operator with the baseline before it, and return its contribution to the baseline; `walk` knows
        the tensors written and read before."""
        self._now = now
        shifts = [max(level(one)) for one in node.inputs if is_parameter(one.pair) and movement(one) is not None]
        self.follow_updates(node.is_gradient, max(filter(math.isfinite, shifts), default=0.0))
        read, came = self._input_shifts(node, walk)
        argued = self._argument_level(node)
        found = [one for finding, moved in read if (one := self._of_input(node, finding, moved, walk)) is not None]
        for finding in node.outputs if came is not None else ():
            moved = movement(finding)
            if moved is None or came is None or is_meaningless(finding.pair):
                continue
            one = self._outlier(finding, moved, argued or self._noise_level(node, finding, moved, came))
            found += [one] if one is not None else []
        if found:
            self.outliers[node.row] = outlier = max(found, key=lambda one: one.ratio)
            self._suspected.add(outlier.finding.pair.operator.name)
        self._hide(node, came or ())
        if now.moved and any(one.measurement.shapes_differ for one in (*node.inputs, *node.outputs)):
            self._chosen.add(node.row)
        return self._contribution(node, read, came)

    @property
    def _first(self) -> bool:
        """Whether no optimizer has updated the parameters so far."""
        return self._is_first_step and not self._updated

    def follow_updates(self, is_gradient: bool, shift: float) -> None:
        """Learn the shift of parameters that are read after a backward pass of the step."""
        self._any_backward |= is_gradient
        if shift and self._any_backward and not is_gradient:
            self._updated, self._drift = True, max(self._drift, shift)

    def bars_of(self, columns: StatColumns, sources: Sequence[int]) -> ShiftBars:
        """The bounds by which the operators of a rank in columns are tested."""
        is_container = columns.network.is_container(self._containing)
        return columns.bars(self._own is max, self._coarse, self._reduced, np.array(sources), is_container)

    def may_exceed(self, bars: ShiftBars, at: int, now: NoiseBaseline) -> bool:
        """Whether an operator of a rank in columns may exceed the noise."""
        self._now = now
        noise = max(now.kind.sums, 0.0 if self._repeats else self._drift, self._unproven)
        return bars.may_exceed(at, NOISE_FACTOR_SUMS, self._repeats, self._first, bool(now.seen), noise)

    def reads_hidden(self, rows: OperatorRows, walk: RootSearch) -> bool:
        """Whether a mask hides the figures of a tensor that an operator reads, or of its producer."""
        hidden, sources, first = self._hidden, walk.edges.sources, walk.first_row
        read = (*rows.inputs, *rows.extra_inputs) if hidden else ()
        return any(row + first in hidden or sources[row] + first in hidden for row in read)

    def _argument_level(self, node: OperatorFindings) -> Optional[Level]:
        """The noise of an operator that the two runs call with other arguments although all figures of its inputs are
        equal: the roundings of its own types alone, also if the run has a coarser type; None for other operators."""
        if not node.inputs or not argument_reasons(node.pair):
            return None
        if any(None in one.measurement.statistics or _differs(one) for one in node.inputs):
            return None
        unit = max((max(kinds) for one in (*node.inputs, *node.outputs) if (kinds := round_offs(one))), default=SINGLE)
        return Level(*[BASE_NOISE * max(SINGLE, unit)] * 2)

    def _input_shifts(
        self, node: OperatorFindings, walk: RootSearch
    ) -> tuple[list[tuple[Finding, StatShift]], Optional[list[InputNoise]]]:
        """Return the inputs of an operator with their shifts, and the noise of its inputs and saved tensors."""
        read = [(finding, moved) for finding in node.inputs if (moved := movement(finding)) is not None]
        saved = [(one, moved) for one in node.extra_inputs if (moved := movement(one)) is not None]
        return read, None if self._is_container(node.operator) else self._input_noise(node, [*read, *saved], walk)

    def is_beyond(self, node: OperatorFindings, root: Root) -> bool:
        """Whether a proven root rests on more than statistics within the noise: on values, or on checksums."""
        if node.row in self.outliers:
            return True
        if node.row in self._chosen and root.metric == "shape":
            return False
        shown = [one for one in (*node.inputs, *node.outputs) if one.pair.slot == root.slot]
        if not self._is_first_step and any(is_parameter(one.pair) for one in shown):
            return True
        return any(movement(one) is None or one.measurement.same is False for one in shown)

    def _is_container(self, operator: Operator) -> bool:
        return operator.name in self._containing or f"{operator.phase} {operator.path}" in self._containing

    def _of_input(
        self, node: OperatorFindings, finding: Finding, moved: StatShift, walk: RootSearch
    ) -> Optional[Outlier]:
        """Compare an input with the same tensor at its producer; without a producer, with all tensors before it."""
        source = source_of(walk, finding)
        is_written = node.op.has("in place") and finding.pair.slot == "input:0"
        if is_written or (source is not None and source.meaningless):
            return None
        if source is not None:
            wrote = movement(source.finding)
            if wrote is None:
                return None
            unit = max(wrote.unit, self._unit(node, finding))
            return self._outlier(finding, moved, self._floor(level(source.finding), unit))
        types = {tensor.dtype for tensor in (finding.pair.target, finding.pair.golden) if tensor}
        is_given = len(types) == 1 and moved.unit > SINGLE and not self._now.seen  # both sides should be equal
        least = INPUT_NOISE * moved.unit if is_given else BASE_NOISE * self._unit(node, finding)
        if is_parameter(finding.pair):
            return self._outlier(finding, moved, Level(least, least)) if self._first else None
        if below_rounding(walk, finding) or (self._now.moved and self._may_be_left(finding, least, walk)):
            return None
        few = (
            0 if is_few(finding) else AVERAGED_ELEMENTS
        )  # a scalar shifts as single elements do: its figures average nothing
        if not self._now.moved:
            return self._outlier(finding, moved, Level(least, least), few)
        if not few:
            alone = UNKNOWN_WRITER_FACTOR * max(self._now.levels, least)
            return self._outlier(finding, moved, Level(alone, alone), few)
        usual = max(self._now.last, self._now.levels, least)
        return self._outlier(finding, moved, Level(usual, usual).times(UNKNOWN_WRITER_FACTOR))

    def _may_be_left(self, finding: Finding, least: float, walk: Sweep) -> bool:
        """Whether an input of few elements may be what is left of a sum that cancels: it then changes by no more than
        the noise of the terms."""
        extremes = [statistics[:2] for statistics in finding.measurement.statistics if statistics is not None]
        change = max((abs(a - b) for a, b in zip(*extremes) if a is not None and b is not None), default=0.0)
        bound = rounding_of_sums(walk, max(self._now.levels, least))  # 0 if no output was seen
        return may_cancel(walk, finding) and not change > bound > 0.0

    def _input_noise(
        self, node: OperatorFindings, read: Sequence[tuple[Finding, StatShift]], walk: RootSearch
    ) -> Optional[list[InputNoise]]:
        """The noise of the inputs of an operator; None if some of it is unknown."""
        for finding in (*node.inputs, *node.extra_inputs):
            if movement(finding) is None and _differs(finding):
                return None
        came = [self._of_read(one, moved, walk) for one, moved in read]
        if not node.inputs:
            came.append(InputNoise(Level(self._now.unseen, self._now.unseen), MOST))
        return came

    def _of_read(self, finding: Finding, moved: StatShift, walk: RootSearch) -> InputNoise:
        """The noise of one tensor; if its figures do not show that of its values, that of its producer's inputs."""
        source = source_of(walk, finding) if self._hidden else None
        hidden = self._hidden.get(source.finding.row) if source is not None else None
        if hidden is not None and is_hidden(finding):
            return hidden._replace(elements=moved.elements)
        shown = level(finding)
        return InputNoise(
            shown if hidden is None else shown.most(hidden.level), moved.elements, scale_of(finding)
        )  # fmt: skip

    def _hide(self, node: OperatorFindings, came: Sequence[InputNoise]) -> None:
        """Record the incoming noise of outputs that a mask hides, and of those of exp, whose largest value is 1 if the
        largest operand was subtracted: their extremes do not show what exp makes of the noise of its operand."""
        shown = [one for one in came if math.isfinite(one.scale.rms) and one.scale.rms]
        if not shown:
            return
        is_exp = node.op.name == "exp" and not node.is_gradient
        grown = _amplification(node, came) if is_exp else 1.0
        for finding in node.outputs if is_exp else filter(is_hidden, node.outputs):
            level = Level(max(one.level.extremes for one in shown), max(one.level.sums for one in shown)).times(grown)
            self._hidden[finding.row] = InputNoise(
                level, 0, max((one.scale for one in shown), key=lambda one: one.elements)
            )

    def _noise_level(self, node: OperatorFindings, finding: Finding, moved: StatShift, came: list[InputNoise]) -> Level:
        found, scale = Level(), scale_of(finding)
        # addcdiv adds a quotient, whose size its operands do not show
        adds = node.op.has("sums") and not node.is_gradient and node.op.name != "addcdiv"
        for each in came:
            one = each.share(scale.rms) if adds and each.elements <= moved.elements else each.level
            grown = math.sqrt(max(1.0, moved.elements / each.elements))
            found = found.most(Level(one.extremes, one.sums * grown)) if math.isfinite(one.extremes) else found
        grown = _amplification(node, came)
        if grown > 1.0 and self._now.moved:  # figures of many elements do not show the rounding of one
            found = found.most(Level(*[self._unit(node, finding)] * 2))
        found = found.times(grown)
        if node.is_gradient and node.op.has("non-smooth") and not any(_is_mask(one) for one in node.extra_inputs):
            error = max((one.level.sums for one in came if math.isfinite(one.level.sums)), default=0.0)
            flips = FLIP_SHARE * error * moved.elements
            if flips > EXPECTED_FLIPS:
                found = found.most(Level(1.0, math.sqrt(max(1.0, flips)) / (2.0 * math.sqrt(moved.elements))))
        unit = self._unit(node, finding)
        found = self._floor(found.most(self._now.kind), unit * (SUMMED if _is_assembled(finding) else 1.0))
        if not self._repeats:
            found = found.most(Level(sums=BASE_NOISE * unit * _reuse_factor(node, finding, moved, unit)))
        spread = terms(node, finding).spread
        return found.times(max(1.0, spread / scale.rms)) if scale.rms else found

    @property
    def _repeats(self) -> bool:
        """Whether all tensors so far are equal, as in a repeated run: the noise is then one rounding."""
        return self._now.still >= REPEAT_OPERATORS and not self._now.moved

    def _unit(self, node: OperatorFindings, finding: Finding) -> float:
        """The round-off for the test of a tensor: the coarsest that its values went through, or that its operator reads
        and writes. If few tensors have a type, as a cast on a side branch, it counts only in its place; if few tensors
        have it on one side alone, it does not count there either, except for outputs of casts, which are meant to
        round."""
        own_of = max if node.op.has("hands on") and not node.op.has("copies") else self._own
        own = own_of(round_offs(finding) or {SINGLE})
        return max(SINGLE, min(finding.working, self._coarse), self._reduced, own, self._unit_of(node))

    def _unit_of(self, node: OperatorFindings) -> float:
        """The coarsest round-off of all inputs and outputs of an operator, computed once for each operator."""
        if self._units is None or self._units[0] is not node:
            found = (kinds for one in (*node.inputs, *node.outputs) if (kinds := round_offs(one)))
            self._units = node, max(map(self._own, found), default=SINGLE)
        return self._units[1]

    def _floor(self, one: Level, unit: float) -> Level:
        least = unit if self._repeats else max(BASE_NOISE * unit, self._drift)
        return Level(max(one.extremes, one.sums, least), max(one.sums, self._now.sums, least))

    def _outlier(
        self, finding: Finding, moved: StatShift, noise: Level, few: int = AVERAGED_ELEMENTS
    ) -> Optional[Outlier]:
        high, sums = (max(one, self._unproven) / moved.unit for one in noise)
        if not moved.size / min(high, sums) > NOISE_FACTOR_SUMS:  # most
            return None
        least = 1.0 if self._repeats else BASE_NOISE
        mean, norm = (max(sums, least * resolution) for resolution in moved.resolution[SUMS])
        limits = high, high, mean, norm * _grown(norm * moved.unit, moved.elements)
        bar = NOISE_FACTOR if self._first else NOISE_FACTOR_LATER
        bar_of_sums = NOISE_FACTOR_SUMS if self._first and finding.pair.operator.phase != "backward" else bar
        bars = bar, bar, bar_of_sums, bar_of_sums
        out = [one / limit / bar for one, limit, bar in zip(moved.each, limits, bars)]
        at = max(range(len(out)), key=out.__getitem__)
        golden = finding.measurement.statistics[1]
        if not out[at] > 1.0 + few / moved.elements or (golden is not None and golden.norm == 0.0):
            return None
        return Outlier(finding, moved, at, limits[at], out[at])

    def _contribution(
        self, node: OperatorFindings, read: Sequence[tuple[Finding, StatShift]], came: Optional[list[InputNoise]]
    ) -> Optional[Contribution]:
        wrote = [(one, moved) for one in node.outputs if (moved := movement(one)) and not is_meaningless(one.pair)]
        shown = wrote or [pair for pair in read if not is_parameter(pair[0].pair)]
        levels = [level(one) for one, moved in shown if math.isfinite(moved.size)]
        if not levels:
            return None
        highest = Level(max(one.extremes for one in levels), max(one.sums for one in levels))
        still = all(moved.is_still for _, moved in (*wrote, *read))
        is_open = came is not None and not node.inputs
        known = max((max(one.level) for one in (came or [])[: -1 if is_open else None]), default=0.0)
        return Contribution(kind_of(node), highest, known, is_open, still, node.op.has("contracts", "sums", "norm"))


def kind_of(node: OperatorFindings) -> object:
    """The kind of an operator; operators of one kind make similar noise."""
    return node.op.name or node.operator.op_type, node.is_gradient


def with_counts(one: Outlier, ascending: Sequence[float]) -> Outlier:
    """Add the number of operators before it, and how many of them shifted as much; `ascending` holds their shifts,
    sorted."""
    bar = one.moved.each[one.figure] * one.moved.unit
    return one._replace(before=len(ascending), as_much=len(ascending) - bisect_left(ascending, bar))


def _amplification(node: OperatorFindings, came: Sequence[InputNoise]) -> float:
    """The factor by which an operator may multiply the incoming noise; for an exponential, from the values that a mask
    hides."""
    hidden = [one.scale for one, finding in zip(came, node.inputs) if is_hidden(finding)]
    return max(1.0, hidden[0].largest) if hidden and node.op.has("exponential") else amplification(node)


def _grown(error: float, elements: int) -> float:
    """How much further a norm shifts because of the sum of squared errors than because of single elements: ‖x + e‖ is
    about ‖x‖ + x·e / ‖x‖ + ‖e‖² / 2‖x‖. error: a relative limit; the rest of rounding is a quarter of it."""
    return max(1.0, math.sqrt(elements) * min(1.0, error / ROUNDING_FACTOR) / 2.0)


def _reuse_factor(node: OperatorFindings, finding: Finding, moved: StatShift, unit: float) -> float:
    """The factor by which roundings of reused inputs, such as weights, do not average out: if the two runs round to
    different types, each rounding counts once."""
    if len(round_offs(finding)) == 1 and moved.unit == unit:
        return 1.0
    return reuse(node, moved.elements, finding.pair.golden.shape[-1:] if finding.pair.golden else ())


def _is_assembled(finding: Finding) -> bool:
    """Whether several ranks make the tensor of the target."""
    relation = finding.pair.target.relation if finding.pair.target is not None else None
    return relation is not None and len(relation.ranks) > 1


def _differs(finding: Finding) -> bool:
    """Whether whole numbers or shapes differ; the outputs of such an operator are not predictable."""
    x, y = finding.measurement.statistics
    return finding.measurement.shapes_differ or (x is not None and y is not None and repr(x) != repr(y))


def _is_mask(finding: Finding) -> bool:
    """Whether a choice was recorded whose figures are equal, so that hardly an element flipped."""
    golden = finding.pair.golden
    row = lookup(golden.dtype) if golden is not None else None
    return row is not None and row.kind == "b" and not _differs(finding)


class Candidate(NamedTuple):
    """An operator that may be the first: it exceeds the noise, or it is a root that rests on more than noise."""

    clock: int
    rank: int
    pair: Pair
    root: Optional[Root]
    outlier: Optional[Outlier]


class FirstSuspect(NamedTuple):
    """The first candidate of all ranks; for each rank on which the same operator exceeds the noise: clock, pair,
    Standing."""

    clock: int
    rank: int
    pair: Pair
    root: Optional[Root]
    alike: Mapping[int, tuple[int, Pair, Outlier]]
    ranks: int


def candidates(
    nodes: Iterable[tuple[int, int, OperatorFindings]],
    roots: Mapping[tuple[int, int], Root],
    noise: NoiseTest,
    start: int = 0,
) -> Iterator[Candidate]:
    """Yield the candidates among operators with rank and clock, from number `start` on; roots by rank and order. If an
    operator reads a tensor whose figures do not show its values, the operator that wrote that tensor with another
    argument becomes a candidate."""
    argued: dict[tuple[int, object], Optional[tuple[int, OperatorFindings]]] = {}  # by rank and figures
    for at, (rank, clock, node) in enumerate(nodes):
        root = roots.get((rank, node.pair.order))
        standing = noise.outliers.get(node.row)
        reads = _unshown(rank, node.inputs, True) if argued else ()
        read = next(filter(None, (argued.get(key) for key in reads)), None)
        if at >= start and (standing is not None or (root is not None and noise.is_beyond(node, root))):
            yield Candidate(clock, rank, node.pair, root, standing)
            if read is not None:
                yield Candidate(read[0], rank, read[1].pair, _argument_root(read[1], node), None)
        moves = node.op.has("moves axes") and moves_other_axes(node.pair)
        for key in _unshown(rank, node.outputs, moves):  # later tensors replace earlier ones with equal figures
            argued[key] = (clock, node) if argument_reasons(node.pair) else read


def _unshown(rank: int, findings: Iterable[Finding], order: bool = False) -> Iterator[tuple[int, object]]:
    """Yield the keys of agreeing tensors whose figures do not show most of their values: whole numbers and masks, of
    which only extremes were recorded, and tensors with infinities; or of all agreeing tensors, whose figures do not
    show the `order` of their elements."""
    for finding in findings:
        golden = finding.pair.golden
        figures = finding.measurement.recorded(1) if finding.verdict is Verdict.UNKNOWN else None
        if (
            golden is not None
            and figures is not None
            and (order or not math.isfinite(math.inf if figures.norm is None else figures.norm))
        ):
            yield rank, (math.prod(golden.shape), golden.dtype, repr(figures))


def _argument_root(node: OperatorFindings, reader: OperatorFindings) -> Root:
    """The root of an operator with another argument, whose output's figures show no difference; `reader` reads that
    output."""
    shown = next(one for one in node.outputs for _ in _unshown(0, [one], node.op.has("moves axes")))
    words = (
        "the statistics of {slot} do not show its values; {name}, which reads it, is the first operator that differs"
    )
    if node.op.has("moves axes"):
        words = (
            "the statistics of {slot} do not show the order of its elements; {name}, which reads it, is the first "
            "operator that differs"
        )
    behind = reason("reader", words, slot=shown.pair.slot, name=reader.operator.name)
    fields = shown.measurement.bound, shown.limit, None, None, (*argument_reasons(node.pair), behind)
    return Root(0, node.pair, Cause.SUSPECT, shown.pair.slot, "rel_l2", *fields, rule="arguments")


def first_of(suspects: Iterable[Candidate], ranks: int) -> Optional[FirstSuspect]:
    """The first candidate in order of execution; None if all is noise."""
    order = sorted(suspects, key=lambda one: (one.clock, one.rank))
    if not order:
        return None
    one = order[0]
    alike = {each.rank: (each.clock, each.pair, each.outlier) for each in order if one.root is None and each.outlier}
    return FirstSuspect(one.clock, one.rank, one.pair, one.root, alike, ranks)


def search_result(
    result: SearchResult, number: int, first: Optional[FirstSuspect], clocks: Mapping[int, int]
) -> SearchResult:
    """The result of the search of rank `number` after the noise test; clocks by order."""
    findings, roots, explained = result
    rows = rows_of_verdicts(findings, DIFFERS)
    if first is None:
        return SearchResult(_excused(findings, rows), [], explained.without(clocks.values()))
    other_input = first.root if first.root is not None and _is_input(first.root) else None
    is_alone = first.root is None or other_input is not None or first.root.cause is Cause.SUSPECT
    places = {pair.order for rank, (_, pair, _) in first.alike.items() if rank == number}
    places |= {first.pair.order} if number == first.rank else set()
    before = {order for order, clock in clocks.items() if (clock, number) < (first.clock, first.rank)}
    roots_left = [(when, one) for when, one in roots if one.pair.order not in before]
    explained = explained.without({clocks[order] for order in (before | places if is_alone else before)})
    if is_alone:
        name = first.pair.operator.name
        roots_left = [
            (when, _behind(one, name, other_input)) for when, one in roots_left if one.pair.order not in places
        ]
    if first.root is not None and is_alone and number == first.rank:
        roots_left.append((first.clock, first.root if other_input is None else _input_root(other_input)))
    elif number in first.alike:
        when, pair, standing = first.alike[number]
        roots_left.append((when, _suspect(pair, standing, len(first.alike) - 1, first.ranks - 1)))
    pairs = findings.network.pairs
    return SearchResult(_excused(findings, [at for at in rows if pairs[at].order in before]), roots_left, explained)


def _excused(findings: Sequence[Finding], rows: Iterable[int]) -> ChangedRows:
    return with_changes(findings, {at: _excuse_difference(findings[at]) for at in rows})


def _excuse_difference(finding: Finding) -> Finding:
    """Excuse a difference that statistics prove and that the noise before it explains; also of a sum that is zero on
    one side, and of rows whose number an earlier choice changed."""
    figures = [one for side in finding.measurement.statistics if side is not None for one in side if one is not None]
    apart = finding.verdict is Verdict.DIVERGED and finding.measurement.bound is not None and finding.metric == "rel_l2"
    zero = finding.verdict is Verdict.NONFINITE and bool(figures) and all(map(math.isfinite, figures))
    if not (apart or zero or finding.verdict is Verdict.SHAPE):
        return finding
    because = f"{finding.because}; within the upstream noise"
    return finding._replace(verdict=Verdict.UNKNOWN, because=because, explained_by="suspected")


def _is_input(root: Root) -> bool:
    """Whether the two runs had different inputs; then differences that statistics prove behind them are not further
    roots."""
    is_tensor = is_fed(root.cause, root.evidence) and "because" in root.evidence[0].facts  # scalars show their values
    return is_tensor and not is_parameter(root.pair._replace(slot=root.slot))


def _input_root(root: Root) -> Root:
    words = "the runs may have read different inputs, so all downstream differences count as their effect"
    return replace(root, evidence=(*root.evidence, reason("different inputs", words)))


def _behind(root: Root, name: str, other_input: Optional[Root]) -> Root:
    """Mark a root behind a suspect, or behind different inputs of the runs, as PROPAGATED."""
    if root.cause is Cause.PROPAGATED:
        return root
    words = (
        "downstream of {name}, which read another input" if other_input else "downstream of {name}, which is suspected"
    )
    return replace(root, cause=Cause.PROPAGATED, evidence=(reason("behind", words, name=name), *root.evidence))


def _suspect(pair: Pair, one: Outlier, alike: int, ranks: int) -> Root:
    """The root of an operator that exceeds the noise: its figure, the shift, the noise before it, how many earlier
    operators shifted as much, and on how many other ranks it does so."""
    finding, figure = one.finding, FIGURES[one.figure]
    x, y = (None if statistics is None else statistics[one.figure] for statistics in finding.measurement.statistics)
    size = tensor_fact(one.moved.each[one.figure], finding)
    words = "{figure} of {slot} changed from {golden:.9g} to {target:.9g}: "
    words += "{size:.3g} times the change that rounding of {count} elements explains"
    noise = "the upstream noise explains {noise:.3g} times the change of rounding"
    others = "{count} of {all} preceding operators changed by at least as much"
    elsewhere = "the operator exceeds the noise on {alike} of {ranks} other ranks too"
    facts = {"figure": figure, "slot": finding.pair.slot, "golden": y, "target": x, "count": one.moved.elements}
    reasons = (
        reason("moved", words, size=size, **facts),
        reason("noise before", noise, noise=one.noise),
        reason("others", others, count=one.as_much, all=one.before),
        *([reason("ranks", elsewhere, alike=alike, ranks=ranks)] if ranks else ()),
        *argument_reasons(pair),
        *draw_reasons(finding),
    )
    fields = finding.measurement.bound, finding.limit, None, None, reasons
    return Root(0, pair, Cause.SUSPECT, finding.pair.slot, "rel_l2", *fields, rule="suspected")
