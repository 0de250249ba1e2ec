"""npucmp compare."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Optional

import click

from npucmp.commands.options import common

HELP = """Which operator diverged first, and did it cause it?

TARGET is the run under test, GOLDEN the reference; each is a dump's root, a step or rank folder, a dump.json, or a
folder of .npy files.

\b
  npucmp compare npu_dump gpu_dump -o report
  npucmp compare npu_dump/step0 gpu_dump/step0 --include '*layer_norm*'

\b
Exit status: 0 nothing diverged · 1 something did · 2 could not decide (bad usage, nothing in common, unreadable
tensors, or statistics that prove nothing).
"""


@click.command(help=HELP)
@click.argument("target")
@click.argument("golden")
@click.option(
    "--noise", metavar="FILE", help="noise.csv of rerun-diff: what differs no more than reruns do is no fault."
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with an interrupted comparison: the same command, the same -o DIR. What it measured is not read again.",
)
@common
@click.pass_context
def compare(context: click.Context, /, target: str, golden: str, **given: Any) -> None:
    from npucmp import journal
    from npucmp.commands.progress import bar
    from npucmp.errors import UsageError
    from npucmp.recipes.compare import Options
    from npucmp.recipes.compare import compare as run

    columns = metric_columns(given.pop("metrics"))
    output, quiet, show = (given.pop(name) for name in ("output", "quiet", "progress"))
    screen = {name: given.pop(name) for name in ("top", "verbose")}
    given["format"] = given.pop("format_")
    if given["resume"] and not output:
        raise UsageError("--resume needs -o DIR, the folder of the interrupted run")
    with bar(show if show is not None else not quiet and sys.stderr.isatty()) as progress:
        report = run(target, golden, Options(**given, journal=output, progress=progress))
    report = replace(report, argv=tuple(sys.argv))
    status = finish(report, output, quiet, columns, screen)
    if output and not report.partial:
        journal.remove(output)
    context.exit(status)


def finish(report: Any, output: Optional[str], quiet: bool, columns: "list[str]", screen: "dict[str, Any]") -> int:
    """Writes and shows a report; returns its exit status."""
    from npucmp.report import rerun_terminal, terminal, write_reports
    from npucmp.report.status import exit_status

    files = write_reports(report, output, columns) if output else []
    if not quiet:
        paint = terminal.colours(sys.stdout.isatty())
        presenter = rerun_terminal if report.command == "rerun-diff" else terminal
        click.echo(presenter.render(report, files=files, paint=paint, **screen), nl=False, color=True)
    return exit_status(report)


def metric_columns(names: Optional[str]) -> "list[str]":
    """The columns that --metrics asks for, in the order of the table."""
    if not names:
        return []
    import difflib

    from npucmp.errors import UsageError
    from npucmp.metrics import METRICS

    known = [metric.name for metric in METRICS]
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in known:
            raise UsageError(f"no metric {name!r}", difflib.get_close_matches(name, known) or known)
    return [metric.name for metric in METRICS if metric.name in asked and not metric.always]
