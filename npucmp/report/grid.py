"""Steps × ranks as the cells of a page, each a link to the page of its shard."""

from __future__ import annotations

from typing import Any

from npucmp.model import brief
from npucmp.report.cell import Cell, Matrix
from npucmp.report.picture import Picture, Spot, folded_words, pictured

COLUMNS, LINES = 128, 64  # of the grid; beyond, a cell stands for several
MARKED = 16  # columns of which each has its number at its head; of more, every eighth
Words = dict[str, Any]


def gridded(matrix: Matrix) -> Words:
    """What the template shows of it."""
    picture, pages = pictured(matrix.cells, matrix.first, COLUMNS, LINES), {*matrix.pages}
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
    """The first rank of each column, "" where there is no room for it."""
    names = [str(some[0]) for some in picture.numbers]
    return [name if len(names) <= MARKED or at % 8 == 0 else "" for at, name in enumerate(names)]


def _spot(one: Spot, pages: set[str]) -> Words:
    cell = one.cell
    if cell is None:
        return {"state": one.state, "link": "", "words": ""}
    more = f", the worst of {one.shards}" if one.shards > 1 else ""
    link = f"shards/{cell.name}.html" if cell.name in pages else ""
    return {"state": one.state, "link": link, "words": f"{cell.where}{more}: {_told(cell)}"}


def _told(cell: Cell) -> str:
    """A cell in one line."""
    if cell.first is None:
        return f"{cell.verdict}{f', {cell.because}' if cell.because else ''}"
    value = f", {brief(cell.first.value)}" if cell.first.value is not None else ""
    through = f", from rank {cell.source}" if cell.source is not None else ""
    return f"{cell.verdict}, {cell.first.cause} {cell.first.op}{value}{through}"
