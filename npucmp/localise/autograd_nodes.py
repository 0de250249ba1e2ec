"""Backward operators that recorded another autograd node on each side.

A dump records the outputs of one autograd node of a call: the whole linear layer on one side, the view before its
product on the other. Autograd gives a gradient the shape of its tensor. If the forward has the same shapes on both
sides and an output of the backward does not, the outputs belong to two nodes, and their difference is not an error. The
next recorded gradient shows whether an error exists. If one call of an operator shows this, its other calls, whose
nodes happen to have equal shapes, recorded two nodes too if their outputs are unrelated.
"""

from __future__ import annotations

from itertools import groupby
from typing import Sequence

from npucmp.localise.rules.round_off import UNRELATED
from npucmp.model import Finding, Verdict
from npucmp.model.finding import OTHER_NODE
from npucmp.model.roles import is_output

_DIFFERS = (Verdict.SHAPE, Verdict.DIVERGED, Verdict.NONFINITE)


def undecided_nodes(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings in the same order; differing outputs of such operators become UNKNOWN."""
    found = [*findings]
    alike: set[tuple[str, str]] = set()  # calls on both sides whose forwards have the same shapes
    kinds: set[str] = set()  # kinds of the calls that are proven to have recorded two nodes
    backwards: list[list[int]] = []  # indices of the outputs of each backward call
    for _, group in groupby(range(len(found)), key=lambda at: found[at].pair.order):
        places = [*group]
        pair = found[places[0]].pair
        if pair.target_op is None or pair.golden_op is None or pair.operator.path:
            continue
        call = pair.target_op.call, pair.golden_op.call
        if pair.operator.phase == "forward":
            alike |= {call} if not any(found[at].verdict is Verdict.SHAPE for at in places) else set()
        elif pair.operator.phase == "backward" and call in alike:
            outputs = [at for at in places if is_output(found[at].pair)]
            kinds |= {pair.operator.kind} if any(found[at].verdict is Verdict.SHAPE for at in outputs) else set()
            backwards.append(outputs)
    for outputs in backwards:
        if outputs and found[outputs[0]].pair.operator.kind in kinds and _are_two([found[at] for at in outputs]):
            for at in outputs:
                found[at] = _undecided(found[at])
    return found


def _are_two(outputs: Sequence[Finding]) -> bool:
    """Whether outputs of one call belong to two nodes: by their shapes or their number, or because the first outputs
    are unrelated."""
    first = outputs[0]
    unrelated = first.verdict is Verdict.DIVERGED and first.error is not None and first.error >= UNRELATED
    return unrelated or any(one.verdict in (Verdict.SHAPE, Verdict.MISSING) for one in outputs)


def _undecided(finding: Finding) -> Finding:
    if finding.verdict not in _DIFFERS or not is_output(finding.pair):
        return finding
    because = f"an output of {OTHER_NODE} of the same backward ({finding.because})"
    return finding._replace(verdict=Verdict.UNKNOWN, because=because, error=None, rule=OTHER_NODE)
