"""Results of the commands: the only input of a presenter. A command adds a type, never a branch.

Methods show a result in Python; `import npucmp` sets the presenter that produces the words.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Mapping, NamedTuple, Optional, Sequence

from npucmp.model.cause import Cause, Evidence, Root, Statement
from npucmp.model.comparison import Comparison, Coverage, OpenTensor, StoredComparisons, VerdictTally, tallies_of
from npucmp.model.dump import Operator, Run, TensorRef
from npucmp.model.finding import Finding, Pair, Tolerance, Verdict
from npucmp.model.moments import Extremes
from npucmp.model.tensor_detail import DifferenceMap, ImageBatch, TensorDetail
from npucmp.model.ticket_facts import TicketFacts
from npucmp.presenter import present

if TYPE_CHECKING:
    from npucmp.model.relation import LayoutFacts, TokenBits, TokenFacts, WeightFacts


class Presentable:
    """A result as the output of the terminal, a line of less than 1 KB, a cell of a notebook, or a table."""

    @property
    def verdict(self) -> str:
        """The verdict on the last line of the terminal output: "DIVERGED", "AGREES", "UNDECIDED" …"""
        return str(present(self, "word"))

    def __str__(self) -> str:
        return str(present(self, "screen"))

    def __repr__(self) -> str:
        return str(present(self, "brief"))

    def _repr_html_(self) -> str:
        return str(present(self, "html"))

    def to_pandas(self, table: str = "") -> Any:
        """The rows of a CSV file of the report ("roots", "worst"; without a name those of its first, with `cause` and
        `limit`) as a pandas DataFrame. `npucmp columns` lists the columns."""
        return present(self, "frame", table)

    def to_dict(self) -> dict[str, Any]:
        """The content of summary.json, as `--json` prints it: NaN and infinities are words. `npucmp columns
        summary.json` explains the keys.

        json.dumps(report.to_dict())
        """
        found: dict[str, Any] = present(self, "summary")
        return found

    def plot(self) -> Any:
        """A drawing for a notebook: the error along the network, or the curves of the result. Its `html` is a fragment
        that needs nothing else. Raises UsageError if there is nothing to plot."""
        return present(self, "plot")

    def graph(self) -> Any:
        """A drawing for a notebook: the network folded by module, open where the error begins. Raises UsageError for a
        result without a network."""
        return present(self, "graph")

    def files(self) -> dict[str, Any]:
        """The tables and the summary.json by file name: bytes, or pieces of them."""
        found: dict[str, Any] = present(self, "files")
        return found


class HasSteps:
    """A result whose tensors can be drawn over the steps."""

    def steps(self, name: str, rank: Optional[int] = None) -> Any:
        """A drawing for a notebook: norm, mean and extremes of a tensor over the steps, of both runs. `name` is an
        operator or a parameter, or words of its name and slot. Raises UsageError for a result of one step and for an
        unknown name or rank.

        report.steps("layers.0.linear output:0")
        """
        return present(self, "steps", name, "" if rank is None else str(rank))


@dataclass(frozen=True, repr=False)
class Result(Presentable, ABC):
    """The base of all results; each command has a type of its own. `print` shows the output of the terminal, a notebook
    shows the suspects; results can be pickled.

    paths   the dumps, in the order in which they were given
    broken  (side, run) that cannot be read; `notes` are further remarks for the reader
    partial True if Ctrl-C ended the run: the result covers the work done by then
    known   True if the baseline report of the user contains every difference
    settings  the options that affect a verdict and are not at their default (workflows/options.py)
    images    pictures of an input that looks like a batch of images
    """

    command: ClassVar[str]

    paths: tuple[str, ...]
    broken: tuple[tuple[str, Run], ...] = ()
    notes: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    seconds: float = 0.0
    bytes_read: int = 0
    partial: bool = False
    known: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    images: Optional[ImageBatch] = None

    @property
    @abstractmethod
    def roots(self) -> tuple[Root, ...]:
        """All roots by priority, over all steps and ranks."""

    @property
    @abstractmethod
    def differs(self) -> bool:
        """Whether a problem was found. This holds even if a tensor could not be read."""

    @property
    @abstractmethod
    def is_decided(self) -> bool:
        """Whether, if nothing was found, enough was examined to conclude this."""

    @property
    def exit_status(self) -> int:
        """0 no difference, 1 a difference, 2 not decided, 130 interrupted."""
        return 130 if self.partial else 1 if self.differs and not self.known else 0 if self.is_decided else 2

    def close(self) -> None:
        """Release the result and remove its temporary files."""


def _uncovered(run: Run, counts: bool) -> Coverage:
    """The coverage of a golden step and rank without a partner. Its elements are counted if a share of them decides,
    and the run was opened."""
    where = " ".join(f"{name} {at}" for name, at in (("step", run.step), ("rank", run.rank)) if at is not None)
    because = "the target has no such step and rank"
    if not run.operators or not counts:
        return Coverage(tensors=1, unsized=1, first=(OpenTensor(where or run.path, "", None, "", because),))
    tensors = [(operator, tensor) for operator in run.operators for tensor in operator.tensors]
    sizes = [math.prod(tensor.shape) for _, tensor in tensors]
    first = (OpenTensor(where or run.path, "", sum(sizes), "", because),)
    return Coverage(missed=sum(sizes), tensors=len(tensors), first=first)


@dataclass(frozen=True, repr=False)
class Report(HasSteps, Result):
    """The result of `npucmp compare`. Paths are target and golden, `also` further dumps as "target=DUMP".

    `disk` is the limit of the next dump in bytes per side, None for no limit. `unreplayed` is what --recompute all
    could not do, `unlike` one line about why the runs are not comparable, "" if they are or this was not checked.
    `looks` has details of tensors that diverged, suspects first, as many as are cheap to get. `accused` has facts about
    the first suspects. `least` is the share of golden elements that must be covered, and `excluded` describes the steps
    and ranks that the user excluded. `layout` says how ranks were put together; None if layouts are equal.
    `tokens` says how the tokens of both runs correspond; None if token layouts are equal.
    `token_bits` has the tokens with equal bits of each operator, if the user asked for them.
    `weights` says how the tensors of two checkpoints correspond; None for other dumps.
    """

    command = "compare"

    comparisons: Sequence[Comparison] = ()
    unpaired: tuple[tuple[str, Run], ...] = ()  # ("target" | "golden", run) without a partner
    rules: tuple[Tolerance, ...] = ()
    strict: bool = False
    disk: Optional[int] = None
    also: tuple[str, ...] = ()
    unreplayed: tuple[str, ...] = ()
    unlike: str = ""
    accused: tuple[TicketFacts, ...] = ()
    looks: tuple[TensorDetail, ...] = ()
    layout: Optional[LayoutFacts] = None
    tokens: Optional[TokenFacts] = None
    token_bits: tuple[TokenBits, ...] = ()
    least: float = 1.0
    excluded: str = ""
    weights: Optional[WeightFacts] = None

    @property
    def target_path(self) -> str:
        return self.paths[0]

    @property
    def golden_path(self) -> str:
        return self.paths[1]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for one in self.comparisons for finding in one.findings)

    @property
    def roots(self) -> tuple[Root, ...]:
        return tuple(sorted((root for one in self.comparisons for root in one.roots), key=lambda root: root.place))

    @property
    def tally(self) -> VerdictTally:
        """The summary of all comparisons for the verdict. Comparisons may be on disk."""
        if isinstance(self.comparisons, StoredComparisons):  # reports may lose comparisons
            return VerdictTally.sum(self.comparisons.tallies)
        return self._tally

    @cached_property
    def _tally(self) -> VerdictTally:
        return VerdictTally.sum(tallies_of(self.comparisons))

    @property
    def verdicts(self) -> set[Verdict]:
        return {verdict for verdict, count in self.tally.verdicts.items() if count}

    @property
    def differs(self) -> bool:
        alone = Verdict.MISSING in self.verdicts or self.unpaired
        return bool(self.tally.differs or (self.strict and alone))

    @property
    def is_suspected(self) -> bool:
        """Whether the first root is a suspect by statistics only."""
        return self.tally.is_suspected

    @property
    def is_decided(self) -> bool:
        """Whether tensors were compared, no rank of the target is left out or missing, and the golden is covered: all
        its tensors, steps and ranks, or the share of its elements that the user accepts."""
        if self.left_out or (self.layout is not None and self.layout.missing):
            return False
        return not self.broken and self.tally.is_decided(self.least) and self.coverage.suffices(self.least)

    @cached_property
    def left_out(self) -> tuple[Run, ...]:
        """The target's ranks without a partner in the compared steps. Nothing is known of them."""
        alone = [run for side, run in self.unpaired if side == "target" and run.rank is not None]
        if not alone:
            return ()
        places = self.comparisons.where if isinstance(self.comparisons, StoredComparisons) else None
        steps = {one.step for one in places} if places is not None else {one.target.step for one in self.comparisons}
        return tuple(run for run in alone if run.step in steps)

    @property
    def coverage(self) -> Coverage:
        """The coverage of all steps and ranks of the golden, including those without a partner."""
        alone = [_uncovered(run, self.least < 1.0) for side, run in self.unpaired if side == "golden"]
        return Coverage.sum([self.tally.coverage, *alone])

    def close(self) -> None:
        if isinstance(self.comparisons, StoredComparisons):
            self.comparisons.close()


class FusionPass(NamedTuple):
    """How often a fusion pass took effect with fusion on and off; None if unknown."""

    name: str
    kind: str
    on: Optional[int]
    off: Optional[int]


@dataclass(frozen=True, repr=False)
class FusionResult(Report):
    """The result of `npucmp fusion-diff`. Paths are those of the run with fusion and of the run without."""

    command = "fusion-diff"

    passes: tuple[FusionPass, ...] = ()


@dataclass(frozen=True)
class Rerun(Statement):
    """One operator that is not bit-equal in all runs; one row of rerun.csv.

    `odd` numbers the runs, from 1, that do not agree with most of them (all, if no two agree). `excused` is True if the
    operator is random or asynchronous by design. Numbers and evidence are of run `pictured`, which is the farthest from
    run 1; None if unknown. `picture` maps where the two differ, None if it was not computed. `alike` is the place
    of the first operator of the same type that differs for the same reason; 0 for that operator itself.
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
    evidence: tuple[Evidence, ...]
    excused: bool = False
    picture: Optional[DifferenceMap] = None
    pictured: int = 0
    alike: int = 0


class Noise(NamedTuple):
    """The largest differences of one tensor between repeated runs; one row of noise.csv."""

    op: str
    slot: str
    rel_l2: float
    max_abs_err: float
    runs: int


@dataclass(frozen=True, repr=False)
class RerunResult(Report):
    """The result of `npucmp rerun-diff`. Paths are all runs. Each later run (target) is compared with the first
    (golden).

    `warnings` are reasons why the answer may be invalid: runs that are not repeats.
    """

    command = "rerun-diff"

    reruns: tuple[Rerun, ...] = ()
    noise: tuple[Noise, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def target_path(self) -> str:
        return self.paths[1]

    @property
    def golden_path(self) -> str:
        return self.paths[0]


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
