"""Where msprobe's dump.json files lie below a folder, and which step and rank their folders tell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, Optional

from npucmp.dump.readers.places import number_in
from npucmp.errors import DumpError

DATA_FOLDER = "dump_tensor_data"
_DEPTH = 6  # verl and others put folders above step*


def files_of(path: Path) -> "list[Path]":
    """The dump.json files of a dump, or that one file."""
    return [path] if path.is_file() else _without_helpers(list(dump_files(path)))


def place_of(file: Path) -> "tuple[Optional[int], Optional[int]]":
    """Step and rank from the folders above a dump.json, the nearest that tell them."""
    folders = file.parent.absolute().parts
    return number_in(folders, "step"), number_in(folders, "rank")


def starts_like_a_dump(path: Path) -> bool:
    with open(path, "rb") as stream:
        head = stream.read(4096)
    return path.name in ("dump.json", "debug.json") or (b'"task"' in head and b'"data' in head)


def dump_files(folder: Path) -> Iterator[Path]:
    """dump.json files below a folder, in name order; tensor folders are not entered."""
    base = len(folder.parts)
    for here, folders, files in os.walk(folder):
        folders[:] = [] if len(Path(here).parts) - base >= _DEPTH else sorted(f for f in folders if f != DATA_FOLDER)
        found = [name for name in ("dump.json", "debug.json") if name in files]
        if found:
            folders[:] = []
            yield Path(here, found[0])


def _without_helpers(files: list[Path]) -> list[Path]:
    """Where rank* and proc* (pid*) stand side by side, proc* are helper processes of the same run."""
    ranked = {file.parent.parent for file in files if file.parent.name.startswith("rank")}
    files = [file for file in files if not (_is_process(file) and file.parent.parent in ranked)]
    for step in {file.parent.parent for file in files}:
        processes = [file.parent.name for file in files if file.parent.parent == step and _is_process(file)]
        if len(processes) > 1:
            raise DumpError(
                step, f"holds dumps of {len(processes)} processes ({', '.join(processes)}); give one of them"
            )
    return files


def _is_process(file: Path) -> bool:
    return file.parent.name.startswith(("proc", "pid"))
