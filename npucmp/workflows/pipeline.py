"""The pipeline of a comparison, for one step and rank as for thousands.

    measure   each step and rank   open both runs, align, measure and judge them (rank_tasks.measure)
    judge     each step and rank   judge again, if all of them together show that products keep 11 bits
    search    each step            search all ranks of the step together, steps in order (rank_tasks.search)
    report    each step and rank   make parts of the report and rows of tables from finished comparisons

An executor runs the tasks: this process, further processes, or the workers of a Dask cluster. Runs that are already
open (small dumps, graphs, further dumps) are compared in this process, and their results stay in memory. Otherwise each
task opens its own runs, and results go to a scratch folder that is removed with the report.

If a worker dies during a task, another worker repeats the task. If two workers die during it, the step and rank becomes
a row with the reason.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.dump.formats import open_head
from npucmp.errors import DumpError, UsageError
from npucmp.judge.products import are_reduced, merge_votes
from npucmp.localise.root_order import places_of, search_steps
from npucmp.measure.executor import Executor, Serial, kept_by
from npucmp.model import PartOf, Report, Run, RunHeader, StoredComparisons
from npucmp.model.comparison import FailedTask
from npucmp.workflows import rank_tasks
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import Options, rules_of
from npucmp.workflows.rank_tasks import (
    ComparisonWork,
    EarlierStep,
    Memory,
    Names,
    RankMeasurement,
    RankResult,
    RankRoots,
    StepRank,
    Store,
)
from npucmp.workflows.select_runs import PairedRuns
from npucmp.workflows.unused_options import unfit_numbers

if TYPE_CHECKING:
    from npucmp.workflows.scratch import ScratchFolder

Side = Union[RunHeader, Run]


class ComparisonSource(NamedTuple):
    """The inputs of a comparison: two dumps, the paired runs or heads, runs without a partner, unreadable runs, and
    further dumps as "side=DUMP". `ranks`: for each target that was put together, the runs of its ranks; `paired`: the
    pairs of the first steps and ranks, if a plan made them."""

    target: StrPath
    golden: StrPath
    together: Sequence[tuple[Side, Side]]
    unpaired: Sequence[tuple[str, Side]] = ()
    broken: Sequence[tuple[str, Run]] = ()
    also: tuple[str, ...] = ()
    ranks: Sequence[Mapping[int, Run]] = ()
    paired: Sequence[PairedRuns] = ()

    @property
    def is_open(self) -> bool:
        """Whether all paired runs are open."""
        return all(isinstance(side, Run) for both in self.together for side in both)


def compare_steps(source: ComparisonSource, options: Options, executor: Optional[Executor] = None) -> Report:
    """Compare all steps and ranks of two dumps.

    Raises UsageError if nothing can be compared, DumpError if no step and rank can be read.
    """
    if source.is_open:
        return _compare_all(source, options, Serial(), Memory())
    from npucmp.workflows.scratch import Scratch, ScratchFolder

    load_phases()
    folder = ScratchFolder(options.journal)
    with folder:
        return _compare_all(source, options, executor or Serial(), Scratch(folder.path), folder)


def load_phases() -> None:
    """Import the modules of statistics, which workers that are forked later share."""
    from npucmp.flow import collectives  # noqa: F401
    from npucmp.localise import open_tensors, remote_inputs, stat_test, unlimited_errors  # noqa: F401
    from npucmp.workflows import recorded_frames  # noqa: F401


def _compare_all(
    source: ComparisonSource, options: Options, executor: Executor, store: Store, folder: Optional[ScratchFolder] = None
) -> Report:
    started = time.monotonic()
    places = [StepRank(number, *both) for number, both in enumerate(source.together)]
    own = options if folder is None else replace(options, progress=None, jobs=1, executor=None)
    work = ComparisonWork(
        source.target, source.golden, own, store, time.time(), len(places) == 1, folder is None,
        ranks=tuple(source.ranks), paired=tuple(source.paired),
    )  # fmt: skip
    tasks = _Tasks(work, executor)
    measured, interrupted = _measure_steps(tasks, places, options)
    broken = [*source.broken, *(side for one in measured for side in one.broken)]
    readable = [place for place, one in zip(places, measured) if not one.broken]
    if not readable and not interrupted:
        side, run = broken[0]
        words = f"none of {len(places)} steps and ranks can be read on both sides, the first: {run.problem}"
        raise DumpError(source.target if side == "target" else source.golden, words)
    found = [one for one in measured if not one.broken]
    everyone = [*chain.from_iterable(source.together), *(side for _, side in source.unpaired)]
    everyone += [run for _, run in source.broken]
    remarks = [*unfit_numbers(options, everyone), *(_remarks(found, options) if found else ())]
    tasks.work = replace(tasks.work, alike=any(one.alike for one in found))
    if are_reduced(merge_votes(one.products for one in found)):
        tasks.work = replace(tasks.work, reduced=True)
        broken += tasks.judge_again(readable)
    steps = _Steps(tasks, readable)
    searched = search_steps(steps.places, steps.search, lambda both: (cause for _, cause in both[1].roots))
    finished = _finished_ranks(searched)
    context = options.context(source.target, source.golden)
    return Report(
        paths=(str(source.target), str(source.golden)),
        comparisons=_comparisons(tasks, finished, folder),
        unpaired=tuple(
            (side, _open_alone(one, context, options.coverage < 1.0 and side == "golden"))
            for side, one in (*source.unpaired, *_without_partner(places, measured))
        ),
        broken=(*broken, *steps.gone),
        rules=rules_of(options.decides(), options, frozenset().union(*(one.dtypes for one in measured))),
        notes=(
            *remarks,
            *_recomputation_notes(searched, options.recompute == "all"),
            *dict.fromkeys(note for one in measured for note in one.checkpoint_notes),
            *steps.notes,
            *interrupted,
        ),
        seconds=time.monotonic() - started,
        bytes_read=sum(one.bytes_read for one in measured),
        partial=bool(interrupted),
        strict=options.strict,
        least=options.coverage,
        excluded=options.exclusion_words(),
        disk=options.bytes_on_disk(),
        also=source.also,
    )


def _open_alone(one: Side, context: Any, whole: bool) -> Run:
    """Return a run without a partner; it is read only if its elements count."""
    if isinstance(one, Run):
        return one
    return open_head(one, context) if whole else _unread(one)


def _unread(one: Side) -> Run:
    return one if isinstance(one, Run) else Run(one.path, one.format, (), one.step, one.rank)


def _comparisons(
    tasks: _Tasks, finished: Sequence[RankResult], folder: Optional[ScratchFolder]
) -> Union[tuple[Any, ...], StoredComparisons]:
    if folder is None:
        return tuple(one.read(tasks.work) for one in finished)
    return StoredComparisons(
        lambda at: finished[at].read(tasks.work),
        partial(_parts, tasks, finished),
        [one.tally for one in finished],
        [one.one.where for one in finished],
        folder.path,
        folder.close,
        partial(kept_by, tasks.executor),
    )


def _parts(
    tasks: _Tasks, finished: Sequence[RankResult], function: PartOf[Any], numbers: Sequence[int]
) -> Iterator[Any]:
    """Yield the results of a function for comparisons, by their numbers. Raises RuntimeError with the reason if workers
    died."""
    calls = [([finished[at].one.number], (finished[at], at, function)) for at in numbers]
    return tasks.every(rank_tasks.part, calls)


class _Task(NamedTuple):
    function: Callable[..., Any]
    work: ComparisonWork
    arguments: tuple[Any, ...]


class _Tasks:
    """The tasks of a comparison, run by an executor."""

    def __init__(self, work: ComparisonWork, executor: Executor) -> None:
        self.work, self.executor = work, executor

    def every(
        self, function: Callable[..., Any], calls: Iterable[tuple[Iterable[int], tuple[Any, ...]]]
    ) -> Iterator[Any]:
        """Yield the results of a function in order, or `Died`. Each task has the numbers of the steps and ranks whose
        results it needs, and its arguments."""
        store = self.work.store
        tasks = [
            _Task(function, replace(self.work, store=store.about(numbers)), arguments) for numbers, arguments in calls
        ]
        for answer, made in self.executor.map(_do, tasks, _failed_answer):
            store.learn(made)
            yield answer

    def judge_again(self, places: list[StepRank]) -> list[tuple[str, Run]]:
        """Judge all steps and ranks again. Steps and ranks during which workers died are removed from `places` and
        returned."""
        answers = [*self.every(rank_tasks.judge, [([one.number], (one,)) for one in places])]
        gone = [(one, answer) for one, answer in zip(places, answers) if isinstance(answer, FailedTask)]
        places[:] = [one for one, answer in zip(places, answers) if not isinstance(answer, FailedTask)]
        return [("target", _failed_run(one, f"judging it ended the process: {died.because}")) for one, died in gone]


def _do(task: _Task) -> tuple[Any, Names]:
    return task.function(task.work, *task.arguments), task.work.store.made


def _failed_answer(task: _Task, because: str) -> tuple[Any, Names]:
    if task.function is not rank_tasks.measure:
        return FailedTask(because), {}
    run = _failed_run(task.arguments[0], f"reading it ended the process: {because}")
    return RankMeasurement(broken=(("target", run),), died=True), {}


def _failed_run(one: StepRank, why: str) -> Run:
    """Return a run that has only a problem."""
    return replace(_unread(one.target), operators=(), problem=f"{one.target.path}: {why}")


def _measure_steps(
    tasks: _Tasks, places: Sequence[StepRank], options: Options
) -> tuple[list[RankMeasurement], tuple[str, ...]]:
    """Return the measurements of all steps and ranks, fewer if Ctrl-C ended them, and a note on that."""
    found: list[RankMeasurement] = []
    progress = _Progress(options, len(places))
    try:
        own = (progress.within,) if tasks.work.in_memory and options.progress else ()
        for one in tasks.every(rank_tasks.measure, [((), (place, *own)) for place in places]):
            found.append(one)
            progress.finish(one.size)
            if one.tensors < one.wanted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        more = "; the same command with --resume continues" if options.journal is not None else ""
        if tasks.work.alone and found:
            count = f"{found[0].tensors} of {found[0].wanted} tensors"
        else:
            count = f"{sum(one.tensors == one.wanted for one in found)} of {len(places)} steps and ranks"
        return found, (f"interrupted: {count} were measured{more}",)
    return found, ()


class _Progress:
    """The number of bytes done, and an estimate of the total, since steps and ranks hardly differ in size."""

    def __init__(self, options: Options, count: int) -> None:
        self._show, self._count, self._done, self._finished_ranks = options.progress, count, 0, 0
        self._last = 0

    def within(self, done: int, total: int) -> None:
        """Report the bytes done of one step and rank."""
        self._last = done
        if self._show:
            self._show(self._done + done, (self._done + total) * self._count // (self._finished_ranks + 1))

    def finish(self, size: int) -> None:
        """Report that a step and rank of so many bytes is done."""
        self._done, self._finished_ranks = self._done + size, self._finished_ranks + 1
        if self._show and (self._last != size or self._finished_ranks == self._count):
            self._show(self._done, self._done * self._count // self._finished_ranks)
        self._last = 0


def _without_partner(places: Sequence[StepRank], measured: Sequence[RankMeasurement]) -> Iterator[tuple[str, Side]]:
    """Yield the partners of runs that cannot be read."""
    for place, one in zip(places, measured):
        sides = {side for side, _ in one.broken}
        if len(sides) == 1 and not one.died:
            yield ("golden", place.golden) if "target" in sides else ("target", place.target)


def _remarks(measured: Sequence[RankMeasurement], options: Options) -> tuple[str, ...]:
    """Return notes on options that match nothing in any step and rank, and on runs that do not belong together."""
    errors = [one.mismatch for one in measured if one.mismatch is not None]
    if len(errors) == len(measured):
        raise errors[0]
    if not any(one.wanted for one in measured):
        raise UsageError(f"nothing to compare: {options.nothing()}")
    said = [{_subject(words) for words in one.unfit} for one in measured]
    unfit = [words for words in measured[0].unfit if all(_subject(words) in unfit_of for unfit_of in said)]
    odd = dict.fromkeys(words for one in measured for words in one.odd)
    without = [f"judged without {', '.join(options.skip_rules)}"] if options.skip_rules else []
    return (*unfit, *odd, *without)


def _recomputation_notes(found: Sequence[tuple[StepRank, RankRoots]], of_all: bool) -> Iterator[str]:
    """Yield a note on the number of recomputed operators in all steps and ranks; `of_all`: none was left out."""
    shares = [(place, *one.recomputed) for place, one in found if one.recomputed is not None]
    by_engine = sum((Counter(numbers) for _, numbers, _ in shares), Counter[str]())
    done, every = sum(by_engine.values()), sum(count for *_, count in shares)
    if not done:
        return
    ranks, steps = ({getattr(place, name) for place, *_ in shares} for name in ("rank", "step"))
    by = " and ".join(f"{count:,} by {name}" for name, count in by_engine.items())
    by = by if len(by_engine) > 1 else f"by {next(iter(by_engine))}"
    which = "" if of_all or done == every else " (suspects, explained errors and a sample)"
    if len(shares) == 1:
        yield f"recomputed {done:,} of {every:,} operators {by}, in float64 from their recorded inputs" + which
    else:
        places = f"{len(shares):,} {'steps' if len(steps) > 1 else 'ranks'}"
        if len(steps) > 1 and len(ranks) > 1:
            places = f"{len(steps):,} steps × {len(ranks):,} ranks"
        yield (
            f"recomputed {done:,} of {every:,} operators ({places}) {by}, in float64 from their recorded inputs" + which
        )


def _subject(words: str) -> str:
    return words.partition(" (did you mean")[0]


class _Steps:
    """The search of all steps, in order. `gone` are the runs during which workers died, explained by `notes`."""

    def __init__(self, tasks: _Tasks, places: Sequence[StepRank]) -> None:
        self._tasks, self.places = tasks, sorted(places, key=lambda place: place.step)
        self._before: dict[int, Optional[int]] = {}
        latest: dict[Optional[int], int] = {}
        for place in self.places:
            self._before[place.number] = latest.get(place.rank)
            latest[place.rank] = place.number
        self.gone: list[tuple[str, Run]] = []
        self.notes: list[str] = []

    def search(self, steps: Sequence[Sequence[StepRank]], faulty: bool) -> Iterator[list[tuple[StepRank, RankRoots]]]:
        """Yield the results of the ranks of each step."""
        for ranks, answer in zip(steps, self._answers(steps, faulty)):
            if not isinstance(answer, FailedTask):
                yield [*zip(ranks, answer)]
                continue
            alone = [[one] for one in ranks] if len(ranks) > 1 else []
            if alone:
                self.notes.append(
                    f"step {ranks[0].step}: its ranks were searched one by one, as a search of all of them ended the "
                    f"process: {answer.because}"
                )
            answers = [*zip(ranks, self._answers(alone, faulty))] if alone else [(ranks[0], answer)]
            self.gone += [
                ("target", _failed_run(one, f"judging it ended the process: {died.because}"))
                for one, died in answers
                if isinstance(died, FailedTask)
            ]
            yield [(one, of_rank[0]) for one, of_rank in answers if not isinstance(of_rank, FailedTask)]

    def _answers(self, steps: Sequence[Sequence[StepRank]], faulty: bool) -> Iterator[Any]:
        calls = []
        for ranks in steps:
            before = [EarlierStep(self._before[one.number], faulty) for one in ranks]
            needed = [*(one.number for one in ranks), *(one.number for one in before if one.number is not None)]
            calls.append((needed, (ranks[0], ranks, before)))
        return self._tasks.every(rank_tasks.search, calls)


def _finished_ranks(found: Sequence[tuple[StepRank, RankRoots]]) -> list[RankResult]:
    """Return all steps and ranks in order, with the places of their root causes among all."""
    found = sorted(found, key=lambda both: both[0].number)
    every = places_of([(place.step, one.roots) for place, one in found])
    return [
        RankResult(
            place,
            one.tally._replace(first=min(zip(places, (cause for _, cause in one.roots)), default=None)),
            places,
        )
        for (place, one), places in zip(found, every)
    ]
