"""Tasks → rows, in child processes with limits: what one operator costs is never the run."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import Iterator, Sequence

from npucmp.dump.context import ReadContext
from npucmp.errors import NpucmpError
from npucmp.measure.executor import Processes
from npucmp.model import Replayed
from npucmp.replay.arguments import Refused
from npucmp.replay.task import Engine, Settings, Task, first_engine, first_line, unknown

SECONDS = 60.0  # of one operator, and one more per
PER_SECOND = 200_000  # bytes
BASE = 256 << 10  # of work that a record is, however small its tensors
_STARTED: "set[str]" = set()


@dataclass(frozen=True)
class Work:
    """What a child does with a task: all that it needs was in memory when it was made."""

    engines: "tuple[Engine, ...]"
    context: ReadContext
    settings: Settings

    def __call__(self, task: Task) -> "list[Replayed]":
        engine, (status, because) = first_engine(task, self.engines)
        if engine is None:
            return unknown(task, status, because)
        if engine.name not in _STARTED:
            try:
                engine.start(self.settings)
            except Exception as error:  # what is installed does not work
                return unknown(task, "crashed", f"{engine.name} cannot be used: {first_line(error)}")
            _STARTED.add(engine.name)
            _limit(self.settings.memory)
        signal.setitimer(signal.ITIMER_REAL, SECONDS + task.bytes / PER_SECOND)  # SIGALRM ends the child
        started = time.perf_counter()
        try:
            found = _replayed(engine, task, self.context, self.settings)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = time.perf_counter() - started
        return [one._replace(seconds=seconds / len(found)) for one in found]


def _replayed(engine: Engine, task: Task, context: ReadContext, settings: Settings) -> "list[Replayed]":
    """Whatever goes wrong is the status of this task."""
    try:
        return engine.replay(task, context, settings)
    except Refused as error:
        return unknown(task, error.status, str(error))
    except NpucmpError as error:  # of the readers
        return unknown(task, "no data", getattr(error, "because", str(error)))
    except OSError as error:
        return unknown(task, "no data", error.strerror or str(error))
    except Exception as error:
        large = isinstance(error, MemoryError) or "allocate memory" in str(error)
        return unknown(task, "too large" if large else "crashed", f"{type(error).__name__}: {first_line(error)}")


def replayed(
    tasks: "Sequence[Task]", engines: "tuple[Engine, ...]", context: ReadContext, settings: Settings, jobs: int
) -> "Iterator[list[Replayed]]":
    """The rows of each task, in order. One over which a child dies twice is `crashed`."""
    work = Work(engines, context, settings)
    return Processes(jobs, apart=True).map(work, tasks, _lost, weight=lambda task: BASE + task.bytes)


def _lost(task: Task, because: str) -> "list[Replayed]":
    late = f"signal {int(signal.SIGALRM)} " in because
    return unknown(task, "crashed", "it took too long" if late else f"the process that replayed it ended: {because}")


def _limit(memory: int) -> None:
    """Beside what is there already."""
    import resource  # not on every system

    with open("/proc/self/statm", encoding="ascii") as stream:
        used = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
