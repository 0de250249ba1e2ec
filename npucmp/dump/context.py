"""What may be read and how much of it: made once by a workflow, handed along to all that opens a file.

It is an argument, not a global or a ContextVar: what one call opened must not decide what the next one may read, a
thread or a process that is handed work must not have to be prepared for it, and a reader without one is seen in review.
Few functions need it although there are many readers, because an open file knows its limits (RegularFile.limits): only
what opens files takes a context, what reads in them does not. tests/dump/test_context.py finds calls that drop it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import NamedTuple

from npucmp.dump.limits import Limits


class DumpFolder(NamedTuple):
    """The folder of a dump: the user's word for it, and where it really is."""

    named: str
    real: str


@dataclass(frozen=True)
class ReadContext:
    """Limits, and the dumps that are read: files below them are not read through links that lead out of them all.

    Frozen, hashable and picklable. Without roots nothing is confined: so the user's own files are read.
    """

    limits: Limits = Limits()
    roots: tuple[DumpFolder, ...] = ()

    def within(self, *dumps: str | os.PathLike[str]) -> ReadContext:
        """The same, confined to these dumps too.

        The path itself is the user's word and may be a link, or lead through some; of a file its folder is the dump.
        """
        found = dict.fromkeys(self.roots)
        for dump in dumps:
            path = os.path.abspath(dump)
            if not os.path.isdir(path):
                found[DumpFolder(path, os.path.realpath(path))] = None
                path = os.path.dirname(path)
            found[DumpFolder(path, os.path.realpath(path))] = None
        return replace(self, roots=tuple(found))


ANYWHERE = ReadContext()  # default limits, and no dump to stay in
