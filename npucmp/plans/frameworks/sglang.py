"""Plan dumps of SGLang by msprobe, which is built in from 0.5.11 on.

Source: msprobe 26.2, sglang_eager_dump_instruct_new.md; SGLang's MSProbe guide.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace

from npucmp.plans.frameworks import pytorch
from npucmp.plans.plan_template import Row, Variable
from npucmp.plans.request import EAGER, MD5, STATISTICS, VALUES, DumpRequest, parts

NAME = "sglang"
ABOUT = "SGLang 0.5.11 and newer, eager, by msprobe"
SOURCE = "msprobe 26.2: sglang_eager_dump_instruct_new.md, config_json_introduct.md"
FORMAT = "msprobe"
KINDS = REFERENCE = (VALUES, STATISTICS, MD5)
REFUSED = {"fusion-diff": EAGER}
SERVES = True

named = parts


def _fields(request: DumpRequest) -> dict[str, str]:
    return {"path": shlex.quote(os.path.abspath(request.at(pytorch.CONFIG)))}


PLAN = replace(
    pytorch.PLAN,
    command=(
        Row("python3 -m sglang.launch_server --model-path MODEL"),
        Row("--device npu --attention-backend ascend", when="target"),
        Row("--disable-cuda-graph --msprobe-dump-config {path}"),
    ),
    script=(),
    exports=(
        *pytorch.PLAN.exports,
        Variable("TORCHDYNAMO_DISABLE", "1", "operators run one by one and are recorded"),
        Variable("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "0", "health checks run no forward pass"),
    ),
    notes=(
        *pytorch.PLAN.notes,
        Row("send both sides the same requests, with temperature 0 and few max_tokens"),
    ),
    unverified=(
        "SGLang was not tested; before 0.5.11, add lines to ModelRunner: msprobe's sglang_eager_dump_instruct.md",
    ),
    fields=_fields,
)
