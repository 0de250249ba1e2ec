"""Pairs drawn from seeds, written by torch, gloo and msprobe."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import numpy as np
import torch

from tests.corpus.parallel.cases import LAYOUTS, Case, Written, design_for
from tests.corpus.parallel.faults import Fault
from tests.corpus.parallel.gloo.faults import planted
from tests.corpus.parallel.gloo.place import Place
from tests.corpus.parallel.gloo.record import Recorder, run_ranks
from tests.corpus.parallel.gloo.styles import MIXTURES, Style, draw_style
from tests.corpus.parallel.gloo.training import Step
from tests.corpus.parallel.layout import Layout

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
CLOSE = {"float32": 1e-5, "bfloat16": 3e-2, "float64": 1e-12}  # relative: of the losses of a clean pair
TASKS = {"values": "tensor", "statistics": "statistics"}
BEHIND_THE_DUMP = ("undivided", "micro undivided", "gradient not reduced", "tied not reduced", "norm not reduced")
"""Faults that records of modules alone do not show: they strike the optimizer step."""
KNOWN = {
    **{
        name: (layout, Style())
        for name, layout in LAYOUTS.items()
        if layout.ranks <= 4 and layout.vpp == 1 and not layout.zero
    },
    **MIXTURES,
}


class StyledCase(NamedTuple):
    """A case and how its network is written."""

    case: Case
    style: Style


def draw_cases(
    seed: int, name: str, clean: int = 1, task: str = "values", level: str = "L1", base: str = "float32", most: int = 99
) -> Iterator[StyledCase]:
    """The clean pairs of a layout, and a pair for each fault that it can have, at most `most`."""
    draw = np.random.RandomState([seed, sum(map(ord, name)), 3])
    layout, known = KNOWN[name]

    def styled() -> Any:
        d, style = design_for(draw, layout), draw_style(draw, layout, known)
        length = min(d.length, 8 * max(1, layout.cp * layout.tp // 2))
        return d._replace(gated=d.gated and not style.experts, batch=4, length=length, layers=2), style

    for number in range(clean):
        design, style = styled()
        title = f"{name}-clean{number}-{task}-{base}-{level}-{seed}"
        own = int(draw.randint(1 << 30))
        yield StyledCase(Case(title, layout, design, Fault(), (), None, task, level, base, own), style)
    design, style = styled()
    every = [one for one in planted(draw, layout, design, style)
             if (base != "bfloat16" or not one[0].kind.startswith("coarse"))
             and (level != "L0" or one[0].kind not in BEHIND_THE_DUMP)]  # fmt: skip
    for number in sorted(draw.permutation(len(every))[:most]):
        fault, truth, ranks = every[number]
        own = int(draw.randint(1 << 30))
        if base == "bfloat16" and fault.size:  # rounding there is 4e-3
            fault = Fault(fault.kind, fault.scope, fault.rank, size=max(0.1, fault.size))
        title = f"{name}-{fault.kind.replace(' ', '_')}-{number}-{task}-{base}-{level}-{seed}"
        yield StyledCase(Case(title, layout, design, fault, truth, ranks, task, level, base, own), style)


def make(one: StyledCase, folder: Path) -> Written:
    """Write both dumps. Raises RuntimeError if a rank fails, or if a clean layout has another loss."""
    case = one.case
    folder.mkdir(parents=True, exist_ok=True)
    golden = _run(one, Layout(), Fault(), folder / "golden")
    target = _run(one, case.layout, case.fault, folder / "target")
    if not case.fault.kind:
        for mine, exact in zip(target["loss"], golden["loss"]):
            if not math.isclose(mine, exact, rel_tol=CLOSE[case.base]):
                raise RuntimeError(f"{case.name}: loss {mine} of {case.layout.name}, {exact} of one rank")
    right = set()
    for scope, kind, phase in case.truth:
        places = golden["places"]
        if phase == "backward" and not any([scope, kind] in some for some in golden["own"].values()):
            places = golden["backward"]
        right |= {name.replace(".forward", f".{phase}") for name, some in places.items() if [scope, kind] in some}
    (folder / "truth.json").write_text(json.dumps({"right": sorted(right), "ranks": case.ranks}))
    return Written(folder / "target", folder / "golden", frozenset(right))


def _run(one: StyledCase, layout: Layout, fault: Fault, folder: Path) -> dict[str, Any]:
    case = one.case
    is_golden = folder.name == "golden"
    style = one.style._replace(apart=1) if is_golden else one.style

    def body(rank: int) -> dict[str, Any]:
        recorder = Recorder(folder, TASKS[case.style], case.level)
        place = Place(layout, rank, case.design, style, case.seed, fault, DTYPES[case.base], recorder)
        place.make_groups()
        torch.manual_seed(case.seed)
        step = Step(place, case.seed)
        losses = []
        for _ in range(style.steps):
            recorder.start(step.stage)
            step.run()
            recorder.stop()
            losses.append(step.whole_loss())
        return {"loss": losses, "places": recorder.places, "own": recorder.own,
                "backward": recorder.backward}  # fmt: skip

    return run_ranks(max(layout.ranks, style.apart), folder.parent / f"{folder.name}.store", body)
