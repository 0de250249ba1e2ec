"""The place of a suspect in source code, as tools for code need it: a path and a line. The path is relative if the
working directory, usually a checkout, has the file."""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Optional
from urllib.parse import quote

from npucmp.report.answer import Suspect

_LINE = re.compile(r"(?P<file>[^\s:]+):(?P<line>[1-9]\d{0,8})(?:\s|$)")


class SourcePlace(NamedTuple):
    """A line of a source file. `path` is relative if the working directory has the file, else as recorded."""

    path: str
    line: int
    is_relative: bool

    @property
    def uri(self) -> str:
        """The path as a URI (RFC 3986): percent-encoded, with the scheme `file` if it is absolute."""
        text = quote(self.path.replace("\\", "/").encode("utf-8", "surrogatepass"))
        if self.is_relative:
            return text
        return (
            f"file://{text}" if text.startswith("/") else f"file:///{text}" if re.match(r"[A-Za-z]%3A", text) else text
        )


def source_place(one: Suspect) -> Optional[SourcePlace]:
    """Return the source line of a suspect; None if the dump does not record it."""
    found = _LINE.match(one.line)
    if found is None:
        return None
    path = one.path or found["file"]
    below = _below_here(path)
    return SourcePlace(below or path, int(found["line"]), bool(below))


def _below_here(path: str) -> str:
    """Return the longest end of a recorded path that is a file below the working directory, since a run may have had
    its checkout elsewhere; "" if there is none."""
    parts = [part for part in re.split(r"[/\\]", path) if part not in ("", ".")]
    if ".." in parts or "\0" in path:
        return ""
    ends = ("/".join(parts[at:]) for at in range(len(parts)))
    return next((end for end in ends if os.path.isfile(end)), "")
