"""npucmp merge."""

from __future__ import annotations

from typing import Any

import click

from npucmp.commands.options import declared
from npucmp.commands.output import carry_out
from npucmp.workflows.option_fields import DumpFields, ScreenFields


@click.command(
    help="""Reports of compare, each of some steps and ranks, become one of all.

Each DIR is a folder that compare wrote with -o, perhaps on another machine, with --parts or --parquet. Rows are put in
the order of steps and ranks, roots are ranked over all of them. What crosses ranks was settled within each report: give
all ranks of a step to one of them where you can.

\b
  npucmp compare npu_dump gpu_dump --step 0-7 -o first      on one machine
  npucmp compare npu_dump gpu_dump --step 8-15 -o second    on another
  npucmp merge first second -o report

Exit status: 1 where any report has 1, else 2 where any has 2, else 0; 2 too for reports of other rules or of another
npucmp, and for a step and rank that two of them have.
"""
)
@click.argument("folders", nargs=-1, required=True, metavar="DIR...")
@declared(ScreenFields, DumpFields, only="output excel xlsx top verbose quiet json junit color limits")
@click.pass_context
def merge(context: click.Context, /, folders: tuple[str, ...], **given: Any) -> None:
    from npucmp.workflows.merge import merge as run

    def work(limits: Any, progress: Any) -> Any:
        return run(folders, limits=limits)

    carry_out(context, {"show_progress": False, **given}, work)
