"""Plan dumps of TensorFlow 1 by the NPU adapter's own dump, and of its reference on CPU or GPU by tfdbg.

Sources: CANN's TensorFlow adapter, NPURunConfig and DumpConfig (8.0 to 9.0); TensorFlow 1.15, tfdbg v1.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

from npucmp.errors import UsageError
from npucmp.plans import tool_configs
from npucmp.plans.plan_template import MAKE_FOLDER, SEEDED_GPU, SEEDED_NPU, ConfigFile, Row, Template, Variable
from npucmp.plans.request import DETECTION, STATISTICS, VALUES, DumpRequest, exact

NAME = "tensorflow"
ABOUT = "TensorFlow 1 (NPU adapter), its reference by tfdbg"
SOURCE = "CANN's TensorFlow 1 adapter, DumpConfig and session options, 8.0 to 9.0; tfdbg v1 of TensorFlow 1.15"
FORMAT = "cann"
KINDS = (VALUES, STATISTICS, DETECTION)
REFERENCE = (VALUES,)
REFUSED: dict[str, str] = {}
SERVES = False
FUSION = "fusion_switch.cfg"
FUSION_FILE = ConfigFile(FUSION, lambda request: tool_configs.FUSION_OFF, "unfused")
GRAPH = (
    Variable("DUMP_GE_GRAPH", "2", "the compiled graph, without its weights: fusions and data flow"),
    Variable("DUMP_GRAPH_LEVEL", "3", "only its last stage, Build"),
    Variable("DUMP_GRAPH_PATH", "$here/dump", "beside the dump, where npucmp finds it"),
)
ALL_DEVICES = Row("every device of the run is dumped: --ranks only applies to npucmp's own --rank", when="ranks")

named = exact


class Option(NamedTuple):
    """An option of the adapters by its documented name; the value is Python."""

    name: str
    value: str
    when: str = ""


OPTIONS = (
    Option("enable_dump", "True", "!detection"),
    Option("enable_dump_debug", "True", "detection"),
    Option("dump_path", "{dump!r}"),
    Option("dump_step", "{steps!r}", "steps !detection"),
    Option("dump_debug_mode", "'all'", "detection"),
    Option("dump_mode", "'all'", "!detection"),
    Option("dump_data", "'stats'", "statistics"),
    Option("dump_data", "'tensor'", "!statistics !detection"),
    Option("dump_layer", "{layers!r}", "names"),
    Option("fusion_switch_file", f"{{at[{FUSION}]!r}}", "unfused"),
)


def option_rows(spelled: Callable[[Option], str], where: str) -> tuple[Row, ...]:
    """Return the lines that set the options, as an adapter spells them; the first one says where."""
    return tuple(Row(spelled(one), where if one.name.startswith("enable_") else "", one.when) for one in OPTIONS)


def fields(request: DumpRequest) -> dict[str, str]:
    """Return {layers}, the names that are dumped."""
    strange = next((name for name in request.names if name.split() != [name]), None)
    if strange is not None:
        raise UsageError(f"--ops: the adapter separates names by blanks, so {strange!r:.80} cannot be selected")
    return {"layers": " ".join(request.names)}


def seeds(own: str) -> tuple[Row, ...]:
    """Return the lines that set the seeds of Python, numpy and TensorFlow, for runs that must be equal."""
    others = "import random, numpy; random.seed({seed}); numpy.random.seed({seed})"
    return Row(others, "at the top", "two-runs"), Row(own, when="two-runs")


def _option(one: Option) -> str:
    kind, value = ("b", one.value) if one.value == "True" else ("s", f"tf.compat.as_bytes({one.value})")
    return f'custom_op.parameter_map["{one.name}"].{kind} = {value}'


SEEDS = seeds("tf.compat.v1.set_random_seed({seed})")

PLAN = Template(
    files=(FUSION_FILE,),
    command=(Row("python train.py"),),
    script=(
        *SEEDS,
        *option_rows(_option, 'after custom_op.name = "NpuOptimizer"'),
        Row('custom_op.parameter_map["deterministic"].i = 1', when="equal"),
    ),
    exports=(*GRAPH, *SEEDED_NPU),
    before=(
        MAKE_FOLDER,
        Row(  # CANN appends to it in the working directory
            '[ ! -e fusion_result.json ] || mv fusion_result.json "fusion_result.before.$(date +%s).json"',
            when="fusion-diff",
        ),
    ),
    after=(Row('[ ! -e fusion_result.json ] || mv fusion_result.json "$here/dump/"', when="fusion-diff"),),
    notes=(
        Row("dump one step of a script that only trains: an evaluation in between dumps each step again"),
        Row(
            "only operators that overflow are dumped, with their records; without an overflow, no folder exists",
            when="detection",
        ),
        Row("in saturation mode (Atlas training, 910A) Inf is 65504; A2 and A3 keep Inf by default", when="detection"),
        ALL_DEVICES,
    ),
    unverified=("the adapter was not tested; its options follow the documentation",),
    fields=fields,
    reference=Template(  # tfdbg, on a CPU or GPU: values of all outputs, for every call of the session
        command=(Row("python train.py"),),
        script=(
            *SEEDS,
            Row("from tensorflow.python import debug as tf_debug"),
            Row("sess = tf_debug.DumpingDebugWrapperSession(sess, {dump!r})", "right after sess = tf.Session(...)"),
        ),
        exports=SEEDED_GPU,
        notes=(
            Row("tfdbg writes all operators in every call of session.run: run one step"),
            Row("with an Estimator, pass hooks=[tf_debug.DumpingDebugHook({dump!r})] instead"),
        ),
    ),
)
