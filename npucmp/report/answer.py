"""What a Result says, ready to be shown: the words are written here once, presenters only walk them.

report/{command}.py makes the Answer of a command. Text is as dumps have it: each presenter makes it harmless for where
it is to stand. What is costly and not shown everywhere is a function to be called.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.model import Cause, DifferenceMap, Evidence, Look, Operator, Rerun, Result, Root, Tolerance

Row = dict[str, Any]
Columns = dict[str, list[Any]]
if TYPE_CHECKING:
    from npucmp.model.merged import Slice
    from npucmp.report.cell import Matrix

Piece = Union[bytes, Path, "Slice"]  # of a file: what stands in it, or in another one
Shown = Callable[["Answer", "Optional[Within]"], bytes]  # a page of an answer, which may be one of several


class Table(NamedTuple):
    """A file of rows. `columns` makes the cells, a list for each name; None where nothing applies or is known. `rows`
    makes the same as lines of CSV, in pieces of which some may lie in files, `parts` those of each step and rank by its
    name, where a file may be made of each."""

    file: str
    names: tuple[str, ...]
    columns: Callable[[], Columns]
    rows: Optional[Callable[[], Iterable[Piece]]] = None
    parts: Optional[Sequence[tuple[str, Callable[[], Iterable[Piece]]]]] = None


class Text(NamedTuple):
    """A file that is no table; a page shows it under `title`, if it has one."""

    file: str
    text: str
    title: str = ""


class Detail(NamedTuple):
    """All rows, operator by operator, for a presenter in which one can look around.

    kind       how a row is drawn: "pairs" of two tensors, or "events" of one
    runs       what tells the runs apart; operators have the column `run`, and `rows`: how many rows are theirs
    columns    that can be shown, those shown at first, those to filter by
    more       what drawings need besides
    """

    kind: str
    title: str
    chart: str  # the title of the drawing along the network
    runs: Sequence[str]
    operators: Columns
    rows: Columns
    columns: Sequence[str]
    shown: Sequence[str]
    facets: Sequence[str]
    more: Mapping[str, Any] = {}


class Side(NamedTuple):
    """One of the dumps: its part, its path, and what is in it."""

    name: str
    path: str
    what: str


class Line(NamedTuple):
    """A sentence whose head is set off, in the colour of `tone`."""

    head: str
    tone: str
    rest: str = ""


class Listing(NamedTuple):
    """Lines of one kind, of which a presenter may show the first few; `rest` is the file that has all, and `more` how
    many only that one has."""

    title: str
    lines: Sequence[str]
    rest: str
    more: int = 0


class Step(NamedTuple):
    """An operator on the way of an error, so many steps below its birth."""

    depth: int
    word: str
    words: str


class Flow(NamedTuple):
    """Error in and out of an operator, against its limit; None where it is not known."""

    input: Optional[float]
    output: Optional[float]
    limit: float


class Suspect(NamedTuple):
    """An operator to look at, and why.

    word      of its cause, as a reader meets it; `rule` is what found it, `aside` goes with the name
    flow, figures, marks, picture, way   what drawings and lists can show of it, if it has any; `marks` says of each
              of the Answer's marked dumps whether it stands apart, `picture` is that of dump `pictured`
    look      at the tensor that shows it
    excused   nobody is to blame; known: the user's baseline has it
    also      at which other steps and ranks the same was found
    page      that has its rows, "" for this one, None for none
    """

    place: int
    cause: str
    op: str
    op_type: str
    slot: str
    evidence: tuple[Evidence, ...]
    word: str
    golden: str = ""
    where: str = ""
    line: str = ""
    aside: str = ""
    flow: Optional[Flow] = None
    figures: tuple[tuple[str, str], ...] = ()
    marks: tuple[bool, ...] = ()
    picture: Optional[DifferenceMap] = None
    pictured: int = 0
    excused: bool = False
    rule: str = ""
    known: bool = False
    look: Optional[Look] = None
    way: Callable[[], Sequence[Step]] = tuple
    also: str = ""
    page: Optional[str] = ""

    @classmethod
    def of(cls, found: Root | Rerun, operator: Operator, **more: Any) -> Suspect:
        """What is found of an operator, whose cause is the word unless `more` has another."""
        cause = found.cause.value
        known = found.place, cause, operator.name, operator.op_type, found.slot, found.evidence
        return cls(*known, **{"word": cause, **more})


class Suspects(NamedTuple):
    """Operators by place: those to look at, and those that only pass an error on, unless there are no others."""

    first: Sequence[Suspect]
    passed: Sequence[Suspect] = ()

    @classmethod
    def of(cls, every: Sequence[Suspect]) -> Suspects:
        ordered = sorted(every, key=lambda one: one.place)
        first = [one for one in ordered if one.cause != Cause.PROPAGATED.value]
        passed = [one for one in ordered if one.cause == Cause.PROPAGATED.value]
        return cls(first, passed) if first else cls(passed)


class Original(NamedTuple):
    """An operator that a fused one stands for."""

    name: str
    compared: bool
    holds: str


class Chain(NamedTuple):
    """An operator beside those that it stands for; the place of `suspect` is 0 if it is none."""

    suspect: Suspect
    originals: tuple[Original, ...]
    passes: tuple[str, ...]
    holds: str
    verdict: str
    differs: bool
    error: str


class Plot(NamedTuple):
    """Curves over steps: (name, steps, values) of each; values may be NaN or infinite. `bands` are stretches of steps
    that are set off, `words` say why."""

    title: str
    words: str
    curves: Sequence[tuple[str, Sequence[int], Sequence[float]]]
    bands: Sequence[tuple[int, int]] = ()


class Within(NamedTuple):
    """A page that is one of several: where it is, and the pages beside it as (name, link)."""

    where: str
    beside: Sequence[tuple[str, str]]


class Section(NamedTuple):
    """One step and rank, and what came of it.

    passed_words  in one line, of those that pass the error on
    agreeing      how many tensors agree, where nothing else is to be said than the first of `lines`
    lines         where there is nobody to suspect; `after` and `listings` stand below the suspects
    unlisted      how many suspects, and how many that pass on, only the tables have
    """

    where: str
    sides: Sequence[Side]
    aligned: str = ""
    title: str = ""
    warnings: Sequence[str] = ()
    suspects: Suspects = Suspects(())
    passed_words: str = ""
    agreeing: int = 0
    lines: Sequence[Line] = ()
    after: Sequence[Line] = ()
    listings: Sequence[Listing] = ()
    unlisted: tuple[int, int] = (0, 0)

    @property
    def place(self) -> int:
        """That of its first suspect; a section without one comes last."""
        return min((one.place for some in self.suspects for one in some), default=sys.maxsize)


class Case(NamedTuple):
    """Something that was asked by name; `skipped` says why there is no answer, "" if there is one."""

    name: str
    skipped: str = ""


@dataclass(frozen=True)
class Answer:
    """All that presenters walk.

    word, sentence  the verdict
    sections        by the place of their first suspect; `suspects` are those of all, `places` the file that has them
    compared        the title of what was held against what
    counts          of rows, by what they are
    sides           the dumps, where each has several runs; else the sections tell
    unlisted        how many suspects only the tables have
    left_out        runs that were not looked at; `undecided` says what else was not, and why
    remarks         what to do next, given the folder in which the files are, "" if there are none
    marked          the dumps that the marks of suspects stand for
    plots           curves that a page draws
    matrix          all steps and ranks, where there are several; `pages` are those of some of them, as (file, content),
                    given what makes one
    rest            the title under which a page lists the suspects that come later too
    alike           of the columns of the first table, which one says what others call `cause` and `limit`
    looks           at tensors, which a page shows with their operators
    facts           what summary.json says besides, by key
    cases           what was asked by name, where that is more than the suspects
    """

    result: Result
    word: str
    sentence: str
    sections: Sequence[Section]
    suspects: Suspects
    places: str
    title: str
    compared: str
    aligned: str
    counts: Mapping[str, int]
    notes: Sequence[Listing]
    unreadable: Listing
    tables: Sequence[Table]
    detail: Callable[[], Detail]
    facts: Callable[[], Row]
    passed_words: str = ""
    nothing: Sequence[str] = ()
    sides: Sequence[Side] = ()
    unlisted: int = 0
    left_out: Sequence[str] = ()
    undecided: Sequence[str] = ()
    remarks: Callable[[str], Sequence[str]] = lambda folder: ()
    remarks_title: str = ""
    marked: Sequence[str] = ()
    rest: str = ""
    chains: Sequence[Chain] = ()
    plots: Sequence[Plot] = ()
    matrix: Optional[Matrix] = None
    pages: Callable[[Shown], Iterable[tuple[str, Piece]]] = lambda shown: ()
    texts: Callable[[], Sequence[Text]] = tuple
    rules: Sequence[Tolerance] = ()
    cases: Callable[[], Sequence[Case]] = tuple
    meaning: Mapping[str, str] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)
    alike: Mapping[str, str] = field(default_factory=dict)
    looks: Sequence[Look] = ()

    @property
    def tone(self) -> str:
        """ "good", "bad" or "open"."""
        return {0: "good", 1: "bad"}.get(self.result.exit_status, "open")
