"""A comparison of many steps and ranks, one shard each: opened, lined up, measured, judged and walked by whichever
worker gets it. What stays with this process of a shard is its head and its roots.

    measure   each shard                opens both runs, lines them up, measures; says what is decided over all
    judge     each shard                holds each tensor against its limit
    walk      the ranks of a step       each by itself, with letters between them (localise/apart.py); steps in order
    finish    each shard                its roots with their places, its notes; `part` of it, for whoever wants one

Between these a shard lies in a folder, which goes with the report; nothing in it comes from elsewhere. Comparisons of
the report are read from there, one at a time. The roots and findings are those of `compare.compared`.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, TypeVar, Union, overload

from npucmp.align import align, pairs
from npucmp.align.extent import extent
from npucmp.dump.formats import graph_source, open_head
from npucmp.errors import DumpError, UsageError
from npucmp.judge.precision import reduced_in
from npucmp.localise.again import ran_again
from npucmp.localise.apart import Rank, walked_apart
from npucmp.localise.limits import judged
from npucmp.localise.notes import notes_of
from npucmp.localise.ranks import Ranked, as_ranked, has_values, placed_roots, side_by_side
from npucmp.localise.rules import Rulebook
from npucmp.localise.updates import Updates
from npucmp.measure.executor import Executor, default_jobs, workers
from npucmp.measure.pairs import Closeness, measure_pairs
from npucmp.model import Cause, Comparison, Head, Report, Root, Run
from npucmp.model.collector import uncollected
from npucmp.workflows.compare import Options, rules_of
from npucmp.workflows.misfits import unfit_globs, unfit_names, unfit_noise, unfit_tolerances
from npucmp.workflows.runs import StrPath, keys, odd_pairs, pair_runs

Part = TypeVar("Part")


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
    folder: str

    def rules(self) -> Rulebook:
        return Rulebook(self.options.skip_rules)

    def keep(self, shard: Shard, what: str, thing: object) -> None:
        with open(self._file(shard.number, what), "wb") as file:
            pickle.dump(thing, file, pickle.HIGHEST_PROTOCOL)

    def kept(self, number: int, what: str) -> Any:
        with open(self._file(number, what), "rb") as file:
            return pickle.load(file)

    def _file(self, number: int, what: str) -> Path:
        return Path(self.folder, f"{number}.{what}")


class Measured(NamedTuple):
    """What a shard tells of itself before it is judged.

    reduced  whether its products show 11 bits, None if nothing; unfit: notes on what a user named and it does not hold
    """

    tensors: int = 0
    bytes_read: int = 0
    reduced: Optional[bool] = None
    dtypes: "frozenset[str]" = frozenset()
    odd: "tuple[str, ...]" = ()
    unfit: "tuple[str, ...]" = ()
    unheard: Optional[UsageError] = None
    broken: "tuple[tuple[str, Run], ...]" = ()


def fits(options: Options, heads: "Sequence[Head]") -> bool:
    """Whether shards can do it: graphs and further dumps are of all runs together."""
    alone = not (options.graph or options.also or options.replay or options.journal)
    return alone and all(graph_source(name) is None for name in {head.format for head in heads})


def compared_in_shards(
    target: StrPath, golden: StrPath, options: Options, executor: Optional[Executor] = None
) -> Report:
    """As `compare` does, for dumps and options that `fits` lets through."""
    started = time.monotonic()
    context = options.context(target, golden)
    lefts, rights = options.heads(target, context), options.heads(golden, context, golden=True)
    together, unpaired = pair_runs(lefts, rights, options.partners())
    if not together:
        raise UsageError(f"no step and rank is in both: {target} has {keys(lefts)}, {golden} has {keys(rights)}")
    shards = [Shard(number, *both) for number, both in enumerate(together)]
    folder = tempfile.TemporaryDirectory(prefix="npucmp-")
    work = Work(target, golden, replace(options, progress=None, jobs=1), folder.name)
    crew = _Crew(work, executor or workers(options.jobs or default_jobs()))
    measured = crew.each(measure, shards)
    broken = tuple(one for some in measured for one in some.broken)
    readable = [shard for shard, one in zip(shards, measured) if not one.broken]
    if not readable:
        raise UsageError(f"nothing can be compared: {broken[0][1].problem}")
    remarks = _remarks([one for one in measured if not one.broken], options)
    said = [one.reduced for one in measured]
    reduced = True in said and False not in said
    valued = crew.each(judge, readable, reduced)
    ranked = _walked(crew, readable, dict(zip((shard.number for shard in readable), valued)))
    roots = placed_roots(ranked)
    crew.each_with(finish, readable, [(reduced, roots.get(shard.number, ())) for shard in readable])
    dtypes = frozenset().union(*(one.dtypes for one in measured))
    return Report(
        paths=(str(target), str(golden)),
        comparisons=Stored(work, readable, folder),
        unpaired=tuple((side, open_head(head, context)) for side, head in unpaired),
        broken=broken,
        rules=rules_of(options.decides(), options, dtypes),
        notes=remarks,
        seconds=time.monotonic() - started,
        bytes_read=sum(one.bytes_read for one in measured),
        strict=options.strict,
        disk=options.bytes_on_disk(),
    )


class Stored(Sequence[Comparison]):
    """The comparisons of shards, read when they are asked for and not kept."""

    def __init__(self, work: Work, shards: "Sequence[Shard]", folder: "tempfile.TemporaryDirectory[str]") -> None:
        self.work, self.shards, self._folder = work, shards, folder

    def __len__(self) -> int:
        return len(self.shards)

    @overload
    def __getitem__(self, at: int) -> Comparison: ...
    @overload
    def __getitem__(self, at: slice) -> "Sequence[Comparison]": ...
    def __getitem__(self, at: "Union[int, slice]") -> "Union[Comparison, Sequence[Comparison]]":
        if isinstance(at, slice):
            return Stored(self.work, self.shards[at], self._folder)
        found: Comparison = self.work.kept(self.shards[at].number, "finished")
        return found

    def parts(self, part: "Callable[[Comparison], Part]", executor: Executor) -> "list[Part]":
        """part of each, made by workers: a plain function."""
        return _Crew(self.work, executor).each(_part, self.shards, part)


def _part(work: Work, shard: Shard, part: "Callable[[Comparison], Part]") -> Part:
    return part(work.kept(shard.number, "finished"))


class _Task(NamedTuple):
    function: "Callable[..., Any]"
    work: Work
    arguments: "tuple[Any, ...]"


class _Crew:
    """Whoever executes the work."""

    def __init__(self, work: Work, executor: Executor) -> None:
        self.work, self._executor = work, executor

    def each(self, function: "Callable[..., Part]", shards: "Sequence[Shard]", *more: Any) -> "list[Part]":
        """function of the work, each shard, and more."""
        return self.each_with(function, shards, [more] * len(shards))

    def each_with(
        self, function: "Callable[..., Part]", shards: "Sequence[Shard]", given: "Sequence[tuple[Any, ...]]"
    ) -> "list[Part]":
        """The same with something else for each shard."""
        tasks = [_Task(function, self.work, (shard, *more)) for shard, more in zip(shards, given)]
        return list(self._executor.map(_do, tasks, _lost))


@uncollected()
def _do(task: _Task) -> Any:
    return task.function(task.work, *task.arguments)


def _lost(task: _Task, because: str) -> Any:
    """A shard over which workers died costs itself while it is measured, which is when files are read."""
    head: Head = task.arguments[0].target
    if task.function is not measure:
        raise DumpError(head.path, f"judging it ended the process: {because}")
    problem = f"{head.path}: reading it ended the process: {because}"
    return Measured(broken=(("target", Run(head.path, head.format, (), head.step, head.rank, problem=problem)),))


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
    alone = len(alignment.only_target), len(alignment.only_golden)
    work.keep(shard, "measured", (target, golden, alignment.matched, alone, todo, left_out, found))
    dtypes = frozenset(tensor.dtype for pair in todo for tensor in (pair.target, pair.golden) if tensor)
    odd = tuple(odd_pairs([(target, golden)]))
    read = sum(one.bytes_read for one in found)
    return Measured(len(todo), read, reduced_in(found), dtypes, odd, tuple(unfit), unheard)


def judge(work: Work, shard: Shard, reduced: bool) -> bool:
    """Each tensor of a shard by itself. Whether it has values."""
    target, golden, matched, alone, todo, left_out, measured = work.kept(shard.number, "measured")
    findings = tuple(judged(measured, work.options.decides(), work.rules(), reduced))
    reach = extent(todo, target.ordered and golden.ordered, again=ran_again(findings))
    known = findings, (), matched, alone, reach.words, reach.incomplete
    one = Comparison(target, golden, *known, tuple(left_out))
    work.keep(shard, "judged", one)
    work._file(shard.number, "measured").unlink()
    return has_values(one)


def finish(work: Work, shard: Shard, reduced: bool, roots: "tuple[Root, ...]") -> None:
    """Puts together what was found of a shard."""
    one: Comparison = work.kept(shard.number, "judged")
    one = replace(one, findings=tuple(work.kept(shard.number, "walked")), roots=roots)
    work.keep(shard, "finished", replace(one, notes=(*one.notes, *notes_of(one.findings, roots, reduced))))
    for what in ("judged", "walked", "updates"):
        work._file(shard.number, what).unlink()


class _Before(NamedTuple):
    """The shard of the same rank in an earlier step, None if there is none; whether an error was born by then."""

    number: Optional[int]
    faulty: bool


def _updates(work: Work, before: _Before) -> Updates:
    found: Updates = Updates() if before.number is None else work.kept(before.number, "updates")
    found.faulty = before.faulty
    return found


def _walked(crew: _Crew, shards: "Sequence[Shard]", valued: "Mapping[int, bool]") -> "list[Ranked]":
    """The roots of all shards, step by step; their findings lie where the next looks for them."""
    steps: "dict[int, list[Shard]]" = defaultdict(list)
    for shard in shards:
        steps[shard.step].append(shard)
    options, ranked = crew.work.options, []
    latest: "dict[Optional[int], int]" = {}
    faulty = False
    by_round_off = options.decides().by_round_off
    for step, some in sorted(steps.items()):
        before = [_Before(latest.get(shard.rank), faulty) for shard in some]
        noisy = by_round_off and crew.work.rules().uses("suspected") and not any(valued[one.number] for one in some)
        told = _together(crew, some, before) if noisy else _apart(crew, some, before)
        for shard, roots in zip(some, told):
            latest[shard.rank] = shard.number
            faulty = faulty or any(root.cause is not Cause.PROPAGATED for _, root in roots)
            ranked += as_ranked(step, shard.number, roots)
    return ranked


def _apart(crew: _Crew, some: "Sequence[Shard]", before: "Sequence[_Before]") -> "list[list[tuple[int, Root]]]":
    def everyone(what: str, whom: "Mapping[int, tuple[Any, ...]]") -> "dict[int, Any]":
        given = [(before[rank], what, len(some) == 1, arguments) for rank, arguments in whom.items()]
        return dict(zip(whom, crew.each_with(_of_rank, [some[rank] for rank in whom], given)))

    return [roots for _, roots in walked_apart(len(some), everyone)]


def _of_rank(work: Work, shard: Shard, before: _Before, what: str, alone: bool, arguments: "tuple[Any, ...]") -> Any:
    one: Comparison = work.kept(shard.number, "judged")
    by_round_off = work.options.decides().by_round_off
    own = Rank(one, _updates(work, before), by_round_off, work.rules(), alone)
    answer = getattr(own, what)(*arguments)
    if what != "walked":
        return answer
    (findings, roots), letters = answer
    _walk_kept(work, shard, findings)
    return ([], roots), letters


def _walk_kept(work: Work, shard: Shard, findings: "Sequence[Any]") -> None:
    work.keep(shard, "walked", findings)
    work.keep(shard, "updates", Updates(findings))


def _together(crew: _Crew, some: "Sequence[Shard]", before: "Sequence[_Before]") -> "list[list[tuple[int, Root]]]":
    """Where statistics are all there is, one worker has all ranks of a step: the noise before an operator is theirs."""
    told: "list[list[list[tuple[int, Root]]]]" = crew.each(_side_by_side, [some[0]], some, before)
    return told[0]


def _side_by_side(work: Work, _: Shard, some: "Sequence[Shard]", before: "Sequence[_Before]") -> Any:
    comparisons = [work.kept(shard.number, "judged") for shard in some]
    updates = [_updates(work, one) for one in before]
    found = []
    walked = side_by_side(comparisons, updates, work.options.decides().by_round_off, work.rules())
    for shard, (findings, roots) in zip(some, walked):
        _walk_kept(work, shard, findings)
        found.append(roots)
    return found


def _remarks(measured: "Sequence[Measured]", options: Options) -> "tuple[str, ...]":
    """Notes on what the user named; what one shard does not hold another may."""
    if all(one.unheard for one in measured) and measured[0].unheard:
        raise measured[0].unheard
    if not any(one.tensors for one in measured):
        raise UsageError(f"nothing to compare: {options.nothing()}")
    said = [{_head(words) for words in one.unfit} for one in measured]
    unfit = [words for words in measured[0].unfit if all(_head(words) in some for some in said)]
    odd = dict.fromkeys(words for one in measured for words in one.odd)
    without = [f"judged without {', '.join(options.skip_rules)}"] if options.skip_rules else []
    return (*unfit, *odd, *without)


def _head(words: str) -> str:
    return words.partition(" (did you mean")[0]
