"""One step and rank of two dumps, as a worker sees it: its runs are opened, lined up, measured, judged and walked here,
and laid in a folder between these."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Optional, Sequence

from npucmp.align import align, pairs
from npucmp.align.extent import extent
from npucmp.dump.formats import open_head
from npucmp.errors import UsageError
from npucmp.judge.precision import reduced_in
from npucmp.localise.again import ran_again
from npucmp.localise.apart import NoiseOf, Rank
from npucmp.localise.limits import judged
from npucmp.localise.ranks import has_values, side_by_side
from npucmp.localise.rules import Rulebook
from npucmp.localise.updates import Updates
from npucmp.measure.pairs import Closeness, measure_pairs
from npucmp.model import Comparison, Finding, Head, Measurement, Run
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


@dataclass(frozen=True)
class Work:
    """What all workers are told."""

    target: StrPath
    golden: StrPath
    options: Options
    spool: Spool

    def rules(self) -> Rulebook:
        return Rulebook(self.options.skip_rules)

    def keep(self, shard: Shard, what: str, thing: object) -> None:
        self.spool.keep(shard.number, what, thing)

    def kept(self, number: int, what: str) -> Any:
        return self.spool.kept(number, what)


class Measured(NamedTuple):
    """What a shard tells of itself before it is judged.

    reduced  whether its products show 11 bits, None if nothing; unfit: notes on what a user named and it does not hold
    """

    tensors: int = 0
    has_values: bool = False
    bytes_read: int = 0
    reduced: Optional[bool] = None
    dtypes: "frozenset[str]" = frozenset()
    odd: "tuple[str, ...]" = ()
    unfit: "tuple[str, ...]" = ()
    unheard: Optional[UsageError] = None
    broken: "tuple[tuple[str, Run], ...]" = ()


def measure(work: Work, shard: Shard) -> Measured:
    """Opens and measures a shard."""
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
    alignment = align(target, golden, names, context)
    every = list(pairs(target, golden, alignment))
    todo, left_out = options.split(every)
    unfit += unfit_names(names, [target], [golden])
    unfit += [*unfit_tolerances(tolerances, todo), *unfit_noise(tolerances, every)]
    found = list(measure_pairs(todo, Closeness(options.rtol, options.atol), 1, context))
    dtypes = frozenset(tensor.dtype for pair in todo for tensor in (pair.target, pair.golden) if tensor)
    alone = len(alignment.only_target), len(alignment.only_golden)
    one = _judged(work, Comparison(target, golden, (), (), alignment.matched, alone, left_out=tuple(left_out)), found)
    work.keep(shard, "judged", one)
    read, odd = sum(each.bytes_read for each in found), tuple(odd_pairs([(target, golden)]))
    return Measured(len(todo), has_values(one), read, reduced_in(found), dtypes, odd, tuple(unfit), unheard)


def judge(work: Work, shard: Shard) -> None:
    """Judges a shard again, knowing that products show 11 bits."""
    one: Comparison = work.kept(shard.number, "judged")
    work.keep(shard, "judged", _judged(work, one, [each.measurement for each in one.findings], reduced=True))


def _judged(work: Work, one: Comparison, measured: "Sequence[Measurement]", reduced: bool = False) -> Comparison:
    """Each tensor held against its limit by itself."""
    findings = tuple(judged(measured, work.options.decides(), work.rules(), reduced))
    todo, ordered = [each.pair for each in measured], one.target.ordered and one.golden.ordered
    reach = extent(todo, ordered, again=ran_again(findings))
    return replace(one, findings=findings, notes=reach.words, incomplete=reach.incomplete)


class Before(NamedTuple):
    """The shard of the same rank in an earlier step, None if there is none; whether an error was born by then; whether
    one in a later step wants to know of this one."""

    number: Optional[int]
    faulty: bool
    goes_on: bool


def updates_of(work: Work, before: Before) -> Updates:
    found: Updates = Updates() if before.number is None else work.kept(before.number, "updates")
    found.faulty = before.faulty
    return found


def of_rank(work: Work, shard: Shard, before: Before, what: str, alone: bool, arguments: "tuple[Any, ...]") -> Any:
    one: Comparison = work.kept(shard.number, "judged")
    by_round_off = work.options.decides().by_round_off
    own = Rank(one, updates_of(work, before), by_round_off, work.rules(), alone)
    if what == "concluded":  # its findings are here, its roots come along
        (_, roots), *more = arguments
        arguments = (findings_of(work, shard.number, one), roots), *more
    answer = getattr(own, what)(*arguments)
    if what not in ("walked", "concluded"):
        return answer
    (findings, roots), *letters = answer if what == "walked" else (answer,)
    _keep_walk(work, shard, one, findings, before.goes_on)
    return (([], roots), *letters) if what == "walked" else ([], roots)


def findings_of(work: Work, number: int, one: Comparison) -> "list[Finding]":
    """Those of a shard with what a walk changed."""
    changes: "dict[int, tuple[Any, ...]]" = work.kept(number, "walked")
    return [Finding(old.measurement, *changes[at]) if at in changes else old for at, old in enumerate(one.findings)]


def _keep_walk(work: Work, shard: Shard, one: Comparison, findings: "Sequence[Finding]", goes_on: bool) -> None:
    """What a walk changed of the findings, and what the next step needs to know of them."""
    both = enumerate(zip(findings, one.findings))
    work.keep(shard, "walked", {at: tuple(new)[1:] for at, (new, old) in both if new is not old})
    if goes_on:
        work.keep(shard, "updates", Updates(findings))


def of_step(work: Work, _: Shard, some: "Sequence[Shard]", before: "Sequence[Before]") -> Any:
    comparisons = [work.kept(shard.number, "judged") for shard in some]
    updates = [updates_of(work, one) for one in before]
    found = []
    walked = side_by_side(comparisons, updates, work.options.decides().by_round_off, work.rules())
    for shard, one, each, (findings, roots) in zip(some, comparisons, before, walked):
        _keep_walk(work, shard, one, findings, each.goes_on)
        found.append(roots)
    return found


def noise_of(work: Work, _: Shard, before: Before) -> NoiseOf:
    updates = updates_of(work, before)
    return NoiseOf(updates.are_first, updates.unproven)
