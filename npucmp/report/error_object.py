"""An error as the object that --json prints instead of a result: its type, its message, what to do, the exit status."""

from __future__ import annotations

import json
from typing import Any, Optional

from npucmp.errors import DumpError, MissingExtra, UnsupportedError, UsageError, install_line
from npucmp.report.summary_types import ErrorEntry, ErrorObject
from npucmp.version import SCHEMA_VERSION, __version__

TYPES = {  # type of the exception → the word of the object; others are "internal"
    "DumpError": "dump",
    "UnsupportedError": "unsupported",
    "MissingExtra": "missing package",
    "UsageError": "usage",
    "NpucmpError": "other",
    "NoneType": "interrupted",
}


def error_object(error: Optional[BaseException], message: str, command: str, status: int) -> str:
    """Return the object as one JSON text. `error` is None for an interruption."""
    found: ErrorObject = {
        "schema_version": SCHEMA_VERSION,
        "npucmp": __version__,
        "command": command,
        "error": _entry(error, message),
        "hint": _hint(error, command),
        "exit_status": status,
    }
    return json.dumps(found, indent=1, ensure_ascii=True) + "\n"


def _entry(error: Optional[BaseException], message: str) -> ErrorEntry:
    entry: ErrorEntry = {"type": _type(error), "message": message}
    if isinstance(error, DumpError):
        entry["path"], entry["offset"] = error.path, error.offset
    elif isinstance(error, UsageError):
        entry["near"] = [*error.near]
    elif isinstance(error, OSError):
        entry["path"] = str(error.filename or "")
    return entry


def _type(error: Optional[BaseException]) -> str:
    for kind in type(error).__mro__:
        if kind.__name__ in TYPES:
            return TYPES[kind.__name__]
        if kind.__module__.startswith("click"):
            return "usage"
    return "system" if isinstance(error, (OSError, MemoryError)) else "internal"


def _hint(error: Optional[BaseException], command: str) -> str:
    """Return what to do, "" if it is not known."""
    if isinstance(error, UnsupportedError):
        return error.hint
    if isinstance(error, MissingExtra):
        return install_line(error.package)
    if isinstance(error, UsageError) and error.near:
        return f"did you mean {' or '.join(error.near[:3])}?"
    possible: Any = getattr(error, "possibilities", None)
    if possible:
        return f"did you mean {' or '.join(sorted(possible)[:3])}?"
    if _type(error) == "usage":
        return f"npucmp {command} --help".replace("  ", " ")
    if isinstance(error, DumpError):
        return "npucmp formats lists the paths that npucmp reads"
    return ""
