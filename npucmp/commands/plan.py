"""npucmp plan."""

from __future__ import annotations

from typing import Any, Optional

import click

from npucmp.commands.options import some
from npucmp.commands.output import tell

HELP = """The dump that answers a question: writes the files that make it into DIR, and prints the lines for the script,
what to run, and the npucmp command for afterwards.

QUESTION is compare, overflow, fusion-diff, rerun-diff, replay, check or precheck. NAME is pytorch, mindspore (dynamic
graph), mindspore-graph, tensorflow (1), tensorflow2, acl (offline models), vllm, sglang or mindie.

\b
  npucmp plan compare --framework pytorch -o npu
  npucmp plan compare --framework pytorch -o npu --from npu_statistics --disk 200GB
  npucmp plan fusion-diff --framework tensorflow --side golden -o off       the run without fusion
  npucmp plan rerun-diff --framework vllm --steps 0-2 -o again

\b
Exit status: 0 written · 2 not: an unknown word, a file that is there already.
"""


@click.command(help=HELP)
@click.argument("question")
@click.option("--framework", metavar="NAME", required=True, help="What the run is made with.")
@click.option("-o", "--output", metavar="DIR", required=True, help="Where the files go; the dump goes below it.")
@click.option("--side", metavar="SIDE", default="target", show_default=True, help="target or golden.")
@click.option("--steps", metavar="N", help="Which steps, from 0: --steps 3, --steps 0-2.")
@click.option("--ranks", metavar="N", help="Which ranks: --ranks 0,8-15 (default: all).")
@click.option("--ops", metavar="GLOB", multiple=True, help="Only operators whose name fits; repeatable.")
@click.option("--values", "kind", flag_value="values", help="Record values of tensors.")
@click.option("--statistics", "kind", flag_value="statistics", help="Record largest, smallest, mean, norm.")
@click.option("--md5", "kind", flag_value="md5", help="Record checksums.")
@click.option(
    "--from",
    "before",
    metavar="DUMP",
    help="An earlier dump of the same network, statistics will do: tells the size, and which operators --ops are.",
)
@click.option("--disk", metavar="SIZE", help="With --from: ask for what fits, --disk 20GB.")
@click.option("--model", metavar="NAME", default="model", help="Of acl: the offline model's file, without .om.")
@click.option("--force", is_flag=True, help="Write over files that are there.")
@some("format", "limit")
def plan(question: str, framework: str, output: str, force: bool, format_: Optional[str], **given: Any) -> None:
    from npucmp.report.plan import text, write
    from npucmp.workflows.plan import plan as run

    found = run(question, framework, output, format=format_, **given)
    paths = write(found, force)
    tell(text(found))
    from npucmp.report.sanitise import visible

    tell("  ".join(visible(str(path)) for path in paths) + "\n")
