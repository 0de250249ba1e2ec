"""The option --follow of check and compare: print the findings of each complete step, then the whole report."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Callable

import click

from npucmp.commands.output import carry_out
from npucmp.follow.report import json_lines, text_lines
from npucmp.follow.step_findings import StepFindings
from npucmp.model import Result


def carry_out_followed(context: click.Context, parameters: dict[str, Any], work: Callable[..., Result]) -> None:
    """Run a workflow that follows a run, print the findings of each step, then show the result and exit."""
    parameters["show_progress"] = bool(parameters["show_progress"])  # a bar would be among the lines
    if not parameters["quiet"]:
        lines = json_lines if parameters["json"] else partial(text_lines, is_verbose=parameters["verbose"])
        parameters["found"] = partial(_show, lines)
    carry_out(context, parameters, work, is_followed=True)


def _show(lines: Callable[[StepFindings], list[str]], found: StepFindings) -> None:
    for line in lines(found):
        click.echo(line)
    sys.stdout.flush()
