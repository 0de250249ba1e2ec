"""The evidence that a row of the target is a token of the golden: how many tensors agree there.

Candidates have the same id, or agree in the first tensor that both sides have. Each tensor is read once. The norm of a
row of values and a few random projections of it represent the row; the difference of two projections is distributed as
the norm of the difference of the rows.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.errors import if_unreadable
from npucmp.model import Payload, TensorRef
from npucmp.model.roles import is_activation
from npucmp.relations.token_records import IDS, record_of
from npucmp.relations.tokens.token_axes import is_float, token_axes
from npucmp.relations.tokens.token_lengths import recorded_positions
from npucmp.relations.tokens.token_rows import StepTensor, all_rows, row_blocks, row_values, selected
from npucmp.relations.tokens.token_tensors import TensorPair, TokenSide, tensors_of

PROJECTIONS = 8  # numbers: chosen: rows of other tokens agree by chance in all of them with a probability below 1e-9
AGREE = 2.0**-9  # relative: chosen: rounding of float32, with products of 11 bits, is below
AGREE_COARSE = 2.0**-5  # relative: chosen: rounding of bfloat16 and float16 is below after tens of operators
COUNTING = 0.9  # share of rows: chosen: padding and ends of packed requests do not count on, not measured
PLACED = 0.5  # share of tokens: chosen: if one side shifts its positions, tokens of one id share few, not measured
UNLIKE = 0.75  # share of rows: chosen: positions of packed requests repeat more, not measured
READ = 1 << 29  # bytes: work: larger runs give evidence of an even choice of their tensors
MOST = 1 << 31  # pairs of tokens: work: more have no index
CANDIDATES = 1 << 20  # pairs of tokens: work: the most frequent ids, of which there would be more, have none
CHUNK = 1 << 18  # pairs: work
MOST_IDS = 8  # tensors of ids: work: so many are asked for the ids that both sides have
BYTES = 4  # bytes of an element: work: as of float32


class TokenEvidence(NamedTuple):
    """Candidates: pairs of a row of the target and a token of the golden, and the number of tensors that agree there.

    rows, tokens, counts  arrays of one length; rows and tokens are numbered lane by lane, step by step
    tensors  how many were asked; `first`: the tensor that makes candidates; `is_ids`: it holds ids
    classes  of the golden tokens by the first tensor: their ids, or equal numbers for rows that agree
    in_place  the number of tensors of which nearly all rows agree with the golden's at the same place
    is_same   whether the first tensor has the same tokens at all places
    blank     the golden tokens whose rows are zero in all tensors that were asked
    """

    rows: Any
    tokens: Any
    counts: Any
    tensors: int
    first: TensorPair
    is_ids: bool
    classes: Any
    blank: Any
    in_place: int = 0
    is_same: bool = False


def gather_evidence(
    target: TokenSide, golden: TokenSide, pairs: Sequence[TensorPair], context: ReadContext
) -> Optional[TokenEvidence]:
    """The evidence of all tensors; None if no tensor has values on both sides, or if there are too
    many tokens."""

    if target.size * golden.size > MOST:
        return None
    tensors = target.tensors(), golden.tensors()
    known, looked_up = list[tuple[tuple[int, int], TensorPair, Optional[tuple[Any, Any]]]](), set()
    for pair in dict.fromkeys(id_pairs(golden, pairs)):
        values = _values(target, golden, tensors, pair, context)
        if values is not None and _counts_places(values[1][:, 0], golden):
            looked_up.add(pair.golden[:2])  # positions identify no token
        elif len(known) < MOST_IDS:
            known.append((_in_common(*values) if values is not None else (-1, 0), pair, values))
    # a rank with a part of a vocabulary reads other ids there than those of the tokens
    _, ids, both = max(known, key=lambda one: one[0]) if known else (None, None, None)
    floats = [one for one in pairs if one.is_float and not one.is_part and one.golden[:2] not in looked_up]
    first = ids or next((one for one in floats), None)
    if first is None or not any(one.is_float for one in pairs):
        return None
    if ids is None:
        both = _sketches(target, golden, tensors, first, context)
    if both is None:
        return None
    if ids is not None:
        left, classes = (one[:, 0].astype(np.int64) for one in both)
    else:
        classes, left = np.split(
            _classes(np.concatenate(both[::-1]), _limit(tensors[1][0][first.golden])), [golden.size]
        )
    rows, tokens = _at_equal_positions(*_equal(left, classes), target, golden)
    counts, asked, in_place = np.zeros(len(rows), np.int64), 0, 0
    blank = np.ones(golden.size, bool)
    are_same = target.has_shapes_of(golden) and bool((left == classes).all())
    is_same = are_same and (ids is not None or _tells_tokens(classes, golden))
    for one in _chosen([one for one in floats if one is not first], target, golden):
        sketches = _sketches(target, golden, tensors, one, context)
        if sketches is None:
            continue
        asked += 1
        blank &= sketches[1][:, 0] == 0
        for start in range(0, len(rows), CHUNK):
            own = slice(start, start + CHUNK)
            limit = _limit(tensors[1][0][one.golden])
            counts[own] += _agree(sketches[0][rows[own]], sketches[1][tokens[own]], limit)
        if target.has_shapes_of(golden):
            in_place += float(_agree(*sketches, _limit(tensors[1][0][one.golden])).mean()) >= COUNTING
    return TokenEvidence(
        rows, tokens, counts, asked, first, ids is not None, classes, blank & (asked > 0), in_place, is_same
    )


def _at_equal_positions(rows: Any, tokens: Any, target: TokenSide, golden: TokenSide) -> tuple[Any, Any]:
    """The candidates at equal positions, if both sides record positions and most tokens have such a candidate; all
    candidates of tokens without one, and of rows without one, whose position may be wrong. One side may count its
    positions from another number."""

    left, right = recorded_positions(target), recorded_positions(golden)
    if left is None or right is None:
        return rows, tokens
    are_equal = left[rows] == right[tokens]
    has_equal, is_placed = np.zeros(golden.size, bool), np.zeros(target.size, bool)
    has_equal[tokens[are_equal]] = is_placed[rows[are_equal]] = True
    if has_equal.sum() < PLACED * len(np.unique(tokens)):
        return rows, tokens
    keep = are_equal | ~has_equal[tokens] | ~is_placed[rows]
    return rows[keep], tokens[keep]


def _counts_places(ids: Any, golden: TokenSide) -> bool:
    """Whether ids count the places of each lane, as positions do."""
    shape = golden.shapes[0]
    lanes = ids[: shape.size].reshape(shape.lanes, shape.places)
    steps = lanes[:, 1:] - lanes[:, :-1]
    return bool(steps.size) and float((steps == 1).mean()) >= COUNTING


def _tells_tokens(classes: Any, golden: TokenSide) -> bool:
    """Whether the rows of a tensor are those of tokens, not of positions, which all requests have alike."""

    shape = golden.shapes[0]
    if shape.has_batch:
        lanes = classes[: shape.size].reshape(shape.lanes, shape.places)
        return bool((lanes[1:] != lanes[:1]).any())
    return len(np.unique(classes)) >= UNLIKE * len(classes)


def id_pairs(golden: TokenSide, pairs: Sequence[TensorPair]) -> Iterator[TensorPair]:
    """Tensors of ids: those that are called so, then the integers that an operator reads beside no activation, and of
    which it makes activations."""
    by_operator: dict[tuple[str, int], list[TensorPair]] = {}
    roles = {}
    reads, writes = set[tuple[str, int]](), set[tuple[str, int]]()  # operators that do so with activations of tokens
    for operator, key, tensor in tensors_of(golden.runs[0]):
        roles[key] = record_of(operator, tensor)
        if is_float(tensor) and is_activation(tensor) and token_axes(tensor.shape, (), golden.shapes[0]):
            (writes if tensor.is_output else reads).add(key[:2])
    for one in pairs:
        role = roles.get(one.golden)
        if role is not None and role.role == IDS and one.width == 1:
            yield one
    for one in pairs:
        by_operator.setdefault(one.golden[:2], []).append(one)
    for operator_key, own in by_operator.items():
        numbers = [one for one in own if not (one.is_output or one.is_float) and one.width == 1]
        if operator_key in writes - reads and len(numbers) == 1:
            yield numbers[0]


def _chosen(pairs: Sequence[TensorPair], target: TokenSide, golden: TokenSide) -> list[TensorPair]:
    """Outputs, or inputs if there are none; an even choice of them if they are large."""
    outputs = [one for one in pairs if one.is_output] or [*pairs]
    size = BYTES * (target.size + golden.size) * sum(one.width for one in outputs)
    every = max(1, -(-size // READ))
    return outputs[::every]


Tensors = Sequence[Mapping[tuple[str, int, str], TensorRef]]


def _steps(
    target: TokenSide, golden: TokenSide, tensors: tuple[Tensors, Tensors], pair: TensorPair
) -> Optional[tuple[dict[int, StepTensor], dict[int, StepTensor]]]:
    left, right = target.steps_of(tensors[0], pair.target), golden.steps_of(tensors[1], pair.golden)
    return None if left is None or right is None else (left, right)


def _values(
    target: TokenSide, golden: TokenSide, tensors: tuple[Tensors, Tensors], pair: TensorPair, context: ReadContext
) -> Optional[tuple[Any, Any]]:
    """The values of all rows of both sides; None if they cannot be read."""
    return _of_rows(target, golden, tensors, pair, lambda payload: row_values(payload, context))


def _sketches(
    target: TokenSide, golden: TokenSide, tensors: tuple[Tensors, Tensors], pair: TensorPair, context: ReadContext
) -> Optional[tuple[Any, Any]]:
    """The sketches of all rows of both sides, which are read block by block; None if they cannot be read."""

    return _of_rows(
        target, golden, tensors, pair, lambda payload: np.concatenate([*map(_sketch, row_blocks(payload, context))])
    )


@if_unreadable(None)
def _of_rows(
    target: TokenSide, golden: TokenSide, tensors: tuple[Tensors, Tensors], pair: TensorPair,
    read: Callable[[Payload], Any],
) -> Optional[tuple[Any, Any]]:  # fmt: skip
    """The results of `read` on all rows of both sides; None if they cannot be read."""
    steps = _steps(target, golden, tensors, pair)
    if steps is None:
        return None
    left, right = (
        read(
            selected(
                found,
                [run for step, shape in enumerate(side.shapes) for run in all_rows(step, shape)],
                (pair.width,),
            )
        )
        for found, side in zip(steps, (target, golden))
    )
    return left, right


def _sketch(values: Any) -> Any:
    """The norm and the projections of each row. A row with NaN or Inf has NaN."""

    generator = np.random.default_rng(values.shape[1])
    plain = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        norm = np.sqrt((plain * plain).sum(1, keepdims=True))
        found = np.concatenate([norm, plain @ generator.standard_normal((values.shape[1], PROJECTIONS))], 1)
    return np.where(np.isfinite(found).all(1, keepdims=True), found, np.nan)


def _limit(tensor: TensorRef) -> float:
    return AGREE_COARSE if "16" in tensor.dtype or "8" in tensor.dtype else AGREE


def _agree(left: Any, right: Any, limit: float) -> Any:
    """Whether rows agree, one by one."""

    with np.errstate(invalid="ignore"):
        most = limit * np.maximum(left[:, 0], right[:, 0])
        return (np.abs(left - right) <= PROJECTIONS**0.5 * most[:, None]).all(1)


def _in_common(left: Any, right: Any) -> tuple[int, int]:
    """How many ids of the target the golden has too, each as often as it occurs, and how many of them are unlike: a
    part of a vocabulary writes zero for all others, which the golden may have as padding."""
    sides = [dict(zip(*np.unique(side[:, 0], return_counts=True))) for side in (left, right)]
    both = [min(count, sides[1].get(number, 0)) for number, count in sides[0].items()]
    return int(sum(both)), sum(count > 0 for count in both)


def _equal(left: Any, right: Any) -> tuple[Any, Any]:
    """All pairs of equal numbers; none of the numbers that have the most, beyond CANDIDATES in all."""

    order = np.argsort(right, kind="stable")
    known = right[order]
    kinds, of_left, counts = np.unique(left, return_inverse=True, return_counts=True)
    start, stop = np.searchsorted(known, kinds, "left"), np.searchsorted(known, kinds, "right")
    pairs = counts * (stop - start)
    fewest = np.argsort(pairs, kind="stable")
    stop[fewest[np.cumsum(pairs[fewest]) > CANDIDATES]] = 0
    start, count = start[of_left], np.maximum(stop - start, 0)[of_left]
    rows = np.repeat(np.arange(len(left)), count)
    offsets = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return rows, order[np.repeat(start, count) + offsets]


def _classes(sketches: Any, limit: float) -> Any:
    """A number for each row; rows that agree with the first of a class have its number. Only rows that are near in one
    projection are compared."""

    part = PROJECTIONS**0.5 * limit
    order = np.argsort(sketches[:, 1], kind="stable")
    reach = sketches[:, 0] * part / (1 - part)  # the norms of rows that agree differ too
    start = np.searchsorted(sketches[order, 1], sketches[:, 1] - reach, "left")
    stop = np.searchsorted(sketches[order, 1], sketches[:, 1] + reach, "right")
    classes = np.full(len(sketches), -1, np.int64)
    for at in np.nonzero(np.isfinite(sketches[:, 0]))[0]:
        if classes[at] < 0:
            near = order[start[at] : stop[at]]
            near = near[classes[near] < 0]
            classes[near[_agree(sketches[at : at + 1], sketches[near], limit)]] = at
    return np.where(classes < 0, np.arange(len(sketches)), classes)


def counts_of(evidence: TokenEvidence, rows: Any, tokens: Any) -> Any:
    """How many tensors agree at these pairs of rows and tokens; 0 for pairs that are no candidates."""

    size = len(evidence.classes)
    keys = evidence.rows * size + evidence.tokens
    order = np.argsort(keys, kind="stable")
    sought = np.asarray(rows) * size + np.asarray(tokens)
    at = order[np.minimum(np.searchsorted(keys, sought, sorter=order), max(0, len(order) - 1))] if len(order) else order
    return np.where(keys[at] == sought, evidence.counts[at], 0) if len(order) else np.zeros(len(sought), np.int64)
