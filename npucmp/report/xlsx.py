"""Write report.xlsx with XlsxWriter: a workbook with the tables as sheets, and a sheet of notes.

Text is written as text and numbers as numbers, so that names from a dump never become formulas or links. Rows are
written one by one and not kept in memory; rows in files are read from there.
"""

from __future__ import annotations

import io
import math
import re
import sys
from itertools import chain, islice
from typing import Any, Iterator, Sequence

from npucmp.errors import MissingExtra
from npucmp.report.answer import Answer, ReportTable
from npucmp.report.files import ConcatFile, Content
from npucmp.report.phrases import rate_of
from npucmp.report.sanitise import escape_formula, visible
from npucmp.version import __version__

FILE = "report.xlsx"
ROWS = (1 << 20) - 1  # rows of a sheet below its header; further rows go to the next sheet
LONGEST = 16_000  # characters of a cell: Excel takes 32,767 UTF-16 units
EXACT = 1 << 53  # whole numbers up to here are exact in Excel
WIDE, NARROW, WIDEST, TRIED = 12, 8, 60, 100  # characters of a column: usual, least, most; rows that decide
COLOURED = ("verdict", "cause", "status", "severity", "event", "origin", "decided")
FILLS = {  # words → (background, letters): the colours that Excel proposes
    "bad": ("#FFC7CE", "#9C0006"), "warn": ("#FFEB9C", "#9C5700"), "good": ("#C6EFCE", "#006100"),
    "passed": ("#E4DFEC", "#3F3151"),
}  # fmt: skip
TONES = {
    **dict.fromkeys("match CLEAN same close COMPARABLE killed yes".split(), "good"),
    **dict.fromkeys("diverged nonfinite shape BORN GAP GUILTY DIFFERS BROKEN nan inf born error".split(), "bad"),
    **dict.fromkeys(
        "WORSENED SUSPECT UNKNOWN AMPLIFIER dtype missing unreadable unknown saturated warning".split(), "warn"
    ),
    **dict.fromkeys("PROPAGATED propagated FOLLOWS".split(), "passed"),
}
_NUMBER = re.compile(r"-?\d{1,18}|-?\d+\.\d+(e[-+]?\d+)?|-?\d+e[-+]?\d+")
_TEXT = re.compile(r"op|op_type|phase|slot|.*_(op|tensor|dtype|shape|layout|at)|because|stack|evidence|at|rule")


def render(answer: Answer) -> dict[str, Content]:
    """Return the file. Raises MissingExtra without XlsxWriter."""
    writer = _writer()
    made = io.BytesIO()
    book = writer.Workbook(made, {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False,
                                  "strings_to_numbers": False})  # fmt: skip
    forms = {tone: book.add_format({"bg_color": back, "font_color": ink}) for tone, (back, ink) in FILLS.items()}
    head = book.add_format({"bold": True, "bottom": 1})
    places = [answer.places, *(table.file for table in answer.tables)]  # suspects first
    for table in sorted(answer.tables, key=lambda one: places.index(one.file)):
        _add(book, table.file.partition(".")[0], table.names, _rows(table), head, forms)
    _add(book, "notes", ("what", "text"), _notes(answer), head, forms)
    book.close()
    return {FILE: made.getvalue()}


def _writer() -> Any:
    try:
        import xlsxwriter
    except ImportError:
        raise MissingExtra("XlsxWriter", "--xlsx: a workbook") from None
    return xlsxwriter


def require() -> None:
    """Raise MissingExtra if XlsxWriter is not installed."""
    _writer()


def _rows(table: ReportTable) -> Iterator[Sequence[Any]]:
    """Yield the cells row by row, from memory, or from files if rows are stored there."""
    pieces = [*table.rows()] if table.rows is not None else []
    if not all(isinstance(piece, bytes) for piece in pieces):
        return _read(table.names, ConcatFile(pieces))
    columns = table.columns()
    return zip(*(columns[name] for name in table.names))


def _read(names: Sequence[str], lines: ConcatFile) -> Iterator[Sequence[Any]]:
    from npucmp.dump.readers.csv_table import read_blocks

    texts = [_TEXT.fullmatch(name) is not None for name in names]
    head = ",".join(names).encode() + b"\n"
    for block in read_blocks(FILE, chain([head], lines), longest=sys.maxsize):
        for row in zip(*(block.frame[at].tolist() for at in range(len(names)))) if len(block.frame) else ():
            yield [_value(cell, is_text) for cell, is_text in zip(row, texts)]


def _value(cell: str, is_text: bool) -> Any:
    """Return the value from which a cell of CSV was written."""
    if not cell:
        return None
    if not is_text and _NUMBER.fullmatch(cell):
        return int(cell) if cell.lstrip("-").isdigit() else float(cell)
    if cell in ("True", "False") and not is_text:
        return cell == "True"
    return cell[1:] if cell[:1] == "'" and (escape_formula(cell[1:]) == cell or cell[1:2] == "\\") else cell


def _add(
    book: Any, name: str, names: Sequence[str], rows: Iterator[Sequence[Any]], head: Any, forms: dict[str, Any]
) -> None:
    """Write one sheet, or several if the rows do not fit, with a frozen header, filters and colours."""
    coloured = {at for at, one in enumerate(names) if one in COLOURED}
    number = 1
    while True:
        tried = [*islice(rows, TRIED)]
        sheet = book.add_worksheet((name if number == 1 else f"{name[:26]} {number}")[:31])
        sheet.freeze_panes(1, 0)
        for at, one in enumerate(names):
            longest = max([len(one) + 3, *(len(str(row[at])) for row in tried if row[at] is not None)])
            sheet.set_column(at, at, max(NARROW, min(WIDEST, longest + 1) if longest > WIDE else longest))
            sheet.write_string(0, at, one, head)
        last = 0
        for last, row in enumerate(chain(tried, islice(rows, ROWS - len(tried))), 1):
            for at, value in enumerate(row):
                if value is not None and value != "":
                    _write(sheet, last, at, value, forms.get(TONES.get(value, "")) if at in coloured else None)
        sheet.autofilter(0, 0, max(1, last), len(names) - 1)
        following = next(rows, None) if last == ROWS else None
        if following is None:
            return
        rows, number = chain([following], rows), number + 1


def _write(sheet: Any, row: int, at: int, value: Any, form: Any) -> None:
    if isinstance(value, bool):
        sheet.write_boolean(row, at, value, form)
    elif isinstance(value, (int, float)) and math.isfinite(value) and (isinstance(value, float) or abs(value) <= EXACT):
        sheet.write_number(row, at, value, form)
    else:
        text = visible(str(value))
        sheet.write_string(row, at, text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …", form)


def _notes(answer: Answer) -> Iterator[tuple[str, Any]]:
    """Yield the paragraphs of the page that precede its table."""
    yield "verdict", answer.word
    yield "", answer.sentence
    for side in answer.sides or dict.fromkeys(side for section in answer.sections for side in section.sides):
        yield side.name, f"{side.path}  {side.what}"
    yield "aligned", answer.aligned
    for section in answer.sections:
        yield from (("warning", words) for words in section.warnings)
    for listing in answer.notes:
        yield from ((listing.title, words) for words in listing.lines)
    yield from (("not compared", words) for words in (*answer.left_out, *answer.undecided))
    yield from ((answer.remarks_title.lower(), words) for words in answer.remarks("."))
    for rule in answer.rules:
        yield "rule", f"{rule.metric} {rule.limit:.3g} {rule.dtype} {rule.op_type}  {rule.why}"
    yield from ((name, words) for name, words in answer.meaning.items())
    yield "npucmp", __version__
    yield "command", " ".join(answer.result.argv)
    yield "took", rate_of(answer.result)
