"""Backward operators that recorded another autograd node on each side.

A dump records the outputs of one autograd node of a call: of the whole linear layer on one side, of the view before its
product on the other. Autograd gives a gradient the shape of its tensor. If the forward has the same shapes on both
sides and an output of the backward has not, the outputs are those of two nodes, and no difference of theirs is an
error. The next recorded gradient tells whether there is one.
"""

from __future__ import annotations

from itertools import groupby
from typing import Sequence

from npucmp.localise.nodes import is_output
from npucmp.model import Finding, Verdict

RULE = "another autograd node"
_DIFFERS = (Verdict.SHAPE, Verdict.DIVERGED, Verdict.NONFINITE)


def undecided_nodes(findings: "Sequence[Finding]") -> "list[Finding]":
    """The findings in the same order; the differing outputs of such operators are unknown."""
    found = [*findings]
    alike: "set[tuple[str, str]]" = set()  # calls on both sides whose forwards have the same shapes
    for _, group in groupby(range(len(found)), key=lambda at: found[at].pair.order):
        places = [*group]
        pair = found[places[0]].pair
        if pair.target_op is None or pair.golden_op is None or pair.operator.path:
            continue
        call = pair.target_op.call, pair.golden_op.call
        shapes = [found[at].verdict is Verdict.SHAPE for at in places]
        if pair.operator.phase == "forward":
            alike |= {call} if not any(shapes) else set()
        elif pair.operator.phase == "backward" and call in alike:
            outputs = [at for at in places if is_output(found[at].pair)]
            if any(found[at].verdict is Verdict.SHAPE for at in outputs):
                found[outputs[0] : outputs[-1] + 1] = map(_undecided, found[outputs[0] : outputs[-1] + 1])
    return found


def _undecided(finding: Finding) -> Finding:
    if finding.verdict not in _DIFFERS or not is_output(finding.pair):
        return finding
    because = f"an output of {RULE} of the same backward ({finding.because})"
    return finding._replace(verdict=Verdict.UNKNOWN, because=because, error=None, rule=RULE)
