"""Where NaN, Inf and saturation are born in one run, how they spread, and where they die.

Operator by operator, in the order of execution: what did it read, what did it write? An event that is written and was
not read is born there, whatever made it: 0/0, Inf-Inf, a sum beyond the type. What was read is found again where it
was written, by the graph or by its content. Two things are no alarm: minus infinity or the lowest value that somebody
put in on purpose (a mask), and memory that nobody wrote yet. docs/localisation.md tells the rules.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import groupby
from typing import Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.dtypes import lookup
from npucmp.graphs.graph import escaped
from npucmp.kernel.numpy_kernel import MASK_ROUNDING, MASKS
from npucmp.model import Event, Extremes, Operator, TensorRef
from npucmp.nodes import UNINITIALISED, containers
from npucmp.scan import Scanned

MASKING = re.compile(r"mask|where|select|full|fill|triu|tril|pad|scatter|softmax_backward", re.IGNORECASE)
RECEIVING = re.compile(r"recv|all_gather|reduce_scatter|all_to_all|broadcast|HcomReceive", re.IGNORECASE)
IN_PLACE = re.compile(r"[a-z0-9]_$|^__i[a-z]+__$|^__setitem__$|^(Apply|Assign|Scatter|Inplace)[A-Z]?")
SCALED_TO_THE_LIMIT = 0.01  # share of an 8-bit tensor that lies at the largest value because it was scaled to it


class Trace(NamedTuple):
    """What is known of a tensor that was written: the operator, and why its events are no alarm ("" if they are)."""

    order: int
    harmless: str


class Read(NamedTuple):
    """An input that holds an event, and where that comes from."""

    scanned: Scanned
    trace: Trace


def kinds_of(tensor: TensorRef, extremes: Optional[Extremes]) -> "list[str]":
    """The events that a tensor holds, by what they are."""
    if extremes is None:
        return []
    limits = extremes.high + extremes.low
    row = lookup(tensor.dtype)
    if row is not None and row.itemsize == 1 and limits <= SCALED_TO_THE_LIMIT * extremes.elements:
        limits = 0  # quantisation scales the largest value to the limit, on purpose
    counts = (("nan", extremes.nan), ("inf", extremes.inf), ("saturated", limits))
    return [kind for kind, count in counts if count]


def headroom(tensor: TensorRef, extremes: Optional[Extremes]) -> Optional[float]:
    """log2(largest finite value of the type / largest finite magnitude), bits; None for other types and zeros."""
    row = lookup(tensor.dtype)
    if extremes is None or row is None or row.kind != "f" or not extremes.largest > 0:
        return None
    return math.log2(row.largest / extremes.largest)


def events_of(scanned: "Sequence[Scanned]", flagged: "Mapping[int, tuple[str, str]]") -> "list[Event]":
    """The events of one run in order. `flagged` has (status, bits in words) of operators that the device blames."""
    flow = _Flow({one.operator.name: one.operator.scope for one in scanned if one.operator.scope})
    for _, group in groupby(scanned, key=lambda one: one.operator.order):
        rows = list(group)
        flow.visit(rows, flagged.get(rows[0].operator.order))
    return flow.events


class _Flow:
    """Walks the operators once, remembering which tensors hold events, and why."""

    def __init__(self, scopes: "Mapping[str, str]") -> None:
        self.events: list[Event] = []
        self._scopes = scopes
        self._named: dict[str, Trace] = {}
        self._content: dict[object, Trace] = {}
        self._calls: dict[str, list[Read]] = {}  # what the forward of a call read and wrote
        self._inside: dict[str, str] = {}  # container → the first operator in it that has an event
        self._alarmed = False

    def visit(self, rows: "Sequence[Scanned]", flagged: "Optional[tuple[str, str]]") -> None:
        """Decides one operator."""
        operator = rows[0].operator
        inputs = [row for row in rows if not row.tensor.is_output]
        outputs = [row for row in rows if row.tensor.is_output]
        reads = list(self._reads(operator, inputs, outputs))
        alarming = [read for read in reads if not read.trace.harmless]
        if operator.phase == "backward":
            alarming += [read for read in self._calls.get(operator.call, ()) if not read.trace.harmless]
        made = [event for output in outputs for event in self._written(operator, inputs, output, reads, alarming)]
        alarms = [event for event in made if event.alarm]
        if alarming and not alarms and outputs and all(output.extremes is not None for output in outputs):
            made += [_killed(read) for read in alarming if read.scanned.operator.order == operator.order][:1]
        if flagged:
            made = [replace(event, device_status=flagged[0], device_bits=flagged[1]) for event in made]
            made.append(self._of_device(operator, inputs, alarming, alarms, flagged))
        self.events += made
        self._remember(operator, reads, outputs, alarms or [event for event in made if event.kind == "device"])

    def _reads(
        self, operator: Operator, inputs: "Sequence[Scanned]", outputs: "Sequence[Scanned]"
    ) -> "Iterator[Read]":
        """Inputs that hold events; one that nothing dumped wrote is an event of its own."""
        for one in inputs:
            kinds = kinds_of(one.tensor, one.extremes)
            if not kinds:
                continue
            trace = self._traced(one)
            if trace is None and IN_PLACE.search(operator.op_type) and _content(one) in map(_content, outputs):
                continue  # recorded after it was overwritten
            if trace is None and _is_low(one.extremes):
                trace = Trace(operator.order, "mask")
            elif trace is None and RECEIVING.search(operator.op_type):
                trace = Trace(operator.order, "uninitialised")
            elif trace is None:
                trace = Trace(operator.order, "")
                if not self._alarmed:
                    self.events.append(_from_outside(one, kinds[0]))
                    self._alarmed = True
                self._content[_content(one)] = trace
            yield Read(one, trace)

    def _traced(self, one: Scanned) -> Optional[Trace]:
        found = self._named.get(_key(one.tensor.source)) if one.tensor.source else None
        return found or self._content.get(_content(one))

    def _written(
        self,
        operator: Operator,
        inputs: "Sequence[Scanned]",
        output: Scanned,
        reads: "Sequence[Read]",
        alarming: "Sequence[Read]",
    ) -> "Iterator[Event]":
        """The events of one output."""
        kinds = kinds_of(output.tensor, output.extremes)
        if not kinds or self._is_mask(operator, inputs, output, reads):
            return
        for kind in kinds:
            what = amount(kind, output)
            if operator.op_type in UNINITIALISED or _is_waiting(operator):
                words = f"{what}: memory that nobody has written yet"
                yield _event(output, kind, "unknown", words, alarm=False)
            elif alarming:
                parents = tuple(dict.fromkeys(read.trace.order for read in alarming))
                yield _event(output, kind, "propagated", f"{what}; {_what_came(alarming)}", parents=parents)
            elif self._contained(operator):
                words = f"{what}; contains {self._contained(operator)}, which has it"
                yield _event(output, kind, "propagated", words)
            elif not _are_known(operator, inputs):
                origin = "propagated" if self._alarmed and not inputs else "unknown"
                yield _event(output, kind, origin, f"{what}; what it read was not dumped or cannot be read")
            else:
                yield _event(output, kind, "born", f"{what}; {_clean(inputs, reads)}")

    def _contained(self, operator: Operator) -> str:
        return self._inside.get(operator.name) or self._inside.get(f"{operator.phase} {operator.path}", "")

    def _is_mask(
        self, operator: Operator, inputs: "Sequence[Scanned]", output: Scanned, reads: "Sequence[Read]"
    ) -> bool:
        """Whether all that an output holds is minus infinity or the lowest value, put in on purpose."""
        x = output.extremes
        if x is None or not _is_low(x):
            return False
        handed_on = any(read.trace.harmless == "mask" for read in reads) or any(map(_holds_mask_value, inputs))
        only_mask = output.counted and x.zeros + x.low + x.neginf == x.elements
        return handed_on or only_mask or bool(MASKING.search(operator.op_type))

    def _of_device(
        self,
        operator: Operator,
        inputs: "Sequence[Scanned]",
        alarming: "Sequence[Read]",
        alarms: "Sequence[Event]",
        flagged: "tuple[str, str]",
    ) -> Event:
        words = f"the device noted: {flagged[1]}"
        if not alarms:
            words += "; its outputs show nothing of it: masked by saturation, or it happened in padding"
        if alarming:
            return Event(operator.order, operator, None, "device", "propagated", f"{words}; {_what_came(alarming)}",
                         None, True, *flagged)  # fmt: skip
        origin = "born" if _are_known(operator, inputs) else "unknown"
        return Event(operator.order, operator, None, "device", origin, words, None, True, *flagged)

    def _remember(
        self, operator: Operator, reads: "Sequence[Read]", outputs: "Sequence[Scanned]", alarms: "Sequence[Event]"
    ) -> None:
        held = []
        for output in outputs:
            if not kinds_of(output.tensor, output.extremes):
                continue
            alarmed = any(event.tensor is output.tensor for event in alarms)
            uninitialised = operator.op_type in UNINITIALISED or _is_waiting(operator)
            trace = Trace(operator.order, "" if alarmed else "uninitialised" if uninitialised else "mask")
            self._content[_content(output)] = trace
            self._named[_key(f"{operator.name}:{output.tensor.slot.partition(':')[2]}")] = trace
            held.append(Read(output, trace))
        if operator.phase == "forward":
            self._calls[operator.call] = [*reads, *held]
        if alarms:
            self._alarmed = True
            for container in containers(operator, self._scopes):
                self._inside.setdefault(container, operator.name)


def _event(one: Scanned, kind: str, origin: str, because: str, **more: object) -> Event:
    return Event(
        one.operator.order, one.operator, one.tensor, kind, origin, because, one.extremes, one.counted, **more  # type: ignore[arg-type]
    )


def _killed(read: Read) -> Event:
    one = read.scanned
    kind = kinds_of(one.tensor, one.extremes)[0]
    words = f"{amount(kind, one)} read, none written: masked by a choice, a bound or saturation"
    return _event(one, kind, "killed", words, parents=(read.trace.order,))


def _from_outside(one: Scanned, kind: str) -> Event:
    words = f"{amount(kind, one)}; no dumped operator wrote it: it came in from outside, or from code not dumped"
    return _event(one, kind, "unknown", words, outside=True)


def amount(kind: str, one: Scanned) -> str:
    """How much of it there is, and where it begins."""
    x, tensor = one.extremes, one.tensor
    assert x is not None
    limits = f"values at ±{x.largest:g}, the largest of {tensor.dtype}"
    word = {"nan": "NaN", "inf": "Inf", "saturated": limits}[kind]
    if not one.counted:
        return f"{tensor.slot}: {word}, by its statistics"
    count, first = {
        "nan": (x.nan, x.first_nan),
        "inf": (x.inf, x.first_inf),
        "saturated": (x.high + x.low, x.first_limit),
    }[kind]
    return f"{tensor.slot}: {count:,} of {x.elements:,} {word}, the first at {_unravelled(first, tensor.shape)}"


def _unravelled(index: int, shape: "tuple[int, ...]") -> str:
    place = []
    for size in reversed(shape):
        index, at = divmod(index, max(1, size))
        place.append(at)
    return str(place[::-1])


def _what_came(alarming: "Sequence[Read]") -> str:
    words = []
    for read in alarming[:3]:
        one = read.scanned
        words.append(f"{one.tensor.slot} of {one.operator.name} has {'/'.join(kinds_of(one.tensor, one.extremes))}")
    return ", ".join(words)


def _clean(inputs: "Sequence[Scanned]", reads: "Sequence[Read]") -> str:
    """What the operator read, in words: finite, and how large."""
    masks = [read.scanned.tensor.slot for read in reads if read.trace.harmless == "mask"]
    raw = [read.scanned.tensor.slot for read in reads if read.trace.harmless == "uninitialised"]
    if raw:
        return f"{', '.join(raw)} is memory that nobody had written"
    if masks:
        return f"{', '.join(masks)} holds a mask of minus infinity, nothing else was amiss"
    sizes = [one.extremes.largest for one in inputs if one.extremes is not None and one.extremes.largest >= 0]
    return f"its inputs are finite (largest {max(sizes):.6g})" if sizes else "it read nothing"


def _are_known(operator: Operator, inputs: "Iterable[Scanned]") -> bool:
    return operator.reads_recorded and all(one.extremes is not None for one in inputs)


def _is_waiting(operator: Operator) -> bool:
    """A receive that returns before the data is there."""
    return operator.op_type in ("irecv", "batch_isend_irecv")


def _is_low(x: Optional[Extremes]) -> bool:
    """Only minus infinity or the lowest finite value, and at least one of them."""
    return x is not None and not (x.nan or x.posinf or x.high) and bool(x.neginf or x.low)


def _holds_mask_value(one: Scanned) -> bool:
    """-1e9 and the like become minus infinity in float16."""
    x = one.extremes
    return x is not None and any(abs(x.minimum + mask) <= mask * MASK_ROUNDING for mask in MASKS if mask >= 65504.0)


def _content(one: Scanned) -> object:
    """Two tensors with events and all this in common are one tensor."""
    x = one.extremes
    if x is None:
        return None
    return x._replace(minimum=_told(x.minimum), maximum=_told(x.maximum), first_nan=0, first_inf=0, first_limit=0)


def _told(value: float) -> float:
    return 0.0 if math.isnan(value) else value  # NaN equals nothing, not even in a key


def _key(tensor: str) -> str:
    return escaped(tensor)
