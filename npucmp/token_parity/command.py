"""npucmp parity."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import carry_out
from npucmp.token_parity.option_fields import ParityFields
from npucmp.workflows.option_fields import ScreenFields

HELP = """Compare the log-probabilities of the same tokens from two engines: first bad token, class of the cause.

ROLLOUT and TRAINER are what verl, slime, miles, SGLang, vLLM and OpenAI-style servers write: .npy, .npz, .pt, JSON and
JSON Lines, one file or folders of steps. Files that hold both need one path.

\b
  npucmp parity rollout_dump train_dump -o report
  npucmp parity debug_metrics                    one folder with rollout_log_probs and old_log_probs
  npucmp parity rollout_dump train_dump --floor 0.02

Exit status: 0 all tokens within noise · 1 a class of a difference · 2 undecided (requests or steps without a partner,
too few tokens, bad usage). The last line begins with CLEAN, UNDECIDED or the class.
"""


@click.command(help=HELP)
@click.argument("rollout")
@click.argument("trainer", required=False)
@declare_options(ParityFields, only="floor step")
@declare_options(
    ScreenFields,
    ParityFields,
    only="output excel xlsx top show_progress verbose quiet json report_format junit color limits",
)
@click.pass_context
def parity(context: click.Context, /, rollout: str, trainer: Optional[str], **parameters: Any) -> None:
    from npucmp.token_parity.workflow import parity as run

    carry_out(context, parameters, partial(run, rollout, trainer))
