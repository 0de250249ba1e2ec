"""Plan dumps of offline models (.om) by acl.json, and of their reference by ONNX Runtime.

Sources: CANN 8.0 to 9.0, "Dump configuration" of the runtime's API reference and atc; msprobe 26.2,
infer_offline_dump_instruct.md.
"""

from __future__ import annotations

import os
import shlex

from npucmp.dump_plan import tool_configs
from npucmp.dump_plan.frameworks import tensorflow
from npucmp.dump_plan.request import DETECTION, STATISTICS, VALUES, DumpRequest, Prepared, ScriptLine, exact

NAME = "acl"
ABOUT = "offline models (.om) of atc by acl.json, their reference by ONNX Runtime"
SOURCE = "CANN 8.0 to 9.0: dump configuration of acl.json, atc; msprobe 26.2: infer_offline_dump_instruct.md"
FORMAT = "cann"
KINDS = (VALUES, STATISTICS, DETECTION)
REFERENCE = (VALUES,)
REFUSED: dict[str, str] = {}
SERVES = False
CONFIG = "acl.json"
GRAPH = "graph_model.json"  # the model converted by atc, beside the dump

named = exact


def prepare(asked: DumpRequest) -> Prepared:
    """Return acl.json, the matching command of atc, and the model's graph beside the dump."""
    if asked.is_reference:
        return _of_reference(asked)
    config = tool_configs.acl([asked.model], asked.dump, asked.kind, asked.steps, asked.names)
    files = {CONFIG: tool_configs.text_of(config)}
    convert = ["atc", "--model=model.onnx", "--framework=5", f"--output={asked.model}", "--soc_version=SOC"]
    if asked.is_unfused:
        files[tensorflow.FUSION] = tool_configs.text_of(tool_configs.FUSION_OFF)
        convert.append(f"--fusion_switch_file={asked.at(tensorflow.FUSION)}")
    if asked.kind == DETECTION:
        convert.append("--status_check=1")
    graph = ["atc", "--mode=1", f"--om={asked.model}.om", f"--json={asked.at(GRAPH)}"]
    notes = [
        "SOC is the chip that npu-smi info shows, such as Ascend910B1; --framework=5 is ONNX, 3 TensorFlow, 0 Caffe"
    ]
    if asked.kind == DETECTION:
        notes.append("only AI Core operators that overflow are dumped; without --status_check=1, no operator is dumped")
    if asked.question.name == "fusion-diff":
        notes.append("move fusion_result.json from the working directory of atc into the folder of the dump")
    return Prepared(
        files=files,
        command="./main",
        script=(
            ScriptLine(
                f'aclInit("{_in_c(asked.at(CONFIG))}");', "where the program calls aclInit, before the model is loaded"
            ),
        ),
        before=('mkdir -p "$here/dump"',),
        steps=(shlex.join(convert), shlex.join(graph)),
        notes=(*notes, *tensorflow.all_devices(asked)),
        unverified=("acl.json was not tested: it needs an Ascend device",),
    )


def _in_c(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _of_reference(asked: DumpRequest) -> Prepared:
    """Return the plan for ONNX Runtime, without its fusion, because fusion drops tensors."""
    command = 'msprobe offline_dump --model_path "$PWD/model.onnx" --input_data "$PWD/input_0.npy"'
    return Prepared(
        files={},
        command=f"{command} --onnx_fusion_switch False -o {shlex.quote(os.path.abspath(asked.dump))}",
        found="*/dump_data/onnx",
        notes=("pass the inputs of the offline model with --input_data; without it, inputs are random",),
        unverified=("the folder of an ONNX dump follows the documentation and was not tested",),
    )
