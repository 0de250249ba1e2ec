"""Matcher by order: an order-preserving alignment of the operators that names could not match.

Needleman-Wunsch between the operators that are already matched, scored by common properties: kind, shapes, containing
module, call stack, arguments, and with the least weight the call index. Backward operators first follow the forward
operator of their call, because autograd gives them its index.

A wrong partner causes a false alarm, so an operator with an uncertain partner has none. Operators whose outputs have
other shapes are partners only if between two pairs both runs have as many operators of each type: a fault may change a
shape. An operator with the weight of another operator is not its partner; a weight without an equal in the other run is
a faulty one and keeps its position. Beside operators without a partner, an operator that reads data more than 6 % apart
has no partner either. The number in "…-op3" counts kernels of one type in one scope: it is a position, not a name,
unless only one exists.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from math import isqrt
from typing import Any, Iterator, Sequence

import numpy as np

from npucmp.align.content_match import content
from npucmp.align.name import longest_increasing
from npucmp.align.shape_match import output_shapes, outputs, signature
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.model import Match, Operator
from npucmp.model.optypes import op_type_of

VIA = "order"
_CELLS = 16_000_000  # cells of one alignment matrix: work: longer stretches are cut first
_STRIP = 4_000_000  # scores in memory during the search for cuts: work
_SEARCHED = 128_000_000  # cells searched for the cuts: work: 2 s; in longer stretches those of _BAND
_BAND = 8192  # golden operators for each target operator: work: those nearest to the diagonal
_DRIFT = 4  # strips: work: the diagonal crosses the band in no fewer
_FRAMES = 4  # frames of a call stack: chosen: the innermost ones show the line of a call

KIND = 4.0  # score: chosen: operators of one kind
SHAPES = 4.0  # score: chosen: all shapes are equal
OUTPUTS = 2.0  # score: chosen: the shapes of the outputs alone are equal
SCOPE = 2.0  # score: chosen: the same containing module
STACK = 2.0  # score: chosen: the same call stack
LINE = 1.0  # score: chosen: the same line, even if its callers differ
ARGUMENTS = 1.0  # score: chosen: the same arguments
NAME = 1.0  # score: chosen: the same name, whose call index one call more changes
TYPE_ONLY = 2.0  # score: chosen: the same computation under another name, such as Torch.add and Tensor.__add__
UNLIKE_SHAPES = -3.0  # score: chosen: with TYPE_ONLY alone the sum is below 0
CONTENT = 4.0  # score: chosen: the inputs and outputs are the same; compared if types and shapes leave a choice
SUREST = 0.9  # confidence: chosen: of a pair with the best score; a position is no name
DOUBTFUL = 0.1  # share of the best score: chosen: a pair with a lower score has no less confidence
WEIGHTS = {"scope": SCOPE, "stack": STACK, "line": LINE, "arguments": ARGUMENTS, "name": NAME}
BEST = KIND + SHAPES + sum(WEIGHTS.values())


def match(
    target: Sequence[Operator], golden: Sequence[Operator], so_far: Sequence[Match], context: ReadContext = ANYWHERE
) -> list[Match]:
    """Align forward operators, then backward operators by their calls, then the remaining ones."""
    aligner = _Aligner(context)
    matches = aligner.between(_forward(target), _forward(golden), _anchors(so_far, backward=False))
    backward = [op for op in target if op.phase == "backward"], [op for op in golden if op.phase == "backward"]
    matches += _by_call(*backward, [*so_far, *matches])
    taken = {m.target.order for m in matches}, {m.golden.order for m in matches}
    left = [op for op in backward[0] if op.order not in taken[0]]
    right = [op for op in backward[1] if op.order not in taken[1]]
    matches += aligner.between(left, right, _anchors([*so_far, *matches], backward=True))
    left = [op for op in target if op.order not in aligner.strange]
    return matches + _leftover_names(left, golden, matches)


def _forward(operators: Sequence[Operator]) -> list[Operator]:
    return [operator for operator in operators if operator.phase != "backward"]


def _anchors(matches: Sequence[Match], backward: bool) -> list[Match]:
    """The matches that keep both orders and bound the stretches to align."""
    phase = sorted((m for m in matches if (m.target.phase == "backward") == backward), key=lambda m: m.target.order)
    return [phase[i] for i in longest_increasing([m.golden.order for m in phase])]


class _Aligner:
    """Align the operators between known matches."""

    def __init__(self, context: ReadContext) -> None:
        self.context = context
        self.strange: set[int] = set()  # target operators by order that read other data than their counterparts

    def between(self, target: Sequence[Operator], golden: Sequence[Operator], anchors: Sequence[Match]) -> list[Match]:
        """Align each stretch. Anchors bound the stretches and are not matched again."""
        matches: list[Match] = []
        i = j = 0
        for anchor in [*anchors, None]:
            ends = i, j
            while i < len(target) and (anchor is None or target[i].order < anchor.target.order):
                i += 1
            while j < len(golden) and (anchor is None or golden[j].order < anchor.golden.order):
                j += 1
            if i > ends[0] and j > ends[1]:
                matches += self._stretch(target[ends[0] : i], golden[ends[1] : j])
        return matches

    def _stretch(self, target: Sequence[Operator], golden: Sequence[Operator]) -> list[Match]:
        if not target or not golden:  # a piece of a longer stretch
            return []
        if len(target) * len(golden) > _CELLS and min(len(target), len(golden)) > 1:
            cuts = _cuts(target, golden)
            pieces = [(target[i:k], golden[j:n]) for (i, j), (k, n) in zip(cuts, cuts[1:])]
            return [match for piece in pieces for match in self._stretch(*piece)]
        strips = _strips(*_features(target, golden), range(len(target)), slice(0, len(golden)))
        scores, unlike = map(np.concatenate, zip(*strips))  # numpy uses the memory of a strip again
        other = np.zeros(scores.shape, bool)
        if Counter(map(_shapes_of, target)) != Counter(map(_shapes_of, golden)):  # else the order leaves no choice
            like, other, same = content(target, golden, self.context)
            unlike &= ~same
            elsewhere = (same.any(1)[:, None] | same.any(0)[None, :]) & ~same  # one has the weight of another operator
            scores += np.where(elsewhere, -np.inf, CONTENT * like)
        path = _best_path(np.where(unlike, -np.inf, scores))
        strange = {pair for pair, bare in zip(path, _are_bare(path, *scores.shape)) if bare and other[pair]}
        self.strange.update(target[i].order for i, _ in strange)
        path = [pair for pair in path if pair not in strange]
        for left, right in _gaps(path, *scores.shape):
            if Counter(_type(target[i]) for i in left) == Counter(_type(golden[j]) for j in right):
                path += [(left[i], right[j]) for i, j in _best_path(scores[np.ix_(left, right)])]
        return [
            _same_name_match(target[i], golden[j], SUREST * min(1.0, max(DOUBTFUL, float(scores[i, j]) / BEST)))
            for i, j in sorted(path)
        ]


def _by_call(target: Sequence[Operator], golden: Sequence[Operator], matches: Sequence[Match]) -> list[Match]:
    calls = {m.target.call: m for m in matches if m.target.phase == "forward"}
    waiting = {operator.call: operator for operator in golden}
    found = []
    for operator in target:
        forward = calls.get(operator.call)
        partner = waiting.pop(forward.golden.call, None) if forward else None
        if forward and partner:
            found.append(_same_name_match(operator, partner, forward.confidence))
    return found


def _leftover_names(target: Sequence[Operator], golden: Sequence[Operator], matches: Sequence[Match]) -> list[Match]:
    """Match equal names with equal shapes that no order explains: they were executed in another order. Casts are not:
    the number of a cast counts what other casts came before it."""
    taken = {m.target.order for m in matches}, {m.golden.order for m in matches}
    waiting = {op.name: op for op in golden if op.order not in taken[1]}
    found = []
    for operator in target:
        if operator.order not in taken[0]:
            partner = None if op_type_of(operator).name == "cast" else waiting.get(operator.name)
            if partner and signature(partner) == signature(operator):
                found.append(Match(operator, waiting.pop(operator.name), "name", 0.5))
    return found


def _same_name_match(target: Operator, golden: Operator, confidence: float) -> Match:
    via = "name" if target.name == golden.name else VIA
    return Match(target, golden, via, round(confidence, 2))


def _cuts(target: Sequence[Operator], golden: Sequence[Operator]) -> list[tuple[int, int]]:
    """The cuts of a long stretch: its ends, and cells between them on a path of the largest total score, one for every
    few rows. In stretches with more than _SEARCHED cells, the path stays in a band along the diagonal, so that work
    grows with the length and not with its square.

    A path is represented by the column in which it enters each strip of rows; the step to a cell is as in _best_path.
    """

    n, m = len(target), len(golden)
    a, b = _features(target, golden)
    wide = min(m, max(_BAND, _SEARCHED // n))
    rows = max(1, min(n // 2, isqrt(_CELLS) // 2, wide * n // (_DRIFT * m)))
    totals = np.zeros(m + 1, dtype=np.float32)
    strips = []
    reached = 0
    for start in range(0, n, rows):
        end = min(n, start + rows)
        low = max(0, min((start + end) * m // (2 * n) - wide // 2, m - wide))
        high = low + wide
        totals[reached + 1 : high + 1] = totals[reached]
        reached = high
        before, entered = totals[low : high + 1], np.arange(low, high + 1)
        columns = np.arange(wide + 1)
        for scores, unlike in _strips(a, b, range(start, end), slice(low, high)):
            scores[unlike] = -np.inf
            for row in scores:
                paired = before[:-1] + row
                after = before.copy()
                np.maximum(after[1:], paired, out=after[1:])
                np.maximum.accumulate(after, out=after)
                is_pair = (row > 0) & (after[1:] == paired)
                came = np.where(after == before, columns, 0)
                came[1:][is_pair] = columns[1:][is_pair]
                steps = np.maximum.accumulate(came)  # the column in which the steps along the row begin
                came = entered.copy()
                came[1:][is_pair] = entered[:-1][is_pair]
                entered = came[steps]
                before = after
        totals[low : high + 1] = before
        strips.append((start, low, entered))
    cuts, column = [(n, m)], m
    for start, low, entered in reversed(strips):
        column = int(entered[min(column - low, wide)])
        cuts.append((start, column))
    cuts[-1] = 0, 0
    return cuts[::-1]


def _strips(a: dict[str, Any], b: dict[str, Any], rows: range, columns: slice) -> Iterator[tuple[Any, Any]]:
    """Yield the scores of some target operators against some golden operators, a few rows at a time."""
    right = {what: column[columns] for what, column in b.items()}
    count = max(1, _STRIP // max(1, columns.stop - columns.start))
    for start in range(rows.start, rows.stop, count):
        end = min(rows.stop, start + count)
        yield _scores({what: column[start:end] for what, column in a.items()}, right)


def _are_bare(path: Sequence[tuple[int, int]], n: int, m: int) -> list[bool]:
    """Return for each pair whether an operator without a partner is next to it. The two implementations differ there,
    and an operator that reads entirely different data is not a partner; elsewhere different data may be the fault."""
    steps = [
        after[0] - before[0] + after[1] - before[1] > 2 for before, after in zip([(-1, -1), *path], [*path, (n, m)])
    ]
    return [before or after for before, after in zip(steps, steps[1:])]


def _gaps(path: Sequence[tuple[int, int]], n: int, m: int) -> Iterator[tuple[range, range]]:
    """The operators between two pairs on both sides. A fault may change a shape, so operators of different shapes are
    still partners if both sides have equally many of each type."""
    for before, after in zip([(-1, -1), *path], [*path, (n, m)]):
        left, right = range(before[0] + 1, after[0]), range(before[1] + 1, after[1])
        if left and right:
            yield left, right


def _scores(a: dict[str, Any], b: dict[str, Any]) -> tuple[Any, Any]:
    """The matrix of scores, -inf for pairs that cannot be partners; and where the shapes of the outputs differ."""

    def equal(what: str) -> Any:
        return a[what][:, None] == b[what][None, :]

    full, half, unlike = np.array([[KIND, TYPE_ONLY, -np.inf], [SHAPES, OUTPUTS, UNLIKE_SHAPES]], np.float32).T
    score = np.where(equal("kind"), full[0], np.where(equal("type"), half[0], unlike[0]))
    score += np.where(equal("shapes"), full[1], np.where(equal("outputs"), half[1], unlike[1]))
    for what, weight in WEIGHTS.items():
        if np.isin(a[what], b[what]).any():
            score += np.float32(weight) * equal(what)
    both_written = (a["written"][:, None] >= 0) & (b["written"][None, :] >= 0)
    return score, both_written & ~equal("written")


def _features(target: Sequence[Operator], golden: Sequence[Operator]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The compared keys as small integers, so that numpy can compare all with all. An empty value is -1 on one side and
    -2 on the other, so that it equals nothing."""
    numbers: dict[Any, int] = {}
    return _feature_numbers(target, numbers, -1), _feature_numbers(golden, numbers, -2)


def _feature_numbers(operators: Sequence[Operator], numbers: dict[Any, int], nothing: int) -> dict[str, Any]:
    columns: dict[str, list[int]] = defaultdict(list)
    for op in operators:
        frames = tuple(map(_frame, op.stack))
        features = {
            "kind": op.kind,
            "type": _type(op),
            "shapes": (signature(op),),
            "outputs": (outputs(op),),
            "written": output_shapes(op),
            "scope": op.scope,
            "stack": frames,
            "line": frames[:_FRAMES],
            "arguments": (tuple(sorted((slot, repr(value)) for slot, value in op.arguments.items())),),
            "name": op.name,
        }
        for what, value in features.items():
            columns[what].append(numbers.setdefault((what, value), len(numbers)) if value else nothing)
    return {what: np.array(column, dtype=np.int32) for what, column in columns.items()}


def _type(operator: Operator) -> tuple[str, str]:
    return operator.op_type.strip("_").lower(), operator.phase


def _shapes_of(operator: Operator) -> tuple[object, ...]:
    return _type(operator), output_shapes(operator)


def _frame(text: str) -> str:
    """A stack frame without folder and line number, which differ between two installations of one source."""
    return re.sub(r"^File .*?([^/\\,]+), line \d+", r"\1", text)


def _best_path(scores: Any) -> list[tuple[int, int]]:
    """The order-preserving pairs of the largest total score, by rows so that numpy runs the inner loop.

    total[i, j] = max(total[i-1, j], total[i, j-1], total[i-1, j-1] + scores[i, j]); of equal totals the pair is
    preferred.
    """

    n, m = scores.shape
    total = np.zeros((n + 1, m + 1), dtype=np.float32)
    for above, row, score in zip(total, total[1:], scores):
        row[1:] = np.maximum(above[1:], above[:-1] + score)
        np.maximum.accumulate(row, out=row)
    path = []
    i, j = n, m
    while i and j:
        if scores[i - 1, j - 1] > 0 and total[i, j] == total[i - 1, j - 1] + scores[i - 1, j - 1]:
            path.append((i - 1, j - 1))
            i, j = i - 1, j - 1
        elif total[i, j] == total[i - 1, j]:
            i -= 1
        else:
            j -= 1
    return path[::-1]
