"""Show an Answer on the screen: the dumps, their alignment, the suspects, the notes, and the paths of the files.

Lines are wrapped to the width of a terminal; continuation lines are indented below their text.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, Optional, Sequence

from npucmp.model.cause import UNKNOWN_INPUTS
from npucmp.report.answer import Answer, Line, Listing, Section, Suspect
from npucmp.report.phrases import count_of, numbers, rate_of
from npucmp.report.sanitise import visible

if TYPE_CHECKING:
    from npucmp.report.rank_cell import Matrix

NOTES = 6  # of one kind, before "and n more"
SAME = 3  # suspects that must share a sentence for it to be printed once
STEPS = 8  # printed operators of the path from one root cause
INDENT = " " * 17
_PART = re.compile(r"(-\d+)+(?=\.)")  # the step and rank in the name of a part of a table
Paint = Callable[[str, str], str]  # (text, its kind) → text, coloured or not
COLOURS = {
    "BORN": "1;31", "GUILTY": "1;31", "GAP": "1;31", "WORSENED": "1;33", "SUSPECT": "33", "UNKNOWN": "33", "title": "1",
    "error": "1;31", "warning": "1;33", "hint": "33", "bad": "1;31", "good": "1;32", "open": "1;33",
}  # fmt: skip


def render(
    answer: Answer,
    top: int = 10,
    files: Sequence[Path] = (),
    paint: Optional[Paint] = None,
    verbose: bool = False,
    width: int = 80,
) -> str:
    """Return the whole screen as text; invisible characters of words from dumps are escaped.

    verbose  also list the operators that propagate the error, the whole path of every root cause, and every note
    width    the width of the picture of steps and ranks
    """
    screen = _Screen(answer, paint or (lambda text, _: text), verbose, width)
    lines = [*screen.sections(top), *screen.below(str(files[0].parent) if files else "")]
    if files:
        lines.append(visible("  ".join(_file_lines(files))))
    return "\n".join(lines) + "\n"


def _file_lines(files: Sequence[Path]) -> Iterator[str]:
    """Yield the page to open, as a path for a shell, and the other files of its folder. Parts of a table are one entry,
    and so are folders of pages."""
    folder = files[0].parent
    page = next((file for file in files if file.parent == folder and file.suffix == ".html"), None)
    parts = Counter(_PART.sub("-*", file.name) for file in files if file.parent == folder and file != page)
    names = [name if count == 1 else f"{name} ({count_of(count, 'file')})" for name, count in parts.items()]
    below = Counter(file.parent for file in files if file.parent != folder)
    names += [f"{place.relative_to(folder)}/ ({count_of(count, 'page')})" for place, count in below.items()]
    if page is not None:
        yield f"page: {shlex.quote(str(page))}"
    if names:
        yield f"files in {shlex.quote(str(folder))}: {', '.join(names)}"


def _common(suspects: Sequence[Suspect]) -> dict[str, list[int]]:
    """Return sentences on unknown inputs that at least SAME suspects share word for word, with the places of the
    suspects."""
    found: dict[str, list[int]] = {}
    for one in suspects:
        for reason in one.evidence:
            if reason.kind == UNKNOWN_INPUTS:
                found.setdefault(reason.sentence(visible), []).append(one.place)
    return {sentence: places for sentence, places in found.items() if len(places) >= SAME}


def _omitted_words(one: Listing, most: int, written: bool) -> str:
    """Return the number of lines, or of rules, that the screen omits, and the place that lists them. If no folder was
    written, the place is named with the option that writes it."""
    lines = len(one.lines[most:])
    words = f"{lines + one.more} more"
    if one.rules:
        words = f"{count_of(sum(one.rules[most:]), 'more rule')} for {count_of(lines, 'other reason')}"
    place = one.rest if written else f"{one.rest} with -o DIR"
    return f"{words} in {place}" if one.more else f"{words}: -v lists them, and {place}"


class _Screen:
    def __init__(self, answer: Answer, paint: Paint, verbose: bool, width: int) -> None:
        self.answer = answer
        self.width = width
        self.paint = paint
        self.verbose = verbose

    def sections(self, top: int) -> Iterator[str]:
        """Yield the sections, at least one in full. Other sections in which all tensors agree share one line."""
        yield from map(visible, self.answer.head)
        full = [one for one in self.answer.sections if self.verbose or not one.agreeing]
        agreeing = [one for one in self.answer.sections if not self.verbose and one.agreeing]
        full, agreeing = full or agreeing[:1], agreeing if full else agreeing[1:]
        left = top  # suspects that may still be shown
        for one in full:
            if one is not full[0] and left <= 0:
                rows = sum(map(len, one.suspects)) + sum(one.unlisted)
                yield f"{one.where}: {count_of(rows, 'row')} more in {self.answer.places}"
                continue
            yield from self.section(one, max(1, left))
            left -= len(one.suspects.first)
        if agreeing:
            places = ", ".join(one.where for one in agreeing[:NOTES]) + (" …" if len(agreeing) > NOTES else "")
            tensors = count_of(sum(one.agreeing for one in agreeing), "tensor")
            yield self.line(agreeing[0].lines[0]._replace(rest=f" in {places}: {tensors} agree"))
            yield ""

    def section(self, one: Section, top: int) -> Iterator[str]:
        for side in one.sides:
            yield f"{side.name:6}  {visible(side.path)}  {visible(side.what)}"
        if one.aligned:
            yield from map(visible, one.aligned.split("\n"))
        yield ""
        for words in one.warnings:
            yield self.line(Line(words[:1].upper() + words[1:], "title"))
            yield ""
        if self.answer.matrix is not None:
            yield from self.matrix(self.answer.matrix)
        body = [*self.body(one, top)]
        yield from [*body, ""] if body else []

    def matrix(self, one: Matrix) -> Iterator[str]:
        """Yield the origin of the error in one sentence, then a character for each cell of steps × ranks."""
        if one.sentence:
            yield self.line(Line(f"The error {one.sentence}", "title"))
        yield from map(visible, one.odd)
        from npucmp.report.rank_picture import fold_matrix, folded_words

        wide = max((len(label) for label, _ in fold_matrix(one.cells, one.first, 1).lines), default=0)
        picture = fold_matrix(one.cells, one.first, max(8, self.width - wide - 3))
        yield f"{'':{wide}}  {numbers(picture.name, [at for states in picture.numbers for at in states])}"
        for label, spots in picture.lines:
            states = [(state, len([*same])) for state, same in groupby(spot.state for spot in spots)]
            yield f"{label:{wide}}  " + "".join(self.paint(state.sign * count, state.tone) for state, count in states)
        legend = [f"{self.paint(state.sign, state.tone)} {state.words}" for state in picture.legend()]
        yield " | ".join([*legend, *filter(None, [folded_words(picture)])])
        yield ""

    def body(self, one: Section, top: int) -> Iterator[str]:
        if one.title:
            yield self.line(Line(one.title, "title"))
        first, passed = one.suspects
        common = {} if self.verbose else _common(first[:top])
        for suspect in first[:top]:
            yield from self.suspect(suspect, [*common])
        for sentence, places in common.items():
            yield f"     {numbers('place', places)}: {sentence}"
        more = len(first[top:]) + one.unlisted[0]
        if more:
            yield f"     … and {more} more in {self.answer.places}"
        for suspect in passed if self.verbose else ():
            yield from self.suspect(suspect)
        if self.verbose and one.unlisted[1]:
            yield f"     … and {one.unlisted[1]} more that propagate it in {self.answer.places}"
        if passed and not self.verbose:
            yield f"     {passed[0].word}  {visible(one.passed_words)}"
        yield from map(self.line, one.lines)
        yield from (f"     {self.line(line)}" for line in one.after)
        for listing in one.listings:
            yield self.line(Line(listing.title, "title"))
            yield from (f"     {visible(words)}" for words in listing.lines[:top])
            more = len(listing.lines[top:]) + listing.more
            if more:
                yield f"     … and {more} more in {listing.rest}"

    def suspect(self, one: Suspect, common: Sequence[str] = ()) -> Iterator[str]:
        """Yield the lines of a suspect, without the sentences in `common`, which are printed once for several
        suspects."""
        where = one.where if self.answer.matrix else ""
        aside = "".join(f"   {words}" for words in (one.aside, where) if words)
        name = "  ".join(filter(None, map(visible, (one.rule, one.op, one.slot))))
        yield f"{one.place:3}  {self.paint(f'{one.word:10}', one.cause)}  {name}{aside}"
        if one.also:
            yield f"{INDENT}also {one.also}"
        if one.golden:
            yield f"{INDENT}golden: {visible(one.golden)}"
        for evidence in one.evidence:
            if (sentence := evidence.sentence(visible)) not in common:
                yield f"{INDENT}{sentence}"
        if one.line:
            yield f"{INDENT}{visible(one.line)}"
        way = one.way()
        for step in way if self.verbose else way[:STEPS]:
            yield f"     {'  ' * step.depth}{step.word:10}  {visible(step.words)}"
        if len(way) > STEPS and not self.verbose:
            yield f"       … and {count_of(len(way) - STEPS, 'more operator')} downstream"

    def below(self, folder: str) -> Iterator[str]:
        """Yield the lines below all sections, the verdict last."""
        answer = self.answer
        yield from map(visible, answer.left_out)
        for one in (*answer.notes, answer.unreadable):
            most = len(one.lines) if self.verbose else NOTES
            yield from (f"{one.title}: {visible(words)}" for words in one.lines[:most])
            if len(one.lines) > most or one.more:
                yield f"{one.title}: {_omitted_words(one, most, bool(folder))}"
        yield from map(visible, answer.remarks(folder))
        yield self.line(Line(answer.word, answer.tone, f": {answer.sentence}.   {rate_of(answer.result)}"))

    def line(self, one: Line) -> str:
        return self.paint(visible(one.head), one.tone) + visible(one.rest)


def colours(enabled: bool) -> Paint:
    """Return a function that colours text, or one that leaves it unchanged if colours are disabled."""
    if not enabled:
        return lambda text, _: text
    return lambda text, what: f"\x1b[{COLOURS[what]}m{text}\x1b[0m" if what in COLOURS else text


_PIECE = (  # blanks, then a word with the colours in it, or a path in quotes
    r"( *)('[^'\x1b]*/[^'\x1b]*'[^ \x1b]*|(?:\x1b\[[0-9;]*m|[^ \x1b])+)"
)
_CHINESE_PIECE = (  # the same, and a Chinese character with the punctuation behind it
    "( *)('[^'\x1b]*/[^'\x1b]*'[^ \x1b]*|(?:\x1b\\[[0-9;]*m)*[\u3400-\u9fff（《「][，。：；！？、）》」%]*|"
    "(?:\x1b\\[[0-9;]*m|[^ \x1b\u3400-\u9fff（《「])+)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HEAD = re.compile(r"( *(?:\d+  )?)(\S+ {2,})?")  # an indent, a place, and one word in a column of its own
LEAST = 40  # columns: a narrower terminal wraps by itself


def wrap_text(text: str, columns: int, is_chinese: bool = False) -> str:
    """Return the text in lines of at most so many columns, broken between words, and in Chinese between characters.
    Longer words, such as paths, are not broken. For 0, or fewer columns than LEAST, the text is unchanged."""
    if columns < LEAST:
        return text
    pieces = _CHINESE_PIECE if is_chinese else _PIECE
    return "\n".join(_break_line(line, columns, pieces) for line in text.split("\n"))


def _break_line(line: str, columns: int, pieces: str) -> str:
    if columns_of(line) <= columns:
        return line
    found = _HEAD.match(_COLOUR.sub("", line))
    hang = columns_of(found[0]) if found else 0
    hang = hang if 0 < hang <= columns // 2 else 2
    done, at = [""], 0
    for blanks, word in re.findall(pieces, line):
        size = columns_of(word)
        if done[-1].strip() and at + len(blanks) + size > columns >= hang + size:
            done.append(" " * hang)
            at, blanks = hang, ""
        done[-1] += blanks + word
        at += len(blanks) + size
    return "\n".join(done)


def columns_of(text: str) -> int:
    """Return the width of a text on the screen: East Asian wide characters take two columns, colours and combining
    marks none."""
    plain = _COLOUR.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in plain
    )
