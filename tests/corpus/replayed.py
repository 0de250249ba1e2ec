"""What `npucmp replay` says of the corpus: planted operators by their own float64 truth, without any golden.

    python -m tests.corpus.replayed --seeds held --families 60

Every run is written as msprobe's, level L1, with all of its values. A fault counts if it is beyond THREE times the
rounding that is due: its error against the float64 twin of the same operator on the same inputs (which the planter
computes, not npucmp) over what the replay says is due; where that judged nothing, over what the clean run leaves. It
is found if the operator is GUILTY or, of a gradient that no
record holds, if a sum of gradients that it is part of is BROKEN. Everybody else who is accused is falsely accused, but
for the backward of a guilty forward. Kernels are the planter's own, in numpy: blocks and orders of sums, functions and
HF32 are drawn, none is torch's. Needs torch.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Iterator, NamedTuple, Optional

import click
import numpy as np

from tests.corpus.draw import plan
from tests.corpus.faults import Random
from tests.corpus.planter import planted
from tests.corpus.tape import Address, Plant
from tests.corpus.training import Trained, train
from tests.corpus.truth import COLLECTIVES, SLIGHT, by_address, distance, size_of
from tests.corpus.writers import msprobe

THREE = 3.0


class Said(NamedTuple):
    """What a replay said of one run."""

    guilty: frozenset[Address]
    broken: frozenset[Address]  # the consumers of gradients that are not their sum
    due: dict[tuple[Address, int], float]  # ‖what is due‖ of each output that was judged
    why: dict[Address, str]  # of what is UNKNOWN


class Case(NamedTuple):
    name: str
    kind: str
    precision: str
    phase: str
    beyond: float  # times what is due
    is_judged: bool  # whether the replay said what is due
    is_recorded: bool  # whether the wrong gradient is in a record: the last node of a product may be a view
    found: str  # "guilty", "edge" or ""
    accused: int
    why: str = ""


def said(folder: Path, trained: Trained) -> Said:
    from npucmp.model import ReplayVerdict
    from npucmp.recompute.workflow import replay

    msprobe.write(folder, trained.runs)
    try:
        found = replay(folder, jobs=1)
    finally:
        shutil.rmtree(folder)
    places = {
        (run.step, run.rank or 0, name): address
        for run in trained.runs
        for record, name in msprobe.names(run).items()
        for address in [next(iter(by_address([type(run)((record,), run.step, run.rank)])))]
    }
    guilty, broken, due, why = set(), set(), {}, {}
    for one in found.replays:
        operators = one.operators

        def place(order: int, one=one, operators=operators) -> Address:
            return places[one.run.step, one.run.rank or 0, operators[order].name]

        for row in one.rows:
            if row.verdict is ReplayVerdict.UNKNOWN:
                why[place(row.order)] = f"{row.status}: {row.explanation}"
            if row.verdict is ReplayVerdict.GUILTY:
                guilty.add(place(row.order))
            if row.rms_ratio and row.rmse and math.isfinite(row.rms_ratio):
                tensor = {tensor.slot: tensor for tensor in operators[row.order].tensors}[row.slot]
                due[place(row.order), int(row.slot.partition(":")[2])] = (
                    row.rmse / row.rms_ratio * math.sqrt(max(1, math.prod(tensor.shape)))
                )
        broken |= {place(order) for edge in one.broken_edges for order in edge.consumers}
    return Said(frozenset(guilty), frozenset(broken), due, why)


def beyond(plant: Plant, found: Said) -> tuple[float, bool]:
    """Times what is due, of the worst output, and whether the replay said what that is."""
    assert plant.struck is not None
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for k, (bad, good, exact) in enumerate(zip(*plant.struck)):
        error = distance(bad, exact) if bad.shape == exact.shape else math.inf
        due = found.due.get((plant.address, k))
        slight = max(distance(good, exact), SLIGHT * 2.0**-24 * size_of(exact, good)) if good.dtype.kind == "f" else 0.0
        if error:
            ratios[due is not None].append(error / (due or slight) if due or slight else math.inf)
    is_judged = bool(ratios[True])
    return max(ratios[is_judged], default=0.0), is_judged


def cases(domain: str, number: int, folder: Path, faults: int = 3) -> Iterator[Case]:
    """A clean run, and up to so many with one planted operator."""
    planned = plan(domain, number)
    facts = planned.facts
    clean = train(planned.target)
    told = said(folder, clean)
    yield Case(
        f"{domain}/{number}/clean", "clean", facts["precision"], "", 0.0, True, True, "", len(told.guilty | told.broken)
    )
    made = 0
    for place, fault in enumerate(planned.faults):
        r = Random([*[int(x) for x in np.random.RandomState([number, place]).randint(1 << 30, size=2)]])
        found = planted(fault, planned, clean, r) if fault.strikes == "operator" else None
        if (
            made == faults
            or found is None
            or not found.plants
            or found.plants[0].address.kind in (*COLLECTIVES, "recv")
        ):
            continue
        faulty = train(planned.target, found.plants, found.setting)
        plant = next((one for one in found.plants if one.struck is not None), None)
        if plant is None or _told_openly(plant):
            continue
        made += 1
        told = said(folder, faulty)
        yield Case(f"{domain}/{number}/{place}", fault.name, facts["precision"], plant.address.phase,
                   *beyond(plant, told), recorded(plant, faulty), _found(plant, told), len(_others(found.plants, told)),
                   told.why.get(plant.address, ""))  # fmt: skip


def recorded(plant: Plant, faulty: Trained) -> bool:
    """Whether a record of the operator holds what it did wrong."""
    assert plant.struck is not None
    outputs = by_address(faulty.runs)[plant.address].outputs
    wrong = [bad for bad, good in zip(plant.struck.faulty, plant.struck.clean) if not np.array_equal(bad, good)]
    return any(np.array_equal(bad, one.values, equal_nan=True) for bad in wrong for one in outputs if one is not None)


def _told_openly(plant: Plant) -> bool:
    """The record tells the wrong argument: then the operator computes what it was told."""
    return bool(getattr(plant, "_openly", False))


def _found(plant: Plant, told: Said) -> str:
    if plant.address in told.guilty:
        return "guilty"
    return "edge" if plant.address in told.broken else ""


def _others(plants: list[Plant], told: Said) -> set[Address]:
    own = {plant.address for plant in plants}
    own |= {address._replace(phase="backward") for address in own}
    return (told.guilty | told.broken) - own


def _share(some: list[bool]) -> str:
    return f"{sum(some):,} of {len(some):,}" + (f" ({sum(some) / len(some):.1%})" if some else "")


@click.command(help=__doc__)
@click.option("--seeds", type=click.Choice(["open", "held"]), default="open")
@click.option("--families", default=40)
@click.option("--start", default=0)
@click.option("--faults", default=3, help="of a family; 0: clean runs alone")
@click.option("--cases", "listed", is_flag=True, help="what went wrong, case by case (open seeds)")
@click.option("--require", type=float, help="exit 1 if a clean run is accused, or a smaller share is found")
def main(seeds: str, families: int, start: int, faults: int, listed: bool, require: Optional[float]) -> None:
    import torch  # here, so that the children of every replay have it already

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if listed and seeds == "held":
        raise click.UsageError("single cases of held seeds are not shown")
    every: list[Case] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for number in range(start, start + families):
            for case in cases(seeds, number, Path(folder) / "dump", faults):
                every.append(case)
                wrong = case.accused or (case.kind != "clean" and not case.found and case.beyond > THREE)
                if listed and wrong:
                    print(case, flush=True)
    share = _tell(every)
    if require is not None and (share < require or any(case.accused for case in every if case.kind == "clean")):
        raise SystemExit(1)


def _tell(every: list[Case]) -> float:
    """Prints the figures; the share of what is beyond 3 budgets that is found."""
    clean = [case for case in every if case.kind == "clean"]
    faults = [case for case in every if case.kind != "clean"]
    inside = [case for case in faults if case.is_recorded]
    loud, rest = ([case for case in inside if (case.beyond > THREE) == is_loud] for is_loud in (True, False))
    print(f"clean runs without an accusation: {_share([not case.accused for case in clean])}")
    print(f"faulty runs where nobody else is accused: {_share([not case.accused for case in faults])}")
    print(f"beyond 3 budgets, found: {_share([bool(case.found) for case in loud])}; "
          f"of those that were judged {_share([bool(case.found) for case in loud if case.is_judged])}")  # fmt: skip
    print(f"within 3 budgets, found all the same: {_share([bool(case.found) for case in rest])}")
    hidden = [bool(case.found) for case in faults if not case.is_recorded and case.beyond > THREE]
    print(f"gradients that no record holds, found by the sums that they are part of: {_share(hidden)}")
    missed = Counter(case.why.partition(": ")[0] or "clean" for case in loud if not case.found)
    print(f"what is said of those that were not found: {dict(missed)}")
    for title in ("kind", "precision", "phase"):
        groups: dict[str, list[bool]] = defaultdict(list)
        for case in loud:
            groups[getattr(case, title)].append(bool(case.found))
        print(f"by {title}: " + ", ".join(f"{name} {sum(some)}/{len(some)}" for name, some in sorted(groups.items())))
    return sum(bool(case.found) for case in loud) / max(1, len(loud))


if __name__ == "__main__":
    main()
