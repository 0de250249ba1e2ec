"""Plan dumps of vLLM by msprobe: it is built into vLLM-Ascend, and needs lines in GPUModelRunner of vLLM itself.

Source: msprobe 26.2, vllm_dump_instruct.md, and the MSProbe guide of vLLM-Ascend.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace

from npucmp.dump_plan.frameworks import pytorch
from npucmp.dump_plan.request import EAGER, MD5, STATISTICS, VALUES, DumpRequest, Export, Prepared, ScriptLine, parts

NAME = "vllm"
ABOUT = "vLLM: target vLLM-Ascend, golden vLLM on a GPU, both eager, by msprobe"
SOURCE = "msprobe 26.2: vllm_dump_instruct.md, config_json_introduct.md; the MSProbe guide of vLLM-Ascend"
FORMAT = "msprobe"
KINDS = REFERENCE = (VALUES, STATISTICS, MD5)
REFUSED = {"fusion-diff": EAGER}
SERVES = True

named = parts


def prepare(asked: DumpRequest) -> Prepared:
    """Return config.json; vLLM-Ascend takes its path, vLLM needs lines in its code."""
    of_torch = pytorch.prepare(asked)
    script: tuple[ScriptLine, ...] = ()
    serve = "vllm serve MODEL --enforce-eager --seed 1234"
    if asked.side == "target":
        config = json.dumps({"dump_config_path": os.path.abspath(asked.at(pytorch.CONFIG))})
        serve = f"{serve} --additional-config {shlex.quote(config)}"
    else:
        script = (
            *(line._replace(where="first in GPUModelRunner.__init__") if line.where else line for line in _own(asked)),
            ScriptLine("self.debugger.start(model=self.model)", "first in GPUModelRunner.execute_model"),
            ScriptLine("self.debugger.stop(); self.debugger.step()", "in a finally block around the rest of it"),
        )
    quiet = Export("TORCHDYNAMO_DISABLE", "1", "operators run one by one and are recorded")
    return replace(
        of_torch,
        command=serve,
        script=script,
        exports=(*of_torch.exports, quiet),
        notes=(*of_torch.notes, "send both sides the same requests, with temperature 0 and few max_tokens"),
        unverified=("vLLM was not tested; later releases may define GPUModelRunner elsewhere",),
    )


def _own(asked: DumpRequest) -> tuple[ScriptLine, ...]:
    return tuple(
        line._replace(code=line.code.replace("debugger =", "self.debugger =", 1))
        for line in pytorch.calls(asked, "torch")
    )
