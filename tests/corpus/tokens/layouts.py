"""Layouts of tokens: for each step an array of (request, position), with padding as (-1, place)."""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

PADDING = -1


class Step(NamedTuple):
    """The tokens of a step: an array of shape (…, 2) whose leading axes are those of its tensors."""

    tokens: np.ndarray

    def gathered(self, arrays: Sequence[np.ndarray], padding: np.ndarray) -> np.ndarray:
        """The values of the tokens in the shape of the step."""
        flat = self.tokens.reshape(-1, 2)
        rows = [
            padding[place % len(padding)] if request == PADDING else arrays[request][place] for request, place in flat
        ]
        return np.stack(rows).reshape(*self.tokens.shape[:-1], *np.shape(rows[0]))

    @property
    def mask(self) -> np.ndarray:
        return (self.tokens[..., 0] != PADDING).astype(np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each lane, which holds one request."""
        is_turned = any(len({*line} - {PADDING}) > 1 for line in self.tokens[..., 0].tolist())
        return self.mask.sum(0 if is_turned else 1)


def packed(lengths: Sequence[int], order: Sequence[int], lead: bool = False) -> list[Step]:
    """All requests one behind the other in one axis; with `lead` behind an axis of length 1."""
    found = np.array([(request, place) for request in order for place in range(lengths[request])])
    return [Step(found[None] if lead else found)]


def padded(
    lengths: Sequence[int], order: Sequence[int], left: bool = False, turned: bool = False, wide: int = 0
) -> list[Step]:
    """One request a lane, padded at one end; `turned`: the sequence first."""
    most = max(lengths[one] for one in order) + wide
    lanes = []
    for request in order:
        own = [(request, place) for place in range(lengths[request])]
        free = [(PADDING, place) for place in range(most - len(own))]
        lanes.append(free + own if left else own + free)
    found = np.array(lanes)
    return [Step(found.transpose(1, 0, 2) if turned else found)]


def decoded(lengths: Sequence[int], order: Sequence[int], tail: int, batched: bool) -> list[Step]:
    """A prefill of all but the last tokens, and a step for each further token; requests that have ended are away.
    `batched`: steps have shape (requests, 1), the prefill is padded."""
    prompts = [max(1, length - tail) for length in lengths]
    steps = padded(prompts, order) if batched else packed(prompts, order)
    for more in range(tail):
        tokens = [(one, prompts[one] + more) for one in order if prompts[one] + more < lengths[one]]
        if tokens:
            found = np.array(tokens)
            steps.append(Step(found[:, None] if batched else found))
    return steps


def chunked(lengths: Sequence[int], order: Sequence[int], size: int) -> list[Step]:
    """Steps of at most `size` tokens of the requests in order."""
    every = [(request, place) for request in order for place in range(lengths[request])]
    return [Step(np.array(every[at : at + size])) for at in range(0, len(every), size)]


def one_by_one(lengths: Sequence[int], order: Sequence[int]) -> list[Step]:
    """A step for each request, of shape (1, tokens)."""
    return [Step(np.array([[(request, place) for place in range(lengths[request])]])) for request in order]
