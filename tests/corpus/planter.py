"""Draws cases: a family is one golden run and several targets, some of them clean, the others with one fault planted.

Everything follows from (domain, number): the same two give the same family. `open` is there to work on; `held` draws
other seeds, networks and kinds of fault, and nobody looks into its single cases, so that no rule is tuned to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Mapping, Optional, Sequence

from tests.corpus.device import ROUND_OFF
from tests.corpus.draw import DOMAINS, NOISES, Plan, clean_kind, device_like, pick, plan
from tests.corpus.faults import Fault, Random, Setting, Site
from tests.corpus.networks import NETWORKS
from tests.corpus.tape import Address, Plant
from tests.corpus.trace import Record, Run
from tests.corpus.training import Trained, train
from tests.corpus.truth import Truth, by_address, truth_of


@dataclass(frozen=True)
class Case:
    """One pair, in the words of the sheet."""

    name: str
    kind: str  # of fault, or of clean variation
    facts: "Mapping[str, str]"  # network, precision, noise, size, steps, ranks, part, level, task, format, phase
    truth: Truth
    target: "list[Run]"


@dataclass(frozen=True)
class Family:
    """One golden run and the cases that are held against it."""

    name: str
    golden: "list[Run]"
    cases: "list[Case]"
    style: "Mapping[str, str]"  # format, task, level
    everywhere: bool = False  # to be written in every format, and to get the same answer in all of them


def recorded(runs: "Sequence[Run]", part: str, r: Random, most: Optional[int] = None) -> "list[Run]":
    """What is left of runs of which only a part was recorded; the same draw leaves the same."""
    state = r.get_state()
    found = []
    for run in runs:
        r.set_state(state)
        found.append(Run(tuple(_left(run.records, part, r, most)), run.step, run.rank))
    return found


def _left(records: "Sequence[Record]", part: str, r: Random, most: Optional[int]) -> "list[Record]":
    if part == "inputs":
        return [replace(one, told=False) for one in records]
    if part == "outputs":
        return [replace(one, given=False) for one in records]
    if part in ("forward", "backward"):
        return [one for one in records if (one.phase == "forward") == (part == "forward")]
    if part == "list":
        kinds = sorted({one.kind for one in records})
        chosen = set(r.choice(kinds, size=max(2, len(kinds) // 2), replace=False))
        return [one for one in records if one.kind in chosen]
    if part == "half":
        return list(records[: max(3, len(records) * 3 // 10)])
    return list(records)


def sites(trained: Trained) -> "list[Site]":
    """All executions of a run that a fault may strike."""
    records = {a: r for a, r in by_address(trained.runs).items() if r.kind != "Module"}
    return [
        Site(a, r, records.get(Address(*a[:2], "forward", *a[3:])) if a.phase == "backward" else None)
        for a, r in records.items()
    ]


def plant_of(fault: Fault, planned: Plan, clean: Trained, r: Random) -> "Optional[tuple[list[Plant], Setting, str]]":
    """(plants, setting, phase) of one fault in a run; None if there is no place for it."""
    setting = Setting()
    if fault.strikes == "operator":
        fitting = [site for site in sites(clean) if site.address.step == 0 and _fits(fault, site)]
        if not fitting:
            return None
        site = fitting[int(r.randint(len(fitting)))]
        later = [other_site for other_site in sites(clean) if other_site.address[1:] == site.address[1:]]
        seed = r.randint(1 << 30)
        return [fault.make(one, Random(seed)) for one in later], setting, site.address.phase
    if fault.strikes == "options":
        if planned.target.together not in ("", "data_parallel"):
            return None
        if not fault.fits(planned.target.options, NETWORKS[planned.target.network]):
            return None
        fault.make(setting, r)
    elif fault.strikes == "weight":
        names = sorted(name for name in clean.weights[0].values if name.rpartition(".")[2] in ("weight", "bias"))
        fault.make(setting, r, names[int(r.randint(len(names)))])
    elif fault.strikes == "optimizer":
        if not fault.fits(planned.target.steps):
            return None
        fault.make(setting, r)
    return [], setting, "elsewhere"


def _fits(fault: Fault, site: Site) -> bool:
    try:
        return bool(fault.fits(site))
    except (IndexError, TypeError, AttributeError, ValueError):  # a record of another shape than the kind thinks of
        return False


def family(domain: str, number: int, faults: int = 4) -> Family:
    """Computes a family: about one clean case, and up to `faults` others."""
    planned = plan(domain, number)
    r = Random([DOMAINS[domain], number, 7])
    golden = train(planned.golden)
    clean = train(planned.target)
    name = f"{domain}/{number}"
    noisy = planned.target.device != planned.golden.device or planned.target.precision != planned.golden.precision
    unit = max(ROUND_OFF[planned.target.precision.coarsest], ROUND_OFF[planned.golden.precision.coarsest])
    cut = Random([DOMAINS[domain], number, 8])
    kept_golden = recorded(golden.runs, "all" if planned.part == "half" else planned.part, cut)
    kept_clean = recorded(clean.runs, planned.part, _again(domain, number))
    statuses = (2,) if planned.part == "half" else (0, 2) if planned.facts["task"] == "statistics" else (0,)
    cases = [
        Case(
            f"{name}/clean",
            clean_kind(planned),
            {**planned.facts, "phase": "clean"},
            Truth(statuses=statuses),
            kept_clean,
        )
    ]
    wanted = faults if number % 5 else 0
    tried = planned.faults if wanted else []
    if planned.part == "half":
        tried = []
    if number % 5 == 0:
        cases += _more_clean(domain, number, planned, golden, statuses, r)
    for place, fault in enumerate(tried):
        if len(cases) > wanted:
            break
        draw = Random([DOMAINS[domain], number, 100 + place])
        found = plant_of(fault, planned, clean, draw)
        if found is None:
            continue
        plants, setting, phase = found
        kind = fault.name
        if len(plants) > 1 and planned.target.steps > 1 and draw.random_sample() < 0.4:
            plants, kind = [p for p in plants if p.address.step == planned.target.steps - 1], "intermittent"
        elif fault.strikes == "operator" and draw.random_sample() < 0.12:
            second = plant_of(planned.faults[(place + 1) % len(planned.faults)], planned, clean, draw)
            if second is not None and second[0] and second[0][0].address != plants[0].address:
                plants, kind = [*plants, *second[0]], "two_at_once"
        faulty = train(planned.target, plants, setting)
        left = recorded(faulty.runs, planned.part, _again(domain, number))
        skipped = [p.address for p in plants if type(p).__name__ == "Skip"]
        struck = min((p for p in plants if p.struck), key=lambda p: p.address.step, default=None)
        truth = truth_of(
            clean, faulty, left, kept_clean, kept_golden, noisy, skipped, struck.struck if struck else None, unit
        )
        if truth is None:
            continue
        facts = {**planned.facts, "phase": phase, "fault": fault.name, "held kind": str(fault.held)}
        cases.append(Case(f"{name}/{place}", kind, facts, truth, left))
    style = {k: planned.facts[k] for k in ("format", "task", "level")}
    return Family(name, kept_golden, cases, style, planned.everywhere)


def _again(domain: str, number: int) -> Random:
    return Random([DOMAINS[domain], number, 8])


def _more_clean(
    domain: str, number: int, planned: Plan, golden: Trained, statuses: "tuple[int, ...]", r: Random
) -> "list[Case]":
    """Two more devices that are as right as the first."""
    found = []
    if planned.facts["task"] == "md5":
        return found
    for k in range(2):
        noise = pick(r, NOISES)
        if noise == "hf32" and planned.facts["precision"] != "float32":
            noise = "order"
        changed = replace(
            planned,
            target=replace(planned.target, device=device_like(r, noise, planned.golden.device)),
            facts={**planned.facts, "noise": noise},
        )
        runs = recorded(train(changed.target).runs, planned.part, _again(domain, number))
        case = Case(
            f"{domain}/{number}/clean{k}",
            clean_kind(changed),
            {**changed.facts, "phase": "clean"},
            Truth(statuses=statuses),
            runs,
        )
        found.append(case)
    return found
