"""The comparison of one (step, rank) of two runs, its summary for the verdict on all of them, and its coverage: the
share of the golden dump that it accounts for, the part of the verdict that tolerances do not decide.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

import numpy as np

from npucmp.errors import DumpError
from npucmp.model.cause import Cause, Root
from npucmp.model.dump import Run
from npucmp.model.finding import DIFFERS, MEANINGLESS, OTHER_NODE, Finding, Pair, Verdict
from npucmp.model.table import (
    Columns,
    Flags,
    LazySequence,
    LazyTuple,
    Table,
    have_both_sides,
    have_elements,
    network_fact,
    verdict_rows,
    with_verdict,
)

if TYPE_CHECKING:
    from npucmp.model.routing import RoutedLayer

MOST_LISTED = 50  # open tensors: work: so many are listed by name; all are counted


class OpenTensor(NamedTuple):
    """A tensor of the golden that the comparison does not account for.

    op, slot  the golden's names; the target's for an unreadable file that only the target has
    elements  number of elements, None if no header contains it
    verdict   verdict of its row in tensors.csv, "" for a record without a row
    because   the reason in one sentence
    """

    op: str
    slot: str
    elements: int | None
    verdict: str
    because: str


class Coverage(NamedTuple):
    """The golden tensors of one or more comparisons by their status; coverages are added.

    covered   elements of tensors that were compared, or that a compared tensor accounts for
    missed    elements of open tensors
    tensors   number of open tensors, of which `unsized` have no known size
    accounted number of tensors without a comparison of their own that compared tensors account for
    excluded  number of tensors that the user excluded
    first     the first open tensors in graph order, at most LISTED
    unaligned number of open tensors that may be target tensors without a partner: these have as many elements, and may
              differ
    """

    covered: int = 0
    missed: int = 0
    tensors: int = 0
    unsized: int = 0
    accounted: int = 0
    excluded: int = 0
    first: Tuple[OpenTensor, ...] = ()
    unaligned: int = 0

    @classmethod
    def sum(cls, coverages: Iterable[Coverage]) -> Coverage:
        """The sum of several coverages."""
        covered = missed = tensors = unsized = accounted = excluded = unaligned = 0
        first: list[OpenTensor] = []
        for one in coverages:
            covered, missed, tensors = covered + one.covered, missed + one.missed, tensors + one.tensors
            unsized, accounted, excluded = unsized + one.unsized, accounted + one.accounted, excluded + one.excluded
            first += one.first[: MOST_LISTED - len(first)]
            unaligned += one.unaligned
        return cls(covered, missed, tensors, unsized, accounted, excluded, tuple(first), unaligned)

    @property
    def share(self) -> float:
        """The covered share of golden elements, 0 to 1; 1 for a golden without elements."""
        return self.covered / (self.covered + self.missed) if self.covered + self.missed else 1.0

    def suffices(self, least: float = 1.0) -> bool:
        """Return whether the covered share is at least `least`. Tensors of unknown size are never sufficient."""
        return not self.tensors or (not self.unsized and self.share >= least and least < 1.0)


DECIDED = DIFFERS | {Verdict.MATCH}  # the two sides were compared
Part = TypeVar("Part")
PartOf = Callable[[int, "Comparison"], Part]  # function of a comparison's number and the comparison


class StepRankNumbers(NamedTuple):
    """Step and rank as numbered in the dumps; None if they are not numbered."""

    step: Optional[int]
    rank: Optional[int]


@dataclass(frozen=True, repr=False)
class Comparison:
    """The comparison of one (step, rank) of target and golden.

    `incomplete` describes the parts of the network that one side lacks, so that agreement of the rest is not
    sufficient. `left_out` are the tensors that the user excluded. `coverage` counts the golden tensors that are
    accounted for. `aligned_by_content` is the line on an alignment by contents, "" without one. `routing` has the
    layers whose experts were compared, if those of any token differ.
    """

    target: Run
    golden: Run
    findings: Sequence[Finding]
    roots: Sequence[Root]
    matched: Mapping[str, int]  # operators by matcher
    alone: tuple[int, int] = (0, 0)  # operators that only the target has, and only the golden
    notes: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    left_out: tuple[Pair, ...] = ()
    coverage: Coverage = Coverage()
    seconds: Optional[float] = None  # to open and measure it; None if several were processed together
    aligned_by_content: str = ""
    routing: tuple[RoutedLayer, ...] = ()

    def __repr__(self) -> str:
        found = f"{len(self.findings)} tensors, {len(self.roots)} operators that diverged"
        return f"<step {self.step}, rank {self.rank}: {found}>"

    @property
    def step(self) -> Optional[int]:
        return self.golden.step if self.target.step is None else self.target.step

    @property
    def rank(self) -> Optional[int]:
        return self.golden.rank if self.target.rank is None else self.target.rank

    @cached_property
    def columns(self) -> Columns:
        """The columns of its findings, which are a table or become one."""
        return (self.findings if isinstance(self.findings, Table) else Table(self.findings)).columns

    @cached_property
    def causes(self) -> Mapping[int, Cause]:
        """The cause of each operator that is a root, by order."""
        if isinstance(self.roots, StoredRoots):
            return self.roots.causes
        return {root.pair.order: root.cause for root in self.roots}

    @cached_property
    def tally(self) -> VerdictTally:
        """Its summary for the verdict on several comparisons; computed once."""
        return VerdictTally.of(self)


class VerdictTally(NamedTuple):
    """The summary of a comparison for the verdict on several; summaries are added.

    verdicts    of its findings; `causes` of its roots
    decided     non-empty tensors that were compared
    undecided   tensors that should be equal, but of which statistics or checksums alone are known
    incomplete  the parts of the network that one side lacks
    first       priority and cause of its first root; None without one
    shown       whether any tensor that diverged was measured by its values, so that details are available
    bare        comparisons that have tensors, but none was decided
    coverage    of the golden tensors
    lost        comparisons that cannot be read any more
    uncertain   whether the alignment by contents leaves a suspect without proof
    """

    verdicts: Counter[Verdict]
    causes: Counter[Cause]
    decided: int = 0
    undecided: int = 0
    incomplete: tuple[str, ...] = ()
    first: Optional[tuple[int, Cause]] = None
    shown: bool = False
    bare: int = 0
    coverage: Coverage = Coverage()
    lost: int = 0
    uncertain: bool = False

    @classmethod
    def of(cls, one: Comparison) -> VerdictTally:
        """The summary of one comparison, which stores it as `tally`."""
        columns = one.columns
        decided = int(np.count_nonzero(with_verdict(columns, DECIDED) & network_fact(columns, have_elements)))
        first = min(one.roots, key=lambda root: root.place, default=None)
        was_measured = columns.rows["moments"] >= 0
        return cls(
            Counter({verdict: count for verdict, (_, count) in verdict_rows(columns).items()}),
            Counter(root.cause for root in one.roots),
            decided,
            int(np.count_nonzero(are_undecided(columns))),
            one.incomplete,
            None if first is None else (first.place, first.cause),
            bool(np.any(was_measured & with_verdict(columns, (Verdict.DIVERGED, Verdict.NONFINITE)))),
            int(bool(one.findings or one.target.tensors or one.golden.tensors) and not decided and not one.left_out),
            one.coverage,
            uncertain=any(root.is_alignment_uncertain for root in one.roots),
        )

    @classmethod
    def sum(cls, tallies: Iterable[VerdictTally]) -> VerdictTally:
        """The sum of all; parts that several lack are listed once."""
        known = [*tallies]
        verdicts: Counter[Verdict] = Counter()
        causes: Counter[Cause] = Counter()
        for one in known:
            verdicts.update(one.verdicts)
            causes.update(one.causes)
        return cls(
            verdicts,
            causes,
            sum(one.decided for one in known),
            sum(one.undecided for one in known),
            tuple(dict.fromkeys(words for one in known for words in one.incomplete)),
            min((one.first for one in known if one.first is not None), key=lambda first: first[0], default=None),
            any(one.shown for one in known),
            sum(one.bare for one in known),
            Coverage.sum(one.coverage for one in known),
            sum(one.lost for one in known),
            any(one.uncertain for one in known),
        )

    def unreadable_summary(self) -> VerdictTally:
        """The summary of a comparison that cannot be read; its agreement decides nothing."""
        return self._replace(verdicts=self.verdicts + Counter({Verdict.UNREADABLE: 1}), lost=1)

    @property
    def tensors(self) -> int:
        return sum(self.verdicts.values())

    @property
    def is_suspected(self) -> bool:
        """Whether the first root is a suspect by statistics only."""
        return self.first is not None and self.first[1] is Cause.SUSPECT

    @property
    def differs(self) -> bool:
        """Whether any tensor differs, or statistics accuse an operator."""
        return self.is_suspected or any(self.verdicts[one] for one in DIFFERS)

    def is_decided(self, least: float = 1.0) -> bool:
        """Whether non-empty tensors were compared, and the golden tensors are covered: all of them, or a share of
        `least` of their elements."""
        whole = self.coverage.suffices(least)
        return bool(self.decided) and whole and not (self.incomplete or self.bare or self.lost)


def are_undecided(columns: Columns) -> Flags:
    """Whether both sides have the tensor of each row and it should be equal, but statistics or checksums alone are
    known, which prove nothing. Tensors with meaningless values or of another autograd node, and errors that the inputs
    explain, are not undecided."""
    rows = columns.rows
    silent = [number for number, word in enumerate(columns.words) if word in (*MEANINGLESS, OTHER_NODE)]
    is_whole = network_fact(columns, have_both_sides) & network_fact(columns, have_elements)
    is_open: Flags = is_whole & with_verdict(columns, (Verdict.UNKNOWN,)) & ~np.isin(rows["rule"], silent)
    is_open &= (rows["moments"] < 0) & (rows["explained_by"] == 0) & ~rows["shapes_differ"]
    return is_open


class StoredRoots(LazyTuple[Root]):
    """The roots of a comparison by place, which are made on request. `causes`: of their operators, by order."""

    def __init__(self, count: int, causes: Mapping[int, Cause], make: Callable[[], Sequence[Root]]) -> None:
        self.causes, self._count, self._make = causes, count, make

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _made(self) -> tuple[Root, ...]:
        return tuple(self._make())


class StoredComparisons(LazySequence[Comparison]):
    """Comparisons in a scratch folder. Each is read on request and not kept in memory.

    tallies  the summary of each; `where`: step and rank of each
    folder   the scratch folder, which also holds intermediate results until the report is written
    """

    def __init__(
        self,
        read: Callable[[int], Comparison],
        parts: Callable[[PartOf[Any], Sequence[int]], Iterator[Any]],
        tallies: Sequence[VerdictTally],
        where: Sequence[StepRankNumbers],
        folder: str,
        close: Callable[[], object],
        kept: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._read, self._parts, self._tallies = read, parts, tallies
        self.where, self.folder, self.close, self.kept = where, folder, close, kept
        self._lost: set[int] = set()

    def __len__(self) -> int:
        return len(self._tallies)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, ((*self,),)  # the folder is removed with this process

    def _item(self, at: int) -> Comparison:
        return self._read(at)

    @property
    def tallies(self) -> Sequence[VerdictTally]:
        return [tally.unreadable_summary() if at in self._lost else tally for at, tally in enumerate(self._tallies)]

    def map(
        self,
        part: PartOf[Part],
        lost: Optional[Callable[[int, str], Part]] = None,
        numbers: Optional[Sequence[int]] = None,
    ) -> Iterator[Part]:
        """Apply a function to each comparison, or to those with these numbers, in order. The function and its results
        must be picklable. If workers die during a comparison, `lost` makes the result from its number and the reason;
        without `lost` a DumpError is raised."""
        chosen = range(len(self)) if numbers is None else numbers
        for at, found in zip(chosen, self._parts(part, chosen)):
            if not isinstance(found, FailedTask):
                yield found
            elif lost is None:
                raise DumpError(self.folder, f"reporting step and rank {at} ended the process: {found.because}")
            else:
                self._lost.add(at)
                yield lost(at, found.because)


class FailedTask(NamedTuple):
    """The result of a task during which workers died."""

    because: str


def tallies_of(comparisons: Sequence[Comparison]) -> Sequence[VerdictTally]:
    """The summary of each comparison."""
    return comparisons.tallies if isinstance(comparisons, StoredComparisons) else [one.tally for one in comparisons]


def where_of(comparisons: Sequence[Comparison]) -> Sequence[StepRankNumbers]:
    """Step and rank of each comparison."""
    if isinstance(comparisons, StoredComparisons):
        return comparisons.where
    return [StepRankNumbers(one.step, one.rank) for one in comparisons]


def kept_workers(result: object) -> AbstractContextManager[object]:
    """A context in which the workers that apply functions to the stored comparisons of a result are kept."""
    comparisons = getattr(result, "comparisons", None)
    return comparisons.kept() if isinstance(comparisons, StoredComparisons) else nullcontext()


def map_comparisons(
    comparisons: Sequence[Comparison],
    part: PartOf[Part],
    lost: Optional[Callable[[int, str], Part]] = None,
    numbers: Optional[Sequence[int]] = None,
) -> Iterator[Part]:
    """Apply a function to each comparison, or to those with these numbers."""
    if isinstance(comparisons, StoredComparisons):
        return comparisons.map(part, lost, numbers)
    chosen = range(len(comparisons)) if numbers is None else numbers
    return (part(number, comparisons[number]) for number in chosen)
