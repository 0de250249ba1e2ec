"""Columns as lines of CSV: what workers write of their own comparison is what a presenter writes of all.

A cell is empty where nothing applies or nothing is known; floats carry their full precision.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import chain, groupby, repeat
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

import numpy as np
from msgspec import MsgspecError
from msgspec.json import Encoder

from npucmp.report.sanitise import inert

SHORT, KEPT = 1 << 14, 64  # columns of text that are kept for the next rank: cells of each, and how many
_Cells = Union[str, Sequence[str]]  # of a column, or the word that all of them are
_NONE = type(None)
_EQUAL = {_NONE, str, int, bool}  # types of which equal values have equal words
_SPECIAL = '",=+-@'  # what text must hold to be quoted or to be a formula, if it is printable and ASCII
_encode = Encoder().encode
_SAMPLE = [0.0001, -0.1, 1.0, 2.5e15, 1 / 3]
_IS_REPR = _encode(_SAMPLE).decode() == f"[{','.join(map(repr, _SAMPLE))}]"  # of floats of an ordinary size
_ORDINARY = 1e-4, 1e15  # sizes of numbers that JSON and repr write alike: from, below
_OTHER_NOTATION = "e", "0.0000", "null"  # what JSON has of others


def csv_of(names: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns as CSV with a header; cells that a spreadsheet would run are made inert."""
    length = len(columns[names[0]])
    made: dict[int, _Cells] = {}  # several columns may be one list
    parts: list[Iterable[str]] = []
    for network, group in groupby(names, key=lambda name: getattr(columns[name], "network", None)):
        some = (*group,)
        make = partial(_parts, [columns[name] for name in some], length, made)
        parts += make() if network is None else network.once(some, lambda make=make: [_joined(make())])
    return "\n".join(chain([",".join(names)], _joined(parts))) + "\n"


def _parts(columns: Sequence[Sequence[Any]], length: int, made: dict[int, _Cells]) -> list[Iterable[str]]:
    """The cells of columns side by side, those that are the same in all rows joined; `made` are known, by column."""
    parts: list[Iterable[str]] = []
    words: list[str] = []
    for column in columns:
        cells = made[id(column)] if id(column) in made else made.setdefault(id(column), _cells(column))
        if isinstance(cells, str):
            words.append(cells)
        else:
            parts += [repeat(",".join(words), length), cells] if words else [cells]
            words = []
    return [*parts, repeat(",".join(words), length)] if words else parts


def _joined(parts: Sequence[Iterable[str]]) -> list[str]:
    """The lines that cells side by side make."""
    return [*map(",".join, zip(*parts))]


def _cells(column: Sequence[Any]) -> _Cells:
    """The cells of a column in words, or the word that all of them are."""
    kinds = {*map(type, column)}
    if kinds <= {float, _NONE} and float in kinds:
        return words_of(column) if len(kinds) == 1 else _floats(column)
    if len(kinds) == 1 and kinds <= _EQUAL and column.count(column[0]) == len(column):
        return _cell(column[0])
    if kinds <= {str, _NONE}:
        return (_known_texts if len(column) <= SHORT else _texts)(tuple(column))
    return [*map(str, column)] if kinds <= {int, bool} else [*map(_cell, column)]


def _floats(column: Sequence[Optional[float]]) -> Sequence[str]:
    """Cells of floats, of which some have none; where many are equal, as a limit, each different one made once."""
    different = [*{*column}]
    if 2 * len(different) > len(column) or 0.0 in different:  # which -0.0 equals
        return words_of(column)
    return [*map(dict(zip(different, words_of(different))).__getitem__, column)]


def words_of(numbers: Sequence[Any]) -> Sequence[str]:
    """Numbers as repr writes them, which takes a fifth of its time; "" for None."""
    if not (_IS_REPR and numbers):
        return ["" if one is None else repr(one) for one in numbers]
    try:
        text = _encode(numbers)[1:-1].decode()
    except (MsgspecError, OverflowError):  # a whole number of more than 64 bits
        return [*map(repr, numbers)]
    words = text.split(",")
    if any(mark in text for mark in _OTHER_NOTATION):
        for at in _odd(numbers):
            one = numbers[at]
            words[at] = "" if one is None else repr(one)
    return words


def numbers_json(numbers: Sequence[Any]) -> str:
    """Numbers as compact JSON that writes each as repr does; "" if some are not finite, or have more than 64 bits."""
    try:
        text = _encode(numbers).decode() if _IS_REPR else ""
    except (MsgspecError, OverflowError):
        return ""
    if "null" in text or not any(mark in text for mark in _OTHER_NOTATION):
        return "" if "null" in text else text
    return f"[{','.join(words_of(numbers))}]"


def _odd(numbers: Sequence[Any]) -> list[int]:
    """The places of numbers that JSON may write in another way than repr does: very small or large, NaN, None."""
    sizes = np.abs(np.array(numbers, dtype=np.float64))
    is_ordinary = ((sizes >= _ORDINARY[0]) & (sizes < _ORDINARY[1])) | (sizes == 0)
    found: list[int] = np.flatnonzero(~is_ordinary).tolist()
    return found


def _texts(column: tuple[Optional[str], ...]) -> Sequence[str]:
    """Cells of text, each different one made once; "" for None."""
    different = dict.fromkeys(column)
    known = [text for text in different if text is not None]
    together = "\n".join(known)
    is_plain = (
        together.isascii() and together.replace("\n", "").isprintable() and together.count("\n") == len(known) - 1
    )
    if is_plain and not any(mark in together for mark in _SPECIAL):
        return ["" if text is None else text for text in column]
    words = {text: _cell(text) for text in different}
    return [*map(words.__getitem__, column)]


_known_texts = lru_cache(maxsize=KEPT)(_texts)  # most ranks have the same names, types and shapes


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
