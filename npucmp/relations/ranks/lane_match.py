"""Match the operators of a lane of ranks with those of the golden: by type, shapes up to a division, and content.

Numbers of calls and of layers do not count. Operators that stand alike at both ends are matched as they stand; between
them, the common sequence of the largest similarity is taken.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any, Callable, Optional, Sequence

import numpy as np

from npucmp.relations.common_sequence import common_sequence
from npucmp.relations.held_values import SHORT, HeldTensor, RankOperator
from npucmp.relations.ranks.placement import distance

SAMPLE = 24  # elements of a part that are looked up in the whole: chosen, not measured
SORTED = 1 << 18  # elements: work: larger tensors are not sorted
ENDS = 20  # operators: chosen: an end is matched as it stands if more of them are alike
ENDS_SHARE = 0.8  # share of the shorter side: chosen: so much stands alike at the last end of one that is matched so
LOOSENED = 8  # operators: chosen: the inner ones of an end may stand alike by chance
BLOCK = 1 << 12  # rows: work
ALIKE = 0.1  # of the length of a row: chosen: rows of two tokens are about √2 apart, rounding leaves 0.03
ROUTED = 0.3  # share of elements: chosen: tokens of two experts share fewer
NEAR = 1e-5  # of the root mean square: chosen: an element of float32 with a nearer one is found
NEAR_SHORT = 3e-3  # of the root mean square: chosen: the same in 16-bit types, whose round-off is 4e-3
NEAR_FIGURES = 1e-3  # of the largest values: chosen: an extreme of statistics that is nearer is equal
SAME_FIGURES = 2e-3  # of a figure: chosen: statistics that are nearer are those of one tensor
OTHER_FIGURES = 0.2  # share: chosen: of a tensor of one shape with other statistics
LARGER_NORM = 1.001  # times: chosen: the norm of a part is that of the whole at most, and its rounding
WITHIN = 0.8  # share: chosen: of a tensor whose values lie within those of the whole
EXTREME = 0.2  # share: chosen: so much more if one extreme is equal
SURE = 3.0  # score: chosen: more than what similar content adds
Matched = list[tuple[RankOperator, RankOperator]]
Rows = Optional[tuple[int, int]]
Known = Optional[Callable[[RankOperator, RankOperator], Optional[bool]]]


def match_lane(
    lane: Sequence[RankOperator], golden: Sequence[RankOperator], most: float, known: Known = None
) -> Matched:
    """Pairs of operators; `most`: how many parts a tensor may have. `known` says whether two operators read the same
    parameter, None where they read none."""
    first = 0
    while first < min(len(lane), len(golden)) and _fits(lane[first], golden[first], most):
        first += 1
    pairs = [*zip(lane, golden)]
    if first == len(lane) == len(golden) and (
        known is None or (first > ENDS and all(known(*both) is not False for both in pairs))
    ):
        return pairs
    if known is not None:
        return _common(lane, golden, most, known)
    last = 0
    while last < min(len(lane), len(golden)) and _fits(lane[-1 - last], golden[-1 - last], most):
        last += 1
    if last > ENDS and last >= ENDS_SHARE * min(len(lane), len(golden)):
        last -= LOOSENED
        ends = [*zip(lane[len(lane) - last :], golden[len(golden) - last :])]
        return _common(lane[: len(lane) - last], golden[: len(golden) - last], most) + ends
    return _common(lane, golden, most)


def _common(lane: Sequence[RankOperator], golden: Sequence[RankOperator], most: float, known: Known = None) -> Matched:
    """The common sequence of the largest similarity, of equal ones that whose pairs follow each other."""

    by_key: dict[str, list[int]] = defaultdict(list)
    for at, one in enumerate(golden):
        by_key[one.key].append(at)
    unequal = _unequal_numbers(lane, golden) if known is not None else set()
    lengths = [{(one.key, each.size) for one in side for each in one.inputs if len(each.shape) == 1}
               for side in (lane, golden)]  # fmt: skip
    in_pieces = {key for key, _ in lengths[0] - lengths[1]}
    batch = _rows_of_batch(lane, golden)

    def gains_of(i: int) -> Any:
        one = lane[i]
        gains = np.zeros(len(golden), np.float32)
        for j in by_key.get(one.key, ()):
            told = known(one, golden[j]) if known is not None else None
            if told is False:
                continue
            is_number = one.key in unequal and _is_of_numbers(one)
            if (
                known is not None
                and told is None
                and (
                    is_number
                    or _is_other_flat(one, golden[j], one.key in in_pieces)
                    or _has_other_rows(one, golden[j], int(2 * most))
                )
            ):
                continue
            gains[j] = similarity(one, golden[j], most, batch) + SURE * bool(told)
        return gains

    return [(lane[i], golden[j]) for i, j in common_sequence(len(lane), len(golden), gains_of)]


def _rows_of_batch(lane: Sequence[RankOperator], golden: Sequence[RankOperator]) -> Rows:
    """How many rows of the golden's data the first operator reads, and of how many; None if it reads other data."""
    first = next(iter(golden), None)
    same = next((one for one in lane if first is not None and one.key == first.key), None)
    if same is None or first is None:
        return None
    for at, (one, whole) in enumerate(zip(same.inputs, first.inputs)):
        if at not in same.parameter_places and one.shape and whole.shape:
            share = share_of(one, whole)
            return (one.shape[0], whole.shape[0]) if share is None or share > ROUTED else None
    return None


def _are_rows_of_batch(one: HeldTensor, golden: HeldTensor, batch: Rows) -> bool:
    """Whether a tensor has the same share of rows as the data of the rank: no tokens of an expert."""
    return batch is not None and one.shape[0] * batch[1] == golden.shape[0] * batch[0]


def similarity(one: RankOperator, golden: RankOperator, most: float, batch: Rows = None) -> float:
    """0 for operators that cannot be partners, else 1, and up to 2 more for what is alike in content. `batch`: how many
    rows of the data the rank reads, and of how many."""
    if one.key != golden.key or len(one.outputs) != len(golden.outputs):
        return 0.0
    pairs = [*zip(one.outputs, golden.outputs)]
    if len(one.inputs) == len(golden.inputs):
        pairs += zip(one.inputs, golden.inputs)
    uneven = [both for both in pairs if not may_be_part(*both, most)]
    if not all(may_be_part(*both, most, rows=True) for both in uneven):
        if one.op.path:
            return 0.5
        if not _has_halo(one, golden, most):
            return 0.0
        uneven = []
    alike = [found for found in (share_of(*both) for both in pairs) if found is not None]
    # an expert may get no token
    uneven = [both for both in uneven if both[0].size and not _are_rows_of_batch(*both, batch)]
    if uneven and len(one.inputs) == len(golden.inputs) > 1 and not one.parameter_places:
        uneven = [*uneven, *zip(one.inputs, golden.inputs)]  # pieces of tokens, which may have equal lengths by chance
    tokens = [found for found in (share_of(*both) for both in uneven) if found is not None]
    if uneven and min(tokens, default=0.0) < ROUTED and not _reads_equal_weight(one, golden):
        return 0.0
    return 1.0 + (2.0 * sum(alike) / len(alike) if alike else 0.0)


def _unequal_numbers(lane: Sequence[RankOperator], golden: Sequence[RankOperator]) -> set[str]:
    """The types of operators on single numbers of which two updates have unequally many, such as the sums of the norms
    of buffers and of parameters. Their order shows no partners, unless all of the golden read equal numbers, as
    counters of steps do."""
    counts = [Counter(one.key for one in side if _is_of_numbers(one)) for side in (lane, golden)]
    read: dict[str, set[tuple[Optional[float], ...]]] = defaultdict(set)
    for one in golden if counts[0] != counts[1] else ():
        if _is_of_numbers(one):
            read[one.key].add(tuple(each.norm for each in one.inputs))
    return {key for key in counts[0] if counts[0][key] != counts[1][key] and len(read[key]) != 1}


def _is_of_numbers(operator: RankOperator) -> bool:
    return all(one.size == 1 for one in operator.tensors)


def _is_other_flat(one: RankOperator, golden: RankOperator, in_pieces: bool) -> bool:
    """Whether an operator of an update reads flat tensors that are no parts of the golden operator's: they have none of
    its values. A part of another length than an equal one, as a buffer of several parameters has or the end of a rank's
    share, needs some, and so does one of equal length if others are such pieces (`in_pieces`)."""
    pairs = [(a, b) for a, b in zip(one.inputs, golden.inputs) if len(a.shape) == 1]
    parts = [(a, b) for a, b in pairs if a.shape != b.shape]
    shares = [share for pair in parts or pairs for share in [share_of(*pair)] if share is not None]
    if shares:
        return max(shares) < (ROUTED if parts else ALIKE * in_pieces)
    counts = [max(1, round(b.size / max(a.size, 1))) for a, b in parts]
    return any(a.size not in (b.size // count, -(-b.size // count)) for (a, b), count in zip(parts, counts))


def _has_other_rows(one: RankOperator, golden: RankOperator, count: int) -> bool:
    """Whether an operator of an update reads a number of rows that no split of the golden's over up to `count` ranks
    leaves: equal ones, and fewer on the last. Values show more."""
    for a, b in zip(one.inputs, golden.inputs):
        if len(a.shape) == len(b.shape) > 1 and a.shape[0] != b.shape[0] and a.array is None:
            equal = [-(-b.shape[0] // ranks) for ranks in range(2, count + 1)]
            if a.shape[0] not in equal and a.shape[0] not in [b.shape[0] % rows for rows in equal]:
                return True
    return False


def _reads_equal_weight(one: RankOperator, golden: RankOperator) -> bool:
    """Whether both read one weight: the parameter of a product, all of whose values are those of the golden's."""
    places = [at for at in golden.parameter_places if at < len(one.inputs)]
    shares = [share_of(one.inputs[at], golden.inputs[at]) for at in places]
    return any(share is not None and share == 1.0 for share in shares)


def _has_halo(one: RankOperator, golden: RankOperator, most: float) -> bool:
    """Whether an operator may be the golden's convolution of a part of an image, which reads rows of its neighbours
    too: all but the length of its data may be parts."""
    if len(one.inputs) != len(golden.inputs) or not golden.parameter_places:
        return False
    weight = golden.inputs[golden.parameter_places[0]]
    if not len(one.inputs[0].shape) == len(golden.inputs[0].shape) == len(weight.shape) > 2:
        return False
    pairs = [(one.inputs[at], golden.inputs[at]) for at in golden.parameter_places]
    is_narrow = all(size <= whole for size, whole in zip(one.inputs[0].shape[:2], golden.inputs[0].shape))
    return is_narrow and all(may_be_part(*both, most) for both in [*pairs, *zip(one.outputs, golden.outputs)])


def _fits(one: RankOperator, golden: RankOperator, most: float) -> bool:
    if one.key != golden.key or len(one.tensors) != len(golden.tensors) or len(one.outputs) != len(golden.outputs):
        return False
    if not all(may_be_part(*both, most) for both in zip(one.tensors, golden.tensors)):
        return False
    weights = [(one.inputs[at], golden.inputs[at]) for at in one.parameter_places]
    shares = [share_of(a, b) for a, b in weights]
    return all(share is None or share > ROUTED for share in shares)  # else it is another expert's


def may_be_part(one: HeldTensor, golden: HeldTensor, most: float, rows: bool = False) -> bool:
    """Whether a tensor of a rank may be a part of a golden tensor by its shape. `rows`: any number of rows, as tokens
    of an expert, pieces of flat parameters and uneven shares of a batch have."""
    if len(one.shape) != len(golden.shape) or one.is_float != golden.is_float:
        return False
    times = 1.0
    for axis, (size, whole) in enumerate(zip(one.shape, golden.shape)):
        if size > whole:
            return False
        if size == whole or (rows and not axis):
            continue
        if not size or (whole % size and len(one.shape) > 1):
            return False
        times *= whole / size
    return times <= 2 * most


def share_of(one: HeldTensor, golden: HeldTensor) -> Optional[float]:
    """The share of a tensor that is found in a golden tensor, from 0 to 1; None if it cannot be known."""
    if not one.is_float or min(one.size, golden.size) < 2 or golden.size > SORTED:
        return None
    a, b = one.array, golden.array
    if a is None or b is None:
        return _share_by_figures(one, golden)
    if one.content is None:
        return _share_of_values(one, golden, a, b)
    key = one.content, one.shape, one.ref.dtype, float(a.flat[0])  # rows in another order have equal content
    if key not in golden.shares:
        golden.shares[key] = _share_of_values(one, golden, a, b)
    return golden.shares[key]


def _share_of_values(one: HeldTensor, golden: HeldTensor, a: Any, b: Any) -> Optional[float]:
    if a.shape == b.shape:
        if one.content is not None and one.content == golden.content:
            return 1.0
        near = 1.0 - distance(a, b)
        if near > ROUTED or len(a.shape) < 2:  # else its rows may be in another order
            return max(0.0, near)
    is_fine = one.ref.dtype == golden.ref.dtype == "float32"
    share = None if is_fine else _share_of_vectors(one, golden)
    if share is not None or (not is_fine and len(one.shape) > 1 and one.shape != golden.shape):
        return share
    whole = golden.ordered
    some = a.reshape(-1)[:: max(1, a.size // SAMPLE)]
    with np.errstate(over="ignore"):
        unit = float(np.sqrt((whole * whole).mean()))
    near = (NEAR if is_fine else NEAR_SHORT) * (unit if math.isfinite(unit) else 0.0)  # else numbers are equal or not
    at = np.searchsorted(whole, some)
    before, behind = whole[np.maximum(at - 1, 0)], whole[np.minimum(at, whole.size - 1)]
    gap = np.minimum(np.abs(before - some), np.abs(behind - some))
    return float(np.count_nonzero(gap <= near) / some.size)


def _share_of_vectors(one: HeldTensor, golden: HeldTensor) -> Optional[float]:
    """The share of the rows, columns or runs of elements of a tensor that a golden tensor has too; None if more than
    one axis differs, or they are short. Among many values of 16 bits each value has a near one by chance, a row has
    not."""

    axes = [axis for axis, (own, whole) in enumerate(zip(one.shape, golden.shape)) if own != whole] or [0]
    width = min(one.size, golden.size) if len(one.shape) == 1 else one.size // one.shape[axes[0]]
    if len(axes) > 1 or width < SHORT:
        return None
    a, b = one.vector_marks(axes[0]), golden.vector_marks(axes[0])
    some = a[:: max(1, len(a) // SAMPLE)]
    blocks = (b[at : at + BLOCK] for at in range(0, len(b), BLOCK))
    gap = np.minimum.reduce([np.linalg.norm(some[:, None] - block[None], axis=2).min(1) for block in blocks])
    return float((gap <= ALIKE * np.linalg.norm(some, axis=1)).mean())


def _share_by_figures(one: HeldTensor, golden: HeldTensor) -> Optional[float]:
    a, b = one.figures, golden.figures
    if a is None or b is None or None in a or None in b:
        return None
    x: Any = a
    y: Any = b
    near = NEAR_FIGURES * (abs(y[0]) + abs(y[1])) / 2
    if one.shape == golden.shape:
        some = (0, 1, 3)
        return 1.0 if all(abs(x[k] - y[k]) <= SAME_FIGURES * max(abs(y[k]), near) for k in some) else OTHER_FIGURES
    within = x[0] <= y[0] + near and x[1] >= y[1] - near and x[3] <= y[3] * LARGER_NORM
    return WITHIN * bool(within) + EXTREME * bool(abs(x[0] - y[0]) <= near or abs(x[1] - y[1]) <= near)
