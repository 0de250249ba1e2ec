"""npucmp extract."""

from __future__ import annotations

from typing import Any, Optional

import click

from npucmp.commands.options import declared
from npucmp.commands.output import tell
from npucmp.workflows.option_fields import ExtractFields, ScreenFields

HELP = """One operator of DUMP as a case that runs without npucmp: for the vendor, or for yourself on another device.

OP is the operator's name as the dump has it (npucmp show DUMP lists them). DIR gets its inputs, its dumped and its
float64 results as .npy, call.json with its arguments, and run.py, which makes the one call with torch_npu if that is
there, else on the CPU, and prints the error of the dump and of this run against float64. Backward calls, --smallest and
calls that numpy cannot compute need torch: pip install -e '.[replay]'.

\b
  npucmp extract npu_dump Functional.softmax.1.forward -o case
  python case/run.py

Exit status: 0 the case is written · 2 it is not (no such operator, no values, a call that cannot be replayed).
"""


@click.command(help=HELP)
@click.argument("dump")
@click.argument("op")
@click.option("-o", "--output", "folder", metavar="DIR", required=True, help="The folder to write; new, or empty.")
@declared(ExtractFields, only="smallest limit_memory")
@declared(ExtractFields, ScreenFields, only="step rank format quiet limits")
def extract(
    dump: str,
    op: str,
    folder: str,
    limit_memory: Optional[int],
    quiet: bool,
    **given: Any,
) -> None:
    write_case(dump, op, folder, quiet, limit_memory=in_bytes(limit_memory), **given)


def write_case(dump: str, op: str, folder: str, quiet: bool, **given: Any) -> None:
    """Extracts, and says so."""
    from npucmp.report.show_output import case
    from npucmp.workflows.extract import extract as run

    found = run(dump, op, folder, **given)
    if not quiet:
        tell(case(found.operator, found.rows, found.folder, found.files, found.cut))


def in_bytes(megabytes: Optional[int]) -> Optional[int]:
    return megabytes << 20 if megabytes else None
