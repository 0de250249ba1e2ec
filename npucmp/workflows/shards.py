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

import os
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence, TypeVar

from npucmp.dump.formats import graph_source
from npucmp.errors import DumpError, UsageError
from npucmp.localise.apart import NoiseOf, walked_apart
from npucmp.localise.ranks import GRAVITY
from npucmp.measure.executor import default_jobs, workers
from npucmp.model import Cause, Head, Report, Run
from npucmp.workflows.crew import Crew, Lost, unopened, without
from npucmp.workflows.options import Options, rules_of
from npucmp.workflows.runs import StrPath, keys, pair_runs
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
from npucmp.workflows.stored import Stored

Part = TypeVar("Part")
HELD = 20_000  # pairs of tensors of a step without values that one worker holds at once: some 100 MB
SMALL = 4 << 20  # bytes of records up to which all runs are held at once: some 50 MB, and no worker has to be told


class Pairing(NamedTuple):
    """Which runs are held against each other, by their heads, and which have no partner."""

    together: "Sequence[tuple[Head, Head]]"
    unpaired: "Sequence[tuple[str, Head]]"


def fits(options: Options, formats: "set[str]") -> bool:
    """Whether shards can do it: graphs and further dumps are of all runs together."""
    alone = not (options.graph or options.also or options.replay)
    return alone and all(graph_source(name) is None for name in formats)


def paying(target: StrPath, golden: StrPath, options: Options) -> Optional[Pairing]:
    """The runs, where they are to be compared in shards: there are several, folders tell which, and their records are
    large, or somebody else is to do it."""
    if not fits(options, set()):
        return None
    context = options.context(target, golden)
    lefts = options.early_heads(target, context)
    rights = options.early_heads(golden, context, golden=True) if lefts else None
    if not lefts or not rights or not fits(options, {head.format for head in (*lefts, *rights)}):
        return None
    pairing = Pairing(*pair_runs(lefts, rights, options.partners()))
    large = options.executor is not None or sum(_size(head) for both in pairing.together for head in both) > SMALL
    return pairing if large and len(pairing.together) > 1 else None


def _size(head: Head) -> int:
    """Of its records, where they are one file."""
    with suppress(OSError):
        return os.stat(head.path).st_size if os.path.isfile(head.path) else 0
    return 0


def compared_in_shards(target: StrPath, golden: StrPath, options: Options, pairing: Optional[Pairing] = None) -> Report:
    """As `compare` does, for dumps and options that `fits` lets through."""
    started = time.monotonic()
    if pairing is None:
        context = options.context(target, golden)
        lefts, rights = options.heads(target, context), options.heads(golden, context, golden=True)
        pairing = Pairing(*pair_runs(lefts, rights, options.partners()))
        if not pairing.together:
            raise UsageError(f"no step and rank is in both: {target} has {keys(lefts)}, {golden} has {keys(rights)}")
    shards = [Shard(number, *both) for number, both in enumerate(pairing.together)]
    folder = _folder(options)
    work = Work(target, golden, replace(options, progress=None, jobs=1, executor=None), folder.name, time.time())
    crew = Crew(work, options.executor or workers(options.jobs or default_jobs(), apart=True))
    measured, interrupted = _measured(crew, shards, options)
    broken = [one for some in measured for one in some.broken]
    readable = [shard for shard, one in zip(shards, measured) if not one.broken]
    if not readable and not interrupted:
        raise DumpError(broken[0][1].path, f"none of {len(shards)} steps and ranks can be read: {broken[0][1].problem}")
    found = [one for one in measured if not one.broken]
    remarks = _remarks(found, options) if found else ()
    said = [one.reduced for one in found]
    reduced = True in said and False not in said
    if reduced:
        broken += crew.each_there(judge, readable)
    told, lost = _walked(crew, readable, {shard.number: one for shard, one in zip(shards, measured)})
    finished = _finished(told, reduced)
    return Report(
        paths=(str(target), str(golden)),
        comparisons=Stored(crew, finished, folder),
        unpaired=tuple((side, unopened(head)) for side, head in (*pairing.unpaired, *_left(shards, measured))),
        broken=(*broken, *lost),
        rules=rules_of(options.decides(), options, frozenset().union(*(one.dtypes for one in measured))),
        notes=(*remarks, *dict.fromkeys(note for one in measured for note in one.kept), *interrupted),
        seconds=time.monotonic() - started,
        bytes_read=sum(one.bytes_read for one in measured),
        partial=bool(interrupted),
        strict=options.strict,
        disk=options.bytes_on_disk(),
    )


def _folder(options: Options) -> "tempfile.TemporaryDirectory[str]":
    """Where shards lie: below the journal, which all workers can see, or where the system keeps such things."""
    if options.journal is None:
        return tempfile.TemporaryDirectory(prefix="npucmp-")
    try:
        Path(options.journal).mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=".npucmp-", suffix=".tmp", dir=options.journal)
    except OSError as error:
        raise DumpError(options.journal, f"cannot be written: {error.strerror or error}") from None


def _measured(crew: "Crew", shards: "Sequence[Shard]", options: Options) -> "tuple[list[Measured], tuple[str, ...]]":
    """What shards tell of themselves, and a note; fewer if Ctrl-C ended it."""
    found: "list[Measured]" = []
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


def _left(shards: "Sequence[Shard]", measured: "Sequence[Measured]") -> "Iterator[tuple[str, Head]]":
    """Partners of runs that cannot be read."""
    for shard, one in zip(shards, measured):
        sides = {side for side, _ in one.broken}
        if len(sides) == 1 and not one.died:
            yield ("golden", shard.golden) if "target" in sides else ("target", shard.target)


def _finished(told: "Sequence[tuple[Shard, Walked]]", reduced: bool) -> "list[Finished]":
    """All of them in order, with the places of their roots among those of all."""
    ranked = [
        (shard.step, GRAVITY[cause], clock, shard.number, at, cause)
        for shard, one in told
        for at, (clock, cause) in enumerate(one.roots)
    ]
    places: "dict[int, dict[int, int]]" = defaultdict(dict)
    first: "dict[int, tuple[int, Cause]]" = {}
    for place, (*_, number, at, cause) in enumerate(sorted(ranked, key=lambda one: one[:4]), 1):
        places[number][at] = place
        first.setdefault(number, (place, cause))
    found = []
    for shard, one in sorted(told, key=lambda both: both[0].number):
        mine = places[shard.number]
        in_order = tuple(mine[at] for at in range(len(mine)))
        found.append(Finished(shard, reduced, one.tally._replace(first=first.get(shard.number)), in_order))
    return found


def _walked(
    crew: Crew, shards: "Sequence[Shard]", measured: "Mapping[int, Measured]"
) -> "tuple[list[tuple[Shard, Walked]], list[tuple[str, Run]]]":
    """What came of all shards, step by step, their findings lie where the next looks for them; and those of which
    nothing came."""
    steps: "dict[int, list[Shard]]" = defaultdict(list)
    for shard in shards:
        steps[shard.step].append(shard)
    options = crew.work.options
    found: "list[tuple[Shard, Walked]]" = []
    gone: "list[tuple[str, Run]]" = []
    latest: "dict[Optional[int], int]" = {}
    faulty = False
    by_round_off, uses_noise = options.decides().by_round_off, crew.work.rules().uses("suspected")
    last = {shard.rank: shard.number for shard in sorted(shards, key=lambda shard: shard.step)}
    for _, some in sorted(steps.items()):
        told: "Optional[list[Walked]]" = None
        while some and told is None:
            before = [Before(latest.get(shard.rank), faulty, last[shard.rank] != shard.number) for shard in some]
            noisy = by_round_off and uses_noise and not any(measured[shard.number].has_values for shard in some)
            is_small = sum(measured[shard.number].tensors for shard in some) <= HELD
            try:
                told = _together(crew, some, before) if noisy and is_small else _apart(crew, some, before, noisy)
            except Lost as lost:
                gone += without(some, lost.numbers)
        for shard, one in zip(some, told or ()):
            latest[shard.rank] = shard.number
            faulty = faulty or any(cause is not Cause.PROPAGATED for _, cause in one.roots)
            found.append((shard, one))
    return found, gone


def _apart(crew: Crew, some: "Sequence[Shard]", before: "Sequence[Before]", noisy: bool) -> "list[Walked]":
    def everyone(what: str, whom: "Mapping[int, tuple[Any, ...]]") -> "dict[int, Any]":
        given = [(before[rank], what, len(some) == 1, arguments) for rank, arguments in whom.items()]
        return dict(zip(whom, crew.each_with(of_rank, [some[rank] for rank in whom], given)))

    noise = None
    if noisy:
        known = crew.each_with(noise_of, some, [(one,) for one in before])
        noise = NoiseOf(all(one.first for one in known), max(one.unproven for one in known))
    told: "list[Any]" = walked_apart(len(some), everyone, noise)  # its walks stay where they are: `of_rank`
    return told


def _together(crew: Crew, some: "Sequence[Shard]", before: "Sequence[Before]") -> "list[Walked]":
    """By one worker that has all of them in memory, where that is less work than asking each several times. If it dies,
    it dies over all."""
    try:
        (told,) = crew.each_with(of_step, [some[0]], [(some, before)])
    except Lost as lost:
        (because,) = lost.numbers.values()
        raise Lost({shard.number: because for shard in some}) from None
    return told


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
