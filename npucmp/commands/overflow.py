"""npucmp overflow."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from npucmp.commands.options import declared
from npucmp.commands.output import carry_out
from npucmp.workflows.option_fields import OverflowFields, ScreenFields

HELP = """Where NaN, Inf or saturation is born, how it spreads, and where it is masked.

DUMP is any dump, of values, of statistics, or of the device's own overflow records (Opdebug files). With --golden
each event is held against a run that is right: does it have the same, or would its values overflow in this type too?

\b
  npucmp overflow npu_dump -o report
  npucmp overflow npu_dump --headroom 2          what is within a factor of four of its type's limit
  npucmp overflow npu_dump --golden gpu_dump

Exit status: 0 nothing overflowed · 1 something did · 2 could not decide (bad usage, unreadable tensors).
"""


@click.command(help=HELP)
@click.argument("dump")
@declared(OverflowFields, only="golden headroom")
@declared(
    ScreenFields,
    OverflowFields,
    only="output excel xlsx include exclude mapping graph step rank pair format jobs top show_progress verbose quiet "
    "json junit color limits",
)
@click.pass_context
def overflow(context: click.Context, /, dump: str, **given: Any) -> None:
    from npucmp.workflows.overflow import overflow as run

    carry_out(context, given, partial(run, dump))
