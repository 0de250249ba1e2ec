"""Walk a dump's folders: bounded in depth, in a fixed order, never through a link to another place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

DEPTH = 16  # folders below a path; the deepest tree that a tool writes has eight


def folders(path: Path, depth: int = DEPTH) -> Iterator[tuple[str, list[str]]]:
    """Yield (folder, its sorted file names), parents first. A folder that cannot be read is skipped."""
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
        except OSError:
            continue
        yield folder, sorted(files)
        if level < depth:
            waiting += [(name, level + 1) for name in sorted(below, reverse=True)]


def some_names(path: Path, most: int = 5000) -> Iterator[str]:
    """Yield at most `most` file names below a folder, enough to recognise the format."""
    seen = 0
    for _, names in folders(path):
        for name in names:
            seen += 1
            if seen > most:
                return
            yield name
