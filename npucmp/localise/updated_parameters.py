"""The backward operators that made the gradient which an optimizer reads.

Dumps of single operators do not record the gradients of parameters: an optimizer reads tensors that no recorded
operator wrote. The parameter that such an operator, or one behind it, updates shows the forward operators that read it,
and these have the backward operators.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import cached_property
from typing import Iterable, Sequence, TypeVar

from npucmp.flow.contents import content_of
from npucmp.flow.operators import OperatorFindings
from npucmp.model import Finding
from npucmp.model.roles import is_parameter

DISTANCE = 8  # operators of an update: chosen: Adam has fewer between a gradient and its parameter, not measured


class UpdatedParameters:
    """The operators of one step and rank."""

    def __init__(self, nodes: Sequence[OperatorFindings]) -> None:
        self._nodes = nodes

    def backward_operators(self, finding: Finding) -> list[OperatorFindings]:
        """The backward operators that made the gradient in an input; empty if it is no gradient that an optimizer
        reads, or its parameter is not known."""
        if finding.pair.order not in self._by_order:
            return []
        size = finding.pair.elements
        pending, seen = [self._by_order[finding.pair.order]], 0
        while pending and seen < DISTANCE:
            node, seen = pending.pop(0), seen + 1
            for one in node.inputs:
                calls = self._calls.get(self._before_update(content_of(one)), ()) if one.pair.elements == size else ()
                found = [self._backward[call] for call in calls if call in self._backward]
                if found:
                    return found
            for one in node.outputs:
                readers = self._readers.get(content_of(one), ())
                pending += [reader for reader in readers if reader.pair.order > node.pair.order]
        return []

    def _before_update(self, content: int) -> int:
        """The content of a parameter before operators of the update that read it alone, such as a decay; else the
        content itself."""
        passed = set()  # two operators may each write what the other reads: negations, or equal statistics
        while content in self._alone and content not in self._calls and content not in passed:
            passed.add(content)
            content = self._alone[content]
        return content

    @cached_property
    def _alone(self) -> dict[int, int]:
        """The content that the update's operators of one operand read, by the content that they wrote."""
        found = {
            content_of(node.outputs[0]): content_of(node.inputs[0])
            for node in self._by_order.values()
            if len(node.inputs) == 1 == len(node.outputs) and content_of(node.inputs[0])
        }
        return {wrote: read for wrote, read in found.items() if wrote and wrote != read}

    @cached_property
    def _last_gradient(self) -> int:
        return max((node.pair.order for node in self._nodes if node.is_gradient), default=sys.maxsize)

    @cached_property
    def _by_order(self) -> dict[int, OperatorFindings]:
        return {node.pair.order: node for node in self._nodes if node.pair.order > self._last_gradient}

    @cached_property
    def _readers(self) -> dict[int, list[OperatorFindings]]:
        """The operators of the update that read each content."""
        return _by_content((content_of(one), node) for node in self._by_order.values() for one in node.inputs)

    @cached_property
    def _calls(self) -> dict[int, list[str]]:
        """The calls of the forward operators that read each parameter, by content."""
        forward = (node for node in self._nodes if node.operator.phase == "forward")
        before = ((one, node) for node in forward if node.pair.order < self._last_gradient for one in node.inputs)
        return _by_content((content_of(one), node.operator.call) for one, node in before if is_parameter(one.pair))

    @cached_property
    def _backward(self) -> dict[str, OperatorFindings]:
        return {node.operator.call: node for node in self._nodes if node.operator.phase == "backward"}


Member = TypeVar("Member")


def _by_content(members: Iterable[tuple[int, Member]]) -> dict[int, list[Member]]:
    found: dict[int, list[Member]] = defaultdict(list)
    for content, member in members:
        if content:
            found[content].append(member)
    return found
