"""npucmp rule and npucmp columns, which explain verdicts and reports."""

from __future__ import annotations

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import write_stdout
from npucmp.workflows.option_fields import ScreenFields


@click.command(
    help="""Explain the rules that decide a verdict, a finding or a class: when a rule applies, its limits, and its
constants with their sources.

NAME is the name of a rule, or a glob; without NAME all rules are listed. The columns rule and explained_by of a report
name the rules of compare. --skip-rule and --skip leave rules out.

\b
  npucmp rule
  npucmp rule growth
  npucmp rule 'weight.*' network.arguments
"""
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@declare_options(ScreenFields, only="json")
def rule(names: tuple[str, ...], json: bool) -> None:
    from npucmp.report.rule_page import LETTERS, rule_list, rule_text, rules_object
    from npucmp.workflows.rule import rule as describe

    pages = describe(names)
    if json:
        from npucmp.report.object_json import object_text

        write_stdout(object_text("rule", rules_object(pages)), is_translated=False)
        return
    if not names:
        write_stdout("".join(f"{line}\n" for line in rule_list(pages)))
        return
    for page in pages:
        for line, is_message in rule_text(page):
            write_stdout(f"{line}\n", is_translated=is_message)
    if any(page.command == "compare" for page in pages):
        write_stdout(f"{LETTERS}\n")


@click.command(
    help="""Explain the columns of the tables that -o DIR writes, and the keys of summary.json.

NAME is a table (roots.csv, roots), a column, or a glob; without NAME the tables are listed. docs/metrics.md explains
how the figures are computed.

\b
  npucmp columns
  npucmp columns roots.csv
  npucmp columns 'max_abs*' explained_by
"""
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@declare_options(ScreenFields, only="json")
def columns(names: tuple[str, ...], json: bool) -> None:
    from npucmp.report.columns import columns as describe
    from npucmp.report.columns import columns_object, table_list, table_text

    tables = describe(names)
    if json:
        from npucmp.report.object_json import object_text

        write_stdout(object_text("columns", columns_object(tables)), is_translated=False)
        return
    if not names:
        write_stdout("".join(f"{line}\n" for line in table_list(tables)), is_translated=False)
    for table in tables if names else ():
        write_stdout("".join(f"{line}\n" for line in table_text(table)), is_translated=False)
