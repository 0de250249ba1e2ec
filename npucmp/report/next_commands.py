"""The commands that go on from an outcome, with the reason for each, as data: `next` in summary.json.

A command is one line for a POSIX shell. An outcome without open questions has no next command.
"""

from __future__ import annotations

from shlex import quote
from typing import Iterator

from npucmp.report.answer import Answer, NextCommand, Suspect

OPEN_CAUSES = ("SUSPECT", "UNKNOWN", "GAP")  # more tensors of the dump would decide these


def next_commands(answer: Answer) -> list[NextCommand]:
    """Return the commands, the most useful first."""
    if answer.commands is not None:
        return [*answer.commands()]
    make =
