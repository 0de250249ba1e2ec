"""The reference page of the options: `python -m npucmp.commands.reference > docs/options.md`."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any, Iterator, Optional

import click

from npucmp.workflows import option_fields
from npucmp.workflows.option_fields import KINDS, Spelling, meaning, spelling_of

HEAD = """# Options

This page is generated from `npucmp/workflows/option_fields.py`, which declares every option once: its spelling on the
command line, its keyword argument in Python, and its meaning. `npucmp COMMAND --help` lists the options of one command.
"""


def page() -> str:
    """Return the page in Markdown: a table for each dataclass of options."""
    return "\n".join([HEAD, *(line for kind in KINDS for line in _table(kind))])


def _table(kind: Any) -> Iterator[str]:
    """Yield the lines of a dataclass, without the options that it inherits."""
    inherited = {one.name for parent in kind.__mro__[1:-1] for one in fields(parent)}
    title, _, more = " ".join(str(kind.__doc__).split()).partition(". ")
    parents = [str(parent.__doc__).partition(".")[0] for parent in kind.__bases__ if parent is not object]
    yield f"## {title.rstrip('.')}"
    yield ""
    if more or parents:
        yield " ".join(filter(None, [more, *(f"Further: {words[0].lower()}{words[1:]}." for words in parents)]))
        yield ""
    yield "| Command line | Python | Default | Meaning |"
    yield "|---|---|---|---|"
    for one in fields(kind):
        if one.name not in inherited:
            spelling = spelling_of(one)
            cells = _shell_text(one.name, spelling), _python(one.name, spelling), _default(one), meaning(one)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _shell_text(name: str, spelling: Optional[Spelling]) -> str:
    """Return the spelling in a shell."""
    if spelling is None:
        return ""
    flags = spelling.flags or tuple(spelling.values) or (option_fields.flag(name),)
    value = spelling.metavar or "|".join(spelling.choices)
    return ", ".join(f"`{flag} {value}`" if value else f"`{flag}`" for flag in flags)


def _python(name: str, spelling: Optional[Spelling]) -> str:
    """Return the spelling in Python."""
    words = name if spelling is None or not spelling.python else spelling.python
    return words if words == "–" else f"`{words}`"


def _default(one: Field[Any]) -> str:
    """Return the default as Python writes it; "" for None and empty values."""
    value = None if one.default is MISSING else one.default
    return f"`{value!r}`" if isinstance(value, (bool, int, float)) or (isinstance(value, str) and value) else ""


if __name__ == "__main__":
    click.echo(page(), nl=False)
