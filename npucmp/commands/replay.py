"""npucmp replay."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import click

from npucmp.commands.extract import in_bytes, write_case
from npucmp.commands.options import declared
from npucmp.commands.output import carry_out
from npucmp.workflows.option_fields import ReplayFields, ScreenFields

HELP = """Which operators are not what float64 makes of their own inputs? No golden run is needed.

Each operator of DUMP is computed again in float64 from the inputs and arguments that were dumped with it. What its
output lacks to that is this operator's error alone, whatever came before; it is held against the rounding that is due
for this call. Gradients between operators are held against the sum of what their consumers hand back, and inputs that
no operator wrote get the name of the function that makes them. Operators that cannot be replayed are told with the
reason. Without torch, numpy recomputes the common calls of PyTorch and their gradients; torch recomputes more (pip
install -e '.[replay]'). MindSpore's kernels, TensorFlow and CANN need their graph, beside the dump or by --graph.

\b
  npucmp replay npu_dump -o report
  npucmp replay npu_dump --include '*softmax*'
  npucmp replay npu_dump --reproducer Functional.softmax.1.forward case
  npucmp replay npu_dump --golden gpu_dump -o report    which of the two is wrong, and the vendor's double benchmark
  npucmp replay npu_dump --budget-from clean_npu_dump   what is due on this device, as a clean run has it
  npucmp replay tf_dump --graph graph.pbtxt

Exit status: 0 nothing is guilty · 1 an operator is, or a gradient is broken · 2 could not decide (no values,
no engine, bad usage).
"""


@click.command(help=HELP)
@click.argument("dump")
@declared(ReplayFields, only="engine golden budget budget_from limit_memory")
@click.option(
    "--reproducer",
    nargs=2,
    metavar="OP DIR",
    help="Write operator OP into the new folder DIR, as npucmp extract does.",
)
@declared(
    ScreenFields,
    ReplayFields,
    only="strict output excel xlsx include exclude mapping graph step rank pair format jobs top show_progress verbose "
    "quiet json junit baseline color limits",
)
@click.pass_context
def replay(context: click.Context, /, dump: str, reproducer: Optional[tuple[str, str]], **given: Any) -> None:
    from npucmp.workflows.replay import replay as run

    given["limit_memory"] = in_bytes(given.pop("limit_memory"))
    if reproducer:
        chosen = {name: given[name] for name in ("format", "step", "rank", "limits", "limit_memory")}
        write_case(dump, *reproducer, quiet=given["quiet"], **chosen)
    carry_out(context, given, partial(run, dump))
