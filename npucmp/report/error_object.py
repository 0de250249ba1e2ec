"""An error in the formats of a result: the object of --json, with its type, its message, what to do and the exit
status, and the texts of --report-format. They replace the result of an earlier run in the files of a command that
fails."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Optional, Sequence

from npucmp.errors import DumpError, MissingExtra, NpucmpError, UnsupportedError, UsageError, install_line
from npucmp.report.sanitise import visible
from npucmp.report.summary_types import ErrorEntry, ErrorLine, ErrorObject
from npucmp.report.text_formats import FORMATS, TextOutput
from npucmp.version import SCHEMA_VERSION, __version__

TYPES = {  # type of the exception → the word of the object; others are "internal"
    "DumpError": "dump",
    "UnsupportedError": "unsupported",
    "MissingExtra": "missing package",
    "UsageError": "usage",
    "NpucmpError": "other",
    "KeyboardInterrupt": "interrupted",
    "Abort": "interrupted",
    "SystemExit": "interrupted",
}


def error_words(error: BaseException) -> tuple[str, int]:
    """Return the message of an error and the exit status."""
    if isinstance(error, NpucmpError):
        return str(error), 2
    if isinstance(error, OSError):  # of the user's own files, or of the output: a full disk
        return f"{error.filename or 'output'}: {error.strerror or error}", 2
    if isinstance(error, MemoryError):
        return "out of memory", 2
    if isinstance(error, ImportError):  # a file of the installation that cannot be read
        return f"a module cannot be imported: {error}", 2
    if isinstance(error, SystemExit):
        return "; ".join(map(str, error.args)), getattr(error, "status", 2)
    if type(error).__name__ in ("KeyboardInterrupt", "Abort"):
        return "interrupted", 130
    named: Any = getattr(error, "format_message", None)  # of click
    return (named(), 2) if named is not None else (f"internal error: {type(error).__name__}: {error}", 2)


def error_object(error: BaseException, command: str) -> ErrorObject:
    """Return the object of --json."""
    message, status = error_words(error)
    return {
        "schema_version": SCHEMA_VERSION,
        "npucmp": __version__,
        "command": command,
        "error": _entry(error, message),
        "hint": _hint(error, command),
        "exit_status": status,
    }


def error_text(format: str, error: BaseException, command: str) -> str:
    """Return an error in a format of --report-format: one line as on stderr for a format without errors."""
    found = error_object(error, command)
    if format == "json":
        return json.dumps(found, indent=1, ensure_ascii=True) + "\n"
    if format == "jsonl":
        line: ErrorLine = {"kind": "error", **found}
        return json.dumps(line, ensure_ascii=True) + "\n"
    message, status = error_words(error)
    if format not in FORMATS:
        return f"npucmp: {visible(message)}\n"
    text: str = import_module(f"npucmp.report.{FORMATS[format]}").error(command, message, status)
    return text


def write_error(error: BaseException, command: str, folder: Optional[str], outputs: Sequence[TextOutput]) -> None:
    """Write an error where a result was to be written, so that no result of an earlier run stays there: an earlier
    report moves to the folder `earlier`. A place that cannot be written is unchanged, and so is the report in a
    folder if the error concerns that folder."""
    from npucmp.report import files

    for output in outputs:
        if output.file is not None:
            with suppress(OSError):
                text = error_text(output.format, error, command)
                files.replace_file(Path(os.path.abspath(output.file)), text.encode("utf-8", "backslashreplace"))
    if folder is not None and not _is_within(error, folder):
        with suppress(OSError):
            files.replace_report(Path(folder), error_text("json", error, command).encode())


def _is_within(error: BaseException, folder: str) -> bool:
    """Return whether an error is about a file of a folder, as one of a full disk is."""
    path = getattr(error, "filename", None) or getattr(error, "path", None)
    if path is None:
        return isinstance(error, OSError)
    place, within = os.path.realpath(folder), os.path.realpath(str(path))
    return os.path.commonpath((place, within)) == place


def _entry(error: BaseException, message: str) -> ErrorEntry:
    entry: ErrorEntry = {"type": _type(error), "message": message}
    if isinstance(error, DumpError):
        entry["path"], entry["offset"] = error.path, error.offset
    elif isinstance(error, UsageError):
        entry["near"] = [*error.near]
    elif isinstance(error, OSError):
        entry["path"] = str(error.filename or "")
    return entry


def _type(error: BaseException) -> str:
    for kind in type(error).__mro__:
        if kind.__name__ in TYPES:
            return TYPES[kind.__name__]
        if kind.__module__.startswith("click"):
            return "usage"
    return "system" if isinstance(error, (OSError, MemoryError)) else "internal"


def _hint(error: BaseException, command: str) -> str:
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
    if isinstance(error, DumpError) and " it holds step " not in error.because:
        return "npucmp formats lists the paths that npucmp reads"
    return ""
