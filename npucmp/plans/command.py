"""npucmp plan."""

from __future__ import annotations

from typing import Any

import click

from npucmp.commands.options import declare_options
from npucmp.commands.output import write_stdout
from npucmp.plans.option_fields import PlanFields
from npucmp.report.sanitise import visible
from npucmp.workflows.option_fields import ScreenFields

HELP = """Prepare a dump that answers a question: write its configuration files into DIR, and print the lines for the
training script, the commands to run, and the npucmp command that reads the dump.

QUESTION is the npucmp command that the dump is for: compare, overflow, fusion-diff, rerun-diff, replay, check or
precheck; or weights, the parameters before and after a synchronisation. --framework is one of pytorch, mindspore
(dynamic graph), mindspore-graph, tensorflow (1), tensorflow2, acl (offline models), vllm, sglang and mindie.

\b
  npucmp plan compare --framework pytorch -o npu
  npucmp plan compare --framework pytorch -o npu --from npu_statistics --disk 200GB
  npucmp plan fusion-diff --framework tensorflow --side golden -o off       run without fusion
  npucmp plan rerun-diff --framework vllm --steps 0-2 -o again

\b
Exit status: 0 written · 2 not written (unknown word, file exists already).
"""


@click.command(help=HELP)
@click.argument("question")
@click.option("--framework", metavar="NAME", required=True, help="Framework of the run.")
@click.option("-o", "--output", metavar="DIR", required=True, help="Folder of the files; the dump is written below it.")
@declare_options(PlanFields, without="format limits")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@declare_options(PlanFields, ScreenFields, only="format json limits")
def plan(question: str, framework: str, output: str, force: bool, json: bool, **parameters: Any) -> None:
    from npucmp.plans.report import text, write
    from npucmp.plans.workflow import plan as run

    found = run(question, framework, output, **parameters)
    paths = write(found, force)
    if json:
        from npucmp.report.object_json import object_text, plan_object

        write_stdout(object_text("plan", plan_object(found, paths)))
        return
    write_stdout(text(found))

    write_stdout("  ".join(visible(str(path)) for path in paths) + "\n")
