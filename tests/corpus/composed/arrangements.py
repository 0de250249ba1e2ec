"""Requests, and where each step and rank holds their tokens.

A token is a row number. Each request has rows for its tokens and for the padding behind it, which is computed as
further tokens with the id 0, so that a padded run holds the numbers that a real one holds there.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

from tests.corpus.composed.values import Array

PAD = 0


class Requests(NamedTuple):
    """Ids of all rows, the number of tokens of each request, and the number of rows of each request."""

    ids: Array
    lengths: tuple[int, ...]
    width: int

    @classmethod
    def draw(cls, draw: np.random.Generator, lengths: Sequence[int], vocabulary: int) -> Requests:
        width = max(lengths) + 2
        ids = np.full((len(lengths), width), PAD)
        for request, length in enumerate(lengths):
            ids[request, :length] = draw.integers(1, vocabulary, length)
        return cls(ids.reshape(-1), tuple(lengths), width)

    @property
    def requests(self) -> Array:
        """The request of each row."""
        return np.repeat(np.arange(len(self.lengths)), self.width)

    @property
    def positions(self) -> Array:
        """The position of each row in its request."""
        return np.tile(np.arange(self.width), len(self.lengths))

    @property
    def real(self) -> Array:
        """Whether each row is a token, and no padding."""
        return self.positions < np.repeat(self.lengths, self.width)

    def rows(self, request: int) -> range:
        return range(request * self.width, (request + 1) * self.width)

    def tokens(self, request: int) -> list[int]:
        return [*self.rows(request)][: self.lengths[request]]


Steps = list[list[Array]]  # the rows of each step and rank, in the shape of the leading axes of its tensors


class Arrangement(NamedTuple):
    """Rows of each step and rank; `tp`: the ranks of tensor parallelism, which hold the same rows; `axis`: what several
    ranks with other rows are, "dp" or "cp"; `sequence`: rows are divided over ranks between products."""

    steps: Steps
    tp: int = 1
    axis: str = ""
    sequence: bool = False

    @property
    def ranks(self) -> int:
        return self.tp * len(self.steps[0])

    def rows(self, step: int, rank: int) -> Array:
        return self.steps[step][0 if self.tp > 1 else rank]

    def of_rank(self, rank: int) -> Array:
        """All rows that a rank computes."""
        return np.concatenate([self.rows(step, rank).reshape(-1) for step in range(len(self.steps))])

    def is_left(self, requests: Requests) -> bool:
        """Whether padding stands in front of tokens."""
        return any(rows.ndim == 2 and not requests.real[rows[:, 0]].all() for rows in self.steps[0])

    def lane(self, request: int, requests: Requests) -> int:
        """The width of the batch that holds a request."""
        first = requests.rows(request).start
        return next(rows.shape[1] for rows in self.steps[0] if (rows == first).any())

    @property
    def owners(self) -> Array:
        """The rank of tensor parallelism that holds each row of a divided sequence, by row number."""
        flat = self.steps[0][0].reshape(-1)
        owners = np.zeros(flat.max() + 1, int)
        for rank, rows in enumerate(np.array_split(flat, self.tp)):
            owners[rows] = rank
        return owners


def packed(requests: Requests, order: Sequence[int]) -> Array:
    """Requests one behind the other."""
    return np.concatenate([requests.tokens(request) for request in order])


def padded(requests: Requests, order: Sequence[int], left: bool = False, more: int = 0) -> Array:
    """A request a lane."""
    width = max(requests.lengths[request] for request in order) + more
    lanes = []
    for request in order:
        rows, length = [*requests.rows(request)], requests.lengths[request]
        lanes.append([*rows[length:width], *rows[:length]] if left else rows[:width])
    return np.array(lanes)


def decoded(requests: Requests, order: Sequence[int], tail: int, size: int = 1) -> list[Array]:
    """A prefill without the last `tail` tokens of each request, and steps of `size` further tokens of each."""
    prompts = {request: max(1, requests.lengths[request] - tail) for request in order}
    steps = [np.concatenate([requests.tokens(request)[: prompts[request]] for request in order])]
    for start in range(0, tail, size):
        rows = [
            row
            for request in order
            for row in requests.tokens(request)[prompts[request] + start : prompts[request] + start + size]
        ]
        if rows:
            steps.append(np.array(rows))
    return steps


def chunked(requests: Requests, order: Sequence[int], size: int) -> list[Array]:
    """A prefill in steps of `size` tokens at most."""
    rows = packed(requests, order)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def zigzag(requests: Requests, order: Sequence[int], ranks: int) -> list[Array]:
    """The packed rows of each rank of context parallelism: of each request chunks r and 2k-1-r of 2k."""
    held: list[list[Array]] = [[] for _ in range(ranks)]
    for request in order:
        chunks = np.split(np.array(requests.tokens(request)), 2 * ranks)
        for rank in range(ranks):
            held[rank] += [chunks[rank], chunks[2 * ranks - 1 - rank]]
    return [np.concatenate(chunks) for chunks in held]
