"""How every result is shown, by the options that say how: the screen, the files, the exit status."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Callable, NamedTuple, Optional

import click

from npucmp.errors import UsageError
from npucmp.model import Result


class Output(NamedTuple):
    """The options about showing. `journal` is the folder in which finished measurements are kept, for commands that
    can resume."""

    folder: Optional[str]
    journal: Optional[str]
    quiet: bool
    progress: bool
    metrics: "list[str]"
    screen: "dict[str, Any]"  # what the terminal is to show


def carry_out(context: click.Context, given: "dict[str, Any]", work: "Callable[..., Result]") -> None:
    """Runs a workflow with what is left of the options, shows its result, and exits with its status."""
    from npucmp.commands.progress import bar

    output = _output(given)
    if output.journal:
        given["journal"] = output.journal
    with bar(output.progress) as progress:
        result = work(**given, progress=progress)
    _show(replace(result, argv=tuple(sys.argv)), output)
    context.exit(result.exit_status)


def _output(given: "dict[str, Any]") -> Output:
    """The options about showing, taken out of all that were given."""
    folder, quiet, progress = (given.pop(name) for name in ("output", "quiet", "progress"))
    if given.get("resume") and not folder:
        raise UsageError("--resume needs -o DIR, the folder of the interrupted run")
    given["format"] = given.pop("format_")
    return Output(
        folder=folder,
        journal=folder if "resume" in given else None,
        quiet=quiet,
        progress=not quiet and _is_terminal(sys.stderr) if progress is None else progress,
        metrics=_columns(given.pop("metrics", None)),
        screen={name: given.pop(name) for name in ("top", "verbose")},
    )


def _columns(names: Optional[str]) -> "list[str]":
    """The columns that --metrics asks for, in the order of the table."""
    if not names:
        return []
    import difflib

    from npucmp.measure.metrics import METRICS

    known = [metric.name for metric in METRICS]
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in known:
            raise UsageError(f"no metric {name!r}", difflib.get_close_matches(name, known) or known)
    return [metric.name for metric in METRICS if metric.name in asked and not metric.always]


def _show(result: Result, output: Output) -> None:
    from npucmp.report import answer_of, terminal, write

    answer = answer_of(result, output.metrics)
    files = write(answer, output.folder) if output.folder else []
    if output.journal and not result.partial:
        from npucmp.measure import journal

        journal.remove(output.journal)  # its measurements are in the report now
    if not output.quiet:
        paint = terminal.colours(_is_terminal(sys.stdout))
        click.echo(terminal.render(answer, files=files, paint=paint, **output.screen), nl=False, color=True)


def _is_terminal(stream: Any) -> bool:
    """Whether somebody looks at it; a stream that was closed before the start is None."""
    return stream is not None and bool(stream.isatty())
