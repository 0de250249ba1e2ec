"""One step and rank of two dumps, as a worker sees it: its runs are opened, lined up, measured, judged and walked here,
and laid in a folder between these."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Optional, Sequence

from npucmp.align import align_or_part, pairs
from npucmp.align.extent import extent
from npucmp.dump.formats import open_head
from npucmp.errors import UsageError
from npucmp.judge.precision import reduced_in
from npucmp.localise.again import ran_again
from npucmp.localise.apart import NoiseOf, Rank
from npucmp.localise.coverage import coverage_of
from npucmp.localise.execution_order import in_content_order
from npucmp.localise.limits import judged
from npucmp.localise.notes import notes_of
from npucmp.localise.ranks import has_values, side_by_side
from npucmp.localise.root import Told
from npucmp.localise.rules import Rulebook
from npucmp.localise.suspects import concluded
from npucmp.localise.updated_parameters import with_parameters
from npucmp.localise.updates import Updates
from npucmp.measure.pairs import payload_bytes
from npucmp.model import Cause, Comparison, Finding, Head, Measurement, Pair, Root, Run, Tally, Where
from npucmp.workflows.measuring import measured
from npucmp.workflows.misfits import unfit_globs, unfit_names, unfit_noise, unfit_tolerances
from npucmp.workflows.options import Options
from npucmp.workflows.runs import StrPath, odd_pairs
from npucmp.workflows.spool import Spool


class Shard(NamedTuple):
    """One step and rank of both dumps."""

    number: int
    target: Head
    golden: Head

    @property
    def step(self) -> int:
        return self.target.step or self.golden.step or 0

    @property
    def rank(self) -> Optional[int]:
        return self.golden.rank if self.target.rank is None else self.target.rank

    @property
    def where(self) -> Where:
        """As the dumps number it."""
        return Where(self.golden.step if self.target.step is None else self.target.step, self.rank)


@dataclass(frozen=True)
class Work:
    """What all workers are told."""

    target: StrPath
    golden: StrPath
    options: Options
    spool: Spool
    began: float  # seconds since 1970
    several_steps: bool = True  # which ask what the step before made of the parameters
    apart: Optional[int] = None  # tensors of a shard from which the ranks of its step will be walked apart

    def rules(self) -> Rulebook:
        return Rulebook(self.options.skip_rules)

    def uses_noise(self) -> bool:
        """Where statistics are all there is."""
        return self.options.decides().by_round_off and self.rules().uses("suspected")

    def rank(self, one: Comparison, updates: Updates, alone: bool = False) -> Rank:
        return Rank(one, updates, self.options.decides().by_round_off, self.rules(), alone)

    def keep(self, shard: Shard, what: str, thing: object) -> None:
        self.spool.keep(shard.number, what, thing)

    def kept(self, number: int, what: str) -> Any:
        return self.spool.kept(number, what)


class Measured(NamedTuple):
    """What a shard tells of itself before it is judged.

    size     bytes that it took to read, or those of its records where they hold no values
    reduced  whether its products show 11 bits, None if nothing; unfit: notes on what a user named and it does not hold
    kept     notes on its journal; `died`: broken, for nobody survived reading it
    """

    tensors: int = 0
    has_values: bool = False
    bytes_read: int = 0
    size: int = 0
    reduced: Optional[bool] = None
    dtypes: frozenset[str] = frozenset()
    odd: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()
    unheard: Optional[UsageError] = None
    broken: tuple[tuple[str, Run], ...] = ()
    kept: tuple[str, ...] = ()
    died: bool = False


def measure(work: Work, shard: Shard) -> Measured:
    """Opens and measures a shard."""
    started = time.monotonic()
    options, tolerances, names = work.options, work.options.decides(), work.options.names()
    context = options.context(work.target, work.golden)
    target, golden = open_head(shard.target, context), open_head(shard.golden, context)
    broken = tuple((side, run) for side, run in (("target", target), ("golden", golden)) if run.problem)
    if broken:
        return Measured(broken=broken)
    unheard = None
    try:
        unfit = unfit_globs(options, [target, golden])
    except UsageError as error:
        unfit, unheard = [], error
    alignment, unlike = align_or_part(target, golden, names, context)
    every = list(pairs(target, golden, alignment))
    todo, left_out = options.split(every)
    unfit += unfit_names(names, [target], [golden])
    unfit += [*unfit_tolerances(tolerances, todo), *unfit_noise(tolerances, every)]
    found: list[Measurement] = []
    kept: tuple[str, ...] = ()
    if todo:
        (found,), kept = measured([todo], options, context, shard.number, work.began)
    if len(found) < len(todo):
        raise KeyboardInterrupt
    dtypes = frozenset(tensor.dtype for pair in todo for tensor in (pair.target, pair.golden) if tensor)
    alone = len(alignment.only_target), len(alignment.only_golden)
    placed = in_content_order(target, golden, found, left_out)
    known = target, golden, (), (), alignment.matched, alone, placed.notes
    bare = Comparison(*known, left_out=tuple(placed.left_out), seconds=time.monotonic() - started)
    one = _keep_judged(work, shard, bare, placed.measured)
    return Measured(
        tensors=len(todo),
        has_values=has_values(one),
        bytes_read=sum(each.bytes_read for each in found),
        size=sum(map(payload_bytes, todo)) + sum(os.path.getsize(head.path) for head in shard[1:]),
        reduced=reduced_in(found),
        dtypes=dtypes,
        odd=(*odd_pairs([(target, golden)]), *([str(unlike)] if unlike else [])),
        unfit=tuple(unfit),
        unheard=unlike or unheard,
        kept=kept,
    )


def judge(work: Work, shard: Shard) -> None:
    """Judges a shard again, knowing that products show 11 bits."""
    one: Comparison = work.kept(shard.number, "judged")
    _keep_judged(work, shard, one, [each.measurement for each in one.findings], reduced=True)


def _keep_judged(
    work: Work, shard: Shard, one: Comparison, measured: Sequence[Measurement], reduced: bool = False
) -> Comparison:
    """A shard as it is judged, and what the next step and other ranks need to know of it, which no walk changes."""
    judged_ = _judged(work, one, measured, reduced)
    if work.several_steps:
        work.keep(shard, "updates", Updates(judged_.findings))
    noisy = work.uses_noise() and not has_values(judged_)
    if work.apart is not None and (not noisy or len(measured) >= work.apart):
        work.keep(shard, "beforehand", work.rank(judged_, Updates()).beforehand(noisy))
    work.keep(shard, "judged", judged_)
    return judged_


def _judged(work: Work, one: Comparison, measured: Sequence[Measurement], reduced: bool = False) -> Comparison:
    """Each tensor held against its limit by itself."""
    findings = tuple(judged(measured, work.options.decides(), work.rules(), reduced))
    todo, ordered = [each.pair for each in measured], one.target.ordered and one.golden.ordered
    reach = extent(todo, ordered, again=ran_again(findings))
    return replace(one, findings=findings, notes=(*reach.words, *one.notes))


class Before(NamedTuple):
    """The shard of the same rank in an earlier step, None if there is none; whether an error was born by then."""

    number: Optional[int]
    faulty: bool


def updates_of(work: Work, before: Before) -> Updates:
    found: Updates = Updates() if before.number is None else work.kept(before.number, "updates")
    found.faulty = before.faulty
    return found


def of_rank(work: Work, shard: Shard, before: Before, what: str, alone: bool, arguments: tuple[Any, ...]) -> Any:
    one: Comparison
    if what in ("again", "concluded"):  # what was found is here
        one, *found_here = walked(work, shard.number)
        arguments = tuple(found_here), *arguments[1:]
    else:
        one = work.kept(shard.number, "judged")
    if what == "concluded":
        return _keep_walk(work, shard, one, concluded(*arguments))
    answer = getattr(work.rank(one, updates_of(work, before), alone), what)(*arguments)
    if what != "walked":
        return answer
    told, *letters = answer
    return _keep_walk(work, shard, one, told), *letters


class Walked(NamedTuple):
    """What a shard tells of a walk: its tally, and clock and cause of each root."""

    tally: Tally
    roots: list[tuple[int, Cause]]


class _Kept(NamedTuple):
    """What a walk found, as it lies in the folder.

    changes  of findings, by their number, without their measurement
    roots    with their clocks, and the number of the finding whose pair is theirs
    """

    changes: dict[int, tuple[Any, ...]]
    roots: list[tuple[int, int, dict[str, Any]]]


def _keep_walk(work: Work, shard: Shard, one: Comparison, told: Told) -> Walked:
    """Keeps what a walk found, and tells the little that others need to know."""
    findings, roots = told
    both = enumerate(zip(findings, one.findings))
    places = _Places(one)
    bare = [
        (clock, places.of(root.pair), {name: cell for name, cell in vars(root).items() if name != "pair"})
        for clock, root in roots
    ]
    context = work.options.context(work.target, work.golden)
    coverage = coverage_of(findings, one.left_out, context)
    changes = {at: tuple(new)[1:] for at, (new, old) in both if new is not old}
    work.keep(shard, "walked", _Kept(changes, bare))
    walked_roots = tuple(root for _, root in roots)
    tally = Tally.of(replace(one, findings=tuple(findings), roots=walked_roots, coverage=coverage))
    return Walked(tally, [(clock, root.cause) for clock, root in roots])


class _Places:
    """Which finding of a comparison is of a pair, which may have come from another process."""

    def __init__(self, one: Comparison) -> None:
        self._findings = one.findings
        self._own = {id(finding.pair): at for at, finding in enumerate(one.findings)}

    @cached_property
    def _all(self) -> dict[object, int]:
        return {_key(finding.pair): at for at, finding in enumerate(self._findings)}

    def of(self, pair: Pair) -> int:
        """Its number."""
        at = self._own.get(id(pair))
        return self._all[_key(pair)] if at is None else at


def _key(pair: Pair) -> tuple[object, ...]:
    """What tells a pair of a comparison."""
    return pair.order, pair.slot, pair.target_op and pair.target_op.name, pair.golden_op and pair.golden_op.name


def walked(work: Work, number: int) -> tuple[Comparison, list[Finding], list[tuple[int, Root]]]:
    """A shard as it was judged, and what its walk found."""
    one: Comparison = work.kept(number, "judged")
    kept: _Kept = work.kept(number, "walked")
    changes = kept.changes
    findings = [Finding(old.measurement, *changes[at]) if at in changes else old for at, old in enumerate(one.findings)]
    return one, findings, [(clock, Root(pair=one.findings[at].pair, **cells)) for clock, at, cells in kept.roots]


def of_step(work: Work, _: Shard, some: Sequence[Shard], before: Sequence[Before]) -> list[Walked]:
    comparisons = [work.kept(shard.number, "judged") for shard in some]
    updates = [updates_of(work, one) for one in before]
    told = side_by_side(comparisons, updates, work.options.decides().by_round_off, work.rules())
    return [_keep_walk(work, shard, one, found) for shard, one, found in zip(some, comparisons, told)]


def noise_of(work: Work, _: Shard, before: Before) -> NoiseOf:
    updates = updates_of(work, before)
    return NoiseOf(updates.are_first, updates.unproven)


@dataclass(frozen=True)
class Finished:
    """A shard when all is done: whether products show 11 bits in all of them, its tally, the places of its roots."""

    shard: Shard
    reduced: bool
    tally: Tally
    places: tuple[int, ...]

    @property
    def number(self) -> int:
        return self.shard.number

    @property
    def target(self) -> Head:
        return self.shard.target

    def read(self, work: Work) -> Comparison:
        """All that was found of it."""
        one, findings, roots = walked(work, self.shard.number)
        in_order = sorted(zip(self.places, (root for _, root in roots)), key=lambda one: one[0])
        placed = with_parameters(findings, [replace(root, place=place) for place, root in in_order])
        notes = (*one.notes, *notes_of(findings, placed, self.reduced))
        return replace(one, findings=tuple(findings), roots=placed, notes=notes, coverage=self.tally.coverage)
