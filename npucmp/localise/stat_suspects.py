"""Runs with statistics only: separate proven roots, suspects and noise.

The first operator that exceeds the noise before it (stat_test.py) is suspected, unless it is a root already. Proven
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
from dataclasses import replace
from typing import Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.flow.operators import OperatorFindings
from npucmp.localise.evidence import argument_reasons, draw_reasons, is_fed, reason, tensor_fact
from npucmp.localise.root_cause import SearchResult
from npucmp.localise.stat_shift import FIGURES
from npucmp.localise.stat_test import NoiseTest, Outlier
from npucmp.model import Cause, Finding, Pair, Root, Verdict
from npucmp.model.arguments import moves_other_axes
from npucmp.model.finding import DIFFERS
from npucmp.model.roles import is_parameter
from npucmp.model.table import ChangedRows, rows_of_verdicts, with_changes


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
        if root is not None and root.cause is Cause.PROPAGATED:
            root = None
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
    findings, roots = result
    rows = rows_of_verdicts(findings, DIFFERS)
    if first is None:
        return _excused(findings, rows), []
    other_input = first.root if first.root is not None and _is_input(first.root) else None
    is_alone = first.root is None or other_input is not None or first.root.cause is Cause.SUSPECT
    places = {pair.order for rank, (_, pair, _) in first.alike.items() if rank == number}
    places |= {first.pair.order} if number == first.rank else set()
    before = {order for order, clock in clocks.items() if (clock, number) < (first.clock, first.rank)}
    roots_left = [(when, one) for when, one in roots if one.pair.order not in before]
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
    return _excused(findings, [at for at in rows if findings[at].pair.order in before]), roots_left


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
    found = reason("behind", words, name=name)
    return replace(root, cause=Cause.PROPAGATED, evidence=(found, *root.evidence))


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
    bound = finding.measurement.bound
    fields = bound, finding.limit, None, None, reasons
    return Root(0, pair, Cause.SUSPECT, finding.pair.slot, "rel_l2", *fields, rule="suspected")
