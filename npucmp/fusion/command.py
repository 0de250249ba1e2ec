"""npucmp fusion-diff."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from npucmp.commands.options import SHARED, declare_options
from npucmp.commands.output import carry_out
from npucmp.fusion.option_fields import FusionFields
from npucmp.workflows.option_fields import ScreenFields

HELP = """Compare each fused operator with its unfused chain.

ON is a run with operator fusion, OFF the same run without it (fusion_switch_file with everything off). Both are raw
CANN dumps with the graphs of their compilation in the same folder. A fused operator is compared with the last operator
of its chain, its inputs with the inputs of the chain. With -o, npucmp also writes fusion_switch.cfg, which disables
only the passes that created diverging operators.

\b
  npucmp fusion-diff dump_on dump_off -o report
  npucmp fusion-diff dump_on dump_off --on-graph on/ge_proto_00012_Build.txt --off-graph off/ge_proto_00012_Build.txt

Exit status: 0 every fused operator agrees · 1 an operator diverged · 2 undecided.
"""


@click.command(name="fusion-diff", help=HELP)
@click.argument("on")
@click.argument("off")
@declare_options(FusionFields, only="on_graph off_graph")
@click.option(
    "--resume", is_flag=True, help="Continue an interrupted run: repeat the same command with the same -o DIR."
)
@declare_options(ScreenFields, FusionFields, only=SHARED)
@click.pass_context
def fusion_diff(context: click.Context, /, on: str, off: str, **parameters: Any) -> None:
    from npucmp.fusion.workflow import fusion_diff as run

    carry_out(context, parameters, partial(run, on, off))
