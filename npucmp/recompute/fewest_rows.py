"""The fewest rows of a record that show its fault. Only child processes import this."""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array
from npucmp.model import ReplayVerdict
from npucmp.recompute.arguments import RefusedRecord
from npucmp.recompute.computation import MORE, compute_operator
from npucmp.recompute.replayed_rows import replay_rows
from npucmp.recompute.row_blocks import BLOCK, RowSplit, split_of, task_of_rows
from npucmp.recompute.task import ReplaySettings, Task


def fewest_rows(task: Task, context: ReadContext, settings: ReplaySettings) -> Optional[tuple[Task, list[int], int]]:
    """Return the record of the fewest rows that are GUILTY by themselves, in order of decreasing error, with their
    numbers and the number of all rows; None if rows depend on each other, or if only all rows together are GUILTY."""
    split = split_of(task)
    if split is None:
        return None
    order = np.argsort(-_row_errors(task, split, context, settings), kind="stable")

    def of_rows(count: int) -> Task:
        ranges = [(int(row), int(row) + 1) for row in np.sort(order[:count])]
        return task_of_rows(task, split, ranges, context)

    def is_guilty(count: int) -> bool:
        more = settings._replace(trials=settings.trials * MORE)
        return any(row.verdict is ReplayVerdict.GUILTY for row in replay_rows(of_rows(count), context, more))

    most = 1
    while most < split.rows and not is_guilty(most):
        most *= 2
    if most >= split.rows:
        return None
    least = most // 2  # too few
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if is_guilty(middle) else (middle, most)
    return of_rows(most), [int(row) for row in np.sort(order[:most])], split.rows


def _row_errors(task: Task, split: RowSplit, context: ReadContext, settings: ReplaySettings) -> Array:
    """The error of each row relative to its rms: the maximum over outputs."""
    found = np.zeros(split.rows)
    step = max(1, BLOCK // split.width)
    like = None
    for start in range(0, split.rows, step):
        stop = min(start + step, split.rows)
        block = task_of_rows(task, split, [(start, stop)], context)
        like, exact = compute_operator(block, context, settings, like)
        for at, values in like.values.items():
            if at >= len(exact) or exact[at] is None:
                raise RefusedRecord("a recorded output is not a gradient of this call")
            actual, wide = (np.reshape(one, (stop - start, -1)).astype(np.float64) for one in (values, exact[at]))
            with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
                error = np.abs(actual - wide)
                error[(actual == wide) | ((actual != actual) & (wide != wide))] = 0.0
                size = np.sqrt(np.mean(wide**2, axis=1))
                rows = np.sqrt(np.mean(error**2, axis=1)) / np.where(size > 0, size, 1.0)
            found[start:stop] = np.maximum(found[start:stop], np.nan_to_num(rows, nan=np.inf, posinf=np.inf))
    return found
