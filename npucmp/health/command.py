"""npucmp check."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import click

from npucmp.commands.options import declare_options, drop_options
from npucmp.commands.output import carry_out, write_stdout
from npucmp.health.option_fields import CheckFields
from npucmp.workflows.option_fields import FollowFields, ScreenFields, spell_options

HELP = """Check the health of one run without a reference: weights that do not change, vanishing gradients, dead
activations, wrong modes, implausible losses and labels, unusual inputs.

All steps and ranks of DUMP are read once. More steps and values allow more rules to decide. A finding that follows
from another finding is listed below it, so fix the first line first. --list prints every rule; with DUMP, it also
shows the rules that this dump can decide. npucmp rule NAME explains a rule.

\b
  npucmp check npu_dump -o report
  npucmp check --list npu_dump                     rules that this dump can decide
  npucmp check npu_dump --skip 'input.repeated' --fail-on error
  npucmp check npu_dump --loss train.log           also checks the loss curve
  npucmp check npu_dump --rules own.toml --plugin own_rules.py
  npucmp check --follow npu_dump --until error     a run that is still going, step by step

Exit status: 0 no finding at or above --fail-on · 1 a finding · 2 undecided (bad usage, unreadable tensors).
"""

SHARED = (
    "output excel xlsx include exclude graph step rank format jobs top show_progress verbose quiet json report_format "
    "junit baseline color limits"
)


@click.command(help=HELP)
@click.argument("dump", required=False)
@declare_options(CheckFields, only="only skip phase start fail_on loss column rules plugin plugins")
@click.option("--list", "listed", is_flag=True, help="Print every rule; with DUMP, also whether DUMP can decide it.")
@click.option("--follow", is_flag=True, help="Check a run that is still going: each step when it is complete.")
@declare_options(FollowFields)
@declare_options(ScreenFields, CheckFields, only=SHARED)
@click.pass_context
def check(context: click.Context, /, dump: Optional[str], listed: bool, follow: bool, **parameters: Any) -> None:
    from npucmp.health.workflow import CheckOptions, rules_of
    from npucmp.health.workflow import check as run

    if not follow or listed:
        drop_options(FollowFields, parameters, "--follow")
    if not listed:
        if dump is None:
            raise click.UsageError("Missing argument 'DUMP'.", context)
        if follow:
            from npucmp.follow.check import follow_check
            from npucmp.follow.command import carry_out_followed

            carry_out_followed(context, parameters, partial(follow_check, dump))
        carry_out(context, parameters, partial(run, dump))
    from npucmp.report.show_output import rules

    names = {one.name for one, _ in spell_options(CheckFields)}
    options = {name: value for name, value in parameters.items() if name in names}
    write_stdout(rules(rules_of(CheckOptions(**options)), run(dump, **options).decisions if dump is not None else ()))
