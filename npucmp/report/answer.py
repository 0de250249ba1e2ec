"""The Answer: the words of a Result, written once, which presenters walk and show.

The module report/{command}.py makes the Answer of a command. Text is kept as it was dumped: each presenter escapes it
for its own format. Parts that are costly and not shown everywhere are functions, called on demand.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.model.cause import Cause

Row = dict[str, Any]
Columns = dict[str, Sequence[Any]]
if TYPE_CHECKING:
    from npucmp.model import DifferenceMap, Evidence, Operator, Rerun, Result, Root, TensorDetail, Tolerance
    from npucmp.model.report_files import FileRange
    from npucmp.report.rank_cell import Matrix

Piece = Union[bytes, Path, "FileRange"]  # a piece of a file: its bytes, or another file that contains them
Shown = Callable[
    ["Answer", "Optional[PageContext]"], bytes
]  # makes a page of an answer, which may be one of several pages


class ReportTable(NamedTuple):
    """A file of rows.

    columns  makes the cells, a list for each name; a cell is None if it does not apply or is not known
    rows     makes the same rows as lines of CSV, in pieces; a piece may lie in another file
    parts    rows of each step and rank by its name, from which a file of each can be made
    title    of the table on a page, which shows the columns `shown` below the sentence `words`; "" if no page has it
    """

    file: str
    names: tuple[str, ...]
    columns: Callable[[], Columns]
    rows: Optional[Callable[[], Iterable[Piece]]] = None
    parts: Optional[Sequence[tuple[str, Callable[[], Iterable[Piece]]]]] = None
    title: str = ""
    words: str = ""
    shown: tuple[str, ...] = ()


class Text(NamedTuple):
    """A file that is not a table; a page shows it under `title`, if it has a title."""

    file: str
    text: str
    title: str = ""


class Detail(NamedTuple):
    """All rows, operator by operator, for an interactive presenter.

    kind       how a row is drawn: "pairs" of two tensors, or "events" of one
    runs       names of the runs; operators have the columns `run` and `rows`, the number of their rows
    columns    columns that can be shown; `shown` are visible at first, `facets` can be filtered by
    more       further data for the drawings
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


class DumpSummary(NamedTuple):
    """A dump of the result: its role, its path and a description of its content."""

    name: str
    path: str
    what: str


class Line(NamedTuple):
    """A sentence whose head is set off in the colour of `tone`."""

    head: str
    tone: str
    rest: str = ""


class Listing(NamedTuple):
    """Lines of one kind; a presenter may show only the first. `rest` names the file with all, and `more` counts the
    lines that only that file has. `rules` is the number of rules that each line lists, if the lines are reasons."""

    title: str
    lines: Sequence[str]
    rest: str
    more: int = 0
    rules: Sequence[int] = ()


class PathStep(NamedTuple):
    """An operator that an error passes, `depth` steps after the operator in which the error is born."""

    depth: int
    word: str
    words: str


class Flow(NamedTuple):
    """The errors of the inputs and outputs of an operator, and the limit; None if an error is not known."""

    input: Optional[float]
    output: Optional[float]
    limit: float


class Suspect(NamedTuple):
    """An operator to look at, and the reason.

    word      its cause, as printed; `rule` is the rule that found it, `aside` is printed after the name
    flow, figures, marks, picture, way   data for drawings and lists, if there is any; `marks` says for each marked dump
                                         of the Answer whether it differs from the others, `picture` is of the marked
                                         dump number `pictured`
    look      the worst elements of the tensor that shows the error
    excused   the finding is not a fault; known: the baseline of the user contains it
    also      other steps and ranks with the same finding
    page      the page with its rows, "" for the current page, None if there is none
    path      the recorded path of the source file of `line`, "" if it is not known
    at        the known ones of its step, rank, ranks, relation, request and position, as in roots.csv
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
    look: Optional[TensorDetail] = None
    way: Callable[[], Sequence[PathStep]] = tuple
    also: str = ""
    page: Optional[str] = ""
    path: str = ""
    at: Mapping[str, Union[int, str]] = {}

    @classmethod
    def of(cls, found: Root | Rerun, operator: Operator, **more: Any) -> Suspect:
        """Return the suspect of a finding in an operator; the word is its cause unless `more` gives another."""
        cause = found.cause.value
        known = found.place, cause, operator.name, operator.op_type, found.slot, found.evidence
        return cls(*known, **{"word": cause, **more})


class Suspects(NamedTuple):
    """Operators by place: `first` those to look at, `passed` those that only propagate an error; if all propagate it,
    all are in `first`."""

    first: Sequence[Suspect]
    passed: Sequence[Suspect] = ()

    @classmethod
    def of(cls, every: Sequence[Suspect]) -> Suspects:
        ordered = sorted(every, key=lambda one: one.place)
        first = [one for one in ordered if one.cause != Cause.PROPAGATED.value]
        passed = [one for one in ordered if one.cause == Cause.PROPAGATED.value]
        return cls(first, passed) if first else cls(passed)


class Original(NamedTuple):
    """An operator that was fused into another."""

    name: str
    compared: bool
    holds: str


class Chain(NamedTuple):
    """A fused operator and its originals; the place of `suspect` is 0 if the operator is not a suspect."""

    suspect: Suspect
    originals: tuple[Original, ...]
    passes: tuple[str, ...]
    holds: str
    verdict: str
    differs: bool
    error: str


class Plot(NamedTuple):
    """Curves over steps, each as (name, steps, values); values may be NaN or infinite. `bands` are highlighted ranges
    of steps, `words` give the reason. `dots` are the numbers, from 1, of curves that a notebook draws as dots."""

    title: str
    words: str
    curves: Sequence[tuple[str, Sequence[int], Sequence[float]]]
    bands: Sequence[tuple[int, int]] = ()
    dots: Sequence[int] = ()


class CellMap(NamedTuple):
    """A map of what differs, by two axes (down, across), each with its name: the number of its members, of things in
    each cell, and of those that differ."""

    title: str
    names: tuple[str, str]
    sizes: tuple[int, int]
    counts: Sequence[Sequence[int]]
    differing: Sequence[Sequence[int]]


class PageContext(NamedTuple):
    """A page that is one of several: its step and rank, and the neighbouring pages as (name, link)."""

    where: str
    beside: Sequence[tuple[str, str]]


class NextCommand(NamedTuple):
    """A command to run next, and the reason."""

    command: str
    because: str


class Section(NamedTuple):
    """A step and rank, and the result of its comparison.

    passed_words  a line on the operators that propagate the error
    agreeing      number of tensors that agree, if the first of `lines` is all that there is to report
    lines         shown if there is no suspect; `after` and `listings` follow the suspects
    unlisted      numbers of suspects and of propagating operators that only the tables contain
    """

    where: str
    sides: Sequence[DumpSummary]
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
        """The place of the first suspect; a section without a suspect comes last."""
        return min((one.place for suspects in self.suspects for one in suspects), default=sys.maxsize)


class Lookup(NamedTuple):
    """A question with a name, such as a rule; `skipped` is the reason why it has no answer, "" if it has one."""

    name: str
    skipped: str = ""


@dataclass(frozen=True)
class Answer:
    """All data that presenters show.

    word, sentence  the verdict
    sections        ordered by the place of their first suspect; `suspects` are the suspects of all sections, `places`
                    is the file that lists them
    compared        the title of the paragraph on the dumps that were compared
    counts          numbers of rows by verdict or kind
    sides           the dumps, if each has several runs; else each section names its own
    unlisted        number of suspects that only the tables contain
    left_out        runs that were not compared; `undecided` lists what else was not compared, with the reason
    remarks         the next steps for the user, given the folder of the files, "" if there are no files
    marked          the dumps to which the marks of suspects belong
    plots           curves that a page draws
    maps            maps that a page draws
    matrix          the overview of all steps and ranks, if there are several; `pages` makes the pages of a subset of
                    them, as (file, content), with the function that makes one page
    rest            the title under which a page lists suspects that are also found in later runs
    alike           maps `cause` and `limit` to the columns of the first table that take their place
    looks           worst elements of tensors, which a page shows with their operators
    facts           further values of summary.json, by key
    cases           questions by name, if there are more than the suspects
    folder          the folder of the files, "" if there are none
    head            lines above everything: options that come from a settings file or the environment
    commands        makes the commands to run next, given the answer (next_commands.py)
    along           makes a plot of the operators in the order of execution, for a notebook
    first           makes the Answer of the step and rank of the first suspect, if there are several
    series          makes the data over the steps for a page (step_series.py), None if there is one step
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
    tables: Sequence[ReportTable]
    detail: Callable[[], Detail]
    facts: Callable[[], Row]
    passed_words: str = ""
    nothing: Sequence[str] = ()
    sides: Sequence[DumpSummary] = ()
    unlisted: int = 0
    left_out: Sequence[str] = ()
    undecided: Sequence[str] = ()
    remarks: Callable[[str], Sequence[str]] = lambda folder: ()
    remarks_title: str = ""
    marked: Sequence[str] = ()
    rest: str = ""
    chains: Sequence[Chain] = ()
    plots: Sequence[Plot] = ()
    maps: Sequence[CellMap] = ()
    matrix: Optional[Matrix] = None
    pages: Callable[[Shown], Iterable[tuple[str, Piece]]] = lambda shown: ()
    texts: Callable[[], Sequence[Text]] = tuple
    rules: Sequence[Tolerance] = ()
    cases: Callable[[], Sequence[Lookup]] = tuple
    meaning: Mapping[str, str] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)
    alike: Mapping[str, str] = field(default_factory=dict)
    looks: Sequence[TensorDetail] = ()
    folder: str = ""
    head: Sequence[str] = ()
    commands: Callable[[Answer], Iterable[NextCommand]] = lambda answer: ()
    along: Callable[[], Optional[Plot]] = lambda: None
    first: Optional[Callable[[], Answer]] = None
    series: Callable[[], Optional[Row]] = lambda: None

    @property
    def tone(self) -> str:
        """Return "good", "bad" or "open", by the exit status."""
        return {0: "good", 1: "bad"}.get(self.result.exit_status, "open")
