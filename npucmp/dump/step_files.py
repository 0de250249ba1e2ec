"""List the files of a dump by step and rank, to find out which steps are complete while a run writes them.

A path gives step and rank: `labels` of the format, else step and rank folders. No file is opened. Logs and hidden files
are no part of a dump. Times are those of the file system, in seconds since 1970.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Optional

from npucmp.dump.readers.folders import folders
from npucmp.dump.readers.msprobe_files import DATA_FOLDER
from npucmp.dump.readers.names import place_of

Labels = Callable[[str, str], tuple[Optional[int], Optional[int]]]  # folder, name → step, rank
RECORDS = ("dump.json", "debug.json")  # msprobe writes one of them after the tensors of a step
SIDECARS = ("dump.json", "stack.json", "construct.json")
_PASSES = (".forward.", ".backward.")  # in names of tensors that a record of msprobe lists
_IGNORED = (".log", ".lock")


class RankFiles(NamedTuple):
    """The files of one rank in one step: their number, a digest of their paths, sizes and times, and the latest time.

    sidecars    names of msprobe's JSON files among them
    unrecorded  whether tensors are there whose names and order msprobe's record will list
    """

    number: int = 0
    digest: int = 0
    latest: float = 0.0
    sidecars: frozenset[str] = frozenset()
    unrecorded: bool = False

    def lost_files(self, before: RankFiles) -> bool:
        """Return whether files were only removed since `before`: no file is newer."""
        return self.number < before.number and self.latest <= before.latest


StepFiles = Mapping[Optional[int], RankFiles]  # by rank


@lru_cache(maxsize=4096)
def _place(folder: str) -> tuple[Optional[int], Optional[int]]:
    return place_of(Path(folder).absolute().parts)[:2]


def folder_labels(folder: str, name: str) -> tuple[Optional[int], Optional[int]]:
    """Return step and rank of a file from step and rank folders."""
    return _place(folder)


def files_by_step(
    path: Path, labels: Labels = folder_labels, wanted: Callable[[Optional[int]], bool] = lambda step: True
) -> dict[Optional[int], StepFiles]:
    """Return the files at or below a path by step, then rank; {} if nothing is there. Steps that are not wanted cost
    only the listing of their folders."""
    found: dict[Optional[int], dict[Optional[int], RankFiles]] = {}
    for folder, names in _folders(path):
        for name in names:
            if name.startswith(".") or name.endswith(_IGNORED):
                continue
            step, rank = labels(folder, name)
            if not wanted(step):
                continue
            try:
                state = os.stat(os.path.join(folder, name))
            except OSError:  # removed or renamed meanwhile
                continue
            ranks = found.setdefault(step, {})
            ranks[rank] = _with_file(ranks.get(rank, RankFiles()), folder, name, state)
    return {step: _of_numbered_ranks(ranks) for step, ranks in found.items()}


def _folders(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders of a dump with their files; of a file, also those of the tensors beside it."""
    if not path.is_file():
        return folders(path)
    return iter([(str(path.parent), [path.name]), *folders(path.parent / DATA_FOLDER)])


def _with_file(files: RankFiles, folder: str, name: str, state: os.stat_result) -> RankFiles:
    stamp = hash((folder, name, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino))
    unrecorded = os.path.basename(folder) == DATA_FOLDER and any(word in name for word in _PASSES)
    return RankFiles(
        files.number + 1,
        files.digest ^ stamp,
        max(files.latest, state.st_mtime, state.st_ctime),
        files.sidecars | {name} if name in (*SIDECARS, *RECORDS) else files.sidecars,
        files.unrecorded or unrecorded,
    )


def _of_numbered_ranks(ranks: dict[Optional[int], RankFiles]) -> StepFiles:
    """Return the ranks that have a number, if any has one: other files of a step belong to no rank."""
    return {rank: files for rank, files in ranks.items() if rank is not None} or ranks
