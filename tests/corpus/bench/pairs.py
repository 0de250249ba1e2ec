"""The pairs of the public set: each follows from a seed and its number, and from nothing else.

Every fourth pair is clean, and every fourth of two frameworks. Groups: "operator" (one rank, one step, one operator is
wrong), "script" (one rank, several steps, the training script is wrong), "parallel" (two ranks or micro batches
against one card or the same layout), "frameworks" (MindSpore's names and another coding against PyTorch's).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.bench import parallel_networks as many
from tests.corpus.bench.faults import OPERATOR_FAULTS
from tests.corpus.bench.networks import DROPPING, NETWORKS, WORDED
from tests.corpus.bench.training import HABITS, Habit, Recipe, Trained, train
from tests.corpus.bench.truth import Truth, by_key, find_truth
from tests.corpus.device import ROUND_OFF, Device
from tests.corpus.tape import Address, Plant, Precision, Session

PAIRS = 600
LEAST = 8.0  # how far a fault is beyond rounding and noise where it first shows; a smaller one is drawn again
GROUPS = (
    "operator",
    "parallel",
    "script",
    "operator",
    "frameworks",
    "operator",
    "parallel",
    "script",
    "operator",
    "parallel",
)
DATA = ("values", "statistics", "values", "md5", "values", "statistics", "values")
TASKS = {"values": "tensor", "statistics": "statistics", "md5": "md5"}
PLAIN = Device()
Random = np.random.RandomState


class Case(NamedTuple):
    """A pair before it is written. A clean one has no truth."""

    name: str
    facts: dict[str, Any]
    target: Sequence[Session]
    golden: Sequence[Session]
    truth: Optional[Truth]
    is_mint: bool


def case(seed: int, number: int) -> Case:
    """One pair."""
    r = Random([seed, number])
    group, data, is_clean = GROUPS[number % 10], DATA[number % 7], number % 4 == 3 or number % 40 == 24
    if group == "frameworks" and data == "md5":
        data = "values"
    made = {"operator": _operator, "script": _script, "parallel": _parallel, "frameworks": _frameworks}[group]
    name = f"{number:04d}"
    for _ in range(40):
        found = made(r, data, is_clean, number)
        if found is not None:
            facts, target, golden, truth = found
            common = {"data": data, "group": group, "clean": is_clean}
            return Case(name, {**common, **facts}, target, golden, truth, group == "frameworks")
    raise RuntimeError(f"no fault of pair {name} shows")


Found = Optional[tuple[dict[str, Any], Sequence[Session], Sequence[Session], Optional[Truth]]]


def _other_device(r: Random) -> Device:
    """Another way to compute the same: blocks, order of sums, functions, roundings."""
    return Device(
        block=int(r.choice([16, 32, 64, 128])), order=int(r.randint(3)), slope=float(r.choice([0.0, 0.5, 1.0])),
        flips=float(r.choice([0.0, 0.05])), seed=int(r.randint(1 << 20)),
    )  # fmt: skip


def _devices(r: Random, data: str) -> tuple[Device, str]:
    """The device of a target, and what it is called."""
    if data == "md5" or r.random_sample() < 0.25:
        return PLAIN, "repeat"
    return _other_device(r), "other order and functions"


def _recipes(r: Random, data: str, steps: int, network: str, recorded: bool) -> tuple[Recipe, Recipe, str]:
    """Target and golden of one network, and how they differ without a fault."""
    options = {"dropout": 0.2} if network in DROPPING and r.randint(2) else {}
    golden = Recipe(network, int(r.randint(1 << 30)), steps, options=options, recorded=recorded)
    device, noise = _devices(r, data)
    target = replace(golden, device=device)
    if data != "md5" and steps == 1 and r.random_sample() < 0.15:
        return replace(target, precision=Precision(half="bfloat16")), golden, "bfloat16 against float32"
    return target, golden, noise


def _unit(recipe: Recipe) -> float:
    return ROUND_OFF[recipe.precision.coarsest]


def _facts(network: str, kind: str, noise: str, steps: int, layout: str = "") -> dict[str, Any]:
    return {"network": network, "kind": kind, "noise": noise, "steps": steps, "layout": layout}


def _struck(r: Random, recipe: Recipe, clean: Trained, kind: str) -> Optional[tuple[Plant, Trained]]:
    """The run with one operator struck, in all steps."""
    fault = OPERATOR_FAULTS[kind]
    fitting = [
        (key, one) for key, one in by_key(clean.sessions).items() if one.scope[:9] != "optimizer" and fault.fits(one)
    ]
    if not fitting:
        return None
    key, record = fitting[int(r.randint(len(fitting)))]
    plant = fault.make(Address(key[0], key[1], record.phase, record.kind, record.call), record, r)
    return plant, train(recipe, [plant])


def _operator(r: Random, data: str, is_clean: bool, number: int) -> Found:
    names = sorted(NETWORKS)
    target, golden, noise = _recipes(r, data, 1, names[int(r.randint(len(names)))], False)
    clean, reference = train(target), train(golden)
    if is_clean:
        return _facts(target.network, noise, noise, 1), clean.sessions, reference.sessions, None
    return _with_operator_fault(r, data, target, clean, reference, noise)


def _with_operator_fault(r: Random, data: str, target: Recipe, clean: Trained, reference: Trained, noise: str) -> Found:
    kinds = sorted(OPERATOR_FAULTS)
    kind = kinds[int(r.randint(len(kinds)))]
    struck = _struck(r, target, clean, kind)
    if struck is None:
        return None
    truth = find_truth(struck[1].sessions, clean.sessions, reference.sessions, TASKS[data], _unit(target))
    if truth is None or truth.beyond < LEAST:
        return None
    return _facts(target.network, kind, noise, target.steps), struck[1].sessions, reference.sessions, truth


def _script(r: Random, data: str, is_clean: bool, number: int) -> Found:
    kinds = sorted(HABITS)
    kind = kinds[int(r.randint(len(kinds)))]
    needs = HABITS[kind]
    names = needs.networks or tuple(sorted(NETWORKS))
    network = names[int(r.randint(len(names)))]
    recorded = bool(r.randint(2)) if needs.recorded is None else bool(needs.recorded)
    steps = max(2, needs.steps)
    target, golden, noise = _recipes(r, data, steps, network, recorded)
    if kind == "dropout in evaluation mode":
        target, golden = (replace(one, options={"dropout": 0.2}) for one in (target, golden))
    clean, reference = train(target), train(golden)
    if is_clean:
        return _facts(network, noise, noise, steps), clean.sessions, reference.sessions, None
    habit = Habit(kind, needs.first, float(r.random_sample()))
    faulty = train(target, habit=habit)
    truth = find_truth(faulty.sessions, clean.sessions, reference.sessions, TASKS[data], _unit(target))
    if truth is None or truth.beyond < LEAST:
        return None
    return _facts(network, kind, noise, steps), faulty.sessions, reference.sessions, truth


def _parallel(r: Random, data: str, is_clean: bool, number: int) -> Found:
    kinds = sorted(many.BUGS)
    kind = kinds[int(r.randint(len(kinds)))]
    layout = str(r.choice(many.BUGS[kind]))
    old = kind == "part of a weight from before the update" or layout == "zero2"
    steps = 2 if old or r.randint(4) == 0 else 1
    dropout = 0.2 if layout in ("tp2", "ep2") and (kind.startswith("dropout") or r.randint(2)) else 0.0
    device, noise = _devices(r, data)
    plan = many.Plan(
        layout, int(r.randint(1 << 30)), steps, 2, device, dropout=dropout, recorded=True, tied=layout == "pp2"
    )
    alike = data == "md5" or (layout != "ep2" and r.randint(3) == 0) or layout == "zero2"
    golden = plan._replace(layout=layout if alike else many.GOLDEN.get(layout, "one"), device=PLAIN)
    clean, reference = many.run(plan), many.run(golden)
    against = f"{layout} against {golden.layout}"
    if is_clean:
        return _facts("retention on ranks", noise, noise, steps, against), clean.sessions, reference.sessions, None
    bug = many.Bug(kind, int(r.randint(2)), int(r.randint(2)), 1 if kind.startswith("part of a weight from") else 0)
    faulty = many.run(plan, bug)
    truth = find_truth(faulty.sessions, clean.sessions, reference.sessions, TASKS[data], ROUND_OFF["float32"])
    if truth is None or truth.beyond < LEAST:
        return None
    return _facts("retention on ranks", kind, noise, steps, against), faulty.sessions, reference.sessions, truth


def _frameworks(r: Random, data: str, is_clean: bool, number: int) -> Found:
    names = sorted(NETWORKS)
    network = names[int(r.randint(len(names)))]
    golden = Recipe(network, int(r.randint(1 << 30)))
    axes = "sequence" if network in WORDED and r.randint(2) else "batch"
    split = "split" if r.randint(2) else "whole"
    target = replace(golden, device=_devices(r, "values")[0], options={"linear": split, "axes": axes})
    noise = f"MindSpore's names, linear {split}, {axes} first"
    clean, reference = train(target), train(golden)
    if is_clean:
        return _facts(network, noise, noise, 1), clean.sessions, reference.sessions, None
    return _with_operator_fault(r, data, target, clean, reference, noise)
