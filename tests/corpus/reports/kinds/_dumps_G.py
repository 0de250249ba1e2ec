"""Small msprobe dumps of values, checksums or statistics, from operators that a generator lists in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tests.synthetic import with_checksums, write_run

Array = np.ndarray
TASKS = "tensor", "md5", "statistics"
STORED = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


class Call(NamedTuple):
    """An operator: its name, the tensors and arguments that it reads, and the tensors that it writes."""

    name: str
    reads: list[Any]
    writes: list[Array]
    keywords: dict[str, Any] = {}


def rounded(values: Array, dtype: str) -> Array:
    """Return values rounded to a type, as float32."""
    return values.astype(np.float32).astype(STORED[dtype]).astype(np.float32)


def write(folder: Path, calls: list[Call], task: str, dtype: str = "float32", step: int = 0) -> None:
    """Write one step of a run; `dtype` is the recorded type of the float32 tensors of a dump of statistics."""
    if task == "statistics":
        place = Path(folder, f"step{step}", "rank")
        place.mkdir(parents=True)
        records = {}
        for call in calls:
            backward = ".backward" in call.name
            records[call.name] = {
                "input" if backward else "input_args": [_figures(value, dtype) for value in call.reads],
                **({} if backward else {"input_kwargs": {k: _figures(v, dtype) for k, v in call.keywords.items()}}),
                "output": [_figures(value, dtype) for value in call.writes],
            }
        head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
        Path(place, "dump.json").write_text(json.dumps({**head, "data": records}))
        return
    operators = {call.name: {"in": call.reads, "out": call.writes, "kwargs": call.keywords} for call in calls}
    write_run(folder, operators, step)
    if task == "md5":
        with_checksums(folder)


def _figures(value: Any, dtype: str) -> Any:
    if not isinstance(value, np.ndarray):
        return {"type": type(value).__name__, "value": value}
    kind = dtype if value.dtype == np.float32 else str(value.dtype)
    wide = value.astype(np.float64)
    figures = wide.max(), wide.min(), wide.mean(), np.sqrt(np.square(wide).sum())
    record = {"type": "torch.Tensor", "dtype": f"torch.{kind}", "shape": list(value.shape)}
    return {**record, **dict(zip(("Max", "Min", "Mean", "Norm"), map(float, np.float32(figures))))}


def linear(name: str, x: Array, weight: Array) -> Call:
    """Return a product as torch records it."""
    return Call(name, [x, weight], [(x.astype(np.float64) @ weight.T.astype(np.float64)).astype(np.float32)])


def relu(name: str, x: Array) -> Call:
    return Call(name, [x], [np.maximum(x, 0)])


def layers(random: np.random.Generator, width: int, count: int, x: Array) -> list[Call]:
    """Return a few products with relu, numbered from 0."""
    calls: list[Call] = []
    for number in range(count):
        weight = (random.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
        calls.append(linear(f"Functional.linear.{number}.forward", x, weight))
        calls.append(relu(f"Functional.relu.{number}.forward", calls[-1].writes[0]))
        x = calls[-1].writes[0]
    return calls
