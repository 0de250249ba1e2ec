"""Plan dumps of vLLM by msprobe: it is built into vLLM-Ascend, and needs lines in GPUModelRunner of vLLM itself.

Source: msprobe 26.2, vllm_dump_instruct.md, and the MSProbe guide of vLLM-Ascend.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace

from npucmp.plans.frameworks import pytorch
from npucmp.plans.plan_template import Row, Variable, only
from npucmp.plans.request import EAGER, MD5, STATISTICS, VALUES, DumpRequest, parts

NAME = "vllm"
ABOUT = "vLLM: target vLLM-Ascend, golden vLLM on a GPU, both eager, by msprobe"
SOURCE = "msprobe 26.2: vllm_dump_instruct.md, config_json_introduct.md; the MSProbe guide of vLLM-Ascend"
FORMAT = "msprobe"
KINDS = REFERENCE = (VALUES, STATISTICS, MD5)
REFUSED = {"fusion-diff": EAGER}
SERVES = True

named = parts


def _fields(request: DumpRequest) -> dict[str, str]:
    settings = {"dump_config_path": os.path.abspath(request.at(pytorch.CONFIG))}
    return {"additional": shlex.quote(json.dumps(settings))}


PLAN = replace(  # vLLM-Ascend takes the path of config.json, vLLM needs lines in its code
    pytorch.PLAN,
    command=(
        Row("vllm serve MODEL --enforce-eager --seed 1234"),
        Row("--additional-config {additional}", when="target"),
    ),
    script=only(
        "!target",
        (
            *pytorch.debugger("pytorch", "self.debugger", "first in GPUModelRunner.__init__"),
            Row("self.debugger.start(model=self.model)", "first in GPUModelRunner.execute_model"),
            Row("self.debugger.stop(); self.debugger.step()", "in a finally block around the rest of it"),
        ),
    ),
    exports=(
        *pytorch.PLAN.exports,
        Variable("TORCHDYNAMO_DISABLE", "1", "operators run one by one and are recorded"),
    ),
    notes=(
        *pytorch.PLAN.notes,
        Row("send both sides the same requests, with temperature 0 and few max_tokens"),
    ),
    unverified=("vLLM was not tested; later releases may define GPUModelRunner elsewhere",),
    fields=_fields,
)
