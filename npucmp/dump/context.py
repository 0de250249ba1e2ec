"""The read context: size limits and the folders that may be read. A workflow makes it once and passes it on.

The context is an argument, not a global or a ContextVar, for three reasons: a file opened by one call must not decide
which files the next call may read, threads and processes need no preparation, and a review notices a reader without it.
Few functions need it although there are many readers, because an open file knows its limits (RegularFile.limits):
functions that open files take a context, functions that read from open files do not. tests/dump/test_context.py finds
calls that drop it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import NamedTuple

from npucmp.dump.limits import Limits


class DumpFolder(NamedTuple):
    """The folder of a dump: the path given by the user, and the path after all links are resolved."""

    named: str
    real: str


@dataclass(frozen=True)
class ReadContext:
    """Limits and the dumps that are read. Files below a dump are not read through links that lead out of all dumps.

    Frozen, hashable and picklable. A context without roots confines nothing; it serves for the user's own files.
    """

    limits: Limits = Limits()
    roots: tuple[DumpFolder, ...] = ()

    def within(self, *dumps: str | os.PathLike[str]) -> ReadContext:
        """Return the same context, confined to these dumps too.

        The given path may be a link or contain links, because the user chose it. For a file, its folder is the dump.
        """
        found = dict.fromkeys(self.roots)
        for dump in dumps:
            path = os.path.abspath(dump)
            if not os.path.isdir(path):
                found[DumpFolder(path, os.path.realpath(path))] = None
                path = os.path.dirname(path)
            found[DumpFolder(path, os.path.realpath(path))] = None
        return replace(self, roots=tuple(found))


ANYWHERE = ReadContext()  # default limits, no confinement
