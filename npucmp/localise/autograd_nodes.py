"""Recognise backward calls of which the two runs recorded different autograd nodes, and mark their outputs as UNKNOWN.

A dump records the outputs of one autograd node of a call: the whole linear layer on one side, the view before its
product on the other; the softmax on one side, the cast of its result on the other. Such outputs are two tensors, and
their difference is not an error. The next recorded gradient shows whether an error exists. Five facts prove two nodes:

    shapes   autograd gives a gradient the shape of its tensor: the forward has the same shapes on both sides and an
             output of the backward does not, or one side alone wrote a gradient for which its forward read no tensor
    reader   in one run, a later backward reads the output and no other tensor of the call; in the other run it reads
             another tensor than the output, and its error is 8 times smaller: the recorded output is not the gradient
             that the call passed on
    handed   one side alone wrote its own incoming gradient, as a view, a cast or a copy does, which the operator is
             not; no later backward of this side reads it, and the output of the other side is read, or the type is
             another
    cast     one side alone read the type that it wrote: the call returned its input and has no node, and the record is
             of the operator that made the input
    kind     another call of the operator is proven by its shapes, the outputs of this call are unrelated or differ in
             number, and not both runs pass them on

If both nodes have outputs of equal shapes, the gradient of a vector that the forward read keeps its verdict: both nodes
write the same tensor, as the weight of a norm that one side fuses.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from typing import Collection, Mapping, NamedTuple, Optional, Sequence

from npucmp.flow.contents import by_equal_rows, contents_of
from npucmp.flow.operators import roles_of
from npucmp.judge.precision import round_off_of
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.golden_rows import rounds_to
from npucmp.localise.rule_context import proven_size
from npucmp.localise.rules.limits import UNRELATED_ERROR
from npucmp.model import DIFFERS, Finding, Operator, Pair, Side, Verdict
from npucmp.model.dtypes import SUM_ROUNDING
from npucmp.model.finding import OTHER_NODE
from npucmp.model.network import SearchRows, by_network
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_argument, is_output
from npucmp.model.table import rows_of_verdicts

_DIFFERENT = Verdict.DIVERGED, Verdict.SHAPE


class _BackwardCall(NamedTuple):
    """A backward call of both runs: its first row and the one behind its last, the rows of the forwards of this call,
    and the forward that the golden recorded.

    returned  the cast returned its input on one side alone; beyond: one side alone wrote a gradient too many
    """

    pair: Pair
    start: int
    end: int
    forwards: tuple[tuple[int, int], ...]
    forward: Optional[Operator]
    returned: bool
    beyond: bool


@by_network
def _backward_calls(pairs: Sequence[Pair]) -> list[_BackwardCall]:
    found = []
    forwards: tuple[dict[str, Operator], ...] = ({}, {})  # of each side, by call
    rows: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {}  # of forwards by call on both sides
    starts = [at for at, pair in enumerate(pairs) if not at or pair.order != pairs[at - 1].order]
    for start, end in zip(starts, [*starts[1:], len(pairs)]):
        pair = pairs[start]
        target, golden = pair.target_op, pair.golden_op
        if target is None or golden is None or pair.operator.path:
            continue
        call = target.call, golden.call
        if pair.operator.phase == "forward":
            rows[call] = (*rows.get(call, ()), (start, end))
            forwards[0][call[0]], forwards[1][call[1]] = target, golden
        elif pair.operator.phase == "backward":
            returned = _returns_its_input(target, forwards[0]) != _returns_its_input(golden, forwards[1])
            beyond = _is_beyond(target, forwards[0]) != _is_beyond(golden, forwards[1])
            known = forwards[1].get(pair.operator.call)
            found.append(_BackwardCall(pair, start, end, rows.get(call, ()), known, returned, beyond))
    return found


def undecided_nodes(findings: Sequence[Finding]) -> dict[int, Finding]:
    """Return the rows whose finding changes: differing outputs of such operators become UNKNOWN."""
    outputs, calls = roles_of(findings).output, _backward_calls(findings)
    shapes = {*rows_of_verdicts(findings, [Verdict.SHAPE])}
    differing = [at for at in rows_of_verdicts(findings, DIFFERS) if outputs[at]]
    found: dict[int, Finding] = {}
    kinds: set[str] = set()  # kinds of the calls whose shapes prove two nodes
    backwards: list[tuple[bool, bool, _BackwardCall]] = []  # proven by shapes, forward alike; of each call
    for call in calls:
        own = range(call.start, call.end)
        if call.returned:
            changed = ((at, _as_undecided(findings[at], (*DIFFERS, Verdict.UNKNOWN))) for at in own if outputs[at])
            found.update(changed)
        elif bisect_left(differing, call.start) < bisect_left(differing, call.end):
            is_alike = any(shapes.isdisjoint(range(*rows)) for rows in call.forwards)
            is_proven = (is_alike and any(outputs[at] for at in shapes.intersection(own))) or call.beyond
            kinds |= {call.pair.operator.kind} if is_proven else set()
            backwards.append((is_proven, is_alike, call))
    may_be_two = (is_proven or _may_be_two(findings[call.start : call.end]) for is_proven, _, call in backwards)
    if not found and not any(may_be_two):
        return found
    readers = _Readers(findings)
    for is_proven, is_alike, call in backwards:
        rows = range(call.start, call.end)
        wrote = [at for at in rows if outputs[at]]
        is_of_kind = is_alike and call.pair.operator.kind in kinds and readers.are_unlike(wrote)
        if is_proven or is_of_kind or readers.prove_two(rows) or readers.are_handed_on(rows):
            read = call.forward if is_alike and not is_proven else None
            written = [findings[at] for at in wrote]
            for at, row in zip(wrote, written):
                if read is None or not _is_of_parameter(row, written, read):
                    found[at] = _as_undecided(row)
    return found


def _is_of_parameter(row: Finding, outputs: Sequence[Finding], forward: Operator) -> bool:
    """Whether an output of both nodes is the gradient of one vector that their forward read, a parameter: both runs
    have equal outputs in number and shape, and no other tensor has the shape of this one."""
    shapes = [tensor.shape for output in outputs if (tensor := output.pair.golden) is not None]
    own = row.pair.golden
    is_other = any(output.verdict in (Verdict.SHAPE, Verdict.MISSING) for output in outputs)
    if own is None or len(own.shape) != 1 or shapes.count(own.shape) > 1 or is_other:
        return False
    return [tensor.shape for tensor in forward.tensors if not tensor.is_output].count(own.shape) == 1


def _returns_its_input(backward: Operator, forwards: Mapping[str, Operator]) -> bool:
    """Whether the forward of a cast read the type that it wrote."""
    forward = forwards.get(backward.call)
    if forward is None or not op_type_of(forward).has("hands on") or op_type_of(forward).has("copies"):
        return False
    types = [{tensor.dtype for tensor in forward.tensors if tensor.is_output is role} for role in (False, True)]
    return len(types[0]) == 1 and types[0] == types[1]


def _is_beyond(backward: Operator, forwards: Mapping[str, Operator]) -> bool:
    """Whether a backward wrote a gradient, or one more of a shape, for which its forward read no tensor."""
    forward = forwards.get(backward.call)
    read = Counter(one.shape for one in forward.tensors if not one.is_output) if forward is not None else Counter()
    return bool(read and Counter(one.shape for one in backward.tensors if one.is_output) - read)


def _may_be_two(rows: Sequence[Finding]) -> bool:
    """Whether an output of a backward call has another shape, an error much larger than those of the inputs, or the
    incoming gradient on one side alone."""
    read = max((proven_size(row) for row in rows if not is_output(row.pair)), default=0.0)
    outputs = [row for row in rows if is_output(row.pair)]
    if any(
        row.verdict is Verdict.SHAPE or proven_size(row) >= FACTOR * read for row in outputs if row.verdict in DIFFERS
    ):
        return True
    return _side_handed_on(rows) is not None


@by_network
def _rows_read_backward(pairs: Sequence[Pair]) -> list[int]:
    return [at for at, pair in enumerate(pairs)
            if pair.operator.phase == "backward" and not is_output(pair) and pair.target and pair.golden]  # fmt: skip


class _Readers:
    """The tensors that backward operators read, by their contents in each run."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings, self._roles = findings, roles_of(findings)
        self._contents = contents_of(findings, 0), contents_of(findings, 1)
        self._different = frozenset(rows_of_verdicts(findings, _DIFFERENT))
        self._readers = by_equal_rows(findings, _Readers, self._rows_with_content)

    def _rows_with_content(self) -> tuple[list[list[int]], ...]:
        """The rows of each side that backward operators read and that have the content of a row, by row."""
        read = _rows_read_backward(self._findings)
        found = []
        for contents in self._contents:
            readers: dict[int, list[int]] = {content: [] for content in contents}
            for at in read:
                readers[contents[at]].append(at)
            found.append([readers[content] if content else [] for content in contents])
        return tuple(found)

    def of(self, output: int, side: int) -> list[int]:
        """The rows of later operators that hold the output in a row of the target (0) or of the golden (1)."""
        starts = self._roles.starts
        end = starts[bisect_right(starts, output)]
        return [at for at in self._readers[side][output] if at >= end]

    def are_unlike(self, outputs: Sequence[int]) -> bool:
        """Whether outputs of one call belong to two nodes: by their shapes or their number, or because the first
        outputs are unrelated and not both runs pass them on."""
        if any(self._findings[at].verdict in (Verdict.SHAPE, Verdict.MISSING) for at in outputs):
            return True
        first = self._findings[outputs[0]]
        is_unrelated = first.verdict is Verdict.DIVERGED and proven_size(first) >= UNRELATED_ERROR
        return is_unrelated and {*self.of(outputs[0], 0)}.isdisjoint(self.of(outputs[0], 1))

    def prove_two(self, rows: Sequence[int]) -> bool:
        """Whether an operator that reads an output of a call in one run shows that the other run recorded another
        tensor."""
        for side, contents in enumerate(self._contents):
            own = [contents[at] for at in rows]
            different = (at for at in self._different.intersection(rows) if self._roles.output[at])
            if any(own.count(contents[at]) == 1 and self._is_read_alone(at, side) for at in different):
                return True
        return False

    def _is_read_alone(self, output: int, side: int) -> bool:
        """Whether a later operator reads an output on one side, and another tensor with a smaller error instead of it
        on the other."""
        other = self._contents[1 - side]
        for at in self.of(output, side):
            if other[output] and other[at] and other[output] != other[at]:
                wrote, read = self._findings[output], self._findings[at]
                size = math.inf if wrote.verdict is Verdict.SHAPE else proven_size(wrote)
                if read.verdict is not Verdict.SHAPE:
                    return proven_size(read) * FACTOR <= size
        return False

    def _are_near(self, read: int, wrote: int) -> bool:
        """Whether the recorded extremes of an output may be those of an input, rounded to a type, on one side; also if
        values of any were measured."""
        if not isinstance(self._findings, SearchRows) or len(self._findings.columns.moments) or read < 0:
            return True
        unit = round_off_of(self._findings.network.pairs[wrote]) + SUM_ROUNDING
        figures = self._findings.columns.rows["figures"]
        before, after = figures[read, :, :2].tolist(), figures[wrote, :, :2].tolist()
        return any(
            all(abs(a - b) <= unit * max(abs(a), abs(b)) for a, b in zip(*extremes)) for extremes in zip(before, after)
        )

    def are_handed_on(self, rows: Sequence[int]) -> bool:
        """Whether the incoming gradient that one side alone wrote is no gradient that the call passed on."""
        read, wrote = (next((at for at in rows if self._roles.output[at] is role), -1) for role in (False, True))
        if wrote not in self._different or not self._are_near(read, wrote):
            return False
        side = _side_handed_on([self._findings[at] for at in rows])
        if side is None:
            return False
        if self.of(wrote, side):
            return False
        pairs = self._findings[read].pair, self._findings[wrote].pair
        types = {tensor.dtype for pair in pairs if (tensor := (pair.target, pair.golden)[side])}
        return bool(self.of(wrote, 1 - side)) or len(types) > 1


def _side_handed_on(rows: Sequence[Finding]) -> Optional[int]:
    """The side whose first output holds the figures of its only incoming gradient, if the other side's does not."""
    read = [row for row in rows if not is_output(row.pair) and not is_argument(row.pair)]
    wrote = next(row for row in rows if is_output(row.pair))
    op = op_type_of(wrote.pair.operator)
    if (
        len(read) != 1
        or wrote.verdict is not Verdict.DIVERGED
        or op.has("saves nothing", "hands on", "views", "copies")
    ):
        return None
    handed = [hands_on(read[0], wrote, side) for side in (0, 1)]
    return handed.index(True) if handed[0] != handed[1] else None


def hands_on(read: Finding, wrote: Finding, side: int) -> bool:
    """Whether the figures of an output are those of the incoming gradient, rounded to the type of the output."""
    before, after = _figures(read, side), _figures(wrote, side)
    return before is not None and after is not None and rounds_to(before, after, round_off_of(wrote.pair))


def _figures(row: Finding, side: int) -> Optional[Side]:
    """The figures of one side, from values or as recorded."""
    if row.measurement.moments is not None:
        return (row.measurement.moments.target, row.measurement.moments.golden)[side]
    known = row.measurement.recorded(side)
    if known is None or known.min is None or known.max is None or known.norm is None:
        return None
    return Side(minimum=known.min, maximum=known.max, squares=known.norm**2)


def _as_undecided(finding: Finding, verdicts: Collection[Verdict] = DIFFERS) -> Finding:
    if finding.verdict not in verdicts:
        return finding
    because = f"an output of {OTHER_NODE} of the same backward ({finding.because})"
    return finding._replace(verdict=Verdict.UNKNOWN, because=because, error=None, rule=OTHER_NODE)
