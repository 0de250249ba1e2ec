"""Small msprobe dumps of values, checksums or statistics, from operators that a generator lists in order."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from types import MappingProxyType
from typing import Any, Iterable, Mapping, NamedTuple

import ml_dtypes
import numpy as np

from tests.corpus.trace import Tensor
from tests.corpus.writers import msprobe

Array = np.ndarray
TASKS = "tensor", "md5", "statistics"
STORED = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


class Call(NamedTuple):
    """An operator: its name, the tensors and arguments that it reads, and the tensors that it writes."""

    name: str
    reads: list[Any]
    writes: list[Array]
    keywords: Mapping[str, Any] = MappingProxyType({})


def rounded(values: Array, dtype: str) -> Array:
    """Return values rounded to a type, as float32."""
    return values.astype(np.float32).astype(STORED[dtype]).astype(np.float32)


def write(
    folder: Path, calls: list[Call], task: str, dtype: str = "float32", step: int = 0, types: Mapping[int, str] = {}
) -> None:
    """Write one step of a PyTorch run of msprobe. `dtype` is the type of float32 arrays, except of those whose id is in
    `types`."""
    place = Path(folder, f"step{step}", "rank")
    data = place / "dump_tensor_data"
    data.mkdir(parents=True)

    def item(value: Any, name: str) -> Any:
        if not isinstance(value, np.ndarray):
            return {"type": type(value).__name__, "value": value}
        kind = types.get(id(value), dtype) if value.dtype == np.float32 else str(value.dtype)
        tensor = Tensor(value, kind, 0)
        record = {"type": "torch.Tensor", "dtype": f"torch.{kind}", "shape": list(value.shape)}
        if task != "tensor":
            more = {"md5": f"{zlib.crc32(msprobe.raw(tensor)):08x}"} if task == "md5" else {}
            return {**record, **msprobe.statistics(tensor), **more}
        Path(data, f"{name}.pt").write_bytes(msprobe.pt(tensor))
        return {**record, "data_name": f"{name}.pt"}

    def items(values: Iterable[Any], name: str) -> list[Any]:
        return [item(value, f"{name}.{number}") for number, value in enumerate(values)]

    records = {}
    for call in calls:
        backward = call.name.endswith("backward")
        record: dict[str, Any] = {
            "input" if backward else "input_args": items(call.reads, f"{call.name}.input"),
            "output": items(call.writes, f"{call.name}.output"),
        }
        if not backward:
            record["input_kwargs"] = {
                key: item(value, f"{call.name}.input.{key}") for key, value in call.keywords.items()
            }
        records[call.name] = record
    kind = "tensor" if task == "tensor" else "statistics"
    head = {
        "task": kind,
        "level": "L1",
        "framework": "pytorch",
        "dump_data_dir": str(data) if task == "tensor" else None,
    }
    Path(place, "dump.json").write_text(json.dumps({**head, "data": records}))


def relu(name: str, x: Array) -> Call:
    return Call(name, [x], [np.maximum(x, 0)])


def layers(random: np.random.Generator, width: int, count: int, x: Array, dtype: str = "float32") -> list[Call]:
    """Return a few products with relu, numbered from 0, as torch records them."""
    calls: list[Call] = []
    for number in range(count):
        weight = rounded(random.standard_normal((width, width)) / np.sqrt(width), dtype)
        product = rounded(x.astype(np.float64) @ weight.T.astype(np.float64), dtype)
        calls.append(Call(f"Functional.linear.{number}.forward", [x, weight], [product]))
        calls.append(relu(f"Functional.relu.{number}.forward", product))
        x = calls[-1].writes[0]
    return calls
