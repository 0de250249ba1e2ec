"""npucmp extract."""

from __future__ import annotations

from typing import Any, Optional

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import write_stdout
from npucmp.recompute.option_fields import ExtractFields
from npucmp.workflows.option_fields import ScreenFields

HELP = """Write one operator of DUMP as a case that runs without npucmp: for the vendor, or to test another device.

OP is the operator's name in the dump (npucmp show DUMP lists the names). DIR receives the inputs, the dumped results
and the float64 results as .npy, call.json with the arguments, and run.py. run.py makes the call with torch_npu if it is
installed, else on the CPU, and prints the errors of the dump and of this call relative to float64. Calls that numpy
cannot compute need torch: pip install -e '.[replay]'.

\b
  npucmp extract npu_dump Functional.softmax.1.forward -o case
  python case/run.py
  npucmp extract npu_dump Functional.softmax.1.forward -o case --redact

With --redact, no value of the dump is in the case: mantissas and indices are drawn again until the replay has the same
verdict. Exponents, signs, zeros, powers of two, NaN and Inf, masks, shapes and scalar arguments stay.

Exit status: 0 the case was written · 2 it was not (no such operator, no values, a call that cannot be replayed, or no
redacted case with its verdict).
"""


@click.command(help=HELP)
@click.argument("dump")
@click.argument("op")
@click.option("-o", "--output", "folder", metavar="DIR", required=True, help="Output folder; must be new or empty.")
@declare_options(ExtractFields, only="smallest redact limit_memory")
@declare_options(ExtractFields, ScreenFields, only="step rank format quiet json limits")
def extract(
    dump: str,
    op: str,
    folder: str,
    limit_memory: Optional[int],
    quiet: bool,
    json: bool,
    **parameters: Any,
) -> None:
    write_case(dump, op, folder, quiet, json, limit_memory=in_bytes(limit_memory), **parameters)


def write_case(dump: str, op: str, folder: str, quiet: bool, json: bool = False, **parameters: Any) -> None:
    """Write the case, and print a summary unless `quiet`."""
    from npucmp.recompute.extract import extract as run
    from npucmp.report.show_output import case

    found = run(dump, op, folder, **parameters)
    facts = found.operator, found.rows, found.folder, found.files, found.cut, found.redacted
    if json:
        from npucmp.report.object_json import case_object, object_text

        write_stdout(object_text("extract", case_object(*facts)))
    elif not quiet:
        write_stdout(case(*facts))


def in_bytes(megabytes: Optional[int]) -> Optional[int]:
    return megabytes << 20 if megabytes else None
