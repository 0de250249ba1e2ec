"""Plan dumps of PyTorch, by msprobe's PrecisionDebugger: training, evaluation, any script.

Source: msprobe 26.2, config_json_introduct.md and pytorch_data_dump_instruct.md; tried with mindstudio-probe 26.2.0.
"""

from __future__ import annotations

from npucmp.dump_plan import tool_configs
from npucmp.dump_plan.request import (
    EAGER,
    MD5,
    SEED,
    STATISTICS,
    VALUES,
    DumpRequest,
    Export,
    Prepared,
    ScriptLine,
    parts,
    seeded,
)

NAME = "pytorch"
ABOUT = "PyTorch (torch_npu, CUDA, CPU) by msprobe"
SOURCE = "msprobe 26.2: config_json_introduct.md, pytorch_data_dump_instruct.md; tried with mindstudio-probe 26.2.0"
FORMAT = "msprobe"
KINDS = REFERENCE = (VALUES, STATISTICS, MD5)
REFUSED = {"fusion-diff": EAGER}
SERVES = False
CONFIG = "config.json"

named = parts


def prepare(asked: DumpRequest) -> Prepared:
    """Return config.json, and the lines around a step."""
    return Prepared(
        files=config(asked),
        command="python train.py",
        script=(*calls(asked, "torch"), *AROUND),
        exports=exports(asked),
        notes=remarks(asked),
    )


def config(asked: DumpRequest) -> dict[str, str]:
    """Return config.json of msprobe."""
    level = asked.question.level
    content = tool_configs.msprobe(asked.dump, asked.kind, asked.steps, asked.ranks, level, asked.names)
    return {CONFIG: tool_configs.text_of(content)}


def calls(asked: DumpRequest, package: str) -> tuple[ScriptLine, ...]:
    """Return the lines at the top of a script; package is "torch" or "mindspore"."""
    room = {"torch": "pytorch"}.get(package, package)
    top = "at the top, before the model is created"
    found = (
        [ScriptLine(f"from msprobe.{room} import PrecisionDebugger, seed_all", top)] if asked.question.second else []
    )
    if not asked.question.second:
        found = [ScriptLine(f"from msprobe.{room} import PrecisionDebugger", top)]
    elif asked.question.equal:
        found.append(ScriptLine(f"seed_all(seed={SEED}, mode=True, rm_dropout=True)"))
    else:
        found.append(ScriptLine(f"seed_all(seed={SEED})"))
    return (*found, ScriptLine(f"debugger = PrecisionDebugger(config_path={asked.at(CONFIG)!r})"))


AROUND = (
    ScriptLine("debugger.start(model=model)", "at the beginning of each step"),
    ScriptLine("debugger.stop(); debugger.step()", "at the end of each step, after the optimizer"),
)


def exports(asked: DumpRequest) -> tuple[Export, ...]:
    """Return the environment of torch_npu, or of the reference on a GPU."""
    on_npu = asked.side == "target"
    found = seeded(asked, on_npu=on_npu)
    if asked.question.name == "overflow" and on_npu:
        found += (
            Export(
                "INF_NAN_MODE_ENABLE", "1", "Inf and NaN are kept, not clamped; not supported on Atlas training (910A)"
            ),
        )
    return found


def remarks(asked: DumpRequest) -> tuple[str, ...]:
    """Return notes on further requirements of msprobe."""
    found = ["use the same release of msprobe on both sides"] if asked.question.second == "golden" else []
    if asked.ranks:
        found.append("--ranks: ranks that the run lacks produce an empty dump; omit --ranks on a single card")
    return tuple(found)
