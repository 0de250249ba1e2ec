"""Writes a folder of .npy files as precision_tool makes them from TensorFlow's debugger: outputs only, and their times.

    {scope}_{type}[_{n}].{output index}.{microseconds}.npy      n counts the operators of one scope and type

Such a folder has no step and no rank: a run of several gets a folder each.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Sequence

from tests.corpus.spelling import SPELLINGS
from tests.corpus.trace import Record, Run
from tests.corpus.writers.msprobe import npy
from tests.corpus.writers.slots import module_names, slots

TIME = 1_767_225_600_000_000


def write(folder: Path, runs: Sequence[Run]) -> None:
    """One folder for the only run."""
    (run,) = runs
    _write_run(folder, run)


def write_trees(folder: Path, runs: Sequence[Run], timed: bool) -> None:
    """A folder step{N}/rank{M} for each run; without times inputs too: {operator}.{input|output}.{n}.npy."""
    for run in runs:
        place = folder / f"step{run.step}" / ("" if run.rank is None else f"rank{run.rank}")
        if timed:
            _write_run(place, run)
            continue
        place.mkdir(parents=True)
        for record, name in module_names(run).items():
            for slot in slots(record):
                role = "output" if slot.role == "output" else "input"
                path = slot.path if slot.role != "input_kwargs" else f"9.{slot.path}"
                place.joinpath(f"{name}.{role}.{path}.npy").write_bytes(npy(slot.tensor))


def _write_run(folder: Path, run: Run) -> None:
    folder.mkdir(parents=True)
    for place, (record, name) in enumerate(names(run).items()):
        for k, tensor in enumerate(record.outputs):
            if tensor is not None and record.told:
                folder.joinpath(f"{name}.{k}.{TIME + 100 * place}.npy").write_bytes(npy(tensor))


def names(run: Run) -> dict[Record, str]:
    """What a dump of this run calls each of its operators."""
    seen: Counter[str] = Counter()
    found = {}
    for record in run.records:
        if record.kind == "Module":
            continue
        row = SPELLINGS[record.kind]
        stem = "_".join(
            filter(None, (record.scope.replace(".", "_"), row.ge_backward if record.phase == "backward" else row.ge))
        )
        stem = f"gradients_{stem}" if record.phase == "backward" else stem
        found[record] = f"{stem}_{seen[stem]}" if seen[stem] else stem
        seen[stem] += 1
    return found
