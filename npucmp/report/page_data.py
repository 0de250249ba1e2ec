"""The data of report.html: columns of operators and of rows, packed so that 20,000 stay small.

A column is one of
    {"all": value}                 every row has it
    {"words": […], "codes": […]}   few different values, each row the number of one
    {"values": […]}                anything else; null is "does not apply"
with "number": true where values are numbers, of which NaN and infinities are strings. A column in which no row has a
value is left out. Floats carry four digits, those just below 1 three of what they lack: the page shows no more, the CSV
files have them all. Several texts in one cell are a list. Rows stand operator by operator; the column `rows` of the
operators tells how many each has.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, List, Optional, Sequence

from msgspec.json import Decoder

from npucmp.report.answer import Columns, Detail
from npucmp.report.rows import KEPT, SHORT
from npucmp.report.sanitise import visible

EXACT = 1 << 53  # up to which a browser holds integers exactly
_NONE = type(None)
_decode = Decoder(List[float]).decode
FEW = 0.5  # share of different values up to which they are numbered


def page_data(detail: Detail) -> dict[str, Any]:
    """All that the scripts of the page read."""
    return {
        "kind": detail.kind,
        "runs": [visible(run) for run in detail.runs],
        **plain(detail.more),
        "operators": packed(detail.operators),
        "rows": packed(detail.rows),
        "columns": [*detail.columns],
        "shown": [*detail.shown],
        "facets": [*detail.facets],
    }


def packed(columns: Columns) -> dict[str, Any]:
    """Columns in the form that is smallest, and how many rows there are; those without any value are left out."""
    found = {name: _column(cells) for name, cells in columns.items()}
    length = max(map(len, columns.values()), default=0)
    return {"length": length, "columns": {name: column for name, column in found.items() if column is not None}}


def _column(cells: Sequence[Any]) -> Optional[dict[str, Any]]:
    """One column in the form that is smallest; None where no row has a value."""
    if cells.count(None) == len(cells):
        return None
    kinds = {*map(type, cells)}
    if kinds <= {str, _NONE} and len(cells) <= SHORT:
        return _known_texts(tuple(cells))
    return _of_kinds(cells, kinds)


@lru_cache(maxsize=KEPT)
def _known_texts(cells: tuple[Optional[str], ...]) -> Optional[dict[str, Any]]:
    """A column of text, which most ranks have in common."""
    return _of_kinds(cells, {str})


def _of_kinds(cells: Sequence[Any], kinds: set[type]) -> Optional[dict[str, Any]]:
    number = {"number": True} if kinds & {int, float} else {}
    if float in kinds and not kinds <= {float, _NONE}:  # some that are equal have other words
        cells = different = plains = [*map(plain, cells)]
    else:
        different = [*dict.fromkeys(cells)]
        plains = _plains(different, kinds)
    words = dict.fromkeys(plains)
    if len(words) <= 1:
        return {"all": plains[0], **number} if plains[0] is not None else None
    if len(words) <= FEW * len(cells):
        places = dict(zip(words, range(len(words))))
        codes = dict(zip(different, map(places.__getitem__, plains)))
        return {"words": [*words], "codes": [*map(codes.__getitem__, cells)], **number}
    known = dict(zip(different, plains))
    return {"values": plains if cells is plains else [*map(known.__getitem__, cells)], **number}


def _plains(cells: Sequence[Any], kinds: set[type]) -> list[Any]:
    """Cells as JSON can hold them: figures, and text that is harmless, all at once."""
    if float in kinds:
        figures = iter(_figures([cell for cell in cells if cell is not None and math.isfinite(cell)]))
        return [next(figures) if cell is not None and math.isfinite(cell) else plain(cell) for cell in cells]
    known = [cell for cell in cells if cell is not None]
    if (kinds <= {str, _NONE} and _is_harmless(known)) or (kinds <= {int, _NONE} and max(map(abs, known)) < EXACT):
        return [*cells]
    return [*map(plain, cells)]


def _is_harmless(texts: Sequence[str]) -> bool:
    """Whether no text is empty or deceives."""
    together = "".join(texts)
    return "" not in texts and together.isascii() and together.isprintable()


def _figures(cells: Sequence[float]) -> list[float]:
    """Finite numbers in four digits, small integers as such."""
    short = _decode(f"[{','.join(['%.4g'] * len(cells)) % (*cells,)}]")
    short = [one if not 0.99 < cell < 1.0 else _nearly_one(cell) for one, cell in zip(short, cells)]
    return [int(one) if -1e6 < one < 1e6 and one.is_integer() else one for one in short]


def _nearly_one(cell: float) -> float:
    """Three digits of what a number that is nearly 1, a cosine, lacks."""
    return round(cell, 2 - math.floor(math.log10(1.0 - cell)))


def plain(value: Any) -> Any:
    """A value as JSON can hold it: text that cannot deceive, floats of four digits; what is empty is no value."""
    if value is None:
        return None
    if isinstance(value, str):
        return visible(value) or None
    if isinstance(value, (tuple, list)):
        return tuple(map(plain, value)) or None
    if isinstance(value, dict):
        return {name: plain(cell) for name, cell in value.items()}
    if isinstance(value, int):  # truth values too
        return value if abs(value) < EXACT else float(value)
    if math.isfinite(value):
        return _figures([value])[0]
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
