"""npucmp ticket."""

from __future__ import annotations

from typing import Any, Optional

import click

from npucmp.commands.options import declared
from npucmp.commands.output import tell
from npucmp.workflows.option_fields import DumpFields, ScreenFields

HELP = """A report as one page that a vendor's engineer can work with, or as an archive with all that goes with it.

REPORT is a folder that -o of a command wrote. The page says of its first suspect what it is, where (arguments, shapes,
types, source line), its figures with the vendor's own verdicts and what they mean, what was compared by which rules,
versions, and how to reproduce it. FILE ending in .zip adds the tables, summary.json, and the case of `npucmp extract`
if REPORT/case or --case has one. Folders of this machine are left out of both.

\b
  npucmp ticket report -o ticket.md
  npucmp extract npu_dump Functional.softmax.1.forward -o report/case
  npucmp ticket report -o ticket.zip

Exit status: 0 it is written · 2 it is not (no report, nothing accused in it, a case of another operator).
"""


@click.command(help=HELP)
@click.argument("report")
@click.option(
    "-o", "--output", "file", metavar="FILE", required=True, help="What to write: a name ending in .md or .zip."
)
@click.option(
    "--place", type=click.IntRange(1), default=1, show_default=True, help="Which suspect: its place in the report."
)
@click.option("--case", metavar="DIR", help="The folder that npucmp extract wrote of it (default: REPORT/case).")
@declared(ScreenFields, DumpFields, only="quiet limits")
def ticket(report: str, file: str, place: int, case: Optional[str], quiet: bool, limits: Any) -> None:
    from npucmp.report.show_output import ticket as listing
    from npucmp.report.ticket_zip import require_ending, write_ticket
    from npucmp.workflows.ticket import ticket as run

    require_ending(file)
    found = run(report, place=place, case=case, limits=limits)
    names = write_ticket(found, file)
    if not quiet:
        tell(listing(found, file, names))
