"""Plan dumps of TensorFlow 2 by the NPU adapter's own dump, and of its reference on CPU or GPU by tfdbg_ascend.

Sources: CANN's TensorFlow 2 adapter (npu_device) 9.0, "Accuracy Comparison"; Ascend/tools, tfdbg_ascend 0.2.
"""

from __future__ import annotations

from dataclasses import replace

from npucmp.plans.frameworks import tensorflow
from npucmp.plans.plan_template import MAKE_FOLDER, SEEDED_GPU, Row, Template
from npucmp.plans.request import DETECTION, STATISTICS, VALUES, exact

NAME = "tensorflow2"
ABOUT = "TensorFlow 2 (npu_device), its reference by tfdbg_ascend"
SOURCE = "CANN's TensorFlow 2 adapter, options of npu.global_options(), 9.0; tfdbg_ascend 0.2 of Ascend/tools"
FORMAT = "cann"
KINDS = (VALUES, STATISTICS, DETECTION)
REFERENCE = (VALUES,)
REFUSED: dict[str, str] = {}
SERVES = False
OPTIONS = "npu.global_options()"

named = exact


def _option(one: tensorflow.Option) -> str:
    room = "" if one.name == "fusion_switch_file" else "dump_config."
    return f"{OPTIONS}.{room}{one.name} = {one.value}"


SEEDS = tensorflow.seeds("tf.random.set_seed({seed})")

PLAN = replace(
    tensorflow.PLAN,
    script=(
        *SEEDS,
        *tensorflow.option_rows(_option, "after import npu_device as npu, before npu.open()"),
        Row(f"{OPTIONS}.deterministic = 1", when="equal"),
    ),
    reference=Template(  # tfdbg_ascend, built for TensorFlow 2.4 or 2.6: values of all outputs, as .npy
        command=(Row("python train.py"),),
        script=(
            *SEEDS,
            Row("import tfdbg_ascend as tfdbg"),
            Row("tfdbg.disable()"),
            Row("tfdbg.enable(); tfdbg.set_dump_path({dump!r})", "before the step to dump"),
            Row("tfdbg.disable()", "after that step"),
        ),
        exports=SEEDED_GPU,
        before=(MAKE_FOLDER,),
        unverified=("tfdbg_ascend was not tested: build it from source, for TensorFlow 2.4 or 2.6",),
    ),
)
