"""Results of the commands: the only input of a presenter. A command adds a type, never a branch.

Methods show a result in Python; `import npucmp` sets the presenter that produces the words.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Mapping, Optional, Sequence

from npucmp.model.cause import Root
from npucmp.model.comparison import Comparison, Coverage, OpenTensor, StoredComparisons, VerdictTally, tallies_of
from npucmp.model.dump import Run
from npucmp.model.finding import Finding, Tolerance, Verdict
from npucmp.presenter import present

if TYPE_CHECKING:
    from npucmp.model.relation import LayoutFacts, TokenBits, TokenFacts, WeightFacts
    from npucmp.model.tensor_detail import ImageBatch, TensorDetail, TicketFacts
    from npucmp.model.three_runs import ThreeRuns


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
    `three_runs` has the errors of both runs against a truth; None without one.
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
    three_runs: Optional[ThreeRuns] = None

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
        differs = self.tally.differs
        if self.three_runs is not None and self.three_runs.decides:
            differs = self.three_runs.is_worse
        return bool(differs or (self.strict and alone))

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
