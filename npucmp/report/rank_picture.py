"""The picture of steps × ranks: a character for each cell, or for several cells, of which the worst is shown; and the
grid on a page, each cell of which links to the page of its step and rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

from npucmp.model import brief
from npucmp.report.phrases import numbers
from npucmp.report.rank_cell import HERE, UNKNOWN, Cell, Matrix

LINES = 40  # lines of a picture; beyond them, a line shows several steps


class CellState(NamedTuple):
    """The meaning of a character; `tone` is its colour, which adds no information."""

    sign: str
    name: str
    words: str
    tone: str


FIRST = CellState("1", "first", "first suspect: check it first", "BORN")
BEGINS = CellState("X", "begins", "an error originates here", "BORN")
SUSPECTED = CellState("S", "suspected", "suspected, statistics only, not proven", "SUSPECT")
PASSED = CellState("o", "passed", "differs: error propagated from elsewhere", "WORSENED")
OPEN_CAUSE = CellState("u", "unknown", "differs, of unknown cause", "WORSENED")
LOST = CellState("!", "unreadable", "could not be read", "warning")
ALONE = CellState("/", "alone", "in one dump only", "UNKNOWN")
UNDECIDED = CellState("?", "undecided", "undecided", "UNKNOWN")
AGREES = CellState("·", "agrees", "all tensors agree", "good")
NOTHING = CellState(" ", "nothing", "not dumped", "")
STATES = FIRST, BEGINS, SUSPECTED, OPEN_CAUSE, PASSED, LOST, ALONE, UNDECIDED, AGREES, NOTHING  # the worst first
_WORST = {state: place for place, state in enumerate(STATES)}
_OTHERS = {"SUSPECTED": SUSPECTED, "UNREADABLE": LOST, "ALONE": ALONE, "AGREES": AGREES}


def state_of(cell: Cell, first: Optional[tuple[int, int]] = None) -> CellState:
    """Return the state of a cell; `first` is the key of the cell in which the error begins."""
    if cell.key == first and cell.first is not None:
        return FIRST
    if cell.verdict == "DIVERGED":
        return BEGINS if cell.origin == HERE else OPEN_CAUSE if cell.origin in (UNKNOWN, "") else PASSED
    return _OTHERS.get(cell.verdict, UNDECIDED)


class PictureCell(NamedTuple):
    """A position in the picture: the number of steps and ranks in it, and the worst of them; None if there is no
    dump."""

    state: CellState
    cell: Optional[Cell]
    step_ranks: int


class Picture(NamedTuple):
    """A picture.

    lines     (label, spots); each spot covers at most `across` cells horizontally and `down` cells vertically
    name      the horizontal axis: "rank", or "step" if there is a single rank; `other`: the vertical axis
    numbers   the steps or ranks in each column
    """

    lines: list[tuple[str, list[PictureCell]]]
    name: str
    other: str
    numbers: list[list[int]]
    across: int
    down: int

    def legend(self) -> list[CellState]:
        """Return the states in the picture, the worst first."""
        found = {spot.state for _, spots in self.lines for spot in spots}
        return [state for state in STATES if state in found and state is not NOTHING]


def fold_matrix(cells: Sequence[Cell], first: Optional[tuple[int, int]], width: int, lines: int = LINES) -> Picture:
    """Return a picture within these limits: neighbouring cells are folded into one spot, which shows the worst of
    them."""
    found = [sorted({one.key[axis] for one in cells}) for axis in (0, 1)]
    lying = len(found[1]) < 2  # with a single rank, the steps are horizontal
    (other, rows), (name, columns) = sorted(zip(("step", "rank"), found), reverse=not lying)
    down, across = -(-len(rows) // lines), -(-len(columns) // max(1, width))
    folded = [[members[at : at + size] for at in range(0, len(members), size)]
              for members, size in ((rows, down), (columns, across))]  # fmt: skip
    row, column = ({number: at for at, members in enumerate(axis) for number in members} for axis in folded)
    members: dict[tuple[int, int], list[Cell]] = {}
    for one in cells:
        step, rank = one.key
        members.setdefault((row[rank], column[step]) if lying else (row[step], column[rank]), []).append(one)
    every = [
        (numbers(other, of_line), [_spot(members.get((at, to), ()), first) for to in range(len(folded[1]))])
        for at, of_line in enumerate(folded[0])
    ]
    return Picture(every, name, other, folded[1], across, down)


def _spot(cells: Sequence[Cell], first: Optional[tuple[int, int]]) -> PictureCell:
    states = [(state_of(one, first), one) for one in cells]
    worst = min(states, key=lambda one: _WORST[one[0]], default=None)
    return PictureCell(NOTHING, None, 0) if worst is None else PictureCell(*worst, len(cells))


def folded_words(picture: Picture) -> str:
    """Describe how many steps and ranks a character covers; "" if each covers one."""
    axes = ((picture.across, picture.name), (picture.down, picture.other))
    folds = " and ".join(f"{count} {name}s" for count, name in axes if count > 1)
    return f"each sign covers up to {folds} and shows the worst" if folds else ""


COLUMNS, RANK_PICTURE_HTML_LINES = 128, 64  # limits of the grid; beyond them, a cell shows several steps or ranks
NUMBERED_COLUMNS = 16  # columns up to which each has its number; with more columns every eighth has
Words = dict[str, Any]


def matrix_data(matrix: Matrix) -> Words:
    """Return the values for the template."""
    picture, pages = fold_matrix(matrix.cells, matrix.first, COLUMNS, RANK_PICTURE_HTML_LINES), {*matrix.pages}
    return {
        "sentence": matrix.sentence,
        "odd": matrix.odd,
        "name": picture.name,
        "heads": _heads(picture),
        "lines": [(label, [_rank_picture_html_spot(one, pages) for one in spots]) for label, spots in picture.lines],
        "legend": picture.legend(),
        "folded": folded_words(picture),
        "linked": bool(pages),
        "unwritten": matrix.unwritten,
    }


def _heads(picture: Picture) -> list[str]:
    """Return the first rank of each column, "" where the number does not fit."""
    names = [str(group[0]) for group in picture.numbers]
    return [name if len(names) <= NUMBERED_COLUMNS or at % 8 == 0 else "" for at, name in enumerate(names)]


def _rank_picture_html_spot(one: PictureCell, pages: set[str]) -> Words:
    cell = one.cell
    if cell is None:
        return {"state": one.state, "link": "", "words": ""}
    more = f", the worst of {one.step_ranks}" if one.step_ranks > 1 else ""
    link = f"shards/{cell.name}.html" if cell.name in pages else ""
    return {"state": one.state, "link": link, "words": f"{cell.where}{more}: {_cell_text(cell)}"}


def _cell_text(cell: Cell) -> str:
    """Describe a cell in one line."""
    if cell.first is None:
        return f"{cell.verdict}{f', {cell.because}' if cell.because else ''}"
    value = f", {brief(cell.first.value)}" if cell.first.value is not None else ""
    through = f", from rank {cell.source}" if cell.source is not None else ""
    return f"{cell.verdict}, {cell.first.cause} {cell.first.op}{value}{through}"
