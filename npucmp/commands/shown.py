"""How a result is shown, of all commands alike: what the options say of it, and the screen, files and exit status."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from typing import Any, Callable, NamedTuple, Optional, Sequence

import click

from npucmp.errors import UsageError

RESUMED = ("compare", "fusion-diff")  # commands that keep a journal
PRESENTERS = {"overflow": "overflow_terminal", "rerun-diff": "rerun_terminal"}  # on the screen, where not terminal.py


class Shown(NamedTuple):
    """The options that are about showing; `screen` are those of the presenter on the terminal."""

    output: Optional[str]
    quiet: bool
    progress: bool
    screen: "dict[str, Any]"

    def bar(self) -> "AbstractContextManager[Optional[Callable[[int, int], None]]]":
        """The progress bar, while a workflow works."""
        from npucmp.commands.progress import bar

        return bar(self.progress)


def taken(given: "dict[str, Any]") -> Shown:
    """The options about showing, taken out of all that were given; what is left is for the workflow."""
    output, quiet, progress = (given.pop(name) for name in ("output", "quiet", "progress"))
    if given.get("resume") and not output:
        raise UsageError("--resume needs -o DIR, the folder of the interrupted run")
    screen = {name: given.pop(name) for name in ("top", "verbose")}
    given["format"] = given.pop("format_")
    return Shown(output, quiet, not quiet and sys.stderr.isatty() if progress is None else progress, screen)


def finish(report: Any, shown: Shown, columns: Sequence[str] = ()) -> int:
    """Writes and shows a Report or an Overflow; returns its exit status."""
    from npucmp.report import terminal, write_reports
    from npucmp.report.status import exit_status, overflow_status

    report = replace(report, argv=tuple(sys.argv))
    files = write_reports(report, shown.output, columns) if shown.output else []
    if shown.output and report.command in RESUMED and not report.partial:
        from npucmp.measure import journal

        journal.remove(shown.output)  # its measurements are in the report now
    if not shown.quiet:
        paint = terminal.colours(sys.stdout.isatty())
        presenter = import_module(f"npucmp.report.{PRESENTERS.get(report.command, 'terminal')}")
        text = presenter.render(report, files=files, paint=paint, **shown.screen)
        click.echo(text, nl=False, color=True)
    return overflow_status(report) if report.command == "overflow" else exit_status(report)
