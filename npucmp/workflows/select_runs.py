"""Select runs and operators of a dump, and pair the runs of two dumps."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from itertools import compress
from operator import not_
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

from npucmp.dump.formats import early_heads, heads, open_head, open_runs
from npucmp.dump.limits import ReadContext
from npucmp.errors import DumpError, UsageError, nearest
from npucmp.model import Operator, Pair, Run, RunHeader, first_of
from npucmp.model.network import StructuredOperators
from npucmp.workflows.option_fields import DumpFields, Progress, StrPath
from npucmp.workflows.selectors import End, NumberedRecord, Partner, parse_numbers, partners

if TYPE_CHECKING:
    from npucmp.align import Alignment
    from npucmp.align.msprobe_mapping import Names

MOST_SUGGESTED = 5  # number of suggested names
One = TypeVar("One", Run, RunHeader)
StepOfRank = Tuple[Optional[int], Optional[int]]


class Sides(NamedTuple):
    """Two dumps and their open runs, completed by graphs and further dumps, and arranged alike by relations.

    also       "side=DUMP"
    parts      the runs of the ranks that make a run of the target, by its step and rank
    changes    options of the comparison that relations decide: rows of tensors cannot be recomputed
    stated     the views that the user stated, by a pattern of "operator slot" (relations/stated_view.py)
    """

    target_path: StrPath
    targets: list[Run]
    golden_path: StrPath
    goldens: list[Run]
    also: tuple[str, ...] = ()
    parts: Mapping[StepOfRank, Mapping[int, Run]] = MappingProxyType({})
    changes: Mapping[str, Any] = MappingProxyType({})
    stated: Mapping[str, Any] = MappingProxyType({})

    @property
    def readable(self) -> tuple[list[Run], list[Run]]:
        """The runs of target and golden that can be read."""
        lefts, rights = ([run for run in runs if not run.problem] for runs in (self.targets, self.goldens))
        return lefts, rights

    def with_runs(self, targets: Iterable[Run], goldens: Iterable[Run]) -> Sides:
        """Return the sides with other readable runs."""
        broken = ([run for run in runs if run.problem] for runs in (self.targets, self.goldens))
        lefts, rights = ([*runs, *others] for runs, others in zip((targets, goldens), broken))
        return self._replace(targets=lefts, goldens=rights)

    @property
    def broken(self) -> list[tuple[str, Run]]:
        """The runs that cannot be read, by side."""
        both = ("target", self.targets), ("golden", self.goldens)
        return [(side, run) for side, runs in both for run in runs if run.problem]


class PairedRuns(NamedTuple):
    """Two runs and their pairs: those that the user selected, and the others.

    notes    on the pairs; unfit: on options that match nothing
    refused  the reason if no operator was selected, or if they are different networks (`unlike`)
    """

    target: Run
    golden: Run
    alignment: Alignment
    todo: list[Pair]
    left_out: list[Pair]
    notes: tuple[str, ...]
    unfit: tuple[str, ...]
    refused: Optional[UsageError]
    unlike: Optional[UsageError]

    @property
    def dtypes(self) -> frozenset[str]:
        sides = (tensor for pair in self.todo for tensor in (pair.target, pair.golden))
        return frozenset(tensor.dtype for tensor in sides if tensor is not None)


@dataclass(frozen=True)
class RunSelection(DumpFields):
    """The options of every command that reads a dump."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.default == () and isinstance(value, (str, PathLike)):  # a string is itself a sequence
                object.__setattr__(self, one.name, (value,))

    def context(self, *dumps: StrPath) -> ReadContext:
        """Return the context for reading these dumps, and files that the mapping names, within the limits."""
        context = ReadContext(self.limits).confine(*dumps)
        return context.confine(self.mapping) if isinstance(self.mapping, (str, PathLike)) else context

    def runs(self, path: StrPath, context: ReadContext, golden: bool = False) -> list[Run]:
        """Return the selected runs of a dump; a missing step or rank counts as 0. Golden runs that `pair` assigns to a
        selected run are included. If folders name steps and ranks, no other runs are opened. Raises DumpError if no run
        is selected."""
        if self.step is not None or self.rank is not None:
            opened = [open_head(head, context) for head in self.early_heads(path, context, golden) or ()]
            if any(run.operators or run.records for run in opened):
                return opened
        return self.select(path, open_runs(path, self.format, context), golden)

    def heads(self, path: StrPath, context: ReadContext, golden: bool = False) -> list[RunHeader]:
        """Return the heads of the selected runs, without reading the runs if folders name them."""
        return self.select(path, heads(path, self.format, context), golden)

    def early_heads(self, path: StrPath, context: ReadContext, golden: bool = False) -> Optional[list[RunHeader]]:
        """Return the heads of the selected runs, or None if only reading the runs shows them."""
        known = early_heads(path, self.format, context)
        return None if known is None else self.select(path, known, golden)

    def select(self, path: StrPath, runs: Sequence[One], golden: bool = False) -> list[One]:
        """Return the selected ones of the runs of a dump."""
        steps, ranks = parse_numbers("step", self.step), parse_numbers("rank", self.rank)
        ends = [(one.golden, one.target) for one in self.partners()] if golden else []

        def is_meant(run: NumberedRecord) -> bool:
            return steps.has(run.step or 0) and ranks.has(run.rank or 0)

        chosen = [
            run
            for run in runs
            if is_meant(run) or any(own.has(run) and is_meant(far.completed(run)) for own, far in ends)
        ]
        if not chosen:
            selected = [f"{name} {at}" for name, at in (("step", self.step), ("rank", self.rank)) if at is not None]
            unnumbered = any(
                getattr(run, name) is None
                for run in runs
                for name in ("step", "rank")
                if getattr(self, name) is not None
            )
            counts = " (a run without that number counts as 0)" if unnumbered else ""
            raise DumpError(path, f"has no {' '.join(selected)}; it holds {keys(runs)}{counts}")
        return chosen

    def partners(self) -> list[Partner]:
        """Return the pairs of runs that belong together despite different numbers."""
        return partners(self.pair)

    def names(self) -> Names:
        """Return the mapping of target names to golden names, or a vendor's mapping, read if it is a file."""
        if isinstance(self.mapping, (str, PathLike)):
            from npucmp.align.mapping import load

            return load(Path(self.mapping))
        names = self.mapping or {}
        if isinstance(names, Mapping) and "relations" in names:
            return {name: other for name, other in names.items() if name != "relations"}
        return names

    def relations(self) -> Mapping[str, str]:
        """Return the relations that the mapping states, by a pattern of "operator slot"."""
        if not self.mapping:
            return {}
        from npucmp.align.mapping import load_relations, relations_in

        is_file = isinstance(self.mapping, (str, PathLike))
        return load_relations(Path(self.mapping)) if is_file else relations_in(self.mapping, "mapping")  # type: ignore[arg-type]

    def nothing(self) -> str:
        """Explain why nothing is selected."""
        if self.include or self.exclude:
            return "no tensor passes --include and --exclude"
        return "no operator of the dumps holds a tensor"

    def operators_of(self, run: Run) -> list[Operator]:
        """Return the selected operators of a run."""
        return [operator for operator in run.operators if self.wants(operator)]

    def wants(self, *operators: Optional[Operator]) -> bool:
        """Return whether an operator is selected, by its name on either side."""
        names = [operator.name for operator in operators if operator is not None]
        if self.include and not any(fnmatchcase(name, glob) for name in names for glob in self.include):
            return False
        return not any(fnmatchcase(name, glob) for name in names for glob in self.exclude)

    def split(self, pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
        """Return the pairs of selected operators, and the others."""
        if not self.include and not self.exclude:
            return pairs, []
        meant = [self.wants(pair.target_op, pair.golden_op) for pair in pairs]
        return [*compress(pairs, meant)], [*compress(pairs, map(not_, meant))]


def operator_of(op: str, dump: StrPath, runs: Sequence[Run]) -> tuple[Run, Operator]:
    """Return the operator of that name, and its run. Raises UsageError if no run, or more than one step and rank, has
    it."""
    found = [(run, operator) for run in runs for operator in run.operators if operator.name == op]
    if not found:
        names = [*dict.fromkeys(operator.name for run in runs for operator in run.operators)]
        part = op.strip("*?").lower()
        near = [name for name in names if part and part in name.lower()]
        raise UsageError(
            f"{dump}: no operator {op!r}",
            (near or nearest(op, names, MOST_SUGGESTED))[:MOST_SUGGESTED],
        )
    if len({id(run) for run, _ in found}) > 1:
        raise UsageError(f"{dump}: {op} is in {keys([run for run, _ in found])}: choose one by --step and --rank")
    return found[0]


class ProgressMeter:
    """The progress of a pass, which it reports as bytes done and bytes in all."""

    def __init__(self, progress: Optional[Progress], total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def add(self, size: int) -> None:
        self._done += size
        if self._progress:
            self._progress(self._done, self._total)


def keys(runs: Sequence[NumberedRecord]) -> str:
    """List the recorded steps and ranks in words, the first few."""
    numbers = [{"step": run.step, "rank": run.rank} for run in runs]
    words = [" ".join(f"{name} {at}" for name, at in run.items() if at is not None) for run in numbers]
    return first_of([word or "a run without numbers" for word in words], 8)


def pair_suggestion(targets: Sequence[NumberedRecord], goldens: Sequence[NumberedRecord]) -> str:
    """Suggest the --pair option for runs without common numbers, by the first run of each side."""
    if not targets or not goldens:
        return ""
    a, b = targets[0], goldens[0]
    steps = not {run.step or 0 for run in targets} & {run.step or 0 for run in goldens}
    ranks = not {run.rank or 0 for run in targets} & {run.rank or 0 for run in goldens}
    fields_differing = [name for name, differ in (("step", steps or not ranks), ("rank", ranks or not steps)) if differ]
    ends = ("/".join(f"{name}{getattr(run, name) or 0}" for name in fields_differing) for run in (a, b))
    return f"; pair them by --pair {'='.join(ends)}, repeatable"


def pair_runs(
    targets: Sequence[One], goldens: Sequence[One], chosen: Sequence[Partner] = ()
) -> tuple[list[tuple[One, One]], tuple[tuple[str, One], ...]]:
    """Pair runs of the same step and rank. Single runs of both sides always pair, and an absent step or rank matches
    any.

    Runs of the target that `chosen` names are paired with golden runs of other numbers, also several with one golden
    run. Raises UsageError if a side lacks a run that `chosen` names.
    """
    for one in chosen:
        _require("target", one, one.target, targets)
        _require("golden", one, one.golden, goldens)
    if len(targets) == len(goldens) == 1:
        return [(targets[0], goldens[0])], ()
    nearest = _Nearest(goldens)
    named = [next((one.golden.completed(run) for one in chosen if one.target.has(run)), None) for run in targets]
    found: list[Optional[int]] = [
        nearest.to(run) if other is None else nearest.of_all(other) for run, other in zip(targets, named)
    ]
    for number, (run, other) in enumerate(zip(targets, named)):  # exact pairs come first
        if found[number] is None and other is None:
            found[number] = nearest.to(run, in_doubt=True)
    used = {*found}
    together = [(run, goldens[at]) for run, at in zip(targets, found) if at is not None]
    alone = [("target", run) for run, at in zip(targets, found) if at is None]
    return together, tuple(alone + [("golden", run) for at, run in enumerate(goldens) if at not in used])


class _Nearest:
    """The runs that match a step and rank, best match first: fewest absent numbers, then the order of the runs."""

    def __init__(self, runs: Sequence[NumberedRecord]) -> None:
        self._left: dict[End, deque[int]] = {}  # indices of the runs that are not taken
        for at, run in enumerate(runs):
            self._left.setdefault(End(run.step, run.rank), deque()).append(at)
        self._first = {key: runs_of[0] for key, runs_of in self._left.items()}

    def to(self, sought: NumberedRecord, in_doubt: bool = False) -> Optional[int]:
        """Take a run that is not yet taken: with equal numbers, or, `in_doubt`, with any numbers that match."""
        near = self._near(sought) if in_doubt else [End(sought.step, sought.rank)]
        left = {key: self._left[key][0] for key in near if self._left.get(key)}
        key = self._least(sought, left)
        return None if key is None else self._left[key].popleft()

    def of_all(self, sought: NumberedRecord) -> Optional[int]:
        """Return the best match without taking it."""
        key = self._least(sought, {key: self._first[key] for key in self._near(sought)})
        return None if key is None else self._first[key]

    def _near(self, sought: NumberedRecord) -> Iterator[End]:
        if None in (sought.step, sought.rank):
            return (key for key in self._first if meets(sought, key))
        likely = (End(step, rank) for step in (sought.step, None) for rank in (sought.rank, None))
        return (key for key in likely if key in self._first)

    def _least(self, sought: NumberedRecord, places: dict[End, int]) -> Optional[End]:
        return min(places, key=lambda key: (distance(sought, key), places[key]), default=None)


def most_ranks(runs: Sequence[NumberedRecord]) -> int:
    """Return the largest number of ranks of a step."""
    steps: dict[Optional[int], set[Optional[int]]] = {}
    for run in runs:
        steps.setdefault(run.step, set()).add(run.rank)
    return max(map(len, steps.values()), default=0)


def _require(side: str, one: Partner, end: End, runs: Sequence[NumberedRecord]) -> None:
    if not any(map(end.has, runs)):
        numbers = (("step", end.step), ("rank", end.rank))
        words = " ".join(f"{word} {number}" for word, number in numbers if number is not None)
        raise UsageError(f"--pair {one.text}: the {side} has no {words}; it holds {keys(runs)}")


def odd_pairs(together: Sequence[tuple[Run, Run]], called: tuple[str, str] = ("target", "golden")) -> Iterator[str]:
    """Yield notes on likely mistakes in the choice of dumps: the same dump twice, or another step or rank."""
    if any(_is_same(target, golden) for target, golden in together):
        yield f"{called[0]} and {called[1]} are the same dump"
    for target, golden in together:
        numbers = (target.step, golden.step), (target.rank, golden.rank)
        if any(None not in (a, b) and a != b for a, b in numbers):
            yield f"{keys([target])} is compared with {keys([golden])}"


def _is_same(a: Run, b: Run) -> bool:
    """Return whether two runs are the same files, under any paths."""
    listed = (() if isinstance(run.operators, StructuredOperators) else run.operators for run in (a, b))
    files = [next((t.file for op in operators for t in op.tensors if t.file), run.path)
             for run, operators in zip((a, b), listed)]  # fmt: skip
    try:
        return os.path.samefile(a.path, b.path) or os.path.samefile(*files)
    except (OSError, ValueError):  # no such file, or an invalid file name
        return False


def meets(a: NumberedRecord, b: NumberedRecord) -> bool:
    """Return whether two runs may be of one step and rank; an absent number matches any."""
    return all(None in (x, y) or x == y for x, y in ((a.step, b.step), (a.rank, b.rank)))


def distance(a: NumberedRecord, b: NumberedRecord) -> int:
    """Return how many of step and rank are not known to be equal."""
    return (a.step != b.step) + (a.rank != b.rank)
