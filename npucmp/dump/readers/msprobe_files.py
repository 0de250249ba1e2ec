"""Find msprobe's dump.json files below a folder, and the step and rank that their folders name."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Optional

from npucmp.dump.readers.names import is_process, micro_of, place_of
from npucmp.errors import DumpError, is_closed, raise_system_failure

DATA_FOLDER = "dump_tensor_data"
_DEPTH = 6  # verl and other frameworks put folders above step*
_HEAD = 4096
_NOTHING = re.compile(rb'"data"\s*:\s*\{\s*\}')


class MsprobeFiles(NamedTuple):
    """The files of one run, each with the name of its micro batch.

    Without micro batches there is one file without a name, and `path` is that file. With micro batches, `path` is the
    folder without the parts that name them.
    """

    path: Path
    step: Optional[int]
    rank: Optional[int]
    batches: tuple[tuple[str, Path], ...]


def files_of(path: Path) -> list[MsprobeFiles]:
    """Return the dump.json files of a dump by run, or the one given file.

    If a folder cannot be listed, the result contains the file that may be in it, so that the run is reported as
    unreadable instead of missing.
    """
    if path.is_file():
        return [_files(path, [("", path)])]
    runs: dict[Path, list[tuple[str, Path]]] = {}
    closed: list[OSError] = []
    found = [*dump_files(path, closed.append)]
    found += [Path(error.filename, "dump.json") for error in closed if is_closed(error)]
    for file in _without_helpers(found):
        below = file.relative_to(path).parent.parts
        micro = [part for part in below if micro_of(part) is not None]
        where = path.joinpath(*(part for part in below if part not in micro)) if micro else file
        runs.setdefault(where, []).append(("/".join(micro), file))
    return [_files(where, found) for where, found in runs.items()]


def files_at(path: str) -> MsprobeFiles:
    """Return the files of one run by its path; with micro batches that contain ranks, the path is not a folder."""
    where = Path(path)
    while not where.exists() and where != where.parent:
        where = where.parent
    found = next((one for one in files_of(where) if str(one.path) == path), None)
    if found is None:
        raise DumpError(path, "no longer exists")
    return found


def _files(where: Path, found: list[tuple[str, Path]]) -> MsprobeFiles:
    step, rank, _ = place_of(found[0][1].parent.absolute().parts)
    return MsprobeFiles(where, step, rank, tuple(found))


def starts_like_a_dump(path: Path) -> bool:
    head = _head(path)
    return path.name in ("dump.json", "debug.json") or (b'"task"' in head and b'"data' in head)


def dump_files(folder: Path, closed: Optional[Callable[[OSError], None]] = None) -> Iterator[Path]:
    """Yield dump.json files below a folder in name order, without entering tensor folders.

    If dump.json holds nothing, the debug.json beside it is yielded. `closed` is called for each folder that cannot be
    listed.
    """
    base = len(folder.parts)
    for here, folders, files in os.walk(folder, onerror=closed or raise_system_failure):
        folders[:] = [] if len(Path(here).parts) - base >= _DEPTH else sorted(f for f in folders if f != DATA_FOLDER)
        found = [Path(here, name) for name in ("dump.json", "debug.json") if name in files]
        if found:
            folders[:] = []
            yield found[-1] if len(found) > 1 and _is_empty(found[0]) else found[0]


def _head(path: Path) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(_HEAD)


def _is_empty(file: Path) -> bool:
    with suppress(OSError):
        head = _head(file)
        return len(head) < _HEAD and _NOTHING.search(head) is not None
    return False


def _without_helpers(files: list[Path]) -> list[Path]:
    """Drop proc* (pid*) folders beside rank* folders: they are helper processes of the same run."""
    ranked = {_owner(file).parent for file in files if _owner(file).name.startswith("rank")}
    files = [file for file in files if not (_is_process(file) and _owner(file).parent in ranked)]
    for step in {_owner(file).parent: None for file in files}:
        processes = {_owner(file).name: None for file in files if _owner(file).parent == step and _is_process(file)}
        if len(processes) > 1:
            raise DumpError(
                step, f"contains dumps of {len(processes)} processes ({', '.join(processes)}); pass one of them"
            )
    return files


def _owner(file: Path) -> Path:
    """Return the folder of the rank or process: the parent of the file or of its micro batch."""
    return file.parent if micro_of(file.parent.name) is None else file.parent.parent


def _is_process(file: Path) -> bool:
    return is_process(_owner(file).name)
