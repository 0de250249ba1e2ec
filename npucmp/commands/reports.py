"""npucmp diff and npucmp merge, which read reports."""

from __future__ import annotations

from typing import Any

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import carry_out
from npucmp.workflows.option_fields import DumpFields, ScreenFields

OPTIONS = "output excel xlsx top verbose quiet json report_format junit color limits"


@click.command(
    help="""Compare two reports: new, gone and unchanged findings, and tensors that became better or worse.

BEFORE and AFTER are report folders that the same command wrote with -o: compare, check, replay, rerun-diff,
fusion-diff, overflow or precheck. A tensor beyond its limit is better or worse if its error changed by more than
reruns of one program do. In a pipeline, `compare --baseline BEFORE` does both steps at once.

\b
  npucmp diff report_monday report_today
  npucmp diff report_monday report_today --junit diff.xml

Exit status: 0 no new finding · 1 a finding is new or worse · 2 undecided (no report, reports of different commands or
networks, or an earlier suspect was not examined again).
"""
)
@click.argument("before")
@click.argument("after")
@declare_options(ScreenFields, DumpFields, only=OPTIONS)
@click.pass_context
def diff(context: click.Context, /, before: str, after: str, **parameters: Any) -> None:
    from npucmp.workflows.diff import diff as run

    def work(limits: Any, progress: Any) -> Any:
        return run(before, after, limits=limits)

    carry_out(context, {"show_progress": False, **parameters}, work)


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
@declare_options(ScreenFields, DumpFields, only=OPTIONS)
@click.pass_context
def merge(context: click.Context, /, folders: tuple[str, ...], **parameters: Any) -> None:
    from npucmp.workflows.merge import merge as run

    def work(limits: Any, progress: Any) -> Any:
        return run(folders, limits=limits)

    carry_out(context, {"show_progress": False, **parameters}, work)
