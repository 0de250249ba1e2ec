"""Run tasks in child processes with limits → rows, links, gaps and edges. A failed operator never ends the run.

When all edges are known, they are judged together. A guilty consumer explains wrong gradients. If the gradients of all
consumers of a kind have similar errors, and none larger than half precision inside causes, the cause is a setting of
the device (products in HF32), as in kind_baseline.py: one line is reported, and no edge is broken.
"""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Callable, Iterator, Mapping, Optional, Sequence, TypeVar, Union

from npucmp.dump.limits import ReadContext
from npucmp.errors import NpucmpError, raise_in_tests
from npucmp.measure.executor import Processes
from npucmp.model import Edge, EdgeVerdict, Gap, Operator, ReplayedOutput, ReplayVerdict
from npucmp.model.dtypes import lookup
from npucmp.recompute.arguments import READ_ERRORS, RefusedRecord
from npucmp.recompute.data_flow import EdgeTask, ForwardLinks, GapTask, marks_of
from npucmp.recompute.engine import OperatorEngine
from npucmp.recompute.gaps import fill_gap, with_peers
from npucmp.recompute.kind_baseline import COARSE, FEWEST, IN_16_BITS, OUTLIER
from npucmp.recompute.task import ReplaySettings, Task, first_line, unknown

SECONDS = 60.0  # for one operator, and one more per PER_SECOND
PER_SECOND = 200_000  # bytes
BASE = 256 << 10  # of work for each record, in addition to its tensors
CONTAINERS = ("Module", "Cell")  # modules whose operators are dumped too
_STARTED: set[str] = set()  # what this process has prepared: the engine, its limits
Item = TypeVar("Item", bound=Union[Task, GapTask])
Found = TypeVar("Found")


@dataclass(frozen=True)
class ChildWork:
    """The work of a child on a task. All that it needs was in memory when the child started."""

    engine: OperatorEngine
    context: ReadContext
    settings: ReplaySettings

    def __call__(self, task: Task) -> list[ReplayedOutput]:
        status, because = self.engine.refuses(task)
        if status:
            return unknown(task, status, because)
        problem = self.started()
        if problem:
            return unknown(task, "crashed", problem)
        started = time.perf_counter()
        with _clock(task.bytes):
            found = _replay_task(self.engine, task, self.context, self.settings)
        seconds = time.perf_counter() - started
        return [one._replace(seconds=seconds / len(found)) for one in found]

    def started(self) -> str:
        """Prepare this process. Return why it cannot replay, "" if it can."""
        if "engine" not in _STARTED:
            try:
                self.engine.start(self.settings)
            except Exception as error:  # the installed package does not work
                raise_in_tests(error)
                return f"the engine cannot be used: {first_line(error)}"
            _STARTED.add("engine")
            _limit(self.settings.memory)
        return ""

    def edge(self, task: EdgeTask) -> Edge:
        """Return a gradient between operators. If an error occurs, the edge is unknown and has the reason."""
        order = task.task.operator.order
        problem = self.started()
        if problem:
            return Edge(order, task.slot, explanation=problem)
        with _clock(task.bytes):
            try:
                return self.engine.edge(task, self.context, self.settings)
            except READ_ERRORS as error:
                return Edge(order, task.slot, explanation=_because(error))
            except Exception as error:  # the last frame of a child
                raise_in_tests(error)
                return Edge(order, task.slot, explanation=_because(error))


@contextmanager
def _clock(size: int) -> Iterator[None]:
    """End the child by SIGALRM if work on `size` bytes takes too long."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS + size / PER_SECOND)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _because(error: Exception) -> str:
    if isinstance(error, (RefusedRecord, NpucmpError)):
        return getattr(error, "because", str(error))
    return f"{type(error).__name__}: {first_line(error)}"


def _replay_task(
    engine: OperatorEngine, task: Task, context: ReadContext, settings: ReplaySettings
) -> list[ReplayedOutput]:
    """Return the rows of a task. An error becomes its status."""
    try:
        return engine.replay(task, context, settings)
    except RefusedRecord as error:
        return unknown(task, error.status, str(error))
    except NpucmpError as error:  # raised by readers
        return unknown(task, "no data", getattr(error, "because", str(error)))
    except OSError as error:
        return unknown(task, "no data", error.strerror or str(error))
    except Exception as error:  # the last frame of a child: only the row of this operator fails
        large = isinstance(error, MemoryError) or "allocate memory" in str(error)
        if not large:
            raise_in_tests(error)
        return unknown(task, "too large" if large else "crashed", f"{type(error).__name__}: {first_line(error)}")


def replay_tasks(
    tasks: Sequence[Task], engine: OperatorEngine, context: ReadContext, settings: ReplaySettings, jobs: int
) -> Iterator[list[ReplayedOutput]]:
    """Yield the rows of each task, in order. If a child dies twice over a task, the task is `crashed`."""
    for one in with_edges(tasks, [], engine, context, settings, jobs):
        assert isinstance(one, list)
        yield one


def with_edges(
    tasks: Sequence[Task],
    edges: Sequence[EdgeTask],
    engine: OperatorEngine,
    context: ReadContext,
    settings: ReplaySettings,
    jobs: int,
) -> Iterator[list[ReplayedOutput] | Edge]:
    """Yield the rows of each task, then each edge, from the same children."""
    work = ChildWork(engine, context, settings)

    def either(item: Task | EdgeTask) -> list[ReplayedOutput] | Edge:
        return work(item) if isinstance(item, Task) else work.edge(item)

    items: list[Task | EdgeTask] = [*tasks, *edges]
    return Processes(jobs, isolated=True).map(either, items, _failed, weight=lambda item: BASE + item.bytes)


def _failed(item: Task | EdgeTask, because: str) -> list[ReplayedOutput] | Edge:
    late = f"signal {int(signal.SIGALRM)} " in because
    words = "it took too long" if late else f"the process that replayed it ended: {because}"
    if isinstance(item, Task):
        return unknown(item, "crashed", words)
    return Edge(item.task.operator.order, item.slot, explanation=words)


def link_operators(
    tasks: Sequence[Task], context: ReadContext, settings: ReplaySettings, jobs: int
) -> tuple[ForwardLinks, list[Gap]]:
    """Return producers and consumers, and the functions that fill gaps."""
    tasks = [task for task in tasks if task.call.prefix.rpartition(".")[2] not in CONTAINERS]
    forwards = [task for task in tasks if not task.is_backward]
    marks = _in_children(lambda task: marks_of(task.operator, context), forwards, lambda task: {}, settings, jobs)
    links = ForwardLinks(tasks, dict(zip((task.operator.order for task in forwards), marks)))

    def empty(task: GapTask) -> Gap:
        return Gap(task.order, task.tensor.slot)

    gaps = [*_in_children(lambda task: fill_gap(task, context), [*links.gaps()], empty, settings, jobs)]
    return links, with_peers(gaps, {task.operator.order: task.operator for task in tasks})


def _in_children(
    work: Callable[[Item], Found],
    items: Sequence[Item],
    empty: Callable[[Item], Found],
    settings: ReplaySettings,
    jobs: int,
) -> Iterator[Found]:
    """Yield the result of `work` for each item, from children with the limits of a replay; `empty` if an error
    occurs."""

    def limited(item: Item) -> Found:
        if "limits" not in _STARTED:
            _STARTED.add("limits")
            _limit(settings.memory)
        try:
            with _clock(item.bytes):
                return work(item)
        except READ_ERRORS:  # the row of its operator has the error
            return empty(item)
        except Exception as error:  # the last frame of a child
            raise_in_tests(error)
            return empty(item)

    return Processes(jobs, isolated=True).map(
        limited, items, lambda item, because: empty(item), weight=lambda item: BASE + item.bytes
    )


def _limit(memory: int) -> None:
    """Limit the memory that this process may use in addition to its present use."""
    import resource  # not on every system

    with open("/proc/self/statm", encoding="ascii") as stream:
        used = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, resource.getrlimit(resource.RLIMIT_AS)[1]))


MOST = 0.5  # of the edges of a kind: an edge that adds several gradients may hide the error of one


def finish_edges(
    edges: Sequence[Edge], rows: Sequence[ReplayedOutput], operators: Mapping[int, Operator]
) -> tuple[list[Edge], list[str]]:
    """Return edges in order of execution, and a sentence for each explained kind."""
    guilty = {
        operators[row.order].call: operators[row.order].name for row in rows if row.verdict is ReplayVerdict.GUILTY
    }
    found = []
    for edge in sorted(edges, key=lambda edge: (edge.order, edge.slot)):
        own = [guilty[call] for order in edge.consumers if (call := operators[order].call) in guilty]
        if edge.verdict is EdgeVerdict.BROKEN and own:
            edge = edge._replace(verdict=EdgeVerdict.UNKNOWN, explanation=f"{own[0]} is guilty")
        found.append(edge)
    return _excuse_rows(found, operators)


def _excuse_rows(edges: list[Edge], operators: Mapping[int, Operator]) -> tuple[list[Edge], list[str]]:
    kinds: dict[str, list[int]] = defaultdict(list)
    for place, edge in enumerate(edges):
        for kind in {operators[order].kind for order in edge.consumers if edge.rel_l2_u is not None}:
            kinds[kind].append(place)
    words = []
    for kind, places in kinds.items():
        broken = [place for place in places if edges[place].verdict is EdgeVerdict.BROKEN]
        errors = {place: error for place in broken if (error := _error(edges[place], operators)) is not None}
        if len(broken) < max(FEWEST, MOST * len(places)):
            continue
        middle = median(errors.values()) if errors else 0.0
        alike = [place for place, error in errors.items() if error <= OUTLIER * middle]
        if len(alike) < max(FEWEST, len(broken) / 2):
            continue
        words.append(f"{len(alike)} of {len(places)} gradients that {kind} returns have similar errors: explained by "
                     "coarser arithmetic inside (a setting, not one operator)")  # fmt: skip
        for place in alike:
            edges[place] = edges[place]._replace(verdict=EdgeVerdict.UNKNOWN, explanation=f"explained: {words[-1]}")
    return edges, words


def _error(edge: Edge, operators: Mapping[int, Operator]) -> Optional[float]:
    """Return the relative error, if coarse arithmetic can cause it; else None."""
    tensor = next((one for one in operators[edge.order].tensors if one.slot == edge.slot), None)
    dtype = lookup(tensor.dtype) if tensor is not None else None
    if dtype is None or edge.rel_l2_u is None:
        return None
    error = edge.rel_l2_u * dtype.round_off
    return error if error <= max(COARSE, IN_16_BITS * dtype.round_off) else None
