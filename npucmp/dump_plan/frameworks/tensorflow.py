"""Plan dumps of TensorFlow 1 by the NPU adapter's own dump, and of its reference on CPU or GPU by tfdbg.

Sources: CANN's TensorFlow adapter, NPURunConfig and DumpConfig (8.0 to 9.0); TensorFlow 1.15, tfdbg v1.
"""

from __future__ import annotations

from npucmp.dump_plan import tool_configs
from npucmp.dump_plan.request import (
    DETECTION,
    SEED,
    STATISTICS,
    VALUES,
    DumpRequest,
    Export,
    Prepared,
    ScriptLine,
    exact,
    seeded,
)
from npucmp.errors import UsageError

NAME = "tensorflow"
ABOUT = "TensorFlow 1 (NPU adapter), its reference by tfdbg"
SOURCE = "CANN's TensorFlow 1 adapter, DumpConfig and session options, 8.0 to 9.0; tfdbg v1 of TensorFlow 1.15"
FORMAT = "cann"
KINDS = (VALUES, STATISTICS, DETECTION)
REFERENCE = (VALUES,)
REFUSED: dict[str, str] = {}
SERVES = False
FUSION = "fusion_switch.cfg"
OPTION = 'custom_op.parameter_map["{}"].{} = {}'
WHERE = 'after custom_op.name = "NpuOptimizer"'
GRAPH = (
    Export("DUMP_GE_GRAPH", "2", "the compiled graph, without its weights: fusions and data flow"),
    Export("DUMP_GRAPH_LEVEL", "3", "only its last stage, Build"),
    Export("DUMP_GRAPH_PATH", "$here/dump", "beside the dump, where npucmp finds it"),
)
FUSION_RESULT = (  # CANN appends to it in the working directory
    '[ ! -e fusion_result.json ] || mv fusion_result.json "fusion_result.before.$(date +%s).json"',
    '[ ! -e fusion_result.json ] || mv fusion_result.json "$here/dump/"',
)

named = exact


def prepare(asked: DumpRequest) -> Prepared:
    """Return the options of the session; the reference uses another tool."""
    seeds = seeds_of(asked, f"tf.compat.v1.set_random_seed({SEED})")
    if asked.is_reference:
        return of_reference(asked, seeds)
    script = [OPTION.format(name, kind_of(value), python_literal(value)) for name, value in options(asked).items()]
    script += [OPTION.format("deterministic", "i", 1)] if asked.question.equal else []
    lines = (ScriptLine(code, "" if number else WHERE) for number, code in enumerate(script))
    return of_npu(asked, (*seeds, *lines))


def seeds_of(asked: DumpRequest, own: str) -> tuple[ScriptLine, ...]:
    """Return the lines that set the seeds of Python, numpy and TensorFlow, for runs that must be equal."""
    others = f"import random, numpy; random.seed({SEED}); numpy.random.seed({SEED})"
    return (ScriptLine(others, "at the top"), ScriptLine(own)) if asked.question.second else ()


def of_npu(asked: DumpRequest, script: tuple[ScriptLine, ...]) -> Prepared:
    """Return the common part of both adapters: the fusion switch, the graph, the folders."""
    fusion = asked.question.name == "fusion-diff"
    notes = ["dump one step of a script that only trains: an evaluation in between dumps each step again"]
    if asked.kind == DETECTION:
        notes.append(
            "only operators that overflow are dumped, with their records; without an overflow, no folder exists"
        )
        notes.append("in saturation mode (Atlas training, 910A) Inf is 65504; A2 and A3 keep Inf by default")
    return Prepared(
        files={FUSION: tool_configs.text_of(tool_configs.FUSION_OFF)} if asked.is_unfused else {},
        command="python train.py",
        script=script,
        exports=(*GRAPH, *seeded(asked, on_npu=True)),
        before=('mkdir -p "$here/dump"', *FUSION_RESULT[:fusion]),
        after=FUSION_RESULT[1:] if fusion else (),
        notes=(*notes, *all_devices(asked)),
        unverified=("the adapter was not tested; its options follow the documentation",),
    )


def all_devices(asked: DumpRequest) -> tuple[str, ...]:
    """Return a note if ranks are selected, because CANN dumps all devices."""
    return ("every device of the run is dumped: --ranks only applies to npucmp's own --rank",) if asked.ranks else ()


def options(asked: DumpRequest) -> dict[str, object]:
    """Return the options of the dump, by their documented names."""
    found: dict[str, object] = {"enable_dump": True, "dump_path": asked.dump, **tool_configs.when(asked.steps)}
    if asked.kind == DETECTION:
        found = {"enable_dump_debug": True, "dump_path": asked.dump, "dump_debug_mode": "all"}
    else:
        found.update(dump_mode="all", dump_data="stats" if asked.kind == STATISTICS else "tensor")
    if asked.names:
        strange = next((name for name in asked.names if name.split() != [name]), None)
        if strange is not None:
            raise UsageError(f"--ops: the adapter separates names by blanks, so {strange!r:.80} cannot be selected")
        found["dump_layer"] = " ".join(asked.names)
    if asked.is_unfused:
        found["fusion_switch_file"] = asked.at(FUSION)
    return found


def kind_of(value: object) -> str:
    """Return the field of an option: b for a bool, s for text."""
    return "b" if isinstance(value, bool) else "s"


def python_literal(value: object) -> str:
    """Return an option's value as Python."""
    return repr(value) if isinstance(value, bool) else f"tf.compat.as_bytes({value!r})"


def of_reference(asked: DumpRequest, seeds: tuple[ScriptLine, ...]) -> Prepared:
    """Return the plan for tfdbg, on a CPU or GPU: values of all outputs, for every call of the session."""
    session = f"sess = tf_debug.DumpingDebugWrapperSession(sess, {asked.dump!r})"
    script = (
        *seeds,
        ScriptLine("from tensorflow.python import debug as tf_debug"),
        ScriptLine(session, "right after sess = tf.Session(...)"),
    )
    hook = f"with an Estimator, pass hooks=[tf_debug.DumpingDebugHook({asked.dump!r})] instead"
    return Prepared(
        files={},
        command="python train.py",
        script=script,
        exports=seeded(asked, on_npu=False),
        notes=("tfdbg writes all operators in every call of session.run: run one step", hook),
    )
