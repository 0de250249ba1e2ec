"""npucmp precheck."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import click

from npucmp.commands.options import some
from npucmp.commands.output import carry_out

HELP = """Are these two runs comparable at all? Network, data, weights, settings, before any number is compared.

Most differences are no operator's fault: another batch, another normalisation of images, other weights, dropout left
on, another epsilon or learning rate. Each row holds one of these against the other run and names what it is:
"target = 1.429*golden - 0.4286". "-" for both dumps compares files alone.

\b
  npucmp precheck npu_dump gpu_dump -o report
  npucmp precheck npu_dump gpu_dump --env npu_pack.zip gpu_pack.zip
  npucmp precheck - - --config npu.yaml gpu.yaml --curve npu.log gpu.log
  npucmp precheck npu_bf16_dump gpu_dump --mixed

Exit status: 0 comparable · 1 not (--strict: also with reservations) · 2 operators, inputs or weights unknown and
nothing else differs, or bad usage.
"""


@click.command(help=HELP)
@click.argument("target")
@click.argument("golden")
@click.option(
    "--env",
    nargs=2,
    metavar="T G",
    help="Versions and environment of both: zips of msprobe's config_check, or text of `pip freeze` or `env`.",
)
@click.option(
    "--config",
    nargs=2,
    metavar="T G",
    help="Hyper-parameters of both: YAML, JSON, TOML, or text with --name value.",
)
@click.option(
    "--curve",
    nargs=2,
    metavar="T G",
    help="Logs of both trainings: CSV, JSON lines, trainer_state.json, text, TensorBoard events: where do they part?",
)
@click.option("--repeat-curve", metavar="FILE", help="Log of a second golden run: what differs no more is no fault.")
@click.option("--column", default="", metavar="NAME", help="The figure of the logs (default: the training loss).")
@click.option("--repeat", metavar="DUMP", help="A dump of TARGET run again: does it give the same bits?")
@click.option("--rules", metavar="FILE", help="Settings: TOML with skip, and severities and ignored names of rows.")
@click.option("--mixed", is_flag=True, help="Mixed precision against full precision is meant.")
@click.option("--only", multiple=True, metavar="GLOB", help="Only rows whose name fits; repeatable.")
@click.option("--skip", multiple=True, metavar="GLOB", help="No rows whose name fits; repeatable.")
@click.option("--strict", is_flag=True, help="Exit 1 also for what wants an explanation.")
@some(
    "output", "mapping", "graph", "step", "rank", "pair", "format", "jobs", "top", "progress", "verbose", "quiet",
    "json", "junit", "color", "limit",
)  # fmt: skip
@click.pass_context
def precheck(context: click.Context, /, target: str, golden: str, **given: Any) -> None:
    from npucmp.errors import UsageError
    from npucmp.workflows.precheck import precheck as run

    for name in ("env", "config", "curve", "repeat_curve", "repeat"):
        for path in (given[name],) if isinstance(given[name], str) else given[name] or ():
            if not os.path.exists(path):  # a slip of whoever typed it; what is wrong in a file costs its rows
                raise UsageError(f"--{name.replace('_', '-')} {path}: no such file or folder")
    carry_out(context, given, partial(run, target, golden))
