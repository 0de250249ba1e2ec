"""Walk the folders of a dump, group its files by run and by execution, and guess the order of execution from write
times.

The walk is bounded in depth, has a fixed order, and never follows a link to another place. Files are grouped by run for
formats in which only folders name step, rank and process (names.py).

An operator that ran several times wrote each of its slots several times. Executions are counted from the newest, as
when two runs are paired: missing executions are the earliest ones.

A tool that copies or unpacks files may set new times. The times count only if they are mostly distinct, if they do not
follow the order of names, and if each operator was written after its certain predecessors: a module after the modules
that it contains, a later call after an earlier one. Clocks tick in milliseconds, so neighbours may share a time; they
keep their order.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypeVar

from npucmp.dump.readers.names import micro_of, natural, place_of
from npucmp.errors import raise_system_failure

DEPTH = 16  # folders below a path; the deepest tree that a tool writes has eight


def folders(path: Path, depth: int = DEPTH) -> Iterator[tuple[str, list[str]]]:
    """Yield (folder, its sorted file names), parents first. A closed folder is skipped. Raises SystemFailure."""
    waiting = [(str(path), 0)]
    while waiting:
        folder, level = waiting.pop()
        files, below = [], []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.path)
                    else:
                        files.append(entry.name)
        except OSError as error:
            raise_system_failure(error)
            continue
        yield folder, sorted(files)
        if level < depth:
            waiting += [(name, level + 1) for name in sorted(below, reverse=True)]


def folders_at(path: Path, depth: int = DEPTH) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders at and below a path; of a file, only its folder and its own name."""
    yield from [(str(path.parent), [path.name])] if path.is_file() else folders(path, depth)


def first_files(found: Iterable[tuple[str, list[str]]], most: int) -> Iterator[tuple[str, list[str]]]:
    """Yield folders until `most` names were yielded, enough to recognise the format; a folder counts as a name."""
    left = most
    for folder, names in found:
        yield folder, names[:left]
        left -= len(names) + 1
        if left <= 0:
            return


def first_names(path: Path, most: int = 5000) -> Iterator[str]:
    """Yield at most `most` file names below a folder, enough to recognise the format."""
    seen = 0
    for _, names in folders(path):
        for name in names:
            seen += 1
            if seen > most:
                return
            yield name


SNIFFED = 1000  # folders searched at most
DATA = ("dump_tensor_data", "tensor_data", "torch_tensors")  # folders of tensors whose names carry no information


class RunFiles(NamedTuple):
    """The files of one run. `paths` are (folders below the run, file name, path), `others` files with other endings."""

    step: Optional[int]
    rank: Optional[int]
    path: str
    paths: list[tuple[str, str, str]]
    others: list[str]


def files_of(path: Path, endings: tuple[str, ...]) -> list[RunFiles]:
    """Return the files of these endings at or below a path, by run.

    A run is everything below the last folder that names its step, rank or process; if no folder below the path names
    one, each folder is a run. Micro batches above that folder are treated as if they were below it.
    """
    if path.is_file():
        place = place_of(path.absolute().parts[:-1])
        return [RunFiles(place.step, place.rank, str(path), [("", path.name, str(path))], [])]
    runs: dict[str, RunFiles] = {}
    depth = len(path.absolute().parts)
    for folder, names in folders(path):
        chosen = [name for name in names if name.endswith(endings)]
        if not chosen:
            continue
        parts = Path(folder).absolute().parts
        place = place_of(parts)
        end = place.depth if place.depth >= depth else _of_itself(parts)
        micro = [part for part in parts[depth : place.depth] if micro_of(part) is not None]
        base = os.path.join(*(part for at, part in enumerate(parts[:end]) if at < depth or part not in micro))
        below = [*micro, *(part for part in parts[end:] if part not in DATA)]
        found = runs.setdefault(base, RunFiles(place.step, place.rank, base, [], []))
        found.paths.extend(("/".join(below), name, os.path.join(folder, name)) for name in chosen)
        found.others.extend(name for name in names if not name.endswith(endings))
    return list(runs.values())


def labelled_folders(path: Path, endings: tuple[str, ...], most: int = 0) -> Iterator[Path]:
    """Yield the folder, and the folders below it that name step, rank or process, if they hold such a file.

    At most the first `most` folders are searched; 0 means all.
    """
    depth = len(path.absolute().parts)
    for at, (folder, names) in enumerate(folders(path)):
        is_run = at == 0 or place_of(Path(folder).absolute().parts).depth > depth
        if is_run and any(name.endswith(endings) for name in names):
            yield Path(folder)
        if most and at >= most:
            return


def _of_itself(parts: Sequence[str]) -> int:
    """Return how many parts of a folder's path belong to the run, if no part below the given path names one."""
    end = len(parts)
    if is_module(parts[-1]):
        end -= 1
    while end > 1 and parts[end - 1] in DATA:
        end -= 1
    return end


def is_module(name: str) -> bool:
    """Return whether a folder is one module of msit's torch hook, which holds its inputs and outputs."""
    return name == "root" or name.startswith("root.")


def has_ending(path: Path, endings: tuple[str, ...], names: Iterable[str]) -> bool:
    """Return whether a path is a file of these endings, or one of the names below it has such an ending."""
    if path.is_file():
        return path.name.endswith(endings)
    return path.is_dir() and any(name.endswith(endings) for name in names)


Item = TypeVar("Item")


def executions(
    items: Iterable[Item],
    operator: Callable[[Item], Hashable],
    slot: Callable[[Item], Hashable],
    age: Callable[[Item], Any],
    within: Callable[[Item], Any],
    position: Callable[[list[Item]], Any] = lambda group: 0,
) -> list[list[Item]]:
    """Group the items of one execution of one operator.

    `age` sorts the items of one slot, oldest first; `within` the items of one execution; `position` the executions.
    """
    slots: dict[tuple[Hashable, Hashable], list[Item]] = defaultdict(list)
    for item in items:
        slots[operator(item), slot(item)].append(item)
    groups: dict[tuple[Hashable, int], list[Item]] = defaultdict(list)
    for (name, _), same in slots.items():
        newest_first = sorted(same, key=age)[::-1]
        for back, item in enumerate(newest_first):
            groups[name, back].append(item)
    return sorted((sorted(group, key=within) for group in groups.values()), key=position)


def from_newest(items: Sequence[Item], key: Callable[[Item], Hashable]) -> list[tuple[Item, int]]:
    """Return each item with the number of later items of the same key."""
    later: Counter[Hashable] = Counter()
    found = []
    for item in reversed(items):
        found.append((item, later[key(item)]))
        later[key(item)] += 1
    return found[::-1]


NOTE = "order: guessed from the write times of the files"
_FEWEST = 8  # minimum number of operators for an order by times
_DISTINCT = 0.5  # minimum share of operators with distinct times


class WrittenOperator(NamedTuple):
    """The files of an operator, the dotted path of its module, another key of its calls, and the call number."""

    files: Sequence[str]
    module: str
    kind: object = ""
    call: int = -1


def write_order(operators: Sequence[WrittenOperator]) -> Optional[list[int]]:
    """Return the operators, as indices, by the time of their last file; None if the times are not reliable."""
    if len(operators) < _FEWEST:
        return None
    try:
        times = [max(os.stat(file).st_mtime_ns for file in one.files) for one in operators]
    except OSError as error:
        raise_system_failure(error)
        return None
    order = sorted(range(len(times)), key=times.__getitem__)
    modules = [operators[at].module for at in order]
    if len({*times}) <= _DISTINCT * len(times) or modules in (sorted(modules), sorted(modules, key=natural)):
        return None
    return order if all(times[first] <= times[then] for first, then in _certain(operators)) else None


def _certain(operators: Sequence[WrittenOperator]) -> list[tuple[int, int]]:
    """Return pairs of operators of which the first must be written before the second."""
    found: list[tuple[int, int]] = []
    by_name = {(one.module, one.kind, one.call): at for at, one in enumerate(operators)}
    for at, one in enumerate(operators):
        above = one.module.rpartition(".")[0]
        while above and (above, one.kind, one.call) not in by_name:
            above = above.rpartition(".")[0]
        if above:
            found.append((at, by_name[above, one.kind, one.call]))
        if (before := by_name.get((one.module, one.kind, one.call - 1))) is not None:
            found.append((before, at))
    return found
