"""The working precision of every tensor: the types that rounded its values, followed along their producers.

A bfloat16 cast on another branch, or before a master weight, does not affect a float32 product. If the errors of all
operands are known, the limit of a result depends on the types of its operator alone; otherwise on the coarsest type
that the values went through. An operand that cannot be read widens no limit: the search knows that its error may be
any. If their producers are unknown, time and the run decide: the coarsest type seen up to the
tensor, and the coarsest type that a good part of the run has.

"A good part" is a tenth of the float tensors. The same two types count if a backward operator reads a saved tensor that
was not dumped. Parameters and tensors of equal bits use their own type. A module with recorded inner operators uses all
types so far.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import AbstractSet, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from npucmp.flow.edges import Edges
from npucmp.flow.operators import OperatorFindings, nodes_of
from npucmp.judge.precision import SINGLE, Precision, coarser_round_off, is_quantised, round_off_of, stored_round_off
from npucmp.model import Finding, Measurement, Pair, Verdict
from npucmp.model.dtypes import lookup
from npucmp.model.network import by_network
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_output, is_parameter

MOVES = ("copies", "hands on", "views", "picks", "looks up", "rectifies", "bounds", "masks", "constant")
# share of the float tensors of a run: chosen: a type that as many have is not that of a side branch, not measured
COMMON_SHARE = 0.1


class EffectivePrecision(NamedTuple):
    """limiting: the precision that sets the limit of a tensor; coarsest: the coarsest precision that its values went
    through."""

    limiting: Precision
    coarsest: Precision


def working_precisions(
    measurements: Sequence[Measurement],
    reduced: bool = False,
    quantised: AbstractSet[int] = frozenset(),
    sources: Optional[Sequence[int]] = None,
) -> list[EffectivePrecision]:
    """The precisions of each measurement, in graph order. reduced: float32 products were computed with HF32 or TF32;
    quantised: rows whose floats are steps of 8 bits; sources: the edges, if they are known (`Edges.sources`)."""
    bare = [one for one in measurements if one.moments is None]
    kinds = {_of_types(coarser_round_off(*filter(None, types))) for types in _types(bare)}
    stored = _stored_16_bits(measurements) if len(bare) < len(measurements) else {}
    if len(bare) < len(measurements):
        kinds |= {own_precision(one, stored.get(row, 0.0), row in quantised) for row, one in enumerate(measurements)}
    kinds.discard(Precision())
    if len(kinds) <= 1 and not reduced:  # most runs have one precision
        only = kinds.pop() if kinds else Precision()
        return [EffectivePrecision(only, only)] * len(measurements)
    findings = [Finding(one, Verdict.UNKNOWN, "", row=row) for row, one in enumerate(measurements)]
    edges = Edges(findings).sources if sources is None else sources
    flow = _PrecisionFlow(findings, edges, reduced, usual_precision(findings), stored, quantised)
    for node in nodes_of(findings):
        flow.visit(node)
    return [flow.of.get(finding.row) or flow.one_sided(finding) for finding in findings]


def _stored_16_bits(measurements: Sequence[Measurement]) -> dict[int, float]:
    """The round-off of differing 16-bit values that are stored as float32, by row.

    Computed values show the type to which an operator rounds. All other values (weights, inputs of the network, values
    that were moved) were rounded at another time: they count only in a run that computes in 16 bits.
    """
    found = {row: round_off for row, one in enumerate(measurements) if (round_off := stored_round_off(one))}
    if not found:
        return {}
    groups: tuple[list[int], ...] = ([], [], [])  # computed, other data, parameters
    for row, one in enumerate(measurements):
        if one.moments is not None and one.moments.target.bits:
            groups[0 if is_computed(one.pair) else 1 + is_parameter(one.pair)].append(row)
    shown = next(filter(None, groups))
    usual = sum(row in found for row in shown) >= COMMON_SHARE * len(shown)
    credited = range(len(measurements)) if usual else groups[0]
    return {row: found[row] for row in credited if row in found and not _is_same(measurements[row])}


def is_computed(pair: Pair) -> bool:
    """Whether an operator computed the values of a tensor, instead of only moving or choosing them."""
    return is_output(pair) and not op_type_of(pair.operator).has(*MOVES)


def _is_same(one: Measurement) -> bool:
    """Whether the two sides hold the same bits."""
    return one.moments is not None and one.moments.equal == one.moments.elements


@by_network
def usual_precision(pairs: Sequence[Pair]) -> Precision:
    """The coarsest type that a good part of the tensors have: the assumed precision of operators that were not
    dumped."""
    counts = Counter(round_off for pair in pairs if (round_off := round_off_of(pair)))
    least = COMMON_SHARE * sum(counts.values())
    return Precision(max((round_off for round_off, count in counts.items() if count >= least), default=0.0))


def work_in_other_types(measurements: Sequence[Measurement]) -> bool:
    """Whether a good part of the float tensors have another type on the other side."""
    apart, floats = count_types(measurements)
    return apart > COMMON_SHARE * floats


def count_types(measurements: Sequence[Measurement]) -> tuple[int, int]:
    """Return how many float tensors have another type on the other side, and how many float tensors there are."""
    counts = [(len(_float_types(*types)), many) for types, many in _types(measurements).items()]
    return sum(many for kinds, many in counts if kinds > 1), sum(many for kinds, many in counts if kinds)


_Types = Tuple[Optional[str], Optional[str]]  # of target and golden; None if a side has no tensor


def have_one_precision(pairs: Sequence[Pair]) -> bool:
    """Whether all tensors without values have one precision, so that the edges of the run do not matter."""
    return len({round_off for pair in pairs if (round_off := round_off_of(pair))}) <= 1


def _types(measurements: Sequence[Measurement]) -> Counter[_Types]:
    """The types of all pairs, and how many pairs have them."""
    sides = [(one.pair.target, one.pair.golden) for one in measurements]
    return Counter([(target and target.dtype, golden and golden.dtype) for target, golden in sides])


def float_types(pair: Pair) -> frozenset[str]:
    """The float types of a pair; empty if a side has none."""
    target, golden = pair.target, pair.golden
    return _float_types(target and target.dtype, golden and golden.dtype)


@lru_cache(maxsize=1024)
def _float_types(target: Optional[str], golden: Optional[str]) -> frozenset[str]:
    if target is None or golden is None:
        return frozenset()
    rows = lookup(target), lookup(golden)
    return frozenset((target, golden)) if all(row and row.round_off for row in rows) else frozenset()


class _PrecisionFlow:
    """Follow precisions through the operators, in order."""

    def __init__(
        self,
        findings: Sequence[Finding],
        sources: Sequence[int],
        reduced: bool,
        usual: Precision,
        stored: Mapping[int, float],
        quantised: AbstractSet[int],
    ) -> None:
        self._findings, self._kept, self._quantised = findings, stored, quantised
        self._sources = sources
        self.of: dict[int, EffectivePrecision] = {}  # by row
        self._reduced = reduced
        self._usual = usual
        self._clock = Precision()

    def one_sided(self, finding: Finding) -> EffectivePrecision:
        """The precisions of a tensor of an operator that exists on one side."""
        own = self._of_values(finding)
        return EffectivePrecision(own, own)

    def _of_values(self, finding: Finding) -> Precision:
        """The precision of the types of one tensor, and of values that need fewer bits than these types."""
        row = finding.row
        return own_precision(finding.measurement, self._kept.get(row, 0.0), row in self._quantised)

    def visit(self, node: OperatorFindings) -> None:
        own = self._own(node)
        for finding in node.inputs:
            if finding.row not in self.of:  # gradients of parameters read tensors that another operator has read
                came = self._incoming(finding)
                self.of[finding.row] = EffectivePrecision(came, came)
        self._clock = coarsest([self._clock, own])
        saved = (finding for finding in node.extra_inputs if finding.row in self.of)  # a dump may list a backward first
        read = [self.of[finding.row].coarsest for finding in (*node.inputs, *saved)]
        unsaved = node.reads_saved and not node.extra_inputs  # the forward was not dumped
        known = self._is_known(node) and not unsaved
        if unsaved or not node.reads_recorded:
            read.append(self._clock)
        through = coarsest([own, *read, self._usual] if unsaved else [own, *read])
        for finding in node.outputs:
            limiting = self._of_output(node, finding, own) if known else through
            self.of[finding.row] = EffectivePrecision(limiting, through)

    def _of_output(self, node: OperatorFindings, finding: Finding, own: Precision) -> Precision:
        """The precision of an output whose inputs were compared: that of its own type, because an operator that rounds
        to a finer type than it reads computes in that type. A product may round the finer operand; a module and a
        gradient may compute in other types."""
        if node.operator.path or node.is_gradient or node.op.has("contracts") or own.quantised:
            return own
        if not round_off_of(finding.pair):
            return own
        return own._replace(round_off=self._of_values(finding).round_off)

    def _own(self, node: OperatorFindings) -> Precision:
        """The precision of the types that an operator reads and writes; for a module, whose inner types may be coarser,
        also of all operators so far."""
        found = [self._of_values(finding) for finding in (*node.inputs, *node.outputs, *node.extra_inputs)]
        if node.operator.path:
            found.append(self._clock)
        if node.op.has("collective", "point to point") and not node.inputs:  # inputs of another rank
            found += [self._clock, self._usual]
        if self._reduced and node.op.has("contracts") and coarsest(found).round_off <= SINGLE:
            found.append(Precision(reduced=True))
        return coarsest(found)

    def _incoming(self, finding: Finding) -> Precision:
        source = self._sources[finding.row]
        if source in self.of:
            return coarsest([self._of_values(finding), self.of[source].coarsest])
        own = self._of_values(finding)
        is_rounded = own != Precision()  # whole numbers are not rounded
        if not is_rounded or _is_same(finding.measurement) or is_parameter(finding.pair):
            return own
        return coarsest([own, self._clock, self._usual])

    def _is_known(self, node: OperatorFindings) -> bool:
        """Whether the errors of all readable inputs were measured, here or where they were written."""
        read = *node.inputs, *node.extra_inputs
        return node.reads_recorded and bool(node.inputs) and all(map(self._is_measured, read))

    def _is_measured(self, finding: Finding) -> bool:
        if finding.measurement.moments is not None or finding.measurement.problem:
            return True
        source = self._sources[finding.row]
        return source >= 0 and self._findings[source].measurement.moments is not None


def own_precision(measurement: Measurement, stored: float = 0.0, quantised: bool = False) -> Precision:
    """The precision of one tensor on both sides; `stored` is the round-off of 16-bit values that are stored as float32,
    `quantised`: its floats are steps of 8 bits."""
    if measurement.moments is None:
        return _of_types(round_off_of(measurement.pair))
    return Precision(max(round_off_of(measurement.pair), stored), quantised=quantised or is_quantised(measurement))


_of_types = lru_cache(maxsize=256)(Precision)  # precisions: work


def coarsest(precisions: Iterable[Precision]) -> Precision:
    """The coarsest precision of several, field by field."""
    rows = list(precisions)
    return Precision(
        max((one.round_off for one in rows), default=0.0),
        any(one.reduced for one in rows),
        any(one.quantised for one in rows),
    )
