"""Read NPZ files of numpy.savez: one file, or folders of files, also below step and rank folders (readers/folders.py).

    {name}.npy     an operator with one output; {operator}.{input|output|…}[.{path}] a slot: readers/names.py

Source: numpy.lib.npyio.
"""

from __future__ import annotations

from pathlib import Path

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.named_tensors import runs_of
from npucmp.dump.readers import stored_zip
from npucmp.dump.readers.folders import first_names, has_ending
from npucmp.model import Run

NAME = "npz"
WALKS = True
GRAPHS = None

ENDINGS = (".npz",)


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a path is a .npz file, or a folder with one among the first names below it."""
    return has_ending(path, ENDINGS, first_names(path))


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per step and rank. Only headers are read; a malformed file becomes one unreadable tensor."""
    return runs_of(path, ENDINGS, NAME, stored_zip.entries, context)
