"""The nouns. A newcomer reads these files first, in this order: dump, pair, moments, finding, cause, result.

Data flows one way through them:
    Run × 2 → [Pair] → Moments → Finding → Root → Report
Everything is immutable. dtypes.py is the table of element types, stack.py finds the user's line in a call stack.
"""

from __future__ import annotations

from npucmp.model.cause import Cause, Evidence, Fact, Root, brief, sentences
from npucmp.model.dump import Device, Operator, Payload, Run, Scalar, Statistics, Task, TensorRef
from npucmp.model.finding import DIFFERS, Finding, Measurement, Tolerance, Verdict
from npucmp.model.moments import HISTOGRAM_BINS, Extremes, Moments, Side
from npucmp.model.pair import Match, Pair
from npucmp.model.result import Comparison, Event, FusionPass, Noise, Overflow, Report, Rerun, Scan, Spots

__all__ = [
    "DIFFERS",
    "HISTOGRAM_BINS",
    "Cause",
    "Comparison",
    "Device",
    "Event",
    "Evidence",
    "Extremes",
    "Fact",
    "Finding",
    "FusionPass",
    "Match",
    "Measurement",
    "Moments",
    "Noise",
    "Operator",
    "Overflow",
    "Pair",
    "Payload",
    "Report",
    "Rerun",
    "Root",
    "Run",
    "Scalar",
    "Scan",
    "Side",
    "Spots",
    "Statistics",
    "Task",
    "TensorRef",
    "Tolerance",
    "Verdict",
    "brief",
    "sentences",
]
