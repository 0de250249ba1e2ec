"""Read safetensors files: one file, or folders of files, also below step and rank folders (readers/folders.py).

    {name}     an operator with one output; {operator}.{input|output|…}[.{path}] a slot: readers/names.py

The shards of a model are one run. Source: huggingface/safetensors.
"""

from __future__ import annotations

from pathlib import Path

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.named_tensors import runs_of
from npucmp.dump.readers import safetensors
from npucmp.dump.readers.folders import first_names, has_ending
from npucmp.model import Run

NAME = "safetensors"
WALKS = True
GRAPHS = None

ENDINGS = (".safetensors",)


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a path is a .safetensors file, or a folder with one among the first names below it."""
    return has_ending(path, ENDINGS, first_names(path))


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per step and rank. Only headers are read; a malformed file becomes one unreadable tensor."""
    return runs_of(path, ENDINGS, NAME, safetensors.entries, context)
