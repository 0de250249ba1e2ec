"""Events at the limits of a type, and the result of `npucmp overflow`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from npucmp.model.cause import Evidence, Root, Statement
from npucmp.model.dump import Operator, Run, TensorRef
from npucmp.model.moments import Extremes
from npucmp.model.result import Result


@dataclass(frozen=True)
class Event(Statement):
    """A tensor at the limits of its type, or an overflow that the device recorded; one row of overflow.csv.

    kind     "nan", "inf", "saturated", "device"; "" for a tensor that is only close to a limit
    origin   "born" (no input of the operator has any), "propagated", "killed" (an input has it and no output does),
             "unknown"; "" if nothing happened
    counted  False if only statistics are known, which show that there is a NaN but not how many
    golden   the golden run's values: "nan", "inf", "saturated", "none", or "would overflow" if they exceed the
             target's type; "" without a golden run
    alarm    False for explained events: memory that was never written, values close to a limit
    outside  an input has it, and no dumped operator wrote that input
    parents  orders of the operators from which it came
    """

    order: int
    operator: Optional[Operator]
    tensor: Optional[TensorRef]
    kind: str
    origin: str
    evidence: tuple[Evidence, ...]
    extremes: Optional[Extremes] = None
    counted: bool = True
    device_status: str = ""
    device_bits: str = ""
    golden: str = ""
    alarm: bool = True
    outside: bool = False
    parents: tuple[int, ...] = ()

    @property
    def slot(self) -> str:
        return self.tensor.slot if self.tensor is not None else ""


@dataclass(frozen=True, repr=False)
class Scan:
    """The scan of one run. `tensors` counts those with known extremes; `unreadable` lists the others with their
    reason."""

    run: Run
    events: tuple[Event, ...]
    roots: tuple[Root, ...]
    tensors: int
    unreadable: tuple[str, ...] = ()
    golden: Optional[Run] = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.run!r}: {len(self.events)} events>"


@dataclass(frozen=True, repr=False)
class Overflow(Result):
    """The result of `npucmp overflow`. Paths are the dump and the golden dump, if there is one."""

    command = "overflow"

    scans: tuple[Scan, ...] = ()

    @property
    def path(self) -> str:
        return self.paths[0]

    @property
    def golden_path(self) -> str:
        return "".join(self.paths[1:])

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(event for scan in self.scans for event in scan.events)

    @property
    def roots(self) -> tuple[Root, ...]:
        return tuple(sorted((root for scan in self.scans for root in scan.roots), key=lambda root: root.place))

    @property
    def differs(self) -> bool:
        """Whether an event is an alarm; masks and memory that was never written are not."""
        return any(event.alarm for event in self.events)

    @property
    def is_decided(self) -> bool:
        unreadable = self.broken or any(scan.unreadable for scan in self.scans)
        return not unreadable and any(scan.tensors or scan.run.records for scan in self.scans)
