"""Dumps of msprobe's layout, record by record, so that a call and what a device made of it can be told freely."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from npucmp import replay
from npucmp.model import ReplayedOutput


class Dump:
    """Records in order; `folder` holds them once `write` was called."""

    def __init__(self, folder: Path, framework: str = "pytorch") -> None:
        self.folder, self.framework = folder, framework
        self.data: dict[str, Any] = {}
        self.arrays: dict[str, Any] = {}

    def add(self, name: str, args: Any = (), outputs: Any = (), kwargs: Any = None) -> Dump:
        """A record; arrays become tensors, plain values what msprobe makes of them, dicts stand as they are."""
        is_forward = ".forward" in name
        record = {"input_args" if is_forward else "input": self._list(f"{name}.input", args)}
        if is_forward:
            named = (kwargs or {}).items()
            record["input_kwargs"] = {key: self._leaf(f"{name}.input.{key}", one) for key, one in named}
        self.data[name] = {**record, "output": self._list(f"{name}.output", outputs)}
        return self

    def _list(self, name: str, values: Any) -> list[Any]:
        return [self._leaf(f"{name}.{at}", one) for at, one in enumerate(values)]

    def _leaf(self, name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            self.arrays[f"{name}.npy"] = value
            kind = "torch.Tensor" if self.framework == "pytorch" else "mindspore.Tensor"
            return {"type": kind, "dtype": f"torch.{value.dtype}", "shape": list(value.shape),
                    "data_name": f"{name}.npy"}  # fmt: skip
        if isinstance(value, (list, tuple)):
            return self._list(name, value)
        if value is None or isinstance(value, dict):
            return value
        return {"type": type(value).__name__, "value": value}

    def write(self) -> Path:
        folder = self.folder / "step0" / "rank0"
        (folder / "dump_tensor_data").mkdir(parents=True)
        top = {"task": "tensor", "level": "L1", "framework": self.framework, "data": self.data}
        (folder / "dump.json").write_text(json.dumps(top))
        for name, array in self.arrays.items():
            np.save(folder / "dump_tensor_data" / name, array)
        return self.folder

    def rows(self, **options: Any) -> list[ReplayedOutput]:
        """What a replay makes of it."""
        return [*replay(self.write(), jobs=1, **options).rows]

    def row(self, **options: Any) -> ReplayedOutput:
        (found,) = self.rows(**options)
        return found


def pair(folder: Path, target: Any, golden: Any) -> list[Path]:
    """Two dumps of the same records: (name, args, outputs, keywords)."""
    folders = []
    for side, records in (("target", target), ("golden", golden)):
        dump = Dump(folder / side)
        for record in records:
            dump.add(*record)
        folders.append(dump.write())
    return folders
