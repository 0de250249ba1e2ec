"""Where statistics are all there is, the first operator that stands out of the noise before it is suspected.

localise/noise.py has the model and the evidence for its numbers, localise/suspects.py what follows for places.
"""

from __future__ import annotations

from npucmp.localise.case import Rule

RULE = Rule(
    "fact",
    "suspected",
    "by statistics alone, the first operator out of the noise before it is suspected, and nothing before it proven",
    applies=lambda case: case.finding.measurement.moments is None,
)
