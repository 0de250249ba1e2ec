"""Options that commands share, spelled once."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def common(command: Command) -> Command:
    """Which runs, which operators, by which rules, and where the report goes."""
    for decorate in reversed(_COMMON):
        command = decorate(command)
    return command


_COMMON: "tuple[Callable[[Any], Any], ...]" = (
    click.option("-o", "--output", metavar="DIR", help="Write tensors.csv, roots.csv and summary.json into DIR."),
    click.option("--include", metavar="GLOB", multiple=True, help="Only operators whose name fits; repeatable."),
    click.option("--exclude", metavar="GLOB", multiple=True, help="No operators whose name fits; repeatable."),
    click.option("--mapping", metavar="FILE", help="Target name → golden name, as YAML, TOML or CSV."),
    click.option(
        "--graph",
        metavar="FILE",
        multiple=True,
        help="GE graph (text or JSON) or TensorFlow GraphDef (text) of a run, instead of those beside the dumps; "
        "repeatable.",
    ),
    click.option("--step", type=click.IntRange(0), help="Only this step."),
    click.option("--rank", type=click.IntRange(0), help="Only this rank."),
    click.option("--format", "format_", metavar="NAME", help="The dumps' format, instead of recognising it."),
    click.option(
        "--rtol", type=click.FloatRange(0), help="Decide by |x-y| ≤ atol + rtol·|y| instead of the default rule."
    ),
    click.option("--atol", type=click.FloatRange(0), help="See --rtol."),
    click.option(
        "--tolerances", metavar="FILE", help="Rules of your own: CSV or TOML of metric, limit, dtype, op_type, why."
    ),
    click.option(
        "--trust-statistics", is_flag=True, help="Let equal statistics (max, min, mean, norm) pass for agreement."
    ),
    click.option("--strict", is_flag=True, help="Exit 1 also when an operator has no partner."),
    click.option("--metrics", metavar="NAMES", help="Further columns for tensors.csv, comma-separated."),
    click.option(
        "--jobs", type=click.IntRange(1), help="Threads to measure with (default: the cores of this process)."
    ),
    click.option(
        "--top", type=click.IntRange(1), default=10, show_default=True, help="Suspects shown on the terminal."
    ),
    click.option("--progress/--no-progress", default=None, help="Show progress (default: on a terminal)."),
    click.option("-v", "--verbose", is_flag=True, help="Show also what passes the error on, and every note."),
    click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit status tells."),
)
