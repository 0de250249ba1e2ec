"""A side has one number for each request, and the sides differ by the length of the response: a sum against a mean.

An equal sum is no finding. Sums that differ by another factor have no tokens to classify; they are of other weights.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.token_parity.token_pair import TokenPair

BEYOND_SUM = 3.0  # times the noise of a sum: definition, three standard deviations
RELATIVE = 0.01  # share of a sum: chosen, its digits in files of text
NEAR_LENGTH = 0.1  # share of the length: chosen


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding of requests with one number."""
    sums = pair.sums
    if sums is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = np.abs(sums.target - sums.golden)
        allowed = BEYOND_SUM * sums.noise + RELATIVE * np.minimum(np.abs(sums.target), np.abs(sums.golden))
        differs = ~(gap <= allowed)
        if not differs.any():
            return None
        ratio = sums.target / sums.golden
        near = [np.abs(one / sums.tokens - 1) < NEAR_LENGTH for one in (ratio, 1 / ratio)]
    at = int(np.argmax(differs))
    request = int(sums.requests[at])
    words = f"request {request}: {sums.target[at]:.6g} in the rollout, {sums.golden[at]:.6g} in the trainer"
    if not np.isfinite(sums.target[at] + sums.golden[at]):
        return ParityFinding(TokenClass.NAN, pair.step, request, None, None, (f"{words}, not finite",))
    margin = float(gap[at] / sums.noise[at])
    many = differs & (sums.tokens > 1)
    of_length = [bool(many.any()) and float(np.mean(one[many])) > 0.5 for one in near]
    if any(of_length):
        side = "rollout" if of_length[0] else "trainer"
        other = "trainer" if of_length[0] else "rollout"
        because = f"the {side} has the sum over a response and the {other} the mean: the ratio is the length"
        return ParityFinding(TokenClass.SUM_MEAN, pair.step, request, None, margin, (because, words))
    because = (
        f"{int(differs.sum())} of {len(differs)} sums differ, and not by the length; the tokens of a sum are unknown"
    )
    return ParityFinding(TokenClass.WEIGHTS, pair.step, request, None, margin, (because, words))
