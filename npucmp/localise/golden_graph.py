"""The golden as a graph of row numbers: operators, and the contents that they write and read, by recorded names or
equal values.

Operators of the target alone whose outputs are unused are found here too. An output is unused if no operator reads it,
whole or in slices, and no compared tensor holds it. It is not known whether an operator with unused outputs, in the
place of golden operators, computes what they compute.

Queries, keys and values of one product are read in slices. Cutting a tensor is a view, which most dumps do not record;
the hashes of the slices add up to the hash of the whole.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from functools import cached_property, reduce
from itertools import combinations, islice
from operator import attrgetter
from typing import AbstractSet, Hashable, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.dump.readers.names import file_name_of
from npucmp.flow.contents import contents_of, target_content_of
from npucmp.flow.execution_order import ran_again
from npucmp.localise.autograd_nodes import hands_on
from npucmp.localise.golden_rows import (
    GoldenColumns,
    GoldenRows,
    constant_of,
    golden_round_off,
    golden_side,
    grouped,
    is_expansion,
    is_mask,
    rounds_to,
)
from npucmp.localise.rule_context import SUM_ROUNDINGS
from npucmp.model import DECIDED, Finding, Side, Verdict
from npucmp.model.dtypes import lookup
from npucmp.model.finding import OTHER_NODE
from npucmp.model.moments import add_hashes
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_meaningless, is_parameter
from npucmp.model.table import rows_of_rule, rows_of_verdicts

NEXT_TENSORS = 8  # tensors without a writer: work: slices are searched among the next ones
MOST = 4  # slices of a tensor: definition: queries, keys and values; the four gates of an LSTM


def dead_ends(findings: Sequence[Finding], columns: GoldenColumns, again: AbstractSet[int]) -> Iterator[int]:
    """The places of operators of the target alone without an output that is read or compared, in merged graph order.
    `again` are the places of operators that only ran once more."""
    pairs, outputs, contents = columns.pairs, columns.outputs, contents_of(findings, side=0)
    own = {at: pair.target for at, pair in enumerate(pairs) if pair.target is not None}
    compared = own.keys() & rows_of_verdicts(findings, DECIDED)
    used = [at for at in own if at in compared or not outputs[at]]
    read, named = {contents[at] for at in used}, {file_name_of(own[at].source) for at in used}
    unread: dict[tuple[int, int], list[Finding]] = defaultdict(list)  # gradients, by gap and elements
    dead: list[tuple[int, list[Finding]]] = []
    for rows, first in zip(columns.members, columns.firsts):
        operator, gap = first.operator, bisect_right(columns.matched, first.order)
        if first.golden_op is not None or first.order in again or operator.inserted:
            continue
        wrote = [at for at in rows if outputs[at] and findings[at].has_elements and not is_meaningless(pairs[at])]
        lost = [
            findings[at]
            for at in wrote
            if not (contents[at] and contents[at] in read)
            and file_name_of(f"{operator.name}:{pairs[at].slot.partition(':')[2]}") not in named
        ]
        for finding in lost if is_gradient(operator) else ():
            unread[gap, elements_of(finding)].append(finding)
        if wrote and len(lost) == len(wrote):
            dead.append((gap, lost))
    sums = [findings[at] for at in compared if unread and is_gradient(pairs[at].operator)]
    terms = {
        key for key, parts in unread.items() if _add_up(parts, [one for one in sums if elements_of(one) == key[1]])
    }
    known, reads = {contents[at] for at in own if outputs[at]}, list[Finding]()
    for at in own if dead else ():
        is_read = bool(contents[at]) and not outputs[at] and not is_parameter(pairs[at])
        if is_read and contents[at] not in known and findings[at].measurement.moments is not None:
            known.add(contents[at])
            reads.append(findings[at])
    written = [findings[at] for at in sorted(compared) if dead and outputs[at]]  # a fused product is compared in slices
    for gap, lost in dead:
        is_term = any((gap, elements_of(finding)) in terms for finding in lost)
        if not is_term and not all(_is_read_in_slices(one, reads) or _is_read_in_slices(one, written) for one in lost):
            yield lost[0].pair.order


def elements_of(finding: Finding) -> int:
    """The number of elements of a target tensor."""
    return math.prod(finding.pair.target.shape) if finding.pair.target is not None else 0


def _side(finding: Finding) -> Side:
    """The target's moments of a row, those of an empty tensor if its values are unknown."""
    moments = finding.measurement.moments
    return moments.target if moments is not None else Side()


def _is_read_in_slices(written: Finding, reads: Sequence[Finding]) -> bool:
    """Whether tensors that later operators read are the slices of a tensor and together cover it. `reads` are the
    tensors that no operator wrote, each at its first read."""
    elements, whole = elements_of(written), _side(written)
    behind = [finding for finding in reads if finding.pair.order > written.pair.order][:NEXT_TENSORS]
    parts = [finding for finding in behind if elements_of(finding) < elements]
    return whole.squares > 0 and any(
        sum(map(elements_of, slices)) == elements
        and reduce(add_hashes, (_side(finding).hash for finding in slices)) == whole.hash
        for count in range(2, min(MOST, len(parts)) + 1)
        for slices in combinations(parts, count)
    )


def _add_up(parts: Sequence[Finding], compared: Iterable[Finding]) -> bool:
    """Whether gradients that no operator reads are the terms of a compared gradient: autograd adds up the gradients of
    a tensor that several operators read, and dumps do not record that sum."""
    types = (lookup(finding.pair.target.dtype) for finding in parts if finding.pair.target is not None)
    total, scale = (sum(map(attrgetter(name), map(_side, parts))) for name in ("total", "squares"))
    near = SUM_ROUNDINGS * max((dtype.round_off for dtype in types if dtype), default=0.0) * math.sqrt(scale)
    is_known = all(finding.measurement.moments is not None for finding in parts)
    return is_known and scale > 0 and any(abs(_side(finding).total - total) <= near for finding in compared)


LATEST_TENSORS = 16  # tensors, operators: work: a cast is compared with the latest of one size
LATEST_OUTPUTS = 32  # outputs: work: an input may be an expansion of one of the latest
SCALAR = 1  # elements: definition: a number is an argument of the operator that reads it
_BEFORE_FIRST = -1  # place: definition: before the first operator


class GoldenGraph:
    """The golden tensors of a comparison by content, and the contents that were compared.

    rows      the golden tensors, as rows in the order of the golden; inputs of an operator before its outputs
    unreadable  the rows of which a side is unreadable
    decided   whether a row was compared, or a target tensor in its place proves it
    proven    the rows that a target tensor in their place proves
    contents  the number of the content of a row; `holders` the rows that hold it
    """

    def __init__(self, golden: GoldenRows) -> None:
        self.findings, self.columns, self._golden = golden.findings, golden.columns, golden.golden
        self.pairs, self.operators, self.outputs = self.columns.pairs, self.columns.operators, self.columns.outputs
        self.orders, self.alone = self.columns.orders, self.columns.alone
        self._again = ran_again(self.findings) if len(self.columns.matched) < len(self.columns.members) else frozenset()
        rows = self.columns.sequence[self._golden[self.columns.sequence]]
        self.rows: list[int] = rows.tolist()
        values = np.array(contents_of(self.findings), np.uint64)
        values = np.where(values == 0, np.arange(len(values), dtype=np.uint64), values)  # 0: it equals no other
        if any(self.columns.sources) or self.alone[rows].any():
            values = self._linked(values.tolist())
        self.holders, self._contents = grouped(rows, values)
        self.contents: list[int] = self._contents.tolist()
        self._special = self.columns.casts | bool(self._again)  # rows of which other facts than the content decide
        self._special[[*rows_of_rule(self.findings, OTHER_NODE)]] = True
        self.decided, self.unreadable, self.proven = golden.decided.copy(), {*golden.unreadable}, set[int]()
        gradients = (self.orders[at] for at in self.rows if self.columns.gradients[at])
        self._backward_from = next(gradients, math.inf)
        self.prove(set())

    def _linked(self, values: Sequence[int]) -> npt.NDArray[np.uint64]:
        """The first row with the content of each row: that of the output that its name refers to, or an equal one."""
        first = [0] * len(values)
        known: dict[int, int] = {}
        named: dict[str, int] = {}
        latest: deque[int] = deque(maxlen=LATEST_OUTPUTS)
        for at in self.rows:
            found = None if self.outputs[at] else named.get(self.columns.sources[at])
            if found is None:
                found = known.get(values[at])
            if found is None and self.columns.missing[at] and not self.outputs[at]:
                wide = self.findings[at]
                found = next((first[row] for row in reversed(latest) if is_expansion(self.findings[row], wide)), None)
            first[at] = known.setdefault(values[at], at) if found is None else found
            if self.outputs[at]:
                latest.append(at)
                named[file_name_of(f"{self.operators[at].name}:{self.pairs[at].slot.partition(':')[2]}")] = first[at]
        self._link_slices(first)
        return np.array(first, np.uint64)

    def _link_slices(self, first: list[int]) -> None:
        """Give the slices of a tensor its first row: neighbours that no operator wrote, whose hashes add up to its
        own, as those of both halves of heads that a rotary embedding exchanges do."""
        wholes: dict[tuple[int, int], int] = {}  # by hash and elements
        unwritten: dict[int, Side] = {}
        for at in self.rows:
            side = golden_side(self.findings[at])
            if side is not None and side.hash and side.minimum < side.maximum:
                if self.outputs[at]:
                    wholes[side.hash, self.columns.elements[at] or 0] = at
                elif first[at] == at and self.columns.missing[at] and not is_parameter(self.pairs[at]):
                    unwritten[at] = side
        todo = dict.fromkeys(unwritten)
        while todo:
            at, *others = islice(todo, NEXT_TENSORS)
            parts = ((at, *more) for count in range(1, MOST) for more in combinations(others, count))
            found: tuple[int, ...] = (at,)
            for own in parts:
                hash_of_all = reduce(add_hashes, (unwritten[part].hash for part in own))
                whole = wholes.get((hash_of_all, sum(self.columns.elements[part] or 0 for part in own)))
                if whole is not None and self.orders[whole] < self.orders[at]:
                    found = own
                    for part in own:
                        first[part] = first[whole]
                    break
            for part in found:
                del todo[part]

    def members(self, at: int) -> list[int]:
        """All rows of the operator of a row."""
        return [row for row in self.columns.members[self.columns.numbers[at]] if self._golden[row]]

    def ends(self, at: int, writes: bool) -> list[int]:
        """The rows that write, or read, the content of a row."""
        return [row for row in self.holders[self.contents[at]] if self.outputs[row] is writes]

    def prove(self, rows: set[int]) -> None:
        """Add rows that a target tensor in their place proves."""
        self.proven |= rows
        self.decided[[*rows]] = True
        compared = [at for at in self.rows if self.decided[at]]
        readers = [at for at in compared if not self.outputs[at]]
        self._compared = np.zeros(len(self.holders), bool)  # by content
        self._compared[self._contents[compared]] = True
        self._last_readers = np.full(len(self.holders), _BEFORE_FIRST)  # orders of their operators, by content
        self._last_readers[self._contents[readers]] = self.orders[readers]

    def first_recordings(self, rows: Sequence[int]) -> list[int]:
        """The rows, of those given, that do not hold the content of a compared row."""
        is_asked = (self._compared[self._contents[rows]] | self._special[rows]).tolist()
        return [at for at, asked in zip(rows, is_asked) if not (asked and self._is_again(at))]

    def _is_again(self, at: int) -> bool:
        if at in self.unreadable or self.columns.lost[at]:
            return False
        if self.pairs[at].order in self._again or at in self.proven:
            return True
        if not self.outputs[at]:
            return self.is_compared(at)
        op = op_type_of(self.operators[at])
        if op.has("hands on", "copies", "views") and not op.has("picks", "collective"):
            return self.is_compared(at) or self._is_cast(at)
        # other outputs hold the same values by chance, or in another order
        is_passed_on = self._last_readers[self.contents[at]] > self.orders[at] or self._is_of_module(at)
        if not is_passed_on and not self._is_own_gradient(at):
            return False
        return not self.has_dead_end([at])

    def _is_of_module(self, at: int) -> bool:
        """Whether a module whose output was compared ends with the operator of a row: it wrote the same values, which
        are not all equal, behind it. Or the row is of a module, and the output of an operator in it was compared."""
        operator, same = self.operators[at], (row for row in self.ends(at, True) if self.decided[row])
        return constant_of(self.findings[at]) is None and any(
            (self.operators[row].path and self.orders[row] > self.orders[at])
            or (operator.path and self.operators[row].scope == operator.name)
            for row in same
        )

    def is_known_constant(self, at: int) -> bool:
        """Whether a tensor that no dumped operator wrote is a constant that was compared elsewhere, a scalar or a mask;
        of these only the effect counts."""
        constant = constant_of(self.findings[at])
        known = self.columns.elements[at] == SCALAR or (constant is not None and constant in self._constants)
        return (known or is_mask(self.findings[at])) and not self.ends(at, True)

    @cached_property
    def _constants(self) -> set[Optional[Hashable]]:
        """The constants of compared rows, by their keys."""
        return {constant_of(self.findings[at]) for at in self.rows if self.findings[at].verdict is Verdict.MATCH}

    def _is_own_gradient(self, at: int) -> bool:
        """Whether a backward operator wrote a tensor that it read: dumps record the gradient of a view in place of that
        of a product."""
        if self.operators[at].phase != "backward":
            return False
        read = [row for row in self.members(at) if not self.outputs[row] and self.decided[row]]
        if any(self.contents[row] == self.contents[at] for row in read):
            return True
        if self.findings[at].rule != OTHER_NODE:
            return False
        return any(hands_on(self.findings[row], self.findings[at], 1) for row in read) or self._passes_on_alike(at)

    def _passes_on_alike(self, at: int) -> bool:
        """Whether the golden wrote the gradient of an inner node of a call, which no operator reads, and the gradient
        that the call passed on was compared where the next operator reads it."""
        passed, place = target_content_of(self.findings[at]), self.pairs[at].order
        return bool(passed) and not self.ends(at, False) and self._arrived.get(passed, _BEFORE_FIRST) > place

    @cached_property
    def _arrived(self) -> dict[int, int]:
        """The place of the last compared reader of each gradient of the target, by content."""
        read = (at for at in self.rows if self.decided[at] and not self.outputs[at] and self.is_backward(at))
        return {target_content_of(self.findings[at]): self.pairs[at].order for at in read}

    def _is_cast(self, at: int) -> bool:
        """Whether a row is a compared tensor in another type: same number of elements, extremes and norm equal within
        rounding."""
        own = golden_side(self.findings[at])
        if own is None or not self.columns.casts[at]:
            return False
        rows = self._of_size[self.columns.elements[at]]
        end = bisect_left(rows, (self.orders[at],))
        return any(
            (wide := golden_side(self.findings[row])) is not None
            and rounds_to(wide, own, max(golden_round_off(self.pairs[row]), golden_round_off(self.pairs[at])))
            for _, row in rows[max(0, end - LATEST_TENSORS) : end]
        )

    @cached_property
    def _of_size(self) -> Mapping[Optional[int], list[tuple[int, ...]]]:
        """The compared rows with values behind the order of their operator, by number of elements."""
        found: dict[Optional[int], list[tuple[int, ...]]] = defaultdict(list)
        for at in self.rows:
            if self.findings[at].verdict in DECIDED and golden_side(self.findings[at]) is not None:
                found[self.columns.elements[at]].append((self.orders[at], at))
        return found

    def is_compared(self, at: int) -> bool:
        """Whether the content of a row was compared, in this row or in another."""
        return bool(self._compared[self.contents[at]])

    def gap_number(self, at: int) -> int:
        """The gap between matched operators that contains the operator of a row without a partner."""
        return bisect_right(self.columns.matched, self.pairs[at].order)

    def is_backward(self, at: int) -> bool:
        """Whether the operator of a row belongs to a backward pass. If a dump records no phases, the backward pass
        begins with the first operator whose type is a gradient."""
        in_order = not self.operators[at].phase and self.orders[at] >= self._backward_from
        return self.columns.gradients[at] or bool(in_order)

    def is_of_gradient(self, at: int) -> bool:
        """Whether a row belongs to a backward operator, or to an operator that forwards gradients, as a collective
        does."""
        return any(map(self.is_backward, (at, *(row for read in self.members(at) for row in self.ends(read, True)))))

    def before(self, at: int) -> Iterator[list[int]]:
        """Yield the rows of each operator without a partner that precedes a row's operator in the same gap, the nearest
        first; at most LATEST_TENSORS places back."""
        gap, first = self.gap_number(at), self.pairs[at].order - LATEST_TENSORS
        for rows in reversed(self.columns.members[: self.columns.numbers[at]]):
            if self.pairs[rows[0]].order <= max(first, self.columns.matched[gap - 1] if gap else _BEFORE_FIRST):
                return
            if self._golden[rows].any():
                yield self.members(rows[0])

    def has_dead_end(self, rows: Iterable[int]) -> bool:
        """Whether an operator of the target alone, in the place of those of these rows that the golden has alone, wrote
        tensors that no operator reads and no compared tensor holds: its effect is unknown."""
        return any(self.gap_number(at) in self._astray for at in rows if self.alone[at])

    @cached_property
    def _astray(self) -> set[int]:
        """The gaps with dead ends."""
        matched = self.columns.matched
        return {bisect_right(matched, place) for place in dead_ends(self.findings, self.columns, self._again)}

    def is_of_parameter(self, at: int) -> bool:
        """Whether a row is the gradient of a parameter, according to the forward of its operator."""
        slot, forward = self.pairs[at].slot, map(self.pairs.__getitem__, self.calls["forward", self.operators[at].call])
        own = (pair for pair in forward if pair.slot == slot.replace("output:", "input:"))
        return slot.startswith("grad:") or any(map(is_parameter, own))

    @cached_property
    def calls(self) -> Mapping[tuple[str, str], list[int]]:
        """The rows of each call, by phase and call."""
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for at in self.rows:
            if self.operators[at].call:
                found[self.operators[at].phase, self.operators[at].call].append(at)
        return found
