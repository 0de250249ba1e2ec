"""Who executes the work on shards, and what comes of those over which workers die."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence, TypeVar, Union

from npucmp.measure.executor import Executor
from npucmp.model import Head, Run
from npucmp.model.collector import uncollected
from npucmp.workflows.shard import Before, Finished, Measured, Shard, Work, measure
from npucmp.workflows.spool import Names

Part = TypeVar("Part")


class Task(NamedTuple):
    function: Callable[..., Any]
    work: Work
    arguments: tuple[Any, ...]


class Died(NamedTuple):
    """What comes of a shard over which workers died."""

    because: str


class Lost(Exception):
    """Shards over which workers died, by their number, with the reason."""

    def __init__(self, numbers: Mapping[int, str]) -> None:
        super().__init__(numbers)
        self.numbers = numbers


class Crew:
    """Whoever executes the work."""

    def __init__(self, work: Work, executor: Executor) -> None:
        self.work, self._executor = work, executor

    def every(self, function: Callable[..., Part], shards: Sequence[Shard]) -> Iterator[Part]:
        """function of the work and each shard, as they come; with `Died` where there is nobody left to say it."""
        return self.every_with(function, shards, [()] * len(shards))

    def every_with(
        self,
        function: Callable[..., Any],
        shards: Sequence[Union[Shard, Finished]],
        given: Sequence[tuple[Any, ...]],
    ) -> Iterator[Any]:
        """The same with something else for each shard."""
        spool, tasks = self.work.spool, []
        for arguments in ((shard, *more) for shard, more in zip(shards, given)):
            tasks.append(Task(function, replace(self.work, spool=spool.about(_numbers(arguments))), arguments))
        for answer, made in self._executor.map(_do, tasks, _lost):
            spool.learn(made)
            yield answer

    def each_with(
        self, function: Callable[..., Part], shards: Sequence[Shard], given: Sequence[tuple[Any, ...]]
    ) -> list[Part]:
        """Of all of them; `Lost` if workers died over one."""
        found = [*self.every_with(function, shards, given)]
        lost = {shard.number: one.because for shard, one in zip(shards, found) if isinstance(one, Died)}
        if lost:
            raise Lost(lost)
        return found

    def each_there(self, function: Callable[..., Any], shards: list[Shard]) -> list[tuple[str, Run]]:
        """Of all of them; those over which workers died are taken out, and told."""
        told = dict(zip((shard.number for shard in shards), [*self.every(function, shards)]))
        return without(shards, {number: one.because for number, one in told.items() if isinstance(one, Died)})


def _numbers(some: Iterable[Any]) -> Iterator[int]:
    """Of all shards that are meant."""
    for one in some:
        if isinstance(one, (Shard, Finished, Before)):
            yield from () if one.number is None else (one.number,)
        elif isinstance(one, list):
            yield from _numbers(one)


@uncollected()
def _do(task: Task) -> tuple[Any, Names]:
    return task.function(task.work, *task.arguments), task.work.spool.made


def _lost(task: Task, because: str) -> tuple[Any, Names]:
    return lost_to(task, because), {}


def lost_to(task: Task, because: str) -> Any:
    """A shard over which workers died costs itself, be it while it is measured, which is when files are read."""
    if task.function is not measure:
        return Died(because)
    run = died(task.arguments[0], f"reading it ended the process: {because}")
    return Measured(broken=(("target", run),), died=True)


def without(shards: list[Shard], lost: Mapping[int, str]) -> list[tuple[str, Run]]:
    """Takes out those over which workers died, and tells of them."""
    gone = [shard for shard in shards if shard.number in lost]
    shards[:] = [shard for shard in shards if shard.number not in lost]
    return [("target", died(one, f"judging it ended the process: {lost[one.number]}")) for one in gone]


def died(shard: Union[Shard, Finished], why: str) -> Run:
    """A run of which no more is known than why."""
    return replace(unopened(shard.target), problem=f"{shard.target.path}: {why}")


def unopened(head: Head) -> Run:
    """A run that nobody has opened."""
    return Run(head.path, head.format, (), head.step, head.rank)
