"""Escape text from dumps: one function for each format in which it could be interpreted.

Sources: OWASP, CSV injection; Unicode Technical Report 36 (bidirectional controls).
"""

from __future__ import annotations

import re
from typing import Iterable

# C0 and C1 controls, delete, soft hyphen, zero-width and bidirectional controls, separators, surrogates, BOM
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
    "|[\U000e0000-\U000e007f]"
)
_FORMULA = re.compile(r"^[\s\u00a0]*[=+\-@\uff1d\uff0b\uff0d\uff20]")


def visible(text: str) -> str:
    r"""Escape text for terminals: characters that move the cursor, are invisible or reorder the line become \xNN or
    \uNNNN."""
    if text.isascii() and text.isprintable():  # nearly all texts; ten times as fast
        return text
    return _INVISIBLE.sub(lambda found: _code(found.group()), text)


def escape_formula(text: str) -> str:
    """Escape text for CSV: as `visible`, and an apostrophe before text that a spreadsheet would read as a formula."""
    shown = visible(text)
    return f"'{shown}" if _FORMULA.match(text) or text[:1] in ("\t", "\r", "\n") else shown


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


# matches an absolute path up to its last name; a slash between figures or after a word does not begin a path
_FOLDERS = re.compile(
    r"(?<![\w./\\~\u2026\u2016)|<])(?:[A-Za-z]:[\\/]|~?/)(?=[^\s/\\*:?\"'<>|,;()\[\]{}`=])"
    r"(?:[^\s/\\*:?\"'<>|,;()\[\]{}`]+[/\\])*"
)


def strip_folders(text: str) -> str:
    """Escape text for a ticket: only the last name of an absolute path is kept, since folders of a machine are
    private."""
    return _FOLDERS.sub("\u2026/", text)


def code(text: str) -> str:
    """Escape text for Markdown: as `visible`, in a code span that it cannot end, so that nothing is markup, a link or a
    mention."""
    shown = visible(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    blank = " " if shown[:1] in ("`", " ", "") or shown[-1:] in ("`", " ") else ""
    return f"{fence}{blank}{shown}{blank}{fence}"


def block(lines: Iterable[str]) -> str:
    """Escape lines for Markdown: as `visible`, in a fence that no line ends."""
    shown = [visible(line) for line in lines]
    fence = "`" * max(3, 1 + max((len(run) for line in shown for run in re.findall("`+", line)), default=0))
    return "\n".join([f"{fence}text", *shown, fence])
