"""npucmp overflow."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click

from npucmp.commands.options import some

HELP = """Where NaN, Inf or saturation is born, how it spreads, and where it is masked.

DUMP is any dump, of values, of statistics, or of the device's own overflow records (Opdebug files). With --golden
each event is held against a run that is right: does it have the same, or would its values overflow in this type too?

\b
  npucmp overflow npu_dump -o report
  npucmp overflow npu_dump --headroom 2          what is within a factor of four of its type's limit
  npucmp overflow npu_dump --golden gpu_dump

\b
Exit status: 0 nothing overflowed · 1 something did · 2 could not decide (bad usage, unreadable tensors).
"""


@click.command(help=HELP)
@click.argument("dump")
@click.option("--golden", metavar="DUMP", help="A run that is right, to hold every event against.")
@click.option("--headroom", type=click.FloatRange(0), metavar="BITS", help="List tensors closer to their type's limit.")
@some("output", "include", "exclude", "graph", "step", "rank", "format", "jobs", "top", "progress", "verbose", "quiet")
@click.pass_context
def overflow(context: click.Context, /, dump: str, **given: Any) -> None:
    from npucmp.commands.progress import bar
    from npucmp.recipes.overflow import OverflowOptions
    from npucmp.recipes.overflow import overflow as run
    from npucmp.report import overflow_terminal, terminal, write_reports
    from npucmp.report.status import overflow_status

    output, quiet, show = (given.pop(name) for name in ("output", "quiet", "progress"))
    screen = {name: given.pop(name) for name in ("top", "verbose")}
    given["format"] = given.pop("format_")
    with bar(show if show is not None else not quiet and sys.stderr.isatty()) as progress:
        report = run(dump, OverflowOptions(**given, progress=progress))
    report = replace(report, argv=tuple(sys.argv))
    files = write_reports(report, output) if output else []
    if not quiet:
        paint = terminal.colours(sys.stdout.isatty())
        click.echo(overflow_terminal.render(report, files=files, paint=paint, **screen), nl=False, color=True)
    context.exit(overflow_status(report))
