"""Notes on a comparison beside its roots: NaN, types, precision and arguments that differ. Parameter names are added to
the evidence of optimizer calls.

The name and slot of an optimizer call contain only numbers (`Torch._foreach_norm.0 input:0.20`); the forward or
backward pass holds the same tensor under the parameter's name.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import chain
from operator import ne
from typing import Collection, Iterator, Mapping, Sequence

from npucmp.align.updates import ENTRY, is_update, parameter_name
from npucmp.flow.contents import content_of
from npucmp.flow.operators import roles_of
from npucmp.judge.precision import round_off_of
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.evidence import reason
from npucmp.localise.rules.limits import REDUCED_ROUND_OFF
from npucmp.measure import metrics
from npucmp.model import Finding, Measurement, Pair, Root, Verdict
from npucmp.model.arguments import by_name, differing_arguments
from npucmp.model.cause import UNKNOWN_INPUTS
from npucmp.model.dtypes import lookup
from npucmp.model.finding import OTHER_NODE
from npucmp.model.network import are_all_recorded, by_network
from npucmp.model.roles import is_meaningless, is_output
from npucmp.model.table import rows_of_rule

PARTS = "parts"  # how a fused product and its parts were aligned
_CUT = re.compile(r"\[(axis [^\[\]]*)\]$")  # the end of view labels
NAMED_TENSORS = 3  # tensors of differing types: work: number of tensors that are named
DECIDED_VERDICTS = {
    Verdict.MATCH,
    Verdict.DIVERGED,
    Verdict.UNKNOWN,
}  # types are a finding of their own for other verdicts
REDUCED_PRODUCTS = (
    "the float32 matrix products of these runs have the precision of HF32 or TF32 units (10-bit mantissas): limits "
    f"follow that precision ({REDUCED_ROUND_OFF:.1e}); switch it off on both sides to find smaller faults"
)
ALIKE_PRODUCTS = (
    "the float32 matrix products of both runs keep 11 bits of their operands, as HF32 or TF32 units do: if an operand "
    "differs by e, its product differs by up to √(e / 1024)"
)


def notes_of(
    findings: Sequence[Finding],
    roots: Sequence[Root],
    reduced: bool = False,
    alike: bool = False,
    blamed: Collection[int] = (),
) -> tuple[str, ...]:
    """The notes for findings in graph order. reduced: products were computed with HF32 or TF32; alike: on both
    sides; blamed: the places of further operators that diverged."""
    others = rows_of_rule(findings, OTHER_NODE)
    rows: Sequence[Finding] = ()  # of tensors with another type
    if _have_other_types(findings):
        rows = [one for at, one in enumerate(findings) if at not in others]
    recorded = are_all_recorded(findings)
    return (
        *(() if recorded else _not_a_number(findings)),
        *(_shapes(findings) if _have_other_shapes(findings) else ()),
        *_parts(findings),
        *(() if recorded else _extremes_alone(findings)),
        *_dtypes(rows, bool(roots or blamed)),
        *_other_dtypes(rows),
        *([REDUCED_PRODUCTS] if reduced else []),
        *([ALIKE_PRODUCTS] if alike else []),
        *_arguments(findings, {root.pair.order for root in roots}.union(blamed)),
        *_outputs_alone(findings, roots),
        *_other_nodes([findings[at].pair for at in sorted(others)]),
    )


@by_network
def _have_other_types(pairs: Sequence[Pair]) -> bool:
    sides = ((pair.target, pair.golden) for pair in pairs)
    return any(one is not None and other is not None and one.dtype != other.dtype for one, other in sides)


@by_network
def _have_other_shapes(pairs: Sequence[Pair]) -> bool:
    sides = ((pair.target, pair.golden) for pair in pairs)
    return any(one is not None and other is not None and one.shape != other.shape for one, other in sides)


def _other_nodes(found: Sequence[Pair]) -> Iterator[str]:
    """Yield the note on outputs that the runs recorded of different autograd nodes."""
    if found:
        outputs = "1 output" if len(found) == 1 else f"{len(found)} outputs"
        yield (
            f"{outputs} of backward calls not compared: the runs recorded gradients of different autograd nodes; "
            f"the first is {found[0].operator.name} {found[0].slot}"
        )


def _outputs_alone(findings: Sequence[Finding], roots: Sequence[Root]) -> Iterator[str]:
    """Yield the note that inputs are unknown, so that no operator is accused: a graph may have the data flow."""
    unseen = any(reason.kind == UNKNOWN_INPUTS for root in roots for reason in root.evidence)
    if unseen and all(roles_of(findings).output):
        yield "only outputs were dumped: dump inputs too, or pass a graph of the network with --graph if it exists"


def _shapes(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the note on tensors that were compared although axes of length 1 differ."""
    sides = ((one, one.measurement.pair.target, one.measurement.pair.golden) for one in findings)
    apart = [(one, a.shape, b.shape) for one, a, b in sides if a and b and a.shape != b.shape]
    found = [
        (one.pair, target, golden)
        for one, target, golden in apart
        if not one.measurement.shapes_differ and not one.measurement.problem
    ]
    if found:
        pair, target, golden = found[0]
        where = f"{pair.operator.name} {pair.slot}, {[*target]} against {[*golden]}"
        yield f"tensors compared although their shapes differ by axes of length 1: {len(found)}, the first is {where}"


@by_network
def _parts(pairs: Sequence[Pair]) -> list[str]:
    """Return the note on products that are one operator in one run and several in the other."""
    pairs = [pair for pair in pairs if pair.via == PARTS and pair.slot.startswith("output")]
    cut = [(pair, tensor.label) for pair in pairs for tensor in (pair.target, pair.golden) if tensor is not None]
    labelled = [(pair, found[1]) for pair, label in cut if (found := _CUT.search(label))]
    if not labelled:
        return []
    pair, where = labelled[0]
    axis = where.partition(":")[0]
    return [
        f"fused products are compared with their parts: {len(labelled)} outputs, cut along {axis}; "
        f"the first is {pair.operator.name} {pair.slot}, {where}"
    ]


def _extremes_alone(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the note on dumps that recorded neither Mean nor Norm, without which most faults change no statistics."""
    known = [one.measurement for one in findings if one.measurement.moments is None and one.measurement.same is None]
    lacking = [name for side, name in enumerate(("target", "golden")) if _lack_sums(known, side)]
    if lacking:
        yield (
            f"the statistics of {' and '.join(lacking)} have Max and Min, but neither Mean nor Norm: a fault that "
            'does not change the extremes is not found; msprobe records all four with "precision": "low" in config.json'
        )


def _lack_sums(known: Sequence[Measurement], side: int) -> bool:
    """Whether most tensors of a dump for which it could record sums have none."""
    if None not in [figures.norm for one in known if (figures := one.recorded(side)) is not None]:
        return False
    has_sums = [tensor.has_sums for one in known if (tensor := one.tensor(side)) is not None]
    return has_sums.count(False) > has_sums.count(True)


def _not_a_number(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the note on NaN on both sides at the same places: they agree, and neither is right."""
    figures = chain.from_iterable(filter(None, [one.measurement.recorded(1) for one in findings]))
    if not any(one.measurement.moments for one in findings) and math.isfinite(sum(filter(None, figures))):
        return
    both = [one.pair for one in findings if one.verdict in (Verdict.MATCH, Verdict.UNKNOWN) and _has_nan_twice(one)]
    if both:
        first = f"{both[0].operator.name} {both[0].slot}"
        tensors = "1 tensor contains" if len(both) == 1 else f"{len(both)} tensors contain"
        yield f"{tensors} NaN in both runs, the first at {first}: npucmp overflow finds the operators that produce them"


def _has_nan_twice(finding: Finding) -> bool:
    moments, pair = finding.measurement.moments, finding.pair
    if moments is not None:
        return bool(moments.target.nan and moments.golden.nan) and not is_meaningless(pair)
    recorded = [*filter(None, map(finding.measurement.recorded, range(2)))]
    return len(recorded) == 2 and all(any(map(ne, one, one)) for one in recorded)  # only NaN differs from itself


def _dtypes(findings: Sequence[Finding], is_diverged: bool) -> Iterator[str]:
    """Yield the note on differing float types; without roots, with the error in units of their round-off."""
    floats = [one for one in findings if one.measurement.moments is not None and _are_floats(one.pair)]
    words = _differing([one.pair for one in floats], "float tensors")
    if not words:
        return
    if is_diverged:
        yield words
        return
    round_off = max(round_off_of(finding.pair) for finding in floats)
    worst = max(floats, key=_error)
    error = _error(worst)
    within = "the error is within rounding: " if error <= FACTOR * round_off else ""
    yield (
        f"{words}; {within}largest rel_l2 {error:.1e} = {error / round_off:.1f} unit round-offs, "
        f"at {worst.pair.operator.name} {worst.pair.slot}"
    )


def _other_dtypes(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the note on differing types of whole numbers, and of tensors whose values were not recorded."""
    sides = ((one.measurement.pair.target, one.measurement.pair.golden) for one in findings)
    if all(target is None or golden is None or target.dtype == golden.dtype for target, golden in sides):
        return
    others = [
        one
        for one in findings
        if one.verdict in DECIDED_VERDICTS and not (one.measurement.moments is not None and _are_floats(one.pair))
    ]
    words = _differing([one.pair for one in others], "other tensors" if len(others) < len(findings) else "tensors")
    if words:
        yield words


def _differing(pairs: Sequence[Pair], what: str) -> str:
    """The number of tensors whose types differ, and their names; "" if there are none."""
    sides = [(pair, pair.target.dtype, pair.golden.dtype) for pair in pairs if pair.target and pair.golden]
    found = [(pair, f"{target} against {golden}") for pair, target, golden in sides if target != golden]
    if not found:
        return ""
    ((kind, _),) = Counter(kind for _, kind in found).most_common(1)
    named = ", ".join(f"{pair.operator.name} {pair.slot}" for pair, _ in found)
    words = f"dtypes differ in {len(found)} of {len(sides)} {what} ({kind})"
    first = found[0][0]
    return (
        f"{words}: {named}"
        if len(found) <= NAMED_TENSORS
        else f"{words}, the first is {first.operator.name} {first.slot}"
    )


def _error(finding: Finding) -> float:
    moments = finding.measurement.moments
    return metrics.rel_l2(moments) if moments is not None and finding.error != 0.0 else 0.0


def _are_floats(pair: Pair) -> bool:
    rows = [lookup(tensor.dtype) for tensor in (pair.target, pair.golden) if tensor]
    return len(rows) == 2 and all(row is not None and row.kind == "f" for row in rows)


def _arguments(findings: Sequence[Finding], blamed: Collection[int]) -> Iterator[str]:
    """Yield the note on differing arguments of operators whose outputs agree: worth a check, but not a root."""
    yield from (words for order, words in _argument_words(findings) if order not in blamed)


@by_network
def _argument_words(pairs: Sequence[Pair]) -> list[tuple[int, str]]:
    """Return the order of each operator with a differing argument, and the words for it."""
    found = []
    for order, pair in {pair.order: pair for pair in pairs}.items():
        if pair.target_op and pair.golden_op:
            for slot, a, b in differing_arguments(pair.target_op, pair.golden_op):
                called = by_name(pair.target_op, slot)
                words = f"{pair.operator.name}: argument {called} is {a!r:.40} in the target, {b!r:.40} in the golden"
                found.append((order, words))
    return found


def with_parameters(findings: Sequence[Finding], roots: Sequence[Root]) -> tuple[Root, ...]:
    """Return the roots in the same order; the evidence of optimizer calls begins with the parameter."""
    calls = {root.pair.order for root in roots if is_update(root.pair.operator)}
    if not calls:
        return tuple(roots)
    names: dict[int, str] = {}  # by content
    rows: dict[int, list[Finding]] = defaultdict(list)  # of optimizer calls, by merged order
    for finding in findings:
        pair = finding.pair
        if pair.order in calls:
            rows[pair.order].append(finding)
        elif name := parameter_name(pair.golden, pair.golden_op):
            names[content_of(finding)] = name
    return tuple(
        _with_parameter(root, rows[root.pair.order], names) if root.pair.order in calls else root for root in roots
    )


def _with_parameter(root: Root, rows: Sequence[Finding], names: Mapping[int, str]) -> Root:
    """The root with the parameter of its slot: of the tensor itself, of the list entries with its number, or, for a
    call without lists, of any input."""
    number = _number(root.slot)
    lists = any("." in finding.pair.slot for finding in rows)
    for finding in sorted(rows, key=lambda finding: finding.pair.slot != root.slot):
        same = number == _number(finding.pair.slot) if lists else not is_output(finding.pair)
        content = content_of(finding) if same or finding.pair.slot == root.slot else 0
        name = names.get(content) if content else None
        if name:
            evidence = reason("parameter", "{slot} belongs to parameter {parameter}", slot=root.slot, parameter=name)
            return replace(root, evidence=(evidence, *root.evidence))
    return root


def _number(slot: str) -> str:
    entry = ENTRY.fullmatch(slot)
    return entry[2] if entry else ""
