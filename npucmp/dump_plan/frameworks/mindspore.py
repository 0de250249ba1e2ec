"""Plan dumps of MindSpore's dynamic graph (PYNATIVE_MODE), by msprobe's PrecisionDebugger.

Source: msprobe 26.2, mindspore_data_dump_instruct.md, config_json_introduct.md. mindstudio-probe 26.2.0 reads the
files; its dump needs kernels that MindSpore has only on a device.
"""

from __future__ import annotations

from dataclasses import replace

from npucmp.dump_plan.frameworks import pytorch
from npucmp.dump_plan.request import EAGER, MD5, STATISTICS, VALUES, DumpRequest, Export, Prepared, parts, seeded

NAME = "mindspore"
ABOUT = "MindSpore, dynamic graph, by msprobe"
SOURCE = "msprobe 26.2: mindspore_data_dump_instruct.md, config_json_introduct.md; read by mindstudio-probe 26.2.0"
FORMAT = "msprobe"
KINDS = REFERENCE = (VALUES, STATISTICS, MD5)
REFUSED = {"fusion-diff": f"{EAGER}, or fusion-diff with --framework mindspore-graph"}
SERVES = False

named = parts


def prepare(asked: DumpRequest) -> Prepared:
    """Return the plan of PyTorch, adapted; parts under mindspore.jit run as a graph and are dumped beside the rest."""
    of_torch = pytorch.prepare(asked)
    callback = "with mindspore.train.Model, pass callbacks=[MsprobeStep(debugger)] of msprobe.mindspore.common.utils"
    return replace(
        of_torch,
        script=(*pytorch.calls(asked, "mindspore"), *pytorch.AROUND),
        exports=exports(asked),
        notes=(*of_torch.notes, callback),
        unverified=("msprobe's dump of MindSpore was not tested: it needs an Ascend device",),
    )


def exports(asked: DumpRequest) -> tuple[Export, ...]:
    """Return the environment of MindSpore on Ascend, or on the reference's device."""
    on_npu = asked.side == "target"
    found = seeded(asked, on_npu=on_npu)
    if asked.question.name == "overflow" and on_npu:
        found += (Export("MS_ASCEND_CHECK_OVERFLOW_MODE", "INFNAN_MODE", "Inf and NaN are kept, not clamped"),)
    return found
