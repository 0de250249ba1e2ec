"""Find the readers of weights and moving statistics that only the golden recorded.

A framework's debugger writes variables as tensors of their own; a device's dump holds them as constants of its graph,
or not at all. If all operators that read such a tensor are compared and agree, another value in the target would have
shown. If a reader diverges, the tensor was not compared and may be the cause.

The reader of a parameter in the record of an operator is that operator, if the target recorded none of its parameters;
so is the reader of a later operand of a product or a sum that no operator wrote, if the target recorded fewer operands.
The readers of a golden operator that has no input are those that a graph names. Without a graph they are the operators
in the scope of its name ("conv1/" of "conv1/kernel") that read a tensor of as many elements in the target alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Iterator, Sequence

from npucmp.dump.readers.names import file_name_of
from npucmp.flow.contents import content_of
from npucmp.model import Finding, TensorRef, Verdict
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_golden_parameter, is_output

STRIPPED = 3  # words of a name: definition: "moving_variance_read" stands behind the scope of a variable


class GoldenWeights:
    """Weights of the golden without a record in the target, and the operators of both runs that read them."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = findings
        self._outputs: dict[int, list[Finding]] = defaultdict(list)  # of operators that both runs have, by order
        self._alone: dict[int, set[int]] = defaultdict(set)  # elements of inputs that only the target read, by order
        self._named: dict[str, int] = {}  # orders by the names of operators and of those that they were fused from
        self._sources: dict[str, list[Finding]] = defaultdict(list)  # golden inputs by the output that a graph names
        written = [one for one in findings if is_output(one.pair) and one.pair.golden is not None]
        self._written = frozenset(map(content_of, written))
        self._shapes = frozenset(one.pair.golden.shape for one in written if one.pair.golden is not None)
        for finding in findings:
            pair = finding.pair
            if pair.golden is not None and pair.golden.source:
                self._sources[file_name_of(pair.golden.source)].append(finding)
            if pair.target_op is None or pair.golden_op is None:
                continue
            for operator in (pair.target_op, pair.golden_op):
                for name in (operator.name, *operator.originals):
                    self._named.setdefault(file_name_of(name), pair.order)
            if is_output(pair) and pair.golden is not None:
                self._outputs[pair.order].append(finding)
            elif pair.golden is None and pair.target is not None:
                self._alone[pair.order].add(math.prod(pair.target.shape))

    def readers(self, finding: Finding) -> frozenset[int]:
        """The orders of the operators that read a weight of the golden alone; empty for other tensors, and if one of
        them is unknown."""
        pair = finding.pair
        if pair.golden is None or pair.golden_op is None or pair.target is not None or not _is_float(pair.golden):
            return frozenset()
        if pair.target_op is not None:
            slots = [tensor.slot for tensor in pair.target_op.tensors]
            known = is_golden_parameter(pair) and not any(slot.startswith("param:") for slot in slots)
            known = known or self._is_operand(finding)
            return frozenset((pair.order,)) if known else frozenset()
        if not all(tensor.is_output for tensor in pair.golden_op.tensors):
            return frozenset()
        name = file_name_of(pair.golden_op.name)
        sourced = self._sources.get(file_name_of(f"{pair.golden_op.name}:{pair.slot.partition(':')[2]}"))
        if sourced:
            orders = [self._named.get(file_name_of(row.pair.operator.name), -1) for row in sourced]
            return frozenset() if -1 in orders else frozenset(orders)
        return frozenset(self._in_scope(name, math.prod(pair.golden.shape)))

    def _is_operand(self, finding: Finding) -> bool:
        """Whether a tensor is a later operand of a product or a sum of elements, which no operator of the golden wrote,
        and the target recorded fewer operands."""
        pair = finding.pair
        role, _, key = finding.pair.slot.partition(":")
        if role != "input" or not key.isdecimal() or key == "0" or pair.golden_op is None or pair.target_op is None:
            return False
        if is_gradient(pair.golden_op) or not op_type_of(pair.golden_op).has("contracts", "elementwise"):
            return False
        recorded = [tensor for tensor in pair.target_op.tensors if not tensor.is_output]
        return len(recorded) <= int(key) and bool(recorded) and not self._is_written(finding)

    def _is_written(self, finding: Finding) -> bool:
        """Whether an operator of the golden may have written a tensor: by the content, or by the shape if that is
        unknown."""
        pair, content = finding.pair, content_of(finding)
        return pair.golden is None or (content in self._written if content else pair.golden.shape in self._shapes)

    def _in_scope(self, name: str, elements: int) -> Iterator[int]:
        """The operators with the longest scope in common with a name that read as many elements in the target alone."""
        words = name.split("_")
        for end in range(len(words) - 1, max(0, len(words) - 1 - STRIPPED), -1):
            scope = "_".join(words[:end])
            inside = {at for other, at in self._named.items() if other == scope or other.startswith(f"{scope}_")}
            if inside:
                yield from (at for at in inside if elements in self._alone[at])
                return

    def is_known(self, finding: Finding) -> bool:
        """Whether every operator that reads a weight was compared, and agrees."""
        outputs = [self._outputs[order] for order in self.readers(finding)]
        return bool(outputs) and all(rows and {row.verdict for row in rows} == {Verdict.MATCH} for rows in outputs)

    def of_reader(self, order: int) -> list[str]:
        """The names of the weights that the operator at a place reads."""
        found = [row.pair for row in self._findings if row.verdict is Verdict.MISSING and order in self.readers(row)]
        return [f"{pair.operator.name} {pair.slot}" if pair.order != order else pair.slot for pair in found]


def _is_float(tensor: TensorRef) -> bool:
    dtype = lookup(tensor.dtype)
    return dtype is not None and bool(dtype.round_off)
