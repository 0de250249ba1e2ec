"""npucmp diff."""

from __future__ import annotations

from typing import Any

import click

from npucmp.commands.options import declared
from npucmp.commands.output import carry_out
from npucmp.workflows.option_fields import DumpFields, ScreenFields

HELP = """Is it fixed? What is new, gone and the same between two reports, and what got better or worse.

BEFORE and AFTER are folders that -o of the same command wrote: compare, check, replay, rerun-diff, fusion-diff,
overflow or precheck. Better and worse are tensors beyond their limit whose error changed by more than reruns of
one program do. `compare --baseline BEFORE` asks the same in one go, for a pipeline.

\b
  npucmp diff report_monday report_today
  npucmp diff report_monday report_today --junit diff.xml

Exit status: 0 nothing new · 1 something is new or worse · 2 could not tell (no report, reports of different commands
or networks, or what was accused before was not looked at again).
"""


@click.command(help=HELP)
@click.argument("before")
@click.argument("after")
@declared(ScreenFields, DumpFields, only="output excel xlsx top verbose quiet json junit color limits")
@click.pass_context
def diff(context: click.Context, /, before: str, after: str, **given: Any) -> None:
    from npucmp.workflows.diff import diff as run

    def work(limits: Any, progress: Any) -> Any:
        return run(before, after, limits=limits)

    carry_out(context, {"show_progress": False, **given}, work)
