"""How certain the alignment must be for a cause: a wrong pair is never proof of an error.

An operator of a run that was aligned by contents (align/contents/) bears an error only if the pair of its output is
certain enough, and the pairs of all data that it reads are pairs by value or by name. Otherwise the operator is SUSPECT
or UNKNOWN, and the evidence names the uncertain pair.
"""

from __future__ import annotations

from typing import Optional, Sequence

from npucmp.flow.operators import OperatorFindings
from npucmp.localise import evidence
from npucmp.model import Cause, Evidence, Finding
from npucmp.model.finding import BY_CONTENT, UNBOUNDED
from npucmp.model.roles import is_parameter

OUTPUT = 0.8  # confidence: definition: a pair below it proves no error (specification of alignment without names)
INPUT = 0.9  # confidence: definition: pairs by value, by name and by the user are at least as certain
PROVING = (Cause.BORN, Cause.GAP, Cause.WORSENED)


def is_by_content(node: OperatorFindings) -> bool:
    """Whether any tensor of an operator was paired by contents."""
    return any(one.pair.via in BY_CONTENT for one in (*node.inputs, *node.outputs))


def begins_upstream(node: OperatorFindings) -> bool:
    """Whether the golden operator computes what several operators of the target compute, and this one is the last: an
    input of it has no partner. The recomputation of the last operator says nothing about the others."""
    unpaired = any(one.pair.target is not None and one.pair.golden is None for one in node.inputs)
    return unpaired and is_by_content(node)


def uncertain_cause(node: OperatorFindings, cause: Cause, own: Finding) -> Optional[tuple[Cause, list[Evidence]]]:
    """The cause that an uncertain alignment leaves of a proof, with its evidence; None if the alignment is certain."""
    if cause not in PROVING or not is_by_content(node):
        return None
    pair = own.pair
    if pair.via and pair.confidence < OUTPUT:
        words = "the pair is not certain ({via}, confidence {confidence}): {why}"
        why = pair.note or "aligned by similarity"
        known = evidence.reason("alignment", words, via=pair.via, confidence=f"{pair.confidence:g}", why=why)
        return Cause.SUSPECT, [known]
    if cause is Cause.GAP:
        return None
    data = [one for one in node.inputs if not is_parameter(one.pair)]
    paired = [one for one in data if one.pair.via]
    unsure = _least_certain(paired)
    if unsure is not None:
        words = "the pair of {slot} is not certain ({via}, confidence {confidence}), so its agreement proves nothing"
        found = unsure.pair
        facts = {"slot": found.slot, "via": found.via, "confidence": f"{found.confidence:g}"}
        return Cause.UNKNOWN, [evidence.reason("alignment", words, **facts)]
    if any(one.pair.note == UNBOUNDED for one in data):
        words = "the inputs were computed from tensors without a partner"
        return Cause.UNKNOWN, [evidence.reason("alignment", words)]
    if data and not any(_is_telling(one) for one in paired):
        words = "no tensor that the operator reads was paired with one of the golden run"
        return Cause.UNKNOWN, [evidence.reason("alignment", words)]
    return None


def _least_certain(paired: Sequence[Finding]) -> Optional[Finding]:
    worst = min(paired, key=lambda one: one.pair.confidence, default=None)
    return worst if worst is not None and worst.pair.confidence < INPUT else None


def _is_telling(finding: Finding) -> bool:
    """Whether a tensor is more than a number or a constant."""
    moments = finding.measurement.moments
    return moments is None or moments.golden.minimum < moments.golden.maximum
