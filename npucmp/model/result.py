"""What the commands return: all that a presenter may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Optional

from npucmp.model.cause import Cause, Root
from npucmp.model.dump import Operator, Run, TensorRef
from npucmp.model.finding import Finding, Tolerance
from npucmp.model.moments import Extremes
from npucmp.model.pair import Pair


class FusionPass(NamedTuple):
    """How often a fusion pass took effect with fusion switched on and off; None where that is not known."""

    name: str
    kind: str
    on: Optional[int]
    off: Optional[int]


class Spots(NamedTuple):
    """Where two tensors differ, as a picture: the last axis across, all others down.

    rows, columns  of the tensor so cut
    across         cells in a line of the picture
    counts         of elements that differ, cell by cell, line by line
    bits           of elements that differ in a bit, bit by bit from the highest; () where types have no common bits.
                   Of several millions only the first count here
    """

    dtype: str
    rows: int
    columns: int
    across: int
    counts: tuple[int, ...]
    bits: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rerun:
    """One operator that is not bit-equal in all runs; one row of rerun.csv.

    odd numbers the runs, from 1, that do not agree with most of them (all, where no two agree). `excused` if the
    operator is random or asynchronous on purpose. Figures are the largest over all runs, None where unknown.
    `spots` are those of run `shown` against run 1, None where nobody looked.
    """

    place: int
    step: Optional[int]
    rank: Optional[int]
    pair: Pair
    slot: str
    cause: Cause
    differing: Optional[int]
    max_abs: Optional[float]
    rel_l2: Optional[float]
    max_ulp: Optional[int]
    odd: tuple[int, ...]
    because: str
    excused: bool = False
    spots: Optional[Spots] = None
    shown: int = 0


class Noise(NamedTuple):
    """How far repeated runs put one tensor apart; one row of noise.csv."""

    op: str
    slot: str
    rel_l2: float
    max_abs_err: float
    runs: int


@dataclass(frozen=True)
class Comparison:
    """One (step, rank) of target and golden, compared."""

    target: Run
    golden: Run
    findings: tuple[Finding, ...]
    roots: tuple[Root, ...]
    matched: Mapping[str, int]  # operators by matcher
    alone: tuple[int, int] = (0, 0)  # operators that only the target, only the golden has
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Event:
    """A tensor at the limits of its type, or an overflow that the device noted; one row of overflow.csv.

    kind     "nan", "inf", "saturated", "device"; "" for a tensor that is only close to the edge
    origin   "born" (nothing that the operator read has any), "propagated", "killed" (it was read and is gone after the
             operator), "unknown"; "" where nothing happened
    counted  False when only statistics are known, which tell that there is a NaN but not how many
    golden   what the golden run holds there: "nan", "inf", "saturated", "none", or "would overflow" where its values
             lie beyond the target's type; "" without one
    alarm    False for what is explained: memory that nobody wrote, values close to the edge
    outside  it was read, and no dumped operator wrote it
    parents  orders of the operators that it came from
    """

    order: int
    operator: Optional[Operator]
    tensor: Optional[TensorRef]
    kind: str
    origin: str
    because: str
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


@dataclass(frozen=True)
class Scan:
    """One run, scanned. `tensors` counts those of which something is known, unreadable the others with their reason."""

    run: Run
    events: tuple[Event, ...]
    roots: tuple[Root, ...]
    tensors: int
    unreadable: tuple[str, ...] = ()
    golden: Optional[Run] = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Overflow:
    """All that a presenter may see of `npucmp overflow`."""

    path: str
    scans: tuple[Scan, ...]
    golden_path: str = ""
    argv: tuple[str, ...] = ()
    broken: tuple[Run, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    bytes_read: int = 0
    partial: bool = False

    command = "overflow"

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(event for scan in self.scans for event in scan.events)

    @property
    def roots(self) -> tuple[Root, ...]:
        """All roots by place, over all steps and ranks."""
        return tuple(sorted((root for scan in self.scans for root in scan.roots), key=lambda root: root.place))


@dataclass(frozen=True)
class Report:
    """All that a presenter may see."""

    command: str
    target_path: str
    golden_path: str
    comparisons: tuple[Comparison, ...]
    unpaired: tuple[tuple[str, Run], ...] = ()  # ("target" | "golden", run) without a partner
    broken: tuple[tuple[str, Run], ...] = ()  # runs that cannot be read
    rules: tuple[Tolerance, ...] = ()
    argv: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    bytes_read: int = 0
    partial: bool = False
    strict: bool = False
    passes: tuple[FusionPass, ...] = ()
    runs: tuple[str, ...] = ()
    reruns: tuple[Rerun, ...] = ()
    noise: tuple[Noise, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for one in self.comparisons for finding in one.findings)

    @property
    def roots(self) -> tuple[Root, ...]:
        """All roots by place, over all steps and ranks."""
        return tuple(sorted((root for one in self.comparisons for root in one.roots), key=lambda root: root.place))

    def to_pandas(self) -> Any:
        """The rows of tensors.csv as a pandas DataFrame, columns and order as docs/metrics.md lists them."""
        from npucmp.report.tables import tensors_frame

        return tensors_frame(self)
