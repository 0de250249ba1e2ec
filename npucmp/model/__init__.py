"""The data model. Read its modules in this order: dump, pair, moments, finding, cause, result; then call and replayed,
for a replay.

Data flows through them in one direction:
    Run × 2 → [Pair] → Moments → Finding → Root → Result
Everything is immutable. dtypes.py is the table of element types, stack.py finds the user's line in a call stack.
"""

from __future__ import annotations

from npucmp.model.call import Call, Slot, SpelledArgument, Tree
from npucmp.model.cause import Cause, Evidence, Fact, Reasoned, Root, brief, first_of, sentences
from npucmp.model.comparison import DECIDED, Comparison, PartOf, StoredComparisons, VerdictTally, Where, map_comparisons
from npucmp.model.dump import (
    Device,
    DeviceTask,
    Head,
    Operator,
    Payload,
    RankGroup,
    Run,
    Scalar,
    Statistics,
    TensorRef,
    position,
)
from npucmp.model.finding import DIFFERS, Finding, Measurement, Tolerance, Verdict
from npucmp.model.moments import HISTOGRAM_BINS, Extremes, Moments, Side
from npucmp.model.pair import Match, Pair
from npucmp.model.replay_result import (
    GUILTY_ABOVE,
    REPLAYED,
    STATUSES,
    Edge,
    Gap,
    Held,
    Judged,
    Replay,
    Replayed,
    Replays,
)
from npucmp.model.result import (
    Event,
    Fused,
    FusionPass,
    Noise,
    Overflow,
    Repeated,
    Report,
    Rerun,
    Result,
    Scan,
)
from npucmp.model.tensor_detail import DifferenceMap, Histogram, Look, Number, Peek, WorstElement

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
    "Event",
    "Evidence",
    "Extremes",
    "Fact",
    "Finding",
    "Fused",
    "FusionPass",
    "Gap",
    "Head",
    "Held",
    "Histogram",
    "Judged",
    "Look",
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
    "Peek",
    "RankGroup",
    "Reasoned",
    "Repeated",
    "Replay",
    "Replayed",
    "Replays",
    "Report",
    "Rerun",
    "Result",
    "Root",
    "Run",
    "Scalar",
    "Scan",
    "Side",
    "Slot",
    "SpelledArgument",
    "Statistics",
    "StoredComparisons",
    "TensorRef",
    "Tolerance",
    "Tree",
    "Verdict",
    "VerdictTally",
    "Where",
    "WorstElement",
    "brief",
    "first_of",
    "map_comparisons",
    "position",
    "sentences",
]  # fmt: skip
