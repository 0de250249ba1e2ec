"""Plan dumps of offline models (.om) by acl.json, and of their reference by ONNX Runtime.

Sources: CANN 8.0 to 9.0, "Dump configuration" of the runtime's API reference and atc; msprobe 26.2,
infer_offline_dump_instruct.md.
"""

from __future__ import annotations

import os
import shlex

from npucmp.plans import tool_configs
from npucmp.plans.frameworks import tensorflow
from npucmp.plans.plan_template import MAKE_FOLDER, ConfigFile, Row, Template
from npucmp.plans.request import DETECTION, STATISTICS, VALUES, DumpRequest, exact

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


def _config(request: DumpRequest) -> tool_configs.Row:
    return tool_configs.acl([request.model], request.dump, request.kind, request.steps, request.names)


def _fields(request: DumpRequest) -> dict[str, str]:
    in_c = request.at(CONFIG).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return {
        "config_in_c": f'"{in_c}"',
        "output": shlex.quote(f"--output={request.model}"),
        "fusion_switch": shlex.quote(f"--fusion_switch_file={request.at(tensorflow.FUSION)}"),
        "om": shlex.quote(f"--om={request.model}.om"),
        "json": shlex.quote(f"--json={request.at(GRAPH)}"),
    }


def _fields_of_reference(request: DumpRequest) -> dict[str, str]:
    return {"folder": shlex.quote(os.path.abspath(request.dump))}


PLAN = Template(
    files=(ConfigFile(CONFIG, _config), tensorflow.FUSION_FILE),
    command=(Row("./main"),),
    script=(Row("aclInit({config_in_c});", "where the program calls aclInit, before the model is loaded"),),
    before=(MAKE_FOLDER,),
    steps=(
        (
            Row("atc --model=model.onnx --framework=5 {output} --soc_version=SOC"),
            Row("{fusion_switch}", when="unfused"),
            Row("--status_check=1", when="detection"),
        ),
        (Row("atc --mode=1 {om} {json}"),),
    ),
    notes=(
        Row(
            "SOC is the chip that npu-smi info shows, such as Ascend910B1; --framework=5 is ONNX, 3 TensorFlow, 0 Caffe"
        ),
        Row(
            "only AI Core operators that overflow are dumped; without --status_check=1, no operator is dumped",
            when="detection",
        ),
        Row(
            "move fusion_result.json from the working directory of atc into the folder of the dump", when="fusion-diff"
        ),
        tensorflow.ALL_DEVICES,
    ),
    unverified=("acl.json was not tested: it needs an Ascend device",),
    fields=_fields,
    reference=Template(  # ONNX Runtime without its fusion, because fusion drops tensors
        command=(
            Row('msprobe offline_dump --model_path "$PWD/model.onnx" --input_data "$PWD/input_0.npy"'),
            Row("--onnx_fusion_switch False -o {folder}"),
        ),
        found="*/dump_data/onnx",
        notes=(Row("pass the inputs of the offline model with --input_data; without it, inputs are random"),),
        unverified=("the folder of an ONNX dump follows the documentation and was not tested",),
        fields=_fields_of_reference,
    ),
)
