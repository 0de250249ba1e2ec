"""Makes cases: a family is one golden run and several targets, some of them clean, the others with one fault planted.

Everything follows from (domain, number): the same two give the same family. `open` is there to work on; `held` draws
other seeds, networks and kinds of fault, and nobody looks into its single cases, so that no rule is tuned to them.
`open2` and `held2` are a second generation of both (second_draw.py), `unseen` has networks and kinds of its own.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from itertools import islice
from typing import Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from tests.corpus.device import ROUND_OFF, Device
from tests.corpus.draw import DOMAINS, NOISES, Plan, clean_kind, device_like, pick, plan
from tests.corpus.faults import Fault, Random, Setting, Site
from tests.corpus.operators import OPERATORS
from tests.corpus.ranks import Skip
from tests.corpus.second_draw import NOISES as SECOND_NOISES
from tests.corpus.second_draw import SECOND_DOMAINS, device_for
from tests.corpus.second_draw import plan as second_plan
from tests.corpus.tape import Plant
from tests.corpus.trace import Record, Run, Tensor
from tests.corpus.training import Trained, kind_of, train
from tests.corpus.truth import COLLECTIVES, Question, Truth, by_address, partner_of, tensors_in, truth_of

SIDE_BY_SIDE = ("data_parallel", "tensor_parallel", "tp_decoder")  # each rank does the same at the same time


@dataclass(frozen=True)
class Case:
    """One pair, in the words of the sheet."""

    name: str
    kind: str  # of fault, or of clean variation
    facts: Mapping[str, str]  # network, precision, noise, size, steps, ranks, part, level, task, format, phase
    truth: Truth
    target: list[Run]


@dataclass(frozen=True)
class Family:
    """One golden run and the cases that are held against it."""

    name: str
    golden: list[Run]
    cases: list[Case]
    style: Mapping[str, str]  # format, task, level
    everywhere: bool = False  # to be written in every format, and to get the same answer in all of them


class Planted(NamedTuple):
    """What makes a run faulty: plants in its operators, or another setting; the phase that it strikes."""

    plants: list[Plant]
    setting: Setting
    phase: str
    each_rank: bool = False  # whether it strikes all ranks, and none of them earlier than another


def recorded(runs: Sequence[Run], part: str, seed: int) -> list[Run]:
    """What is left of runs of which only a part was recorded. A list of operators is drawn from the seed."""
    return [Run(tuple(_left(run.records, part, seed)), run.step, run.rank) for run in runs]


def _left(records: Sequence[Record], part: str, seed: int) -> Sequence[Record]:
    if part == "inputs":
        return [replace(one, told=False) for one in records]
    if part == "outputs":
        return [replace(one, given=False) for one in records]
    if part in ("forward", "backward"):
        return [one for one in records if (one.phase == "forward") == (part == "forward")]
    if part == "list":  # of the names of operators, the same on both sides
        return [one for one in records if zlib.crc32(f"{seed} {one.kind}".encode()) % 2]
    if part == "half":
        return records[: max(3, len(records) * 3 // 10)]
    return records


def sites(trained: Trained) -> list[Site]:
    """All executions of a run that a fault may strike."""
    kinds = {*OPERATORS, *COLLECTIVES, "recv"}
    records = {address: one for address, one in by_address(trained.runs).items() if one.kind in kinds}
    return [
        Site(address, one, records.get(address._replace(phase="forward")) if address.phase == "backward" else None)
        for address, one in records.items()
    ]


def planted(fault: Fault, planned: Plan, clean: Trained, r: Random) -> Optional[Planted]:
    """One fault in a run; None if there is no place for it."""
    setting, target = Setting(), planned.target
    if fault.strikes == "operator":
        every = sites(clean)
        fitting = [site for site in every if site.address.step == 0 and _fits(fault, site)]
        if not fitting:
            return None
        site = fitting[int(r.randint(len(fitting)))]
        alike = [one for one in every if one.address[1:] == site.address[1:]]  # in all steps
        seed = r.randint(1 << 30)
        plants = [fault.make(one, Random(seed)) for one in alike]
        if isinstance(plants[0], Skip):  # nobody calls it: else the others would wait for ever
            plants = [fault.make(one, r) for one in every if one.address[2:] == site.address[2:]]
        return Planted(plants, setting, site.address.phase)
    if fault.strikes == "sites":
        every = sites(clean)
        fitting = [site for site in every if site.address.step == 0 and _fits(fault, site)]
        plants = fault.make(fitting[int(r.randint(len(fitting)))], every, r) if fitting else []
        beside = target.together in SIDE_BY_SIDE and len({one.address.rank for one in plants}) > 1
        return Planted(plants, setting, plants[0].address.phase, beside) if plants else None
    if fault.strikes == "options":
        alone = target.together in ("", "data_parallel") and not target.captures_all
        if not alone or not fault.fits(target.options, kind_of(target.network)):
            return None
        fault.make(setting, r)
    elif fault.strikes in ("weight", "weights"):
        names = sorted(name for name in clean.weights[0].values if name.rpartition(".")[2] in ("weight", "bias"))
        fault.make(setting, r, names if fault.strikes == "weights" else names[int(r.randint(len(names)))])
    elif not fault.fits(target.steps):
        return None
    else:
        fault.make(setting, r)
    beside = target.together == "tp_decoder" and fault.strikes in ("weights", "optimizer")
    return Planted([], setting, "elsewhere", beside)


def _fits(fault: Fault, site: Site) -> bool:
    try:
        return bool(fault.fits(site))
    except (IndexError, TypeError, AttributeError, ValueError):  # a record of another shape than the kind thinks of
        return False


def family(domain: str, number: int, faults: int = 4) -> Family:
    """Computes a family: one clean case and up to `faults` others; every fifth has three clean cases and no other."""
    return _Maker(domain, number).family(faults)


class _Maker:
    """What the cases of a family share."""

    def __init__(self, domain: str, number: int):
        self.name, self.seed = f"{domain}/{number}", [DOMAINS[domain], number]
        self.is_second = domain in SECOND_DOMAINS
        self.planned = planned = (second_plan if self.is_second else plan)(domain, number)
        self.only_clean = number % 5 == 0 or planned.part == "half"
        self.golden, self.clean = train(planned.golden), train(planned.target)
        self.unit = max(ROUND_OFF[one.precision.coarsest] for one in (planned.target, planned.golden))
        self.kept_golden = self._kept(self.golden, "all" if planned.part == "half" else planned.part)
        self.kept_clean = self._kept(self.clean, planned.part)
        task = planned.facts["task"]
        self.statuses = (2,) if planned.part == "half" else (0, 2) if task == "statistics" else (0,)
        apart = planned.variation is not None and not planned.variation.shared
        same = planned.target.device == planned.golden.device and planned.target.precision == planned.golden.precision
        self.question = Question(task, apart or not same, planned.facts["format"] == "cann")

    def family(self, faults: int) -> Family:
        cases = [self._clean_case("clean", self.planned, self.kept_clean)]
        cases += self._other_clean_cases() if self.only_clean else self._faulty_cases(faults)
        style = {key: self.planned.facts[key] for key in ("format", "task", "level")}
        return Family(self.name, self.kept_golden, cases, style, self.planned.everywhere)

    def _kept(self, trained: Trained, part: str) -> list[Run]:
        return recorded(trained.runs, part, self.seed[1])

    def _clean_case(self, name: str, planned: Plan, runs: list[Run]) -> Case:
        """Words that were sent to another expert leave tensors of other shapes: then 2 is a right answer too. So it is
        where the golden alone has a parameter's gradient."""
        partner = partner_of(runs, self.kept_golden)
        kind, statuses = clean_kind(planned), self.statuses
        if self.is_second and open_gradients(self.kept_golden, partner.values()):
            statuses = (0, 2)
        if "experts" in planned.facts["network"] and any(_other_shape(*pair) for pair in partner.items()):
            kind, statuses = "words routed to another expert", (0, 2)
        facts = {**planned.facts, "phase": "clean"}
        return Case(f"{self.name}/{name}", kind, facts, Truth(statuses=statuses), runs)

    def _other_clean_cases(self) -> Iterator[Case]:
        """Two more devices that are as right as the first."""
        r = Random([*self.seed, 7])
        for k in range(2 if self.planned.facts["task"] != "md5" else 0):
            noise, device = self._other_device(r)
            target = replace(self.planned.target, device=device)
            changed = replace(self.planned, target=target, facts={**self.planned.facts, "noise": noise})
            yield self._clean_case(f"clean{k}", changed, self._kept(train(target), self.planned.part))

    def _other_device(self, r: Random) -> tuple[str, Device]:
        """Another noise, and a device that makes it. A golden with HF32 products keeps them."""
        base = self.planned.golden.device
        noise = pick(r, SECOND_NOISES if self.is_second else NOISES)
        if "hf32" in noise and (self.is_second or self.planned.facts["precision"] != "float32"):
            noise = "order"
        if self.is_second and base.reduced:
            noise = str(r.choice(["hf32 golden", "hf32 both"]))
        return noise, (device_for if self.is_second else device_like)(r, noise, base)

    def _faulty_cases(self, most: int) -> Iterator[Case]:
        made = (self._faulty_case(place) for place in range(len(self.planned.faults)))
        return islice((case for case in made if case is not None), most)

    def _faulty_case(self, place: int) -> Optional[Case]:
        fault, steps = self.planned.faults[place], self.planned.target.steps
        r = Random([*self.seed, 100 + place])
        found = planted(fault, self.planned, self.clean, r)
        if found is None:
            return None
        plants, kind = found.plants, fault.name
        if steps > 1 and len(plants) > 1 and fault.strikes != "sites" and r.random_sample() < 0.4:
            plants, kind = [one for one in plants if one.address.step == steps - 1], "intermittent"
        elif plants and r.random_sample() < 0.12:
            another = self.planned.faults[(place + 1) % len(self.planned.faults)]
            second = planted(another, self.planned, self.clean, r)
            if second is not None and second.plants and second.plants[0].address != plants[0].address:
                plants, kind = [*plants, *second.plants], "two_at_once"
        faulty = train(self.planned.target, plants, found.setting)
        left = self._kept(faulty, self.planned.part)
        alike = self.planned.target.together == "data_parallel" and not plants
        alike |= found.each_rank or any(isinstance(one, Skip) for one in plants)
        question = self.question._replace(each_rank=alike)
        truth = truth_of(self.clean, faulty, plants, (left, self.kept_clean, self.kept_golden), question, self.unit)
        if truth is None:
            return None
        facts = {**self.planned.facts, "phase": found.phase, "fault": fault.name}
        return Case(f"{self.name}/{place}", kind, facts, truth, left)


def open_gradients(golden: Sequence[Run], compared: Iterable[Record]) -> bool:
    """Whether gradients of parameters are recorded that the other side has nowhere, as of a norm in a kernel without a
    record: nobody reads them, so that only what the kernel read and wrote otherwise speaks for them."""
    records = by_address(golden)
    known = {
        one.key for record in compared for one in (*tensors_in(record), *record.outputs) if isinstance(one, Tensor)
    }
    for address, record in records.items():
        forward = records.get(address._replace(phase="forward"))
        if address.phase != "backward" or forward is None or not record.told:
            continue
        items = [one for one in forward.inputs if isinstance(one, Tensor)]
        if len(items) == len(record.outputs) and any(
            item.parameter and made is not None and made.key not in known for item, made in zip(items, record.outputs)
        ):
            return True
    return False


def _other_shape(one: Record, other: Record) -> bool:
    return any(
        a is not None and b is not None and a.values.shape != b.values.shape for a, b in zip(one.outputs, other.outputs)
    )
