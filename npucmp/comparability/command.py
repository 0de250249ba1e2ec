"""npucmp precheck."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import carry_out
from npucmp.comparability.option_fields import PrecheckFields
from npucmp.errors import UsageError
from npucmp.workflows.option_fields import ScreenFields

HELP = """Check whether two runs are comparable: network, data, weights and settings, before tensors are compared.

Most differences are not caused by an operator, but by another batch, image normalisation, weights, active dropout,
another epsilon or learning rate. Each row compares one of these between the runs and names the difference, for example
"target = 1.429*golden - 0.4286". If both dumps are "-", only files are compared.

\b
  npucmp precheck npu_dump gpu_dump -o report
  npucmp precheck npu_dump gpu_dump --env npu_pack.zip gpu_pack.zip
  npucmp precheck - - --config npu.yaml gpu.yaml --curve npu.log gpu.log
  npucmp precheck - - --config npu_train.log gpu_train.log --data train.npy test.npy
  npucmp precheck npu_bf16_dump gpu_dump --mixed

Exit status: 0 comparable · 1 not comparable (--strict: also with reservations) · 2 operators, inputs or weights are
unknown and no other row differs, or bad usage.
"""


@click.command(help=HELP)
@click.argument("target")
@click.argument("golden")
@declare_options(PrecheckFields, only="env config data curve repeat_curve column repeat rules mixed only skip strict")
@declare_options(
    ScreenFields,
    PrecheckFields,
    only="output excel xlsx mapping graph step rank pair format jobs top show_progress verbose quiet json "
    "report_format junit color limits",
)
@click.pass_context
def precheck(context: click.Context, /, target: str, golden: str, **parameters: Any) -> None:
    from npucmp.comparability.workflow import precheck as run

    for name in ("env", "config", "data", "curve", "repeat_curve", "repeat"):
        for path in (parameters[name],) if isinstance(parameters[name], str) else parameters[name] or ():
            if not os.path.exists(path):  # a usage error; an error within a file only affects its rows
                raise UsageError(f"--{name.replace('_', '-')} {path}: no such file or folder")
    carry_out(context, parameters, partial(run, target, golden))
