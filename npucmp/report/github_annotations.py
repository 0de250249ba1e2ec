"""Write workflow commands of GitHub Actions, which a pull request shows at the source line: one for each suspect, and
one for the verdict.

Source: GitHub, "Workflow commands for GitHub Actions": `::error file=F,line=N,title=T::message`, with %, CR and LF
percent-encoded, and in properties also colon and comma. A host shows at most 10 annotations of a level per step.
"""

from __future__ import annotations

from typing import Iterator

from npucmp.report.answer import Answer, Suspect
from npucmp.report.sanitise import visible
from npucmp.report.source_place import source_place

MOST = 10  # suspects: a step shows no more


def content(answer: Answer) -> bytes:
    """Return the lines."""
    return "".join(f"{line}\n" for line in _lines(answer)).encode("utf-8")


def error(command: str, message: str, status: int) -> str:
    """Return the line of a command that failed."""
    return _command("error", f"npucmp {command}", message) + "\n"


def _lines(answer: Answer) -> Iterator[str]:
    failing = answer.result.exit_status == 1
    for one in answer.suspects.first[:MOST]:
        reasons = "; ".join(evidence.sentence() for evidence in one.evidence)
        level = "notice" if one.known or one.excused else "error" if failing else "warning"
        yield _command(level, f"{one.word} {one.op} {one.slot}".strip(), reasons or one.word, one)
    level = {0: "notice", 1: "error"}.get(answer.result.exit_status, "error")
    yield _command(level, f"npucmp {answer.result.command}", f"{answer.word}: {answer.sentence}")


def _command(level: str, title: str, message: str, one: Suspect | None = None) -> str:
    place = source_place(one) if one is not None else None
    where = {"file": visible(place.path), "line": str(place.line)} if place is not None else {}
    properties = ",".join(f"{key}={_property(value)}" for key, value in {**where, "title": visible(title)}.items())
    return f"::{level} {properties}::{_data(visible(message))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
