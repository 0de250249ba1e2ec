"""Combine the Answers of several steps and ranks: equal findings of several steps and ranks are reported once."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Callable, Iterable, Iterator, Mapping, Optional, Sequence

from npucmp.localise.rank_digest import Coordinates, RankDigest, coordinates, odd_ones
from npucmp.model import Cause
from npucmp.report.answer import Answer, Listing, PageContext, Piece, Section, Shown, Suspect, Suspects
from npucmp.report.error_origin import begin_of, odd_facts, odd_words
from npucmp.report.matrix import table
from npucmp.report.phrases import count_of, numbers
from npucmp.report.rank_cell import Cell, Matrix
from npucmp.report.rank_summary import Agreement, RankSummary
from npucmp.report.worst_elements import with_worst_elements

PAGES = 64  # steps and ranks up to which each has a page
MOST_PAGES = 256  # pages if there are more steps and ranks
MOST_SENTENCES = 4  # sentences on ranks that hold other values than their replicas
SETS = 4  # sets of steps and ranks that are listed
ODD_FACTS = 50  # such ranks in summary.json


Pages = Callable[["Mapping[int, PageContext]", Shown], "Iterator[tuple[int, Piece]]"]


def multi_rank_answer(answer: Answer, parts: Sequence[RankSummary], lost: Sequence[Cell], made: Pages) -> Answer:
    """Return the Answer of several steps and ranks, given the Answer with one section for each, and the cells of runs
    that were not compared. `made` makes the pages of a subset, by their indices among the parts."""
    cells = [one.cell for one in parts if one.cell is not None]
    joints = [one.joint for one in parts if one.joint is not None]
    every = [*_with_coordinates(cells, joints), *lost]
    odd, pages = odd_ones(joints), pages_to_write(cells)
    mismatches = [
        one for one in odd if one.wrong
    ] or odd  # possible rounding differences are not shown beside proven ones
    found, facts = make_overview(every)
    matrix = found._replace(
        odd=[
            *map(odd_words, mismatches[:MOST_SENTENCES]),
            *([f"and {len(odd) - MOST_SENTENCES} more in summary.json"] if len(mismatches) > MOST_SENTENCES else []),
        ],
        pages=[cells[at].name for at in pages],
        unwritten=missing_pages(cells, pages),
    )
    (section,) = with_worst_elements([_section(answer, parts, matrix)], answer.looks)
    return replace(
        answer,
        sections=[section],
        suspects=section.suspects,
        title=section.title,
        unlisted=section.unlisted[0],
        tables=[*answer.tables, table(every, matrix.pages)],
        nothing=[] if section.suspects.first else _nothing(section),
        matrix=matrix,
        pages=lambda shown: _pages(cells, pages, made, shown),
        facts=lambda: {**answer.facts(), **facts, "peers": [odd_facts(one) for one in odd[:ODD_FACTS]]},
    )


def make_overview(cells: Sequence[Cell]) -> tuple[Matrix, dict[str, object]]:
    """Return the matrix of all cells, and its values for summary.json."""
    begin, words = begin_of(cells), Counter(one.verdict for one in cells)
    matrix = Matrix(cells, begin.sentence if begin else "", begin.cell.key if begin else None)
    return matrix, {"shards": dict(words), "begins": begin.facts() if begin else None}


def _pages(cells: Sequence[Cell], numbers: Sequence[int], made: Pages, shown: Shown) -> Iterator[tuple[str, Piece]]:
    """Yield the pages, each with links to its neighbours: the same rank of other steps, and other ranks of its step."""
    at = {cells[number].key: number for number in numbers}
    within = {number: PageContext(cells[number].where, _neighbours(cells[number], at, cells)) for number in numbers}
    return ((f"shards/{cells[number].name}.html", piece) for number, piece in made(within, shown))


def _neighbours(cell: Cell, at: Mapping[tuple[int, int], int], cells: Sequence[Cell]) -> list[tuple[str, str]]:
    found = []
    for axis in (0, 1):
        line = sorted(key for key in at if key[1 - axis] == cell.key[1 - axis])
        place = line.index(cell.key)
        for key in (*line[max(0, place - 1) : place], *line[place + 1 : place + 2]):
            other = cells[at[key]]
            found.append((other.where, f"{other.name}.html"))
    return found


def _with_coordinates(cells: Iterable[Cell], joints: Sequence[RankDigest]) -> Iterator[Cell]:
    """Yield the cells with their coordinates in the parallel layout, as far as these can be derived."""
    steps: dict[Optional[int], list[RankDigest]] = defaultdict(list)
    for one in joints:
        steps[one.step].append(one)
    known = {(step, rank): found for step, ranks in steps.items() for rank, found in coordinates(ranks).items()}
    for cell in cells:
        found = known.get((cell.step, cell.rank or 0), Coordinates())
        yield cell._replace(stage=found.stage, tensor_rank=found.tensor_rank)


def _section(answer: Answer, parts: Sequence[RankSummary], matrix: Matrix) -> Section:
    """Return one section for all steps and ranks, in the form of the section of one."""
    first, passed = (merge_suspects(parts, at, matrix.pages) for at in (0, 1))
    earliest = min((one.section for one in parts), key=lambda one: one.place)
    agreement = Agreement.sum([one.agreement for one in parts])
    listings = [(one.section.where, listing) for one in parts for listing in one.section.listings]
    section = Section(
        where="",
        sides=answer.sides,
        aligned=answer.aligned,
        warnings=[words for one in answer.sections for words in one.warnings],
        suspects=Suspects(first, passed),
        unlisted=_omitted_counts(parts, bool(first)),
    )
    if first or passed:
        chosen = Suspects(first, passed) if first else Suspects(passed)
        words = answer.passed_words if first else ""
        return section._replace(title=earliest.title, suspects=chosen, passed_words=words)
    if listings:
        lines = [f"{where}: {words}" for where, one in listings for words in one.lines]
        more = sum(one.more for _, one in listings)
        title = f"{count_of(len(lines) + more, 'tensor')} diverged, but their operators could not be evaluated:"
        return section._replace(listings=[Listing(title, lines, "tensors.csv", more)])
    if agreement.tensors:
        return section._replace(agreeing=agreement.tensors, lines=[agreement.line()])
    return section._replace(lines=earliest.lines)


def _omitted_counts(parts: Sequence[RankSummary], several: bool) -> tuple[int, int]:
    """Return the numbers of suspects and of propagating operators that only the tables contain. A part without suspects
    lists its propagating operators first; with `several` kinds, they are counted as propagating."""
    suspects = passed = 0
    for one in parts:
        first, rest = one.section.unlisted
        alone = several and not _of_kind(one.section.suspects, 0)
        suspects, passed = suspects + (0 if alone else first), passed + rest + (first if alone else 0)
    return suspects, passed


def _nothing(section: Section) -> list[str]:
    """Return the lines for a section without suspects."""
    listed = [words for one in section.listings for words in (one.title, *one.lines)]
    return [*(line.head + line.rest for line in section.lines), *listed]


def merge_suspects(parts: Sequence[RankSummary], at: int, pages: Sequence[str]) -> list[Suspect]:
    """Merge the suspects of all parts, or with `at` 1 the propagating operators. Findings of one operator and slot with
    the same cause, or in later steps, become one, with the first place and a list of the other steps and ranks."""
    written = {*pages}
    every = [(suspect, one.cell) for one in parts for suspect in _of_kind(one.section.suspects, at) if one.cell]
    places: defaultdict[tuple[str, str], list[list[tuple[Suspect, Cell]]]] = defaultdict(list)
    for suspect, cell in sorted(every, key=lambda one: one[0].place):
        of_slot = places[suspect.op, suspect.slot]
        alike = (same for same in of_slot if same[0][0].cause == suspect.cause or same[0][1].key[0] < cell.key[0])
        joined = next(alike, None)
        if joined is None:
            of_slot.append([(suspect, cell)])
        else:
            joined.append((suspect, cell))
    found = []
    merged = sorted((same for of_slot in places.values() for same in of_slot), key=lambda same: same[0][0].place)
    for (first, cell), *others in merged:
        page = f"shards/{cell.name}.html" if cell.name in written else None
        found.append(first._replace(where=cell.where, also=_places([one for _, one in others]), page=page))
    return found


def _of_kind(suspects: Suspects, at: int) -> Sequence[Suspect]:
    """Return the suspects or the propagating operators of a part. A part that has only propagating operators lists them
    as suspects."""
    passes = bool(suspects.first) and suspects.first[0].cause == Cause.PROPAGATED.value
    both = ((), suspects.first) if passes else suspects
    return both[at]


def _places(cells: Sequence[Cell]) -> str:
    """ "at step 0 ranks 1-7, steps 1-3 ranks 0-7"."""
    steps: dict[int, list[int]] = defaultdict(list)
    for step, rank in sorted(one.key for one in cells):
        steps[step].append(rank)
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for step, group in steps.items():
        alike[tuple(group)].append(step)
    numbered = any(one.rank is not None for one in cells)
    places = [f"{numbers('step', group)} {numbers('rank', which) if numbered else ''}".strip()
            for which, group in alike.items()]  # fmt: skip
    more = [f"{len(places) - SETS} more"] if len(places) > SETS else []
    return f"at {', '.join([*places[:SETS], *more])}" if places else ""


def pages_to_write(cells: Sequence[Cell]) -> list[int]:
    """Return the indices of cells that get a page: all, or, if there are too many, cells that do not agree, by place,
    then further cells up to PAGES."""
    first = {one.name: at for at, one in reversed([*enumerate(cells)])}
    if len(cells) <= PAGES:
        return sorted(first.values())
    differing = [at for at in first.values() if cells[at].verdict != "AGREES"]
    differing.sort(key=lambda at: (cells[at].first is None, _cell_priority(cells[at]), cells[at].key))
    others = sorted({*first.values()} - {*differing})
    return [*differing[:MOST_PAGES], *others[: max(0, PAGES - len(differing))]]


def _cell_priority(cell: Cell) -> int:
    return cell.first.place if cell.first is not None else 0


def missing_pages(cells: Sequence[Cell], pages: Sequence[int]) -> str:
    """Describe the steps and ranks without a page, and the reason; "" if all have one."""
    without = [cells[at].verdict == "AGREES" for at in {*range(len(cells))} - {*pages}]
    agree, others = sum(without), len(without) - sum(without)
    kinds = [(agree, "that agree"), (others, f"after the first {MOST_PAGES} that do not agree")]
    words = " and ".join(f"{count:,} {what}" for count, what in kinds if count)
    return f"of {len(cells):,}, {words} have no page (compare them separately with --step and --rank)" if words else ""
