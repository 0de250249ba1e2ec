"""The known facts about the tensors of a search: their producers, whether their error descends from a root, and outputs
that were written but not compared because their files are missing or broken, or the user excluded them.

An input without a compared producer may be an output that was not compared. Its consumer is not accused, because the
error may exist before it. The golden side identifies the output: the number of elements, the type, and the extremes if
recorded; the latest matching output is taken.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from itertools import count, takewhile
from typing import Callable, Hashable, Iterable, NamedTuple, Optional, Sequence

from npucmp.dump.readers.names import file_name_of
from npucmp.flow.contents import content_of
from npucmp.flow.edges import Edges
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import round_off_of
from npucmp.judge.products import READER_DISTANCE
from npucmp.localise.rule_context import error_size
from npucmp.model import Finding, Operator, Pair, TensorRef, Verdict
from npucmp.model.finding import OTHER_NODE
from npucmp.model.network import by_network
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_meaningless, is_output, is_parameter, kind_of
from npucmp.model.table import rows_of_verdicts


class TensorSource(NamedTuple):
    """The earlier row of the tensor that an input holds. `tainted`: its error descends from a root; `meaningless`: it
    is memory that no operator wrote; `is_residue`: it is the rest of a sum that cancels."""

    finding: Finding
    tainted: bool
    meaningless: bool = False
    is_residue: bool = False


@by_network
def _meaningless(pairs: Sequence[Pair]) -> frozenset[int]:
    return frozenset(row for row, pair in enumerate(pairs) if is_meaningless(pair))


class Sources:
    """The tensors of one step and rank by row, along the edges of its run."""

    def __init__(self, findings: Sequence[Finding], edges: Edges, first_row: int = 0, ordered: bool = True) -> None:
        self._findings, self._edges, self._first, self._ordered = findings, edges, first_row, ordered
        self._known: dict[int, TensorSource] = {}  # by row
        self._read = frozenset(edges.sources)  # rows whose tensors an operator reads
        self._read_so_far: set[int] = set()
        self._latest = -1  # latest row that the search has reached
        self._meaningless, self._count = _meaningless(findings), len(findings)
        self.any_meaningless = bool(self._meaningless)
        self.any_unreadable = bool(rows_of_verdicts(findings, (Verdict.UNREADABLE,)))
        self._instead: dict[
            int, tuple[int, TensorSource]
        ] = {}  # by content: the first row to which it applies, and the replacement

    def is_read(self, finding: Finding) -> bool:
        """Whether an operator that was recorded reads an output."""
        return finding.row - self._first in self._read

    def of(self, finding: Finding) -> Optional[TensorSource]:
        """The source of a tensor; None if no earlier compared tensor holds it."""
        at = finding.row - self._first
        if not 0 <= at < self._count:
            return self._of_another_rank(finding)
        row = self._edges.sources[at]
        if self._instead:
            start, other = self._instead.get(self._edges.contents[at], (at, None))
            if other is not None and start <= at and (row < start or not is_output(self._findings[row].pair)):
                return other
        if row < 0:  # no earlier row holds it; after its first read it is its own source
            known = self.at(finding.row) if at in self._read_so_far else self._known.get(finding.row)
            return known if self._edges.contents[at] else None
        return self.at(row + self._first)

    def read(self, rows: Iterable[int]) -> None:
        """Record that an operator read tensors, by the rows of their sources; counted from the first, -1 without
        one."""
        self._read_so_far.update(rows)

    def is_own_source(self, at: int) -> bool:
        """Whether a row, counted from the first, was read, so that it is its own source."""
        return at in self._read_so_far and bool(self._edges.contents[at])

    def _of_another_rank(self, finding: Finding) -> Optional[TensorSource]:
        """The latest row so far that holds a tensor of another rank."""
        content = content_of(finding)
        if content in self._instead:
            return self._instead[content][1]
        rows = [row for row in self._edges.rows_of(content) if row <= self._latest]
        return self.at(rows[-1] + self._first) if rows else None

    def read_with(self, output: Finding) -> list[Finding]:
        """The inputs of the operator that wrote a tensor of this step and rank."""
        at, order = output.row - self._first, output.pair.order
        rows = takewhile(lambda row: self._findings[row].pair.order == order, range(at, -1, -1))
        return [self._findings[row] for row in rows if not is_output(self._findings[row].pair)]

    def latest_of_size(self, finding: Finding, row: int, agrees: Callable[[Finding], bool]) -> Optional[Finding]:
        """The latest tensor before a row that agrees and has as many elements as a tensor that is read there."""
        golden, order = finding.pair.golden, finding.pair.order
        if golden is None:
            return None
        elements = math.prod(golden.shape)
        for at in range(row - self._first - 1, -1, -1):
            pair = self._findings[at].pair
            if pair.order == order or pair.golden is None or is_parameter(pair):
                continue
            if pair.golden.shape and kind_of(pair.golden.dtype) != kind_of(golden.dtype):
                continue
            if math.prod(pair.golden.shape) == elements and agrees(self._findings[at]):
                return self._findings[at]
        return None

    def is_marked(self, finding: Finding) -> bool:
        """Whether the error of a tensor's source descends from a root, or its content is undefined."""
        source = self.of(finding)
        return source is not None and (source.tainted or source.meaningless)

    def of_target(self, finding: Finding) -> Optional[TensorSource]:
        """The output with the same target tensor; None without one."""
        row = self._edges.of_target(finding.row - self._first)
        return None if row < 0 else self.at(row + self._first)

    def overwriting_operator(self, finding: Finding) -> Optional[Pair]:
        """The operator that wrote a tensor in the golden before it was read, and whose row comes later here because the
        target runs its partner later; None without one, or if a dump records no order."""
        reader = finding.pair.golden_op if self._ordered else None
        rows = self._edges.rows_of(content_of(finding)) if reader is not None else ()
        for pair in (self._findings[row].pair for row in rows):
            behind = pair.order > finding.pair.order and is_output(pair) and pair.target_op is not None
            if behind and reader is not None and pair.golden_op is not None and pair.golden_op.order < reader.order:
                return pair
        return None

    def reordered_operator(self, finding: Finding) -> Optional[Pair]:
        """The first operator that the golden runs after the reader of a tensor, and the target before it; None if a
        dump records no order."""
        reader = finding.pair.golden_op if self._ordered else None
        if reader is None or finding.pair.target_op is None:
            return None
        before = (self._findings[row].pair for row in range(finding.row - self._first))
        both = ((pair, pair.golden_op) for pair in before if pair.target_op is not None)
        return next((pair for pair, golden in both if golden is not None and golden.order > reader.order), None)

    def at(self, row: int) -> TensorSource:
        """The source of a row."""
        found = self._known.get(row)
        if found is None:
            at = row - self._first
            found = self._known[row] = TensorSource(self._findings[at], False, at in self._meaningless)
        return found

    def learn(self, source: TensorSource) -> None:
        """Record the result of the search for a row of this step and rank."""
        self._known[source.finding.row] = source
        self.any_meaningless |= source.meaningless
        self.reach(source.finding.row)

    def reach(self, row: int) -> None:
        """Record that the search has reached a row."""
        self._latest = max(self._latest, row - self._first)

    @property
    def has_remote(self) -> bool:
        """Whether tensors of other ranks replace sources."""
        return bool(self._instead)

    def known_source(self, at: int) -> Optional[TensorSource]:
        """The source of a row counted from the first, as far as the search has recorded it; for ranks that read no
        tensor of another."""
        row = self._edges.sources[at]
        if row < 0:
            return self._known.get(at + self._first) if self._edges.contents[at] else None
        return self._known.get(row + self._first)

    @property
    def contents(self) -> Sequence[int]:
        """The content of the golden tensor by row, 0 if it is unknown."""
        return self._edges.contents

    @property
    def rows(self) -> Sequence[int]:
        """The earlier row with the tensor of each row, -1 without one; both counted from the first."""
        return self._edges.sources

    def replace(self, source: TensorSource, content: int, start: int) -> None:
        """Let all consumers of a content from row `start` on read this source, until an operator writes the content
        again."""
        if content:
            self._instead[content] = start - self._first, source

    def is_known(self, finding: Finding, start: int) -> bool:
        """Whether this rank held the golden tensor of another rank before row `start`."""
        content = content_of(finding)
        rows = self._edges.rows_of(content)
        return content in self._instead or (bool(rows) and rows[0] < start - self._first)


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


class UncomparedOutputs:
    """The outputs before the operator that is visited; outputs of excluded operators are known from the start."""

    def __init__(self, left_out: Sequence[Pair] = ()) -> None:
        self._left_out = {pair.order: pair for pair in left_out}
        self._outputs: dict[Hashable, list[Pair]] = defaultdict(list)
        self._named: dict[tuple[str, str], Pair] = {}  # by side and by the tensor's name in a graph
        self._other_nodes: list[Pair] = []  # backward calls of which the runs recorded different autograd nodes
        for pair in left_out:
            self._add(pair)

    def remember(self, node: OperatorFindings) -> None:
        """Add an operator that was visited."""
        for finding in node.outputs:
            if finding.error is None and finding.verdict is Verdict.UNREADABLE:
                self._add(finding.pair)
        if any(finding.rule == OTHER_NODE for finding in node.outputs):
            self._other_nodes.append(node.pair)

    def _add(self, pair: Pair) -> None:
        if not is_output(pair) or is_meaningless(pair):
            return
        for side, operator in (("target", pair.target_op), ("golden", pair.golden_op)):
            if operator is not None:
                self._named[side, file_name_of(f"{operator.name}:{pair.slot.partition(':')[2]}")] = pair
        if pair.golden is not None and (pair.golden.shape or not pair.golden.problem):  # otherwise its shape is unknown
            self._outputs[_kind(pair.golden)].append(pair)

    @staticmethod
    def unmeasured_writer(finding: Finding) -> Writer:
        """An output that has a row without an error."""
        why = NOT_DUMPED if finding.verdict is Verdict.MISSING else UNREADABLE
        return Writer(f"{finding.pair.operator.name} {finding.pair.slot}", why)

    def writer(self, finding: Finding) -> Optional[Writer]:
        """The output that most likely is the input; None if no earlier output matches."""
        pair = self._writer(finding)
        if pair is None:
            return None
        why = LEFT_OUT if pair.order in self._left_out else UNREADABLE
        return Writer(f"{pair.operator.name} {pair.slot}", why)

    def _writer(self, finding: Finding) -> Optional[Pair]:
        golden = finding.measurement.tensor(1)
        for side, tensor in (("target", finding.pair.target), ("golden", golden)):
            if tensor is not None and tensor.source:
                return self._named.get((side, file_name_of(tensor.source)))
        if golden is None or is_parameter(finding.pair):
            return None
        fits = [
            pair
            for pair in self._outputs.get(_kind(golden), ())
            if pair.order < finding.pair.order and pair.golden is not None and _may_be(pair.golden, golden)
        ]
        return max(fits, key=lambda pair: pair.order, default=None)

    def forward_of(self, node: OperatorFindings) -> str:
        """The name of a gradient's forward, if the user excluded it; "" otherwise."""
        calls = (pair.operator for pair in self._left_out.values())
        return next((one.name for one in calls if one.phase == "forward" and one.call == node.operator.call), "")

    def excluded_operators(self, start: int, end: int) -> list[Pair]:
        """The operators that the user excluded between two places in the graph, the latest first."""
        return [pair for order, pair in reversed(self._left_out.items()) if start < order < end]

    def other_nodes(self, start: int, end: int) -> list[Pair]:
        """The backward calls between two places of which the runs recorded different nodes, the latest first."""
        return [pair for pair in reversed(self._other_nodes) if start < pair.order < end]


class UnrecordedOutputs:
    """The operators before the operator that is visited of which only the inputs were recorded."""

    def __init__(self) -> None:
        self._operators: dict[str, tuple[OperatorFindings, float]] = {}  # by name, with the error that each read
        self._latest: deque[str] = deque(maxlen=READER_DISTANCE)

    def __bool__(self) -> bool:
        return bool(self._operators)

    def learn(self, node: OperatorFindings, error: float) -> None:
        """Add an operator that was visited, with the error that it read."""
        self._latest.append(node.operator.name)
        self._operators[node.operator.name] = node, error

    def writers(self, finding: Finding) -> list[tuple[OperatorFindings, float]]:
        """The operators that may have written an input, with the error that each read. A graph names the producer;
        otherwise these are the operators just before in the same pass, as for queries, keys and values. A dump without
        an order mixes both passes, and a backward operator reads the inputs of its forward, which would explain its own
        error."""
        sides = [one.source.rpartition(":")[0] for one in (finding.pair.target, finding.pair.golden) if one]
        named = [name for name in sides if name][:1]
        seen = [self._operators[name] for name in named or self._latest if name in self._operators]
        backward = is_gradient(finding.pair.operator)
        return [(node, error) for node, error in seen if named or node.is_gradient == backward]

    def claim(self, finding: Finding) -> None:
        """Assume that the latest of these operators wrote an input, so that it wrote no other. An operator that read an
        error does not write equal bits."""
        claimed = self._latest[-1] if self._latest else ""
        if claimed and round_off_of(finding.pair) and (error_size(finding) or not self._operators[claimed][1]):
            self._latest.pop()


@by_network
def _unpaired(pairs: Sequence[Pair]) -> dict[int, Pair]:
    return {one.order: one for one in pairs if one.target_op is None or one.golden_op is None}


class UnpairedOperators:
    """The operators of one run that have no partner in the other, by their places in the order of both."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._pairs = _unpaired(findings)

    def at(self, order: int) -> Optional[Pair]:
        """The operator at a place; None for an operator of both runs."""
        return self._pairs.get(order)

    def writers(self, read: Finding, start: int, is_origin: bool) -> list[Pair]:
        """The operators that may have written an input: those behind `start`; if there are none, the latest before it,
        unless the input is known to come from `start`. If none of them writes such a tensor, return the operators
        around the latest that reads as many elements: an operator that overwrites a tensor in place need not be
        recorded."""
        end = read.pair.order
        between = [self._pairs[place] for place in range(start + 1, end) if place in self._pairs]
        writers = [one for one in between if _may_write(one, read)]
        if between or is_origin:
            return writers or between
        before = [place for place in self._pairs if place < end]
        writers = [self._pairs[place] for place in before if _may_write(self._pairs[place], read)]
        if writers or not before:
            return writers[::-1]
        last = max((place for place in before if _may_read(self._pairs[place], read)), default=-1)
        return [self._pairs[place] for place in takewhile(self._pairs.__contains__, count(last)) if place < end]

    def preceding(self, reader: Pair) -> list[Pair]:
        """The operators of one run that compute floats before a reader in the same pass, the latest first; without one
        those that compute whole numbers or masks, by which code that was not dumped may pick elements."""
        before = (pair for order, pair in self._pairs.items() if order < reader.order)
        passes = [pair for pair in before if is_gradient(pair.operator) == is_gradient(reader.operator)][::-1]
        floats = [pair for pair in passes if _computes(pair.operator, "f")]
        return floats or [pair for pair in passes if _computes(pair.operator, "biu")]

    def writer(self, read: Finding) -> Optional[Pair]:
        """The latest operator of one run before a reader whose output has the recorded figures of an input in that run;
        None without one."""
        for order, unpaired in reversed(self._pairs.items()):
            is_target = unpaired.target_op is not None
            tensor, operator = (read.pair.target, read.pair.golden)[not is_target], unpaired.operator
            if order >= read.pair.order or tensor is None or tensor.statistics is None:
                continue
            outputs = (one for one in operator.tensors if one.is_output and one.shape == tensor.shape)
            if any(one.dtype == tensor.dtype and repr(one.statistics) == repr(tensor.statistics) for one in outputs):
                return unpaired
        return None

    def reordering_writers(self, read: Finding) -> list[Pair]:
        """The latest operators of one run whose output has the statistics of an input and whose elements they may have
        moved: of the target, of the golden, or of both if they are of two types; else none."""
        writers: dict[bool, Pair] = {}
        for order, unpaired in self._pairs.items():
            tensor, operator = read.pair.golden, unpaired.golden_op
            if unpaired.target_op is not None:
                tensor, operator = read.pair.target, unpaired.target_op
            if order >= read.pair.order or tensor is None or tensor.statistics is None or operator is None:
                continue
            kind, size = op_type_of(operator), math.prod(tensor.shape)
            if kind.has("hands on") or (kind.has("views") and not kind.has("moves axes")):
                continue
            outputs = (one for one in operator.tensors if one.is_output and math.prod(one.shape) == size)
            if size > 1 and any(repr(one.statistics) == repr(tensor.statistics) for one in outputs):
                writers[unpaired.target_op is not None] = unpaired
        types = {op_type_of(unpaired.operator).name or unpaired.operator.op_type for unpaired in writers.values()}
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


def _kind(tensor: TensorRef) -> Hashable:
    return math.prod(tensor.shape), tensor.dtype


def _may_be(one: TensorRef, other: TensorRef) -> bool:
    """Whether the recorded statistics allow that two tensors are the same."""
    a, b = one.statistics, other.statistics
    if a is None or b is None or None in (a.max, a.min, b.max, b.min):
        return True
    return repr((a.max, a.min)) == repr((b.max, b.min))  # NaN among them
