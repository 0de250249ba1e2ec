"""One record → the files of its case, computed by numpy. Only child processes import this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from npucmp.dump.context import ReadContext
from npucmp.recompute.arguments import Arguments, Refused, arguments_of
from npucmp.recompute.case import Tensor, Type, as_npy, files, unit_of
from npucmp.recompute.numpy_rows import computed
from npucmp.recompute.stored import read
from npucmp.recompute.table import Row
from npucmp.recompute.task import Settings, Task


def write(task: Task, row: Row, context: ReadContext, settings: Settings, folder: Path) -> None:
    """Write the files of a forward call into a folder that is there and empty; case.py lists them.

    Raises Refused for a call that numpy cannot compute, and what the readers raise.
    """
    work, exact = computed(task, context, settings)
    read_slots = {one.slot: one for one in task.operator.tensors if one.slot.startswith("input")}
    names = {slot: f"input_{number}" for number, slot in enumerate(read_slots)}
    arrays = {names[slot]: as_npy(read(one, context), one.dtype) for slot, one in read_slots.items()}
    outputs: list[dict[str, Any]] = []
    for at, tensor in work.recorded.items():
        if at >= len(exact) or exact[at] is None or not exact[at].size:
            continue
        number = len(outputs)
        expected, actual = f"expected_{number}", f"actual_{number}"
        arrays[expected] = exact[at].reshape(tensor.shape)
        arrays[actual] = as_npy(work.values[at].reshape(tensor.shape), tensor.dtype)
        outputs.append({"slot": tensor.slot, "dtype": tensor.dtype, "at": at, "turned": False,
                        "unit": unit_of(tensor.dtype), "expected": expected, "actual": actual})  # fmt: skip
    if not outputs:
        raise Refused("no output of it can be told by values")
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    args, kwargs = arguments_of(task.call, row, lambda slot: Tensor(names[slot]), Type)
    types = {names[slot]: one.dtype for slot, one in read_slots.items()}
    facts = {"operator": task.operator.name, "treated": work.treated, "rows": None, "outputs": outputs,
             "tensors": types, "leaves": [], "given": [], "saved": []}  # fmt: skip
    for name, text in files(row, Arguments(args, kwargs), False, facts).items():
        (folder / name).write_text(text, encoding="utf-8")
