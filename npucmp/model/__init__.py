"""The data model. Read its modules in this order: dump, pair, moments, finding, cause, result; then call and replayed,
for a replay.

Data flows through them in one direction:
    Run × 2 → [Pair] → Moments → Finding → Root → Result
Everything is immutable. dtypes.py is the table of element types, stack.py finds the user's line in a call stack.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npucmp.model.cause import Cause, Evidence, Fact, Root, Statement, brief, first_of
    from npucmp.model.comparison import (
        DECIDED,
        Comparison,
        PartOf,
        StepRankNumbers,
        StoredComparisons,
        VerdictTally,
        map_comparisons,
    )
    from npucmp.model.dump import (
        Call,
        Device,
        DeviceTask,
        Operator,
        Payload,
        RankGroup,
        Run,
        RunHeader,
        Scalar,
        Slot,
        SpelledArgument,
        Statistics,
        TensorRef,
        Tree,
        position,
    )
    from npucmp.model.finding import DIFFERS, Finding, Match, Measurement, Pair, Tolerance, Verdict
    from npucmp.model.fusion_result import FusionPass, FusionResult
    from npucmp.model.moments import HISTOGRAM_BINS, Extremes, Moments, Side
    from npucmp.model.overflow_result import Event, Overflow, Scan
    from npucmp.model.replay_result import Edge, EdgeVerdict, Gap, Replay, ReplayResult
    from npucmp.model.replayed_output import (
        GUILTY_ABOVE,
        REPLAYED,
        STATUSES,
        ReplayedOutput,
        ReplayVerdict,
        RoundingCounts,
    )
    from npucmp.model.rerun_result import Noise, Rerun, RerunResult
    from npucmp.model.result import Report, Result
    from npucmp.model.tensor_detail import (
        DifferenceMap,
        Histogram,
        ImageBatch,
        Number,
        TensorDetail,
        TensorPreview,
        WorstElement,
    )

_NAMES = {  # module → its names; a module is loaded for the first of them, numpy for the names of a comparison
    "cause": "Cause Evidence Fact Root Statement brief first_of",
    "comparison": "DECIDED Comparison PartOf StepRankNumbers StoredComparisons VerdictTally map_comparisons",
    "dump": "Call Device DeviceTask Operator Payload RankGroup Run RunHeader Scalar Slot SpelledArgument Statistics "
    "TensorRef Tree position",
    "finding": "DIFFERS Finding Match Measurement Pair Tolerance Verdict",
    "moments": "HISTOGRAM_BINS Extremes Moments Side",
    "result": "Report Result",
    "fusion_result": "FusionPass FusionResult",
    "overflow_result": "Event Overflow Scan",
    "replay_result": "Edge EdgeVerdict Gap Replay ReplayResult",
    "replayed_output": "GUILTY_ABOVE REPLAYED STATUSES ReplayedOutput ReplayVerdict RoundingCounts",
    "rerun_result": "Noise Rerun RerunResult",
    "tensor_detail": "DifferenceMap Histogram ImageBatch Number TensorDetail TensorPreview WorstElement",
}
__all__ = [
    "DECIDED",
    "DIFFERS",
    "GUILTY_ABOVE",
    "HISTOGRAM_BINS",
    "REPLAYED",
    "STATUSES",
    "Call",
    "Cause",
    "Comparison",
    "Device",
    "DeviceTask",
    "DifferenceMap",
    "Edge",
    "EdgeVerdict",
    "Event",
    "Evidence",
    "Extremes",
    "Fact",
    "Finding",
    "FusionPass",
    "FusionResult",
    "Gap",
    "Histogram",
    "ImageBatch",
    "Match",
    "Measurement",
    "Moments",
    "Noise",
    "Number",
    "Operator",
    "Overflow",
    "Pair",
    "PartOf",
    "Payload",
    "RankGroup",
    "Replay",
    "ReplayResult",
    "ReplayVerdict",
    "ReplayedOutput",
    "Report",
    "Rerun",
    "RerunResult",
    "Result",
    "Root",
    "RoundingCounts",
    "Run",
    "RunHeader",
    "Scalar",
    "Scan",
    "Side",
    "Slot",
    "SpelledArgument",
    "Statement",
    "Statistics",
    "StepRankNumbers",
    "StoredComparisons",
    "TensorDetail",
    "TensorPreview",
    "TensorRef",
    "Tolerance",
    "Tree",
    "Verdict",
    "VerdictTally",
    "WorstElement",
    "brief",
    "first_of",
    "map_comparisons",
    "position",
]  # fmt: skip
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
