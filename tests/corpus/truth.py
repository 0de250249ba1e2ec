"""What is right to say of a faulty run: found by holding it bit for bit against the same run without the fault."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.tape import Address, Struck
from tests.corpus.trace import Record, Run, Tensor
from tests.corpus.training import Trained

MASKED = -1e8  # what is lower masks something, and is no part of a tensor's size


@dataclass(frozen=True)
class Truth:
    """What is right to say. operators: addresses accepted at place 1, with the accepted causes of each; none if clean.

    beyond: how far the fault is beyond rounding and noise, as a multiple of them, where it first shows (inf for NaN);
    beyond_rounding: the same against the rounding of the operator itself, which a replay could see; None if it struck
    elsewhere. statuses: the exit statuses that are right for a clean pair: 2 too where statistics are all there is, and
    nothing but 2 where one side ends early.
    """

    operators: "Mapping[Address, frozenset[str]]" = field(default_factory=dict)
    beyond: float = 0.0
    beyond_rounding: Optional[float] = None
    statuses: "tuple[int, ...]" = (0,)

    @property
    def is_clean(self) -> bool:
        return not self.operators


def by_address(runs: "Sequence[Run]") -> "dict[Address, Record]":
    """Records by execution; modules by their path."""
    found = {}
    for run in runs:
        for record in run.records:
            kind = f"Module.{record.scope}" if record.kind == "Module" else record.kind
            found[Address(run.step, run.rank or 0, record.phase, kind, record.call)] = record
    return found


def in_order(trained: Trained) -> "list[Address]":
    """All that was recorded of all ranks, in order of execution."""
    found = []
    for session in trained.sessions:
        for rank, record in session.records:
            kind = f"Module.{record.scope}" if record.kind == "Module" else record.kind
            found.append(Address(session.step, rank, record.phase, kind, record.call))
    return found


def same(a: Any, b: Any) -> bool:
    """Whether two items are the same: tensors bit for bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (
            a.dtype == b.dtype
            and a.values.shape == b.values.shape
            and np.array_equal(a.values, b.values, equal_nan=True)
        )
    return type(a) is type(b)


def size_of(x: np.ndarray) -> float:
    """‖x‖ over what is finite and no mask."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        return float(np.sqrt(np.square(np.where(np.isfinite(wide) & (wide > MASKED), wide, 0.0)).sum()))


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """‖a − b‖; inf where only one of the two is finite."""
    if a.shape != b.shape or (np.isfinite(a) != np.isfinite(b)).any():
        return math.inf
    with np.errstate(all="ignore"):
        difference = np.where(np.isfinite(a), a.astype(np.float64) - b, 0.0)
        return float(np.sqrt(np.square(difference).sum()))


class Shown(NamedTuple):
    """Where a fault first shows: in what a record read, or in what it wrote."""

    address: Address
    reads: bool
    faulty: Tensor
    clean: Tensor
    place: int


def partners(runs: "Sequence[Run]") -> "dict[tuple[Any, ...], Record]":
    """Records by what two codings of one network share: step, rank, phase, scope, kind, and which of its kind there."""
    seen: Counter[Any] = Counter()
    found = {}
    for run in runs:
        for record in run.records:
            stem = (run.step, run.rank or 0, record.phase, record.scope, record.kind)
            found[(*stem, seen[stem])] = record
            seen[stem] += 1
    return found


def partner_of(runs: "Sequence[Run]", golden: "Sequence[Run]") -> "dict[Record, Record]":
    """For each record of a run the one of the golden that it is to be held against, where there is one."""
    there = partners(golden)
    return {record: there[key] for key, record in partners(runs).items() if key in there}


def first_shown(
    order: "Sequence[Address]", faulty: "Mapping[Address, Record]", clean: "Mapping[Address, Record]"
) -> "Optional[Shown]":
    """The first record, in order of execution, in which the faulty run is not the clean one."""
    for address in order:
        a, b = faulty.get(address), clean.get(address)
        if a is None or b is None:
            continue
        if a.given:
            for k, (x, y) in enumerate(zip((*a.inputs, *a.parameters.values()), (*b.inputs, *b.parameters.values()))):
                if isinstance(x, Tensor) and isinstance(y, Tensor) and not same(x, y):
                    return Shown(address, True, x, y, k)
        if a.told:
            for k, (x, y) in enumerate(zip(a.outputs, b.outputs)):
                if isinstance(x, Tensor) and isinstance(y, Tensor) and not same(x, y):
                    return Shown(address, False, x, y, k)
    return None


def accepted(
    shown: Shown,
    order: "Sequence[Address]",
    faulty: "Mapping[Address, Record]",
    clean: "Mapping[Address, Record]",
    noisy: bool,
) -> "dict[Address, frozenset[str]]":
    """Which operators may stand at place 1, and with which causes.

    An output differs and the inputs do not: BORN; WORSENED too if the two runs are apart already. What it read was not
    recorded (a backward also reads what its forward saved): UNKNOWN. An input differs first: a GAP at whoever reads it,
    or UNKNOWN if that is a backward, whose forward may have saved something that is not known.
    """
    record = clean[shown.address]
    if not shown.reads:
        causes = {"BORN", "WORSENED"} if noisy else {"BORN"}
        saved = Address(*shown.address[:2], "forward", *shown.address[3:])
        full = record.given and (record.phase != "backward" or (saved in clean and clean[saved].given))
        if not full:
            causes = causes | {"UNKNOWN"} if record.given else {"UNKNOWN", "GAP"}
        return {shown.address: frozenset(causes)}
    causes = {"GAP", "WORSENED"} if noisy else {"GAP"}
    if record.phase == "backward":
        causes |= {"UNKNOWN"}
    found = {}
    for address in order:
        a = faulty.get(address)
        if a is not None and a.given and address.step == shown.address.step:
            reads = [item for item in (*a.inputs, *a.parameters.values()) if isinstance(item, Tensor)]
            if any(item.key == shown.faulty.key for item in reads):
                found[address] = frozenset(causes)
    return found


def truth_of(
    clean: Trained,
    faulty: Trained,
    left: "list[Run]",
    right: "list[Run]",
    golden: "list[Run]",
    noisy: bool,
    skipped: "Sequence[Address]",
    struck: "Optional[Struck]",
    unit: float,
) -> "Optional[Truth]":
    """left: what was recorded of the faulty run, right: of the clean one. None if the fault shows nowhere.

    What has no partner in the golden cannot be compared: such an operator may be named, and so may the first one with a
    partner that shows the fault.
    """
    order, a, b = in_order(clean), by_address(left), by_address(right)
    partner = partner_of(right, golden)
    shown = first_shown(order, a, b)
    compared = first_shown(order, a, {address: record for address, record in b.items() if record in partner})
    if shown is None or compared is None:
        return None
    operators = {**accepted(shown, order, a, b, noisy), **accepted(compared, order, a, b, noisy)}
    for address in skipped:
        operators[address] = frozenset({"GAP", "BORN", "UNKNOWN", "MISSING"})
    error = distance(compared.faulty.values, compared.clean.values)
    noise = 0.4 * unit * size_of(compared.clean.values)
    there = partner[b[compared.address]]
    items = (*there.inputs, *there.parameters.values()) if compared.reads else there.outputs
    other_one = items[compared.place] if compared.place < len(items) else None
    if isinstance(other_one, Tensor) and other_one.values.shape == compared.clean.values.shape:
        noise = max(noise, distance(compared.clean.values, other_one.values))
    beyond = math.inf if math.isinf(error) else error / noise if noise > 0 and math.isfinite(noise) else math.inf
    return Truth(operators, beyond, _beyond_rounding(struck, unit))


def _beyond_rounding(struck: "Optional[Struck]", unit: float) -> Optional[float]:
    """The error of the planted operator against that of the same operator without the fault, both from float64."""
    if struck is None:
        return None
    found = 0.0
    for bad, good, exact in zip(struck.faulty, struck.clean, struck.exact):
        if bad.dtype.kind != "f" or bad.shape != exact.shape or good.shape != exact.shape:
            continue
        rounding = max(distance(good, exact), 0.4 * unit * size_of(exact))
        found = max(found, distance(bad, exact) / rounding if rounding else 0.0)
    return found
