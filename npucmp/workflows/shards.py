"""A comparison of many steps and ranks, one shard each: opened, lined up, measured, judged and walked by whichever
worker gets it. What stays with this process of a shard is its head, its counts and the places of its roots.

    measure   each shard             opens both runs, lines them up, measures and judges each tensor by itself
    judge     each shard             again, where all of them together say that products show 11 bits
    walk      the ranks of a step    each by itself, with letters between them (localise/apart.py); steps in order
    parts     each shard             whatever is made of a comparison that is complete: what a reader sees, tables

Between these a shard lies in a folder, which goes with the report; nothing in it comes from elsewhere. Comparisons of
the report are read from there, one at a time. The roots and findings are those of `compare.compared`.

A shard over which a worker died is done again by another; one over which two died is a row with its reason.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import chain
from typing import Any, Iterator, Mapping, Optional, Sequence, TypeVar

from npucmp.dump.formats import graph_source, open_head
from npucmp.errors import DumpError, UsageError
from npucmp.localise.apart import NoiseOf, walked_apart
from npucmp.localise.ranks import precedence
from npucmp.measure.executor import default_jobs, workers
from npucmp.model import Cause, Head, Report, Run
from npucmp.workflows.crew import Crew, Lost, unopened, without
from npucmp.workflows.misfits import unfit_numbers
from npucmp.workflows.options import Options, rules_of
from npucmp.workflows.runs import StrPath, keys, pair_runs
from npucmp.workflows.several_runs import Pairing, fits
from npucmp.workflows.shard import (
    Before,
    Finished,
    Measured,
    Shard,
    Walked,
    Work,
    judge,
    measure,
    noise_of,
    of_rank,
    of_step,
)
from npucmp.workflows.spool import Folder, Spool
from npucmp.workflows.stored import Stored

Part = TypeVar("Part")
HELD = 60_000  # pairs of tensors of a step without values that one worker holds at once: some 200 MB


def compared_in_shards(target: StrPath, golden: StrPath, options: Options, pairing: Optional[Pairing] = None) -> Report:
    """As `compare` does, for dumps and options that `fits` lets through; of others a UsageError."""
    started = time.monotonic()
    if pairing is None:
        context = options.context(target, golden)
        lefts, rights = options.heads(target, context), options.heads(golden, context, golden=True)
        formats = {head.format for head in (*lefts, *rights)}
        if not fits(options, formats):
            given = [f"--{name}" for name in ("graph", "also", "replay") if getattr(options, name)]
            what = given[0] if given else f"the graph of {' and '.join(sorted(filter(graph_source, formats)))} dumps"
            raise UsageError(f"--scheduler: {what} is of all steps and ranks together, which one process compares")
        pairing = Pairing(*pair_runs(lefts, rights, options.partners()))
        if not pairing.together:
            raise UsageError(f"no step and rank is in both: {target} has {keys(lefts)}, {golden} has {keys(rights)}")
    with Folder(options.journal) as folder:
        return _compared(target, golden, options, pairing, folder, started)


def _compared(
    target: StrPath, golden: StrPath, options: Options, pairing: Pairing, folder: Folder, started: float
) -> Report:
    """With shards lying in that folder."""
    shards = [Shard(number, *both) for number, both in enumerate(pairing.together)]
    plain = replace(options, progress=None, jobs=1, executor=None)
    in_a_row, at_once = (max(Counter(some).values()) for some in zip(*((one.rank, one.step) for one in shards)))
    apart = HELD // at_once + 1 if at_once > 1 else None
    work = Work(target, golden, plain, Spool(folder.path), time.time(), in_a_row > 1, apart)
    crew = Crew(work, options.executor or workers(options.jobs or default_jobs(), apart=True))
    measured, interrupted = _measured(crew, shards, options)
    broken = [one for some in measured for one in some.broken]
    readable = [shard for shard, one in zip(shards, measured) if not one.broken]
    if not readable and not interrupted:
        side, run = broken[0]
        words = f"none of {len(shards)} steps and ranks can be read on both sides, the first: {run.problem}"
        raise DumpError(target if side == "target" else golden, words)
    found = [one for one in measured if not one.broken]
    named = unfit_numbers(options, [*chain(*pairing.together), *(head for _, head in pairing.unpaired)])
    remarks = _remarks(found, options) if found else ()
    said = [one.reduced for one in found]
    reduced = True in said and False not in said
    if reduced:
        broken += crew.each_there(judge, readable)
    context = options.context(target, golden)
    steps = _Steps(crew, readable, {shard.number: one for shard, one in zip(shards, measured)})
    finished = _finished(steps.walked(), reduced)
    return Report(
        paths=(str(target), str(golden)),
        comparisons=Stored(crew, finished, folder),
        unpaired=tuple(
            (side, open_head(head, context) if side == "golden" and options.coverage < 1.0 else unopened(head))
            for side, head in (*pairing.unpaired, *_left(shards, measured))
        ),
        broken=(*broken, *steps.gone),
        rules=rules_of(options.decides(), options, frozenset().union(*(one.dtypes for one in measured))),
        notes=(*named, *remarks, *dict.fromkeys(note for one in measured for note in one.kept), *interrupted),
        seconds=time.monotonic() - started,
        bytes_read=sum(one.bytes_read for one in measured),
        partial=bool(interrupted),
        strict=options.strict,
        least=options.coverage,
        excluded=options.excluded(),
        disk=options.bytes_on_disk(),
    )


def _measured(crew: Crew, shards: Sequence[Shard], options: Options) -> tuple[list[Measured], tuple[str, ...]]:
    """What shards tell of themselves, and a note; fewer if Ctrl-C ended it."""
    found: list[Measured] = []
    done = 0
    try:
        for one in crew.every(measure, shards):
            found.append(one)
            done += one.size
            if options.progress:  # how large the others are is not known before they are opened
                options.progress(done, done * len(shards) // len(found))
    except KeyboardInterrupt:
        more = "; the same command with --resume goes on from there" if options.journal is not None else ""
        return found, (f"interrupted: {len(found)} of {len(shards)} steps and ranks were measured{more}",)
    return found, ()


def _left(shards: Sequence[Shard], measured: Sequence[Measured]) -> Iterator[tuple[str, Head]]:
    """Partners of runs that cannot be read."""
    for shard, one in zip(shards, measured):
        sides = {side for side, _ in one.broken}
        if len(sides) == 1 and not one.died:
            yield ("golden", shard.golden) if "target" in sides else ("target", shard.target)


def _finished(told: Sequence[tuple[Shard, Walked]], reduced: bool) -> list[Finished]:
    """All of them in order, with the places of their roots among those of all."""
    ranked = [
        (precedence(shard.step, cause), clock, shard.number, at, cause)
        for shard, one in told
        for at, (clock, cause) in enumerate(one.roots)
    ]
    places: dict[int, dict[int, int]] = defaultdict(dict)
    first: dict[int, tuple[int, Cause]] = {}
    for place, (*_, number, at, cause) in enumerate(sorted(ranked, key=lambda one: one[:3]), 1):
        places[number][at] = place
        first.setdefault(number, (place, cause))
    found = []
    for shard, one in sorted(told, key=lambda both: both[0].number):
        mine = places[shard.number]
        in_order = tuple(mine[at] for at in range(len(mine)))
        found.append(Finished(shard, reduced, one.tally._replace(first=first.get(shard.number)), in_order))
    return found


class _Steps:
    """The walks of all steps. What a step before made of the parameters follows from its judged findings; whether an
    error was born by then follows from its walk: the first step tells that first, then all others are walked at once,
    and again those behind the step in which it turns out otherwise."""

    def __init__(self, crew: Crew, shards: Sequence[Shard], measured: Mapping[int, Measured]) -> None:
        self._crew, self._measured = crew, measured
        by_step: dict[int, list[Shard]] = defaultdict(list)
        for shard in shards:
            by_step[shard.step].append(shard)
        self._steps = [some for _, some in sorted(by_step.items())]
        self._before: dict[int, Optional[int]] = {}
        latest: dict[Optional[int], int] = {}
        for shard in (shard for some in self._steps for shard in some):
            self._before[shard.number] = latest.get(shard.rank)
            latest[shard.rank] = shard.number
        self._uses_noise = crew.work.uses_noise()
        self.gone: list[tuple[str, Run]] = []

    def walked(self) -> list[tuple[Shard, Walked]]:
        """What came of each shard; its findings lie where it lies. Those of which nothing came are `gone`."""
        found: list[tuple[Shard, Walked]] = []
        faulty, todo = False, self._steps
        while todo:
            some = todo if found else todo[:1]
            for number, told in enumerate(self._together(some, faulty), 1):
                found += told
                born = any(cause is not Cause.PROPAGATED for _, one in told for _, cause in one.roots)
                if born and not faulty:
                    faulty, some = True, some[:number]
                    break
            todo = todo[len(some) :]
        return found

    def _together(self, steps: Sequence[list[Shard]], faulty: bool) -> Iterator[list[tuple[Shard, Walked]]]:
        """Steps that are small each by one worker that has all its ranks in memory, where that is less work than asking
        each several times; the others, and those over which workers die, rank by rank."""
        small = [len(some) == 1 or (self._is_noisy(some) and self._pairs(some) <= HELD) for some in steps]
        given = [(some, self._all_before(some, faulty)) for some, is_small in zip(steps, small) if is_small]
        told = iter([*self._crew.every_with(of_step, [some[0] for some, _ in given], given)])
        for some, is_small in zip(steps, small):
            one = next(told) if is_small else None
            yield [*zip(some, one)] if isinstance(one, list) else self._apart(some, faulty)

    def _apart(self, some: list[Shard], faulty: bool) -> list[tuple[Shard, Walked]]:
        while some:
            before, alone = self._all_before(some, faulty), len(some) == 1

            def everyone(
                what: str, whom: Mapping[int, tuple[Any, ...]], before: Any = before, alone: bool = alone
            ) -> dict[int, Any]:
                known = {} if alone or what != "beforehand" else self._said(some)
                asked = [rank for rank in whom if rank not in known]
                given = [(before[rank], what, alone, whom[rank]) for rank in asked]
                return {
                    **known,
                    **dict(zip(asked, self._crew.each_with(of_rank, [some[rank] for rank in asked], given))),
                }

            try:
                noise = None
                if self._is_noisy(some):
                    known = self._crew.each_with(noise_of, some, [(one,) for one in before])
                    noise = NoiseOf(all(one.first for one in known), max(one.unproven for one in known))
                told: list[Any] = walked_apart(len(some), everyone, noise)  # its walks stay where they are: `of_rank`
                return [*zip(some, told)]
            except Lost as lost:
                self.gone += without(some, lost.numbers)
        return []

    def _said(self, some: Sequence[Shard]) -> dict[int, Any]:
        """What those ranks that seemed to be walked apart said beforehand, when they were judged."""
        spool = self._crew.work.spool
        return {
            rank: spool.kept(one.number, "beforehand")
            for rank, one in enumerate(some)
            if spool.holds(one.number, "beforehand")
        }

    def _all_before(self, some: Sequence[Shard], faulty: bool) -> list[Before]:
        return [Before(self._before[shard.number], faulty) for shard in some]

    def _is_noisy(self, some: Sequence[Shard]) -> bool:
        return self._uses_noise and not any(self._measured[shard.number].has_values for shard in some)

    def _pairs(self, some: Sequence[Shard]) -> int:
        return sum(self._measured[shard.number].tensors for shard in some)


def _remarks(measured: Sequence[Measured], options: Options) -> tuple[str, ...]:
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
