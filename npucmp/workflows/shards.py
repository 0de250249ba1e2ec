"""A comparison of many steps and ranks, one shard each: opened, lined up, measured, judged and walked by whichever
worker gets it. What stays with this process of a shard is its head and its roots.

    measure   each shard             opens both runs, lines them up, measures and judges each tensor by itself
    judge     each shard             again, where all of them together say that products show 11 bits
    walk      the ranks of a step    each by itself, with letters between them (localise/apart.py); steps in order
    parts     each shard             whatever is made of a comparison that is complete, as a table

Between these a shard lies in a folder, which goes with the report; nothing in it comes from elsewhere. Comparisons of
the report are read from there, one at a time. The roots and findings are those of `compare.compared`.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, TypeVar, Union, overload

from npucmp.dump.formats import graph_source, open_head
from npucmp.errors import DumpError, UsageError
from npucmp.localise.apart import NoiseOf, walked_apart
from npucmp.localise.notes import notes_of
from npucmp.localise.ranks import Ranked, as_ranked, placed_roots
from npucmp.measure.executor import Executor, default_jobs, workers
from npucmp.model import Cause, Comparison, Head, Report, Root, Run
from npucmp.model.collector import uncollected
from npucmp.workflows.compare import Options, rules_of
from npucmp.workflows.runs import StrPath, keys, pair_runs
from npucmp.workflows.shard import (
    Before,
    Measured,
    Shard,
    Work,
    findings_of,
    judge,
    measure,
    noise_of,
    of_rank,
    of_step,
)

Part = TypeVar("Part")
HELD = 20_000  # pairs of tensors of a step without values that one worker holds at once: some 100 MB


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
    crew = _Crew(work, executor or workers(options.jobs or default_jobs(), apart=True))
    measured = crew.each(measure, shards)
    broken = tuple(one for some in measured for one in some.broken)
    readable = [shard for shard, one in zip(shards, measured) if not one.broken]
    if not readable:
        raise UsageError(f"nothing can be compared: {broken[0][1].problem}")
    remarks = _remarks([one for one in measured if not one.broken], options)
    said = [one.reduced for one in measured]
    reduced = True in said and False not in said
    if reduced:
        crew.each(judge, readable)
    roots = placed_roots(_walked(crew, readable, measured))
    dtypes = frozenset().union(*(one.dtypes for one in measured))
    return Report(
        paths=(str(target), str(golden)),
        comparisons=Stored(
            crew.work, [Finished(shard, reduced, roots.get(shard.number, ())) for shard in readable], folder
        ),
        unpaired=tuple((side, open_head(head, context)) for side, head in unpaired),
        broken=broken,
        rules=rules_of(options.decides(), options, dtypes),
        notes=remarks,
        seconds=time.monotonic() - started,
        bytes_read=sum(one.bytes_read for one in measured),
        strict=options.strict,
        disk=options.bytes_on_disk(),
    )


class Finished(NamedTuple):
    """A shard when all is done: whether products show 11 bits in all of them, and its roots."""

    shard: Shard
    reduced: bool
    roots: "tuple[Root, ...]"

    @property
    def target(self) -> Head:
        return self.shard.target

    def read(self, work: Work) -> Comparison:
        """All that was found of it."""
        one: Comparison = work.kept(self.shard.number, "judged")
        findings = findings_of(work, self.shard.number, one)
        notes = (*one.notes, *notes_of(findings, self.roots, self.reduced))
        return replace(one, findings=tuple(findings), roots=self.roots, notes=notes)


class Stored(Sequence[Comparison]):
    """The comparisons of shards, read when they are asked for and not kept."""

    def __init__(self, work: Work, shards: "Sequence[Finished]", folder: "tempfile.TemporaryDirectory[str]") -> None:
        self.work, self.shards, self._folder = work, shards, folder

    def __len__(self) -> int:
        return len(self.shards)

    def __reduce__(self) -> "tuple[Any, ...]":
        return tuple, ((*self,),)  # pickled, they are all there: the folder goes with this process

    @overload
    def __getitem__(self, at: int) -> Comparison: ...
    @overload
    def __getitem__(self, at: slice) -> "Sequence[Comparison]": ...
    def __getitem__(self, at: "Union[int, slice]") -> "Union[Comparison, Sequence[Comparison]]":
        if isinstance(at, slice):
            return Stored(self.work, self.shards[at], self._folder)
        return self.shards[at].read(self.work)

    def parts(self, part: "Callable[[Comparison], Part]", executor: Executor) -> "list[Part]":
        """part of each, made by workers: a plain function."""
        return _Crew(self.work, executor).each(_part, self.shards, part)


def _part(work: Work, shard: Finished, part: "Callable[[Comparison], Part]") -> Part:
    return part(shard.read(work))


class _Task(NamedTuple):
    function: "Callable[..., Any]"
    work: Work
    arguments: "tuple[Any, ...]"


class _Crew:
    """Whoever executes the work."""

    def __init__(self, work: Work, executor: Executor) -> None:
        self.work, self._executor = work, executor

    def each(
        self, function: "Callable[..., Part]", shards: "Sequence[Union[Shard, Finished]]", *more: Any
    ) -> "list[Part]":
        """function of the work, each shard, and more."""
        return self.each_with(function, shards, [more] * len(shards))

    def each_with(
        self,
        function: "Callable[..., Part]",
        shards: "Sequence[Union[Shard, Finished]]",
        given: "Sequence[tuple[Any, ...]]",
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


def _walked(crew: _Crew, shards: "Sequence[Shard]", measured: "Sequence[Measured]") -> "list[Ranked]":
    """The roots of all shards, step by step; their findings lie where the next looks for them."""
    steps: "dict[int, list[Shard]]" = defaultdict(list)
    for shard in shards:
        steps[shard.step].append(shard)
    options, ranked = crew.work.options, []
    latest: "dict[Optional[int], int]" = {}
    faulty = False
    by_round_off, uses_noise = options.decides().by_round_off, crew.work.rules().uses("suspected")
    last = {shard.rank: shard.number for shard in sorted(shards, key=lambda shard: shard.step)}
    for step, some in sorted(steps.items()):
        before = [Before(latest.get(shard.rank), faulty, last[shard.rank] != shard.number) for shard in some]
        noisy = by_round_off and uses_noise and not any(measured[shard.number].has_values for shard in some)
        is_small = sum(measured[shard.number].tensors for shard in some) <= HELD
        told = _together(crew, some, before) if noisy and is_small else _apart(crew, some, before, noisy)
        for shard, roots in zip(some, told):
            latest[shard.rank] = shard.number
            faulty = faulty or any(root.cause is not Cause.PROPAGATED for _, root in roots)
            ranked += as_ranked(step, shard.number, roots)
    return ranked


def _apart(
    crew: _Crew, some: "Sequence[Shard]", before: "Sequence[Before]", noisy: bool
) -> "list[list[tuple[int, Root]]]":
    def everyone(what: str, whom: "Mapping[int, tuple[Any, ...]]") -> "dict[int, Any]":
        given = [(before[rank], what, len(some) == 1, arguments) for rank, arguments in whom.items()]
        return dict(zip(whom, crew.each_with(of_rank, [some[rank] for rank in whom], given)))

    noise = None
    if noisy:
        known = crew.each_with(noise_of, some, [(one,) for one in before])
        noise = NoiseOf(all(one.first for one in known), max(one.unproven for one in known))
    return [roots for _, roots in walked_apart(len(some), everyone, noise)]


def _together(crew: _Crew, some: "Sequence[Shard]", before: "Sequence[Before]") -> "list[list[tuple[int, Root]]]":
    """By one worker that has all of them in memory, where that is less work than asking each several times."""
    told: "list[list[list[tuple[int, Root]]]]" = crew.each(of_step, [some[0]], some, before)
    return told[0]


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
