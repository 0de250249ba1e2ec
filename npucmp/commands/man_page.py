"""The manual page, from the help of all commands: `python -m npucmp.commands.man_page > docs/npucmp.1` makes it.

A wheel that is built with this file installs it into share/man/man1. The file is not kept in git.
Source of the layout: man-pages(7); of the macros: groff_man(7).
"""

from __future__ import annotations

import re
from pkgutil import resolve_name
from typing import Iterable, Iterator, Optional

import click

from npucmp.version import __version__

GROUP = "npucmp.cli:npucmp"  # to the right of this package; only the script loads it
PURPOSE = "find the operator in which an Ascend NPU run diverges from a reference run"
SUMMARY = (
    "npucmp compares the tensor dumps of two runs of one network, one on an Ascend NPU (target) and one on a reference "
    "(golden). It names the operator that diverged first, says whether that operator bears the error or only passes it "
    "on, and prints the evidence. It needs the dumps alone: no CANN, no torch, no NPU."
)
STATUS = (
    ("0", "All golden tensors are covered and agree; nothing was found."),
    ("1", "A tensor diverged, or a rule found something."),
    ("2", "npucmp cannot decide: a part of the golden was not compared, a dump cannot be read, or the usage is wrong."),
    ("130", "Interrupted."),
    ("143, 129", "Ended by SIGTERM, by SIGHUP; no report was written."),
)
VARIABLES = (
    (
        "NPUCMP_COMMAND_OPTION",
        "Default of an option, in capitals, with _ for -: NPUCMP_COMPARE_RTOL=1e-3, NPUCMP_FUSION_DIFF_JOBS=4. A "
        "repeatable option takes several words, separated by blanks. The command line comes first, then the "
        "environment, then the settings file.",
    ),
    ("NPUCMP_NO_CONFIG", "If it is 1, npucmp reads no settings file."),
    ("NPUCMP_KERNEL", "If it is numpy, npucmp measures with numpy instead of its C kernel."),
    ("NO_COLOR, FORCE_COLOR", "Without --color: no colours, or colours even if the output is no terminal."),
    ("TMPDIR", "Folder of temporary files."),
)
FILES = (
    (
        "npucmp.toml, pyproject.toml",
        "Defaults of options, the latter in the table [tool.npucmp]. npucmp looks in the working directory and, in a "
        "Git work tree, in the folders above it. A file in a dump is never read.",
    ),
)


def man_page(group: click.Group) -> str:
    """Return the page of a group of commands in roff, with ASCII characters only."""
    context = click.Context(group, info_name="npucmp")
    names = group.list_commands(context)
    commands = {name: command for name in names if (command := group.get_command(context, name)) is not None}
    lines = [
        f'.TH NPUCMP 1 "" "npucmp {__version__}" "User Commands"', ".nh",
        ".SH NAME", f"npucmp {chr(92)}- {_text(PURPOSE)}",
        ".SH SYNOPSIS", *_synopsis("npucmp", "[OPTIONS] COMMAND [ARGS]..."),
        ".SH DESCRIPTION", _text(SUMMARY),
        ".SH COMMANDS", *_items((name, _purpose(command)) for name, command in commands.items()),
        ".SH OPTIONS", ".SS npucmp", *_options(group),
    ]  # fmt: skip
    for name, command in commands.items():
        lines += [f".SS npucmp {_literal(name)}", *_synopsis(f"npucmp {name}", _arguments(command))]
        lines += [*_description(command), *_options(command)]
    lines += [".SH EXIT STATUS", *_items(STATUS), ".SH ENVIRONMENT", *_items(VARIABLES), ".SH FILES", *_items(FILES)]
    lines += [".SH EXAMPLES", *(line for one in commands.values() for line in _examples(one))]
    return "\n".join(lines) + "\n"


def _purpose(command: click.Command) -> str:
    """Return the first sentence of the help."""
    return next(text for _, text in _blocks(command)).partition(". ")[0].rstrip(".") + "."


def _synopsis(name: str, arguments: str) -> list[str]:
    return [".PP", f".B {_literal(name)}", _literal(arguments)]


def _arguments(command: click.Command) -> str:
    """Return the arguments of a command, as its usage line has them."""
    words = [one for one in command.params if isinstance(one, click.Argument)]
    return " ".join(["[OPTIONS]", *((one.metavar or _argument(one)) for one in words)])


def _argument(one: click.Argument) -> str:
    name = (one.name or "").upper() + ("..." if one.nargs == -1 else "")
    return name if one.required else f"[{name}]"


def _blocks(command: click.Command) -> Iterator[tuple[bool, str]]:
    """Yield the paragraphs of the help, and whether each keeps its lines."""
    for block in re.split(r"\n\s*\n", command.help or ""):
        if text := block.strip("\n"):
            yield text.startswith("\b"), text.lstrip("\b\n")


def _is_example(keeps_lines: bool, text: str) -> bool:
    return keeps_lines and text.lstrip().startswith("npucmp ")


def _description(command: click.Command) -> Iterator[str]:
    """Yield the help of a command without its examples."""
    for keeps_lines, text in _blocks(command):
        if _is_example(keeps_lines, text):
            continue
        yield ".PP"
        yield from _verbatim(text) if keeps_lines and "\n" in text else [_text(text)]


def _examples(command: click.Command) -> Iterator[str]:
    for keeps_lines, text in _blocks(command):
        if _is_example(keeps_lines, text):
            yield ".PP"
            yield from _verbatim(text)


def _verbatim(text: str) -> list[str]:
    return [".nf", *(_literal(line) for line in text.splitlines()), ".fi"]


def _options(command: click.Command) -> Iterator[str]:
    """Yield the options of a command in the order of their declaration."""
    for one in command.params:
        if isinstance(one, click.Option) and not one.hidden:
            yield from _items([(_spelling(one), _meaning(one))])


def _spelling(one: click.Option) -> str:
    flags = ", ".join(sorted(one.opts, key=len))
    flags = " / ".join([flags, *one.secondary_opts])
    value = _value(one)
    return f"{flags} {value}" if value else flags


def _value(one: click.Option) -> Optional[str]:
    """Return the name of the value of an option; None for a flag."""
    if one.is_flag:
        return None
    if one.metavar:
        return one.metavar
    if isinstance(one.type, click.Choice):
        return "|".join(map(str, one.type.choices))
    return "N" if isinstance(one.type, click.IntRange) else "NUMBER"


def _meaning(one: click.Option) -> str:
    words = one.help or ""
    return f"{words} Default: {one.default}." if one.show_default and one.default is not None else words


def _items(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a list: names in bold, each with its text."""
    for name, text in rows:
        yield ".TP"
        yield f".B {_literal(name)}"
        yield _text(text)


def _literal(text: str) -> str:
    """Return one line as roff prints it unchanged: a hyphen is a minus, which can be copied."""
    return _escaped(text).replace("-", r"\-")


def _text(text: str) -> str:
    """Return running text on one line."""
    words = " ".join(text.split())
    return re.sub(r"(?<!\w)-(?=[-\w])|(?<=-)-", r"\\-", _escaped(words))


def _escaped(text: str) -> str:
    """Return text without a request of roff: backslashes, quotes, a leading dot, and characters beyond ASCII."""
    found = text.replace("\\", r"\(rs").replace("'", r"\(aq").replace('"', r"\(dq").replace("`", r"\(ga")
    found = "".join(char if char.isascii() else f"\\[u{ord(char):04X}]" for char in found)
    return rf"\&{found}" if found.startswith(".") else found


if __name__ == "__main__":
    click.echo(man_page(resolve_name(GROUP)), nl=False)
