"""Read a log of any size line by line, and remove what launchers and loggers add to a line.

Removed are colours, what a progress bar overwrote, "(TaskRunner pid=12) " of Ray, "[rank0]: " and "[default0]:" of
torchrun, "0: " of srun, "[1,0]<stdout>:" of mpirun, dates, levels, "[config.py:99:print]" and names of loggers.

The file is untrusted: it is read in blocks, and of a longer line only the begin is kept.
"""

from __future__ import annotations

import re
from typing import Iterator, NamedTuple

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.safe_open import open_regular

BLOCK = 1 << 20  # bytes of a read
LONGEST = 1 << 20  # bytes of a line that are kept; a configuration in one line has 30,000

_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x1b\][^\x07]{0,200}\x07")
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$")
_WORKER = re.compile(
    r"\((?:[\w.\-]+ )?pid=\d+(?:, ip=[\w.:]+)?\)|\[?(?:rank|default|local_rank)[ _:]?\d+\]?:|\[\d+,\d+\]<std\w+>:"
    r"|\d{1,5}:(?= )|\[[^\[\]\s]{1,40}:\d+:\w*\](?=:)"
)
_LEVEL = r"(?:DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL)"
_DATED = re.compile(
    r"\[?(?:\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d/\d{4})[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
    rf"(?:\s{{0,4}}[-|]?\s{{0,4}}\[?{_LEVEL}\]?:?)?(?:\s{{0,4}}[-|]\s{{0,4}}[\w.]+(?=\s))*(?:\s{{0,4}}[-|](?=\s))?"
)
_LEVELLED = re.compile(rf"\[?{_LEVEL}(?:\|[\w.]+:\d+)?\]?:?(?=\s)|\[[\w./\-]+(?::\d+)?(?::\w+)?\](?=\s|\[)")
_SEPARATOR = re.compile(r"(?:-{1,2}|\||>>)\s{1,4}")


class LogLine(NamedTuple):
    """A line without additions.

    source    the worker that printed it, "" if the line names none
    is_dated  whether a logger wrote a date or a level before it
    """

    source: str
    text: str
    is_dated: bool = False


def raw_lines(path: str, context: ReadContext = ANYWHERE) -> Iterator[bytes]:
    """Yield the lines of a file without their ends. Raises DumpError if the file is unreadable."""
    with open_regular(path, context) as file:
        kept, at, size = b"", 0, file.size
        while at < size:
            length = min(BLOCK, size - at)
            lines = (kept + file.read(at, length)).split(b"\n")
            at += length
            kept = lines.pop()[:LONGEST]
            yield from lines
        if kept:
            yield kept


def bare_line(raw: bytes) -> LogLine:
    """Return the line without what launchers and loggers add. Spaces that indent the text remain."""
    text = raw[:LONGEST].decode("utf-8", "replace").rstrip("\r\n\0 ")
    if "\r" in text:
        text = text.rpartition("\r")[2]
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if text.endswith("cluster]"):
        text = _REPEATED.sub("", text)
    sources: list[str] = []
    is_dated = False
    for _ in range(8):
        if text[:1].isspace():
            break
        worker = _WORKER.match(text)
        found = worker or _DATED.match(text) or _LEVELLED.match(text)
        if found is None or not found.end():
            break
        if worker is not None:
            sources.append(worker[0])
        is_dated = is_dated or worker is None
        text = text[found.end() :]
        text = text[1:] if text[:1] in (" ", "\t") else text
        separator = _SEPARATOR.match(text) if worker is None else None
        text = text[separator.end() :] if separator is not None else text
    return LogLine("".join(sources), text, is_dated)
