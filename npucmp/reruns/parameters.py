"""Describe parameters that differ between the checkpoints of two runs, in the words of weight_faults.py."""

from __future__ import annotations

from typing import Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.model import Comparison, Evidence, Fact, Finding, Operator, TensorRef
from npucmp.relations.weights.checkpoint_pair import CheckpointPair
from npucmp.relations.weights.limits import limit_of
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.role import named_role
from npucmp.relations.weights.weight_faults import DIFFERS, FaultFinder


class ParameterFaults:
    """The evidence of parameters that differ, by their names in both runs. No kernel computed them."""

    def __init__(self, comparisons: Sequence[Comparison], context: ReadContext) -> None:
        self._finders: dict[int, FaultFinder] = {}  # by the operator of a parameter
        for comparison in comparisons:
            pairs = [pair for finding in comparison.findings if (pair := _checkpoint_pair(finding)) is not None]
            finder = FaultFinder(pairs, 1, context)
            self._finders.update({id(operator): finder for operator in comparison.target.operators})

    def evidence(self, finding: Finding) -> tuple[Evidence, ...]:
        """Return what the parameter of a finding is in the later run; () if its values just differ."""
        pair = _checkpoint_pair(finding)
        fault = self._finders[id(finding.pair.target_op)].fault(pair) if pair is not None else DIFFERS
        if fault == DIFFERS:
            return ()
        return (Evidence("weight", fault.words, {name: Fact(value) for name, value in fault.facts.items()}),)


def _checkpoint_pair(finding: Finding) -> Optional[CheckpointPair]:
    pair = finding.pair
    if pair.target is None or pair.golden is None or pair.target_op is None or pair.golden_op is None:
        return None
    target, golden = _part(pair.target_op, pair.target), _part(pair.golden_op, pair.golden)
    return CheckpointPair(golden.role, target, golden, limit_of(target, golden))


def _part(operator: Operator, tensor: TensorRef) -> Part:
    return Part(named_role(operator.name).role, tensor.payload, operator.name, tensor.file, tensor.dtype)
