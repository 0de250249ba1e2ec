"""What the commands return: all that a presenter may see. A command adds a type, never a branch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Mapping, NamedTuple, Optional, Sequence

from npucmp.model.accused import Accused
from npucmp.model.cause import Cause, Evidence, Reasoned, Root
from npucmp.model.comparison import Comparison, StoredComparisons, Tally, tallies_of
from npucmp.model.coverage import Coverage, OpenTensor
from npucmp.model.dump import Operator, Run, TensorRef
from npucmp.model.finding import Finding, Tolerance, Verdict
from npucmp.model.look import DifferenceMap, Look
from npucmp.model.moments import Extremes
from npucmp.model.pair import Pair
from npucmp.model.shown import Shown


@dataclass(frozen=True, repr=False)
class Result(Shown, ABC):
    """What every command returns; each has a type of its own, with what it has found. `print` shows what the terminal
    shows, a notebook the suspects; it can be pickled.

    paths   the dumps, in the order in which they were given
    broken  (side, run) that cannot be read; `notes` are what a reader should know besides
    partial True where Ctrl-C ended it: it holds what was done by then
    known   all that differs is in the report that the user gave as the baseline
    settings  the options that decide a verdict and are not at their default (workflows/settings.py)
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

    @property
    @abstractmethod
    def roots(self) -> tuple[Root, ...]:
        """All roots by place, over all steps and ranks."""

    @property
    @abstractmethod
    def differs(self) -> bool:
        """Whether something was found that should not be: an answer even where some tensor could not be read."""

    @property
    @abstractmethod
    def is_decided(self) -> bool:
        """Whether, where nothing was found, enough was looked at to say so."""

    @property
    def exit_status(self) -> int:
        """0 agrees, 1 differs, 2 could not decide, 130 interrupted."""
        return 130 if self.partial else 1 if self.differs and not self.known else 0 if self.is_decided else 2

    def close(self) -> None:
        """Nobody asks it any more: what lies on disk for it goes."""


def _uncovered(run: Run, counts: bool) -> Coverage:
    """The coverage of a golden step and rank that has no partner; its elements are counted where a share of them
    decides, and where it was opened."""
    where = " ".join(f"{name} {at}" for name, at in (("step", run.step), ("rank", run.rank)) if at is not None)
    because = "the target has no such step and rank"
    if not run.operators or not counts:
        return Coverage(tensors=1, unsized=1, first=(OpenTensor(where or run.path, "", None, "", because),))
    tensors = [(operator, tensor) for operator in run.operators for tensor in operator.tensors]
    sizes = [math.prod(tensor.shape) for _, tensor in tensors]
    first = (OpenTensor(where or run.path, "", sum(sizes), "", because),)
    return Coverage(missed=sum(sizes), tensors=len(tensors), first=first)


@dataclass(frozen=True, repr=False)
class Report(Result):
    """What `npucmp compare` found; paths are target and golden, `also` further dumps as "target=DUMP". `disk` is how
    many bytes the next dump may take on a side, None for any number; `unreplayed` says what --recompute all could not
    do, `unlike` in one line why the runs are not comparable, "" if they are or nobody asked; `looks` are at tensors
    that diverged, those of suspects first, as many as could be had for little;
    `accused` tells more of the first suspects. `least` is the share of golden elements that must be covered, and
    `excluded` says which steps and ranks the user excluded."""

    command = "compare"

    comparisons: Sequence[Comparison] = ()
    unpaired: tuple[tuple[str, Run], ...] = ()  # ("target" | "golden", run) without a partner
    rules: tuple[Tolerance, ...] = ()
    strict: bool = False
    disk: Optional[int] = None
    also: tuple[str, ...] = ()
    unreplayed: tuple[str, ...] = ()
    unlike: str = ""
    accused: tuple[Accused, ...] = ()
    looks: tuple[Look, ...] = ()
    least: float = 1.0
    excluded: str = ""

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
    def tally(self) -> Tally:
        """What the verdict needs to know of all comparisons, which may lie elsewhere."""
        if isinstance(self.comparisons, StoredComparisons):  # reporting may lose some of them
            return Tally.sum(self.comparisons.tallies)
        return self._tally

    @cached_property
    def _tally(self) -> Tally:
        return Tally.sum(tallies_of(self.comparisons))

    @property
    def verdicts(self) -> set[Verdict]:
        return {verdict for verdict, count in self.tally.verdicts.items() if count}

    @property
    def differs(self) -> bool:
        alone = Verdict.MISSING in self.verdicts or self.unpaired
        return bool(self.tally.differs or (self.strict and alone))

    @property
    def is_suspected(self) -> bool:
        """Whether the operator to look at first is one that statistics alone make suspect."""
        return self.tally.is_suspected

    @property
    def is_decided(self) -> bool:
        """Whether tensors were compared and the golden is covered: all its tensors, steps and ranks, or the share of
        its elements that the user accepts."""
        return not self.broken and self.tally.is_decided(self.least) and self.coverage.suffices(self.least)

    @property
    def coverage(self) -> Coverage:
        """The coverage of all steps and ranks of the golden, those without a partner included."""
        alone = [_uncovered(run, self.least < 1.0) for side, run in self.unpaired if side == "golden"]
        return Coverage.sum([self.tally.coverage, *alone])

    def close(self) -> None:
        if isinstance(self.comparisons, StoredComparisons):
            self.comparisons.close()


class FusionPass(NamedTuple):
    """How often a fusion pass took effect with fusion switched on and off; None where that is not known."""

    name: str
    kind: str
    on: Optional[int]
    off: Optional[int]


@dataclass(frozen=True, repr=False)
class Fused(Report):
    """What `npucmp fusion-diff` found; paths are those of the run with fusion and of the one without."""

    command = "fusion-diff"

    passes: tuple[FusionPass, ...] = ()


@dataclass(frozen=True)
class Rerun(Reasoned):
    """One operator that is not bit-equal in all runs; one row of rerun.csv.

    odd numbers the runs, from 1, that do not agree with most of them (all, where no two agree). `excused` if the
    operator is random or asynchronous on purpose. Figures and evidence are of run `pictured`, which is
    the farthest from run 1; None where unknown. `picture` shows where the two differ, None where nobody looked.
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


class Noise(NamedTuple):
    """How far repeated runs put one tensor apart; one row of noise.csv."""

    op: str
    slot: str
    rel_l2: float
    max_abs_err: float
    runs: int


@dataclass(frozen=True, repr=False)
class Repeated(Report):
    """What `npucmp rerun-diff` found; paths are all runs. Each later run (target) is compared with the first (golden).

    warnings are what spoils the answer: runs that are no repeats.
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
class Event(Reasoned):
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
    """One run, scanned. `tensors` counts those of which something is known, unreadable the others with their reason."""

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
    """What `npucmp overflow` found; paths are the dump and the golden one, if there is one."""

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
        """By any event that is no mask and no memory that nobody wrote."""
        return any(event.alarm for event in self.events)

    @property
    def is_decided(self) -> bool:
        unreadable = self.broken or any(scan.unreadable for scan in self.scans)
        return not unreadable and any(scan.tensors or scan.run.records for scan in self.scans)
