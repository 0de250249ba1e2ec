"""The grid of steps × ranks on a page; each cell links to the page of its step and rank."""

from __future__ import annotations

from typing import Any

from npucmp.model import brief
from npucmp.report.rank_cell import Cell, Matrix
from npucmp.report.rank_picture import Picture, Spot, fold_matrix, folded_words

COLUMNS, LINES = 128, 64  # limits of the grid; beyond them, a cell shows several steps or ranks
MARKED = 16  # columns up to which each has its number; with more columns every eighth has
Words = dict[str, Any]


def matrix_data(matrix: Matrix) -> Words:
    """Return the values for the template."""
    picture, pages = fold_matrix(matrix.cells, matrix.first, COLUMNS, LINES), {*matrix.pages}
    return {
        "sentence": matrix.sentence,
        "odd": matrix.odd,
        "name": picture.name,
        "heads": _heads(picture),
        "lines": [(label, [_spot(one, pages) for one in spots]) for label, spots in picture.lines],
        "legend": picture.legend(),
        "folded": folded_words(picture),
        "linked": bool(pages),
        "unwritten": matrix.unwritten,
    }


def _heads(picture: Picture) -> list[str]:
    """Return the first rank of each column, "" where the number does not fit."""
    names = [str(some[0]) for some in picture.numbers]
    return [name if len(names) <= MARKED or at % 8 == 0 else "" for at, name in enumerate(names)]


def _spot(one: Spot, pages: set[str]) -> Words:
    cell = one.cell
    if cell is None:
        return {"state": one.state, "link": "", "words": ""}
    more = f", the worst of {one.shards}" if one.shards > 1 else ""
    link = f"shards/{cell.name}.html" if cell.name in pages else ""
    return {"state": one.state, "link": link, "words": f"{cell.where}{more}: {_cell_text(cell)}"}


def _cell_text(cell: Cell) -> str:
    """Describe a cell in one line."""
    if cell.first is None:
        return f"{cell.verdict}{f', {cell.because}' if cell.because else ''}"
    value = f", {brief(cell.first.value)}" if cell.first.value is not None else ""
    through = f", from rank {cell.source}" if cell.source is not None else ""
    return f"{cell.verdict}, {cell.first.cause} {cell.first.op}{value}{through}"
