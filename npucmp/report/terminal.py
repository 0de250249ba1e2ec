"""What the screen shows: what was compared, how it was aligned, the answer, where the files are."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Iterator, Optional, Sequence

from npucmp.report.answer import Answer, Line, Section, Suspect
from npucmp.report.sanitise import visible
from npucmp.report.words import count_of, rate_of

NOTES = 6  # of one kind, before "and n more"
STEPS = 8  # of the way from one birth
INDENT = " " * 17
Paint = Callable[[str, str], str]  # (text, what it is) → text, coloured or not
COLOURS = {
    "BORN": "1;31", "GUILTY": "1;31", "GAP": "1;31", "WORSENED": "1;33", "SUSPECT": "33", "UNKNOWN": "33", "title": "1",
    "error": "1;31", "warning": "1;33", "hint": "33", "bad": "1;31", "good": "1;32", "open": "1;33",
}  # fmt: skip


def render(
    answer: Answer, top: int = 10, files: Sequence[Path] = (), paint: Optional[Paint] = None, verbose: bool = False
) -> str:
    """The whole screen as text; every word from a dump has its invisible characters shown.

    verbose also lists the operators that pass the error on, the whole way of every birth, and every note.
    """
    screen = _Screen(answer, paint or (lambda text, _: text), verbose)
    lines = [*screen.sections(top), *screen.below(str(files[0].parent) if files else "")]
    if files:
        lines.append("  ".join(visible(str(file)) for file in files))
    return "\n".join(lines) + "\n"


class _Screen:
    def __init__(self, answer: Answer, paint: Paint, verbose: bool) -> None:
        self.answer = answer
        self.paint = paint
        self.verbose = verbose

    def sections(self, top: int) -> Iterator[str]:
        """Those of which there is more to say than that all agrees, at least one; the others in one line."""
        full = [one for one in self.answer.sections if self.verbose or not one.agreeing]
        agreeing = [one for one in self.answer.sections if not self.verbose and one.agreeing]
        full, agreeing = full or agreeing[:1], agreeing if full else agreeing[1:]
        left = top  # suspects that may still be shown
        for one in full:
            if one is not full[0] and left <= 0:
                rows = sum(map(len, one.suspects))
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
            yield visible(one.aligned)
        yield ""
        for words in one.warnings:
            yield self.line(Line(words[:1].upper() + words[1:], "title"))
            yield ""
        body = [*self.body(one, top)]
        yield from [*body, ""] if body else []

    def body(self, one: Section, top: int) -> Iterator[str]:
        if one.title:
            yield self.line(Line(one.title, "title"))
        first, passed = one.suspects
        for suspect in first[:top]:
            yield from self.suspect(suspect)
        if len(first) > top:
            yield f"     … and {len(first) - top} more in {self.answer.places}"
        for suspect in passed if self.verbose else ():
            yield from self.suspect(suspect)
        if passed and not self.verbose:
            yield f"     {passed[0].word}  {visible(one.passed_words)}"
        yield from map(self.line, one.lines)
        yield from (f"     {self.line(line)}" for line in one.after)
        for listing in one.listings:
            yield self.line(Line(listing.title, "title"))
            yield from (f"     {visible(words)}" for words in listing.lines[:top])
            if len(listing.lines) > top:
                yield f"     … and {len(listing.lines) - top} more in {listing.rest}"

    def suspect(self, one: Suspect) -> Iterator[str]:
        aside = f"   {one.aside}" if one.aside else ""
        name = "  ".join(filter(None, map(visible, (one.rule, one.op, one.slot))))
        yield f"{one.place:3}  {self.paint(f'{one.word:10}', one.cause)}  {name}{aside}"
        if one.golden:
            yield f"{INDENT}golden: {visible(one.golden)}"
        for evidence in one.evidence:
            yield f"{INDENT}{evidence.sentence(visible)}"
        if one.line:
            yield f"{INDENT}{visible(one.line)}"
        way = one.way()
        for step in way if self.verbose else way[:STEPS]:
            yield f"     {'  ' * step.depth}{step.word:10}  {visible(step.words)}"
        if len(way) > STEPS and not self.verbose:
            yield f"       … and {count_of(len(way) - STEPS, 'operator')} more on its way"

    def below(self, folder: str) -> Iterator[str]:
        """What stands under all sections, the verdict last."""
        answer = self.answer
        yield from map(visible, answer.left_out)
        for kind, lines, rest in (*answer.notes, answer.unreadable):
            most = len(lines) if self.verbose else NOTES
            yield from (f"{kind}: {visible(words)}" for words in lines[:most])
            if len(lines) > most:
                yield f"{kind}: and {len(lines) - most} more in {rest}"
        yield from map(visible, answer.remarks(folder))
        yield self.line(Line(answer.word, answer.tone, f": {answer.sentence}.   {rate_of(answer.result)}"))

    def line(self, one: Line) -> str:
        return self.paint(visible(one.head), one.tone) + visible(one.rest)


def colours(enabled: bool) -> Paint:
    """A painter, of colours if the terminal is to show them."""
    if not enabled:
        return lambda text, _: text
    return lambda text, what: f"\x1b[{COLOURS[what]}m{text}\x1b[0m" if what in COLOURS else text
