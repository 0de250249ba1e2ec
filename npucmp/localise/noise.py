"""How far operators of which only statistics were recorded stand out of the noise before them.

A norm that moved by less than the limit of its tensor proves nothing. It says much all the same where it moved a
hundred times as far as rounding moves a norm of that many elements, and nothing before it did. So every tensor is held
against the noise that came in with what its operator reads, and against that of operators of its kind before it.

The numbers below were chosen on planted runs (open families 0 to 319, all told as statistics) and on msprobe's dumps
without their values; docs/localisation.md has the figures of pairs that were not looked at. With 3 instead of OUT_SUMS
and 3.5 instead of OUT four times as many clean pairs have a suspect, for two more faults in 100.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, defaultdict
from typing import Callable, Iterator, NamedTuple, Optional, Sequence

from npucmp.judge.precision import REDUCED_ERROR
from npucmp.judge.verdicts import FACTOR
from npucmp.localise.condition import Scale, amplification, scale_of
from npucmp.localise.movement import SINGLE, Movement, movement
from npucmp.localise.nodes import OperatorFindings, containers, is_meaningless, is_parameter
from npucmp.localise.past import Past
from npucmp.localise.producers import is_few
from npucmp.localise.terms import terms
from npucmp.localise.working import USUAL, work_in_other_types
from npucmp.model import Finding, Root
from npucmp.model.dtypes import lookup
from npucmp.model.kept import kept

OUT = 5.0  # times the noise before
OUT_SUMS = 3.5  # the same of mean and norm in the forward pass of the first step, where they scatter least
OUT_LATER = 8.0  # the same of later steps, whose parameters are off by what no figure shows
LEAST = 2.0  # roundings to the coarsest type that an operator reads or writes: noise that is always there
GIVEN = 0.5  # the same of parameters and inputs of 16 bits, which nobody has computed yet
NOWHERE = 4.0  # times, where what wrote it was not recorded
FEW = 16  # elements below which figures hardly average anything
REDUCED = 2.0**-12  # round-off of 11 bits, to which HF32 and TF32 round the operands of products
REPEAT = 1.0  # roundings to its own type, while all figures agree, as in a repeated run
STILL = 4  # operators that sum and agree to the last digit, before a run is taken for a repeat
QUANTILE = 0.9
FLIPS = 16.0  # elements whose mask flips, per element and error of what was compared; as in rules/non_smooth.py
SUMS = slice(2, 4)


class Standing(NamedTuple):
    """How an operator stands out: the tensor that moved, its movement and the noise before it, in roundings, and by how
    many times what is needed."""

    finding: Finding
    moved: Movement
    figure: int
    noise: float
    ratio: float
    before: int = 0  # operators before it
    as_much: int = 0  # of those, that moved as much


class Level(NamedTuple):
    """How far extremes and sums (norm, mean) moved, relative to the tensor's size as if elements moved alone."""

    extremes: float = 0.0
    sums: float = 0.0

    def most(self, other: "Level") -> "Level":
        return Level(max(self.extremes, other.extremes), max(self.sums, other.sums))

    def times(self, factor: float) -> "Level":
        return Level(self.extremes * factor, self.sums * factor)


class Came(NamedTuple):
    """What one tensor that an operator reads brings: its level, its elements and their size."""

    level: Level
    elements: int
    scale: Scale = Scale()

    def share(self, rms: float) -> Level:
        """The same of a sum of tensors that is of size rms: of a small one little is seen."""
        if not (math.isfinite(rms) and rms and self.scale.rms):
            return self.level
        extremes, sums = min(1.0, self.scale.largest / rms), min(1.0, self.scale.rms / rms)
        return Level(self.level.extremes * extremes, self.level.sums * sums)


class Noise:
    """The movements seen so far, of all ranks of a step, in order of execution."""

    def __init__(self, nodes: "Sequence[OperatorFindings]", first: bool = True, unproven: float = 0.0) -> None:
        """unproven: the error that the steps before may have made of parameters, and that statistics do not prove."""
        self._containing = contained(nodes)
        self._first = first
        given = [] if first else [level(one) for one in _parameters(nodes) if movement(one)]
        self._coarse = _coarse(nodes)
        measured = [one.measurement for node in nodes for one in (*node.inputs, *node.outputs)]
        self._own: "Callable[[set[float]], float]" = max if work_in_other_types(measured) else min
        self._unproven = 0.0 if given else unproven  # what is recorded of parameters tells how far they moved
        self._drift = max((max(one) for one in given), default=0.0)
        self._levels: list[float] = []
        self._sums: list[float] = []
        self._kinds: dict[object, Level] = defaultdict(Level)
        self._still = 0
        self._moved = False
        self._largest: list[float] = []
        self._reduced = REDUCED if are_reduced(nodes) else 0.0
        self._chosen: set[int] = set()
        self.standing: dict[int, Standing] = {}  # by id of the pair's operator findings

    def is_asked(self, node: OperatorFindings) -> bool:
        """Whether an operator may be the first that stands out, or is the same as the first on another rank."""
        return not self.standing or any(
            one.finding.pair.operator.name == node.operator.name for one in self.standing.values()
        )

    def visit(self, node: OperatorFindings, past: Past) -> None:
        """Holds an operator against what was seen before it; `past` knows the tensors written and read before."""
        read = [(finding, moved) for finding in node.inputs if (moved := movement(finding)) is not None]
        saved = [(one, moved) for one in node.context if (moved := movement(one)) is not None]
        found = [one for finding, moved in read if (one := self._of_input(node, finding, moved, past)) is not None]
        came = None if self._is_container(node) else self._came(node, [*read, *saved])
        for finding in node.outputs if came is not None else ():
            moved = movement(finding)
            if moved is None or came is None or is_meaningless(finding.pair):
                continue
            one = self._held(finding, moved, self._allowed(node, finding, moved, came))
            found += [one] if one is not None else []
        if found:
            self.standing[id(node)] = max(found, key=lambda one: one.ratio)
        if self._moved and any(one.measurement.shapes_differ for one in (*node.inputs, *node.outputs)):
            self._chosen.add(id(node))
        if not self.standing:  # what stands out is no noise
            self._remember(node, read, came or [])

    def is_beyond(self, node: OperatorFindings, root: Root) -> bool:
        """Whether a root that is proven stands on more than statistics that moved no further than the noise: on values,
        or on checksums."""
        if id(node) in self.standing:
            return True
        if id(node) in self._chosen and root.metric == "shape":
            return False
        shown = [one for one in (*node.inputs, *node.outputs) if one.pair.slot == root.slot]
        if not self._first and any(is_parameter(one.pair) for one in shown):
            return True
        return any(movement(one) is None or one.measurement.same is False for one in shown)

    def _is_container(self, node: OperatorFindings) -> bool:
        operator = node.operator
        return operator.name in self._containing or f"{operator.phase} {operator.path}" in self._containing

    def _of_input(self, node: OperatorFindings, finding: Finding, moved: Movement, past: Past) -> Optional[Standing]:
        """An input held against the same tensor where it was written; from nowhere, against all before."""
        source = past.trail.source(finding)
        if node.op.has("in place") or (source is not None and source.meaningless):
            return None
        if source is not None:
            wrote = movement(source.finding)
            if wrote is None:
                return None
            unit = max(wrote.unit, self._unit(node, finding))
            return self._held(finding, moved, self._floor(level(source.finding), unit))
        types = {tensor.dtype for tensor in (finding.pair.target, finding.pair.golden) if tensor}
        is_given = len(types) == 1 and moved.unit > SINGLE and not self._largest  # it should be the same
        least = GIVEN * moved.unit if is_given else LEAST * self._unit(node, finding)
        if is_parameter(finding.pair):
            return self._held(finding, moved, Level(least, least)) if self._first else None
        if (is_few(finding) and self._moved) or past.below_rounding(finding):
            return None
        if not self._moved:
            return self._held(finding, moved, Level(least, least))
        usual = max([*self._largest[-8:], self._usual(self._levels), least])
        return self._held(finding, moved, Level(usual, usual).times(NOWHERE))

    def _came(self, node: OperatorFindings, read: "Sequence[tuple[Finding, Movement]]") -> "Optional[list[Came]]":
        """The levels of what an operator reads; None where some of it cannot be told."""
        for finding in (*node.inputs, *node.context):
            if movement(finding) is None and _differs(finding):
                return None
        came = [Came(level(one), moved.elements, scale_of(one)) for one, moved in read]
        if not node.inputs:
            usual = max([self._usual(self._levels), *self._largest[-4:]]) if self._largest else 0.0
            came.append(Came(Level(usual, usual), 1 << 62))
        return came

    def _allowed(self, node: OperatorFindings, finding: Finding, moved: Movement, came: "list[Came]") -> Level:
        found, scale = Level(), scale_of(finding)
        adds = node.op.has("sums") and not node.is_gradient
        for each in came:
            one = each.share(scale.rms) if adds and each.elements <= moved.elements else each.level
            grown = math.sqrt(max(1.0, moved.elements / each.elements))
            found = found.most(Level(one.extremes, one.sums * grown)) if math.isfinite(one.extremes) else found
        found = found.times(amplification(node))
        if node.is_gradient and node.op.has("non-smooth") and not any(_is_mask(one) for one in node.context):
            error = max((one.level.sums for one in came if math.isfinite(one.level.sums)), default=0.0)
            flips = FLIPS * error * moved.elements
            if flips > 0.05:
                found = found.most(Level(1.0, math.sqrt(max(1.0, flips)) / (2.0 * math.sqrt(moved.elements))))
        unit = self._unit(node, finding)
        found = self._floor(found.most(self._kinds[node.op.name or node.operator.op_type, node.is_gradient]), unit)
        if not self._repeats:
            found = found.most(Level(sums=LEAST * unit * _shared(node, finding, moved, unit)))
        spread = terms(node, finding).spread
        return found.times(max(1.0, spread / scale.rms)) if scale.rms else found

    @property
    def _repeats(self) -> bool:
        """Whether all that was seen so far is the same, as in a repeated run."""
        return self._still >= STILL and not self._moved

    def _unit(self, node: OperatorFindings, finding: Finding) -> float:
        """The round-off that a tensor is held to: the coarsest that its values went through, or that its operator reads
        and writes. A type that few tensors have, as of a cast on a side branch, counts where it stands only; and one
        that few have on one side alone, not even there."""
        units = [self._own(kinds) for one in (finding, *node.inputs, *node.outputs) if (kinds := _round_offs(one))]
        return max([SINGLE, min(finding.working, self._coarse), self._reduced, *units])

    def _floor(self, one: Level, unit: float) -> Level:
        least = REPEAT * unit if self._repeats else max(LEAST * unit, self._drift)
        usual = self._usual(self._sums)
        return Level(max(one.extremes, one.sums, least), max(one.sums, usual, least))

    @staticmethod
    def _usual(some: "list[float]") -> float:
        return some[int(QUANTILE * (len(some) - 1))] if some else 0.0

    def _held(self, finding: Finding, moved: Movement, noise: Level) -> Optional[Standing]:
        high, sums = (max(one, self._unproven) / moved.unit for one in noise)
        if not moved.size / min(high, sums) > OUT_SUMS:  # most
            return None
        least = REPEAT if self._repeats else LEAST
        mean, norm = (max(sums, least * told) for told in moved.told[SUMS])
        limits = high, high, mean, norm * _grown(norm * moved.unit, moved.elements)
        bar = OUT if self._first else OUT_LATER
        bar_of_sums = OUT_SUMS if self._first and finding.pair.operator.phase != "backward" else bar
        bars = bar, bar, bar_of_sums, bar_of_sums
        out = [one / limit / bar for one, limit, bar in zip(moved.each, limits, bars)]
        at = max(range(4), key=out.__getitem__)
        golden = finding.measurement.statistics[1]
        if not out[at] > 1.0 + FEW / moved.elements or (golden is not None and golden.norm == 0.0):
            return None
        as_much = sum(one >= moved.each[at] * moved.unit for one in self._largest)
        return Standing(finding, moved, at, limits[at], out[at], len(self._largest), as_much)

    def _remember(self, node: OperatorFindings, read: "Sequence[tuple[Finding, Movement]]", came: "list[Came]") -> None:
        wrote = [(one, moved) for one in node.outputs if (moved := movement(one)) and not is_meaningless(one.pair)]
        shown = wrote or [pair for pair in read if not is_parameter(pair[0].pair)]
        levels = [level(one) for one, moved in shown if math.isfinite(moved.size)]
        if not levels:
            return
        highest = Level(max(one.extremes for one in levels), max(one.sums for one in levels))
        insort(self._levels, highest.extremes)
        insort(self._sums, highest.sums)
        self._largest.append(max(highest))
        if max(highest) > max((max(one.level) for one in came), default=0.0):  # else it passed on what it got
            kind = node.op.name or node.operator.op_type, node.is_gradient
            self._kinds[kind] = self._kinds[kind].most(highest)
        still = all(moved.is_still for _, moved in (*wrote, *read))
        self._moved |= not still
        self._still += still and node.op.has("contracts", "sums", "norm")


def _grown(error: float, elements: int) -> float:
    """How much further than the errors of single elements a norm moves for the sum of their squares: ‖x + e‖ is about
    ‖x‖ + x·e / ‖x‖ + ‖e‖² / 2‖x‖. error: a limit, relative; what rounding leaves is a quarter of that."""
    return max(1.0, math.sqrt(elements) * min(1.0, error / 4.0) / 2.0)


def _parameters(nodes: "Sequence[OperatorFindings]") -> "Iterator[Finding]":
    return (one for node in nodes for one in node.inputs if is_parameter(one.pair))


def _coarse(nodes: "Sequence[OperatorFindings]") -> float:
    """The coarsest round-off that a good part of the tensors have."""
    counts = Counter(max(kinds) for node in nodes for one in node.outputs or node.inputs if (kinds := _round_offs(one)))
    least = USUAL * sum(counts.values())
    return max((unit for unit, count in counts.items() if count >= least), default=0.0)


def _shared(node: OperatorFindings, finding: Finding, moved: Movement, unit: float) -> float:
    """By how much roundings of what is read again and again, as weights are, do not average out: where the two runs
    round to other types, each of them counts once."""
    if len(_round_offs(finding)) == 1 and moved.unit == unit:
        return 1.0
    return _reuse(node, moved, finding.pair.golden.shape[-1:] if finding.pair.golden else ())


def _reuse(node: OperatorFindings, moved: Movement, last: "tuple[int, ...]" = ()) -> float:
    """√ of how many elements share one element of the smallest operand; of the last axis, if none was recorded."""
    sizes = [one.elements for one in map(scale_of, (*node.inputs, *node.context)) if one.elements >= FEW]
    return math.sqrt(max(1.0, moved.elements / max(min(sizes or last, default=1), 1)))


@kept
def _round_offs(finding: Finding) -> "set[float]":
    sides = finding.pair.target, finding.pair.golden
    return {row.round_off for tensor in sides if tensor and (row := lookup(tensor.dtype)) and row.round_off}


@kept
def level(finding: Finding) -> Level:
    """What the movements of one tensor say of the others' it becomes: one element that is off tells little of sums."""
    moved, scale = movement(finding), scale_of(finding)
    if moved is None:
        return Level()
    share = min(1.0, (scale.largest / scale.rms) ** 2 / math.sqrt(moved.elements)) if scale.rms else 1.0
    extremes = max(moved.each[:2])
    extremes = extremes if math.isfinite(extremes) else 0.0
    sums = max((one for one in moved.each[SUMS] if math.isfinite(one)), default=0.0)
    return Level(extremes, max(sums, share * extremes)).times(moved.unit)


def _differs(finding: Finding) -> bool:
    """Whether whole numbers or shapes are not the same: what an operator makes of those is anything."""
    x, y = finding.measurement.statistics
    if finding.measurement.shapes_differ:
        return True
    return x is not None and y is not None and repr(x) != repr(y)


def _is_mask(finding: Finding) -> bool:
    """Whether a choice was recorded: that no figure of it moved tells that hardly an element flipped."""
    golden = finding.pair.golden
    row = lookup(golden.dtype) if golden is not None else None
    return row is not None and row.kind == "b" and not _differs(finding)


def are_reduced(nodes: "Sequence[OperatorFindings]") -> bool:
    """Whether all products of float32 whose operands hardly moved, moved themselves as far as HF32 and TF32 round."""
    low, high = REDUCED_ERROR
    said = []
    before = 0.0  # what the last outputs moved by stands for operands that were not recorded
    for node in nodes:
        wrote = [(level(one), moved) for one in node.outputs if (moved := movement(one)) is not None]
        if not node.is_gradient and node.op.has("contracts") and wrote:
            read = [max(level(one)) for one in node.inputs if movement(one) is not None]
            came = max(read, default=math.inf) if node.inputs else before
            if came <= FACTOR * SINGLE and all(moved.unit == SINGLE for _, moved in wrote):
                said.append(all(low / 4 < one.sums < high * 4 * _reuse(node, moved) for one, moved in wrote))
        before = max([before, *(max(one) for one, _ in wrote)])
    return bool(said) and all(said)


def contained(nodes: "Sequence[OperatorFindings]") -> "set[str]":
    """Modules that have operators of the same dump inside."""
    scopes = {node.operator.name: node.operator.scope for node in nodes if node.operator.scope}
    return {name for node in nodes for name in containers(node.operator, scopes)}
