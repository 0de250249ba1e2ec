"""npucmp compare."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import Any, Iterator

import click

from npucmp.commands.options import SHARED, declare_options, drop_options
from npucmp.commands.output import carry_out, write_stdout
from npucmp.workflows.option_fields import ClusterFields, CompareFields, FollowFields, ScreenFields

HELP = """Find the operator that diverged first, and test whether it is the cause.

TARGET is the run under test, GOLDEN the reference run. Each is the root of a dump, a step or rank folder, a
dump.json, or a folder of .npy files.

\b
  npucmp compare npu_dump gpu_dump -o report
  npucmp compare npu_dump/step0 gpu_dump/step0 --include '*layer_norm*'
  npucmp compare npu_dump gpu_dump --recompute all
  npucmp compare npu_bf16 gpu_bf16 --truth gpu_fp32 -o report
  npucmp compare npu_dump gpu_dump -o report --scheduler scheduler.json
  npucmp compare --follow npu_dump gpu_dump --until DIVERGED

Exit status: 0 all golden tensors are covered and agree, or are no further from the truth than the golden · 1 a tensor
diverged, or the target is further from the truth than the golden · 2 undecided (a part of the golden was
not compared, unreadable tensors, statistics that prove nothing, no common tensors, bad usage).
"""


KINDS = """limit: rounding alone may make this error · explanation: the errors of the inputs may make this error
accusation: a fault although the error is small · fact: a property that the search assumes
e: error (rel_l2) of the inputs · u: unit round-off of the type · K: number of terms · s: share of elements
--skip-rule NAME switches a rule off; npucmp rule NAME prints its reasons.
"""


def _list_rules(context: click.Context, _: click.Parameter, value: bool) -> None:
    """Print the meaning of the kinds and letters, then one line per rule, sorted by kind."""
    if not value or context.resilient_parsing:
        return
    from npucmp.localise.rules import RULES

    write_stdout(f"{KINDS}\n")
    width = max(len(rule.name) for rule in RULES)
    for rule in RULES:
        write_stdout(f"{rule.kind:<11}  {rule.name:<{width}}  {rule.why}\n")
    context.exit()


GROUPS = {  # title → options of the help, in this order; the last group lists all others
    "Output": "output top json report_format junit quiet verbose color show_progress parts parquet excel xlsx",
    "Selection of runs, operators and names": "step rank pair layout golden_layout ranks_apart kv_heads lora_scale "
    "fc1 include exclude mapping "
    "align explain graph also format limits",
    "Judgement": "rtol atol tolerances noise trust_statistics strict batch_invariance coverage skip_rules list_rules "
    "metrics baseline precheck recompute replay truth",
    "Execution": "dry_run jobs resume scheduler disk follow until settle idle timeout no_config",
}
ARGUMENTS = (("TARGET", "The run under test: a dump."), ("GOLDEN", "The reference run: a dump."))


class _Command(click.Command):
    """The command compare. `--replay` needs no value, so a dump that follows it is not read as its value."""

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write TARGET, GOLDEN and -o, then the text."""
        rows = {option.name: option.get_help_record(context) for option in self.get_params(context)}
        with formatter.section("Arguments"):
            formatter.write_dl([*ARGUMENTS, *filter(None, [rows["output"]])])
        super().format_help_text(context, formatter)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups by purpose."""
        options = [one for one in self.get_params(context) if isinstance(one, click.Option) and one.name != "output"]
        rows = {option.name: option.get_help_record(context) for option in options}
        groups = {title: [rows.pop(name, None) for name in names.split()] for title, names in GROUPS.items()}
        for title, options_of in {**groups, "Other": [*rows.values()]}.items():
            if found := [row for row in options_of if row is not None]:
                with formatter.section(title):
                    formatter.write_dl(found)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        found: list[str] = []
        for word, after in zip(args, [*args[1:], ""]):
            found += [word, "suspects"] if word == "--replay" and after not in ("suspects", "all") else [word]
        return super().parse_args(context, found)


@click.command(help=HELP, cls=_Command)
@click.argument("target")
@click.argument("golden")
@declare_options(
    CompareFields,
    ClusterFields,
    ScreenFields,
    only="layout golden_layout ranks_apart kv_heads lora_scale fc1 batch_invariance align explain noise resume also "
    "disk recompute replay truth scheduler precheck parts parquet",
)
@click.option(
    "--list-rules",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_rules,
    help="Print each rule in a sentence, and exit.",
)
@click.option("--dry-run", is_flag=True, help="Print which relations hold and what would be measured, and exit.")
@click.option("--follow", is_flag=True, help="Compare runs that are still going: each step when it is complete.")
@declare_options(FollowFields)
@declare_options(ScreenFields, CompareFields, only=SHARED)
@click.pass_context
def compare(
    context: click.Context,
    /,
    target: str,
    golden: str,
    scheduler: str | None,
    follow: bool,
    dry_run: bool,
    **parameters: Any,
) -> None:
    if dry_run and (follow or parameters["json"] or parameters["report_format"]):
        raise click.UsageError(
            "--dry-run prints the plan alone; leave out --follow, --json and --report-format.", context
        )
    if follow:
        if scheduler is not None:
            raise click.UsageError("--follow compares in this process and its workers; leave out --scheduler.", context)
        if parameters["truth"] is not None:
            raise click.UsageError("--truth needs all steps; leave out --follow.", context)
        from npucmp.follow.command import carry_out_followed
        from npucmp.follow.compare import follow_compare

        carry_out_followed(context, parameters, partial(follow_compare, target, golden))
    drop_options(FollowFields, parameters, "--follow")
    from npucmp.workflows.compare import compare as run

    if dry_run:
        context.exit(_print_plan(target, golden, parameters))
    if parameters["verbose"] and not parameters["quiet"]:
        parameters["announce"] = lambda lines: click.echo("\n".join(["plan", *lines, ""]), err=True)
    with _executor(scheduler, target, golden, parameters) as executor:
        carry_out(context, parameters, partial(run, target, golden, executor=executor))


def _print_plan(target: str, golden: str, parameters: dict[str, Any]) -> int:
    """Print the plan, and return the exit status: 2 if the runs cannot be compared."""
    from dataclasses import fields

    from npucmp.workflows.compare import comparison_plan
    from npucmp.workflows.options import Options

    own = {field.name for field in fields(Options)}
    plan = comparison_plan(target, golden, **{name: value for name, value in parameters.items() if name in own})
    write_stdout(f"{plan}\n")
    return 2 if plan.problem else 0


@contextmanager
def _executor(scheduler: str | None, target: str, golden: str, parameters: dict[str, Any]) -> Iterator[Any]:
    """Yield the Dask cluster that compares; None: this process and its worker processes."""
    if scheduler is None:
        yield None
        return
    from npucmp.errors import UsageError
    from npucmp.measure.dask_executor import Cluster
    from npucmp.workflows.options import RECOMPUTE

    if not parameters["output"]:
        raise UsageError("--scheduler needs -o DIR, a folder that all workers can access: their results go there")
    files = [parameters[name] for name in ("mapping", "tolerances", "noise", "truth") if parameters[name] is not None]
    files = [file for file in files if file != RECOMPUTE]
    with Cluster(scheduler, [target, golden, *files], parameters["output"]) as cluster:
        yield cluster
