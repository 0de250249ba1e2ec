"""The order of operators for dumps that record none, from inputs and outputs; and operators that one side executed a
second time.

An operator follows the producers of its inputs. A module follows the operators inside it, which stay together and
follow the producers of the module's inputs. In a module, an operator with an input without a producer follows the
operators without such inputs. All others keep their order. Golden tensors of equal content are one tensor.

If activations are not kept, a forward is recomputed in the backward pass (checkpointing), and its records follow the
others. Equal outputs identify such operators.

A constant or a single number alone does not identify an operator. An operator without other outputs ran again if its
values equal those of an earlier operator of its type, and the operators around it ran again.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from itertools import groupby
from typing import Hashable, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.flow.contents import content_in, content_of, target_content_of
from npucmp.model import Finding, Measurement, Operator, Pair, Run
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_output

NOTE = "order: operators that read a tensor stand behind those that wrote one of equal content"
_NETWORK = -1  # place: definition: that of all that is in no module


class OrderedMeasurements(NamedTuple):
    """Measurements and excluded pairs in the order of their places, and notes about that order."""

    measured: Sequence[Measurement]
    left_out: Sequence[Pair]
    notes: tuple[str, ...] = ()


def in_content_order(
    target: Run, golden: Run, measured: Sequence[Measurement], left_out: Sequence[Pair] = ()
) -> OrderedMeasurements:
    """Reorder the measurements of two runs if neither records the order of execution."""
    if target.ordered or golden.ordered:
        return OrderedMeasurements(measured, left_out)
    places = sorted({one.pair.order for one in measured} | {pair.order for pair in left_out})
    flow = _Flow(measured)
    moved = _order(places, flow) if any(flow.earlier.values()) else places
    if moved == places:
        return OrderedMeasurements(measured, left_out)
    new = dict(zip(moved, places))
    placed = [one._replace(pair=one.pair._replace(order=new[one.pair.order])) for one in measured]
    others = [pair._replace(order=new[pair.order]) for pair in left_out]
    placed.sort(key=lambda one: one.pair.order)
    others.sort(key=lambda pair: pair.order)
    return OrderedMeasurements(placed, others, (NOTE,))


class _Flow:
    """The dependencies of each operator, by its place.

    earlier     operators that ended before it
    modules     modules around it, the innermost first
    unexplained whether it has an input that no other operator wrote and no module around it read
    """

    def __init__(self, measured: Sequence[Measurement]) -> None:
        operators = {one.pair.order: one.pair.operator for one in measured}
        places = {operator.name: place for place, operator in operators.items()}
        self.modules = {place: [*_modules(place, operators, places)] for place in operators}
        self.earlier: dict[int, set[int]] = defaultdict(set)
        read: dict[int, list[_ReadContent]] = defaultdict(list)
        for content in _contents(measured):
            for reader in content.readers:
                read[reader].append(content)
                self.earlier[reader] |= content.made_before(reader) - {*self.modules[reader]}
        before = {place: self.earlier[place] for place in operators}
        for place, above in self.modules.items():
            for module in above:  # a module begins after its producers and ends after its contents
                self.earlier[place] |= {one for one in before[module] if module not in (one, *self.modules[one])}
                self.earlier[place] -= {*above}
        for place, above in self.modules.items():
            for module in above:
                self.earlier[module].add(place)
        self.unexplained = {
            place: any(
                not (content.made_before(place) or content.readers.intersection(above)) for content in read[place]
            )
            for place, above in self.modules.items()
        }


class _ReadContent(NamedTuple):
    """The operators that wrote and read one content."""

    writers: set[int]
    readers: set[int]

    def made_before(self, reader: int) -> set[int]:
        """The producers of the content before a reader. An operator that both reads and writes a content only passes it
        on."""
        return (self.writers - self.readers) or (self.writers if reader not in self.writers else set())


def _contents(measured: Sequence[Measurement]) -> list[_ReadContent]:
    known: dict[int, _ReadContent] = {}
    found: list[_ReadContent] = []
    for one in measured:
        number = content_in(one)
        content = known.get(number)
        if content is None:
            content = _ReadContent(set(), set())
            if number:
                known[number] = content
            found.append(content)
        (content.writers if is_output(one.pair) else content.readers).add(one.pair.order)
    return found


def _modules(place: int, operators: Mapping[int, Operator], places: Mapping[str, int]) -> Iterator[int]:
    """Yield the modules around an operator, from the innermost."""
    seen = {place}
    above = places.get(operators[place].scope)
    while above is not None and above not in seen:
        seen.add(above)
        yield above
        above = places.get(operators[above].scope)


class _Ready:
    """Operators that wait for no other operator, by the modules around them. A module that has begun continues until
    its end. In it, operators with an input without a producer come last."""

    def __init__(self, flow: _Flow) -> None:
        self._flow, self._heaps = flow, defaultdict[int, "list[tuple[bool, int]]"](list)
        self._last: Sequence[int] = ()

    def add(self, place: int) -> None:
        for module in (*self._flow.modules.get(place, ()), _NETWORK):
            heapq.heappush(self._heaps[module], (self._flow.unexplained.get(place, False), place))

    def pop(self, done: Mapping[int, None]) -> Optional[int]:
        for module in (*self._last, _NETWORK):
            heap = self._heaps[module]
            while heap and heap[0][1] in done:
                heapq.heappop(heap)
            if heap:
                place = heapq.heappop(heap)[1]
                self._last = self._flow.modules.get(place, ())
                return place
        return None


def _order(places: Sequence[int], flow: _Flow) -> list[int]:
    """Sort all places by their dependencies. If operators wait for each other, the first one does not wait."""
    later: dict[int, list[int]] = defaultdict(list)
    waits = {place: len(flow.earlier.get(place, ())) for place in places}
    ready, done, first = _Ready(flow), dict[int, None](), 0
    for place in places:
        for before in flow.earlier.get(place, ()):
            later[before].append(place)
        if not waits[place]:
            ready.add(place)
    while len(done) < len(places):
        found = ready.pop(done)
        if found is None:
            while places[first] in done:
                first += 1
            found = _of_circle(places[first], flow, done)
        done[found] = None
        for after in later[found]:
            waits[after] -= 1
            if not waits[after] and after not in done:
                ready.add(after)
    return [*done]


def _of_circle(start: int, flow: _Flow, done: Mapping[int, None]) -> int:
    """The first of several operators that wait for each other."""
    path, place = dict[int, None](), start
    while place not in path:
        path[place] = None
        place = min(before for before in flow.earlier[place] if before not in done)
    walked = [*path]
    return min(walked[walked.index(place) :])


class _Execution(NamedTuple):
    """An operator of one side. `figures` of all its tensors are None if one is unknown. `again` is None for an operator
    whose outputs are not conclusive."""

    order: int
    alone: bool
    again: Optional[bool]
    figures: Optional[Hashable]


def ran_again(findings: Sequence[Finding]) -> frozenset[int]:
    """The places, in merged graph order, of operators without a partner whose outputs equal those of an earlier
    operator of the same type on that side."""
    if not any(finding.pair.target_op is None or finding.pair.golden_op is None for finding in findings):
        return frozenset()
    found = set()
    for of_target in (True, False):
        executions = [*_executions(findings, of_target)]
        found |= {one.order for one in executions if one.again and one.alone}
        found |= {*_repeated_places(executions)}
    return frozenset(found)


def _executions(findings: Sequence[Finding], of_target: bool) -> Iterator[_Execution]:
    seen: dict[str, set[int]] = {}
    for order, group in groupby(findings, key=lambda finding: finding.pair.order):
        rows = list(group)
        pair = rows[0].pair
        operator = pair.target_op if of_target else pair.golden_op
        outputs = [finding for finding in rows if is_output(finding.pair)]
        if operator is None or not outputs:
            continue
        alone = pair.target_op is None or pair.golden_op is None
        known = seen.setdefault(_kind(operator), set())
        contents = [*filter(None, map(target_content_of if of_target else content_of, outputs))]
        again = known.issuperset(contents) if contents else None
        known.update(contents)
        yield _Execution(order, alone, again, None if contents else _figures(operator, rows, of_target))


def _repeated_places(executions: Sequence[_Execution]) -> Iterator[int]:
    """The places of operators with inconclusive outputs whose values equal those of an earlier operator of their type,
    between operators that ran again."""
    held: set[Hashable] = set()
    before = False
    waiting: list[int] = []
    for one in executions:
        if one.again is not None:
            before = one.again and one.alone
            if before:
                yield from waiting
            waiting = []
        elif one.figures is not None:
            if before and one.alone and one.figures in held:
                waiting.append(one.order)
            held.add(one.figures)


def _kind(operator: Operator) -> str:
    return operator.op_type if op_type_of(operator).name else operator.kind


def _figures(operator: Operator, rows: Sequence[Finding], of_target: bool) -> Optional[Hashable]:
    """The type of an operator and the statistics of its tensors; None if values were not read."""
    figures = []
    for row in rows:
        moments, tensor = row.measurement.moments, row.pair.target if of_target else row.pair.golden
        if tensor is None or moments is None:
            return None
        side = moments.target if of_target else moments.golden
        figures.append((row.pair.slot, tensor.shape, side.minimum, side.maximum, side.total))
    return _kind(operator), tuple(figures)
