"""npucmp replay."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import carry_out
from npucmp.recompute.extract_command import in_bytes, write_case
from npucmp.recompute.option_fields import ReplayFields
from npucmp.workflows.option_fields import ScreenFields

HELP = """Recompute operators in float64 from their own inputs, and report wrong outputs. No golden run is needed.

Each operator of DUMP is recomputed in float64 from its dumped inputs and arguments. The difference to the dumped output
is this operator's own error, independent of upstream errors; it is compared with the rounding that the call can cause.
Gradients between operators are compared with the sum of the gradients that their consumers return. For inputs without a
producer in the dump, npucmp names the function that computes them. Operators that cannot be replayed are listed with
the reason. Numpy recomputes the common calls of PyTorch and their gradients; torch, if it is installed, the others (pip
install -e '.[replay]'). Kernels of MindSpore, TensorFlow and CANN need their graph, in the dump's folder or by --graph.

\b
  npucmp replay npu_dump -o report
  npucmp replay npu_dump --include '*softmax*'
  npucmp replay npu_dump --reproducer Functional.softmax.1.forward case
  npucmp replay npu_dump --golden gpu_dump -o report    which run is wrong, and the vendor's double benchmark
  npucmp replay npu_dump --budget-from clean_npu_dump   limits of this device from a clean run
  npucmp replay tf_dump --graph graph.pbtxt
  npucmp replay case --against my_kernels.py:softmax    judge your own kernel by a case of npucmp extract

Exit status: 0 no operator is guilty · 1 an operator is guilty, a gradient is broken, or a setting makes a kind of
operators coarser · 2 undecided (no values, bad usage).
"""


@click.command(help=HELP)
@click.argument("dump")
@declare_options(ReplayFields, only="engine golden against budget budget_from limit_memory")
@click.option(
    "--reproducer",
    nargs=2,
    metavar="OP DIR",
    help="Also write operator OP into the new folder DIR, as npucmp extract does.",
)
@declare_options(
    ScreenFields,
    ReplayFields,
    only="strict output excel xlsx include exclude mapping graph step rank pair format jobs top show_progress verbose "
    "quiet json report_format junit baseline color limits",
)
@click.pass_context
def replay(context: click.Context, /, dump: str, reproducer: Optional[tuple[str, str]], **parameters: Any) -> None:
    from npucmp.recompute.workflow import replay as run

    parameters["limit_memory"] = in_bytes(parameters.pop("limit_memory"))
    if reproducer:
        chosen = {name: parameters[name] for name in ("format", "step", "rank", "limits", "limit_memory")}
        write_case(dump, *reproducer, quiet=parameters["quiet"], **chosen)
    carry_out(context, parameters, partial(run, dump))
