"""Wrap the lines of the screen to the width of a terminal; continuation lines are indented below their text."""

from __future__ import annotations

import re
import unicodedata

_PIECE = re.compile(  # blanks, then a word with the colours in it, or a path in quotes
    r"( *)('[^'\x1b]*/[^'\x1b]*'[^ \x1b]*|(?:\x1b\[[0-9;]*m|[^ \x1b])+)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HEAD = re.compile(r"( *(?:\d+  )?)(\S+ {2,})?")  # an indent, a place, and one word in a column of its own
LEAST = 40  # columns: a narrower terminal wraps by itself


def wrap_text(text: str, columns: int) -> str:
    """Return the text in lines of at most so many columns, broken between words. Longer words, such as paths, are not
    broken. For 0, or fewer columns than LEAST, the text is unchanged."""
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
    """Return the width of a text on the screen: East Asian wide characters take two columns, colours and combining
    marks none."""
    plain = _COLOUR.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in plain
    )
