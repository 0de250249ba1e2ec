"""Causes of operators that are not bit-equal: the search of search.py, extended to tensors with equal bytes.

Bytes that are equal are not measured, so content does not show search.py which of the equal outputs an input is. If an
input differs, the equal outputs before it are compared with it byte for byte.

The input is a GAP ("changed on the way") if an earlier equal output of its type and shape has its content in the first
run. Constants and tensors of fewer than 4 elements are left out. WORSENED is PROPAGATED here, because no limit exists
once an input differs. An operator that is excused because it works in place is PROPAGATED if its output differs. A
parameter that differs in a step after one that differs is PROPAGATED too.

Limits: all runs are compared with the first. Behind a fault, a differing input whose content no earlier tensor had is
attributed to that fault. Checksums show no distance, so such tensors have no row in noise.csv.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Hashable, Iterable, Iterator, Optional, Sequence, Tuple

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import NpucmpError
from npucmp.flow.contents import content_of
from npucmp.flow.operators import OperatorFindings, nodes_of
from npucmp.localise.evidence import reason, tensor_reason
from npucmp.localise.parameter_drift import Updates
from npucmp.localise.root_cause import SearchResult
from npucmp.localise.root_order import places_of, search_steps, side_by_side
from npucmp.localise.rule_context import differs
from npucmp.localise.rules import Rulebook
from npucmp.measure.bitwise import same_bytes
from npucmp.measure.pairs import payload_of
from npucmp.model import Cause, Comparison, Finding, Root, TensorRef
from npucmp.model.roles import is_output, is_parameter
from npucmp.workflows.rank_tasks import StepRank

HEAD = 64  # bytes: work: enough to distinguish most tensors


def with_causes(comparisons: Sequence[Comparison], context: ReadContext = ANYWHERE) -> list[Comparison]:
    """Return the comparisons of one run: differences in undefined memory reverted, one root per operator that differs,
    collectives judged over all ranks, and parameters over earlier steps."""
    linked = [replace(one, findings=tuple(_link_inputs(one.findings, context))) for one in comparisons]
    found = [replace(one, roots=tuple(_causes(one))) for one in _with_roots(linked)]
    first = min((step for one in found if one.roots and (step := one.step) is not None), default=None)
    if first is None:
        return found
    return [replace(one, roots=tuple(_mark_effect(root, one, first) for root in one.roots)) for one in found]


def _with_roots(comparisons: Sequence[Comparison]) -> Iterator[Comparison]:
    """Yield the comparisons with their roots, in order of their places, and with the findings of the search."""
    before: dict[Optional[int], Sequence[Finding]] = {}  # findings of the previous step, by rank

    def search(steps: Iterable[list[StepRank]], faulty: bool) -> Iterator[list[tuple[StepRank, SearchResult]]]:
        for ranks in steps:
            updates = [Updates(before.get(one.rank, ()), faulty) for one in ranks]
            found = side_by_side([comparisons[one.number] for one in ranks], updates, False, Rulebook())
            before.update((one.rank, result.findings) for one, result in zip(ranks, found))
            yield [*zip(ranks, found)]

    places = [StepRank(number, one.target, one.golden) for number, one in enumerate(comparisons)]
    searched = sorted(search_steps(places, search, lambda both: (root.cause for _, root in both[1].roots)))
    ordered = places_of([(one.step, [(clock, root.cause) for clock, root in found.roots]) for one, found in searched])
    for one, (_, found), numbers in zip(comparisons, searched, ordered):
        placed = (replace(root, place=place) for place, (_, root) in sorted(zip(numbers, found.roots)))
        yield replace(one, findings=tuple(found.findings), roots=tuple(placed))


def _causes(one: Comparison) -> Iterator[Root]:
    """Yield one root per operator that differs."""
    for root in one.roots:
        yield replace(root, cause=Cause.PROPAGATED) if root.cause is Cause.WORSENED else root
    known = {root.pair.order for root in one.roots}
    for node in nodes_of(one.findings):  # equal outputs are not a difference, even if inputs differ
        if node.pair.order not in known and any(map(differs, node.outputs or node.inputs)):
            yield _left_over(node)


def _left_over(node: OperatorFindings) -> Root:
    """The root of an operator that the search excuses: its error may come from a tensor that it overwrites."""
    worst = next(filter(differs, (*node.outputs, *node.inputs)))
    reasons = reason("inputs differ", "an input differs, or is overwritten in place"), tensor_reason(worst)
    return Root(0, node.pair, Cause.PROPAGATED, worst.pair.slot, worst.metric, None, 0.0, None, worst.error, reasons)


def _link_inputs(findings: Iterable[Finding], context: ReadContext) -> Iterator[Finding]:
    """Yield the findings; an input that differs gets the name of the earlier equal output with its content."""
    different: set[int] = set()
    equal = _Equal(context)
    for finding in findings:
        golden, operator = finding.pair.golden, finding.pair.golden_op
        if is_output(finding.pair):
            if differs(finding):
                different.add(content_of(finding))
            elif finding.measurement.same and golden is not None and operator is not None:
                equal.add(golden, f"{operator.name}:{golden.slot.partition(':')[2]}")
        elif golden is not None and _is_traceable(finding) and content_of(finding) not in different:
            producer = equal.find(golden)
            pair = finding.pair._replace(golden=golden._replace(source=producer))
            finding = finding._replace(measurement=finding.measurement._replace(pair=pair))
        yield finding


def _is_traceable(finding: Finding) -> bool:
    """Whether content alone can show the producer of an input."""
    moments, golden = finding.measurement.moments, finding.pair.golden
    if not differs(finding) or moments is None or golden is None or golden.source or is_parameter(finding.pair):
        return False
    return content_of(finding) != 0 and moments.golden.minimum != moments.golden.maximum


_Output = Tuple[TensorRef, str]  # an output of the first run, and its name


class _Equal:
    """Outputs with equal bytes in both runs. Their files are opened on the first query."""

    def __init__(self, context: ReadContext) -> None:
        self._context = context
        self._unread: dict[Hashable, list[_Output]] = defaultdict(list)
        self._read: dict[Hashable, list[_Output]] = defaultdict(list)

    def add(self, tensor: TensorRef, name: str) -> None:
        """Add an output of the first run by its name, "{operator}:{index}"; calls come in order."""
        self._unread[_kind(tensor)].append((tensor, name))

    def find(self, tensor: TensorRef) -> str:
        """The name of the latest output of the first run with this content; "" if there is none."""
        for one in self._unread.pop(_kind(tensor), ()):
            self._read[_kind(tensor), _head(one[0], self._context)].append(one)
        outputs = self._read.get((_kind(tensor), _head(tensor, self._context)), ())
        alike = (name for one, name in reversed(outputs) if same_bytes(one, tensor, self._context) is not None)
        return next(alike, "")


def _kind(tensor: TensorRef) -> Hashable:
    return tensor.dtype, tensor.shape


def _head(tensor: TensorRef, context: ReadContext) -> bytes:
    try:
        payload = payload_of(tensor, context=context)
        if payload is None:
            return b""
        with open_regular(payload.path, context) as file:
            return file.read(payload.offset, min(HEAD, file.size - payload.offset))
    except NpucmpError:
        return b""


def _mark_effect(root: Root, own: Comparison, first: int) -> Root:
    """Mark a parameter that differs in a later step as an effect of the first step that differs."""
    later = own.step is not None and own.step > first
    if root.cause is not Cause.GAP or not later or not is_parameter(root.pair._replace(slot=root.slot)):
        return root
    evidence = reason("step", "the difference follows from step {step}", step=first), *root.evidence
    return replace(root, cause=Cause.PROPAGATED, evidence=evidence)
