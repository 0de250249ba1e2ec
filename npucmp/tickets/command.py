"""npucmp ticket."""

from __future__ import annotations

from typing import Any, Optional

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import write_stdout
from npucmp.errors import UsageError
from npucmp.workflows.option_fields import DumpFields, ScreenFields

HELP = """Write a report as one page for a vendor's engineers, or as an archive with all related files.

REPORT is a folder that a command wrote with -o. The page describes the first suspect: the operator, its arguments,
shapes, types and source line, its figures with the vendor's own verdicts and their meaning, the compared runs, the
rules, versions, and how to reproduce the fault. If FILE ends in .zip, the archive adds the tables, summary.json, and
the case of `npucmp extract` if REPORT/case or --case has one. Both omit the folders of this machine. With --redact,
pseudonyms replace private names; an archive then omits pages and elements of tensors, and takes only a redacted case.

\b
  npucmp ticket report -o ticket.md
  npucmp extract npu_dump Functional.softmax.1.forward -o report/case
  npucmp ticket report -o ticket.zip
  npucmp ticket report -o ticket.zip --redact --names names.csv

Exit status: 0 written · 2 not written (no report, no suspect in it, a case of another operator).
"""


@click.command(help=HELP)
@click.argument("report")
@click.option(
    "-o", "--output", "file", metavar="FILE", required=True, help="Output file; its name ends in .md or .zip."
)
@click.option(
    "--place", type=click.IntRange(1), default=1, show_default=True, help="The suspect's place in the report."
)
@click.option("--case", metavar="DIR", help="Folder that npucmp extract wrote for this suspect (default: REPORT/case).")
@click.option(
    "--redact", is_flag=True, help="Replace names of modules, parameters, paths and source lines by pseudonyms."
)
@click.option("--names", metavar="FILE", help="With --redact: write the original of each pseudonym to this CSV file.")
@declare_options(ScreenFields, DumpFields, only="quiet json limits")
def ticket(
    report: str,
    file: str,
    place: int,
    case: Optional[str],
    redact: bool,
    names: Optional[str],
    quiet: bool,
    json: bool,
    limits: Any,
) -> None:
    from npucmp.report.show_output import ticket as listing
    from npucmp.tickets.workflow import ticket as run
    from npucmp.tickets.zip import require_ending, write_ticket

    require_ending(file)
    if names and not redact:
        raise UsageError("--names needs --redact")
    found = run(report, place=place, case=case, redact=redact, limits=limits)
    written = write_ticket(found, file, names=names)
    if json:
        from npucmp.report.object_json import object_text, ticket_object

        write_stdout(object_text("ticket", ticket_object(found, file, written)))
    elif not quiet:
        write_stdout(listing(found, file, written, names))
