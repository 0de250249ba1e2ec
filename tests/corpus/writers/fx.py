"""Writes dumps of TorchAir's FX graph, run eagerly: a .npy file per input and output of every node.

worldsize{W}_global_rank{R}/graph_1/{step}/{node}-aten.{operator}.default.{INPUT|OUTPUT}.{index}.{time}.npy
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Sequence

from tests.corpus.trace import Record, Run
from tests.corpus.writers.msprobe import npy
from tests.corpus.writers.slots import Slot, slots


def write(folder: Path, runs: Sequence[Run]) -> None:
    """One dump of all runs."""
    for run in runs:
        forwards: dict[tuple[str, int], Record] = {}
        place = folder / f"worldsize{len(runs)}_global_rank{run.rank or 0}" / "graph_1" / str(run.step)
        place.mkdir(parents=True, exist_ok=True)
        for at, (record, name) in enumerate(names(run).items()):
            seen: Counter[str] = Counter()
            forward = forwards.get((record.kind, record.call)) if record.phase == "backward" and record.given else None
            saved = [Slot("input", "", slot.tensor) for slot in slots(forward)] if forward is not None else []
            if record.phase == "forward":
                forwards[record.kind, record.call] = record
            for slot in (*slots(record), *saved):
                role = "OUTPUT" if slot.role == "output" else "INPUT"
                file = f"{name}.{role}.{seen[role]}.20251017071211{190258 + at:06d}.npy"
                place.joinpath(file).write_bytes(npy(slot.tensor))
                seen[role] += 1


def names(run: Run) -> dict[Record, str]:
    """What a dump of this run calls each of its nodes."""
    seen: Counter[str] = Counter()
    found = {}
    for record in run.records:
        if record.kind == "Module":
            continue
        kind = f"{record.kind}_backward" if record.phase == "backward" else record.kind
        found[record] = f"{kind}{f'_{seen[kind]}' if seen[kind] else ''}-aten.{kind}.default"
        seen[kind] += 1
    return found
