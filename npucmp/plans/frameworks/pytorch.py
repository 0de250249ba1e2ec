"""Plan dumps of PyTorch, by msprobe's PrecisionDebugger: training, evaluation, any script.

Source: msprobe 26.2, config_json_introduct.md and pytorch_data_dump_instruct.md; tried with mindstudio-probe 26.2.0.
"""

from __future__ import annotations

from npucmp.plans import tool_configs
from npucmp.plans.plan_template import SEEDED, ConfigFile, Row, Template, Variable
from npucmp.plans.request import EAGER, MD5, STATISTICS, VALUES, DumpRequest, parts

NAME = "pytorch"
ABOUT = "PyTorch (torch_npu, CUDA, CPU) by msprobe"
SOURCE = "msprobe 26.2: config_json_introduct.md, pytorch_data_dump_instruct.md; tried with mindstudio-probe 26.2.0"
FORMAT = "msprobe"
KINDS = REFERENCE = (VALUES, STATISTICS, MD5)
REFUSED = {"fusion-diff": EAGER}
SERVES = False
CONFIG = "config.json"

named = parts


def config(request: DumpRequest) -> tool_configs.Row:
    """Return config.json of msprobe."""
    return tool_configs.msprobe(
        request.dump, request.kind, request.steps, request.ranks, request.question.level, request.names
    )


def debugger(
    room: str, name: str = "debugger", where: str = "at the top, before the model is created"
) -> tuple[Row, ...]:
    """Return the lines at the top of a script; `room` is "pytorch" or "mindspore"."""
    return (
        Row(f"from msprobe.{room} import PrecisionDebugger, seed_all", where, "two-runs"),
        Row(f"from msprobe.{room} import PrecisionDebugger", where, "!two-runs"),
        Row("seed_all(seed={seed}, mode=True, rm_dropout=True)", when="two-runs equal"),
        Row("seed_all(seed={seed})", when="two-runs !equal"),
        Row(f"{name} = PrecisionDebugger(config_path={{at[{CONFIG}]!r}})"),
    )


AROUND = (
    Row("debugger.start(model=model)", "at the beginning of each step"),
    Row("debugger.stop(); debugger.step()", "at the end of each step, after the optimizer"),
)
KEEPS_INF = "Inf and NaN are kept, not clamped; not supported on Atlas training (910A)"

PLAN = Template(
    files=(ConfigFile(CONFIG, config),),
    command=(Row("python train.py"),),
    script=(*debugger("pytorch"), *AROUND),
    exports=(*SEEDED, Variable("INF_NAN_MODE_ENABLE", "1", KEEPS_INF, "overflow target")),
    notes=(
        Row("use the same release of msprobe on both sides", when="golden-pair"),
        Row(
            "--ranks: ranks that the run lacks produce an empty dump; omit --ranks on a single card",
            when="ranks !layout",
        ),
    ),
)
