"""The command line: a click group, the exit status, and the only place that prints an error or exits."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Optional

import click

from npucmp import __version__

COMMANDS = {  # name → module of npucmp.commands, imported only when it is called or its help is asked for
    "compare": ("compare", "Which operator diverged first, and did it cause it?"),
    "overflow": ("overflow", "Where NaN, Inf or saturation is born, and how it spreads."),
    "fusion-diff": ("fusion_diff", "Which fused operator differs from its unfused chain."),
    "rerun-diff": ("rerun_diff", "Which operator gives different bits for the same bits in."),
    "show": ("show", "What is in a dump: runs, operators, tensors, statistics."),
    "formats": ("show", "The formats that npucmp reads, and how it recognises them."),
}


class Group(click.Group):
    """Loads a command when it is needed, so that --help imports nothing of them."""

    def list_commands(self, context: click.Context) -> "list[str]":
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> Optional[click.Command]:
        if name not in COMMANDS:
            return None
        found: Any = getattr(importlib.import_module(f"npucmp.commands.{COMMANDS[name][0]}"), name.replace("-", "_"))
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Compares tensor dumps of an Ascend NPU run (target) with those of a reference run (golden).

\b
  npucmp compare npu_dump gpu_dump -o report
""",
)
@click.version_option(__version__, message="npucmp %(version)s")
def npucmp() -> None:
    pass


def main() -> None:
    """Runs the command line and exits: 0 agrees, 1 differs, 2 could not do it, 130 interrupted."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's own threads would only fight with ours over blocks
    from npucmp.errors import NpucmpError

    try:
        status = npucmp.main(standalone_mode=False)
    except click.exceptions.Abort:
        status = _say("interrupted", 130)
    except click.ClickException as error:
        error.show()
        status = 2
    except NpucmpError as error:
        status = _say(str(error), 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output went away
        status = 141
    except MemoryError:
        status = _say("out of memory", 2)
    sys.exit(status if isinstance(status, int) else 0)


def _say(message: str, status: int) -> int:
    from npucmp.report.sanitise import visible

    click.echo(f"npucmp: {visible(message)}", err=True)
    return status
