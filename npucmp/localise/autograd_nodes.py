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
from collections import Counter, defaultdict
from itertools import groupby
from typing import Collection, Mapping, Optional, Sequence

from npucmp.flow.contents import content_of, target_content_of
from npucmp.judge.precision import round_off_of
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.golden_rows import rounds_to
from npucmp.localise.rule_context import proven_size
from npucmp.localise.rules.round_off import UNRELATED_ERROR
from npucmp.model import DIFFERS, Finding, Operator, Side, Verdict
from npucmp.model.finding import OTHER_NODE
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_argument, is_output

_CONTENTS = target_content_of, content_of
_DIFFERENT = Verdict.DIVERGED, Verdict.SHAPE


def undecided_nodes(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings in the same order; differing outputs of such operators become UNKNOWN."""
    found = [*findings]
    alike: set[tuple[str, str]] = set()  # calls on both sides whose forwards have the same shapes
    forwards: tuple[dict[str, Operator], ...] = ({}, {})  # of each side, by call
    kinds: set[str] = set()  # kinds of the calls whose shapes prove two nodes
    backwards: list[tuple[bool, bool, list[Finding]]] = []  # proven by shapes, forward alike, rows; of each call
    returned: list[Finding] = []  # outputs of casts that returned their input on one side alone
    for _, group in groupby(findings, key=lambda finding: finding.pair.order):
        rows = [*group]
        pair = rows[0].pair
        if pair.target_op is None or pair.golden_op is None or pair.operator.path:
            continue
        call = pair.target_op.call, pair.golden_op.call
        if pair.operator.phase == "forward":
            alike |= set() if any(row.verdict is Verdict.SHAPE for row in rows) else {call}
            forwards[0][call[0]], forwards[1][call[1]] = pair.target_op, pair.golden_op
        elif pair.operator.phase != "backward":
            continue
        elif _returns_its_input(pair.target_op, forwards[0]) != _returns_its_input(pair.golden_op, forwards[1]):
            returned += [row for row in rows if is_output(row.pair)]
        elif any(row.verdict in DIFFERS and is_output(row.pair) for row in rows):
            is_proven = call in alike and any(row.verdict is Verdict.SHAPE and is_output(row.pair) for row in rows)
            is_proven |= _is_beyond(pair.target_op, forwards[0]) != _is_beyond(pair.golden_op, forwards[1])
            kinds |= {pair.operator.kind} if is_proven else set()
            backwards.append((is_proven, call in alike, rows))
    if not returned and not any(is_proven or _may_be_two(rows) for is_proven, _, rows in backwards):
        return found
    readers = _Readers(findings)
    places = {id(row): at for at, row in enumerate(findings)}
    for row in returned:
        found[places[id(row)]] = _as_undecided(row, (*DIFFERS, Verdict.UNKNOWN))
    for is_proven, is_alike, rows in backwards:
        outputs = [row for row in rows if is_output(row.pair)]
        is_of_kind = is_alike and rows[0].pair.operator.kind in kinds and _are_unlike(outputs, readers)
        if is_proven or is_of_kind or readers.prove_two(rows) or _is_handed_on(rows, readers):
            read = forwards[1].get(outputs[0].pair.operator.call) if is_alike and not is_proven else None
            for row in outputs:
                if read is None or not _is_of_parameter(row, outputs, read):
                    found[places[id(row)]] = _as_undecided(row)
    return found


def _is_of_parameter(row: Finding, outputs: Sequence[Finding], forward: Operator) -> bool:
    """Whether an output of both nodes is the gradient of one vector that their forward read, a parameter: both runs
    have equal outputs in number and shape, and no other tensor has the shape of this one."""
    shapes = [tensor.shape for output in outputs if (tensor := output.pair.golden) is not None]
    own = row.pair.golden
    if own is None or len(own.shape) != 1 or shapes.count(own.shape) > 1:
        return False
    if any(output.verdict in (Verdict.SHAPE, Verdict.MISSING) for output in outputs):
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


def _is_unrelated(row: Finding) -> bool:
    return row.verdict is Verdict.DIVERGED and proven_size(row) >= UNRELATED_ERROR


def _are_unlike(outputs: Sequence[Finding], readers: _Readers) -> bool:
    """Whether outputs of one call belong to two nodes: by their shapes or their number, or because the first outputs
    are unrelated and not both runs pass them on."""
    if any(row.verdict in (Verdict.SHAPE, Verdict.MISSING) for row in outputs):
        return True
    return _is_unrelated(outputs[0]) and not readers.both_pass_on(outputs[0])


class _Readers:
    """The tensors that backward operators read, by their contents in each run."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._by_content: tuple[defaultdict[int, list[Finding]], ...] = (defaultdict(list), defaultdict(list))
        for row in findings:
            pair = row.pair
            if pair.operator.phase == "backward" and not is_output(pair) and pair.target and pair.golden:
                for readers, content in zip(self._by_content, _CONTENTS):
                    readers[content(row)].append(row)

    def of(self, output: Finding, side: int) -> list[Finding]:
        """The rows of later operators that hold an output of the target (0) or of the golden (1)."""
        content = _CONTENTS[side](output)
        rows = self._by_content[side].get(content, []) if content else []
        return [row for row in rows if row.pair.order > output.pair.order]

    def prove_two(self, rows: Sequence[Finding]) -> bool:
        """Whether an operator that reads an output of a call in one run shows that the other run recorded another
        tensor."""
        for side, content in enumerate(_CONTENTS):
            own = [content(row) for row in rows]
            alone = (row for row, known in zip(rows, own) if own.count(known) == 1 and is_output(row.pair))
            if any(row.verdict in _DIFFERENT and self._is_read_alone(row, side) for row in alone):
                return True
        return False

    def _is_read_alone(self, output: Finding, side: int) -> bool:
        """Whether a later operator reads an output on one side, and another tensor with a smaller error instead of it
        on the other."""
        size = math.inf if output.verdict is Verdict.SHAPE else proven_size(output)
        other = _CONTENTS[1 - side]
        for row in self.of(output, side):
            if other(output) and other(row) and other(output) != other(row) and row.verdict is not Verdict.SHAPE:
                return proven_size(row) * FACTOR <= size
        return False

    def both_pass_on(self, output: Finding) -> bool:
        """Whether one later operator reads the output in both runs."""
        places = ({(row.pair.order, row.pair.slot) for row in self.of(output, side)} for side in (0, 1))
        return not {*next(places)}.isdisjoint(next(places))


def _is_handed_on(rows: Sequence[Finding], readers: _Readers) -> bool:
    """Whether the incoming gradient that one side alone wrote is no gradient that the call passed on."""
    side = _side_handed_on(rows)
    if side is None:
        return False
    read, wrote = (next(row for row in rows if is_output(row.pair) is role) for role in (False, True))
    if readers.of(wrote, side):
        return False
    types = {tensor.dtype for row in (read, wrote) if (tensor := (row.pair.target, row.pair.golden)[side])}
    return bool(readers.of(wrote, 1 - side)) or len(types) > 1


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
