"""Columns as lines of CSV: what workers write of their own comparison is what a presenter writes of all.

A cell is empty where nothing applies or nothing is known; floats carry their full precision.
"""

from __future__ import annotations

from itertools import chain, groupby
from typing import Any, Iterable, Mapping, Sequence

from npucmp.report.sanitise import inert

_NONE = type(None)


def csv_of(names: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns as CSV with a header; cells that a spreadsheet would run are made inert."""
    parts: list[Iterable[str]] = []
    for empty, some in groupby((columns[name] for name in names), key=_is_empty):
        found = [*some]
        parts += [["," * (len(found) - 1)] * len(found[0])] if empty else map(_cells, found)  # as one, if all are
    return "\n".join(map(",".join, chain([names], zip(*parts)))) + "\n"


def _is_empty(column: Sequence[Any]) -> bool:
    return bool(column) and column.count(None) == len(column)


def _cells(column: Sequence[Any]) -> Iterable[str]:
    """The cells of a column in words; those of text, which repeat, once for each."""
    kinds = {*map(type, column)}
    if kinds <= {float, _NONE}:
        return map(repr, column) if _NONE not in kinds else ["" if cell is None else repr(cell) for cell in column]
    if kinds <= {str, _NONE}:
        words = {text: _cell(text) for text in dict.fromkeys(column)}
        return map(words.__getitem__, column)
    return map(str, column) if kinds <= {int, bool} else map(_cell, column)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(float(value))
    return _quoted(inert(value)) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """By RFC 4180; inert text has no line breaks."""
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


def encoded(text: str) -> bytes:
    """Text as it stands in a file."""
    return text.encode("utf-8", "backslashreplace")
