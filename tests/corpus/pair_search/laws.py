"""Laws: what must hold between pairs made of one golden run, whatever npucmp computes on the way.

Each law yields cases. The exit statuses that a case allows follow from how it was made, and from distances in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.device import ROUND_OFF, rounded
from tests.corpus.faults import Random, Setting
from tests.corpus.operators import OPERATORS
from tests.corpus.pair_search import changes
from tests.corpus.pair_search.groups import FLOATS, Layout
from tests.corpus.pair_search.networks import Drawn, another_order
from tests.corpus.subject import Examined
from tests.corpus.tape import Address, Plant, Precision
from tests.corpus.trace import Record, Run, Tensor
from tests.corpus.training import train
from tests.corpus.writers import msprobe
from tests.corpus.writers.slots import PARAMETER, slots

CLEAR = 8.0  # times the documented limit of 8 u: beyond that a difference has to be seen
AGREES, DIFFERS, UNDECIDED = 0, 1, 2
MANY = 1000.0  # times that the terms of a sum over rows may be larger than the sum
SAME = {"values": {AGREES}, "md5": {AGREES}, "statistics": {UNDECIDED}, "xor": {UNDECIDED}}
DIFFERENT = {"values": {DIFFERS}, "md5": {DIFFERS}, "statistics": {DIFFERS, UNDECIDED}, "xor": {DIFFERS, UNDECIDED}}
OPEN = {DIFFERS, UNDECIDED}
NOT_DIFFERENT = {AGREES, UNDECIDED}
NEW = 10**9  # keys of values that a change makes

Judge = Callable[["Sequence[Examined]"], str]


class Pair(NamedTuple):
    """Two runs to compare; layout: another one than that of the case."""

    target: Sequence[Run]
    golden: Sequence[Run]
    layout: Optional[Layout] = None


@dataclass(frozen=True)
class Case:
    """Pairs, and the sentence that a judge says of the answers to them, "" if they are as they must be."""

    name: str
    pairs: list[Pair]
    judge: Judge
    expected: str


@dataclass(frozen=True)
class LeftOut:
    """A change that the law says nothing of: a difference within the documented limit, or an error that an operator
    amplifies. Nothing is compared; the law counts it."""

    name: str


class Given(NamedTuple):
    """What a law works with."""

    drawn: Drawn
    layout: Layout
    others: Sequence[Layout]
    r: Random

    @property
    def holds(self) -> str:
        return self.layout.holds

    @property
    def golden(self) -> list[Run]:
        return self.drawn.golden

    @property
    def same(self) -> set[int]:
        return SAME[self.holds]


def allowed(name: str, pairs: list[Pair], statuses: set[int]) -> Case:
    """A case in which each pair has one of these exit statuses."""
    text = " or ".join(map(str, sorted(statuses)))

    def judge(answers: Sequence[Examined]) -> str:
        came = [one.status for one in answers]
        return "" if set(came) <= statuses else f"exit status {came[0] if len(came) == 1 else came}"

    return Case(name, pairs, judge, f"exit status {text}")


def alike(name: str, pairs: list[Pair], holds: str = "") -> Case:
    """A case in which all pairs have one exit status. Statistics may prove a difference one way and leave it in the
    noise the other way: there 1 and 2 are alike, as neither agrees."""

    def judge(answers: Sequence[Examined]) -> str:
        came = [one.status for one in answers]
        if holds == "statistics" and set(came) == {DIFFERS, UNDECIDED}:
            return ""
        return "" if len(set(came)) == 1 and came[0] >= 0 else f"exit statuses {came}"

    return Case(name, pairs, judge, "one exit status for all pairs")


# What a law strikes


class Victim(NamedTuple):
    """A recorded tensor."""

    run: int
    record: Record
    role: str
    path: str
    tensor: Tensor


def _victims(given: Given, fits: Callable[[Tensor], bool]) -> list[Victim]:
    some = [Victim(*slot) for slot in given.drawn.slots if slot[1].kind != "Module"]
    some = [one for one in some if one.tensor.dtype in FLOATS and one.tensor.values.size and fits(one.tensor)]
    return [one for one in some if not _is_left_over(given, one)]


def _is_left_over(given: Given, victim: Victim) -> bool:
    """Whether a gradient is what rounding leaves of terms that cancel, as that of a key bias: any value is noise. So is
    one that is smaller than the rounding of the largest gradient of its run (docs/localisation.md)."""
    if victim.record.phase != "backward":
        return False
    gradients = (t.values for _, record, *_, t in given.drawn.slots if record.phase == "backward" and t.dtype in FLOATS)
    if _size(victim.tensor.values) < 8 * given.drawn.unit * max(map(_size, gradients), default=0.0):
        return True
    if victim.role != "output":
        return False
    read = [item.values for item in victim.record.inputs if isinstance(item, Tensor) and item.dtype in FLOATS]
    largest = max((float(np.linalg.norm(values.astype(np.float64))) for values in read), default=0.0)
    return float(np.linalg.norm(victim.tensor.values.astype(np.float64))) < 64 * given.drawn.unit * largest


def _size(values: np.ndarray) -> float:
    """The root mean square of a tensor's finite values."""
    finite = values[np.isfinite(values)].astype(np.float64)
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0


def _victim(given: Given, fits: Callable[[Tensor], bool]) -> Optional[Victim]:
    some = _victims(given, fits)
    return some[int(given.r.randint(len(some)))] if some else None


def _is_nonzero(tensor: Tensor) -> bool:
    return bool(np.isfinite(tensor.values).all() and np.abs(tensor.values).max() > 1e-20)


def _struck(given: Given, victim: Victim, change: changes.Change, once: bool) -> list[Run]:
    """The golden runs with one recording of a tensor changed, or all of them."""
    runs = list(given.golden)
    run = runs[victim.run]
    if once:
        runs[victim.run] = changes.changed_once(run, change, victim.record, victim.role, victim.path)
    else:
        runs[victim.run] = changes.changed(run, change, victim.tensor.key)
    return runs


def _where(victim: Victim) -> str:
    return f"{victim.record.phase} {victim.record.kind} {victim.record.call} {victim.role} {victim.path}"


def _different(given: Given, before: Tensor, after: Tensor) -> set[int]:
    """The statuses of a pair in which this tensor clearly differs."""
    if (
        given.holds == "xor"
        and before.values.ndim
        and msprobe.xor(msprobe.raw(before)) != msprobe.xor(msprobe.raw(after))
    ):
        return {DIFFERS}
    return DIFFERENT[given.holds]


def _is_clear(given: Given, before: Tensor, after: Tensor) -> bool:
    if given.holds == "md5":
        return msprobe.raw(before) != msprobe.raw(after)
    return changes.distance(after.values, before.values) > CLEAR * 8 * given.drawn.unit * _cancelled(given, before)


def _cancelled(given: Given, tensor: Tensor) -> float:
    """How many times larger than a gradient the terms may be that it was summed from: their rounding counts, MANY at
    least where rows were added up."""
    for _, record, role, *_ in (slot for slot in given.drawn.slots if slot[-1].key == tensor.key):
        if role == "output" and record.phase == "backward" and tensor.values.size:
            read = [item.values for item in record.inputs if isinstance(item, Tensor) and item.dtype in FLOATS]
            sums = [_size(x) * math.sqrt(x.size / tensor.values.size) for x in read if x.size > tensor.values.size]
            return max(MANY, *(one / max(_size(tensor.values), 1e-300) for one in sums)) if sums else 1.0
    return 1.0


def _faulty(given: Given, factor: float = 1.5) -> Optional[tuple[list[Run], Victim]]:
    """The golden runs with one tensor times a factor, wherever it was recorded."""
    victim = _victim(given, _is_nonzero)
    if victim is None:
        return None

    def scaled(tensor: Tensor) -> Tensor:
        wide = rounded(tensor.values.astype(np.float64) * factor, tensor.dtype)
        return changes.with_values(tensor, wide.astype(tensor.values.dtype))

    return _struck(given, victim, scaled, bool(given.r.randint(2))), victim


# The laws


def self_(given: Given) -> Iterator[Case]:
    """A dump agrees with itself; statistics and XOR alone decide nothing."""
    yield allowed("itself", [Pair(given.golden, given.golden)], given.same)


def swap(given: Given) -> Iterator[Case]:
    """Which side is the golden turns no status."""
    made = _faulty(given)
    if made:
        yield alike(_where(made[1]), [Pair(made[0], given.golden), Pair(given.golden, made[0])], given.holds)


def scale(given: Given) -> Iterator[Case | LeftOut]:
    """Both sides times 2 give the verdicts of the pair; one tensor of the target times 2 differs."""
    r = given.r
    victim = _victim(given, _is_nonzero)
    if victim is None:
        return
    after = changes.doubled(victim.tensor)
    if not np.isfinite(rounded(after.values.astype(np.float64), after.dtype)).all():
        return
    target = _struck(given, victim, changes.doubled, bool(r.randint(2)))
    yield allowed(f"one: {_where(victim)}", [Pair(target, given.golden)], _different(given, victim.tensor, after))
    largest = max(float(np.abs(t.values[np.isfinite(t.values)]).max(initial=0.0)) for *_, t in given.drawn.slots)
    if largest < 30000.0 and given.holds != "md5":
        made = _faulty(given) if r.randint(2) else None
        target = made[0] if made else given.golden
        twice = [[changes.everywhere(run, changes.doubled) for run in runs] for runs in (target, given.golden)]
        name = f"both: {_where(made[1])}" if made else "both"
        yield _same_verdicts(name, [Pair(target, given.golden), Pair(*twice)])


def _same_verdicts(name: str, pairs: list[Pair]) -> Case:
    def judge(answers: Sequence[Examined]) -> str:
        first, *rest = answers
        for one in rest:
            if one.status != first.status:
                return f"exit statuses {[each.status for each in answers]}"
            turned = [key for key in first.verdicts if one.verdicts.get(key) != first.verdicts[key]]
            if turned:
                words = first.verdicts[turned[0]], one.verdicts.get(turned[0])
                return f"{turned[0]} {words[0]} became {words[1]}"
        return ""

    return Case(name, pairs, judge, "the same verdicts for all pairs")


def one_more(given: Given) -> Iterator[Case]:
    """An operator more turns nothing: not on both sides, and not on the target alone."""
    found = _an_operator_more(given)
    if found is None:
        return
    at, record = found
    more = [changes.inserted(given.golden[0], at, record), *given.golden[1:]]
    name = f"{record.kind} before record {at}"
    yield allowed(f"target: {name}", [Pair(more, given.golden)], given.same)
    made = _faulty(given)
    if made:
        target = [changes.inserted(made[0][0], at, record), *made[0][1:]]
        yield alike(f"both: {name}; {_where(made[1])}", [Pair(made[0], given.golden), Pair(target, more)], given.holds)
    yield allowed(f"both: {name}", [Pair(more, more)], given.same)


def _an_operator_more(given: Given) -> Optional[tuple[int, Record]]:
    run = given.golden[0]
    kinds = {one.kind for one in run.records}
    if kinds == {PARAMETER}:
        value = Tensor(np.ones((3, 4), np.float32), "float32", NEW)
        return len(run.records), Record(PARAMETER, "forward", 0, "extra.weight", (), (value,))
    fitting = [
        (k, one)
        for k, one in enumerate(run.records)
        if one.phase == "forward" and one.kind != "Module" and one.outputs and one.outputs[0] is not None
        and one.outputs[0].dtype in FLOATS and one.outputs[0].values.ndim
    ]  # fmt: skip
    if not fitting:
        return None
    at, before = fitting[int(given.r.randint(len(fitting)))]
    some = [kind for kind in ("tanh", "sigmoid", "relu", "exp", "rsqrt") if given.layout.counts or kind not in kinds]
    kind = str(given.r.choice(some))
    read = before.outputs[0]
    assert read is not None
    with np.errstate(all="ignore"):
        wide = {"tanh": np.tanh, "exp": np.exp}.get(kind, np.tanh)(read.values.astype(np.float64))
    wide = {"relu": np.maximum(read.values.astype(np.float64), 0), "sigmoid": (wide + 1) / 2}.get(kind, wide)
    wide = rounded(np.clip(wide, -1e4, 1e4), read.dtype)
    value = Tensor(wide.astype(read.values.dtype), read.dtype, NEW)
    return at + 1, Record(
        kind, "forward", 0, before.scope, (read,), (value,), line=before.line, given=before.given, told=before.told
    )


def one_less(given: Given) -> Iterator[Case]:
    """A golden operator that the target lacks is open, unless all that it wrote stands elsewhere or lies inside."""
    run = given.golden[0]
    some = [one for one in run.records if one.kind != "Module" and any(s.role == "output" for s in slots(one))]
    if len(some) < 2:
        return
    chosen = {"last": some[-1], "middle": some[int(given.r.randint(len(some) - 1))]}
    unread = [one for one in some if _is_open(given, run, one)]
    if unread:
        chosen["unread"] = unread[int(given.r.randint(len(unread)))]
    done = set()
    for name, record in chosen.items():
        if id(record) in done:
            continue
        done.add(id(record))
        statuses = OPEN if _is_open(given, run, record) else NOT_DIFFERENT
        target = [changes.without(run, [record]), *given.golden[1:]]
        if not given.layout.counts and _shifts_names(given.layout, run, target[0]):
            statuses = statuses | {DIFFERS}  # names that no aligner takes for calls are partners by name
        where = f"{record.phase} {record.kind} {record.call}"
        yield allowed(f"{name}: {where}", [Pair(target, given.golden)], statuses)


def _shifts_names(layout: Layout, run: Run, target: Run) -> bool:
    """Whether the format gives an operator that is left the name of another one."""
    before, after = layout.names(run), layout.names(target)
    return any(before[record] != name for record, name in after.items() if record in before)


def _is_open(given: Given, run: Run, record: Record) -> bool:
    """Whether an output of the record is compared nowhere and nothing tells who reads it, or nobody does."""
    others = [one for one in run.records if one is not record]
    kept = {_content(slot.tensor) for one in others for slot in slots(one)}
    kept |= {_content(t) for one in others if one.kind == "Module" for t in one.parameters.values()}
    read = {item.key for one in others for item in one.inputs if isinstance(item, Tensor)}
    knows = _reads_known(given)
    written = [slot.tensor for slot in slots(record) if slot.role == "output" and slot.tensor.values.size]
    return any(_content(one) not in kept and (one.key not in read or not knows) for one in written)


def _content(tensor: Tensor) -> bytes:
    """The values, in whatever order: a view of a tensor has the same."""
    return np.sort(tensor.values, axis=None).tobytes()


def steps(given: Given) -> Iterator[Case]:
    """The same operators in two steps give the same status; a step or rank that the target lacks is open."""
    (run,) = given.golden
    places = [k for k in range(1, len(run.records)) if _tensors(run.records[:k]) and _tensors(run.records[k:])]
    if not places:
        return
    at = places[int(given.r.randint(len(places)))]
    both = changes.split(given.golden, at)
    yield allowed(f"two: {at}", [Pair(both, both)], given.same)
    made = _faulty(given)
    if made:
        pair = Pair(changes.split(made[0], at), both)
        yield alike(f"two: {at}; {_where(made[1])}", [Pair(made[0], given.golden), pair], given.holds)
    k = int(given.r.randint(2))
    yield allowed(f"missing: {k} of {at}", [Pair(both[k : k + 1], both)], OPEN)
    empty = [replace(one, records=()) if place == k else one for place, one in enumerate(both)]
    yield allowed(f"empty: {k} of {at}", [Pair(empty, both)], OPEN)
    yield allowed(f"more: {k} of {at}", [Pair(both, both[k : k + 1])], given.same)
    ranks = [replace(run, rank=rank) for rank in (0, 1)]
    yield allowed("two ranks", [Pair(ranks, ranks)], given.same)
    yield allowed(f"rank missing: {k}", [Pair(ranks[k : k + 1], ranks)], OPEN)


def _tensors(records: Sequence[Record]) -> bool:
    return any(slot.tensor.values.size > 1 for one in records for slot in slots(one))


class Struck(Plant):
    """An operator whose first output is changed before it is stored."""

    def __init__(self, address: Address, change: Callable[[np.ndarray], np.ndarray]):
        super().__init__(address)
        self.change = change

    def outputs(self, values: list[Any], memory: list[Any]) -> list[Any]:
        found = list(values)
        first = next(k for k, value in enumerate(found) if value is not None)
        found[first] = self.change(np.asarray(found[first], np.float64))
        return found


def _planted(given: Given, change: Callable[[np.ndarray], np.ndarray]) -> Optional[tuple[list[Run], str]]:
    """What a run leaves in which one operator goes wrong; None if the value that it wrote was not recorded."""
    drawn = given.drawn
    some = [
        one
        for run in given.golden
        for one in run.records
        if one.kind in OPERATORS and one.outputs and one.outputs[0] is not None
        and one.outputs[0].dtype in FLOATS and one.outputs[0].values.size
    ]  # fmt: skip
    if not some:
        return None
    record = some[int(given.r.randint(len(some)))]
    address = Address(0, 0, record.phase, record.kind, record.call)
    return drawn.kept(train(drawn.recipe, [Struck(address, change)])), f"{record.phase} {record.kind} {record.call}"


def _first_difference(given: Given, target: Sequence[Run]) -> Optional[tuple[Tensor, Tensor]]:
    """The first tensor that was changed, before and after; None where the runs recorded different things."""
    after = [(k, one, *slot) for k, run in enumerate(target) for one in run.records for slot in slots(one)]
    before = given.drawn.slots
    if len(after) != len(before):
        return None
    for x, y in zip(after, before):
        if x[4].values.shape != y[4].values.shape:
            return None
        if not np.array_equal(x[4].values, y[4].values, equal_nan=x[4].dtype in FLOATS):
            return y[4], x[4]
    return None


def formats(given: Given) -> Iterator[Case | LeftOut]:
    """Another format of values gives the same status and, where both tell order and inputs, the same place 1."""
    if given.holds != "values" or not given.others:
        return
    other = given.others[int(given.r.randint(len(given.others)))]
    found = _planted(given, lambda values: 1.5 * values) if given.drawn.part != "weights" else None
    if found is None:
        made = _faulty(given)
        if made is None:
            return
        found = made[0], _where(made[1])
    target, where = found
    change = _first_difference(given, target)
    if change is None or not _is_clear(given, *change):
        return
    layouts = given.layout, other
    if given.drawn.unit > 2.0**-20 and not _reads_known(given) and not all(one.ordered for one in layouts):
        yield LeftOut(f"{other.name}; {where}")  # in 16 bits, what an unknown order explains is within 8 times an error
        return
    tables = [_records(layout, target) for layout in layouts]
    ordered = all(layout.ordered for layout in layouts) and _reads_known(given)

    def judge(answers: Sequence[Examined]) -> str:
        if len({one.status for one in answers}) > 1:
            return f"exit statuses {[one.status for one in answers]}"
        first = [table.get((one.answer.step, one.answer.operator), one.answer.operator)
                 for table, one in zip(tables, answers)]  # fmt: skip
        return "" if first[0] == first[1] or not ordered else f"places 1 {first}"

    pairs = [Pair(target, given.golden, layout) for layout in layouts]
    yield Case(f"{other.name}; {where}", pairs, judge, "one status and one place 1")


def _records(layout: Layout, runs: Sequence[Run]) -> dict[tuple[int, str], tuple[str, str, int, str]]:
    """What the planter calls the operators of a dump, by step and name."""
    return {
        (run.step, name): (one.kind, one.phase, one.call, one.scope)
        for run in runs
        for one, name in layout.names(run).items()
    }


def bits(given: Given) -> Iterator[Case | LeftOut]:
    """One flipped bit of one float32 element, beyond the limit, is never agreement."""
    r = given.r
    for once in (True, False):
        bit = int(r.choice([*range(13, 24), 27, 30, 31]))
        victim = _victim(given, lambda tensor: tensor.dtype == "float32")
        if victim is None:
            return
        change = changes.bit_flipped(int(r.randint(victim.tensor.values.size)), bit)
        name = f"bit {bit} of {_where(victim)}{', once' if once else ''}"
        struck = partial(_struck, given, victim, change, once)
        yield _flipped(given, name, victim.tensor, change(victim.tensor), struck)
    bit, place = int(r.choice([*range(13, 24), 27, 31])), r.random_sample()

    def flipped(values: np.ndarray) -> np.ndarray:
        single = values.astype(np.float32)
        single.reshape(-1).view(np.uint32)[int(place * single.size)] ^= np.uint32(1 << bit)
        return single.astype(np.float64)

    if given.drawn.part == "weights" or given.drawn.recipe.precision != Precision():
        return
    found = _planted(given, flipped)
    if found is not None:
        change = _first_difference(given, found[0])
        if change is not None:
            yield _flipped(given, f"bit {bit} of {found[1]}, computed", *change, lambda: found[0])
    names = sorted({t.parameter for *_, t in given.drawn.slots if t.parameter})
    if names:
        name = names[int(r.randint(len(names)))]
        target = given.drawn.kept(train(given.drawn.recipe, (), Setting(weights={name: flipped})))
        change = _first_difference(given, target)
        if change is not None:
            yield _flipped(given, f"bit {bit} of weight {name}, computed", *change, lambda: target)


def _flipped(given: Given, name: str, before: Tensor, after: Tensor, target: Callable[[], list[Run]]) -> Case | LeftOut:
    if not _is_clear(given, before, after):
        return LeftOut(name)
    return allowed(name, [Pair(target(), given.golden)], OPEN if given.holds != "md5" else {DIFFERS})


def rows(given: Given) -> Iterator[Case]:
    """Rows of an output in another order differ."""
    found = [one for one in _victims(given, _has_rows) if one.role == "output"]
    if not found:
        return
    victim = found[int(given.r.randint(len(found)))]
    order = given.r.permutation(len(victim.tensor.values))
    after = changes.with_values(victim.tensor, victim.tensor.values[order])
    if changes.distance(after.values, victim.tensor.values) > 0.05:
        target = _struck(given, victim, changes.rows_shuffled(order), bool(given.r.randint(2)))
        yield allowed(_where(victim), [Pair(target, given.golden)], _different(given, victim.tensor, after))


def _has_rows(tensor: Tensor) -> bool:
    return tensor.values.ndim > 0 and len(tensor.values) > 1 and _is_nonzero(tensor)


class Special(NamedTuple):
    """Two outputs of one operator; statuses by what is recorded, and those left out are not tried."""

    name: str
    target: tuple[Any, str]
    golden: tuple[Any, str]
    statuses: Mapping[str, set[int]]
    alone: bool = True  # whether it may be the only output of a run


def types(given: Given) -> Iterator[Case]:
    """Element types and values at their edges, as the only output of a run and among others."""
    fitting = [
        one
        for one in _specials(given.r)
        if given.holds in one.statuses and {one.target[1], one.golden[1]} <= set(given.layout.types)
    ]
    for k in given.r.permutation(len(fitting))[:4]:
        one = fitting[int(k)]
        x, y = (Tensor(np.asarray(values, order="C"), dtype, NEW) for values, dtype in (one.target, one.golden))
        base = given.golden[0]
        among = not one.alone or bool(given.r.randint(2))
        if among:
            runs = [[replace(base, records=(*base.records, _special(given, t)))] for t in (x, y)]
        else:
            runs = [[Run((_special(given, t),))] for t in (x, y)]
        statuses = one.statuses[given.holds]
        yield allowed(f"{one.name}{', among others' if among else ''}", [Pair(*runs)], statuses)


def _special(given: Given, output: Tensor) -> Record:
    if given.drawn.part == "weights":
        return Record(PARAMETER, "forward", 0, "special.weight", (), (output,))
    draw = np.random.RandomState(7)
    read = Tensor(draw.standard_normal((4, 6)).astype(np.float32), "float32", NEW + 1)
    return Record("where", "forward", 99, "special", (read,), (output,))


def _specials(r: Random) -> list[Special]:
    y = (3 * r.standard_normal((4, 6))).astype(np.float32)
    whole = np.rint(10 * y)
    many = r.randint(0, 1000, (4, 6)).astype(np.float32)
    large = (2.0**53 + 2 * r.randint(1, 100, (4, 6))).astype(np.float64)
    half = rounded(y.astype(np.float64), "bfloat16").astype(np.float32)
    single = rounded(y.astype(np.float64), "float16").astype(np.float32)
    nan, moved, inf = y.copy(), y.copy(), y.copy()
    nan[1, 2], moved[2, 3], inf[0, 1] = np.nan, np.nan, np.inf
    zero = y.copy()
    zero[:, 2] = 0.0
    minus = zero.copy()
    minus[:, 2] = -0.0
    one_off = many.copy()
    one_off[int(r.randint(4)), int(r.randint(6))] += float(r.choice([1, 8]))
    f, i, g, c = "float32", "int32", "int64", "complex64"
    never = dict.fromkeys(SAME, OPEN)
    values = {"values": {AGREES}}
    equal = {"values": NOT_DIFFERENT}
    nowhere = {"values": {DIFFERS}, "md5": {DIFFERS}, "statistics": OPEN, "xor": OPEN}
    same_again = {**SAME, "statistics": NOT_DIFFERENT, "xor": NOT_DIFFERENT}
    near, off = np.rint(y).astype(np.int32), (np.rint(y) + r.choice([-1, 1], y.shape)).astype(np.int32)
    real = y.astype(np.complex64)
    some = [
        Special("int32 off by 0.5 at most for float32", (near, i), (y, f), never),
        Special("int32 off by 1.5 at most for float32", (off, i), (y, f), never),
        Special("int32 reversed for float32", (near[::-1, ::-1].copy(), i), (y, f), never),
        Special("float32 for int32 off by 1.5 at most", (y, f), (off, i), never),
        Special("float32 for int32 reversed", (y, f), (near[::-1, ::-1].copy(), i), never),
        Special("int32 for float32 of the same numbers", (whole.astype(np.int32), i), (whole, f), equal),
        Special("complex64 for float32", (real, c), (y, f), {"values": OPEN}),
        Special("complex64 times 2 for float32", (2 * real, c), (y, f), never),
        Special("float32 for complex64", (y, f), (real * np.complex64(1 + 0.5j), c), never),
        Special("complex64 for itself", (real, c), (real, c), values),
        Special("complex64 times i", (real * np.complex64(1j), c), (real, c), {"values": {DIFFERS}, "md5": {DIFFERS}}),
        Special("int64 beyond 2^53, off by 1", (large.astype(np.int64) + 1, g), (large, "float64"), never),
        Special("float64 for int64 beyond 2^53, off by 1", (large, "float64"), (large.astype(np.int64) + 1, g), never),
        Special("int64 beyond 2^53", (large.astype(np.int64), g), (large, "float64"), equal),
        Special("int64 off by 1", (near.astype(np.int64) + 1, g), (near.astype(np.int64), g), nowhere),
        Special("bfloat16 kept as float32", (half, f), (half, "bfloat16"), values),
        Special("float32 kept as bfloat16", (half, "bfloat16"), (half, f), values),
        Special("float16 kept as float32", (single, f), (single, "float16"), values),
        Special("-0.0 for 0.0", (minus, f), (zero, f), values),
        Special("NaN at the same place", (nan, f), (nan, f), {"values": {AGREES}, "md5": {AGREES}}),
        Special("NaN on the target alone", (nan, f), (y, f), nowhere),
        Special("NaN on the golden alone", (y, f), (nan, f), nowhere),
        Special("NaN elsewhere", (nan, f), (moved, f), nowhere),
        Special("Inf at the same place", (inf, f), (inf, f), {"values": {AGREES}, "md5": {AGREES}}),
        Special("Inf on the target alone", (inf, f), (y, f), nowhere),
        Special("-Inf for Inf", (np.where(np.isinf(inf), -inf, inf), f), (inf, f), nowhere),
        Special("NaN for Inf", (np.where(np.isinf(inf), np.float32(np.nan), inf), f), (inf, f), never),
        Special("empty", (np.zeros((0, 6), np.float32), f), (np.zeros((0, 6), np.float32), f), SAME, alone=False),
        Special("empty for values", (np.zeros((0, 6), np.float32), f), (y, f), never),
        Special("values for empty", (y, f), (np.zeros((0, 6), np.float32), f), never),
        Special("a scalar", (np.float32(1.25), f), (np.float32(1.25), f), same_again),
        Special("a scalar times 1.5", (np.float32(1.875), f), (np.float32(1.25), f), nowhere),
        Special("ones for zeros", (np.ones((4, 6), np.float32), f), (np.zeros((4, 6), np.float32), f), nowhere),
        Special("zeros for ones", (np.zeros((4, 6), np.float32), f), (np.ones((4, 6), np.float32), f), nowhere),
        Special("threes for twos", (np.full((4, 6), 3, np.float32), f), (np.full((4, 6), 2, np.float32), f), nowhere),
        Special("true for false", (np.ones((4, 6), bool), "bool"), (np.zeros((4, 6), bool), "bool"), nowhere),
        Special("whole numbers off by 1", (many + 1, f), (many, f), nowhere),
        Special("whole numbers off by 8", (many + 8, f), (many, f), nowhere),
        Special("one whole number off by 1 or 8", (one_off, f), (many, f), nowhere),
        Special("columns in reverse", (y[:, ::-1].copy(), f), (y, f), nowhere),
        Special("the other sign", (-y, f), (y, f), nowhere),
    ]  # fmt: skip
    return some


def clean(given: Given) -> Iterator[Case | LeftOut]:
    """Another order of sums, in all types, and a target in 16 bits throughout alarm nobody, but where an operator
    amplifies errors."""
    if given.holds in ("md5", "xor"):
        return
    drawn = given.drawn
    recipe = another_order(drawn.recipe, given.r)
    target = drawn.kept(train(recipe))
    name = "another order of sums"
    yield _silent(given, name, target) if _is_tame(given, target) else LeftOut(name)
    dtype = str(given.r.choice(["float16", "bfloat16"] if given.layout.tells_types else ["float16"]))
    single = drawn.recipe.precision == Precision() and given.holds == "values"
    if single and drawn.part == "all" and given.layout.counts:
        target = drawn.kept(train(replace(recipe, precision=Precision(dtype))))
        name = f"all of the target in {dtype}"
        yield _silent(given, name, target) if _is_tame(given, target, ROUND_OFF[dtype]) else LeftOut(name)


def _reads_known(given: Given) -> bool:
    """Whether the dump tells what an operator read, so that errors can be explained by it."""
    return given.layout.flow or (not given.layout.only_outputs and given.drawn.part not in ("outputs", "weights"))


def _is_tame(given: Given, target: Sequence[Run], unit: float = 0.0) -> bool:
    """Whether each output is within the documented limit, or within 8 times what its operator reads.

    Sums that cancel, as gradients of softmax, of norms and of biases before them are, may be beyond.
    """
    limit = 8 * max(unit, given.drawn.unit)
    for run, other in zip(target, given.golden):
        for x, y in zip(run.records, other.records):
            both = list(zip(slots(x), slots(y)))
            errors = [(a.role, changes.distance(a.tensor.values, b.tensor.values)) for a, b in both]
            read = max((error for role, error in errors if role != "output"), default=0.0)
            bound = max(limit, 8 * read) if _reads_known(given) else limit
            if any(error > bound for role, error in errors if role == "output"):
                return False
    return True


def _silent(given: Given, name: str, target: list[Run]) -> Case:
    wanted = given.same

    def judge(answers: Sequence[Examined]) -> str:
        (one,) = answers
        if one.status not in wanted:
            return f"exit status {one.status}"
        return f"place 1 {one.answer.operator}" if one.answer.operator else ""

    return Case(name, [Pair(target, given.golden)], judge, f"exit status {sorted(wanted)[0]}, no operator named")


Law = Callable[[Given], "Iterator[Any]"]

LAWS: dict[str, Law] = {
    "self": self_,
    "swap": swap,
    "scale": scale,
    "one_more": one_more,
    "one_less": one_less,
    "steps": steps,
    "formats": formats,
    "bits": bits,
    "rows": rows,
    "types": types,
    "clean": clean,
}
