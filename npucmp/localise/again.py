"""Operators that one side alone ran once more: where activations are not kept, a forward is computed again on the way
back (checkpointing), and its records stand behind the others. They are known by what they wrote, which is the same.
"""

from __future__ import annotations

from itertools import groupby
from typing import Sequence

from npucmp.localise.nodes import is_output
from npucmp.localise.producers import Producers, fingerprint
from npucmp.model import Finding


def ran_again(findings: Sequence[Finding]) -> "frozenset[int]":
    """The places, in merged graph order, of operators without partner of which every output, and one at least, has the
    content of an output that an operator of the same type wrote before on that side."""
    if not any(finding.pair.target_op is None or finding.pair.golden_op is None for finding in findings):
        return frozenset()
    seen: "dict[tuple[str, bool], Producers[int]]" = {}
    found = set()
    for order, group in groupby(findings, key=lambda finding: finding.pair.order):
        outputs = [finding for finding in group if is_output(finding.pair)]
        if not outputs:
            continue
        pair = outputs[0].pair
        alone = pair.target_op is None or pair.golden_op is None
        sides = [side for side in (True, False) if (pair.target_op if side else pair.golden_op) is not None]
        for of_target in sides:
            operator = pair.target_op if of_target else pair.golden_op
            assert operator is not None
            known = seen.setdefault((operator.op_type, of_target), Producers())
            marks = [mark for one in outputs if (mark := fingerprint(one, of_target)) is not None]
            if alone and marks and all(known.find(mark) is not None for mark in marks):
                found.add(order)
            for mark in marks:
                known.add(mark, order)
    return frozenset(found)
