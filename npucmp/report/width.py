"""Lines of the screen, made to fit a terminal: what does not goes on below, under the text that it belongs to."""

from __future__ import annotations

import re
import unicodedata

_PIECE = re.compile(  # blanks, then a word with the colours in it, or a path in quotes
    r"( *)('[^'\x1b]*/[^'\x1b]*'[^ \x1b]*|(?:\x1b\[[0-9;]*m|[^ \x1b])+)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HEAD = re.compile(r"( *(?:\d+  )?)(\S+ {2,})?")  # an indent, a place, and one word in a column of its own
LEAST = 40  # columns: what is narrower is left to the terminal


def fitted(text: str, columns: int) -> str:
    """The same text in lines of at most so many columns, broken between words; words that are longer, as paths are,
    stay where they are. 0, or fewer than LEAST: as it is."""
    if columns < LEAST:
        return text
    return "\n".join(_broken(line, columns) for line in text.split("\n"))


def _broken(line: str, columns: int) -> str:
    if _columns(line) <= columns:
        return line
    found = _HEAD.match(_COLOUR.sub("", line))
    hang = _columns(found[0]) if found else 0
    hang = hang if 0 < hang <= columns // 2 else 2
    done, at = [""], 0
    for blanks, word in _PIECE.findall(line):
        size = _columns(word)
        if done[-1].strip() and at + len(blanks) + size > columns >= hang + size:
            done.append(" " * hang)
            at, blanks = hang, ""
        done[-1] += blanks + word
        at += len(blanks) + size
    return "\n".join(done)


def _columns(text: str) -> int:
    """How wide a text is on the screen: letters of East Asia are two columns, colours and combining marks none."""
    plain = _COLOUR.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in plain
    )
