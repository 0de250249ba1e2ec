"""One text for other programs: the formats of --report-format, and where they are written.

FORMATS names a module of this package for each format, with content(answer) → bytes. Packages add formats by the entry
point group `npucmp.reports`: a function that takes a Result and returns bytes or str.
"""

from __future__ import annotations

import difflib
import os
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Sequence

from npucmp.errors import DumpError, UsageError
from npucmp.model import Result
from npucmp.model.entry_points import Extension, call_extension, find_extensions, load_extension
from npucmp.report.answer import Answer
from npucmp.report.files import replace_file

GROUP = "npucmp.reports"  # of entry points
SCREEN = "text"  # the format of the terminal, which --top, --verbose and --color shape
FORMATS = {
    "json": "json",
    "jsonl": "json_lines",
    "sarif": "sarif",
    "github": "github_annotations",
    "junit": "junit",
    "markdown": "markdown",
}


class TextOutput(NamedTuple):
    """A format, and the file that it is written to; None for stdout."""

    format: str
    file: Optional[str] = None


def parse_outputs(words: Sequence[str]) -> list[TextOutput]:
    """Parse the values of --report-format: "sarif", "sarif=FILE", or several with commas between them.

    Raises UsageError for an unknown format, a format without its file, or two formats for stdout."""
    found = []
    for word in (one for several in words for one in several.split(",")):
        name, equals, file = word.partition("=")
        if equals and not file:
            raise UsageError(f"--report-format {word}: the name of the file is missing")
        _require(name)
        found.append(TextOutput(name, file or None))
    on_stdout = [one.format for one in found if one.file is None]
    if len(on_stdout) > 1:
        raise UsageError(
            f"--report-format: {' and '.join(on_stdout)} cannot both be printed; write one into a file: "
            f"--report-format {on_stdout[0]}=FILE"
        )
    return found


def content_of(answer: Answer, name: str) -> bytes:
    """Return the text of an answer in a format. Raises UsageError for an unknown format."""
    _require(name)
    if name == SCREEN:
        from npucmp.report import terminal

        return terminal.render(answer).encode("utf-8", "backslashreplace")
    if name in FORMATS:
        made: bytes = import_module(f"npucmp.report.{FORMATS[name]}").content(answer)
        return made
    return _installed_content(find_extensions(GROUP)[name], answer.result)


def write_text(answer: Answer, output: TextOutput) -> Path:
    """Write the text of a format completely or not at all, and return its path. Raises DumpError if it cannot be
    written."""
    file = output.file or ""
    place = Path(os.path.abspath(file))
    try:
        replace_file(place, content_of(answer, output.format))
    except OSError as error:
        raise DumpError(file, f"not written: {error.strerror or error}") from None
    return place


def _require(name: str) -> None:
    known = [SCREEN, *FORMATS]
    if name in known:
        return
    installed = find_extensions(GROUP)
    if name not in installed:
        known += [one for one in installed if one not in known]
        raise UsageError(
            f"--report-format {name!r:.60}: no such format", difflib.get_close_matches(name, known, 1) or known
        )
    _function(installed[name])


def _function(one: Extension) -> Callable[[Result], Any]:
    """Return the function of a format of an installed package. Raises UsageError if there is none."""
    found = load_extension(one)
    if not callable(found):
        raise UsageError(f"{one.words}: is not a function; docs/extending.md has an example")
    function: Callable[[Result], Any] = found
    return function


def _installed_content(one: Extension, result: Result) -> bytes:
    """Return the text of a result in a format of an installed package. Raises UsageError if its function fails."""
    text = call_extension(one, _function(one), result)
    if isinstance(text, str):
        return text.encode("utf-8", "backslashreplace")
    if not isinstance(text, bytes):
        raise UsageError(f"{one.words}: returned {type(text).__name__}, not bytes or str")
    return text
