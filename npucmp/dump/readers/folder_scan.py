"""Group the files of a dump by run, for formats in which only folders name step, rank and process (path_labels.py)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from npucmp.dump.readers.folders import folders
from npucmp.dump.readers.path_labels import micro_of, place_of

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
    given = len(path.absolute().parts)
    for folder, names in folders(path):
        chosen = [name for name in names if name.endswith(endings)]
        if not chosen:
            continue
        parts = Path(folder).absolute().parts
        place = place_of(parts)
        end = place.depth if place.depth >= given else _of_itself(parts)
        micro = [part for part in parts[given : place.depth] if micro_of(part) is not None]
        base = os.path.join(*(part for at, part in enumerate(parts[:end]) if at < given or part not in micro))
        below = [*micro, *(part for part in parts[end:] if part not in DATA)]
        found = runs.setdefault(base, RunFiles(place.step, place.rank, base, [], []))
        found.paths.extend(("/".join(below), name, os.path.join(folder, name)) for name in chosen)
        found.others.extend(name for name in names if not name.endswith(endings))
    return list(runs.values())


def told_folders(path: Path, endings: tuple[str, ...], most: int = 0) -> Iterator[Path]:
    """Yield the folder, and the folders below it that name step, rank or process, if they hold such a file.

    At most the first `most` folders are searched; 0 means all.
    """
    given = len(path.absolute().parts)
    for at, (folder, names) in enumerate(folders(path)):
        is_run = at == 0 or place_of(Path(folder).absolute().parts).depth > given
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


def holds(path: Path, endings: tuple[str, ...], names: Iterable[str]) -> bool:
    """Return whether a path is a file of these endings, or one of the names below it has such an ending."""
    if path.is_file():
        return path.name.endswith(endings)
    return path.is_dir() and any(name.endswith(endings) for name in names)
