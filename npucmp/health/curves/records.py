"""Records of a log, names and numbers line by line, and the curves made of them.

A record without a step has the step of the record before. If no record has one, records are numbered. Steps that
restart in each epoch are made continuous.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Iterable, Mapping, Optional

from npucmp.errors import DumpError
from npucmp.health.curves.curve import Curve, Log

Record = Mapping[str, float]

STEPS = ("step", "global_step", "iteration", "iter", "it", "steps", "iterations", "batch")
EPOCHS = ("epoch", "epochs")
CLOCKS = ("time", "timestamp", "wall_time", "walltime", "_timestamp", "_runtime", "date", "relative")
LARGEST = 1 << 53  # limit of a step; float64 is exact below it
MANY = 1000  # most curves of a log


def log_of(path: str, records: Iterable[Record], notes: tuple[str, ...] = ()) -> Log:
    """Return the curves of records. Raise DumpError if there are none."""
    numbered = _numbered([record for record in records if record])
    columns: dict[str, tuple[list[int], list[float]]] = {}
    for step, record in numbered:
        for name, value in record.items():
            if _word(name) not in (*STEPS, *EPOCHS, *CLOCKS):
                steps, values = columns.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
        if len(columns) > MANY:
            raise DumpError(path, f"holds more than {MANY} curves: it is not a training log")
    curves, again = {}, 0
    for name, (steps, values) in columns.items():
        curves[name], twice = Curve.of(name, steps, values)
        again = max(again, twice)
    if not curves:
        raise DumpError(
            path, 'holds no curve: neither a number after a name, as in "loss: 2.31", nor a column of numbers'
        )
    if again:
        notes = (*notes, f"{path}: {again:,} steps were logged repeatedly (a resumed run?); the last value counts")
    return Log(path, curves, notes)


def _numbered(records: list[Record]) -> list[tuple[int, Record]]:
    """Return records with steps. A record without a step has that of the record before; if no record has a step, its
    index."""
    own = [_whole_number(record, STEPS) for record in records]
    if all(step is None for step in own):
        return [*enumerate(records)]
    epochs = [_whole_number(record, EPOCHS) for record in records]
    step, epoch, places = 0, 0, []
    for mine, its in zip(own, epochs):
        step, epoch = step if mine is None else mine, epoch if its is None else its
        places.append((epoch, step))
    counted = [place for place, mine in zip(places, own) if mine is not None]
    if any(b[0] > a[0] and b[1] <= a[1] for a, b in zip(counted, counted[1:])):
        steps = [step for _, step in counted]
        each = max(steps) + (min(steps) == 0)
        places = [(epoch, (epoch - counted[0][0]) * each + step) for epoch, step in places]
    return [(step, record) for (_, step), record in zip(places, records)]


def _whole_number(record: Record, names: tuple[str, ...]) -> Optional[int]:
    """The integer under the first of these names that exists; None if it is missing or not an integer."""
    words = {_word(name): value for name, value in record.items()}
    value = next((words[name] for name in names if name in words), None)
    return int(value) if value is not None and abs(value) < LARGEST and value == int(value) else None


@lru_cache(maxsize=4096)
def _word(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())
