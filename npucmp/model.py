"""The nouns. A newcomer reads this file first.

Data flows one way through them:
    Run × 2 → [Pair] → Moments → Finding → Root → Report
Everything is immutable; values of tensors are never held here, only where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Mapping, NamedTuple, Optional

Scalar = Any  # a non-tensor argument as the dump spells it: number, text, bool, None


class Verdict(str, Enum):
    """What a tensor pair turned out to be. The words are those of tensors.csv."""

    MATCH = "match"
    DIVERGED = "diverged"
    NONFINITE = "nonfinite"  # NaN or Inf on one side only
    SHAPE = "shape"
    DTYPE = "dtype"  # cannot be compared, e.g. text against numbers
    MISSING = "missing"  # no partner on the other side
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"  # statistics or checksums cannot decide


DIFFERS = frozenset((Verdict.DIVERGED, Verdict.NONFINITE, Verdict.SHAPE))  # the two sides are not the same


class Cause(str, Enum):
    """What an operator has to do with the error that it shows. Best suspects first."""

    BORN = "BORN"  # inputs agree, an output does not
    GAP = "GAP"  # an input differs although everything dumped upstream agrees
    WORSENED = "WORSENED"  # inputs differ, outputs far more than that explains
    UNKNOWN = "UNKNOWN"  # inputs were not dumped or cannot be compared
    PROPAGATED = "PROPAGATED"  # passes on what it got


class Device(NamedTuple):
    """How a device laid out the values of a tensor in memory, where that is not the C order of its logical shape.

    layout  name of layouts.py ("NC1HWC0", "FRACTAL_NZ"); shape the stored shape, padding included
    origin  order of the logical axes ("NHWC", "NCHW", "ND"); groups the group count of a grouped FRACTAL_Z
    """

    layout: str
    shape: tuple[int, ...]
    origin: str = ""
    groups: int = 1


class Payload(NamedTuple):
    """Where the values of one tensor lie in a file, as its own header tells it.

    `shape` is the logical shape, in which the values are read. `shape` and `strides` count elements, `offset` bytes
    from the start of the file to the first element; `strides` is empty for a C-contiguous tensor. `byteorder` is
    "<" or ">". `device` is set where the stored order is a device's own. A tensor that was computed in slices has
    `parts`, to be joined along `axis` of their stored shapes. `dataset` names an HDF5 dataset that does not lie in
    one piece.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...] = ()
    byteorder: str = "<"
    device: Optional[Device] = None
    parts: "tuple[Payload, ...]" = ()
    axis: int = 0
    dataset: str = ""


class Statistics(NamedTuple):
    """What a dump without payload recorded of a tensor; None where it recorded nothing. `norm` is L2."""

    max: Optional[float] = None
    min: Optional[float] = None
    mean: Optional[float] = None
    norm: Optional[float] = None


class TensorRef(NamedTuple):
    """One tensor of a dump: what it is and where it lies, never its values.

    slot      "input:0", "output:1", "param:weight", "grad:weight"; "" when the header is unreadable
    dtype     canonical name of dtypes.py, or the dump's own word for one that is not in that table
    shape     logical shape; () is 0-d
    file      payload file, "" if the dump kept none; `encoding` names the reader ("torch_pt", "npy")
    checksum  recorded checksum in the dump's own spelling, "" if none
    layout    a device's layout of the stored values ("NC1HWC0"), "" for plain C order
    problem   why this tensor is known to be unreadable without opening it, "" if it is not
    label     the dump's own name of the tensor, for reports
    payload   where the values lie, if that is known without opening the file again
    source    of an input: the tensor of the same run that it reads, "{operator}:{output index}", "" if unknown
    origin    of an output: the tensor of the unfused network that it stands for, in the same words
    """

    slot: str
    dtype: str
    shape: tuple[int, ...]
    file: str = ""
    encoding: str = ""
    statistics: Optional[Statistics] = None
    checksum: str = ""
    layout: str = ""
    problem: str = ""
    label: str = ""
    payload: Optional[Payload] = None
    source: str = ""
    origin: str = ""

    @property
    def is_output(self) -> bool:
        return self.slot.startswith(("output", "grad")) or not self.slot


class Task(NamedTuple):
    """One execution on a device; -1 where a dump does not tell. context and thread are those of a slice."""

    task: int
    stream: int = -1
    context: int = -1
    thread: int = -1


class Operator(NamedTuple):
    """One executed operator.

    name       the dump's name
    op_type    what it computes ("softmax", "Linear"), without index, phase or path
    kind       name without call index: what stays the same when calls are inserted before it
    phase      "forward", "backward" or ""
    order      position in the execution order of its run, from 0
    scope      name of the operator record of the module that contains it, "" if the dump does not say
    path       of a module: where it sits in the model ("Module.encoder.layers.0"), "" for other operators
    arguments  its non-tensor arguments by slot ("input:4" → 1e-12)
    stack      call stack, innermost frame first, as the dump spells it
    unique     False when the name holds a call index, which shifts when a call is inserted
    originals  operators of the unfused network that it computes, by its graph
    inserted   the graph compiler put it in; no operator of the network stands behind it
    passes     fusion passes that made it
    tasks      what the device called its execution, by which overflow records name it
    """

    name: str
    op_type: str
    kind: str
    phase: str
    order: int
    tensors: tuple[TensorRef, ...]
    scope: str = ""
    path: str = ""
    arguments: Mapping[str, Scalar] = {}
    stack: tuple[str, ...] = ()
    unique: bool = True
    call: str = ""  # forward and backward of one call share this text
    reads_recorded: bool = True  # whether the dump says what it reads, be it nothing
    originals: tuple[str, ...] = ()
    inserted: bool = False
    passes: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()


@dataclass(frozen=True)
class Run:
    """One rank and step of a dump. `detail` and `notes` are words for the reader of a report.

    ordered is False when the dump does not tell the order of execution; `problem` says why a run cannot be read
    (it then has no operators), "" if it can. `records` are files in which the device noted overflows.
    """

    path: str
    format: str
    operators: tuple[Operator, ...]
    step: Optional[int] = None
    rank: Optional[int] = None
    detail: str = ""
    notes: tuple[str, ...] = ()
    ordered: bool = True
    problem: str = ""
    records: tuple[str, ...] = ()

    @property
    def tensors(self) -> int:
        return sum(len(operator.tensors) for operator in self.operators)


class Match(NamedTuple):
    """Two operators that were lined up; `via` is the matcher, `confidence` from 0 to 1.

    For a fused operator `golden` is made up of the tensors of several operators of the golden run; `inside` are the
    orders of all that lie within it.
    """

    target: Operator
    golden: Operator
    via: str
    confidence: float
    inside: tuple[int, ...] = ()


class Pair(NamedTuple):
    """Two tensors that should agree, or one without a partner.

    `via` is empty where a side is missing; `note` then says why. `order` is the place in the merged
    graph order of both runs, the same for all pairs of an operator.
    """

    order: int
    slot: str
    target_op: Optional[Operator]
    golden_op: Optional[Operator]
    target: Optional[TensorRef]
    golden: Optional[TensorRef]
    via: str = ""
    confidence: float = 0.0
    note: str = ""

    @property
    def operator(self) -> Operator:
        """The operator as the target knows it, the golden's if the target has none."""
        operator = self.target_op or self.golden_op
        assert operator is not None
        return operator

    @property
    def is_inside(self) -> bool:
        """Whether the tensor, or the one of both that is there, is the compiler's own: the network has none like it."""
        tensor, operator = (self.target, self.target_op) if self.target else (self.golden, self.golden_op)
        if tensor is None or operator is None:
            return False
        return operator.inserted or (bool(operator.originals) and not tensor.origin)


class Extremes(NamedTuple):
    """What one tensor holds at the limits of its type, over all its elements.

    high and low count the elements that equal the largest and the lowest finite value, zeros those that are 0;
    first_… are flat indices of the first NaN, infinity and element at a limit, -1 for none. minimum and maximum are
    those of the finite elements, NaN if there is none.
    """

    elements: int = 0
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    high: int = 0
    low: int = 0
    zeros: int = 0
    first_nan: int = -1
    first_inf: int = -1
    first_limit: int = -1
    minimum: float = float("nan")
    maximum: float = float("nan")

    @property
    def inf(self) -> int:
        return self.posinf + self.neginf

    def of(self, kind: str) -> tuple[int, int]:
        """(elements of a kind of event, the flat index of the first)."""
        return {
            "nan": (self.nan, self.first_nan),
            "inf": (self.inf, self.first_inf),
            "saturated": (self.high + self.low, self.first_limit),
        }[kind]

    @property
    def largest(self) -> float:
        """Largest finite magnitude; NaN if nothing is finite."""
        return max(abs(self.minimum), abs(self.maximum))


class Side(NamedTuple):
    """One side's own half of Moments, over all its elements.

    minimum, maximum, total and squares (sum of squares) are over the finite elements; for complex
    tensors over the magnitudes. minimum and maximum are NaN when nothing is finite.
    """

    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    minimum: float = float("nan")
    maximum: float = float("nan")
    total: float = 0.0
    squares: float = 0.0

    @property
    def inf(self) -> int:
        return self.posinf + self.neginf


HISTOGRAM_BINS = 24  # |x-y|/max(|y|, floor): bin 0 holds exact zeros, bin k decade 10^(k-20) ≤ e < 10^(k-19)


class Moments(NamedTuple):
    """What one pass over a tensor pair measured; no opinion. x is the target, y the golden.

    elements    how many were looked at
    compared    positions that are finite on both sides and no mask: all sums below run over these
    masked      positions where both sides hold "minus infinity" (kernel/numpy_kernel.py)
    mismatched  positions that are NaN or Inf on one side only, or differently so
    equal       positions with the same bits
    max_abs_exact  largest |x-y| of integer tensors, exact, None for other dtypes
    """

    elements: int = 0
    target: Side = Side()
    golden: Side = Side()
    compared: int = 0
    masked: int = 0
    mismatched: int = 0
    equal: int = 0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0
    sum_d: float = 0.0
    sum_abs: float = 0.0
    sum_dd: float = 0.0
    max_abs: float = 0.0
    max_abs_index: int = -1
    max_abs_exact: Optional[int] = None
    max_rel: float = 0.0
    max_rel_index: int = -1
    sum_rel: float = 0.0
    below_1e3: int = 0
    below_5e3: int = 0
    outside: int = 0
    max_ulp: Optional[int] = None
    histogram: tuple[int, ...] = (0,) * HISTOGRAM_BINS


class Measurement(NamedTuple):
    """A pair and what came of measuring it.

    moments is None when there was nothing to measure. `bound` is a proven lower bound of rel_l2 from
    recorded statistics, `same` what checksums say; each None where the dump cannot tell.
    `problem` says which side cannot be read and why; `unlike` why two readable sides cannot be compared, and
    `shapes_differ` whether it is for their shapes.
    """

    pair: Pair
    moments: Optional[Moments] = None
    bound: Optional[float] = None
    same: Optional[bool] = None
    problem: str = ""
    unlike: str = ""
    shapes_differ: bool = False
    statistics: tuple[Optional[Statistics], Optional[Statistics]] = (None, None)
    bytes_read: int = 0


@dataclass(frozen=True)
class Tolerance:
    """One row of the rules: which metric may be how large, for whom, and why."""

    metric: str
    limit: float
    dtype: str = ""
    op_type: str = ""
    why: str = ""


class Finding(NamedTuple):
    """A measured pair with the verdict on it.

    error is the rel_l2 the rules saw: 0 for proven equality, inf for NaN/Inf on one side, NaN for a proven
    difference of unknown size, None if nothing is known. `limit` is what it was held against.
    """

    measurement: Measurement
    verdict: Verdict
    because: str
    error: Optional[float] = None
    limit: float = 0.0
    metric: str = ""

    @property
    def pair(self) -> Pair:
        return self.measurement.pair


@dataclass(frozen=True)
class Root:
    """An operator that diverged and what it has to do with it; one row of roots.csv.

    input_error and output_error are the largest errors over its inputs and outputs (None: unknown).
    """

    place: int
    pair: Pair
    cause: Cause
    slot: str
    metric: str
    value: Optional[float]
    limit: float
    input_error: Optional[float]
    output_error: Optional[float]
    evidence: str

    @property
    def growth(self) -> Optional[float]:
        """output_error / input_error; None when one is unknown or there is no input error."""
        if self.input_error is None or self.output_error is None or not self.input_error:
            return None
        return self.output_error / self.input_error


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
