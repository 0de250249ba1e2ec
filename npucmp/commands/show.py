"""npucmp show and npucmp formats."""

from __future__ import annotations

from typing import Any, Optional

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import write_stdout
from npucmp.workflows.option_fields import ScreenFields, ShowFields


@click.command(
    help="""Show the contents of a dump: runs, operators, tensors, statistics.

PATTERN is a glob on operator names; every tensor of the operators that match is read and shown. --include and --exclude
shorten the list without reading tensors. --values also shows a histogram, the largest and smallest values with their
indices, and the corners. --fit lists what the dump lacks for a question, one line each with the setting that records
it; the exit status is then 1.

\b
  npucmp show npu_dump
  npucmp show npu_dump '*layer_norm.2*'
  npucmp show npu_dump '*softmax.1.forward' --values --slot output:0 --at 0,1,7
  npucmp show npu_dump --fit compare
"""
)
@click.argument("dump")
@click.argument("pattern", required=False)
@click.option(
    "--top",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Operators to list without a PATTERN.",
)
@declare_options(ShowFields, only="values slot at")
@click.option(
    "--fit",
    metavar="QUESTION",
    help="List what the dump lacks for compare, overflow, replay … (the questions of npucmp plan).",
)
@declare_options(ShowFields, ScreenFields, only="include exclude step rank format json limits")
@click.pass_context
def show(
    context: click.Context,
    /,
    dump: str,
    pattern: Optional[str],
    top: int,
    fit: Optional[str],
    values: bool,
    slot: tuple[str, ...],
    at: tuple[str, ...],
    json: bool,
    **parameters: Any,
) -> None:
    from npucmp.report.sanitise import visible
    from npucmp.report.show_output import listings
    from npucmp.workflows.show import show as inspect

    if fit is not None:
        from npucmp.plans import report as plan
        from npucmp.plans.workflow import fit as held

        run, lacks = held(fit, dump, **parameters)
        if json:
            from npucmp.report.object_json import missing_object, object_text

            write_stdout(object_text("show", missing_object(run, fit, lacks), 1 if lacks else 0))
            context.exit(1 if lacks else 0)
        write_stdout(plan.missing_data_lines(run, fit, lacks))
        context.exit(1 if lacks else 0)
    found = inspect(dump, pattern=pattern, slot=slot, values=values, at=at, **parameters)
    if json:
        from npucmp.report.object_json import contents_object, object_text

        write_stdout(object_text("show", contents_object(found.runs, found.notes, None if pattern else top)))
        return
    for text in listings(found.runs, None if pattern else top):
        write_stdout(text)
    for note in found.notes:
        write_stdout(f"note: {visible(note)}\n")


@click.command(
    help="List the dump formats by producer: folder tree, location of step and rank, and the path to pass to npucmp."
)
@declare_options(ScreenFields, only="json")
def formats(json: bool) -> None:
    from npucmp.dump.catalogue import PRODUCERS, SPELLINGS, format_lines
    from npucmp.dump.formats import FORMATS
    from npucmp.dump.installed_formats import format_extensions
    from npucmp.report.sanitise import visible

    installed = {name: one for name, one in format_extensions().items() if name not in FORMATS}
    if json:
        from npucmp.report.object_json import formats_object, object_text

        write_stdout(object_text("formats", formats_object(PRODUCERS, [*FORMATS, *installed])))
        return
    for producer in PRODUCERS:
        write_stdout(f"{producer.name}\n" + "".join(f"  {line}\n" for line in format_lines(producer)))
    write_stdout("\nfolder names\n" + "".join(f"  {line}\n" for line in SPELLINGS))
    if installed:
        write_stdout("\nformats of installed packages\n")
    for name, one in installed.items():
        write_stdout(f"  {visible(name)}  {visible(one.package or one.value)}\n")
    names = visible(", ".join([*FORMATS, *installed]))
    write_stdout(f"\n--format NAME selects a format (default: the first that recognises the path):\n  {names}\n")
