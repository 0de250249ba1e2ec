"""Plan dumps of SGLang by msprobe, which is built in from 0.5.11 on.

Source: msprobe 26.2, sglang_eager_dump_instruct_new.md; SGLang's MSProbe guide.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace

from npucmp.dump_plan.frameworks import pytorch
from npucmp.dump_plan.request import EAGER, MD5, STATISTICS, VALUES, DumpRequest, Export, Prepared, parts

NAME = "sglang"
ABOUT = "SGLang 0.5.11 and newer, eager, by msprobe"
SOURCE = "msprobe 26.2: sglang_eager_dump_instruct_new.md, config_json_introduct.md"
FORMAT = "msprobe"
KINDS = REFERENCE = (VALUES, STATISTICS, MD5)
REFUSED = {"fusion-diff": EAGER}
SERVES = True

named = parts


def prepare(asked: DumpRequest) -> Prepared:
    """Return config.json; the server takes its path."""
    of_torch = pytorch.prepare(asked)
    device = " --device npu --attention-backend ascend" if asked.side == "target" else ""
    path = shlex.quote(os.path.abspath(asked.at(pytorch.CONFIG)))
    serve = (
        f"python3 -m sglang.launch_server --model-path MODEL{device} --disable-cuda-graph --msprobe-dump-config {path}"
    )
    health = Export("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "0", "health checks run no forward pass")
    return replace(
        of_torch,
        command=serve,
        script=(),
        exports=(
            *of_torch.exports,
            Export("TORCHDYNAMO_DISABLE", "1", "operators run one by one and are recorded"),
            health,
        ),
        notes=(*of_torch.notes, "send both sides the same requests, with temperature 0 and few max_tokens"),
        unverified=(
            "SGLang was not tested; before 0.5.11, add lines to ModelRunner: msprobe's sglang_eager_dump_instruct.md",
        ),
    )
