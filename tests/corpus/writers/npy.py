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

TIME = 1_767_225_600_000_000


def write(folder: Path, runs: "Sequence[Run]") -> None:
    """One folder for the only run."""
    (run,) = runs
    folder.mkdir(parents=True)
    for place, (record, name) in enumerate(names(run).items()):
        for k, tensor in enumerate(record.outputs):
            if tensor is not None and record.told:
                folder.joinpath(f"{name}.{k}.{TIME + 100 * place}.npy").write_bytes(npy(tensor))


def names(run: Run) -> "dict[Record, str]":
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
