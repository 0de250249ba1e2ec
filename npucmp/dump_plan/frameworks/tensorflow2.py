"""Plan dumps of TensorFlow 2 by the NPU adapter's own dump, and of its reference on CPU or GPU by tfdbg_ascend.

Sources: CANN's TensorFlow 2 adapter (npu_device) 9.0, "Accuracy Comparison"; Ascend/tools, tfdbg_ascend 0.2.
"""

from __future__ import annotations

from npucmp.dump_plan.frameworks import tensorflow
from npucmp.dump_plan.request import (
    DETECTION,
    SEED,
    STATISTICS,
    VALUES,
    DumpRequest,
    Prepared,
    ScriptLine,
    exact,
    seeded,
)

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


def prepare(asked: DumpRequest) -> Prepared:
    """Return the options to set before the device is opened."""
    seeds = tensorflow.seeds_of(asked, f"tf.random.set_seed({SEED})")
    if asked.is_reference:
        return _of_reference(asked, seeds)
    script = [f"{OPTIONS}.{_option_file(name)} = {value!r}" for name, value in tensorflow.options(asked).items()]
    script += [f"{OPTIONS}.deterministic = 1"] if asked.question.equal else []
    where = "after import npu_device as npu, before npu.open()"
    lines = (ScriptLine(code, "" if number else where) for number, code in enumerate(script))
    return tensorflow.of_npu(asked, (*seeds, *lines))


def _option_file(option: str) -> str:
    return option if option == "fusion_switch_file" else f"dump_config.{option}"


def _of_reference(asked: DumpRequest, seeds: tuple[ScriptLine, ...]) -> Prepared:
    """Return the plan for tfdbg_ascend, built for TensorFlow 2.4 or 2.6: values of all outputs, as .npy."""
    script = (
        *seeds,
        ScriptLine("import tfdbg_ascend as tfdbg"),
        ScriptLine("tfdbg.disable()"),
        ScriptLine(f"tfdbg.enable(); tfdbg.set_dump_path({asked.dump!r})", "before the step to dump"),
        ScriptLine("tfdbg.disable()", "after that step"),
    )
    return Prepared(
        files={},
        command="python train.py",
        script=script,
        exports=seeded(asked, on_npu=False),
        before=('mkdir -p "$here/dump"',),
        unverified=("tfdbg_ascend was not tested: build it from source, for TensorFlow 2.4 or 2.6",),
    )
