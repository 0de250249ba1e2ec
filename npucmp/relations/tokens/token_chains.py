"""Chains of candidates: rows that stand behind each other in the target, and tokens that do so in the golden.

The chains with the most evidence are taken first; no row and no token is in two of them. A part of a chain that has
less than half of the usual evidence is left for later rounds, in which only the rows and tokens that remain count.
Chains that continue one that was taken come first there. If two chains that exclude each other have the same evidence,
neither is taken, unless all tensors agree along both: then their tokens are the same.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple, Optional

import numpy as np

from npucmp.relations.tokens.token_evidence import TokenEvidence

PASSES = 3  # passes: work: later ones move nothing
ROUNDS = 12  # rounds: work: later ones find nothing more
HALF = 0.5  # share: chosen: evidence below half of the usual one is that of another token with the same id
USUAL = 0.9  # share of rows: chosen: the evidence of all but the best tenth is smaller; padding may be most of the rest
CHAIN = HALF / 2  # share of tensors: chosen: a chain of fewer agreeing tensors is left
SURE = 0.9  # share of tensors: chosen: tokens that agree in so many are the same
SAME = 0.98  # share: chosen: a token as good as another agrees in all tensors but one of fifty
WEAK = 0.05  # share: chosen: what tokens count that are as good as another
RIVALS = 4  # chains: work: equal sums are among the next ones
TIE = 1e-9  # relative: definition: equal sums of the same numbers


class Lines(NamedTuple):
    """Where rows or tokens stand: the step and the lane of each, as one number, and the step alone."""

    lane: Any
    step: Any


class _Chain(NamedTuple):
    score: float
    row: int
    token: int
    length: int


class Matched(NamedTuple):
    """The row of each token, -1 without one; the round in which it was taken; the sum of the evidence less the cost of
    each chain; and the sum of the evidence."""

    rows: Any
    rounds: Any
    total: float
    evidence: float


def match_chains(
    evidence: TokenEvidence, rows: Lines, tokens: Lines, are_requests: bool, padding: Optional[Any] = None
) -> Matched:
    """Match rows and tokens. `are_requests`: each lane of the golden is a request, and its later tokens, without
    `padding`, do not stand in earlier steps."""
    return _Search(evidence, rows, tokens, are_requests, padding).run()


class _Search:
    def __init__(
        self, evidence: TokenEvidence, rows: Lines, tokens: Lines, are_requests: bool, padding: Optional[Any]
    ) -> None:
        self.is_real = ~padding if padding is not None else np.ones(len(tokens.lane), bool)

        order = np.lexsort((evidence.rows, evidence.rows - evidence.tokens))
        self.rows, self.tokens = evidence.rows[order], evidence.tokens[order]
        self.counts = evidence.counts[order].astype(np.float64) + 1.0
        self.lines, self.are_requests = (rows, tokens), are_requests
        self.most = evidence.tensors + 1.0
        self.weights = self.counts
        self._keys = self._key(self.rows - self.tokens, self.rows)
        self.row_of = np.full(len(tokens.lane), -1, np.int64)
        self.round_of = np.full(len(tokens.lane), -1, np.int64)
        self.token_of = np.full(len(rows.lane), -1, np.int64)

    def run(self) -> Matched:
        alone = True  # whether candidates count little that are as good as another one
        for number in range(ROUNDS):
            free: Any = (self.row_of[self.tokens] < 0) & (self.token_of[self.rows] < 0)
            free = free & self._in_order() if number else free
            if not free.any():
                break
            best = np.zeros(len(self.token_of))
            np.maximum.at(best, self.rows[free], self.counts[free])
            half = HALF * float(np.quantile(best[best > 0], USUAL))
            before = self.row_of >= 0
            self.weights = self._weights(free, half) if alone else self.counts
            taken = self._take(np.nonzero(free)[0], half, number > 0)
            if not taken and not alone:
                break
            alone = alone and taken > 0
            self.round_of[(self.row_of >= 0) & ~before] = number
        self._exchange()
        known = np.nonzero(self.row_of >= 0)[0]
        every = sum(self._count(int(self.row_of[at]), int(at)) for at in known)
        behind = known[known > 0]
        rows, last = self.row_of[behind], self.row_of[behind - 1]
        follows = (rows == last + 1) & (self.lines[1].lane[behind] == self.lines[1].lane[behind - 1])
        follows &= (last >= 0) & (self.lines[0].lane[rows] == self.lines[0].lane[last])
        chains = len(known) - int(follows.sum())
        return Matched(self.row_of, self.round_of, every - CHAIN * self.most * chains, every)

    def _exchange(self) -> None:
        """Exchange the rows of two tokens that agree as well with each other's, if more tokens then follow each other:
        requests that begin alike have equal tokens there."""

        order = np.argsort(self.tokens, kind="stable")
        starts = np.searchsorted(self.tokens[order], np.arange(len(self.row_of) + 1))
        for _ in range(PASSES):
            moved = False
            for token in range(len(self.row_of)):
                if self.row_of[token] >= 0 and self._breaks(token):
                    own = order[starts[token] : starts[token + 1]]
                    best = self._count(int(self.row_of[token]), token)
                    likely = self.rows[own[self.counts[own] >= best - 1.0]]
                    moved |= any(self._swap(token, int(row)) for row in likely)
            if not moved:
                break

    def _swap(self, token: int, wanted: int) -> bool:
        """Give a token another row, and the token that has it the row of this one, if fewer breaks remain; or exchange
        the rows of all tokens before both too."""
        row, other = int(self.row_of[token]), int(self.token_of[wanted])
        if wanted == row or (other >= 0 and self._count(row, other) < self._count(wanted, other) - 1.0):
            return False
        before = self._breaks(token) + (self._breaks(other) if other >= 0 else 0)
        heads = self._heads(token, other) if other >= 0 else []
        for moved in (heads[:1] or [(token, other)], heads):
            for one, partner in moved:
                self._set(one, int(self.row_of[partner]) if partner >= 0 else wanted, partner, int(self.row_of[one]))
            if moved and self._breaks(token) + (self._breaks(other) if other >= 0 else 0) < before:
                return True
            for one, partner in moved:
                self._set(one, int(self.row_of[partner]) if partner >= 0 else row, partner, int(self.row_of[one]))
        return False

    def _heads(self, token: int, other: int) -> list[tuple[int, int]]:
        """Two tokens and the pairs of those before them, as far as both have rows that agree with the other as well."""
        found = []
        lanes = self.lines[1].lane
        for back in range(min(token, other) + 1):
            one, partner = token - back, other - back
            if lanes[one] != lanes[token] or lanes[partner] != lanes[other] or lanes[token] == lanes[other]:
                break
            rows = int(self.row_of[one]), int(self.row_of[partner])
            if min(rows) < 0 or min(self._count(rows[1], one) - self._count(rows[0], one),
                                    self._count(rows[0], partner) - self._count(rows[1], partner)) < -1.0:  # fmt: skip
                break
            found.append((one, partner))
        return found

    def _set(self, token: int, row: int, other: int, rest: int) -> None:
        self.row_of[token], self.token_of[row], self.token_of[rest] = row, token, other
        if other >= 0:
            self.row_of[other] = rest

    def _breaks(self, token: int) -> int:
        """At how many sides a token does not stand beside its neighbour, nor in an earlier or later step."""
        row, (rows, tokens) = int(self.row_of[token]), self.lines
        count = 0
        for near in (token - 1, token + 1):
            if 0 <= near < len(self.row_of) and tokens.lane[near] == tokens.lane[token] and self.row_of[near] >= 0:
                first, last = sorted(((token, row), (near, int(self.row_of[near]))))
                follows = last[1] == first[1] + 1 and rows.lane[last[1]] == rows.lane[first[1]]
                count += not (follows or rows.step[last[1]] > rows.step[first[1]])
        return count

    def _count(self, row: int, token: int) -> float:
        """The evidence of a candidate; 0 if it is none."""
        at = int(self._keys.searchsorted(self._key(row - token, row)))
        known = at < len(self.rows) and self.rows[at] == row and self.tokens[at] == token
        return float(self.counts[at]) if known else 0.0

    def _weights(self, free: Any, half: float) -> Any:
        """The evidence of candidates. A candidate that is as good as another one of its row or token counts little: it
        follows its neighbours."""

        unlike: Any = np.ones(len(self.rows), bool)
        for places, size in ((self.rows, len(self.token_of)), (self.tokens, len(self.row_of))):
            best, rivals = np.zeros(size), np.zeros(size, np.int64)
            np.maximum.at(best, places[free], self.counts[free])
            near = free & (self.counts >= SAME * best[places])
            np.add.at(rivals, places[near], 1)
            unlike &= rivals[places] <= 1
        beyond = self.counts - half
        return np.where(unlike | (beyond < 0.0), self.counts, half + WEAK * beyond)

    def _in_order(self) -> Any:
        """Whether a candidate keeps the order of steps within its request."""

        fits = np.ones(len(self.rows), bool)
        if not self.are_requests:
            return fits
        lanes, steps = self.lines[1].lane, self.lines[0].step
        known = (self.row_of >= 0) & self.is_real
        step = np.where(known, steps[self.row_of], -1)
        low, high = step.copy(), np.where(known, step, np.iinfo(np.int64).max)
        for at in range(1, len(low)):
            if lanes[at] == lanes[at - 1]:
                low[at] = max(low[at], low[at - 1])
        for at in range(len(high) - 2, -1, -1):
            if lanes[at] == lanes[at + 1]:
                high[at] = min(high[at], high[at + 1])
        own = steps[self.rows]
        return (own >= low[self.tokens]) & (own <= high[self.tokens])

    def _take(self, places: Any, half: float, later: bool) -> int:
        """Take the chains of these candidates, and return how many."""
        heap = [
            (-one.score, one.row, one.token, one)
            for part in self._parts(places)
            for one in self._best(part, half, later)
        ]
        heapq.heapify(heap)
        taken = 0
        blocked: list[_Chain] = []
        while heap:
            *_, chain = heapq.heappop(heap)
            left = self._left(chain)
            if left != chain:
                if left is not None:
                    one = left._replace(score=self._score(left, half, later))
                    if one.score > 0.0:
                        heapq.heappush(heap, (-one.score, one.row, one.token, one))
                continue
            if any(_exclude(chain, other) for other in blocked):
                continue
            rival = next((one for *_, one in heapq.nsmallest(RIVALS, heap) if self._ties(chain, one)), None)
            if rival is not None and not (self._is_sure(chain) or _are_copies(chain, rival)):
                blocked += [chain, rival]
                continue
            self.row_of[chain.token : chain.token + chain.length] = range(chain.row, chain.row + chain.length)
            self.token_of[chain.row : chain.row + chain.length] = range(chain.token, chain.token + chain.length)
            taken += 1
        return taken

    def _ties(self, chain: _Chain, other: _Chain) -> bool:
        return (
            abs(chain.score - other.score) <= TIE * chain.score
            and _exclude(chain, other)
            and self._left(other) == other
        )

    def _is_sure(self, chain: _Chain) -> bool:
        return self._evidence(chain, self.counts) >= SURE * self.most * chain.length

    def _parts(self, places: Any) -> Any:
        """Candidates that follow each other, as (first row, first token, evidence of each)."""

        rows, tokens = self.rows[places], self.tokens[places]
        new = np.ones(len(places), bool)
        if len(places) > 1:
            new[1:] = (np.diff(rows) != 1) | (np.diff(tokens) != 1)
            new[1:] |= np.diff(self.lines[0].lane[rows]) != 0
            new[1:] |= np.diff(self.lines[1].lane[tokens]) != 0
        starts = [*np.nonzero(new)[0], len(places)]
        for start, stop in zip(starts, starts[1:]):
            yield int(rows[start]), int(tokens[start]), self.weights[places[start:stop]]

    def _best(self, part: tuple[int, int, Any], half: float, later: bool) -> list[_Chain]:
        """The stretches of a part with the largest sums of evidence beyond half of the usual one."""
        row, token, counts = part
        found, at = [], 0
        while at < len(counts):
            total = high = 0.0
            start = stop = at
            for place in range(at, len(counts)):
                total += counts[place] - half
                if total <= 0.0:
                    if high > 0.0:
                        break
                    total, start = 0.0, place + 1
                elif total > high:
                    high, stop = total, place + 1
            if high <= 0.0:
                break
            chain = _Chain(0.0, row + start, token + start, stop - start)
            score = self._score(chain, half, later, counts[start:stop])
            found += [chain._replace(score=score)] if score > 0.0 else []
            at = stop
        return found

    def _score(self, chain: _Chain, half: float, later: bool, counts: Optional[Any] = None) -> float:
        total = float(counts.sum()) if counts is not None else self._evidence(chain, self.weights)
        score = total - half * chain.length - half / 2
        if later:
            score += half * self._continues(chain)
        return score

    def _continues(self, chain: _Chain) -> int:
        """At how many ends a chain continues one that was taken."""
        count = 0
        for row, token, near in (
            (chain.row - 1, chain.token - 1, 1),
            (chain.row + chain.length, chain.token + chain.length, -1),
        ):
            if 0 <= row < len(self.token_of) and self.token_of[row] == token >= 0:
                count += int(self.lines[0].lane[row] == self.lines[0].lane[row + near])
        return count

    def _evidence(self, chain: _Chain, counts: Any) -> float:
        start = int(self._keys.searchsorted(self._key(chain.row - chain.token, chain.row)))
        return float(counts[start : start + chain.length].sum())

    def _key(self, diagonal: Any, row: Any) -> Any:
        """A number that sorts candidates by diagonal, then by row."""
        return diagonal * (len(self.lines[0].lane) + 1) + row

    def _left(self, chain: _Chain) -> Optional[_Chain]:
        """The longest stretch of a chain of which no row and no token is taken; None without one."""
        rows = self.token_of[chain.row : chain.row + chain.length] < 0
        free = rows & (self.row_of[chain.token : chain.token + chain.length] < 0)
        if free.all():
            return chain
        best, start, count = (0, 0), 0, 0
        for at, one in enumerate([*free, False]):
            if one:
                count += 1
                continue
            best = max(best, (count, -start))
            start, count = at + 1, 0
        return chain._replace(row=chain.row - best[1], token=chain.token - best[1], length=best[0]) if best[0] else None


def _are_copies(one: _Chain, other: _Chain) -> bool:
    """Whether two chains are of the same tokens, or of the same rows: a prompt that is there twice."""
    return one.length == other.length > 1 and (one.token == other.token or one.row == other.row)


def _exclude(one: _Chain, other: _Chain) -> bool:
    """Whether two chains have a row or a token in common."""
    rows = one.row < other.row + other.length and other.row < one.row + one.length
    return rows or (one.token < other.token + other.length and other.token < one.token + one.length)
