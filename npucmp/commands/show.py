"""npucmp show and npucmp formats."""

from __future__ import annotations

from typing import Any, Optional

import click

from npucmp.commands.options import some
from npucmp.commands.output import tell


@click.command(
    help="""What is in a dump: runs, operators, tensors, statistics.

PATTERN is a glob on operator names; with one, every tensor of the operators that fit is read and shown.

\b
  npucmp show npu_dump
  npucmp show npu_dump '*layer_norm.2*'
"""
)
@click.argument("dump")
@click.argument("pattern", required=False)
@click.option("--step", type=click.IntRange(0), help="Only this step.")
@click.option("--rank", type=click.IntRange(0), help="Only this rank.")
@click.option("--format", "format_", metavar="NAME", help="The dump's format, instead of recognising it.")
@click.option(
    "--top", type=click.IntRange(1), default=10, show_default=True, help="Operators listed without a PATTERN."
)
@some("limit")
def show(
    dump: str,
    pattern: Optional[str],
    step: Optional[int],
    rank: Optional[int],
    format_: Optional[str],
    top: int,
    limits: Any,
) -> None:
    from npucmp.dump.context import ReadContext
    from npucmp.dump.formats import open_runs
    from npucmp.errors import UsageError
    from npucmp.report.listing import listing
    from npucmp.workflows.show import inspect

    context = ReadContext(limits).within(dump)
    runs = open_runs(dump, format_, context)
    chosen = [run for run in runs if step in (None, run.step) and rank in (None, run.rank)]
    found = [(run, inspect(run, pattern, context)) for run in chosen]
    if not any(rows for _, rows in found):
        raise UsageError(f"{dump}: no operator fits {pattern or 'the step and rank'}")
    for run, rows in found:
        tell(listing(run, rows, None if pattern else top))


@click.command(help="The formats that npucmp reads, and how it recognises them.")
def formats() -> None:
    from npucmp.dump.formats import FORMATS, module_of

    for module in map(module_of, FORMATS):
        tell(f"{module.NAME:10}  {module.ABOUT}\n")
