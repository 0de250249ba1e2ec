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
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Callable, Iterable, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.flow.contents import is_few
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import SINGLE
from npucmp.localise.conditioning import Scale, amplification, scale_of, terms
from npucmp.localise.evidence import argument_reasons
from npucmp.localise.rule_context import AVERAGED_ELEMENTS, FLIP_SHARE
from npucmp.localise.search import RootSearch
from npucmp.localise.seen_errors import below_rounding, may_cancel, rounding_of_sums
from npucmp.localise.sources import source_of
from npucmp.localise.stat_columns import ShiftBars, StatColumns
from npucmp.localise.stat_facts import Contribution, Facts, NoiseBaseline, reuse, round_offs
from npucmp.localise.stat_shift import SUMS, Level, StatShift, is_hidden, level, movement
from npucmp.localise.sweep import Sweep
from npucmp.model import Finding, Operator, Root
from npucmp.model.dtypes import MOST, lookup
from npucmp.model.relation import Relation
from npucmp.model.roles import is_meaningless, is_parameter

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

    def is_candidate(self, name: str) -> bool:
        """Whether an operator may be the first that exceeds the noise, or is the same as the first on another rank."""
        return not self.outliers or any(one.finding.pair.operator.name == name for one in self.outliers.values())

    def contribution_of(self, columns: StatColumns, at: int) -> Contribution:
        """The contribution of an operator of a rank in columns that does not exceed the noise."""
        network, (extremes, sums) = columns.network, columns.highest
        inside = self._is_container(network.operators[at])
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
            noise = argued or self._noise_level(node, finding, moved, came)
            one = self._outlier(finding, moved, noise)
            found += [one] if one is not None else []
        if found:
            self.outliers[node.row] = max(found, key=lambda one: one.ratio)
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

    def reads_hidden(self, rows: Iterable[int], sources: Sequence[int], first: int) -> bool:
        """Whether a mask hides the figures of a tensor in some rows, or of its producer; rows are counted from
        `first`."""
        hidden = self._hidden
        return bool(hidden) and any(row + first in hidden or sources[row] + first in hidden for row in rows)

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
        usual = self._now.sums
        return Level(max(one.extremes, one.sums, least), max(one.sums, usual, least))

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
    return isinstance(relation, Relation) and len(relation.ranks) > 1


def _differs(finding: Finding) -> bool:
    """Whether whole numbers or shapes differ; the outputs of such an operator are not predictable."""
    x, y = finding.measurement.statistics
    if finding.measurement.shapes_differ:
        return True
    return x is not None and y is not None and repr(x) != repr(y)


def _is_mask(finding: Finding) -> bool:
    """Whether a choice was recorded whose figures are equal, so that hardly an element flipped."""
    golden = finding.pair.golden
    row = lookup(golden.dtype) if golden is not None else None
    return row is not None and row.kind == "b" and not _differs(finding)
