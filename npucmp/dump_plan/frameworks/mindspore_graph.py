"""Plan dumps of MindSpore's graph mode, by its own dump: MINDSPORE_DUMP_CONFIG.

Source: MindSpore's dump.md, 2.3 to 2.10. Tried with MindSpore 2.10.0 on a CPU.
"""

from __future__ import annotations

from npucmp.dump_plan import tool_configs
from npucmp.dump_plan.dump_config import UNSURE
from npucmp.dump_plan.frameworks import mindspore
from npucmp.dump_plan.request import MD5, SEED, STATISTICS, VALUES, DumpRequest, Export, Prepared, ScriptLine

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
    return "".join(wild.get(character, UNSURE.sub(".", character)) for character in glob)


def prepare(asked: DumpRequest) -> Prepared:
    """Return the JSON, and the variables with its path and with the folder of the dump."""
    config = tool_configs.mindspore(asked.question.name, asked.kind, asked.steps, asked.ranks, asked.names)
    script = [ScriptLine("import mindspore", "at the top, before the model is created")]
    script += [ScriptLine(f"mindspore.set_seed({SEED})")] if asked.question.second else []
    script += (
        [ScriptLine("mindspore.set_deterministic(True)", "before mindspore.communication.init()")]
        if asked.question.equal
        else []
    )
    if asked.question.name == "fusion-diff":
        script.append(ScriptLine(f"mindspore.set_context(enable_graph_kernel={not asked.is_unfused})"))
    notes = ["graph mode: mindspore.set_context(mode=mindspore.GRAPH_MODE); start a new process for each dump"]
    if asked.kind in (STATISTICS, MD5):
        notes.append("on a CPU, MindSpore writes only values and rejects this file: use --values there")
    return Prepared(
        files={CONFIG: tool_configs.text_of(config)},
        command="python train.py",
        script=tuple(script) if len(script) > 1 else (),
        exports=(
            Export("MINDSPORE_DUMP_CONFIG", f"$here/{CONFIG}", "must be an absolute path"),
            Export("MS_DIAGNOSTIC_DATA_PATH", "$here/dump", "folder of the dump, because path is empty in that file"),
            *mindspore.exports(asked),
        ),
        notes=tuple(notes),
        unverified=(
            "set_deterministic: older releases have set_context(deterministic='ON')",
            "statistics and graph kernels were not tested: they need an Ascend device",
        ),
    )
