"""Tokens that one side counts and the other never sampled.

The masks of the sides differ; or, in a run of two tokens and more, one side has log-probability exactly 0, which an
engine writes for a token that it did not sample, and the other side is far from it. A side, or a request, that is 0
nearly everywhere is no such run: its engine writes 0 for every token (temperature 0). Nor are zeros most of which stand
alone (top-p).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Optional

import numpy as np

from npucmp.model.token_batch import Bools, Floats
from npucmp.token_parity.token_pair import TokenPair, first_place

FAR_FROM_ZERO = -0.8  # log-probability: definition, no rounding makes 0 of a probability below 0.45
CERTAIN = -0.01  # log-probability: chosen, a nucleus of one token has less on the other side
OF_ZEROS = 0.5  # share of such zeros that are in runs: chosen, a nucleus of one token makes single ones
LEAST_RUN = 3  # tokens in runs: chosen, two neighbours may be chance
ALL_ZERO = 0.8  # share of zeros from which a side, or a request, has 0 for every token: chosen
BEFORE_RUN = -0.1  # log-probability of the other side at a zero before a run: chosen


class NeverSampled(NamedTuple):
    """The tokens, the first of them, whether all stand behind the end of a response, a sentence on them, and one on
    their places."""

    tokens: Bools
    place: tuple[int, int]
    is_padding: bool
    because: str
    where: str


@lru_cache(maxsize=4)  # several rules ask about one pair
def never_sampled(pair: TokenPair) -> Optional[NeverSampled]:
    """Return the tokens of a pair that only one side sampled; None if there are none."""
    counted = pair.counted
    masked = counted & (pair.target_mask != pair.golden_mask)
    zeros = [
        counted & (one == 0) & (other < FAR_FROM_ZERO)
        for one, other in ((pair.target, pair.golden), (pair.golden, pair.target))
    ]
    for side, values in enumerate((pair.target, pair.golden)):
        of_row = (counted & (values == 0)).sum(axis=1) > ALL_ZERO * counted.sum(axis=1)
        if not counted.any() or (values[counted] == 0).mean() > ALL_ZERO:
            of_row[:] = True
        zeros[side][of_row] = False
    runs = [_runs(side | masked) & side for side in zeros]
    alone = [
        counted & (one == 0) & (other < CERTAIN) & (other >= FAR_FROM_ZERO)
        for one, other in ((pair.target, pair.golden), (pair.golden, pair.target))
    ]
    runs = [
        run & (run.sum() >= max(OF_ZEROS * side.sum(), single.sum())) for run, side, single in zip(runs, zeros, alone)
    ]
    found = masked | (runs[0] | runs[1] if sum(int(run.sum()) for run in runs) >= LEAST_RUN else masked)
    place = first_place(found)
    if place is None:
        return None
    other = counted & ~found
    last = np.where(other.any(axis=1), other.shape[1] - 1 - np.argmax(other[:, ::-1], axis=1), -1)
    first = np.where(found.any(axis=1), np.argmax(found, axis=1), other.shape[1])
    is_last = bool(np.all(first > last))
    where = _place_words(pair, found) if is_last else "tokens that both sides count follow them"
    is_padding = not where
    where = where or "all of them stand behind the end of a response"
    return NeverSampled(found, _extended(pair, place, counted), is_padding, _words(masked, runs, found), where)


def _place_words(pair: TokenPair, found: Bools) -> str:
    """Return where the last tokens of responses stand, "" if they are behind the end. A token is in the response if
    the rollout has a log-probability of its own for it. Without one, a single token in every response may be its end.
    """
    each = found.sum(axis=1)
    ids = {*pair.target_ids[found].tolist(), *pair.golden_ids[found].tolist()} - {-1}
    token = f", token {ids.pop()}" if len(ids) == 1 else ""
    if _are_sampled(pair.target[found]):
        place = "each is the last token of its response" if each.max() == 1 else "they are the last of their responses"
        return f"{place}{token}; the rollout has log-probabilities for them"
    is_one_each = bool(np.all(each[pair.counted.any(axis=1)] == 1))
    return f"in each response it is one token, behind the last that both sides count{token}" if is_one_each else ""


def _are_sampled(log_probs: Floats) -> bool:
    """Return whether log-probabilities are of sampled tokens: padding is 0, -1 or one value everywhere."""
    if len(log_probs) == 1:
        return bool(log_probs[0] not in (0.0, -1.0))
    return bool((log_probs != 0.0).all() and log_probs.min() < log_probs.max())


def _runs(tokens: Bools) -> Bools:
    """Return the tokens that have a neighbour among them."""
    found = np.zeros_like(tokens)
    found[:, 1:] |= tokens[:, 1:] & tokens[:, :-1]
    found[:, :-1] |= tokens[:, :-1] & tokens[:, 1:]
    return found


def _extended(pair: TokenPair, place: tuple[int, int], counted: Bools) -> tuple[int, int]:
    """Return the first zero of the run that reaches a place: a run may begin with tokens that the other side finds
    likely."""
    row, at = place
    for one, other in ((pair.target, pair.golden), (pair.golden, pair.target)):
        while at and one[row, at] == 0 == one[row, at - 1] and counted[row, at - 1] and other[row, at - 1] < BEFORE_RUN:
            at -= 1
    return row, at


def _words(masked: Bools, runs: list[Bools], found: Bools) -> str:
    requests = int(found.any(axis=1).sum())
    if masked.any():
        return f"the masks differ in {int(masked.sum())} tokens of {requests} requests"
    side = "rollout" if runs[0].any() else "trainer"
    return (
        f"{int(found.sum())} tokens of {requests} requests count, and their log-probability is exactly 0 in the {side}"
    )
