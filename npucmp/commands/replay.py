"""npucmp replay."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from npucmp.commands.options import some
from npucmp.commands.output import carry_out

HELP = """Which operators are not what float64 makes of their own inputs? No golden run is needed.

Each operator of DUMP is computed again in float64 from the inputs and arguments that were dumped with it. What its
output lacks to that is this operator's error alone, whatever came before; it is held against the rounding that is due
for this call. Gradients between operators are held against the sum of what their consumers hand back, and inputs that
no operator wrote get the name of the function that makes them. Operators that cannot be replayed are told with the
reason. It needs torch: pip install npucmp[replay].

\b
  npucmp replay npu_dump -o report
  npucmp replay npu_dump --include '*softmax*'
  npucmp replay npu_dump --budget-from clean_npu_dump   what is due on this device, as a clean run has it

\b
Exit status: 0 nothing is guilty · 1 an operator is, or a gradient is broken · 2 could not decide (no values,
no engine, bad usage).
"""


@click.command(help=HELP)
@click.argument("dump")
@click.option("--engine", metavar="NAME", help="Replay with this engine alone: torch.")
@click.option(
    "--budget", type=click.FloatRange(0, min_open=True), default=1.0, metavar="X", help="Multiply every limit by X."
)
@click.option("--budget-from", metavar="DUMP", help="A clean run: its ratios of each kind of operator are what is due.")
@click.option(
    "--limit-memory", type=click.IntRange(1), metavar="MB", help="Memory that one operator may take (default 8192)."
)
@click.option("--strict", is_flag=True, help="Exit 2 also when an output could not be replayed.")
@some(
    "output", "include", "exclude", "step", "rank", "format", "jobs", "top", "progress", "verbose", "quiet", "limit",
)  # fmt: skip
@click.pass_context
def replay(context: click.Context, /, dump: str, **given: Any) -> None:
    from npucmp.workflows.replay import replay as run

    megabytes = given.pop("limit_memory")
    carry_out(context, given, partial(run, dump, limit_memory=megabytes << 20 if megabytes else None))
