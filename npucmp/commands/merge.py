"""npucmp merge."""

from __future__ import annotations

from typing import Any

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import carry_out
from npucmp.workflows.option_fields import DumpFields, ScreenFields


@click.command(
    help="""Merge reports of compare, each with some steps and ranks, into one report.

Each DIR is a report folder that compare wrote with -o, possibly on another machine, with --parts or --parquet. Rows are
sorted by step and rank; roots are ranked over all reports. Dependencies between ranks are resolved only within each
report, so compare all ranks of a step in one report if possible.

\b
  npucmp compare npu_dump gpu_dump --step 0-7 -o first      on one machine
  npucmp compare npu_dump gpu_dump --step 8-15 -o second    on another
  npucmp merge first second -o report

Exit status: 1 if any report has 1, else 2 if any has 2, else 0. Also 2 if the reports used different rules or versions
of npucmp, or if two reports have the same step and rank.
"""
)
@click.argument("folders", nargs=-1, required=True, metavar="DIR...")
@declare_options(
    ScreenFields, DumpFields, only="output excel xlsx top verbose quiet json report_format junit color limits"
)
@click.pass_context
def merge(context: click.Context, /, folders: tuple[str, ...], **parameters: Any) -> None:
    from npucmp.workflows.merge import merge as run

    def work(limits: Any, progress: Any) -> Any:
        return run(folders, limits=limits)

    carry_out(context, {"show_progress": False, **parameters}, work)
