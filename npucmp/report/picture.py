"""Steps × ranks as a picture: a sign for each, or for several, of which the worst is shown."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from npucmp.report.cell import HERE, UNKNOWN, Cell
from npucmp.report.words import ranges

LINES = 40  # of a picture, before a line stands for several steps


class State(NamedTuple):
    """What a sign means; `tone` is its colour, beside which the sign says the same."""

    sign: str
    name: str
    words: str
    tone: str


FIRST = State("1", "first", "it begins here", "BORN")
BEGINS = State("X", "begins", "an error begins here", "BORN")
SUSPECTED = State("S", "suspected", "suspected by statistics, not proven", "SUSPECT")
PASSED = State("o", "passed", "differs: passed on from elsewhere", "WORSENED")
OPEN_CAUSE = State("u", "unknown", "differs, of unknown cause", "WORSENED")
LOST = State("!", "unreadable", "could not be read", "warning")
ALONE = State("/", "alone", "in one of the dumps only", "UNKNOWN")
UNDECIDED = State("?", "undecided", "undecided", "UNKNOWN")
AGREES = State("·", "agrees", "agrees", "good")
NOTHING = State(" ", "nothing", "not dumped", "")
STATES = FIRST, BEGINS, SUSPECTED, OPEN_CAUSE, PASSED, LOST, ALONE, UNDECIDED, AGREES, NOTHING  # the worst first
_WORST = {state: place for place, state in enumerate(STATES)}
_OTHERS = {"SUSPECTED": SUSPECTED, "UNREADABLE": LOST, "ALONE": ALONE, "AGREES": AGREES}


def state_of(cell: Cell, first: "Optional[tuple[int, int]]" = None) -> State:
    """What is shown of a cell; `first` is the key of the one in which it begins."""
    if cell.key == first and cell.first is not None:
        return FIRST
    if cell.verdict == "DIVERGED":
        return BEGINS if cell.origin == HERE else OPEN_CAUSE if cell.origin in (UNKNOWN, "") else PASSED
    return _OTHERS.get(cell.verdict, UNDECIDED)


class Spot(NamedTuple):
    """A place of the picture: so many shards, and the worst of them; None where nothing was dumped."""

    state: State
    cell: Optional[Cell]
    shards: int


class Picture(NamedTuple):
    """lines     (label, spots); `across` ranks to a spot and `down` steps to a line, at most
    ranks     those at which a column begins, and the last one
    """

    lines: "list[tuple[str, list[Spot]]]"
    ranks: "list[str]"
    across: int
    down: int

    def legend(self) -> "list[State]":
        """The states that are in it, the worst first."""
        found = {spot.state for _, spots in self.lines for spot in spots}
        return [state for state in STATES if state in found and state is not NOTHING]


def pictured(cells: "Sequence[Cell]", first: "Optional[tuple[int, int]]", width: int, lines: int = LINES) -> Picture:
    """Not wider and not longer than this: neighbours are folded into one spot, which shows the worst of them."""
    steps, ranks = (sorted({one.key[axis] for one in cells}) for axis in (0, 1))
    down, across = -(-len(steps) // lines), -(-len(ranks) // max(1, width))
    row = {step: at // down for at, step in enumerate(steps)}
    column = {rank: at // across for at, rank in enumerate(ranks)}
    some: "dict[tuple[int, int], list[Cell]]" = {}
    for one in cells:
        some.setdefault((row[one.key[0]], column[one.key[1]]), []).append(one)
    return Picture(
        [
            (_label("step", steps[at : at + down]), [_spot(some.get((at // down, to), ()), first)
                                                     for to in range(-(-len(ranks) // across))])
            for at in range(0, len(steps), down)
        ],
        [ranges(ranks[at : at + across]) for at in range(0, len(ranks), across)],
        across,
        down,
    )  # fmt: skip


def _label(name: str, numbers: "Sequence[int]") -> str:
    return f"{name}{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def _spot(some: "Sequence[Cell]", first: "Optional[tuple[int, int]]") -> Spot:
    states = [(state_of(one, first), one) for one in some]
    worst = min(states, key=lambda one: _WORST[one[0]], default=None)
    return Spot(NOTHING, None, 0) if worst is None else Spot(*worst, len(some))


def folded_words(picture: Picture) -> str:
    """What a sign stands for, "" if for one shard."""
    axes = ((picture.across, "ranks"), (picture.down, "steps"))
    folds = " and ".join(f"{count} {name}" for count, name in axes if count > 1)
    return f"each sign stands for up to {folds} and shows the worst of them" if folds else ""
