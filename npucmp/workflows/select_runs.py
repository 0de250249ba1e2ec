"""Select runs and operators of a dump, and pair the runs of two dumps."""

from __future__ import annotations

import difflib
import os
from collections import deque
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from itertools import compress
from operator import not_
from os import PathLike
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Optional, Sequence, TypeVar, Union

from npucmp.align.msprobe_mapping import Names
from npucmp.dump.formats import early_heads, heads, open_head, open_runs
from npucmp.dump.limits import ReadContext
from npucmp.errors import DumpError, UsageError
from npucmp.model import Operator, Pair, RankGroup, Run, RunHeader, first_of
from npucmp.model.gc_pause import gc_paused
from npucmp.model.optypes import op_type_of
from npucmp.workflows.option_fields import DumpFields
from npucmp.workflows.selectors import End, NumberedRecord, Partner, parse_numbers, partners

StrPath = Union[str, "PathLike[str]"]
MOST_SUGGESTED = 5  # number of suggested names
OTHER = 0.1  # share of operators: chosen, a fault leaves fewer with shapes that are multiples of the other's
MORE = 1.2  # chosen: a run with so many times the operators of each rank is a network of which ranks have stages
One = TypeVar("One", Run, RunHeader)
Progress = Callable[[int, int], None]  # (bytes done, bytes in all)


class Sides(NamedTuple):
    """Two dumps and their open runs, completed by graphs and further dumps; `also`: "side=DUMP"."""

    target_path: StrPath
    targets: list[Run]
    golden_path: StrPath
    goldens: list[Run]
    also: tuple[str, ...] = ()

    @property
    def broken(self) -> list[tuple[str, Run]]:
        """The runs that cannot be read, by side."""
        both = ("target", self.targets), ("golden", self.goldens)
        return [(side, run) for side, runs in both for run in runs if run.problem]


@dataclass(frozen=True)
class RunSelection(DumpFields):
    """The options of every command that reads a dump."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.default == () and isinstance(value, (str, PathLike)):  # a string is itself a sequence
                object.__setattr__(self, one.name, (value,))

    def context(self, *dumps: StrPath) -> ReadContext:
        """Return the context for reading these dumps within the limits."""
        return ReadContext(self.limits).confine(*dumps)

    def runs(self, path: StrPath, context: ReadContext, golden: bool = False) -> list[Run]:
        """Return the selected runs of a dump; a missing step or rank counts as 0. Golden runs that `pair` assigns to a
        selected run are included. If folders name steps and ranks, no other runs are opened. Raises DumpError if no run
        is selected."""
        if self.step is not None or self.rank is not None:
            with gc_paused():
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
        return self.mapping or {}

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
            (near or difflib.get_close_matches(op, names, MOST_SUGGESTED))[:MOST_SUGGESTED],
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


def layouts_differ(targets: Sequence[Run], goldens: Sequence[Run], stated: bool = False) -> bool:
    """Return whether ranks have to be put together before a comparison: they communicate and the other side's do not,
    or their tensors have other shapes, or a rank is a part of the network. Ranks of equal layouts, of which some are
    missing, are compared rank by rank. `stated`: the user stated a layout."""
    if not targets or not goldens:
        return False
    counts = most_ranks(targets), most_ranks(goldens)
    if stated:
        return max(counts) > 1 or is_part(targets[0])
    few, many = (goldens, targets) if counts[0] >= counts[1] else (targets, goldens)
    one, lone = next((run for run in many if run.rank == few[0].rank), many[0]), few[0]
    if counts == (1, 1):
        return _has_other_batches(one, lone) or (is_part(one) and not is_part(lone) and _has_other_shapes(one, lone))
    if min(counts) > 1 or is_part(lone):
        return counts[0] != counts[1] and max(counts) % min(counts) == 0 and _has_other_shapes(one, lone)
    parts = len(lone.operators) > MORE * max(len(run.operators) for run in many)
    return parts or is_part(one) or _has_other_shapes(one, lone)


def may_hold_other_tokens(sides: Sides) -> bool:
    """Return whether single ranks have unequal numbers of steps, or tensors of other shapes that no rank shares."""
    runs = [[run for run in own if not run.problem] for own in (sides.targets, sides.goldens)]
    if not all(runs) or most_ranks(runs[0]) != 1 or most_ranks(runs[1]) != 1:
        return False
    if len(runs[0]) != len(runs[1]):
        return True
    if any(map(is_part, (runs[0][0], runs[1][0]))) or _has_other_batches(runs[0][0], runs[1][0]):
        return False
    shapes = [{tensor.shape for op in own[0].operators for tensor in op.tensors} for own in runs]
    return shapes[0] != shapes[1] and not _begins_alike(runs[0][0], runs[1][0])


def may_have_other_batches(sides: Sides) -> bool:
    """Return whether the first operators of one name that have tensors of unequal shapes differ in their first axis
    alone."""
    targets, goldens = ([run for run in runs if not run.problem] for runs in (sides.targets, sides.goldens))
    if not targets or not goldens or most_ranks(targets) != 1 or most_ranks(goldens) != 1:
        return False
    by_name = {op.name: {tensor.slot: tensor.shape for tensor in op.tensors} for op in goldens[0].operators}
    both = (
        (tensor.shape, by_name[op.name].get(tensor.slot, tensor.shape))
        for op in targets[0].operators
        if op.name in by_name
        for tensor in op.tensors
    )
    target, golden = next((shapes for shapes in both if shapes[0] != shapes[1]), ((), ()))
    return len(target) == len(golden) > 1 and target[1:] == golden[1:]


def _begins_alike(target: Run, golden: Run) -> bool:
    """Return whether the first operators of one name with outputs by token have outputs of one shape: other shapes
    behind them show a fault, and no other layout of tokens. If no output is by token, the first operators decide."""
    from npucmp.relations.tokens.token_axes import token_axes, token_shape

    tokens = token_shape(golden)
    by_name = {op.name: op for op in golden.operators} if tokens is not None else {}
    alike: Optional[bool] = None
    for op in target.operators:
        theirs = {one.slot: one.shape for one in (by_name[op.name].tensors if op.name in by_name else ())}
        own = {one.slot: one.shape for one in op.tensors if one.is_output and one.slot in theirs}
        if alike is None and any(len(shape) > 1 for shape in own.values()):
            alike = all(shape == theirs[slot] for slot, shape in own.items())
        axes = {slot: token_axes(theirs[slot], (), tokens) for slot in own if tokens is not None}
        first = [slot for slot, one in axes.items() if one is not None and one.rest]
        if first:
            return all(own[slot] == theirs[slot] for slot in first)
    return bool(alike)


def check_equal_layouts(targets: Sequence[Run], goldens: Sequence[Run]) -> None:
    """Raise UsageError if equal numbers of communicating ranks have unequal layouts: one side alone has pipeline
    stages, or many operators of one name have shapes that are multiples of one another."""
    count = most_ranks(targets)
    if count < 2 or count != most_ranks(goldens):
        return
    target = targets[0]
    golden = next((run for run in goldens if run.rank == target.rank), goldens[0])
    if not is_part(target) or not is_part(golden):
        return
    stages = [any(op_type_of(op).has("point to point") for op in run.operators) for run in (target, golden)]
    split, common = _multiples(target, golden)
    if stages[0] == stages[1] and split <= OTHER * common:
        return
    why = f"{split} of {common} operators of rank {target.rank or 0} have tensors of other shapes"
    if stages[0] != stages[1]:
        why = f"the {'target' if stages[0] else 'golden'} alone sends from stage to stage"
    raise UsageError(f"both runs have {count} ranks, in unequal layouts or with unequal batches: {why}. Compare each "
                     "with a run of one rank; --ranks-apart compares rank by rank")  # fmt: skip


def _multiples(target: Run, golden: Run) -> tuple[int, int]:
    """Return how many operators of one name have a tensor whose sizes are multiples of the other's, and how many
    operators both runs have."""
    by_name = {op.name: op for op in golden.operators if not op_type_of(op).has("collective")}
    pairs = [(op, by_name[op.name]) for op in target.operators if op.name in by_name]
    found = 0
    for op, other in pairs:
        shapes = {tensor.slot: tensor.shape for tensor in other.tensors}
        both = [(tensor.shape, shapes[tensor.slot]) for tensor in op.tensors if tensor.slot in shapes]
        found += any(len(a) == len(b) and a != b and all(x and y and max(x, y) % min(x, y) == 0 for x, y in zip(a, b))
                     for a, b in both)  # fmt: skip
    return found, len(pairs)


def is_part(run: Run) -> bool:
    """Return whether a run communicates with other ranks."""
    for op in run.operators:
        if op_type_of(op).has("collective"):
            groups = [one for one in op.arguments.values() if isinstance(one, RankGroup)]
            if max(map(len, groups), default=0) > 1 or op_type_of(op).has("point to point"):
                return True
    return False


def _has_other_batches(target: Run, golden: Run) -> bool:
    """Return whether two training runs compute a batch in unequal numbers of micro batches."""
    counts = [*map(_micro_batches, (target, golden))]
    names = {op.name for op in target.operators}
    shared = sum(op.name in names for op in golden.operators)  # few if the runs are of two frameworks
    is_one_network = 2 * shared >= len(golden.operators)
    return counts[0] != counts[1] and all(counts) and is_one_network and _has_other_shapes(target, golden)


def _has_other_shapes(target: Run, golden: Run) -> bool:
    """Return whether any parameter or tensor of an operator of one name has another shape."""
    shapes = {op.name: {tensor.slot: tensor.shape for tensor in op.tensors} for op in golden.operators}
    return any(shapes[op.name].get(tensor.slot, tensor.shape) != tensor.shape
               for op in target.operators if op.name in shapes for tensor in op.tensors)  # fmt: skip


def _micro_batches(run: Run) -> int:
    """Return how often a forward pass precedes a backward pass."""
    phases = [op.phase == "backward" for op in run.operators if op.phase]
    return sum(later and not before for before, later in zip([True, *phases], phases))


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
    files = [next((t.file for op in run.operators for t in op.tensors if t.file), run.path) for run in (a, b)]
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
