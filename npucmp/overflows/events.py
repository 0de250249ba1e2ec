"""Births, propagation and ends of NaN, Inf and saturation in one run.

The operators are processed in the order of execution by their inputs and outputs. An event in an output that no input
has is born there, for any reason: 0/0, Inf-Inf, a sum beyond the type. The producer of an input is found by the graph
or by content. Two kinds of events are not alarms: minus infinity or the lowest value that an operator inserts by design
(a mask), and memory that was not yet written.

`npucmp overflow` needs no golden. It counts three events of every tensor: NaN, Inf and saturated (elements equal to the
largest or lowest finite value of the type).

    born        an output has an event; everything that it read is known and has none
    propagated  an input has an event of any kind: NaN of Inf - Inf descends from the Inf. A backward operator also
                reads what its forward read and wrote
    killed      it read an event and wrote none, or it read NaN or Inf and wrote only saturated values: where, clamp,
                maximum, nan_to_num, a device in saturation mode. The cause is upstream. An operator that writes no
                floats (isnan) kills nothing
    unknown     its inputs were not dumped, cannot be read, or came from outside. In a dump of outputs only, the first
                in time is unknown and later ones are propagated; without times all are unknown

Two tensors with events are one tensor if they have the same numbers of elements, zeros, NaN, Inf of each sign and
values at the limits, and the same finite minimum and maximum. A module that contains the operator is `propagated`.

An input with an event that no scanned operator wrote came from outside (GAP in roots.csv, CAME IN on the screen). The
first such tensor is named as long as no event precedes it; later ones count as `propagated`, because code that was not
dumped may have passed the event on. Parameters are always named. The same holds for the output of a receive or gather,
and for NaN that a sum over ranks writes from finite inputs, unless the other rank read the event itself.

These raise no alarm, and change neither the exit status nor the origin of later events:

    masks             all events are -Inf or the lowest value, no input has a -Inf that was born, and one of: an
                      argument of the operator has the value (-inf, the lowest value, -1e5 … -1e30); it reads a mask, or
                      a value that is a mask in another type (-1e9 is -Inf in float16); it fills, selects, pads or cuts
                      triangles; it consists of 0 and lowest values only. Operators with a pole (log, division, powers)
                      are excepted from the last
    +Inf              if an operator that fills or selects has that argument: a mask before a minimum
    input masks       an input without a scanned producer with -Inf or lowest values, before the first alarm; after it,
                      only with zeros and lowest values and nothing else
    discarded Inf     see below; `born` and `killed` stay in overflow.csv
    unwritten memory  `empty`, views of it, tensors of the same type and shape without a producer, buffers of receives
                      and gathers, workspaces. An operator that computes with it and writes an event is `born`
    float8, float4    a quarter of the elements at most, or a single one, at the largest value: quantisation scales the
                      largest value there
    never counted     integers; limits of complex numbers; padding of device layouts

A mask without an alarm may still cause an error: a softmax over a row that is masked as a whole gives NaN, `born` at
the softmax, and the evidence names the mask. Records of the device (Opdebug files) name an operator by task, stream,
context and thread; task ids are compared modulo 65536. The record of an operator whose outputs show nothing is an
event: saturation masked it, or it is in the padding. A record that names no operator of the dump, or cannot be read, is
a row without an operator.

Places: BORN and GAP by step and by dependence on any rank, then UNKNOWN, then PROPAGATED. Limits: two tensors that
agree in all figures above count as one; a computed -Inf is taken for a mask if its operator also reads a mask, and a
-Inf in a network input is taken for a mask; statistics do not distinguish NaN tensors of one size; float8 that
saturates in less than a quarter of its elements is not seen.

Special values of one tensor at the limits of its type: NaN, Inf, saturated values, and the headroom.

Infinities that a choice discards: they are reported without an alarm.

A network may compute the logarithm of all its positions, 0 among them, and choose another value where the result is
infinite. If no other operator reads the infinity, it has no effect. If an operator computes with it first, bounds it to
a number, or has a disturbed gradient, it is an alarm again.

Integers have no gradient. An infinity that is scaled, becomes the lowest integer of a type, and is discarded or bounded
there, as the logarithms of T5's position buckets are, is not an alarm either. If the integers become floats again, or
select rows, it is an alarm.

All consumers of such an Inf must be operators that fill or select, after which it is gone.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import groupby
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.flow.edges import Producers
from npucmp.measure.kernel.mask_values import VALUES as MASKS
from npucmp.measure.range_scan import ScanResult
from npucmp.model import Event, Evidence, Extremes, Fact, Operator, Pair, TensorRef, position
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import containers, is_meaningless, is_parameter

SCALED_TO_THE_LIMIT = 0.25  # share of an 8-bit tensor (or smaller) at its largest value because it was scaled to it


def kinds_of(tensor: TensorRef, extremes: Optional[Extremes]) -> list[str]:
    """The kinds of events in a tensor."""
    if extremes is None:
        return []
    limits = extremes.high + extremes.low
    row = lookup(tensor.dtype)
    if row is not None and row.itemsize == 1 and limits <= max(1, SCALED_TO_THE_LIMIT * extremes.elements):
        limits = 0  # quantisation scales the largest value to the limit by design, and rounds others to it
    counts = (("nan", extremes.nan), ("inf", extremes.inf), ("saturated", limits))
    return [kind for kind, count in counts if count]


def headroom(tensor: TensorRef, extremes: Optional[Extremes]) -> Optional[float]:
    """log2(largest finite value of the type / largest finite magnitude), in bits; None for other types and zeros."""
    row = lookup(tensor.dtype)
    if extremes is None or row is None or row.kind != "f" or not extremes.largest > 0:
        return None
    return math.log2(row.largest / extremes.largest)


def amount(kind: str, one: ScanResult) -> Evidence:
    """Evidence with the number of such elements and the first position."""
    x, tensor = one.extremes, one.tensor
    assert x is not None
    what, counted = {
        "nan": ("{slot}: NaN", "{slot}: {count} of {all} NaN"),
        "inf": ("{slot}: Inf", "{slot}: {count} of {all} Inf"),
        "saturated": (
            "{slot}: values at ±{largest:g}, the largest of {dtype}",
            "{slot}: {count} of {all} values at ±{largest:g}, the largest of {dtype}",
        ),
    }[kind]
    facts = {"slot": Fact(tensor.slot), "largest": Fact(x.largest), "dtype": Fact(tensor.dtype)}
    if not one.counted:
        return Evidence("amount", f"{what}, by its statistics", facts)
    count, first = x.of(kind)
    facts.update(count=Fact(count, one.operator.name, tensor.slot), all=Fact(x.elements))
    facts.update(first=Fact(position(first, tensor.shape)))
    where = ", the first at {first}" if tensor.shape else ""
    return Evidence("amount", counted + where, facts)


DISCARDED = Evidence("thrown away", "no alarm: a choice discards it, and no other operator reads it")
AS_INTEGER = Evidence("thrown away", "no alarm: it becomes a whole number, which a choice or bound discards")
LOWEST_SHARE = 1 - 2.0**-20  # of the lowest number of a type, to which a small number was added

Family = Mapping[int, Sequence[Event]]  # by operator


def without_discarded(events: Sequence[Event], scanned: Sequence[ScanResult] = ()) -> list[Event]:
    """Return the events with the alarm of such infinities removed. `scanned` are all tensors of the run, in order."""
    heirs: dict[int, list[Event]] = {}
    own: dict[int, list[Event]] = {}
    for event in events:
        own.setdefault(event.order, []).append(event)
        for parent in event.parents:
            heirs.setdefault(parent, []).append(event)
    gone: dict[int, Evidence] = {}
    for order, events_of in own.items():
        if not all(event.origin == "born" and event.kind == "inf" for event in events_of):
            continue
        after = heirs.get(order, ())
        if after and all(map(_is_choice, after)):
            gone.update((id(event), DISCARDED) for event in events_of)
        elif (spread := _spread(order, own, heirs)) and _end_as_integers(spread, scanned):
            gone.update((id(event), AS_INTEGER) for event in spread)
    born = {event.order for event in events if id(event) in gone}
    gone.update((id(one), DISCARDED) for one in events
                if id(one) not in gone and one.parents and born.issuperset(one.parents))  # fmt: skip
    return [
        replace(event, alarm=False, evidence=(*event.evidence, gone[id(event)])) if id(event) in gone else event
        for event in events
    ]


def _is_choice(event: Event) -> bool:
    """Return whether an event ends at an operator that selects one value or another unchanged."""
    return event.origin == "killed" and event.operator is not None and op_type_of(event.operator).has("masks")


def _spread(order: int, own: Family, heirs: Family) -> list[Event]:
    """An infinity and the events that pass it on, element by element; empty if it has any other effect."""
    found = list(own[order])
    first, orders = found[0], {order}
    for event in found:  # grows during the loop
        for heir in heirs.get(event.order, ()):
            if heir.order in orders:
                continue
            orders.add(heir.order)
            found += own[heir.order]
    is_scaled = all(event is first or _is_scaled(event, first) for event in found)
    return found if is_scaled and all(orders.issuperset(event.parents) for event in found) else []


def _is_scaled(event: Event, first: Event) -> bool:
    """Return whether an operator passed on all elements of an infinity, and no others."""
    a, b = event.extremes, first.extremes
    if event.kind != "inf" or event.origin != "propagated" or a is None or b is None or event.tensor is None:
        return False
    return first.tensor is not None and event.tensor.shape == first.tensor.shape and a.inf == b.inf


def _end_as_integers(spread: Sequence[Event], scanned: Sequence[ScanResult]) -> bool:
    """Return whether an infinity becomes integers that are discarded before they become anything else."""
    tensor, last = spread[0].tensor, max(event.order for event in spread)
    shape, seen, ended = tensor.shape if tensor is not None else None, False, False
    for order, group in groupby(scanned, key=lambda one: one.operator.order):
        if order <= last:
            continue
        rows = list(group)
        lowest = [one for one in rows if one.tensor.shape == shape and _is_lowest(one)]
        written = [one for one in rows if one.tensor.is_output]
        if all(one in written for one in lowest):
            continue  # it reads none of them
        if not written or not all(map(_is_whole, written)):
            return False
        if all(one.tensor.dtype == "bool" for one in written):
            continue  # a predicate
        seen, ended = True, not any(one in lowest for one in written)
        if ended and not op_type_of(rows[0].operator).has("masks", "bounds"):
            return False
    return seen and ended


def _is_lowest(one: ScanResult) -> bool:
    """Return whether a tensor has the integer value of an infinity."""
    row, x = lookup(one.tensor.dtype), one.extremes
    if row is None or row.kind != "i" or x is None:
        return False
    limit = 2.0 ** (8 * row.itemsize - 1) * LOWEST_SHARE
    return x.minimum <= -limit or x.maximum >= limit


def _is_whole(one: ScanResult) -> bool:
    row = lookup(one.tensor.dtype)
    return row is not None and row.kind in "biu"


BUFFER = re.compile(r"input:(0(\.|$)|tensor|output)")  # inputs of receiving operators that are destinations
MASK_ROUNDING = 2.0**-7  # for a mask to which a score was added, in bfloat16
LEAST_MASK = 1e30  # an argument at or below minus this is a mask; smaller round numbers are in MASKS

FROM_ANOTHER_RANK = Evidence("another rank", "no input on this rank has any: it came from another rank")
FROM_OUTSIDE = Evidence(
    "outside",
    "no scanned operator wrote this tensor: it is an input of the network, or comes from code that was not dumped",
)
UNSEEN = Evidence("unseen", "the inputs were not dumped or cannot be read")
UNSEEN_AND_BEFORE = UNSEEN._replace(words=f"{UNSEEN.words}, and earlier operators had such values")
NOT_SEEN = Evidence("not seen", "the outputs do not show it: it was masked by saturation, or occurred in padding")


class Trace(NamedTuple):
    """The origin of a written tensor: the operator, and why its events are not an alarm ("" if they are)."""

    order: int
    harmless: str


class EventInput(NamedTuple):
    """An input with an event, and its origin."""

    scanned: ScanResult
    trace: Trace


def events_of(
    scanned: Sequence[ScanResult], flagged: Mapping[int, tuple[str, str]], ordered: bool = True
) -> list[Event]:
    """The events of one run in order. `flagged` has (status, bits in words) of operators for which the device recorded
    an overflow. If `ordered` is False, the order of execution is unknown."""
    flow = _EventFlow({one.operator.name: one.operator.scope for one in scanned if one.operator.scope}, ordered)
    for _, group in groupby(scanned, key=lambda one: one.operator.order):
        rows = list(group)
        flow.visit(rows, flagged.get(rows[0].operator.order))
    return without_discarded(flow.events, scanned)


class _At(NamedTuple):
    """An operator: its inputs and outputs, the inputs with events, and those of them that are alarms."""

    operator: Operator
    inputs: Sequence[ScanResult]
    outputs: Sequence[ScanResult]
    reads: Sequence[EventInput]
    alarming: Sequence[EventInput]

    @property
    def is_known(self) -> bool:
        """Whether all inputs are known."""
        seen = all(one.extremes is not None or not _can_hold(one.tensor) for one in self.inputs)
        return self.operator.reads_recorded and seen

    @property
    def parents(self) -> tuple[int, ...]:
        """The operators from which its alarms came."""
        return tuple(dict.fromkeys(read.trace.order for read in self.alarming))

    def is_raw(self, output: ScanResult) -> bool:
        """Whether an output is unwritten memory, a view of it, a workspace, or a receive that returns before the data
        arrive."""
        op = op_type_of(self.operator)
        if is_meaningless(_alone(output)) or op.has("asynchronous"):
            return True
        return op.has("views") and any(read.trace.harmless == "uninitialised" for read in self.reads)


class _EventFlow:
    """A single pass over the operators that stores the tensors with events and their origin."""

    def __init__(self, scopes: Mapping[str, str], ordered: bool) -> None:
        self.events: list[Event] = []
        self._scopes = scopes
        self._ordered = ordered
        self._producers = Producers[Trace]()
        self._calls: dict[str, list[EventInput]] = {}  # inputs and outputs of the forward of a call
        self._inside: dict[str, Operator] = {}  # container → the first operator in it that has an event
        self._raw: set[object] = set()  # dtype and shape of unwritten memory
        self._latest: Optional[int] = None  # the operator of the latest alarm

    def visit(self, rows: Sequence[ScanResult], flagged: Optional[tuple[str, str]]) -> None:
        """Process one operator."""
        operator = rows[0].operator
        inputs = [row for row in rows if not row.tensor.is_output]
        outputs = [row for row in rows if row.tensor.is_output]
        reads = list(self._reads(operator, inputs, outputs))
        alarming = [read for read in reads if not read.trace.harmless]
        if operator.phase == "backward":
            alarming += [read for read in self._calls.get(operator.call, ()) if not read.trace.harmless]
        at = _At(operator, inputs, outputs, reads, alarming)
        made = [event for output in outputs for event in self._output_events(at, output)]
        alarms = [event for event in made if event.alarm]
        made += _killed(at, alarms)
        if flagged:
            made = [replace(event, device_status=flagged[0], device_bits=flagged[1]) for event in made]
            made.append(_of_device(at, alarms, flagged))
        self.events += made
        self._remember(at, alarms)

    def _reads(
        self, operator: Operator, inputs: Sequence[ScanResult], outputs: Sequence[ScanResult]
    ) -> Iterator[EventInput]:
        """Yield inputs with events. If no dumped operator wrote an input, it is an event of its own."""
        for one in inputs:
            kinds = kinds_of(one.tensor, one.extremes)
            if not kinds:
                continue
            trace = self._producers.graph_producer(one.tensor) or self._producers.by_content.get(_content(one))
            may_be_overwritten = op_type_of(operator).has("in place") or communicates(operator)
            if trace is None and may_be_overwritten and _content(one) in map(_content, outputs):
                continue  # recorded after it was overwritten
            if trace is None:
                trace = Trace(operator.order, self._harmless(operator, one))
                if not trace.harmless and (self._latest is None or is_parameter(_alone(one))):
                    what = amount(kinds[0], one)
                    self.events.append(event_of(one, kinds[0], "unknown", what, FROM_OUTSIDE, outside=True))
                    self._latest = operator.order
                elif not trace.harmless:
                    trace = Trace(self._latest or 0, "")  # through code that was not dumped, as far as is known
                self._producers.by_content[_content(one)] = trace
            yield EventInput(one, trace)

    def _harmless(self, operator: Operator, one: ScanResult) -> str:
        """The reason why an input without a dumped producer is not an alarm, "" if it is."""
        if _is_low(one.extremes) and (self._latest is None or _is_only_mask(one)):
            return "mask"
        if _shape(one) in self._raw:
            return "uninitialised"  # and then written in part through a view
        return "uninitialised" if op_type_of(operator).has("receives") and BUFFER.match(one.tensor.slot) else ""

    def _output_events(self, at: _At, output: ScanResult) -> Iterator[Event]:
        """Yield the events of one output."""
        operator, kinds = at.operator, kinds_of(output.tensor, output.extremes)
        if not kinds or _is_mask(at, output):
            return
        inner = self._contained(operator)
        for kind in kinds:
            what = amount(kind, output)
            if at.is_raw(output):
                raw = what._replace(words=f"{what.words}: memory that no operator has written yet, or a workspace")
                yield event_of(output, kind, "unknown", raw, alarm=False)
            elif at.alarming:
                yield event_of(output, kind, "propagated", what, _what_came(at), parents=at.parents)
            elif inner:
                within = Evidence("contains", "contains {op}, which has it", {"op": Fact(inner.name)})
                yield event_of(output, kind, "propagated", what, within, parents=(inner.order,))
            elif communicates(operator) and (kind == "nan" or not op_type_of(operator).has("sums ranks")):
                yield event_of(output, kind, "unknown", what, FROM_ANOTHER_RANK, outside=True)
            elif not at.is_known:
                if self._latest is None or at.inputs or not self._ordered:
                    yield event_of(output, kind, "unknown", what, UNSEEN)
                else:
                    yield event_of(output, kind, "propagated", what, UNSEEN_AND_BEFORE, parents=(self._latest,))
            else:
                yield event_of(output, kind, "born", what, _clean(at))

    def _contained(self, operator: Operator) -> Optional[Operator]:
        return self._inside.get(operator.name) or self._inside.get(f"{operator.phase} {operator.path}")

    def _remember(self, at: _At, alarms: Sequence[Event]) -> None:
        operator, contents, held = at.operator, self._producers.by_content, []
        for output in at.outputs:
            if not kinds_of(output.tensor, output.extremes):
                continue
            alarmed = any(event.tensor is output.tensor for event in alarms)
            raw = not alarmed and at.is_raw(output)
            if raw:
                self._raw.add(_shape(output))
            trace = Trace(operator.order, "" if alarmed else "uninitialised" if raw else "mask")
            if alarmed and self._contained(operator):
                trace = contents.setdefault(_content(output), trace)  # an operator inside it produced it
            contents[_content(output)] = trace
            self._producers.add_output(operator, output.tensor.slot, trace)
            held.append(EventInput(output, trace))
        if operator.phase == "forward":
            self._calls[operator.call] = [*at.reads, *held]
        if alarms:
            self._latest = operator.order
            for container in containers(operator, self._scopes):
                self._inside.setdefault(container, operator)


def event_of(one: ScanResult, kind: str, origin: str, *evidence: Evidence, **more: Any) -> Event:
    """An event of a tensor; `more` are further fields."""
    return Event(
        one.operator.order, one.operator, one.tensor, kind, origin, evidence, one.extremes, one.counted, **more
    )


def device_event(
    order: int, operator: Optional[Operator], origin: str, flagged: tuple[str, str], *evidence: Evidence, **more: Any
) -> Event:
    """An event that the device recorded, from its (status, bits in words)."""
    status, bits = flagged
    statements = Evidence("device", "the device noted: {bits}", {"bits": Fact(bits)}), *evidence
    return Event(order, operator, None, "device", origin, statements, device_status=status, device_bits=bits, **more)


def _is_mask(at: _At, output: ScanResult) -> bool:
    """Return whether all special values of an output are minus infinity or the lowest value, inserted by design. For
    operators that fill in a given value, plus infinity and the largest value count too."""
    op, arguments = op_type_of(at.operator), at.operator.arguments.values()
    if _is_high(output.extremes):
        return op.has("masks") and any(
            isinstance(value, (int, float)) and _is_low_argument(-value) for value in arguments
        )
    if not _is_low(output.extremes) or any(not read.trace.harmless and _has_low(read.scanned) for read in at.reads):
        return False
    is_low = any(map(_is_low_argument, arguments))
    handed_on = any(read.trace.harmless == "mask" for read in at.reads) or any(map(_holds_mask_value, at.inputs))
    return is_low or handed_on or op.has("masks") or (_is_only_mask(output) and not op.has("poles"))


def _killed(at: _At, alarms: Sequence[Event]) -> list[Event]:
    """The first event of an input that no output has. Operators without float outputs are ignored, because they only
    test it."""
    if not any(_can_hold(output.tensor) for output in at.outputs) or any(one.extremes is None for one in at.outputs):
        return []
    left = {event.kind for event in alarms}
    for read in at.alarming:
        one = read.scanned
        gone = [kind for kind in kinds_of(one.tensor, one.extremes) if not left or left == {"saturated"} != {kind}]
        if gone and one.operator.order == at.operator.order:
            what = amount(gone[0], one)
            now = "; the output has none: replaced or hidden by this operator (nan_to_num, where, clamp, saturation)"
            now = "; the output has the largest value of its type instead" if left else now
            what = what._replace(words=what.words + now)
            return [event_of(one, gone[0], "killed", what, parents=(read.trace.order,))]
    return []


def _of_device(at: _At, alarms: Sequence[Event], flagged: tuple[str, str]) -> Event:
    evidence, origin = [], "born" if at.is_known else "unknown"
    if at.alarming:
        evidence, origin = [_what_came(at)], "propagated"
    elif not alarms:
        seen = at.outputs and all(output.extremes is not None for output in at.outputs)
        evidence = [NOT_SEEN if seen else Evidence("outputs unknown", "the outputs are unknown")]
    return device_event(at.operator.order, at.operator, origin, flagged, *evidence, parents=at.parents)


def _what_came(at: _At) -> Evidence:
    words = []
    for read in at.alarming[:3]:
        one = read.scanned
        words.append(f"{one.tensor.slot} of {one.operator.name} has {'/'.join(kinds_of(one.tensor, one.extremes))}")
    return Evidence("came in", "{which}", {"which": Fact(", ".join(words))})


def _clean(at: _At) -> Evidence:
    """Evidence that the inputs are finite, with the size that overflows: the largest value if the operator rises with
    it, else the largest magnitude."""
    masks = [f"{read.scanned.tensor.slot} contains a mask" for read in at.reads if read.trace.harmless == "mask"]
    raw = [read.scanned.tensor.slot for read in at.reads if read.trace.harmless == "uninitialised"]
    if raw:
        return Evidence("raw", "{slots} is memory that no operator has written", {"slots": Fact(", ".join(raw))})
    if masks:
        return Evidence("masks", "{masks}, the inputs are otherwise finite", {"masks": Fact(", ".join(masks))})
    known = [one for one in at.inputs if one.extremes is not None and one.extremes.largest >= 0]
    if not known:
        return Evidence("reads nothing", "the operator reads no tensor")
    op_type, forward = op_type_of(at.operator), at.operator.phase != "backward"
    extremes = [one.extremes for one in known if one.extremes is not None]
    highest, magnitude = max(x.maximum for x in extremes), max(x.largest for x in extremes)
    if highest == magnitude or (forward and op_type.has("rises")):
        words, size = "its inputs are finite (largest {size:.6g})", highest
    else:
        words, size = "its inputs are finite (largest magnitude {size:.6g})", magnitude
    facts: dict[str, Fact] = {"size": Fact(size)}
    if forward and len(known) == len(at.inputs) == 2 and op_type.has("quotient"):
        divisor = extremes[-1]
        facts.update(slot=Fact(known[-1].tensor.slot), low=Fact(divisor.minimum), high=Fact(divisor.maximum))
        words += "; the divisor {slot} lies between {low:.6g} and {high:.6g}"
        if divisor.zeros and known[-1].counted:
            facts.update(zeros=Fact(divisor.zeros), all=Fact(divisor.elements))
            words += ", {zeros} of its {all} elements are 0"
    return Evidence("finite", words, facts)


def _can_hold(tensor: TensorRef) -> bool:
    """Return whether the type of a tensor has a NaN, an Inf or a limit."""
    row = lookup(tensor.dtype)
    return row is None or row.kind in "fc"


def communicates(operator: Operator) -> bool:
    """Return whether the outputs of an operator may come from other ranks."""
    return op_type_of(operator).has("collective")


def _alone(one: ScanResult) -> Pair:
    return Pair(one.operator.order, one.tensor.slot, one.operator, None, one.tensor, None)


def _is_low(x: Optional[Extremes]) -> bool:
    """Return whether the only special values are minus infinity or the lowest finite value, with at least one of
    them."""
    return x is not None and not (x.nan or x.posinf or x.high) and bool(x.neginf or x.low)


def _is_high(x: Optional[Extremes]) -> bool:
    return x is not None and not (x.nan or x.neginf or x.low) and bool(x.posinf or x.high)


def _has_low(one: ScanResult) -> bool:
    return one.extremes is not None and bool(one.extremes.neginf or one.extremes.low)


def _is_only_mask(one: ScanResult) -> bool:
    """Return whether a tensor has both zeros and lowest values and no others; by statistics: no value above zero."""
    x = one.extremes
    if x is None or not _is_low(x):
        return False
    return (0 < x.zeros == x.elements - x.low - x.neginf) if one.counted else x.maximum == 0


def _is_low_argument(value: object) -> bool:
    """Return whether a number of any size is a low mask value; integers may exceed the range of a float."""
    if not isinstance(value, (int, float)):
        return False
    return value <= -LEAST_MASK or (value < 0 and _is_mask_value(float(value)))


def _is_mask_value(value: float) -> bool:
    return any(abs(value + mask) <= mask * MASK_ROUNDING for mask in MASKS if mask >= 65504.0)


def _holds_mask_value(one: ScanResult) -> bool:
    """Return whether a tensor has a mask value such as -1e9, which becomes minus infinity in float16."""
    return one.extremes is not None and _is_mask_value(one.extremes.minimum)


def _shape(one: ScanResult) -> object:
    return one.tensor.dtype, one.tensor.shape


def _content(one: ScanResult) -> object:
    """A key for tensors with events. Two tensors with equal keys are the same tensor."""
    x = one.extremes
    if x is None:
        return None
    return x._replace(
        minimum=_comparable(x.minimum), maximum=_comparable(x.maximum), first_nan=0, first_inf=0, first_limit=0
    )


def _comparable(value: float) -> float:
    return 0.0 if math.isnan(value) else value  # NaN equals nothing, not even in a key
