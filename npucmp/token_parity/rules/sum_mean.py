"""A side has one number for each request, and the sides differ by the length of the response: a sum against a mean.

An equal sum is no finding. Sums that differ by another factor have no tokens to classify; they are of other weights. If
both sides have one number, it may be a mean, whose noise is that of the sum over the length.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.token_parity.token_pair import TokenPair

BEYOND_SUM = 3.0  # times the noise of a sum: definition, three standard deviations
RELATIVE = 0.01  # share of a sum: chosen, its digits in files of text
NEAR_LENGTH = 0.1  # share of the length: chosen
LOWEST_MEAN = -12.0  # log-probability: definition, the mean over tokens of 160,000 that are equally likely


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
    return ParityFinding(TokenClass.DIFFERS, pair.step, request, None, margin, (because, words))


def unsure_mean(pair: TokenPair) -> Optional[ParityFinding]:
    """Return "undecided" for a request whose numbers are beyond the noise of means, and may be means."""
    sums = pair.sums
    if sums is None or float(np.median(np.minimum(sums.target, sums.golden))) < LOWEST_MEAN:
        return None
    digits = RELATIVE * np.minimum(np.abs(sums.target), np.abs(sums.golden))
    allowed = np.where(sums.tokens > 0, BEYOND_SUM * sums.noise / np.maximum(sums.tokens, 1), digits)
    found = sums.of_both & ~(np.abs(sums.target - sums.golden) <= allowed)
    if not found.any():
        return None
    at = int(np.argmax(found))
    request = int(sums.requests[at])
    words = f"request {request}: {sums.target[at]:.6g} in the rollout, {sums.golden[at]:.6g} in the trainer"
    because = "both sides have one number: the difference is noise of a sum, and beyond that of a mean"
    return ParityFinding(TokenClass.UNDECIDED, pair.step, request, None, None, (because, words))
