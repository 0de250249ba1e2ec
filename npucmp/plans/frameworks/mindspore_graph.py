"""Plan dumps of MindSpore's graph mode, by its own dump: MINDSPORE_DUMP_CONFIG.

Source: MindSpore's dump.md, 2.3 to 2.10. Tried with MindSpore 2.10.0 on a CPU.
"""

from __future__ import annotations

from npucmp.plans import tool_configs
from npucmp.plans.dump_config import REPLACEABLE
from npucmp.plans.frameworks import mindspore
from npucmp.plans.plan_template import ConfigFile, Row, Template, Variable
from npucmp.plans.request import MD5, STATISTICS, VALUES, DumpRequest

NAME = "mindspore-graph"
ABOUT = "MindSpore, graph mode, by its own dump"
SOURCE = "MindSpore's dump.md, 2.3 to 2.10; tried with MindSpore 2.10.0 on a CPU"
FORMAT = "mindspore"
KINDS = REFERENCE = (VALUES, STATISTICS, MD5)
REFUSED: dict[str, str] = {}
SERVES = False
CONFIG = "data_dump.json"


def named(globs: tuple[str, ...]) -> tuple[str, ...]:
    """Convert globs to regular expressions of kernels' full names."""
    return tuple(f"name-regex(^(.*/)?{_expression(one)}$)" for one in globs)


def _expression(glob: str) -> str:
    wild = {"*": ".*", "?": "."}
    return "".join(wild.get(character, REPLACEABLE.sub(".", character)) for character in glob)


def _config(request: DumpRequest) -> tool_configs.Row:
    return tool_configs.mindspore(request.question.name, request.kind, request.steps, request.ranks, request.names)


PLAN = Template(
    files=(ConfigFile(CONFIG, _config),),
    command=(Row("python train.py"),),
    script=(
        Row("import mindspore", "at the top, before the model is created", "two-runs"),
        Row("mindspore.set_seed({seed})", when="two-runs"),
        Row("mindspore.set_deterministic(True)", "before mindspore.communication.init()", "equal"),
        Row("mindspore.set_context(enable_graph_kernel=False)", when="fusion-diff unfused"),
        Row("mindspore.set_context(enable_graph_kernel=True)", when="fusion-diff !unfused"),
    ),
    exports=(
        Variable("MINDSPORE_DUMP_CONFIG", f"$here/{CONFIG}", "must be an absolute path"),
        Variable("MS_DIAGNOSTIC_DATA_PATH", "$here/dump", "folder of the dump, because path is empty in that file"),
        *mindspore.EXPORTS,
    ),
    notes=(
        Row("graph mode: mindspore.set_context(mode=mindspore.GRAPH_MODE); start a new process for each dump"),
        Row("on a CPU, MindSpore writes only values and rejects this file: use --values there", when="!values"),
    ),
    unverified=(
        "set_deterministic: older releases have set_context(deterministic='ON')",
        "statistics and graph kernels were not tested: they need an Ascend device",
    ),
)
