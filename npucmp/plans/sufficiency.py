"""Check whether a dump answers a question: each missing fact is one line with the setting that records it."""

from __future__ import annotations

from typing import AbstractSet, Callable, NamedTuple, Optional

from npucmp.dump.readers.msprobe_config import MANY, omitted_calls, selected_calls
from npucmp.model import Run, TensorRef
from npucmp.model.optypes import holds_weights_alone
from npucmp.plans.dump_config import level
from npucmp.plans.request import Question


class MissingData(NamedTuple):
    """A fact that a dump lacks, the consequence, and the setting of its tool that records it, "" if none is known."""

    need: str
    because: str
    setting: str

    @property
    def words(self) -> str:
        return f"{self.because}; to record it: {self.setting}" if self.setting else self.because


class CheckedRun(NamedTuple):
    """The checked run, and the steps of its dump."""

    run: Run
    steps: AbstractSet[Optional[int]]

    @property
    def tensors(self) -> list[TensorRef]:
        return [tensor for operator in self.run.operators for tensor in operator.tensors]

    def has(self, is_meant: Callable[[TensorRef], object]) -> bool:
        """Return whether any tensor satisfies the condition."""
        return any(is_meant(tensor) for tensor in self.tensors)


def missing(question: Question, run: Run, steps: AbstractSet[Optional[int]]) -> list[MissingData]:
    """Return what the run lacks for the question, the most serious first; [] if it answers the question."""
    if run.problem:
        return [MissingData("run", f"the run cannot be read ({run.problem})", "")]
    if not run.operators:
        return [MissingData("operators", "the dump holds no operator", _setting(run, "operators"))]
    looked = CheckedRun(run, steps)
    return [
        MissingData(need, words, _setting(run, need))
        for need in question.needs.split()
        if (words := NEEDS[need](looked))
    ]


def _setting(run: Run, need: str) -> str:
    words = run.detail.partition(" ")[0] if run.format == "msprobe" else ""
    own = SETTINGS.get(run.format, {})
    return own.get(f"{need} {words}", own.get(need, ""))


def _values(looked: CheckedRun) -> str:
    if looked.has(_is_stored):
        return ""
    kinds = ("statistics", _of_axes), ("checksums", _checksum), ("XOR checksums", _xor), ("statistics", _has_statistics)
    what = next((name for name, is_kind in kinds if looked.has(is_kind)), "names")
    return f"no values, only {what}: they prove neither agreement nor the size of an error"


def _sums(looked: CheckedRun) -> str:
    if looked.has(_is_stored) or looked.has(_checksum):
        return ""
    known = [tensor for tensor in looked.tensors if tensor.has_sums is not None]
    lacking = sum(tensor.has_sums is False for tensor in known)
    words = f"only Max and Min of {lacking:,} of {len(known):,} float tensors, no Mean and Norm"
    return f"{words}: a fault that preserves the extremes is not detected" if lacking else ""


def _figures(looked: CheckedRun) -> str:
    known = looked.has(_is_stored) or looked.has(lambda one: one.statistics) or looked.run.records
    return "" if known else "neither values nor statistics: NaN and Inf cannot be located"


def _bits(looked: CheckedRun) -> str:
    known = looked.has(_is_stored) or looked.has(_checksum)
    return "" if known else "neither values nor checksums: statistics prove a difference, never that two runs are equal"


def _inputs(looked: CheckedRun) -> str:
    known = looked.has(lambda one: one.slot.startswith("input")) or holds_weights_alone(looked.run)
    return "" if known else "no inputs: differing outputs are reported, but not the operator at fault"


def _outputs(looked: CheckedRun) -> str:
    return "" if looked.has(lambda one: one.is_output and one.slot) else "no outputs"


def _data(looked: CheckedRun) -> str:
    """Return "" if the inputs of a graph are recorded: MindSpore records each like a weight, by its argument name."""
    known = looked.run.format != "mindspore" or any(
        len(operator.tensors) == 1 and not operator.tensors[0].is_output for operator in looked.run.operators
    )
    return "" if known else "the inputs of the graph have no records: whether they are equal remains unknown"


def _order(looked: CheckedRun) -> str:
    return "" if looked.run.ordered else "no order of execution: the first differing operator is unknown"


def _backward(looked: CheckedRun) -> str:
    run = looked.run
    known = run.format in _WHOLE or any(operator.phase == "backward" for operator in run.operators)
    return "" if known else "no backward pass: gradients are unknown (an evaluation has none)"


def _apis(looked: CheckedRun) -> str:
    known = looked.run.format != "msprobe" or level(looked.run) != "L0"
    return "" if known else "level L0: only modules are recorded, no operator inside or between them"


def _calls(looked: CheckedRun) -> str:
    words = omitted_calls(looked.run, MANY)
    return f"{words}: a fault in one of them appears only at the next operator" if words else ""


def _whole(looked: CheckedRun) -> str:
    return selected_calls(looked.run)


def _modules(looked: CheckedRun) -> str:
    known = looked.run.format != "msprobe" or level(looked.run) == "mix"
    return "" if known else f"level {level(looked.run)}: parameters have no names, or operators no arguments"


def _steps(looked: CheckedRun) -> str:
    return "" if len(looked.steps) > 1 else "one step: updates of the weights are unknown"


def _compiler_words(looked: CheckedRun) -> str:
    if looked.run.format in ("cann", "mindspore"):
        return ""
    return "operators ran one by one and no compiler fused them: compare two dumps of a compiled graph"


def _graph(looked: CheckedRun) -> str:
    if looked.run.format != "cann":
        return ""
    known = any(one.originals or one.inserted or one.passes for one in looked.run.operators)
    known = known or looked.has(lambda one: one.source or one.origin)
    return "" if known else "no graph: fusions are inferred from names"


def _is_stored(tensor: TensorRef) -> bool:
    return bool(tensor.file) and not tensor.problem


def _has_statistics(tensor: TensorRef) -> bool:
    return tensor.statistics is not None


def _of_axes(tensor: TensorRef) -> bool:
    """Return whether it has statistics and is not a 0-d tensor, of which XOR dumps record the value."""
    return tensor.statistics is not None and tensor.shape != ()


def _checksum(tensor: TensorRef) -> bool:
    return bool(tensor.digest)


def _xor(tensor: TensorRef) -> bool:
    return tensor.has_xor


_WHOLE = ("cann", "mindspore", "atb", "tfdbg", "npy")  # formats that do not distinguish the passes
NEEDS: dict[str, Callable[[CheckedRun], str]] = {
    "values": _values, "sums": _sums, "figures": _figures, "bits": _bits, "inputs": _inputs, "outputs": _outputs,
    "data": _data, "order": _order, "backward": _backward, "modules": _modules, "steps": _steps,
    "compiled": _compiler_words, "graph": _graph, "apis": _apis, "calls": _calls, "whole": _whole,
}  # fmt: skip

SETTINGS: dict[str, dict[str, str]] = {  # by the format of the dump; as in tool_configs.py
    "msprobe": {
        "operators": '"rank": [] and "list": [] in config.json, and debugger.start() before the step',
        "values": '"task": "tensor" in config.json, or "tensor_list" for a few tensors',
        "sums": '"precision": "low" in config.json',
        "figures": '"summary_mode": "statistics" in config.json',
        "bits": '"summary_mode": "md5" in config.json',
        "inputs": '"data_mode": ["all"] in config.json',
        "outputs": '"data_mode": ["all"] in config.json',
        "backward": '"data_mode": ["all"] in config.json, and debugger.stop() after loss.backward()',
        "apis": '"level": "mix" in config.json, and debugger.start(model=model)',
        "calls": '"risk_level": "ALL" in config.json',
        "whole": '"list": [] and "scope": [] in config.json',
        "modules": '"level": "mix" in config.json, and debugger.start(model=model)',
        "steps": '"step": [0, 1, 2] in config.json, and debugger.step() at the end of each step',
    },
    "cann": {
        "operators": "dump_mode all, and no dump_layer",
        "values": "dump_data tensor instead of stats",
        "inputs": "dump_mode all (the default is output)",
        "outputs": "dump_mode all",
        "steps": "dump_step 0|1|2",
        "graph": "export DUMP_GE_GRAPH=2 DUMP_GRAPH_LEVEL=3, and ge_proto_*_Build.txt beside the dump",
    },
    "mindspore": {
        "operators": '"dump_mode": 0 in data_dump.json',
        "values": '"saved_data": "tensor" in data_dump.json',
        "sums": '"statistic_category" with "avg" and "l2norm" in data_dump.json',
        "figures": '"saved_data": "statistic" in data_dump.json',
        "bits": '"statistic_category" with "md5" in data_dump.json, or "saved_data": "tensor"',
        "inputs": '"input_output": 0 in data_dump.json',
        "outputs": '"input_output": 0 in data_dump.json',
        "order": "the folder execution_order beside the dump, which MindSpore writes",
        "steps": '"iteration": "0-2" in data_dump.json',
    },
    "atb": {
        "values": '"task": "tensor" in config.json',
        "figures": '"task": "statistics" in config.json',
        "bits": '"task": "tensor" in config.json',
        "steps": '"exec_range": "0,2" in config.json',
    },
    "tfdbg": {"inputs": "--graph with the GraphDef, if the dump has none"},
}  # fmt: skip
