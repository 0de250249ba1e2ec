"""How far operators of which only statistics were recorded stand out of the noise before them.

A norm that moved by less than the limit of its tensor proves nothing. It says much all the same where it moved a
hundred times as far as rounding moves a norm of that many elements, and nothing before it did. So every tensor is held
against the noise that came in with what its operator reads, and against that of operators of its kind before it.

The numbers below were chosen on 172 clean and 375 faulty pairs of planted runs (open families 0 to 119, all told as
statistics) and 95 clean and 156 faulty pairs of msprobe, without their values; docs/localisation.md has the figures of
pairs that were not looked at. At OUT = 3.5 three times as many clean pairs have a suspect, for one more fault in 100.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from typing import NamedTuple, Optional, Sequence

from npucmp.judge.precision import REDUCED_ERROR
from npucmp.judge.verdicts import FACTOR
from npucmp.localise.condition import amplification, scale_of
from npucmp.localise.movement import SINGLE, Movement, movement
from npucmp.localise.nodes import OperatorFindings, containers, is_meaningless, is_parameter
from npucmp.localise.past import Past
from npucmp.localise.producers import is_few
from npucmp.localise.terms import terms
from npucmp.model import Finding, Root
from npucmp.model.dtypes import lookup
from npucmp.model.kept import kept

OUT = 5.0  # times the noise before
LEAST = 2.0  # roundings: noise that is always there
GIVEN = 0.5  # the same of parameters and inputs of 16 bits, which nobody has computed yet
NOWHERE = 4.0  # times, where what wrote it was not recorded
FEW = 16  # elements below which figures hardly average anything
REDUCED = 2.0**13  # roundings of float32 that are one of 11 bits
REPEAT = 1.0  # the same while all figures agree, as in a repeated run
STILL = 4  # operators that sum and agree to the last digit, before a run is taken for a repeat
QUANTILE = 0.9
FLIPS = 16.0  # elements whose mask flips, per element and error of what was compared; as in rules/non_smooth.py
SUMS = slice(2, 4)


class Standing(NamedTuple):
    """How an operator stands out: the tensor that moved, its movement and the noise before it, in roundings."""

    finding: Finding
    moved: Movement
    figure: int
    noise: float
    ratio: float
    before: int = 0  # operators before it
    as_much: int = 0  # of those, that moved as much


class Level(NamedTuple):
    """How far extremes and sums (norm, mean) moved, in roundings."""

    extremes: float = 0.0
    sums: float = 0.0

    def most(self, other: "Level") -> "Level":
        return Level(max(self.extremes, other.extremes), max(self.sums, other.sums))

    def times(self, factor: float) -> "Level":
        return Level(self.extremes * factor, self.sums * factor)


class Noise:
    """The movements seen so far, of all ranks of a step, in order of execution."""

    def __init__(self, nodes: "Sequence[OperatorFindings]", first: bool = True, unproven: float = 0.0) -> None:
        """unproven: the error that the steps before may have made of parameters, and that statistics do not prove."""
        self._containing = contained(nodes)
        self._first = first
        self._unproven = unproven
        self._levels: list[float] = []
        self._sums: list[float] = []
        self._kinds: dict[object, Level] = defaultdict(Level)
        self._still = 0
        self._moved = False
        self._largest: list[float] = []
        self._reduced = REDUCED if are_reduced(nodes) else 0.0
        self._drift = 0.0
        self._chosen: set[int] = set()
        self.standing: dict[int, Standing] = {}  # by id of the pair's operator findings

    def visit(self, node: OperatorFindings, past: Past) -> None:
        """Holds an operator against what was seen before it; `past` knows the tensors written and read before."""
        if not self._first:
            drift = [level(one) for one in node.inputs if is_parameter(one.pair) and movement(one)]
            self._drift = max([self._drift, *(max(one) for one in drift)])
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
        self._remember(node, read)

    def is_beyond(self, node: OperatorFindings, root: Root) -> bool:
        """Whether a root that is proven stands on more than statistics that moved no further than the noise."""
        if id(node) in self.standing:
            return True
        if id(node) in self._chosen and root.metric == "shape":
            return False
        shown = [one for one in (*node.inputs, *node.outputs) if one.pair.slot == root.slot]
        if not self._first and any(is_parameter(one.pair) for one in shown):
            return True
        return any(movement(one) is None for one in shown)

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
            return None if wrote is None else self._held(finding, moved, self._floor(level(source.finding)))
        types = {tensor.dtype for tensor in (finding.pair.target, finding.pair.golden) if tensor}
        is_given = (
            len(types) == 1 and moved.unit > SINGLE and not self._largest
        )  # of one type on both sides, it should be the same
        least = max(GIVEN if is_given else LEAST, self._reduced)
        if is_parameter(finding.pair):
            return self._held(finding, moved, Level(least, least)) if self._first else None
        if (is_few(finding) and self._moved) or past.below_rounding(finding):
            return None
        if not self._moved:
            return self._held(finding, moved, Level(least, least))
        usual = max([*self._largest[-8:], self._usual(self._levels), least])
        return self._held(finding, moved, Level(usual, usual).times(NOWHERE))

    def _came(
        self, node: OperatorFindings, read: "Sequence[tuple[Finding, Movement]]"
    ) -> "Optional[list[tuple[Level, int]]]":
        """The levels of what an operator reads, with their sizes; None where some of it cannot be told."""
        for finding in (*node.inputs, *node.context):
            if movement(finding) is None and _differs(finding):
                return None
        if not node.inputs:
            usual = max([self._usual(self._levels), *self._largest[-4:]]) if self._largest else 0.0
            return [*((level(one), moved.elements) for one, moved in read), (Level(usual, usual), 1 << 62)]
        return [(level(finding), moved.elements) for finding, moved in read]

    def _allowed(
        self,
        node: OperatorFindings,
        finding: Finding,
        moved: Movement,
        came: "list[tuple[Level, int]]",
    ) -> Level:
        known = [(one, elements) for one, elements in came if math.isfinite(one.extremes)]
        grown = (one.sums * math.sqrt(max(1.0, moved.elements / elements)) for one, elements in known)
        found = Level(max((one.extremes for one, _ in known), default=0.0), max(grown, default=0.0))
        found = found.times(amplification(node))
        if node.is_gradient and node.op.has("non-smooth") and not any(_is_mask(one) for one in node.context):
            error = max((one.sums * moved.unit for one, _ in came if math.isfinite(one.sums)), default=0.0)
            flips = FLIPS * error * moved.elements
            if flips > 0.05:
                flip = math.sqrt(max(1.0, flips)) / (2.0 * math.sqrt(moved.elements) * moved.unit)
                found = found.most(Level(1.0 / moved.unit, flip))
        found = self._floor(found.most(self._kinds[node.op.name or node.operator.op_type, node.is_gradient]))
        found = found.most(Level(sums=LEAST * _shared(node, finding, moved)))
        scale = scale_of(finding)
        spread = terms(node, finding).spread
        return found.times(max(1.0, spread / scale.rms)) if scale.rms else found

    def _floor(self, one: Level) -> Level:
        least = REPEAT if self._still >= STILL and not self._moved else max(LEAST, self._reduced, self._drift)
        usual = self._usual(self._sums)
        return Level(max(one.extremes, one.sums, least), max(one.sums, usual, least))

    @staticmethod
    def _usual(some: "list[float]") -> float:
        return some[int(QUANTILE * (len(some) - 1))] if some else 0.0

    def _held(self, finding: Finding, moved: Movement, noise: Level) -> Optional[Standing]:
        least = self._unproven / moved.unit
        high, sums = max(noise.extremes, least), max(noise.sums, least)
        if not moved.size / min(high, sums) > OUT:  # most
            return None
        limits = high, high, sums, sums
        ratios = [one / limit for one, limit in zip(moved.each, limits)]
        at = max(range(4), key=ratios.__getitem__)
        golden = finding.measurement.statistics[1]
        if not ratios[at] > OUT * (1.0 + FEW / moved.elements) or (golden is not None and golden.norm == 0.0):
            return None
        as_much = sum(one >= moved.each[at] for one in self._largest)
        return Standing(finding, moved, at, limits[at], ratios[at], len(self._largest), as_much)

    def _remember(self, node: OperatorFindings, read: "Sequence[tuple[Finding, Movement]]") -> None:
        wrote = [(one, moved) for one in node.outputs if (moved := movement(one)) and not is_meaningless(one.pair)]
        shown = wrote or [pair for pair in read if not is_parameter(pair[0].pair)]
        levels = [level(one) for one, moved in shown if math.isfinite(moved.size)]
        if not levels:
            return
        highest = Level(max(one.extremes for one in levels), max(one.sums for one in levels))
        insort(self._levels, highest.extremes)
        insort(self._sums, highest.sums)
        self._largest.append(max(highest))
        kind = node.op.name or node.operator.op_type, node.is_gradient
        self._kinds[kind] = self._kinds[kind].most(highest)
        still = all(moved.is_still for _, moved in (*wrote, *read))
        self._moved |= not still
        self._still += still and node.op.has("contracts", "sums", "norm")


def _shared(node: OperatorFindings, finding: Finding, moved: Movement) -> float:
    """By how much roundings of what is read again and again, as weights are, do not average out: where the two runs
    round to other types, each of them counts once."""
    sides = finding.pair.target, finding.pair.golden
    own = {row.round_off for tensor in sides if tensor and (row := lookup(tensor.dtype))}
    if len(own) == 1 and own == {moved.unit}:
        return 1.0
    sizes = [one.elements for one in map(scale_of, (*node.inputs, *node.context)) if one.elements >= FEW]
    shape = finding.pair.golden.shape if finding.pair.golden else ()
    least = min(sizes) if sizes else shape[-1] if shape else 1
    return math.sqrt(max(1.0, moved.elements / max(least, 1)))


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
    return Level(extremes, max(sums, share * extremes))


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
    for node in nodes:
        if node.is_gradient or not node.op.has("contracts"):
            continue
        read = [level(one) for one in node.inputs if (moved := movement(one)) is not None]
        wrote = [(one, moved) for one in node.outputs if (moved := movement(one)) is not None]
        if not read or not wrote or any(moved.unit > SINGLE for _, moved in wrote):
            continue
        if max(map(max, read)) <= FACTOR:
            said.append(all(low / 4 < level(one).sums * SINGLE < high * 4 for one, moved in wrote))
    return bool(said) and all(said)


def contained(nodes: "Sequence[OperatorFindings]") -> "set[str]":
    """Modules that have operators of the same dump inside."""
    scopes = {node.operator.name: node.operator.scope for node in nodes if node.operator.scope}
    return {name for node in nodes for name in containers(node.operator, scopes)}
