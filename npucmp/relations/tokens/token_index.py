"""The token index of two runs: for each token of the golden, by request and position, its row in a step of the target.

There is one index for all operators. It is found from the evidence of all tensors (token_evidence.py, token_chains.py)
and is refused if the tokens of a request do not stand behind each other in the target. Tokens of the golden without a
row are padding only at one end of a request, and only if a mask or lengths show it (token_padding.py); all others stay
open.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.relations.tokens.token_axes import TokenShape
from npucmp.relations.tokens.token_chains import CHAIN, Lines, Matched, match_chains
from npucmp.relations.tokens.token_evidence import TokenEvidence, counts_of
from npucmp.relations.tokens.token_lengths import Recorded, recorded_lengths, recorded_positions
from npucmp.relations.tokens.token_padding import (
    Padding,
    beside_tokens,
    end_class,
    likely_padding,
    may_be_padding,
    padding_of,
    proven_padding,
)
from npucmp.relations.tokens.token_rows import RowRun, coalesced
from npucmp.relations.tokens.token_tensors import TokenSide

TIE = 1e-6  # relative: chosen: sums of evidence that differ by less do not decide between two orders of axes
LIKE = 0.95  # share: chosen: an order of axes with less evidence than this share of the most is not the right one
FEWEST = 0.5  # share of tokens: chosen: runs with fewer common tokens were given different inputs


class TokenIndex(NamedTuple):
    """The tokens of the golden that have a row, by request and position.

    rows, places  the row of the target and of the golden, numbered lane by lane, step by step
    requests, positions  as the golden counts them, from 0, without padding
    lengths  of the requests of the golden, without padding
    open     requests, first positions and numbers of tokens without a row; negative for those that may be padding
    padding  where the golden has padding, in words; "" without padding; `padded`: the number of its tokens, or of
             those that are likely to be padding
    problem  the reason why the index is refused; "" otherwise. `is_ambiguous`: another index is as good
    marks    of all tokens of the golden
    """

    target: TokenSide
    golden: TokenSide
    rows: Any
    places: Any
    requests: Any
    positions: Any
    lengths: tuple[int, ...]
    open: tuple[tuple[int, int, int], ...]
    padding: str = ""
    padded: int = 0
    problem: str = ""
    is_ambiguous: bool = False
    marks: TokenMarks = None  # type: ignore[assignment]

    def runs(self, of_target: bool) -> list[RowRun]:
        """The rows of the tokens on one side, in the order of the tokens."""
        shapes, numbers = (self.target.shapes, self.rows) if of_target else (self.golden.shapes, self.places)
        return coalesced([RowRun(*place_of(int(one), shapes), 1) for one in numbers])

    def where(self, at: int) -> tuple[int, str]:
        """The step of the target that holds a token, and its row there in words."""
        number = int(self.rows[at])
        step, lane, place = place_of(number, self.target.shapes)
        shape = self.target.shapes[step]
        if not shape.has_batch:
            return step, str(place)
        return step, str([place, lane] if shape.is_turned else [lane, place])

    @property
    def is_part(self) -> bool:
        """Whether the target holds a part of the golden's rows in their order and layout, as a rank does of a batch."""
        if len(self.target.shapes) > 1 or len(self.golden.shapes) > 1 or len(self.rows) < self.target.size:
            return False
        shapes = self.target.shapes[0], self.golden.shapes[0]
        is_alike = shapes[0].has_batch == shapes[1].has_batch and len(shapes[0].sizes) == len(shapes[1].sizes)
        is_alike &= not shapes[0].has_batch or shapes[0].places == shapes[1].places
        return is_alike and bool(
            (self.rows[1:] - self.rows[:-1] == 1).all() and (self.places[1:] - self.places[:-1] == 1).all()
        )

    @property
    def is_identity(self) -> bool:
        """Whether each token that has a row is in the same one, in a step with the layout of the golden."""
        if len(self.golden.shapes) > 1:
            return self.target.has_shapes_of(self.golden) and bool((self.rows == self.places).all())
        step = place_of(int(self.rows[0]), self.target.shapes)[0]
        first = sum(shape.size for shape in self.target.shapes[:step])
        is_same = self.target.shapes[step][:2] == self.golden.shapes[0][:2]
        return is_same and bool((self.rows - first == self.places).all())


def joined_index(found: Sequence[TokenIndex]) -> tuple[TokenIndex, list[tuple[int, str]]]:
    """The tokens that any rank of the target holds, and the step and row of each in the first rank that does. Tokens of
    several ranks stand in the order of their rows, rank by rank, so that each rank holds a contiguous part."""

    first = found[0]
    if len(found) == 1:
        return first, [first.where(at) for at in range(len(first.rows))]
    where: dict[int, tuple[int, str]] = {}  # by place in the golden
    for index in found:
        for at in map(int, np.argsort(index.rows, kind="stable")):
            where.setdefault(int(index.places[at]), index.where(at))
    is_padding = np.logical_and.reduce([index.marks.is_padding for index in found])
    is_known = np.zeros(first.golden.size, bool)
    is_known[[*where]] = True
    marks = first.marks._replace(is_padding=is_padding)
    numbered = numbered_tokens(is_known, marks)
    numbers = {int(place): number for number, place in enumerate(numbered.places)}
    order = [numbers[place] for place in where if place in numbers]
    places = numbered.places[order]
    joined = first._replace(
        rows=places, places=places, requests=numbered.requests[order], positions=numbered.positions[order],
        lengths=numbered.lengths, open=numbered.open, marks=marks,
    )  # fmt: skip
    return joined, [where[int(place)] for place in places]


class TokenMarks(NamedTuple):
    """The request of each token of the golden, whether it is padding, and its class by the tensor that shows ids."""

    requests: Any
    is_padding: Any
    classes: Any


class NumberedTokens(NamedTuple):
    """The places of the tokens of the golden that have a row, with their requests and positions; lengths, and open
    tokens, as in `TokenIndex`."""

    places: Any
    requests: Any
    positions: Any
    lengths: tuple[int, ...]
    open: tuple[tuple[int, int, int], ...]


def numbered_tokens(is_known: Any, marks: TokenMarks) -> NumberedTokens:
    """Number the tokens of the golden, of which some have a row, by request and position."""

    places: list[int] = []
    numbers: list[int] = []
    positions: list[int] = []
    lengths: list[int] = []
    open_tokens: list[tuple[int, int, int]] = []
    for number, request in enumerate(dict.fromkeys(map(int, marks.requests))):
        own = np.nonzero((marks.requests == request) & ~marks.is_padding)[0]
        lengths.append(len(own))
        known_at = np.nonzero(is_known[own])[0]
        lead = int(known_at[0]) if len(known_at) else 0
        lead = lead if len(np.unique(marks.classes[own[:lead]])) == 1 else 0
        for position, at in enumerate(map(int, own), -lead):  # tokens of one id before the first may be padding
            if is_known[at]:
                places.append(at)
                numbers.append(number)
                positions.append(position)
            elif open_tokens and open_tokens[-1][0] == number and sum(open_tokens[-1][1:]) == position:
                open_tokens[-1] = (*open_tokens[-1][:2], open_tokens[-1][2] + 1)
            else:
                open_tokens.append((number, position, 1))
    known = np.array(places, np.int64)
    return NumberedTokens(known, np.array(numbers), np.array(positions), tuple(lengths), tuple(open_tokens))


def is_refuted(index: TokenIndex, evidence: TokenEvidence) -> bool:
    """Whether the tokens are in the same rows: the first tensor holds the same ones, or as many tensors agree at the
    places of the golden as at those to which an index moves tokens. Then other positions or indices were read."""
    if evidence.is_same:
        return not index.is_identity
    moved = index.rows != index.places
    if not index.target.has_shapes_of(index.golden) or not moved.any():
        return False
    counts = counts_of(evidence, index.rows[moved], index.places[moved])
    return bool(evidence.in_place >= counts.mean())


def place_of(number: int, shapes: Sequence[TokenShape]) -> tuple[int, int, int]:
    """The step, lane and place of a row."""
    step = 0
    while number >= shapes[step].size:
        number -= shapes[step].size
        step += 1
    return (step, *divmod(number, shapes[step].places))


def find_index(target: TokenSide, golden: TokenSide, evidence: TokenEvidence) -> Optional[TokenIndex]:
    """The index; None if too few tokens of the golden have a row. The orders of axes are taken in which requests follow
    each other, few tokens are open, and most evidence agrees."""
    found = []
    for left, right in product(_orders(target), _orders(golden)):
        padding = Padding(recorded_lengths(left), recorded_lengths(right), left.shapes[0], right.shapes[0])
        own = _renumbered(evidence, left, right)
        own = _without_padding(own, left, right, padding)
        lines = _lines(left, padding.target), _lines(right, padding.golden)
        free = _end_class(own, left, right)
        are_requests = right.shapes[0].has_batch or (len(right.shapes) == 1 and lines[1].lane[-1] > 0)
        matched = match_chains(own, *lines, are_requests, free)
        index = _index(matched, left, right, own, padding)
        if len(index.rows) >= max(1, FEWEST * min(golden.size - index.padded, target.size)):
            found.append(_Candidate(index, matched.total, matched.evidence, own.tensors * CHAIN))
    if not found:
        return None
    found = [one for one in found if not one.found.problem] or found
    most = max(one.evidence for one in found)
    found = [one for one in found if one.evidence >= LIKE * most]
    several = len(target.runs) > 1
    found.sort(key=lambda one: one.rank(several))
    best = found[0]
    rivals = [one for one in found[1:] if not several or one.rank(several)[:2] == best.rank(several)[:2]]
    if any(one.total >= best.total * (1 - TIE) and one.contradicts(best) for one in rivals):
        words = "batch and sequence can be exchanged: two indices have the same evidence"
        return best.found._replace(problem=words, is_ambiguous=True)
    return best.found


class _Candidate(NamedTuple):
    """An index for an order of axes, its evidence as in `Matched`, and the cost of a chain."""

    found: TokenIndex
    total: float
    evidence: float
    cost: float

    def rank(self, several: bool) -> tuple[float, ...]:
        """The smallest is best. Few chains decide, and padding, which stands at no end of a request in the other order
        of axes. With `several` steps the chains of decoding go over the batch, and decide last."""
        index = self.found
        if several:
            return sum(one[2] for one in index.open), -index.padded, self.is_unusual, -self.total
        return -self.total - index.padded * self.cost, self.is_unusual

    @property
    def is_unusual(self) -> bool:
        """Whether the golden has more requests than tokens in each."""
        shape = self.found.golden.shapes[0]
        return shape.lanes > shape.places

    def contradicts(self, other: _Candidate) -> bool:
        """Whether a token has another row, by the order of memory."""
        rows, others = self._rows(), other._rows()
        return any(others.get(token, row) != row for token, row in rows.items())

    def _rows(self) -> dict[int, int]:
        index = self.found
        return dict(zip(_flat(index.places, index.golden), _flat(index.rows, index.target)))


def _orders(side: TokenSide) -> list[TokenSide]:
    """The side with both orders of batch and sequence, without one that its mask or its positions contradict."""
    if not any(shape.has_batch for shape in side.shapes):
        return [side]
    both = [side, side.turned()]
    both = [one for one in both if recorded_lengths(one).named is not None] or both
    counted = [_counting(one) for one in both]
    return both if len({*counted}) == 1 else [both[counted.index(max(counted))]]


def _counting(side: TokenSide) -> int:
    """The number of tokens whose recorded position is that before them in their lane plus one."""
    positions, start, count = recorded_positions(side), 0, 0
    if positions is None:
        return 0
    for shape in side.shapes:
        own = positions[start : start + shape.size].reshape(shape.lanes, shape.places)
        count += int((own[:, 1:] == own[:, :-1] + 1).sum())
        start += shape.size
    return count


def _flat(numbers: Any, side: TokenSide) -> list[int]:
    """Numbers of rows in the order of memory; -1 stays."""
    memory = {int(new): at for at, new in enumerate(_new_numbers(side))}
    return [memory.get(int(one), -1) for one in numbers]


def _new_numbers(side: TokenSide) -> Any:
    """The number of each row of the memory's order, lane by lane."""

    found, start = [], 0
    for shape in side.shapes:
        own = np.arange(shape.size)
        if shape.has_batch and shape.is_turned:
            own = own.reshape(shape.lanes, shape.places).T.reshape(-1)
        found.append(own + start)
        start += shape.size
    return np.concatenate(found)


def _renumbered(evidence: TokenEvidence, target: TokenSide, golden: TokenSide) -> TokenEvidence:
    rows, tokens = _new_numbers(target), _new_numbers(golden)
    classes, blank = np.empty_like(evidence.classes), np.empty_like(evidence.blank)
    classes[tokens], blank[tokens] = evidence.classes, evidence.blank
    return evidence._replace(rows=rows[evidence.rows], tokens=tokens[evidence.tokens], classes=classes, blank=blank)


def _lines(side: TokenSide, recorded: Recorded) -> Lines:
    """Where rows stand. The lanes of one packed step are its requests, if it records their lengths."""

    first = side.shapes[0]
    lengths = next((one for one in recorded.lengths if sum(one) == first.size), None)
    if lengths is not None and len(side.shapes) == 1 and not first.has_batch:
        return Lines(np.repeat(np.arange(len(lengths)), lengths), np.zeros(first.size, np.int64))

    lanes, steps, count = [], [], 0
    for step, shape in enumerate(side.shapes):
        lanes.append(np.repeat(np.arange(shape.lanes), shape.places) + count)
        steps.append(np.full(shape.size, step))
        count += shape.lanes
    return Lines(np.concatenate(lanes), np.concatenate(steps))


def _without_padding(evidence: TokenEvidence, target: TokenSide, golden: TokenSide, padding: Padding) -> TokenEvidence:
    """The evidence without candidates that masks show to be padding."""

    rows, tokens = np.ones(target.size, bool), np.ones(golden.size, bool)
    if padding.golden.named is not None:
        tokens = padding.golden.named
    if padding.target.named is not None:
        rows[: len(padding.target.named)] = padding.target.named
    keep = rows[evidence.rows] & tokens[evidence.tokens]
    return evidence._replace(rows=evidence.rows[keep], tokens=evidence.tokens[keep], counts=evidence.counts[keep])


def _index(
    matched: Matched, target: TokenSide, golden: TokenSide, evidence: TokenEvidence, padding: Padding
) -> TokenIndex:
    rows = matched.rows.copy()
    requests = _requests(rows, target, golden, padding)
    lines = _lines(target, padding.target)
    for at in range(len(rows)):  # a token taken in a later round, away from its neighbours, proves nothing
        near = [one for one in (at - 1, at + 1) if 0 <= one < len(rows) and requests[one] == requests[at]]
        ends = [(min(one, at), max(one, at)) for one in near if rows[one] >= 0]
        if rows[at] >= 0 < matched.rounds[at] and ends and not any(_follows(*end, rows, lines) for end in ends):
            rows[at] = -1
    _close_breaks(rows, requests, evidence, lines)
    _fill_gaps(rows, requests, evidence, lines)
    _sort_equal(rows, requests, evidence, lines)
    is_padding, words = padding_of(rows, requests, padding)
    likely = is_padding
    if padding.golden.named is None and not words:
        ends = _end_class(evidence, target, golden)
        rows[ends & ~beside_tokens(ends, rows, requests, evidence, lines.lane)] = -1
        likely = likely_padding(rows, requests, evidence) | ends
        if golden.shapes[0].has_batch and len(golden.shapes) == 1:
            free = may_be_padding(rows, requests, evidence, target.shapes[0], ends)
            rows[free & np.isin(evidence.classes, evidence.classes[likely]) if likely.any() else free] = -1
        is_padding, words = padding_of(rows, requests, padding)
        if not words:
            is_padding, words = proven_padding(rows, requests, evidence)
        likely = is_padding if words else likely_padding(rows, requests, evidence)
    marks = TokenMarks(requests, is_padding, evidence.classes)
    numbered = numbered_tokens(rows >= 0, marks)
    found = TokenIndex(target, golden, rows[numbered.places], *numbered, words, int(likely.sum()), marks=marks)
    return found._replace(problem=_disorder(found, lines) or _repeated(found, evidence, lines))


def _close_breaks(rows: Any, requests: Any, evidence: TokenEvidence, lines: Lines) -> None:
    """Give a token that does not follow its neighbour the free row beside the neighbour's, if that row is a candidate:
    the first token of a request is, in a batch with a fault, nearer to the equal first token of another request."""

    size = len(rows)
    keys: Optional[set[int]] = None
    for step in (-1, 1):
        for at in range(size)[::-step]:
            near = at - step
            if not 0 <= near < size or requests[near] != requests[at] or min(rows[at], rows[near]) < 0:
                continue
            first, last = sorted((at, near))
            wanted = int(rows[near]) + step
            if _follows(first, last, rows, lines) or not 0 <= wanted < len(lines.lane):
                continue
            if keys is None:
                keys = {*(evidence.rows * size + evidence.tokens).tolist()}
            is_free = lines.lane[wanted] == lines.lane[rows[near]] and not np.any(rows == wanted)
            if is_free and wanted * size + at in keys:
                rows[at] = wanted


def _sort_equal(rows: Any, requests: Any, evidence: TokenEvidence, lines: Lines) -> None:
    """Give the rows of equal tokens of a request to them in the order of steps and rows. If positions are wrong, they
    agree as well in another."""
    known = np.flatnonzero(rows >= 0)
    if not evidence.is_ids:
        return
    own, kinds = rows[known], (evidence.classes[known], requests[known])
    rows[known[np.lexsort((known, *kinds))]] = own[np.lexsort((own, lines.step[own], *kinds))]


def _fill_gaps(rows: Any, requests: Any, evidence: TokenEvidence, lines: Lines) -> None:
    """Give a token without a row the one free candidate behind the token before it and before the token behind it, if
    that row is the candidate of no other such token: a wrong token agrees in less than half of the tensors."""
    is_free = np.ones(len(lines.lane), bool)
    is_free[rows[rows >= 0]] = False
    open_pairs = np.flatnonzero(is_free[evidence.rows] & (rows[evidence.tokens] < 0))
    known = {request: np.flatnonzero((requests == request) & (rows >= 0))
             for request in np.unique(requests[evidence.tokens[open_pairs]]).tolist()}  # fmt: skip
    fitting = []
    for row, token in zip(evidence.rows[open_pairs].tolist(), evidence.tokens[open_pairs].tolist()):
        own = known[int(requests[token])]
        at = int(own.searchsorted(token))
        near = own[max(0, at - 1) : at + 1].tolist()
        trial = {token: row, **{one: int(rows[one]) for one in near}}
        order = sorted(trial)
        if at and all(_follows(*both, trial, lines) for both in zip(order, order[1:])):
            fitting.append((row, token))
    counts = Counter(number for both in fitting for number in (("row", both[0]), ("token", both[1])))
    for row, token in fitting:
        if counts["row", row] == counts["token", token] == 1:
            rows[token] = row


def _follows(before: int, after: int, rows: Any, lines: Lines) -> bool:
    """Whether a token stands behind the one before it, or in a later step."""
    a, b = int(rows[before]), int(rows[after])
    return bool(lines.step[b] > lines.step[a] or (b == a + 1 and lines.lane[a] == lines.lane[b]))


def _disorder(index: TokenIndex, lines: Lines) -> str:
    """The first request whose tokens do not follow each other in the target, in words."""
    for at in range(1, len(index.rows)):
        same = index.requests[at] == index.requests[at - 1] and index.positions[at] == index.positions[at - 1] + 1
        if same and not _follows(at - 1, at, index.rows, lines):
            return (f"the target has token {index.positions[at]} of request {index.requests[at]} not behind the token "
                    "before it")  # fmt: skip
    return ""


def _repeated(index: TokenIndex, evidence: TokenEvidence, lines: Lines) -> str:
    """The first request that other rows of the target, which are no token of the golden, may be as well, and agree less
    with, in words."""

    free = np.ones(len(lines.lane), bool)
    free[index.rows] = False
    if not free[evidence.rows].any():
        return ""
    order = np.argsort(evidence.tokens, kind="stable")
    order = order[free[evidence.rows[order]]]
    starts = np.searchsorted(evidence.tokens[order], np.arange(len(evidence.classes) + 1))
    known = counts_of(evidence, index.rows, index.places)
    for number, length in enumerate(index.lengths):
        own = index.requests == number
        if own.sum() != length or not length:
            continue
        tokens = index.places[own]
        near = order[starts[tokens[0]] : starts[tokens[-1] + 1]]
        near = near[np.isin(evidence.tokens[near], tokens)]
        _, chain = np.unique(evidence.rows[near] - evidence.tokens[near], return_inverse=True)
        sums = np.bincount(chain, evidence.counts[near])
        if ((np.bincount(chain) == length) & (sums < known[own].sum())).any():
            return f"request {number} of the golden is in the target more than once"
    return ""


def _end_class(evidence: TokenEvidence, target: TokenSide, golden: TokenSide) -> Any:
    """The padding of both sides by its id, if the golden has one step."""

    if len(golden.shapes) > 1:
        return np.zeros(golden.size, bool)
    return end_class(evidence, target.shapes[0], golden.shapes[0])


def _requests_of_steps(golden: TokenSide, rows: Any, lines: Lines) -> Any:
    """The request of each token of several steps. In a batch a lane is a request. Packed tokens whose positions count
    on are one part of a request. It continues a request that ended at the position before it: the one whose last row
    in the target stands before its first, else the first one. Without positions each step is taken for one request."""

    positions = recorded_positions(golden)
    found: list[Any] = []
    ends: dict[int, int] = {}  # request → the next position
    last: dict[int, int] = {}  # request → its last token
    token = 0
    for shape in golden.shapes:
        used: set[int] = set()
        own = positions[token : token + shape.size] if positions is not None else None
        for length, lane in _parts_of_step(shape, own, [*ends.values()]):
            first = int(positions[token]) if positions is not None else 0
            known = [request for request, end in ends.items() if end == first > 0 and request not in used]
            beside = [request for request in known if _is_beside(int(rows[last[request]]), int(rows[token]), lines)]
            request = lane if lane >= 0 else next(iter([*beside, *known]), len(ends))
            used.add(request)
            ends[request], last[request] = first + length, token + length - 1
            token += length
            found.append(np.full(length, request))
    return np.concatenate(found)


def _parts_of_step(shape: TokenShape, positions: Optional[Any], ends: Sequence[int]) -> list[tuple[int, int]]:
    """The lengths of the parts of requests in a step, and the lane of each, -1 for packed ones. In a step of decoding
    each token continues another request, whose positions may count on by chance."""

    if shape.lanes > 1:
        return [(shape.places, lane) for lane in range(shape.lanes)]
    if shape.size == len(ends) and len(shape.sizes) > 1 and shape.sizes[1] == 1:
        return [(1, lane) for lane in range(shape.size)]
    if positions is None:
        return [(shape.size, -1)]
    if not Counter(map(int, positions)) - Counter(ends):
        return [(1, -1)] * shape.size
    bounds = [0, *map(int, np.flatnonzero(np.diff(positions) != 1) + 1), shape.size]
    return [(stop - start, -1) for start, stop in zip(bounds, bounds[1:])]


def _is_beside(before: int, after: int, lines: Lines) -> bool:
    return min(before, after) >= 0 and after == before + 1 and bool(lines.lane[before] == lines.lane[after])


def _requests(rows: Any, target: TokenSide, golden: TokenSide, padding: Padding) -> Any:
    """The request of each token of the golden: its lane; in a packed run by recorded lengths, or by the lanes and the
    lengths of the target."""

    if len(golden.shapes) > 1:
        return _requests_of_steps(golden, rows, _lines(target, padding.target))
    shape = golden.shapes[0]
    if shape.has_batch:
        return _lines(golden, padding.golden).lane
    lengths = next((one for one in padding.golden.lengths if sum(one) == shape.size), None)
    if lengths is not None:
        return np.repeat(np.arange(len(lengths)), lengths)
    owners = _lines(target, padding.target).lane
    if len(target.shapes) > 1 and not target.shapes[0].has_batch:
        return np.zeros(len(rows), np.int64)
    if not owners.any():  # a request ends where rows do not follow each other
        breaks = np.concatenate([[False], np.diff(rows) != 1])
        return np.cumsum(breaks & (rows >= 0))
    found = np.where(rows >= 0, owners[rows], -1)
    for at in range(1, len(found)):
        found[at] = found[at - 1] if found[at] < 0 else found[at]
    return np.cumsum(np.concatenate([[0], np.diff(found) != 0]))
