"""Options that commands share, spelled once."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def common(command: Command) -> Command:
    """All options of a command that compares two dumps."""
    return some(*_OPTIONS)(command)


def some(*names: str) -> Callable[[Command], Command]:
    """Those of the options that stand under these names."""

    def decorated(command: Command) -> Command:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return decorated


def _limits(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> Any:
    from npucmp.dump.limits import Limits

    return Limits().changed(texts)


def _numbers(_: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        from npucmp.workflows import numbers

        numbers.some(option.name or "", text)
    return text


def _pairs(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    if texts:
        from npucmp.workflows import numbers

        numbers.partners(texts)
    return texts


def _output(command: Command) -> Command:
    """Where files go, and how they are written."""
    for option in (
        click.option("--xlsx", is_flag=True, help="Write report.xlsx too, with coloured sheets; needs XlsxWriter."),
        click.option(
            "--excel", is_flag=True, help="Write CSV files with a byte-order mark, by which Excel knows UTF-8."
        ),
        click.option(
            "-o", "--output", metavar="DIR", help="Write the report into DIR: CSV files, summary.json and report.html."
        ),
    ):
        command = option(command)
    return command


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "output": _output,
    "include": click.option(
        "--include", metavar="GLOB", multiple=True, help="Only operators whose name fits; repeatable."
    ),
    "exclude": click.option(
        "--exclude", metavar="GLOB", multiple=True, help="No operators whose name fits; repeatable."
    ),
    "mapping": click.option(
        "--mapping",
        metavar="FILE",
        help="Target name → golden name, as YAML, TOML or CSV, or msprobe's layer, cell, api or data mapping: "
        "--mapping layer_mapping.yaml.",
    ),
    "graph": click.option(
        "--graph",
        metavar="FILE",
        multiple=True,
        help="GE graph (text or JSON) or TensorFlow GraphDef (text or binary) of a run, or a tfdbg dump that holds its "
        "own, instead of those beside the dumps; repeatable.",
    ),
    "step": click.option("--step", metavar="N", callback=_numbers, help="Only these steps: --step 3, --step 0-9."),
    "rank": click.option("--rank", metavar="N", callback=_numbers, help="Only these ranks: --rank 0, --rank 0,8-15."),
    "pair": click.option(
        "--pair",
        metavar="A=B",
        multiple=True,
        callback=_pairs,
        help="Hold a step or rank of the target against another one of the golden: --pair step1=step0, "
        "--pair rank8=rank0; repeatable.",
    ),
    "format": click.option(
        "--format",
        "format_",
        metavar="NAME",
        help="The dumps' format, instead of recognising it: msprobe, cann, npy, …; npucmp formats lists them.",
    ),
    "rtol": click.option(
        "--rtol", type=click.FloatRange(0), help="Decide by |x-y| ≤ atol + rtol·|y| instead of the default rule."
    ),
    "atol": click.option("--atol", type=click.FloatRange(0), help="See --rtol."),
    "tolerances": click.option(
        "--tolerances", metavar="FILE", help="Rules of your own: CSV or TOML of metric, limit, dtype, op_type, why."
    ),
    "trust-statistics": click.option(
        "--trust-statistics", is_flag=True, help="Let equal statistics (max, min, mean, norm) pass for agreement."
    ),
    "strict": click.option("--strict", is_flag=True, help="Exit 1 also when an operator has no partner."),
    "coverage": click.option(
        "--coverage",
        metavar="SHARE",
        type=click.FloatRange(0, 1),
        default=1.0,
        help="Accept a target that covers at least this share of the golden's elements: --coverage 0.8. Default: 1, "
        "all of them.",
    ),
    "skip-rule": click.option(
        "--skip-rule",
        "skip_rules",
        metavar="NAME",
        multiple=True,
        help="Judge without this rule (--list-rules); repeatable.",
    ),
    "metrics": click.option(
        "--metrics",
        metavar="NAMES",
        help="Further columns for tensors.csv, comma-separated, as in euclidean,snr,gain; docs/metrics.md lists them.",
    ),
    "jobs": click.option(
        "--jobs", type=click.IntRange(1), help="Processes to measure with (default: the cores of this process)."
    ),
    "top": click.option(
        "--top", type=click.IntRange(1), default=10, show_default=True, help="Suspects shown on the terminal."
    ),
    "progress": click.option("--progress/--no-progress", default=None, help="Show progress (default: on a terminal)."),
    "verbose": click.option(
        "-v", "--verbose", is_flag=True, help="Show also what passes the error on, and every note."
    ),
    "json": click.option("--json", is_flag=True, help="Print summary.json on stdout, and nothing else."),
    "junit": click.option(
        "--junit", metavar="FILE", help="Write JUnit XML for continuous integration: a case per suspect and rule."
    ),
    "baseline": click.option(
        "--baseline",
        metavar="REPORT",
        help="A folder that -o wrote before: what it accuses already does not make the exit status 1.",
    ),
    "color": click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        help="Colours: auto (default) on a terminal, by NO_COLOR and FORCE_COLOR; always for `| less -R`.",
    ),
    "quiet": click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit status tells."),
    "limit": click.option(
        "--limit",
        "limits",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_limits,
        help="Read what is refused for its size: --limit tensor_bytes=32T. The refusal names the limit; repeatable.",
    ),
}
