"""Write JSON Lines: one object per line, for programs that read while npucmp writes and for `grep`.

kinds, in this order: `dump` (each side), `note`, `suspect` (a finding), `next` (a command to run), `verdict` (the last
line). docs/schema/json_lines.schema.json describes them.
"""

from __future__ import annotations

import json
from typing import Iterator

from npucmp.report.answer import Answer, Row, Suspect
from npucmp.report.json import strict
from npucmp.report.next_commands import next_commands
from npucmp.version import SCHEMA_VERSION


def content(answer: Answer) -> bytes:
    """Return the lines."""
    return "".join(json.dumps(strict(row), ensure_ascii=True) + "\n" for row in _rows(answer)).encode()


def _rows(answer: Answer) -> Iterator[Row]:
    for section in answer.sections:
        for side in answer.sides or section.sides:
            yield {"kind": "dump", "side": side.name, "path": side.path, "what": side.what}
        if answer.sides:
            break
    for listing in (*answer.notes, answer.unreadable):
        for words in listing.lines:
            yield {"kind": "note", "title": listing.title, "text": words}
    for one in answer.suspects.first:
        yield suspect_row(one)
    for command in next_commands(answer):
        yield {"kind": "next", "command": command.command, "because": command.because}
    yield {
        "kind": "verdict",
        "schema_version": SCHEMA_VERSION,
        "command": answer.result.command,
        "outcome": answer.word,
        "sentence": answer.sentence,
        "exit_status": answer.result.exit_status,
    }


def suspect_row(one: Suspect) -> Row:
    """Return the values of a suspect."""
    return {
        "kind": "suspect", "place": one.place, "cause": one.cause, "op": one.op, "op_type": one.op_type,
        "slot": one.slot, "where": one.where, "rule": one.rule, "golden": one.golden,
        "evidence": [evidence.sentence() for evidence in one.evidence], "source": one.line, "path": one.path,
        "at": dict(one.at), "known": one.known, "excused": one.excused,
    }  # fmt: skip
