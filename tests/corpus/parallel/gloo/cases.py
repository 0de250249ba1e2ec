"""Write the dumps of a case of tests/corpus/parallel by torch, gloo and msprobe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.corpus.parallel.cases import Case, Written
from tests.corpus.parallel.faults import Fault
from tests.corpus.parallel.gloo.layers import Place
from tests.corpus.parallel.gloo.record import Recorder, run_ranks
from tests.corpus.parallel.gloo.training import Step
from tests.corpus.parallel.layout import Layout

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TASKS = {"values": "tensor", "statistics": "statistics"}


def make(case: Case, folder: Path) -> Written:
    """Writes both dumps. Raises RuntimeError if a rank fails."""
    folder.mkdir(parents=True, exist_ok=True)
    golden = _run(case, case.golden, Fault(), folder / "golden")
    target = _run(case, case.layout, case.fault, folder / "target")
    clean = not case.fault.kind
    if clean and golden["loss"] is not None and target["loss"] is not None and case.layout.dp == case.layout.cp == 1:
        far = abs(golden["loss"] - target["loss"]) / abs(golden["loss"])
        if far > (1e-5 if case.base == "float32" else 3e-2):
            raise RuntimeError(
                f"{case.name}: loss {target['loss']} of {case.layout.name}, {golden['loss']} of one rank"
            )
    right = {name for name, places in golden["places"].items()
             for scope, kind in places for where in case.truth if (scope, kind) == where[:2]
             and (".backward" in name) == (where[2] == "backward")}  # fmt: skip
    right |= {name.replace(".forward", ".backward") for name, places in golden["places"].items()
              for scope, kind in places for where in case.truth if (scope, kind) == where[:2]
              and where[2] == "backward"}  # fmt: skip
    return Written(folder / "target", folder / "golden", frozenset(right))


def _run(case: Case, layout: Layout, fault: Fault, folder: Path) -> dict[str, Any]:
    def body(rank: int) -> dict[str, Any]:
        recorder = Recorder(folder, TASKS[case.style], case.level)
        place = Place(layout, rank, case.design, case.seed, fault, DTYPES[case.base], recorder)
        place.make_groups()
        torch.manual_seed(case.seed)
        step = Step(place, case.seed)
        recorder.start(step.stage)
        step.run()
        recorder.stop()
        return {"loss": step.loss, "places": recorder.places}

    return run_ranks(layout.ranks, folder.parent / f"{folder.name}.store", body)
