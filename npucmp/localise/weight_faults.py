"""Say what a wrong parameter of a checkpoint is: another parameter, transposed, exchanged shards, zero rows.

The verdict on a parameter comes before; these sentences change none. They are looked for in this order, and the first
that holds for the values is taken:

    codes without a scale · another shape · all zero · the values of another golden parameter · transposed · an update
    of low rank that is missing · rounded to a coarser type, bit for bit · an update of low rank with another scale ·
    rows or columns in another order, named by shards where shards explain it · a constant factor or summand · the same
    numbers in another order · zero rows · single elements, rows or columns that differ
"""

from __future__ import annotations

import math
from typing import Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from npucmp.align.weights.checkpoint_pair import CheckpointPair
from npucmp.align.weights.part import Part
from npucmp.align.weights.role import Role
from npucmp.align.weights.sample import ELEMENTS, Array, agrees, row_numbers, rows_of, whole_values
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import sliced
from npucmp.dump.readers.values import blocks
from npucmp.dump.readers.weight_payloads import transposed
from npucmp.errors import NpucmpError, SystemFailure
from npucmp.localise.rounded_tensors import TYPES, is_rounded, shows_type
from npucmp.model import Payload

TOTAL = 1 << 26  # elements of all parameters that are read whole to describe them: work
SORTED = 1 << 22  # elements that are sorted: work
WHOLE = 1 << 25  # elements of a parameter that is read whole to describe it: work
CANDIDATE_ROWS = 4  # rows that another parameter has to share: work: they are compared again over all sampled rows
FREQUENCY = 1.7  # radians per column: chosen: numbers without a pattern, by which rows are sorted
OF_BFLOAT16 = 0xFFFF0000  # bits: definition: those of float32 that bfloat16 keeps
FEWEST = 3  # elements: chosen: fewer stand in any order by chance
STEP_SHARE = 0.01  # of the largest value: chosen: one step of int8, 1 of 127
DISTINCT = 2  # values of a sample: chosen: a parameter of one value has no holder
LEAST_SHARDS = 2  # shards: definition: one shard has no other
MOSTLY = 0.5  # share of elements: chosen: a factor moves most of them beyond the rounding
EXACT = 2.0**-23  # of a value: definition: one rounding to float32 of each of two operands
SMALL_REST = 0.01  # of the summand: chosen: what rounding may leave of a constant that is named
FACTOR_SPREAD = 8.0  # limits of single elements: chosen: a factor is rounded once more
Fact = Union[str, int, float]


class WeightFault(NamedTuple):
    """A description of a wrong parameter: a label that is equal in all layers of a fault, the sentence, its facts."""

    label: str
    words: str
    facts: Mapping[str, Fact] = {}


DIFFERS = WeightFault("differs", "its values differ")


class FaultFinder:
    """Finds what wrong parameters are among the pairs of two checkpoints. `shards` is the number of tensor-parallel
    ranks of the target."""

    def __init__(self, pairs: Sequence[CheckpointPair], shards: int, context: ReadContext) -> None:
        self._context, self._shards, self._left = context, shards, TOTAL
        self._goldens = [(pair.role, pair.golden) for pair in pairs if pair.golden is not None and not pair.copy]

    def fault(self, pair: CheckpointPair) -> WeightFault:
        """Return what the target's parameter of a wrong pair is."""
        target, golden = pair.target, pair.golden
        if target is None or golden is None or target.payload is None or golden.payload is None:
            return DIFFERS
        try:
            if target.is_bare is not golden.is_bare:
                side = target if target.is_bare else golden
                return WeightFault("bare", "its {dtype} codes have no scale: scale missing", {"dtype": side.dtype})
            if target.shape != golden.shape:
                return _of_shapes(target.shape, golden.shape)
            return (
                self._by_shards(pair, target, golden)
                or self._by_samples(pair, target.payload, golden.payload)
                or self._by_values(pair, target.payload, golden.payload)
            )
        except NpucmpError as error:
            return WeightFault("differs", "its values cannot be read again: {because}", {"because": str(error)})

    # by shards

    def _by_shards(self, pair: CheckpointPair, target: Part, golden: Part) -> Optional[WeightFault]:
        """Return a fault if ranks hold the shards of other ranks. The last shards may be padding."""
        if len(target.shards) < LEAST_SHARDS or golden.payload is None:
            return None
        axis, whole = target.axis, golden.payload
        size, length = target.shards[0].shape[axis], whole.shape[axis]
        pieces = [sliced(whole, axis, at, min(at + size, length)) for at in range(0, length, size)]
        holds = [self._holder(pair, shard, pieces, at, axis) for at, shard in enumerate(target.shards)]
        return _swapped(holds)

    def _holder(
        self, pair: CheckpointPair, shard: Payload, pieces: Sequence[Payload], own: int, axis: int
    ) -> Optional[int]:
        """Return the number of the golden's piece that a shard holds; its own number for padding, None for none."""
        if own >= len(pieces):
            return own
        order: list[int] = [own, *range(len(pieces))]
        for number in order:
            piece = pieces[number]
            part = sliced(shard, axis, 0, min(piece.shape[axis], shard.shape[axis]))
            numbers = row_numbers(part.shape[0]) if part.shape == piece.shape else []
            if numbers and self._same(pair, rows_of(part, numbers, self._context), piece, numbers):
                return number
        return None

    # by some rows

    def _by_samples(self, pair: CheckpointPair, target: Payload, golden: Payload) -> Optional[WeightFault]:
        if len(target.shape) < 1 or 0 in target.shape:
            return None
        numbers = row_numbers(target.shape[0])
        x, y = (rows_of(one, numbers, self._context) for one in (target, golden))
        if not x.any() and y.any() and not _any_value(target, self._context):
            return WeightFault("zero", "all its elements are zero")
        if len({*x.reshape(-1).tolist()}) > DISTINCT:
            held = self._held(pair, x, y, numbers)
            if held is not None:
                return held
        if self._same(pair, x, golden, numbers):  # a symmetric golden would be its transposition too
            return None
        if (
            len(target.shape) == 2
            and target.shape[0] == target.shape[1]
            and self._same(pair, x, transposed(golden), numbers)
        ):
            return WeightFault("transposed", "it is transposed")
        if golden.made_by == "sum" and self._same(pair, x, golden.parts[0], numbers):
            return WeightFault("update", "the update of low rank (LoRA) is missing")
        return None

    def _same(self, pair: CheckpointPair, x: Array, other: Payload, numbers: Sequence[int]) -> bool:
        return agrees(
            x, rows_of(other, numbers, self._context), pair.limit.rtol, pair.limit.is_quantised, pair.limit.atol
        )

    def _held(self, pair: CheckpointPair, x: Array, y: Array, numbers: Sequence[int]) -> Optional[WeightFault]:
        """Return the other golden parameter whose values the target holds."""
        few = [at for at in range(len(numbers)) if at % max(1, len(numbers) // CANDIDATE_ROWS) == 0]
        own = [numbers[at] for at in few]
        limit = pair.limit
        for role, other in self._goldens:
            if role == pair.role or other.payload is None or other.shape != (pair.target.shape if pair.target else ()):
                continue
            try:
                sample = rows_of(other.payload, own, self._context)
                near = agrees(x[few], sample, limit.rtol, limit.is_quantised, limit.atol)
                if not near or agrees(y[few], sample, limit.rtol, limit.is_quantised, limit.atol):
                    continue
                if self._same(pair, x, other.payload, numbers):
                    return _holds(pair.role, role, other)
            except SystemFailure:
                raise
            except NpucmpError:
                continue
        return None

    def _update(self, pair: CheckpointPair, x: Array, y: Array, golden: Payload) -> Optional[WeightFault]:
        """Return a fault if the target holds the golden's update of low rank times another scale."""
        if golden.made_by != "sum":
            return None
        base = whole_values(golden.parts[0], self._context)
        update, own = y - base, x - base
        squares = float((update * update).sum())
        factor = float((own * update).sum()) / squares if squares else math.nan
        rest = np.abs(own - factor * update)
        if not math.isfinite(factor) or (rest > FACTOR_SPREAD * (pair.limit.rtol * np.abs(y) + pair.limit.atol)).any():
            return None
        words = "the update of low rank (LoRA) is {factor:.4g} times the golden's: another scale"
        return WeightFault(f"update {factor:.3g}", words, {"factor": factor})

    # by all values

    @np.errstate(invalid="ignore")
    def _by_values(self, pair: CheckpointPair, target: Payload, golden: Payload) -> WeightFault:
        size = math.prod(target.shape)
        if size > min(WHOLE, self._left):
            return DIFFERS
        self._left -= size
        x, y = (whole_values(one, self._context) for one in (target, golden))
        if size == 1:
            facts: dict[str, Fact] = {"target": x.item(), "golden": y.item()}
            return WeightFault("value", "it is {target:.7g} in the target, {golden:.7g} in the golden", facts)
        limit = pair.limit
        slack = limit.rtol * np.abs(y) + limit.atol
        if limit.is_quantised:
            slack = slack + STEP_SHARE * np.abs(y).max(initial=0.0)
        bad = ~((np.abs(x - y) <= slack) | (x == y) | (np.isnan(x) & np.isnan(y)))
        if not bad.any():
            return WeightFault("steps", "single codes are off by more than half a step")
        related = _rounded(x, y) or self._update(pair, x, y, golden)
        if related is not None:
            return related
        if len(x.shape) == 1 and (moved := self._moved_shards(x, y, slack)) is not None:
            return moved
        if len(x.shape) == 2:
            for axis in (0, 1):
                moved = self._moved(
                    x if axis == 0 else x.T, y if axis == 0 else y.T, slack if axis == 0 else slack.T, axis
                )
                if moved is not None:
                    return moved
        linear = _linear(x, y, slack) if bad.mean() > MOSTLY else None
        return linear or _zero(x, bad) or _sorted_alike(x, y, slack) or _places(bad)

    def _moved(self, x: Array, y: Array, slack: Array, axis: int) -> Optional[WeightFault]:
        """Return a fault if the target holds the golden's rows in another order."""
        shards = self._moved_shards(x, y, slack)
        if shards is not None:
            return shards
        order = _order_of(x, y, slack)
        if order is None:
            return None
        what = "rows" if axis == 0 else "columns"
        moved = [at for at, one in enumerate(order) if at != one]
        facts: dict[str, Fact] = {"what": what, "first": moved[0], "last": moved[-1]}
        return WeightFault(f"{what} moved", "the golden's {what} {first} to {last} stand in another order", facts)

    def _moved_shards(self, x: Array, y: Array, slack: Array) -> Optional[WeightFault]:
        """Return a fault if the rows of tensor-parallel ranks stand in the order of other ranks."""
        count = self._shards
        if count < 2 or len(x) % count:
            return None
        own, theirs, limits = (one.reshape(count, -1) for one in (x, y, slack))
        holds = [
            next((of for of in (at, *range(count)) if (np.abs(own[at] - theirs[of]) <= limits[of]).all()), None)
            for at in range(count)
        ]
        return _swapped(holds)


def _swapped(holds: Sequence[Optional[int]]) -> Optional[WeightFault]:
    """Return a fault if ranks hold the shards of these ranks; None if each holds its own, or one holds none."""
    moved = [at for at, of in enumerate(holds) if of != at]
    if None in holds or not moved:
        return None
    if len(moved) == 2 and holds[moved[0]] == moved[1] and holds[moved[1]] == moved[0]:
        facts: dict[str, Fact] = {"one": moved[0], "other": moved[1]}
        return WeightFault(f"shards {moved}", "shards {one} and {other} are swapped", facts)
    facts = {"first": moved[0], "other": holds[moved[0]] or 0}
    return WeightFault("shards", "shard {first} is that of rank {other}", facts)


def _any_value(payload: Payload, context: ReadContext) -> bool:
    return any(one.any() for one in blocks(payload, ELEMENTS, context=context))


def _of_shapes(target: tuple[int, ...], golden: tuple[int, ...]) -> WeightFault:
    if target == golden[::-1]:
        return WeightFault("transposed", "it is transposed: shape {target} against {golden}", _shapes(target, golden))
    return WeightFault("shape", "shape {target} against {golden}", _shapes(target, golden))


def _shapes(target: tuple[int, ...], golden: tuple[int, ...]) -> dict[str, Fact]:
    return {"target": str([*target]), "golden": str([*golden])}


def _holds(own: Role, other: Role, part: Part) -> WeightFault:
    """The fault of a parameter that holds another one; the label has the distance in layers and experts."""
    layers = None if own.layer is None or other.layer is None else other.layer - own.layer
    experts = None if own.expert is None or other.expert is None else other.expert - own.expert
    name = part.name.removesuffix(".weight") if not part.slot else f"{part.name} ({part.slot})"
    return WeightFault(
        f"holds {other.kind} {layers} {experts}", "holds the weights of {other}", {"other": name, "kind": other.kind}
    )


def _order_of(x: Array, y: Array, slack: Array) -> Optional[list[int]]:
    """Return the golden's row that each row of the target holds, if these are all rows in another order."""
    if x.shape[1] < 2:
        return None
    weights = np.cos(FREQUENCY * np.arange(1, x.shape[1] + 1))
    ours, theirs = x @ weights, y @ weights
    first, second = np.argsort(ours, kind="stable"), np.argsort(theirs, kind="stable")
    order = np.empty(len(x), np.int64)
    order[first] = second
    if (order == np.arange(len(x))).all() or not (np.abs(x - y[order]) <= slack[order]).all():
        return None
    found: list[int] = order.tolist()
    return found


def _rounded(x: Array, y: Array) -> Optional[WeightFault]:
    """Return a fault if one side is the other one rounded to a coarser type, to the nearest number or towards zero. A
    few elements that differ may round to the same by chance."""
    sides = (
        (x, y, "it is the golden rounded to {dtype}, bit for bit", "it is the golden cut off to {dtype}, bit for bit"),
        (
            y,
            x,
            "the golden is the target rounded to {dtype}, bit for bit",
            "the golden is the target cut off to {dtype}, bit for bit",
        ),
    )
    for coarse, fine, rounded, cut_off in sides:
        changed = np.count_nonzero(coarse != fine)
        if not shows_type(coarse, fine) or changed < min(FEWEST, int(np.count_nonzero(fine))):
            continue
        for name in TYPES:
            if is_rounded(coarse, fine, name):
                return WeightFault(f"{rounded} {name}", rounded, {"dtype": name})
        bits = fine.astype(np.float32).view(np.uint32) & np.uint32(OF_BFLOAT16)
        if np.array_equal(bits.view(np.float32), coarse):
            return WeightFault(cut_off, cut_off, {"dtype": "bfloat16"})
    return None


def _linear(x: Array, y: Array, slack: Array) -> Optional[WeightFault]:
    """Return a fault if the target is the golden times a factor, or plus a constant; a golden of one value is both."""
    summand, factor = _summand(x, y, slack), _factor(x, y, slack)
    if summand is None or factor is None:
        return summand or factor
    words = "it is {factor:.4g} times the golden, or the golden plus {summand:.4g}"
    return WeightFault(f"{factor.label} {summand.label}", words, {**factor.facts, **summand.facts})


def _summand(x: Array, y: Array, slack: Array) -> Optional[WeightFault]:
    """Return a fault if the target is the golden plus a constant, within the rounding of both and of their sum."""
    away = x - y
    summand = float(np.median(away))
    rounding = FACTOR_SPREAD * slack + EXACT * (np.abs(x) + abs(summand))
    if x.size < FEWEST or not math.isfinite(summand) or not summand or (np.abs(away - summand) > rounding).any():
        return None
    if float(rounding.max()) > SMALL_REST * abs(summand):
        return None
    return WeightFault(f"plus {summand:.3g}", "it is the golden plus {summand:.4g}", {"summand": summand})


def _factor(x: Array, y: Array, slack: Array) -> Optional[WeightFault]:
    squares = float((y * y).sum())
    factor = float((x * y).sum()) / squares if squares else math.nan
    if not math.isfinite(factor) or not factor or (np.abs(x - factor * y) > FACTOR_SPREAD * abs(factor) * slack).any():
        return None
    return WeightFault(f"factor {factor:.3g}", "it is {factor:.4g} times the golden", {"factor": factor})


def _sorted_alike(x: Array, y: Array, slack: Array) -> Optional[WeightFault]:
    if y.size > SORTED:
        return None
    order = np.argsort(y, None)
    a, b, limit = np.sort(x, None), y.reshape(-1)[order], slack.reshape(-1)[order]
    if a.size < FEWEST or not (np.abs(a - b) <= limit).all():
        return None
    return WeightFault("order", "it holds the same numbers in another order")


def _zero(x: Array, bad: NDArray[np.bool_]) -> Optional[WeightFault]:
    """Return the rows or columns that are zero, if no others differ."""
    rows = bad.reshape(len(bad), -1) if bad.ndim else bad.reshape(1, 1)
    values = x.reshape(rows.shape)
    for what, axis in (("row" if bad.ndim > 1 else "element", 1), ("column", 0)):
        wrong = np.flatnonzero(rows.any(axis))
        inside = values[wrong] if axis == 1 else values[:, wrong]
        if len(wrong) and not inside.any():
            facts: dict[str, Fact] = {"first": int(wrong[0]), "last": int(wrong[-1])}
            words = f"{what}s {{first}} to {{last}} are zero" if len(wrong) > 1 else f"{what} {{first}} is zero"
            return WeightFault(f"zero {what}s {len(wrong)}", words, facts)
    return None


def _places(bad: NDArray[np.bool_]) -> WeightFault:
    """Return which rows, columns or elements differ."""
    rows = bad.reshape(len(bad), -1) if bad.ndim else bad.reshape(1, 1)
    numbers = np.flatnonzero(rows.any(1))
    facts: dict[str, Fact] = {
        "first": int(numbers[0]),
        "last": int(numbers[-1]),
        "count": len(numbers),
        "rows": len(rows),
    }
    if int(bad.sum()) == 1:
        return WeightFault("element", "one element differs, in row {first}", facts)
    what = "elements" if bad.ndim < 2 else "rows"
    columns = np.flatnonzero(rows.any(0))
    if len(columns) < len(rows[0]) and len(numbers) == len(rows) and rows[:, columns].all():
        facts.update(first=int(columns[0]), last=int(columns[-1]))
        return WeightFault("columns", "columns {first} to {last} differ", facts)
    if len(numbers) < len(rows):
        return WeightFault("rows", f"{{count}} of {{rows}} {what} differ, {{first}} to {{last}}", facts)
    return DIFFERS
