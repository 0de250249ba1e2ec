"""npucmp diff."""

from __future__ import annotations

from typing import Any

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import carry_out
from npucmp.workflows.option_fields import DumpFields, ScreenFields

HELP = """Compare two reports: new, gone and unchanged findings, and tensors that became better or worse.

BEFORE and AFTER are report folders that the same command wrote with -o: compare, check, replay, rerun-diff,
fusion-diff, overflow or precheck. A tensor beyond its limit is better or worse if its error changed by more than
reruns of one program do. In a pipeline, `compare --baseline BEFORE` does both steps at once.

\b
  npucmp diff report_monday report_today
  npucmp diff report_monday report_today --junit diff.xml

Exit status: 0 no new finding · 1 a finding is new or worse · 2 undecided (no report, reports of different commands or
networks, or an earlier suspect was not examined again).
"""


@click.command(help=HELP)
@click.argument("before")
@click.argument("after")
@declare_options(
    ScreenFields, DumpFields, only="output excel xlsx top verbose quiet json report_format junit color limits"
)
@click.pass_context
def diff(context: click.Context, /, before: str, after: str, **parameters: Any) -> None:
    from npucmp.workflows.diff import diff as run

    def work(limits: Any, progress: Any) -> Any:
        return run(before, after, limits=limits)

    carry_out(context, {"show_progress": False, **parameters}, work)
