"""npucmp check."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import click

from npucmp.commands.options import some
from npucmp.commands.output import carry_out, tell

HELP = """What one run tells of its own health, without a second one: weights that do not move, gradients that vanish,
dead activations, wrong modes, losses and labels that cannot be right, odd inputs.

All steps and ranks of DUMP are read once; more steps and values let more rules decide. A finding that follows from
another stands under it, so that the first line is the one to mend. --list tells every rule, and with DUMP which of
them it can decide. docs/health.md explains them.

\b
  npucmp check npu_dump -o report
  npucmp check --list npu_dump                     which rules can this dump decide?
  npucmp check npu_dump --skip 'input.repeated' --fail-on error
  npucmp check npu_dump --loss train.log           and what its loss curve tells
  npucmp check npu_dump --rules own.toml --plugin own_rules.py

Exit status: 0 nothing at or above --fail-on · 1 something · 2 could not decide (bad usage, unreadable tensors).
"""


@click.command(help=HELP)
@click.argument("dump", required=False)
@click.option("--only", metavar="GLOB", multiple=True, help="Only rules whose name fits; repeatable.")
@click.option("--skip", metavar="GLOB", multiple=True, help="No rules whose name fits; repeatable.")
@click.option(
    "--phase",
    type=click.Choice(["auto", "train", "eval"]),
    help="What the run is; auto (default): training if it has a backward pass.",
)
@click.option(
    "--start",
    type=click.Choice(["auto", "fresh", "trained"]),
    help="How its weights started; auto (default): fresh if those of all norms are constant.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "hint"]),
    help="The least severity that makes the exit status 1 (default: warning).",
)
@click.option(
    "--loss",
    metavar="FILE",
    help="What the training logged: CSV, JSON lines, trainer_state.json, a text log, event files.",
)
@click.option("--column", metavar="NAME", default="", help="Which column of --loss the loss is.")
@click.option("--rules", metavar="FILE", help="Settings: limits, severities, what is expected; TOML.")
@click.option(
    "--plugin", metavar="FILE", multiple=True, help="A Python file with rules of your own, which is run; repeatable."
)
@click.option("--plugins/--no-plugins", default=True, help="Ask the rules of installed packages too (default: yes).")
@click.option("--list", "listed", is_flag=True, help="Print every rule, and which of them DUMP can decide.")
@some(
    "output", "include", "exclude", "graph", "step", "rank", "format", "jobs", "top", "progress", "verbose", "quiet",
    "json", "junit", "baseline", "color", "limit",
)  # fmt: skip
@click.pass_context
def check(context: click.Context, /, dump: Optional[str], listed: bool, **given: Any) -> None:
    from npucmp.workflows.check import CheckOptions, rules_of
    from npucmp.workflows.check import check as run

    if not listed:
        if dump is None:
            raise click.UsageError("Missing argument 'DUMP'.", context)
        carry_out(context, given, partial(run, dump))
    from npucmp.report.listing import rules

    given["format"] = given.pop("format_")
    shown = ("output", "excel", "xlsx", "quiet", "top", "verbose", "progress", "json", "junit", "baseline", "color")
    options = {name: value for name, value in given.items() if name not in shown}
    tell(rules(rules_of(CheckOptions(**options)), run(dump, **options).decisions if dump is not None else ()))
