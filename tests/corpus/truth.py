"""What is right to say of a faulty run: found by holding it bit for bit against the same run without the fault."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.device import ROUND_OFF
from tests.corpus.ranks import Skip
from tests.corpus.tape import Address, Plant
from tests.corpus.trace import Record, Run, Tensor
from tests.corpus.training import Trained

MASKED = -1e4  # what is as low as this, and the same in both runs, is a mask and no part of a tensor's size
COLLECTIVES = ("all_reduce", "all_gather")  # what they write depends on all ranks
SLIGHT = 0.4  # of a unit round-off: what rounding to the nearest leaves of rel_l2


@dataclass(frozen=True)
class Truth:
    """What is right to say. operators: addresses accepted at place 1, with the accepted causes of each; none if clean.

    beyond: how far the fault is beyond rounding and noise, as a multiple of them, where it first shows (inf for NaN);
    beyond_rounding: the same against the rounding of the operator itself, which a replay could see; None if it struck
    elsewhere. statuses: the exit statuses that are right for a clean pair: 2 too where statistics are all there is, and
    nothing but 2 where one side ends early.
    """

    operators: Mapping[Address, frozenset[str]] = field(default_factory=dict)
    beyond: float = 0.0
    beyond_rounding: Optional[float] = None
    statuses: tuple[int, ...] = (0,)

    @property
    def is_clean(self) -> bool:
        return not self.operators


class Question(NamedTuple):
    """How the runs were recorded and differ, as far as it decides what is right.

    noisy: target and golden differ without any fault; graph: the dump tells who produces what, so that outputs are
    enough to know what was read; each_rank: the fault is on all ranks, and these run side by side.
    """

    task: str = "tensor"
    noisy: bool = False
    graph: bool = False
    each_rank: bool = False


# Records


def address_of(step: int, rank: int, record: Record) -> Address:
    """Where a record stands in a run; a module by its path."""
    kind = f"Module.{record.scope}" if record.kind == "Module" else record.kind
    return Address(step, rank, record.phase, kind, record.call)


def by_address(runs: Sequence[Run]) -> dict[Address, Record]:
    return {address_of(run.step, run.rank or 0, record): record for run in runs for record in run.records}


def in_order(trained: Trained) -> list[Address]:
    """All that ran on all ranks, in order of execution."""
    return [address_of(one.step, rank, record) for one in trained.sessions for rank, record in one.records]


def renumbered(records: Mapping[Address, Record], skipped: Sequence[Address]) -> dict[Address, Record]:
    """Records of a run as another one numbers them that never made some of the calls."""
    found = {}
    for address, record in records.items():
        earlier = [
            one for one in skipped if one.call < address.call and one._replace(call=0) == address._replace(call=0)
        ]
        if address not in skipped:
            found[address._replace(call=address.call - len(earlier))] = record
    return found


def partners(runs: Sequence[Run]) -> dict[tuple[Any, ...], Record]:
    """Records by what two codings of one network share: step, rank, phase, scope, kind, and which of its kind there."""
    seen: Counter[Any] = Counter()
    found = {}
    for run in runs:
        for record in run.records:
            stem = (run.step, run.rank or 0, record.phase, record.scope, record.kind)
            found[(*stem, seen[stem])] = record
            seen[stem] += 1
    return found


def partner_of(runs: Sequence[Run], golden: Sequence[Run]) -> dict[Record, Record]:
    """For each record of a run the one of the golden that it is to be held against, where there is one."""
    there = partners(golden)
    return {record: there[key] for key, record in partners(runs).items() if key in there}


def tensors_in(record: Record) -> list[Any]:
    return [*record.inputs, *record.keywords.values(), *record.parameters.values()]


# Distances


def same(a: Any, b: Any) -> bool:
    """Whether two items are the same: tensors bit for bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (
            a.dtype == b.dtype
            and a.values.shape == b.values.shape
            and np.array_equal(a.values, b.values, equal_nan=a.values.dtype.kind == "f")
        )
    return type(a) is type(b)


def figures(one: Tensor) -> tuple[float, ...]:
    """Max, min, mean and norm, as float32 holds them: what statistics show of a tensor."""
    wide = one.values.astype(np.float64)
    if not wide.size:
        return ()
    with np.errstate(all="ignore"):
        found = wide.max(), wide.min(), wide.mean(), np.sqrt((wide * wide).sum())
        return tuple(float(np.float32(figure)) for figure in found)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """‖a − b‖; inf where only one of the two is finite."""
    if a.shape != b.shape or (np.isfinite(a) != np.isfinite(b)).any():
        return math.inf
    with np.errstate(all="ignore"):
        difference = np.where(np.isfinite(a), a.astype(np.float64) - b, 0.0)
        return float(np.sqrt(np.square(difference).sum()))


def size_of(x: np.ndarray, other: np.ndarray) -> float:
    """‖x‖ over what is finite, and no mask in either of two runs."""
    wide = x.astype(np.float64)
    kept = np.isfinite(wide)
    if x.shape == other.shape:
        kept &= ~((wide <= MASKED) & (x == other))
    return float(np.sqrt(np.square(np.where(kept, wide, 0.0)).sum()))


def beyond_noise(faulty: Tensor, clean: Tensor, golden: Optional[Tensor], unit: float, task: str) -> float:
    """A fault's size as a multiple of what rounding and noise make of the same tensor."""
    if task == "md5":
        return math.inf
    if task == "statistics":
        return _beyond_figures(faulty, clean, golden, unit)
    error = distance(faulty.values, clean.values)
    noise = 0.0
    if golden is not None and golden.values.shape == clean.values.shape:
        noise = distance(clean.values, golden.values)
        noise = noise if math.isfinite(noise) else 0.0
    rounding = SLIGHT * max(unit, ROUND_OFF.get(clean.dtype, 0.0)) * size_of(clean.values, faulty.values)
    return _ratio(error, max(noise, rounding))


def _beyond_figures(faulty: Tensor, clean: Tensor, golden: Optional[Tensor], unit: float) -> float:
    """The same of statistics: the figure that moved most; norms and means average rounding out, extremes do not."""
    count = max(1, clean.values.size)
    unit = max(unit, ROUND_OFF.get(clean.dtype, 0.0))
    a, b = figures(faulty), figures(clean)
    c = figures(golden) if golden is not None and golden.values.shape == clean.values.shape else b
    if not b or len(a) != len(b):
        return math.inf if len(a) != len(b) else 0.0
    rms = b[3] / math.sqrt(count)
    floors = (abs(b[0]), abs(b[1]), rms / math.sqrt(count), b[3] / math.sqrt(count))
    found, noise = 0.0, _noise_of_figures(b, c, floors)
    for x, y, floor, units in zip(a, b, floors, noise):
        if math.isfinite(x) != math.isfinite(y):
            return math.inf
        found = max(found, _ratio(abs(x - y), max(units, SLIGHT * unit) * floor) if math.isfinite(x - y) else 0.0)
    return found


def _noise_of_figures(clean: Sequence[float], golden: Sequence[float], floors: Sequence[float]) -> list[float]:
    """How far each figure may move by noise, in its floors. One of them may hardly move by chance: of mean and norm, in
    which errors average out alike, the larger one counts for both, and at least that for the extremes."""
    each = [abs(y - z) / floor if floor and math.isfinite(y - z) else 0.0 for y, z, floor in zip(clean, golden, floors)]
    sums = max(each[2:])
    return [max(each[0], sums), max(each[1], sums), sums, sums]


def _ratio(error: float, noise: float) -> float:
    if not error:
        return 0.0
    return error / noise if noise > 0 else math.inf


# Where a fault shows


class Shown(NamedTuple):
    """Where a fault first shows: in what a record read, or in what it wrote; which of its items, faulty and clean."""

    address: Address
    reads: bool
    items: tuple[tuple[int, Tensor, Tensor], ...]


def first_shown(
    order: Sequence[Address], faulty: Mapping[Address, Record], clean: Mapping[Address, Record], task: str
) -> Optional[Shown]:
    """The first record, in order of execution, in which the faulty run is not the clean one, as far as a task shows it.

    An output of a collective that differs because some rank gave it something else does not count: that rank does.
    """
    seen = _sight(task)
    for address in order:
        a, b = faulty.get(address), clean.get(address)
        if a is None or b is None:
            continue
        if a.given and (items := _differing(tensors_in(a), tensors_in(b), seen)):
            return Shown(address, True, items)
        if a.told and (items := _differing(a.outputs, b.outputs, seen)) and not _brought(address, faulty, clean):
            return Shown(address, False, items)
    return None


def _sight(task: str) -> Callable[[Tensor, Tensor], bool]:
    """When two tensors differ visibly: by figures, by checksums (of one type), bit for bit."""
    if task == "statistics":
        return lambda a, b: figures(a) != figures(b) and not (a.values.shape == b.values.shape and _both_nan(a, b))
    if task == "md5":
        return lambda a, b: a.dtype == b.dtype and not same(a, b)
    return lambda a, b: not same(a, b)


def _both_nan(a: Tensor, b: Tensor) -> bool:
    return all(x == y or (x != x and y != y) for x, y in zip(figures(a), figures(b)))


def _differing(faulty: Sequence[Any], clean: Sequence[Any], seen: Any) -> tuple[tuple[int, Tensor, Tensor], ...]:
    return tuple(
        (k, a, b)
        for k, (a, b) in enumerate(zip(faulty, clean))
        if isinstance(a, Tensor) and isinstance(b, Tensor) and seen(a, b)
    )


def _brought(address: Address, faulty: Mapping[Address, Record], clean: Mapping[Address, Record]) -> bool:
    """Whether another rank gave a collective something else than in the clean run."""
    if address.kind not in COLLECTIVES:
        return False
    others = [one for one in faulty if one._replace(rank=0) == address._replace(rank=0) and one.rank != address.rank]
    return any(
        not same(x, y)
        for one in others
        if one in clean
        for x, y in zip(faulty[one].inputs, clean[one].inputs)
        if isinstance(x, Tensor)
    )


def accepted(
    shown: Shown, faulty: Mapping[Address, Record], clean: Mapping[Address, Record], question: Question
) -> dict[Address, frozenset[str]]:
    """Which operators may stand at place 1, and with which causes.

    An output differs and the inputs do not: BORN; WORSENED too if the two runs are apart already. What it read was not
    recorded (a backward also reads what its forward saved): UNKNOWN, and BORN only where a graph tells what it was. An
    input differs first: a GAP at whoever reads it, or UNKNOWN if that is a backward, whose forward may have saved
    something that is not known. What was received reads nothing: BORN or GAP.
    """
    record, address = clean[shown.address], shown.address
    born = {"BORN", "WORSENED"} if question.noisy else {"BORN"}
    if not shown.reads:
        saved = clean.get(address._replace(phase="forward"))
        if record.given and (record.phase != "backward" or (saved is not None and saved.given)):
            return {address: frozenset(born | ({"GAP"} if record.kind == "recv" else set()))}
        if record.given:
            return {address: frozenset(born | {"UNKNOWN"})}
        return {address: frozenset({"UNKNOWN", "GAP"} | (born if question.graph else set()))}
    causes = {"GAP", "WORSENED"} if question.noisy else {"GAP"}
    if record.phase == "backward":
        causes |= {"UNKNOWN"}
    keys = {tensor.key for _, tensor, _ in shown.items}
    return {
        one: frozenset(causes)
        for one, a in faulty.items()
        if a.given and one.step == address.step
        if any(isinstance(item, Tensor) and item.key in keys for item in tensors_in(a))
    }


def truth_of(
    clean: Trained,
    faulty: Trained,
    plants: Sequence[Plant],
    kept: tuple[Sequence[Run], Sequence[Run], Sequence[Run]],
    question: Question,
    unit: float,
) -> Optional[Truth]:
    """kept: what was recorded of the faulty run, of the clean one, of the golden. None if the fault shows nowhere.

    What has no partner in the golden cannot be compared: such an operator may be named, and so may the first one with a
    partner that shows the fault.
    """
    left, right, golden = kept
    skipped = [plant.address for plant in plants if isinstance(plant, Skip)]
    a, b = by_address(left), renumbered(by_address(right), skipped)
    partner = partner_of(right, golden)
    compared = {address: record for address, record in b.items() if record in partner}
    operators: dict[Address, frozenset[str]] = {}
    beyond = 0.0
    for order in _orders(clean, skipped, question):
        first, there = first_shown(order, a, b, "tensor"), first_shown(order, a, compared, question.task)
        if first is None or there is None:
            continue
        operators.update(accepted(first, a, b, question))
        for address, causes in accepted(there, a, b, question).items():
            unknown = {"UNKNOWN"} if question.task == "md5" and there.address != first.address else set()
            operators[address] = operators.get(address, frozenset()) | causes | unknown
        beyond = max(beyond, _size_there(there, partner[b[there.address]], unit, question.task))
    if not operators:
        return None
    for address in skipped:
        operators.setdefault(address, frozenset({"GAP", "BORN", "UNKNOWN", "MISSING"}))
    if question.task == "statistics":
        operators = {key: causes | {"BORN", "WORSENED", "UNKNOWN", "SUSPECT"} for key, causes in operators.items()}
    return Truth(operators, beyond, _beyond_rounding(plants, unit))


def _orders(clean: Trained, skipped: Sequence[Address], question: Question) -> list[list[Address]]:
    """The order of execution, of all ranks or of each by itself."""
    records = dict.fromkeys(in_order(clean))
    order = list(renumbered(records, skipped))  # type: ignore[arg-type]
    if not question.each_rank:
        return [order]
    return [[one for one in order if one.rank == rank] for rank in sorted({one.rank for one in order})]


def _size_there(shown: Shown, golden: Record, unit: float, task: str) -> float:
    items = tensors_in(golden) if shown.reads else golden.outputs
    found = 0.0
    for place, bad, good in shown.items:
        other = items[place] if place < len(items) else None
        found = max(found, beyond_noise(bad, good, other if isinstance(other, Tensor) else None, unit, task))
    return found


def _beyond_rounding(plants: Sequence[Plant], unit: float) -> Optional[float]:
    """The error of the first planted operator against that of the same one without the fault, both from float64."""
    first = min((plant for plant in plants if plant.struck), key=lambda plant: plant.address.step, default=None)
    if first is None or first.struck is None:
        return None
    found = 0.0
    for bad, good, exact in zip(*first.struck):
        if bad.dtype.kind == "f" and bad.shape == exact.shape == good.shape:
            rounding = max(distance(good, exact), SLIGHT * unit * size_of(exact, good))
            found = max(found, _ratio(distance(bad, exact), rounding))
    return found
