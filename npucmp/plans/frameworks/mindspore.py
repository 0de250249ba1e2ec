"""Plan dumps of MindSpore's dynamic graph (PYNATIVE_MODE), by msprobe's PrecisionDebugger.

Source: msprobe 26.2, mindspore_data_dump_instruct.md, config_json_introduct.md. mindstudio-probe 26.2.0 reads the
files; its dump needs kernels that MindSpore has only on a device.
"""

from __future__ import annotations

from dataclasses import replace

from npucmp.plans.frameworks import pytorch
from npucmp.plans.plan_template import SEEDED, Row, Variable
from npucmp.plans.request import EAGER, MD5, STATISTICS, VALUES, parts

NAME = "mindspore"
ABOUT = "MindSpore, dynamic graph, by msprobe"
SOURCE = "msprobe 26.2: mindspore_data_dump_instruct.md, config_json_introduct.md; read by mindstudio-probe 26.2.0"
FORMAT = "msprobe"
KINDS = REFERENCE = (VALUES, STATISTICS, MD5)
REFUSED = {"fusion-diff": f"{EAGER}, or fusion-diff with --framework mindspore-graph"}
SERVES = False

named = parts

CALLBACK = "with mindspore.train.Model, pass callbacks=[MsprobeStep(debugger)] of msprobe.mindspore.common.utils"
EXPORTS = (
    *SEEDED,
    Variable("MS_ASCEND_CHECK_OVERFLOW_MODE", "INFNAN_MODE", "Inf and NaN are kept, not clamped", "overflow target"),
)

PLAN = replace(  # parts under mindspore.jit run as a graph and are dumped beside the rest
    pytorch.PLAN,
    script=(*pytorch.debugger("mindspore"), *pytorch.AROUND),
    exports=EXPORTS,
    notes=(*pytorch.PLAN.notes, Row(CALLBACK)),
    unverified=("msprobe's dump of MindSpore was not tested: it needs an Ascend device",),
)
