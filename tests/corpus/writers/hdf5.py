"""Writes HDF5 files: the hierarchy of PyTorch 1.5 for Ascend, or plain datasets; one for each step and rank.

npu_step{N}_rank{M}.h5
    /{operator}/{number}/{input|output}/{argument}      hierarchy; DataType, Stride and others as attributes
    /{name}/{input|output}_{n}                          plain, in the order of creation
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

import numpy as np

from tests.corpus.spelling import SPELLINGS
from tests.corpus.trace import Record, Run, Tensor
from tests.corpus.writers.slots import array, module_names, slots

CODES = {"float32": 1, "int32": 6, "int64": 7, "bool": 9, "float16": 10}


def write(folder: Path, runs: Sequence[Run], plain: bool) -> None:
    """One file for each run."""
    import h5py

    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        name = f"npu_step{run.step}.h5" if run.rank is None else f"npu_step{run.step}_rank{run.rank}.h5"
        with h5py.File(folder / name, "w", track_order=plain) as file:
            (_plain if plain else _hierarchy)(file, run)


def names(run: Run, plain: bool) -> dict[Record, str]:
    """What a dump of this run calls each of its operators."""
    if plain:
        return {record: name.replace(".", "/") for record, name in module_names(run).items()}
    found, seen = {}, {}
    for record in run.records:
        if record.kind == "Module":
            continue
        name = _spelled(record)
        seen[name] = seen.get(name, -1) + 1
        found[record] = f"{name}:{seen[name]}"
    return found


def _spelled(record: Record) -> str:
    if record.kind not in SPELLINGS:
        return record.kind
    return f"{SPELLINGS[record.kind].ge}Backward" if record.phase == "backward" else record.kind


def _plain(file: Any, run: Run) -> None:
    for record, name in names(run, True).items():
        group = None
        for slot in slots(record):
            if group is None:
                group = file.create_group(name, track_order=True)
            role = "output" if slot.role == "output" else "input"
            group[f"{role}_{len([key for key in group if key.startswith(role)])}"] = array(slot.tensor)


def _hierarchy(file: Any, run: Run) -> None:
    number = 0
    for record in run.records:
        if record.kind == "Module":
            continue
        number += 1
        for slot in slots(record):
            role = "output" if slot.role == "output" else "input"
            argument = {"output": "result", "input": "arg"}.get(slot.role, slot.path)
            path = f"/{_spelled(record)}/{number}/{role}/{argument}"
            path += f"/{argument}_{slot.path}" if slot.role != "input_kwargs" else ""
            _dataset(file, path.replace(".", "_"), slot.tensor)


def _dataset(file: Any, path: str, tensor: Tensor) -> None:
    values = tensor.values
    data = values.view("i1") if tensor.dtype == "bool" else values
    dataset = file.create_dataset(path, data=data)
    strides = [step // values.itemsize for step in values.strides]
    kind = "float32" if tensor.dtype == "bfloat16" else tensor.dtype
    for key, number in (("DeviceType", 10), ("DataType", CODES[kind]), ("FormatType", 3), ("Type", 0)):
        dataset.attrs.create(key, number, dtype="<i4")
    dataset.attrs.create("Stride", np.asarray(strides, "<i8"), dtype="<i8")
