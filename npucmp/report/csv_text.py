"""Write columns as lines of CSV. Workers and presenters use the same functions, so their rows are identical.

A cell is empty if it does not apply or is not known; floats have their full precision.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, count, groupby, repeat
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence, Union

import numpy as np
from msgspec import MsgspecError
from msgspec.json import Encoder

from npucmp.model.table import LazySequence
from npucmp.report.sanitise import escape_formula

_Cells = Union[str, Sequence[str]]  # the cells of a column, or the text that all of them share
_NONE = type(None)
_EQUAL = {_NONE, str, int, bool}  # types whose equal values have equal text
_SPECIAL = '",=+-@'  # characters of printable ASCII text that may require quotes or start a formula
_encode = Encoder().encode
_SAMPLE = [0.0001, -0.1, 1.0, 2.5e15, 1 / 3]
_IS_REPR = _encode(_SAMPLE).decode() == f"[{','.join(map(repr, _SAMPLE))}]"  # for floats of ordinary size
_ORDINARY = 1e-4, 1e15  # range of sizes that JSON and repr write alike: from, below
_OTHER_NOTATION = "e", "0.0000", "null"  # substrings that JSON writes for other numbers


class CodedColumn(LazySequence[Any]):
    """The cells of a column as values in the order of their first rows, and for each row the index of its value.
    Columns are written value by value; values may be equal."""

    def __init__(self, different: Sequence[Any], codes: Sequence[int]) -> None:
        self.different, self.codes = different, codes

    @classmethod
    def of(cls, cells: Sequence[Any]) -> CodedColumn:
        """Return a column of cells whose equal values are written alike."""
        places = dict(zip(dict.fromkeys(cells), count()))
        return cls([*places], [*map(places.__getitem__, cells)])

    def __len__(self) -> int:
        return len(self.codes)

    def _item(self, at: int) -> Any:
        return self.different[self.codes[at]]

    def __iter__(self) -> Iterator[Any]:
        return map(self.different.__getitem__, self.codes)


def csv_of(names: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> str:
    """Return columns as CSV with a header; cells that a spreadsheet would run as formulas are escaped."""
    length = len(columns[names[0]])
    made: dict[int, _Cells] = {}  # by identity, since several columns may be one list
    parts: list[Iterable[str]] = []
    for network, group in groupby(names, key=lambda name: getattr(columns[name], "network", None)):
        group_names = (*group,)
        make = partial(_parts, [columns[name] for name in group_names], length, made)
        parts += make() if network is None else network.cached(group_names, lambda make=make: [_lines_of(make())])
    return "\n".join(chain([",".join(names)], _lines_of(parts))) + "\n"


def _parts(columns: Sequence[Sequence[Any]], length: int, made: dict[int, _Cells]) -> list[Iterable[str]]:
    """Return the cells of columns side by side; columns with the same text in all rows are joined. `made` caches cells
    by column."""
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


def _lines_of(parts: Sequence[Iterable[str]]) -> list[str]:
    """Return the lines made of cells side by side."""
    return [*map(",".join, zip(*parts))]


def _cells(column: Sequence[Any]) -> _Cells:
    """Return the text of the cells of a column, or the text that all of them share."""
    if isinstance(column, CodedColumn):
        cells = _cells(column.different)
        return cells if isinstance(cells, str) else [*map(cells.__getitem__, column.codes)]
    kinds = {*map(type, column)}
    if kinds <= {float, _NONE} and float in kinds:
        return words_of(column) if len(kinds) == 1 else _floats(column)
    if len(kinds) == 1 and kinds <= _EQUAL and column.count(column[0]) == len(column):
        return _cell(column[0])
    if kinds <= {str, _NONE}:
        return _texts(column)
    return [*map(str, column)] if kinds <= {int, bool} else [*map(_cell, column)]


def _floats(column: Sequence[Optional[float]]) -> Sequence[str]:
    """Return the text of float cells, of which some are None. If many are equal, such as limits, each value is
    converted once."""
    different = [*{*column}]
    if 2 * len(different) > len(column) or 0.0 in different:  # -0.0 == 0.0, but their text differs
        return words_of(column)
    return [*map(dict(zip(different, words_of(different))).__getitem__, column)]


def words_of(numbers: Sequence[Any]) -> Sequence[str]:
    """Return numbers as repr writes them, in a fifth of its time; "" for None."""
    if not (_IS_REPR and numbers):
        return ["" if one is None else repr(one) for one in numbers]
    try:
        text = _encode(numbers).decode()
    except (MsgspecError, OverflowError):  # an integer of more than 64 bits
        return [*map(repr, numbers)]
    return _words_in(text, numbers)


def _words_in(text: str, numbers: Sequence[Any]) -> list[str]:
    """Return the numbers in compact JSON as repr writes them."""
    words = text[1:-1].split(",")
    if any(mark in text for mark in _OTHER_NOTATION):
        for at in _odd(numbers):
            one = numbers[at]
            words[at] = "" if one is None else repr(one)
    return words


def numbers_json(numbers: Sequence[Any]) -> str:
    """Return numbers as compact JSON, each written as repr does; "" if a number is not finite or has more than 64
    bits."""
    try:
        text = _encode(numbers).decode() if _IS_REPR else ""
    except (MsgspecError, OverflowError):
        return ""
    if "null" in text or not any(mark in text for mark in _OTHER_NOTATION):
        return "" if "null" in text else text
    return f"[{','.join(_words_in(text, numbers))}]"


def _odd(numbers: Sequence[Any]) -> list[int]:
    """Return the indices of numbers that JSON and repr may write differently: very small or large, NaN, None."""
    sizes = np.abs(np.array(numbers, dtype=np.float64))
    is_ordinary = ((sizes >= _ORDINARY[0]) & (sizes < _ORDINARY[1])) | (sizes == 0)
    found: list[int] = np.flatnonzero(~is_ordinary).tolist()
    return found


def _texts(column: Sequence[Optional[str]]) -> Sequence[str]:
    """Return the text of cells, each different text converted once; "" for None."""
    different = dict.fromkeys(column)
    known = [text for text in different if text is not None]
    together = "\n".join(known)
    is_plain = (
        together.isascii() and together.replace("\n", "").isprintable() and together.count("\n") == len(known) - 1
    )
    if is_plain and not any(mark in together for mark in _SPECIAL):
        return [text or "" for text in column]
    words = {text: _cell(text) for text in different}
    return [*map(words.__getitem__, column)]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(float(value))
    return _quote(escape_formula(value)) if isinstance(value, str) else str(value)


def _quote(text: str) -> str:
    """Quote a cell by RFC 4180; escaped text has no line breaks."""
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


def encode(text: str) -> bytes:
    """Return text as bytes for a file."""
    return text.encode("utf-8", "backslashreplace")
