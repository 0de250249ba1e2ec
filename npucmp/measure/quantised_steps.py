"""Count the elements of a pair that differ by more than a share of the step of a quantised code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import blocks
from npucmp.model import Payload

READ = 1 << 16  # elements read at once: work


class StepLimit(NamedTuple):
    """|target - golden| ≤ rtol·|golden| + atol + steps·step, where step is the scale of the element's code."""

    rtol: float
    atol: float
    steps: float


def elements_beyond(target: Payload, golden: Payload, step: Payload, limit: StepLimit, context: ReadContext) -> int:
    """Return the number of elements beyond the limit; NaN on one side is beyond it. The three payloads have one shape.

    Raises NpucmpError if a payload cannot be read.
    """
    beyond = 0
    streams = (blocks(one, READ, context=context) for one in (target, golden, step))
    for three in zip(*streams):
        x, y, size = (one.astype(np.float64) for one in three)
        with np.errstate(all="ignore"):
            within = np.abs(x - y) <= limit.rtol * np.abs(y) + limit.atol + limit.steps * size
        within |= np.isnan(x) & np.isnan(y)
        beyond += int(np.count_nonzero(~within))
    return beyond
