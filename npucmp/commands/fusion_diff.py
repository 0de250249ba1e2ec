"""npucmp fusion-diff."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from npucmp.commands.options import SHARED, declared
from npucmp.commands.output import carry_out
from npucmp.workflows.option_fields import FusionFields, ScreenFields

HELP = """Which fused operator computes something else than its unfused chain?

ON is a run with operator fusion, OFF the same run without it (fusion_switch_file with everything off), both as raw
CANN dumps with the graphs of their compilation beside them. A fused operator is compared with the last operator of
its chain, its inputs with the inputs of the chain. With -o, fusion_switch.cfg turns off just the passes behind what
diverges.

\b
  npucmp fusion-diff dump_on dump_off -o report
  npucmp fusion-diff dump_on dump_off --on-graph on/ge_proto_00012_Build.txt --off-graph off/ge_proto_00012_Build.txt

Exit status: 0 every fused operator agrees · 1 something diverged · 2 could not decide.
"""


@click.command(name="fusion-diff", help=HELP)
@click.argument("on")
@click.argument("off")
@declared(FusionFields, only="on_graph off_graph")
@click.option(
    "--resume", is_flag=True, help="Go on with an interrupted run: the same command, the same -o DIR, as of compare."
)
@declared(ScreenFields, FusionFields, only=SHARED)
@click.pass_context
def fusion_diff(context: click.Context, /, on: str, off: str, **given: Any) -> None:
    from npucmp.workflows.fusion_diff import fusion_diff as run

    carry_out(context, given, partial(run, on, off))
