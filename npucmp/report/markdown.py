"""Write Markdown for a comment on a pull request or an issue: the verdict, the suspects, the notes.

Names are in code spans, and sentences are escaped, so that text of a dump is no markup, link or mention. Absolute paths
keep their last name only. Source: GitHub Flavored Markdown, 2.4 (backslash escapes), 6.9 (autolinks).
"""

from __future__ import annotations

import re
from typing import Iterator

from npucmp.report.answer import Answer, Suspect
from npucmp.report.next_commands import next_commands
from npucmp.report.phrases import count_of
from npucmp.report.sanitise import code, strip_folders, visible

MOST = 20  # suspects, and notes
_PUNCTUATION = re.compile(r"[\\`*_{}\[\]<>#|~&!$]")


def content(answer: Answer) -> bytes:
    """Return the text."""
    return "\n".join(_lines(answer)).encode("utf-8", "backslashreplace")


def error(command: str, message: str, status: int) -> str:
    """Return the text of a command that failed."""
    return f"**ERROR**: {_text(message)}\n"


def _lines(answer: Answer) -> Iterator[str]:
    yield f"**{answer.word}**: {_text(answer.sentence)}"
    yield ""
    first = answer.suspects.first
    if first:
        yield "| | cause | operator | evidence | source |"
        yield "|---|---|---|---|---|"
        yield from map(_row, first[:MOST])
        if len(first) > MOST:
            yield f"\n… and {count_of(len(first) - MOST, 'more suspect')}"
        yield ""
    notes = [f"{one.title}: {words}" for one in (*answer.notes, answer.unreadable) for words in one.lines]
    yield from (f"- {_text(words)}" for words in notes[:MOST])
    if len(notes) > MOST:
        yield f"- … and {count_of(len(notes) - MOST, 'more line')}"
    yield from (f"- next: {_code(one.command)} ({_text(one.because)})" for one in next_commands(answer))
    yield ""


def _row(one: Suspect) -> str:
    reasons = "; ".join(evidence.sentence() for evidence in one.evidence)
    name = " ".join(filter(None, (one.op, one.slot)))
    cells = str(one.place or ""), f"{_text(one.word)}{' (known)' if one.known else ''}", _code(name) if name else ""
    return f"| {' | '.join((*cells, _text(reasons), _code(one.line) if one.line else ''))} |"


def _text(words: str) -> str:
    """Return a sentence, which may contain text of a dump: nothing in it is markup."""
    shown = _PUNCTUATION.sub(lambda found: f"\\{found.group()}", strip_folders(visible(words)))
    return shown.replace("@", "&#64;").replace("://", "&#58;//").replace("www.", "www&#46;")


def _code(words: str) -> str:
    return code(strip_folders(visible(words))).replace("|", "\\|")
