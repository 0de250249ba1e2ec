"""The golden as a graph of row numbers, for comparisons in which every tensor has a partner and only statistics exist.

It decides the same questions as golden_graph.py and open_tensors.py. Fewer facts decide: no operator exists on one side
alone, so none ran again or has unused outputs, and without values there are no casts, expansions and proofs. Rows,
operators and contents are numbers for speed: statistics leave most tensors undecided, and each of them is examined.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import chain
from typing import Any, Hashable, Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.flow.contents import MIN_ELEMENTS, content_of
from npucmp.localise.golden_graph import SCALAR, copies_input, lost_outputs
from npucmp.model import DECIDED, Finding, Operator, Pair, TensorRef, Verdict
from npucmp.model.finding import MEANINGLESS
from npucmp.model.optypes import is_gradient
from npucmp.model.roles import is_argument, is_meaningless, is_output, is_parameter

_BEFORE_FIRST = -1  # place: definition: before the first operator


class _Roles(NamedTuple):
    """The roles of tensors, in row order."""

    outputs: list[bool]
    parameters: list[bool]
    meaningless: list[bool]

    @classmethod
    def of(cls, pairs: Sequence[Pair], slots: Sequence[str], ranges: Iterable[tuple[int, int]]) -> _Roles:
        """The roles by row; operators of one type whose tensors have the same slots are evaluated once."""
        known: dict[Hashable, Any] = {}
        found = []
        for start, end in ranges:
            operator = pairs[start].operator
            key = operator.op_type, operator.phase, slots[start:end]
            roles = known.get(key)
            if roles is None:
                functions = is_output, is_parameter, is_meaningless
                roles = known[key] = [[*map(function, pairs[start:end])] for function in functions]
            found.append(roles)
        return cls(*([*chain.from_iterable(column)] for column in zip(*found)))


class RecordedGraph:
    """The golden tensors of a comparison by content, as rows of the comparison.

    elements   number of elements of each row
    golden     rows with elements that the comparison has to account for
    undecided  rows of `golden` that were not compared
    """

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> Optional[RecordedGraph]:
        """The graph of judged findings without values, in merged graph order. None if a tensor has no partner in the
        same slot, if a golden tensor has a file or the name of its producer, or if a tensor is unreadable."""
        pairs = [one.measurement.pair for one in findings]
        if not pairs:
            return None
        orders, slots, *sides = [*zip(*pairs)][:6]
        if not all(map(all, (slots, *sides))):
            return None
        _, golden_ops, targets, goldens = sides
        tensors = dict(zip(TensorRef._fields, zip(*goldens)))
        if tensors["slot"] != slots or tuple([one.slot for one in targets]) != slots:
            return None
        if any(any(tensors[name]) for name in ("source", "file", "payload")):
            return None
        if Verdict.UNREADABLE in {one.verdict for one in findings}:
            return None
        return cls(findings, pairs, orders, golden_ops, tensors)

    def __init__(
        self,
        findings: Sequence[Finding],
        pairs: Sequence[Pair],
        orders: Sequence[int],
        operators: Sequence[Operator],
        tensors: Mapping[str, Sequence[Any]],
    ) -> None:
        """operators, tensors: the operators and tensors of the golden by row; tensors by field."""
        self._pairs, self._operators, self._dtypes = pairs, operators, tensors["dtype"]
        sizes = {shape: math.prod(shape) for shape in {*tensors["shape"]}}
        self.elements = [*map(sizes.__getitem__, tensors["shape"])]
        starts = [at for at, order in enumerate(orders) if not at or order != orders[at - 1]]
        ends = [*starts[1:], len(orders)]
        self._ranges = [*map(range, starts, ends)]  # rows of each operator
        self._number = [number for number, rows in enumerate(self._ranges) for _ in rows]  # of its operator, by row
        self._is_gradient = [is_gradient(operators[start]) for start in starts]  # by operator
        self._roles = _Roles.of(pairs, tensors["slot"], zip(starts, ends))
        self._is_decided = [one.verdict in DECIDED for one in findings]
        exempt = self._exempt([one.rule for one in findings])
        known = enumerate(zip(self.elements, self._is_decided))
        self.golden = [at for at, (many, is_decided) in known if many and (is_decided or at not in exempt)]
        self.undecided = [at for at in self.golden if not self._is_decided[at]]
        self._content = _contents(findings, tensors, self.elements)
        self._rows: dict[Hashable, list[int]] = defaultdict(list)  # by content
        for at in self.golden:
            self._rows[self._content[at]].append(at)
        self._compared = {self._content[at] for at in self.golden if self._is_decided[at]}

    def _exempt(self, rules: Sequence[str]) -> set[int]:
        """The rows whose content is undefined, or that hold an argument; `rules` are the rules that decided the
        rows."""
        exempt = {at for at, means_nothing in enumerate(self._roles.meaningless) if means_nothing}
        if not {*rules}.isdisjoint(MEANINGLESS):
            exempt |= {at for at, rule in enumerate(rules) if rule in MEANINGLESS}
        takes = [rows for rows in self._ranges if self._operators[rows.start].arguments]
        return exempt | {at for rows in takes for at in rows if is_argument(self._pairs[at])}

    def open_rows(self) -> list[int]:
        """The undecided rows that no compared tensor accounts for."""
        if not self._compared:
            return self.undecided
        left = [at for at in self.undecided if self._content[at] not in self._compared or not self._is_again(at)]
        loose: dict[int, list[Hashable]] = defaultdict(list)  # contents of open rows, by operator
        for at in left:
            loose[self._number[at]].append(self._content[at])
        seen: set[Hashable] = set()
        interior: set[int] = set()
        for at in left:
            if self._content[at] not in seen:
                contents, operators = self._stretch(self._content[at], loose)
                seen |= contents
                if self._is_closed(contents, operators):
                    interior.update(row for one in contents for row in self._rows[one])
        return [at for at in left if at not in interior or lost_outputs(self._pairs[at])] if interior else left

    def _is_again(self, at: int) -> bool:
        """Whether a row holds the content of a compared row."""
        if not self._roles.outputs[at]:
            return True
        if lost_outputs(self._pairs[at]):
            return False
        operator, content = self._operators[at], self._content[at]
        if copies_input(operator):
            return True
        read = [row for row in self._rows[content] if self._is_decided[row] and not self._roles.outputs[row]]
        if max((self._operators[row].order for row in read), default=_BEFORE_FIRST) > operator.order:
            return True
        return operator.phase == "backward" and any(self._number[row] == self._number[at] for row in read)

    def _stretch(self, start: Hashable, loose: dict[int, list[Hashable]]) -> tuple[set[Hashable], set[int]]:
        """Open contents that operators connect, and these operators."""
        number, is_backward, rows = self._number, self._is_gradient, self._rows
        forward = any(not is_backward[number[at]] for at in rows[start])
        contents, operators, todo = {start}, set[int](), [start]
        while todo:
            for at in rows[todo.pop()]:
                one = number[at]
                if one in operators or (forward and is_backward[one]):
                    continue  # tensors of the forward that a backward reads are closed by the forward's own consumers
                operators.add(one)
                for other in loose[one]:
                    if other not in contents:
                        contents.add(other)
                        todo.append(other)
        return contents, operators

    def _is_closed(self, contents: set[Hashable], operators: set[int]) -> bool:
        """Whether all tensors that enter or leave a stretch were compared."""
        if not all(map(self._is_inside, contents)):
            return False
        golden = {*self.golden}
        rows = [[at for at in self._ranges[one] if at in golden] for one in operators]
        outputs, parameters = self._roles.outputs, self._roles.parameters
        if not all(self._operators[places[0]].reads_recorded and any(outputs[at] for at in places) for places in rows):
            return False
        return any(self._content[at] in self._compared and not parameters[at] for at in chain.from_iterable(rows))

    def _is_inside(self, content: Hashable) -> bool:
        """Whether operators write a content and then read it, or it is a scalar or a mask."""
        rows, outputs = self._rows[content], self._roles.outputs
        writers = [at for at in rows if outputs[at]]
        if not writers:
            return all(self.elements[at] == SCALAR or self._dtypes[at] == "bool" for at in rows)
        first = min(writers, key=self._order)
        forward = not self._is_backward(first)
        readers = [at for at in rows if not outputs[at] and not (forward and self._is_backward(at))]
        return max(map(self._order, readers), default=_BEFORE_FIRST) > self._order(first)

    def _order(self, at: int) -> int:
        """The place of the operator of a row in the golden run."""
        return self._operators[at].order

    def _is_backward(self, at: int) -> bool:
        return self._is_gradient[self._number[at]]


def _contents(
    findings: Sequence[Finding], tensors: Mapping[str, Sequence[Any]], elements: Sequence[int]
) -> list[Hashable]:
    """The content of each golden tensor; a unique key if it is unknown."""
    recorded = [figures for one in findings if (figures := one.measurement.recorded(1))]
    if any(tensors["checksum"]) or len(recorded) < len(findings):
        return [content_of(one) or (at,) for at, one in enumerate(findings)]
    found: list[Hashable] = [*map(hash, zip(elements, recorded))]
    for at, (many, (most, least, mean, norm)) in enumerate(zip(elements, recorded)):
        if (
            most is None
            or least is None
            or mean is None
            or norm is None
            or many < MIN_ELEMENTS
            or most == least
            or not math.isfinite(most + least + mean + norm)
        ):
            found[at] = content_of(findings[at]) or (at,)
    return found
