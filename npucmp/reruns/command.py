"""npucmp rerun-diff."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import carry_out
from npucmp.workflows.option_fields import CompareFields, ScreenFields

HELP = """Find operators that produce different bits from the same input bits.

Each RUN is a dump of the same program: same inputs, same weights, same seeds. All runs are compared with the first, bit
for bit. With three or more runs, npucmp names the deviating run per operator. With -o, noise.csv records how much each
tensor varies between runs; `npucmp compare --noise` takes it into account.

\b
  npucmp rerun-diff run1 run2 run3 -o report
  npucmp compare npu_dump gpu_dump --noise report/noise.csv

Exit status: 0 all runs are bit-identical · 1 they are not · 2 undecided (statistics cannot prove equality).
"""


@click.command(name="rerun-diff", help=HELP)
@click.argument("dumps", metavar="RUN RUN [RUN…]", nargs=-1, required=True)
@declare_options(
    ScreenFields,
    CompareFields,
    only="output excel xlsx include exclude mapping graph step rank format strict jobs top show_progress verbose quiet "
    "json report_format junit color limits",
)
@click.pass_context
def rerun_diff(context: click.Context, /, dumps: tuple[str, ...], **parameters: Any) -> None:
    from npucmp.reruns.workflow import rerun_diff as run

    carry_out(context, parameters, partial(run, dumps))
