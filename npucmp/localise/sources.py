"""The known facts about the tensors of a search: their producers, whether their error descends from a root, and outputs
that were written but not compared because their files are missing or broken, or the user excluded them.

An input without a compared producer may be an output that was not compared. Its consumer is not accused, because the
error may exist before it. The golden side identifies the output: the number of elements, the type, and the extremes if
recorded; the latest matching output is taken.
"""

from __future__ import annotations

import math
from itertools import count, takewhile
from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.readers.names import file_name_of
from npucmp.flow.contents import content_of
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import round_off_of
from npucmp.judge.products import READER_DISTANCE
from npucmp.localise.rule_context import error_size
from npucmp.localise.seen_errors import agrees, learn_left
from npucmp.localise.sweep import Sweep, TensorSource
from npucmp.model import Finding, Operator, Pair, TensorRef, Verdict
from npucmp.model.finding import OTHER_NODE
from npucmp.model.network import by_network
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_meaningless, is_output, is_parameter, kind_of


@by_network
def meaningless_rows(pairs: Sequence[Pair]) -> frozenset[int]:
    return frozenset(row for row, pair in enumerate(pairs) if is_meaningless(pair))


def source_of(sweep: Sweep, finding: Finding) -> Optional[TensorSource]:
    """The source of a tensor; None if no earlier compared tensor holds it."""
    at = finding.row - sweep.first_row
    if not 0 <= at < len(sweep.edges.sources):
        return _of_another_rank(sweep, finding)
    row = sweep.edges.sources[at]
    if sweep.instead:
        start, other = sweep.instead.get(sweep.edges.contents[at], (at, None))
        if other is not None and start <= at and (row < start or not is_output(sweep.findings[row].pair)):
            return other
    if row < 0:  # no earlier row holds it; after its first read it is its own source
        is_known = at in sweep.rows_read or finding.row in sweep.tainted
        known = source_at(sweep, finding.row) if is_known else sweep.sources.get(finding.row)
        return known if sweep.edges.contents[at] else None
    return source_at(sweep, row + sweep.first_row)


def _of_another_rank(sweep: Sweep, finding: Finding) -> Optional[TensorSource]:
    """The latest row so far that holds a tensor of another rank."""
    content = content_of(finding)
    if content in sweep.instead:
        return sweep.instead[content][1]
    rows = [row for row in sweep.edges.rows_of(content) if row <= sweep.reached]
    return source_at(sweep, rows[-1] + sweep.first_row) if rows else None


def read_with(sweep: Sweep, output: Finding) -> list[Finding]:
    """The inputs of the operator that wrote a tensor of this step and rank."""
    at, order = output.row - sweep.first_row, output.pair.order
    rows = takewhile(lambda row: sweep.findings[row].pair.order == order, range(at, -1, -1))
    return [sweep.findings[row] for row in rows if not is_output(sweep.findings[row].pair)]


def latest_of_size(sweep: Sweep, finding: Finding, row: int) -> Optional[Finding]:
    """The latest tensor before a row that agrees and has as many elements as a tensor that is read there."""
    golden, order = finding.pair.golden, finding.pair.order
    if golden is None:
        return None
    elements = math.prod(golden.shape)
    for at in range(row - sweep.first_row - 1, -1, -1):
        pair = sweep.findings[at].pair
        if pair.order == order or pair.golden is None or is_parameter(pair):
            continue
        if pair.golden.shape and kind_of(pair.golden.dtype) != kind_of(golden.dtype):
            continue
        if math.prod(pair.golden.shape) == elements and agrees(sweep.now(sweep.findings[at])):
            return sweep.findings[at]
    return None


def is_marked(sweep: Sweep, finding: Finding) -> bool:
    """Whether the error of a tensor's source descends from a root, or its content is undefined."""
    source = source_of(sweep, finding)
    return source is not None and (source.tainted or source.meaningless)


def target_source_of(sweep: Sweep, finding: Finding) -> Optional[TensorSource]:
    """The output with the same target tensor; None without one."""
    row = sweep.edges.of_target(finding.row - sweep.first_row)
    return None if row < 0 else source_at(sweep, row + sweep.first_row)


def overwriting_operator(sweep: Sweep, finding: Finding) -> Optional[Pair]:
    """The operator that wrote a tensor in the golden before it was read, and whose row comes later here because the
    target runs its partner later; None without one, or if a dump records no order."""
    reader = finding.pair.golden_op if sweep.ordered else None
    rows = sweep.edges.rows_of(content_of(finding)) if reader is not None else ()
    for pair in (sweep.findings[row].pair for row in rows):
        behind = pair.order > finding.pair.order and is_output(pair) and pair.target_op is not None
        if behind and reader is not None and pair.golden_op is not None and pair.golden_op.order < reader.order:
            return pair
    return None


def reordered_operator(sweep: Sweep, finding: Finding) -> Optional[Pair]:
    """The first operator that the golden runs after the reader of a tensor, and the target before it; None if a
    dump records no order."""
    reader = finding.pair.golden_op if sweep.ordered else None
    if reader is None or finding.pair.target_op is None:
        return None
    before = (sweep.findings[row].pair for row in range(finding.row - sweep.first_row))
    both = ((pair, pair.golden_op) for pair in before if pair.target_op is not None)
    return next((pair for pair, golden in both if golden is not None and golden.order > reader.order), None)


def source_at(sweep: Sweep, row: int) -> TensorSource:
    """The source of a row."""
    found = sweep.sources.get(row)
    if found is None:
        at = row - sweep.first_row
        found = sweep.sources[row] = TensorSource(sweep.findings[at], row in sweep.tainted, at in sweep.meaningless)
    return found


def learn_source(sweep: Sweep, source: TensorSource) -> None:
    """Record the result of the search for a row of this step and rank."""
    sweep.sources[source.finding.row] = source
    (sweep.tainted.add if source.tainted else sweep.tainted.discard)(source.finding.row)
    sweep.any_meaningless |= source.meaningless
    sweep.reached = max(sweep.reached, source.finding.row - sweep.first_row)
    if source.is_residue:
        learn_left(sweep, source.finding)


def replace_source(sweep: Sweep, source: TensorSource, content: int, start: int) -> None:
    """Let all consumers of a content from row `start` on read this source, until an operator writes the content
    again."""
    if content:
        sweep.instead[content] = start - sweep.first_row, source


def is_held(sweep: Sweep, finding: Finding, start: int) -> bool:
    """Whether this rank held the golden tensor of another rank before row `start`."""
    content = content_of(finding)
    rows = sweep.edges.rows_of(content)
    return content in sweep.instead or (bool(rows) and rows[0] < start - sweep.first_row)


NOT_DUMPED = "was not dumped or cannot be compared"
UNREADABLE = "could not be compared"
LEFT_OUT = "was excluded by --include or --exclude"


class Writer(NamedTuple):
    """The name of an output that was not compared, and the reason."""

    name: str
    why: str = NOT_DUMPED

    @property
    def is_dumped(self) -> bool:
        """Whether the output was dumped."""
        return self.why != NOT_DUMPED


def remember_uncompared(sweep: Sweep, node: OperatorFindings) -> None:
    """Add the outputs of an operator that was visited."""
    for finding in node.outputs:
        if finding.error is None and finding.verdict is Verdict.UNREADABLE:
            add_uncompared(sweep, finding.pair)
    if any(finding.rule == OTHER_NODE for finding in node.outputs):
        sweep.other_nodes.append(node.pair)


def add_uncompared(sweep: Sweep, pair: Pair) -> None:
    """Add a tensor that was not compared, if it is an output."""
    if not is_output(pair) or is_meaningless(pair):
        return
    for side, operator in (("target", pair.target_op), ("golden", pair.golden_op)):
        if operator is not None:
            sweep.named[side, file_name_of(f"{operator.name}:{pair.slot.partition(':')[2]}")] = pair
    if pair.golden is not None and (pair.golden.shape or not pair.golden.problem):  # otherwise its shape is unknown
        sweep.uncompared.setdefault(_kind(pair.golden), []).append(pair)


def unmeasured_writer(finding: Finding) -> Writer:
    """An output that has a row without an error."""
    why = NOT_DUMPED if finding.verdict is Verdict.MISSING else UNREADABLE
    return Writer(f"{finding.pair.operator.name} {finding.pair.slot}", why)


def uncompared_writer(sweep: Sweep, finding: Finding) -> Optional[Writer]:
    """The output that most likely is the input; None if no earlier output matches."""
    pair = _uncompared_output(sweep, finding)
    if pair is None:
        return None
    why = LEFT_OUT if pair.order in sweep.left_out else UNREADABLE
    return Writer(f"{pair.operator.name} {pair.slot}", why)


def _uncompared_output(sweep: Sweep, finding: Finding) -> Optional[Pair]:
    golden = finding.measurement.tensor(1)
    for side, tensor in (("target", finding.pair.target), ("golden", golden)):
        if tensor is not None and tensor.source:
            return sweep.named.get((side, file_name_of(tensor.source)))
    if golden is None or is_parameter(finding.pair):
        return None
    fits = [
        pair
        for pair in sweep.uncompared.get(_kind(golden), ())
        if pair.order < finding.pair.order and pair.golden is not None and _may_be(pair.golden, golden)
    ]
    return max(fits, key=lambda pair: pair.order, default=None)


def excluded_forward(left_out: Mapping[int, Pair], node: OperatorFindings) -> str:
    """The name of a gradient's forward, if the user excluded it; "" otherwise."""
    calls = (pair.operator for pair in left_out.values())
    return next((one.name for one in calls if one.phase == "forward" and one.call == node.operator.call), "")


def learn_unrecorded(sweep: Sweep, node: OperatorFindings, error: float) -> None:
    """Add an operator that was visited and of which only the inputs were recorded, with the error that it read."""
    sweep.unclaimed = [*sweep.unclaimed, node.operator.name][-READER_DISTANCE:]
    sweep.unrecorded[node.operator.name] = node, error


def unrecorded_writers(sweep: Sweep, finding: Finding) -> list[tuple[OperatorFindings, float]]:
    """The operators without recorded outputs that may have written an input, with the error that each read. A graph
    names the producer; otherwise these are the operators just before in the same pass, as for queries, keys and values.
    A dump without an order mixes both passes, and a backward operator reads the inputs of its forward, which would
    explain its own error."""
    sides = [one.source.rpartition(":")[0] for one in (finding.pair.target, finding.pair.golden) if one]
    named = [name for name in sides if name][:1]
    seen = [sweep.unrecorded[name] for name in named or sweep.unclaimed if name in sweep.unrecorded]
    backward = is_gradient(finding.pair.operator)
    return [(node, error) for node, error in seen if named or node.is_gradient == backward]


def claim(sweep: Sweep, finding: Finding) -> None:
    """Assume that the latest of these operators wrote an input, so that it wrote no other. An operator that read an
    error does not write equal bits."""
    claimed = sweep.unclaimed[-1] if sweep.unclaimed else ""
    if claimed and round_off_of(finding.pair) and (error_size(finding) or not sweep.unrecorded[claimed][1]):
        sweep.unclaimed.pop()


@by_network
def unpaired_operators(pairs: Sequence[Pair]) -> dict[int, Pair]:
    """The operators of one run that have no partner in the other, by their places in the order of both."""
    return {one.order: one for one in pairs if one.target_op is None or one.golden_op is None}


def unpaired_writers(unpaired: dict[int, Pair], read: Finding, start: int, is_origin: bool) -> list[Pair]:
    """The operators that may have written an input: those behind `start`; if there are none, the latest before it,
    unless the input is known to come from `start`. If none of them writes such a tensor, return the operators
    around the latest that reads as many elements: an operator that overwrites a tensor in place need not be
    recorded."""
    end = read.pair.order
    between = [unpaired[place] for place in range(start + 1, end) if place in unpaired]
    writers = [one for one in between if _may_write(one, read)]
    if between or is_origin:
        return writers or between
    before = [place for place in unpaired if place < end]
    writers = [unpaired[place] for place in before if _may_write(unpaired[place], read)]
    if writers or not before:
        return writers[::-1]
    last = max((place for place in before if _may_read(unpaired[place], read)), default=-1)
    return [unpaired[place] for place in takewhile(unpaired.__contains__, count(last)) if place < end]


def unpaired_before(unpaired: dict[int, Pair], reader: Pair) -> list[Pair]:
    """The operators of one run that compute floats before a reader in the same pass, the latest first; without one
    those that compute whole numbers or masks, by which code that was not dumped may pick elements."""
    before = (pair for order, pair in unpaired.items() if order < reader.order)
    passes = [pair for pair in before if is_gradient(pair.operator) == is_gradient(reader.operator)][::-1]
    floats = [pair for pair in passes if _computes(pair.operator, "f")]
    return floats or [pair for pair in passes if _computes(pair.operator, "biu")]


def unpaired_writer(unpaired: dict[int, Pair], read: Finding) -> Optional[Pair]:
    """The latest operator of one run before a reader whose output has the recorded figures of an input in that run;
    None without one."""
    for order, pair in reversed(unpaired.items()):
        is_target = pair.target_op is not None
        tensor, operator = (read.pair.target, read.pair.golden)[not is_target], pair.operator
        if order >= read.pair.order or tensor is None or tensor.statistics is None:
            continue
        outputs = (one for one in operator.tensors if one.is_output and one.shape == tensor.shape)
        if any(one.dtype == tensor.dtype and repr(one.statistics) == repr(tensor.statistics) for one in outputs):
            return pair
    return None


def reordering_writers(unpaired: dict[int, Pair], read: Finding) -> list[Pair]:
    """The latest operators of one run whose output has the statistics of an input and whose elements they may have
    moved: of the target, of the golden, or of both if they are of two types; else none."""
    writers: dict[bool, Pair] = {}
    for order, pair in unpaired.items():
        tensor, operator = read.pair.golden, pair.golden_op
        if pair.target_op is not None:
            tensor, operator = read.pair.target, pair.target_op
        if order >= read.pair.order or tensor is None or tensor.statistics is None or operator is None:
            continue
        kind, size = op_type_of(operator), math.prod(tensor.shape)
        if kind.has("hands on") or (kind.has("views") and not kind.has("moves axes")):
            continue
        outputs = (one for one in operator.tensors if one.is_output and math.prod(one.shape) == size)
        if size > 1 and any(repr(one.statistics) == repr(tensor.statistics) for one in outputs):
            writers[pair.target_op is not None] = pair
    types = {op_type_of(pair.operator).name or pair.operator.op_type for pair in writers.values()}
    return [writers[side] for side in sorted(writers, reverse=True)] if len(types) == len(writers) else []


def _computes(operator: Operator, kinds: str) -> bool:
    """Whether it writes elements of one of these kinds that it does not only view or hand on."""
    kind = op_type_of(operator)
    writes = any(one.is_output and kind_of(one.dtype) in kinds for one in operator.tensors)
    return writes and not (kind.has("views") or kind.has("hands on"))


def _may_read(unpaired: Pair, read: Finding) -> bool:
    """Whether an operator of one run reads as many elements as an operator behind it reads in that run."""
    elements, sizes = _sizes(unpaired, read, wrote=False)
    return elements > 1 and elements in sizes


def _may_write(unpaired: Pair, read: Finding) -> bool:
    """Whether an operator of one run writes as many elements as an operator behind it reads in that run."""
    elements, sizes = _sizes(unpaired, read, wrote=True)
    return elements >= 0 and (not sizes or elements in sizes)


def _sizes(unpaired: Pair, read: Finding, wrote: bool) -> tuple[int, set[int]]:
    """The number of elements of a tensor in the run of an operator, and those of the outputs or inputs of the operator;
    -1 without such a tensor."""
    pair = read.pair
    tensor, operator = (pair.target, unpaired.target_op) if unpaired.target_op else (pair.golden, unpaired.golden_op)
    if tensor is None or operator is None:
        return -1, set()
    return math.prod(tensor.shape), {math.prod(one.shape) for one in operator.tensors if one.is_output == wrote}


def _kind(tensor: TensorRef) -> tuple[int, str]:
    return math.prod(tensor.shape), tensor.dtype


def _may_be(one: TensorRef, other: TensorRef) -> bool:
    """Whether the recorded statistics allow that two tensors are the same."""
    a, b = one.statistics, other.statistics
    if a is None or b is None or None in (a.max, a.min, b.max, b.min):
        return True
    return repr((a.max, a.min)) == repr((b.max, b.min))  # NaN among them
