"""npucmp overflow."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import carry_out
from npucmp.overflows.option_fields import OverflowFields
from npucmp.workflows.option_fields import ScreenFields

HELP = """Find the operators that produce NaN, Inf or saturation, trace the spread, and find where it is masked.

DUMP has values, statistics, or the device's own overflow records (Opdebug files). With --golden, each event is compared
with a correct run: whether that run has the same event, or its values would overflow in this type too.

\b
  npucmp overflow npu_dump -o report
  npucmp overflow npu_dump --headroom 2          tensors within a factor of four of their type's limit
  npucmp overflow npu_dump --golden gpu_dump

Exit status: 0 no overflow · 1 overflow found · 2 undecided (bad usage, unreadable tensors).
"""


@click.command(help=HELP)
@click.argument("dump")
@declare_options(OverflowFields, only="golden headroom")
@declare_options(
    ScreenFields,
    OverflowFields,
    only="output excel xlsx include exclude mapping graph step rank pair format jobs top show_progress verbose quiet "
    "json report_format junit color limits",
)
@click.pass_context
def overflow(context: click.Context, /, dump: str, **parameters: Any) -> None:
    from npucmp.overflows.workflow import overflow as run

    carry_out(context, parameters, partial(run, dump))
