"""Text from dumps is data: one function per place where it could become something else.

Sources: OWASP, CSV injection; Unicode Technical Report 36 (bidirectional controls).
"""

from __future__ import annotations

import re

# C0 and C1 controls, delete, soft hyphen, zero-width and bidirectional controls, separators, surrogates, BOM
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
    "|[\U000e0000-\U000e007f]"
)
_FORMULA = re.compile(r"^[\s\u00a0]*[=+\-@\uff1d\uff0b\uff0d\uff20]")


def visible(text: str) -> str:
    r"""For terminals: what would move the cursor, vanish or reorder the line is shown as \xNN or \uNNNN."""
    if text.isascii() and text.isprintable():  # nearly all: ten times as fast
        return text
    return _INVISIBLE.sub(lambda found: _code(found.group()), text)


def inert(text: str) -> str:
    """For CSV: visible, and a cell that a spreadsheet would take as a formula begins with an apostrophe."""
    shown = visible(text)
    return f"'{shown}" if _FORMULA.match(text) or text[:1] in ("\t", "\r", "\n") else shown


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
