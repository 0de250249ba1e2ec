"""Say what a wrong parameter of a checkpoint is: another parameter, transposed, exchanged shards, zero rows.

The verdict on a parameter comes before; these sentences change none. They are looked for in this order, and the first
that holds for the values is taken:

    codes without a scale · another shape · all zero · the values of another golden parameter · transposed · an update
    of low rank that is missing · rounded to a coarser type, bit for bit · an update of low rank with another scale ·
    rows, columns, experts or halves in another order, named by shards where shards explain it · scales of blocks that
    are others · a constant factor or summand · zero rows · the same numbers in another order · single elements, rows or
    columns that differ

Say how the scales of codes differ: the codes are the golden's, each block is the golden's times a factor of its own.

If both sides have codes, the scales themselves are compared: the bytes of exponents read as numbers, reciprocals, the
golden's scales in another order, others. If one side has none, the factor of each block is estimated from its values.
"""

from __future__ import annotations

import math
from typing import Mapping, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import sliced
from npucmp.dump.readers.computed_weights import SCALED
from npucmp.dump.readers.values import blocks
from npucmp.dump.readers.weight_payloads import steps_of, transposed
from npucmp.errors import NpucmpError
from npucmp.localise.root_values import TYPES, is_rounded, shows_type
from npucmp.model import Payload
from npucmp.relations.weights.checkpoint_pair import CheckpointPair, Fact, WeightFault
from npucmp.relations.weights.element_ranks import rank_of_all, rank_of_whole
from npucmp.relations.weights.low_rank import simple_numbers
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.role import Role
from npucmp.relations.weights.sample import ELEMENTS, Array, agrees, row_numbers, rows_of, sampled_rows, whole_values

CODES = 1e-6  # of a code: chosen: one rounding of a product to float32 and of its quotient
BIAS = 127  # of an exponent: definition: of the exponent of float8_e8m0
NEAR = 0.01  # of a scale: chosen: an estimate from the values of a block
WITHIN = 1.1  # limits of single elements: chosen: the factor of a block is an estimate


def other_scales(
    target: Payload, golden: Payload, x: Array, y: Array, slack: Array, context: ReadContext
) -> Optional[WeightFault]:
    """Return a fault if the codes are the golden's and several scales are others. One factor of all is none."""
    steps = [steps_of(payload) for payload in (target, golden)]
    if steps[0] is not None and steps[1] is not None:
        return _of_codes(x, y, whole_values(steps[0], context), whole_values(steps[1], context))
    payload, step = (target, steps[0]) if steps[0] is not None else (golden, steps[1])
    block = _block_of(payload)
    if step is None or block is None:
        return None
    return _of_blocks(x, y, slack, whole_values(step, context), block, payload is target)


def _of_codes(x: Array, y: Array, own: Array, theirs: Array) -> Optional[WeightFault]:
    """The fault of two sides of equal codes."""
    with np.errstate(all="ignore"):
        codes = x / own, y / theirs
        ratio, exponents = own / theirs, np.log2(theirs) + BIAS
    used = (own != 0) & (theirs != 0)
    if not used.any() or not np.allclose(codes[0][used], codes[1][used], rtol=CODES, atol=0.0, equal_nan=True):
        return None
    least, most = float(ratio[used].min()), float(ratio[used].max())
    if most - least <= NEAR * abs(most):
        return None
    facts: dict[str, Fact] = {"least": least, "most": most}
    if np.array_equal(own[used], exponents[used]):
        words = "its codes are the golden's, its scales the exponent bytes of the golden's scales: {byte} for 2^{power}"
        facts = {"byte": int(own.flat[0]), "power": int(own.flat[0]) - BIAS}
        return WeightFault("exponent bytes", words, facts)
    if np.allclose((own * theirs)[used], 1.0, rtol=CODES):
        return WeightFault("reciprocal", "its codes are the golden's, its scales the reciprocals of the golden's")
    if np.array_equal(np.sort(own, None), np.sort(theirs, None)):
        return WeightFault("scales moved", "its codes are the golden's, its scales the golden's in another order")
    facts["share"] = float((np.abs(ratio[used] - 1.0) > CODES).mean())
    words = "its codes are the golden's; {share:.1%} of them have another scale, {least:.4g} to {most:.4g} times it"
    return WeightFault("scales", words, facts)


def _block_of(payload: Payload) -> Optional[tuple[int, int]]:
    """The rows and columns that share a scale; None for codes that are joined or turned."""
    if payload.made_by != SCALED:
        return None
    scale = payload.parts[1]
    first = scale.parts[0] if scale.made_by else scale
    rows = first.shape[0] if first.strides and not first.strides[0] else 1
    return rows, payload.axis if scale.shape[1] > 1 else payload.shape[1]


def _of_blocks(
    x: Array, y: Array, slack: Array, step: Array, block: tuple[int, int], is_target: bool
) -> Optional[WeightFault]:
    """The fault of codes against plain values: blocks that are the golden's times several factors."""
    edges = [np.arange(0, size, length) for size, length in zip(x.shape, block)]

    def sums(values: Array) -> Array:
        return np.add.reduceat(np.add.reduceat(values, edges[0], 0), edges[1], 1)

    with np.errstate(all="ignore"):
        factor = sums(x * y) / sums(y * y)
    if factor.size < 2 or not np.isfinite(factor).all() or (factor <= 0.0).any():
        return None
    wide = np.repeat(np.repeat(factor, block[0], 0)[: len(x)], block[1], 1)[:, : x.shape[1]]
    least, most = float(factor.min()), float(factor.max())
    if most - least <= NEAR * most or (np.abs(x - wide * y) > WITHIN * np.maximum(wide, 1.0) * slack).any():
        return None
    scales = step[np.ix_(*edges)]
    right = scales / factor if is_target else scales * factor
    odd = np.abs(factor - 1.0) > NEAR
    least, most = float(factor[odd].min()), float(factor[odd].max())
    first = int(np.flatnonzero(odd.any(1))[0]) * block[0]
    facts: dict[str, Fact] = {"rows": block[0], "columns": block[1], "least": least, "most": most,
                              "count": int(odd.sum()), "all": odd.size, "first": first}  # fmt: skip
    words = (
        "{count} of {all} blocks of {rows} by {columns}, from row {first} on, are the golden's times {least:.4g} to "
        "{most:.4g}: "
    )
    if is_target and np.array_equal(scales, np.round(np.log2(right)) + BIAS):
        return WeightFault("exponent bytes", words + "its scales are exponent bytes of float8_e8m0", facts)
    if np.allclose(np.sort(scales, None), np.sort(right, None), rtol=NEAR):
        return WeightFault("scales moved", words + "its scales are those of other blocks", facts)
    return WeightFault("scales", words + "its scales are others", facts)


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
SMALL_REST = 0.01  # of the summand: chosen: rms of what rounding may leave of a constant that is named
SIMPLE_REST = 1.02  # times the least residual: chosen: an estimate of a scale is off by its own rounding
DIGITS = 3  # of a summand: chosen: the number in the middle of rounded differences is a simple one
FACTOR_SPREAD = 8.0  # limits of single elements: chosen: a factor is rounded once more
NORMS = frozenset("n0 n1 n2 nf qn kn q_a_norm kv_a_norm".split())  # kinds that multiply by weight or by 1 + weight
KEYS = 16  # numbers of a row by which its nearest row is found: chosen: so many do not agree by chance
NEAREST = 1 << 12  # rows that are matched by their nearest row: work
STACK_AXES = 3  # axes: definition: experts, rows, columns
HALVES = frozenset("gu gu_stack fc1 shared_gu shared_fc1".split())  # kinds that hold gate and up one behind the other

DIFFERS = WeightFault("differs", "its values differ")


class FaultFinder:
    """Finds what wrong parameters are among the pairs of two checkpoints. `shards` is the number of tensor-parallel
    ranks of the target, `ranks` the rank of each of its files."""

    def __init__(
        self, pairs: Sequence[CheckpointPair], shards: int, context: ReadContext, ranks: Mapping[str, int] = {}
    ) -> None:
        self.context, self._shards, self._left, self._ranks = context, shards, TOTAL, ranks
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
            found = (
                self._by_shards(pair, target, golden)
                or self._by_samples(pair, target.payload, golden.payload)
                or self._by_values(pair, target.payload, golden.payload)
            )
            return _of_slot(pair, found) if pair.is_slot else found
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
        found = _swapped(holds)
        moved = [at for at, of in enumerate(holds) if of != at]
        return found._replace(rank=target.names[moved[0]][0]) if found is not None and len(moved) == 1 else found

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
            if numbers and self._same(pair, rows_of(part, numbers, self.context), piece, numbers):
                return number
        return None

    # by some rows

    def _by_samples(self, pair: CheckpointPair, target: Payload, golden: Payload) -> Optional[WeightFault]:
        if len(target.shape) < 1 or 0 in target.shape:
            return None
        numbers = row_numbers(target.shape[0])
        x, y = (rows_of(one, numbers, self.context) for one in (target, golden))
        if not x.any() and y.any() and not any(map(np.any, blocks(target, ELEMENTS, context=self.context))):
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
        return agrees(x, rows_of(other, numbers, self.context), pair.limit)

    def _held(self, pair: CheckpointPair, x: Array, y: Array, numbers: Sequence[int]) -> Optional[WeightFault]:
        """Return the other golden parameter whose values the target holds."""
        few = [at for at in range(len(numbers)) if at % max(1, len(numbers) // CANDIDATE_ROWS) == 0]
        own = [numbers[at] for at in few]
        limit = pair.limit
        for role, other in self._goldens:
            if role == pair.role or other.payload is None or other.shape != (pair.target.shape if pair.target else ()):
                continue
            sample = sampled_rows(other.payload, own, self.context)
            if sample is None or not agrees(x[few], sample, limit) or agrees(y[few], sample, limit):
                continue
            every = sampled_rows(other.payload, numbers, self.context)
            if every is not None and agrees(x, every, limit):
                return _holds(pair.role, role, other)
        return None

    def _update(self, pair: CheckpointPair, x: Array, y: Array) -> Optional[WeightFault]:
        """Return a fault if a side was merged with an update of low rank times another scale."""
        assert pair.target is not None and pair.golden is not None
        for part, merged, other in ((pair.golden, y, x), (pair.target, x, y)):
            whole = part.payload
            if whole is None or whole.made_by != "sum":
                continue
            base = whole_values(whole.parts[0], self.context)
            update, own = merged - base, other - base
            squares = float((update * update).sum())
            factor = float((own * update).sum()) / squares if squares else math.nan
            limit = pair.limit.rtol * np.maximum(np.abs(y), np.abs(x)) + pair.limit.atol
            if not math.isfinite(factor) or (np.abs(own - factor * update) > FACTOR_SPREAD * limit).any():
                continue
            stated = whole.parts[1].factor
            factor = _simple_scale(own, update, factor, stated)
            scales = [factor * stated, stated] if part is pair.golden else [stated, factor * stated]
            words = (
                "the update of low rank (LoRA) is merged with the scale {scale:.4g}, {factor:.4g} times the golden's, "
                "{stated:.4g}"
            )
            facts = {"scale": scales[0], "factor": scales[0] / scales[1] if scales[1] else math.inf,
                     "stated": scales[1]}  # fmt: skip
            return WeightFault(f"update {factor:.3g}", words, facts)
        return None

    # by all values

    @np.errstate(invalid="ignore")
    def _by_values(self, pair: CheckpointPair, target: Payload, golden: Payload) -> WeightFault:
        size = math.prod(target.shape)
        if size > min(WHOLE, self._left):
            return DIFFERS
        self._left -= size
        x, y = (whole_values(one, self.context) for one in (target, golden))
        if size == 1:
            facts: dict[str, Fact] = {"target": x.item(), "golden": y.item()}
            return WeightFault("value", "it is {target:.7g} in the target, {golden:.7g} in the golden", facts)
        limit = pair.limit
        slack = limit.rtol * np.abs(y) + limit.atol
        if limit.is_quantised:
            slack = slack + STEP_SHARE * np.abs(y).max(initial=0.0)
        bad = ~((np.abs(x - y) <= slack) | (x == y) | (np.isnan(x) & np.isnan(y)))
        found = _rounded(x, y)
        if found is not None and pair.role.is_shift_free:
            before, after = sorted((len({*x.tolist()}), len({*y.tolist()})), reverse=True)
            facts = {**found.facts, "before": before, "after": after}
            found = WeightFault(found.label, f"{found.words}: {{before}} values become {{after}}", facts)
        if not bad.any():
            steps = WeightFault("steps", "single codes are off by more than half a step")
            return found or (steps if limit.is_quantised else DIFFERS)
        found = (
            found
            or self._update(pair, x, y)
            or _moved_parts(pair.role, x, y, slack)
            or self._moved(x, y, slack)
            or other_scales(target, golden, x, y, slack, self.context)
            or (_linear(pair, x, y, slack) if bad.mean() > MOSTLY else None)
            or _zero(x, bad)
            or _sorted_alike(pair, x, y)
            or _places(bad)
        )
        rank = rank_of_all(target, bad, self._ranks)
        return found if rank is None else found._replace(rank=rank)

    def rank_of_copy(self, pair: CheckpointPair) -> Optional[int]:
        """Return the rank that holds the whole parameter of the target; None if several do, or it is not known."""
        return rank_of_whole(pair.target.payload if pair.target is not None else None, self._ranks)

    def _moved(self, x: Array, y: Array, slack: Array) -> Optional[WeightFault]:
        """Return a fault if the target holds the golden's rows or columns in another order."""
        if x.ndim == 1:
            return self._moved_shards(x, y, slack)
        rows = [one.reshape(-1, one.shape[-1]) for one in (x, y, slack)]  # of all experts of a stack
        for what, values in (("rows", rows), ("columns", [one.T for one in rows])):
            if (shards := self._moved_shards(*values)) is not None:
                return shards
            if (order := _order_of(*values)) is not None:
                moved = [at for at, one in enumerate(order) if at != one]
                facts: dict[str, Fact] = {"what": what, "first": moved[0], "last": moved[-1]}
                words = "the golden's {what} {first} to {last} stand in another order"
                return WeightFault(f"{what} moved", words, facts)
        return None

    def _moved_shards(self, x: Array, y: Array, slack: Array) -> Optional[WeightFault]:
        """Return a fault if the rows of tensor-parallel ranks stand in the order of other ranks."""
        count = self._shards
        if count < 2 or len(x) % count:
            return None
        own, theirs, limits = (one.reshape(count, -1) for one in (x, y, slack))
        return _swapped(_holders(own, theirs, limits))


def _simple_scale(own: Array, update: Array, factor: float, stated: float) -> float:
    """Return the factor of an update whose scale is the simplest number that fits as well as the factor itself."""

    def rest(one: float) -> float:
        return float(np.sqrt(np.square(own - one * update).sum()))

    most = SIMPLE_REST * rest(factor) + EXACT * float(np.sqrt(np.square(own).sum()))
    scales = simple_numbers(factor * stated) if stated else []
    return next((scale / stated for scale in scales if rest(scale / stated) <= most), factor)


def _of_slot(pair: CheckpointPair, found: WeightFault) -> WeightFault:
    """The fault of a slot of the experts that holds a copy of an expert in other layouts: the slot is named."""
    assert pair.target is not None and pair.golden is not None
    of_target = pair.role == pair.target.role
    facts = {
        **found.facts,
        "slot": pair.role.expert or 0,
        "expert": (pair.golden if of_target else pair.target).role.expert or 0,
    }
    words = f"slot {{slot}} of the experts is no copy of expert {{expert}}: {found.words}"
    if found == DIFFERS and not pair.is_known_copy:
        words = "slot {slot} of the experts holds no expert of the golden"
        if not of_target:
            words = "slot {slot} of the golden's experts holds no expert of the target"
    return WeightFault(found.label, words, facts)


def _moved_parts(role: Role, x: Array, y: Array, slack: Array) -> Optional[WeightFault]:
    """Return a fault if gate and up are exchanged, or the experts of a stack hold other experts."""
    experts = len(x) if x.ndim == STACK_AXES and role.kind.endswith("stack") else 1
    flat = [one.reshape(experts, -1) for one in (x, y, slack)]
    if role.kind in HALVES and flat[0].shape[1] % 2 == 0:
        halves = [one.reshape(experts, 2, -1).swapaxes(0, 1).reshape(2, -1) for one in flat]
        if _holders(*halves) == [1, 0]:
            return WeightFault("halves", "gate and up are exchanged")
    if experts < LEAST_SHARDS:
        return None
    holds = _holders(*flat)
    moved = [(at, of) for at, of in enumerate(holds) if of not in (at, None)]
    if not moved:
        return None
    facts: dict[str, Fact] = {"one": moved[0][0], "other": moved[0][1] or 0, "count": len(moved), "experts": experts}
    return WeightFault("experts", "{count} of {experts} experts hold others: expert {one} is expert {other}", facts)


def _holders(own: Array, theirs: Array, limits: Array) -> list[Optional[int]]:
    """Return the number of the golden's piece that each piece of the target holds; None for none."""
    places = range(len(own))
    return [
        next((of for of in (at, *places) if (np.abs(own[at] - theirs[of]) <= limits[of]).all()), None) for at in places
    ]


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
    if not (np.abs(x - y[order]) <= slack[order]).all():
        if len(x) > NEAREST:
            return None
        scale = np.abs(y).max(initial=0.0) or 1.0
        keys = [
            one / scale @ np.cos(np.outer(np.arange(1, x.shape[1] + 1), FREQUENCY + np.arange(KEYS))) for one in (x, y)
        ]
        squares = [(key * key).sum(1) for key in keys]
        order = np.argmin(squares[0][:, None] + squares[1] - 2 * keys[0] @ keys[1].T, 1)
        if len({*order.tolist()}) < len(x) or not (np.abs(x - y[order]) <= slack[order]).all():
            return None
    if (order == np.arange(len(x))).all():
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


def _linear(pair: CheckpointPair, x: Array, y: Array, slack: Array) -> Optional[WeightFault]:
    """Return a fault if the target is the golden times a factor, or plus a constant; a golden of one value is both."""
    summand, factor = _summand(pair, x, y, slack), _factor(x, y, slack)
    if summand is None or factor is None:
        return summand or factor
    words = "it is {factor:.4g} times the golden, or the golden plus {summand:.4g}"
    return WeightFault(f"{factor.label} {summand.label}", words, {**factor.facts, **summand.facts})


def _summand(pair: CheckpointPair, x: Array, y: Array, slack: Array) -> Optional[WeightFault]:
    """Return a fault if the target is the golden plus a constant, within the rounding of both and of their sum."""
    away = x - y
    middle = float(np.median(away))
    if x.size < FEWEST or not math.isfinite(middle) or not middle:
        return None
    for summand in (*(float(f"{middle:.{digits}g}") for digits in range(1, DIGITS + 1)), middle):
        rounding = FACTOR_SPREAD * slack + max(EXACT, pair.limit.rtol) * (np.abs(x) + abs(summand))
        rest = np.abs(away - summand)
        if (rest <= rounding).all() and float(np.sqrt((rest * rest).mean())) <= SMALL_REST * abs(summand):
            words = "it is the golden plus {summand:.4g}"
            if abs(summand) == 1.0 and pair.role.kind in NORMS:
                words += ": a norm multiplies by weight on one side, by 1 + weight on the other"
            return WeightFault(f"plus {summand:.3g}", words, {"summand": summand})
    return None


def _factor(x: Array, y: Array, slack: Array) -> Optional[WeightFault]:
    squares = float((y * y).sum())
    factor = float((x * y).sum()) / squares if squares else math.nan
    if not math.isfinite(factor) or not factor or (np.abs(x - factor * y) > FACTOR_SPREAD * abs(factor) * slack).any():
        return None
    return WeightFault(f"factor {factor:.3g}", "it is {factor:.4g} times the golden", {"factor": factor})


def _sorted_alike(pair: CheckpointPair, x: Array, y: Array) -> Optional[WeightFault]:
    """Return a fault if the target holds the golden's numbers in another order, all of them, or each rounded to a type
    of the pair: numbers of one distribution are near each other once they are sorted."""
    if y.size > SORTED or x.size < FEWEST:
        return None
    a, b = np.sort(x, None), np.sort(y, None)
    if np.array_equal(a, b):
        return WeightFault("order", "it holds the same numbers in another order")
    for coarse, fine, words in (
        (a, b, "it holds the same numbers in another order, rounded to {dtype}"),
        (b, a, "the golden holds the same numbers in another order, rounded to {dtype}"),
    ):
        for part in (pair.target, pair.golden):
            if part is not None and part.dtype in TYPES and is_rounded(coarse, fine, part.dtype):
                return WeightFault(words, words, {"dtype": part.dtype})
    return None


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
