"""Writers and roundings for small dumps: nodes of ONNX, kernels of MindSpore, and calls of msprobe with files of torch.

Arrays are float64 or float32; `kind` is the type of a run. numpy files have no bfloat16, so there its values are
float32.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.corpus.writers.msprobe import pt

BITS = {"float16": 11, "bfloat16": 8, "float32": 24}
FORMATS = "onnx", "mindspore", "msprobe"
CALLS = {
    "Add": "Tensor.__add__", "Mul": "Torch.mul", "Sub": "Torch.sub", "MatMul": "Torch.matmul",
    "Gelu": "Functional.gelu", "SiLU": "Functional.silu", "Sigmoid": "Torch.sigmoid", "Tanh": "Torch.tanh",
    "Exp": "Torch.exp",
    "Softplus": "Functional.softplus",
}  # fmt: skip


def rounded(x: Any, kind: str, how: str = "nearest") -> np.ndarray:
    """Round to a type, to nearest or to one side; the values stay float64."""
    x = np.asarray(x, np.float64)
    if kind == "float32":
        return x.astype(np.float32).astype(np.float64)
    least = 2.0**-24 if kind == "float16" else 2.0**-133
    unit = np.maximum(np.ldexp(1.0, np.frexp(x)[1] - BITS[kind]), least)
    steps = x / unit
    return {"nearest": np.rint, "zero": np.trunc, "up": np.ceil, "down": np.floor}[how](steps) * unit


class Dump:
    """A dump of one run that is written operator by operator."""

    def __init__(self, folder: Path, form: str, kind: str) -> None:
        self.folder, self.form, self.kind, self.clock = folder, form, kind, 1789000000000000
        self.records: dict[str, Any] = {}
        self.count: dict[str, int] = {}
        place = {"onnx": ".", "mindspore": "rank_0/net/0/0", "msprobe": "step0/rank0"}[form]
        self.place = folder / place
        (self.place / ("dump_tensor_data" if form == "msprobe" else ".")).mkdir(parents=True)

    def op(self, op_type: str, inputs: list[np.ndarray], output: np.ndarray, **arguments: Any) -> np.ndarray:
        number = self.count[op_type] = self.count.get(op_type, -1) + 1
        if self.form == "msprobe":
            name = f"{CALLS[op_type]}.{number}.forward"
            self.records[name] = {
                "input_args": [self._record(f"{name}.input.{at}", x) for at, x in enumerate(inputs)],
                "input_kwargs": {key: {"type": type(x).__name__, "value": x} for key, x in arguments.items()},
                "output": [self._record(f"{name}.output.0", output)],
            }
            return output
        name = f"{op_type}_{number}"
        for role, arrays in (("input", inputs), ("output", [output])):
            for at, x in enumerate(arrays):
                self.clock += 7
                file = f"{'input_' * (role == 'input')}{name}.{at}.{self.clock}.npy"
                if self.form == "mindspore":
                    words = "Float16" if self.kind == "float16" else "Float32"
                    file = f"{op_type}.{name}.0.0.{self.clock}.{role}.{at}.DefaultFormat.{words}.npy"
                np.save(self.place / file, x.astype(np.float16 if self.kind == "float16" else np.float32))
        return output

    def name(self, op_type: str, number: int) -> str:
        """A pattern of the name of an operator."""
        return rf"{CALLS[op_type]}\.{number}\b" if self.form == "msprobe" else rf"\b{op_type}_{number}\b"

    def close(self) -> None:
        if self.form == "msprobe":
            heads = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": "dump_tensor_data"}
            (self.place / "dump.json").write_text(json.dumps({**heads, "data": self.records}))

    def _record(self, name: str, x: np.ndarray) -> dict[str, Any]:
        tensor: Any = SimpleNamespace(dtype=self.kind, values=x.astype(np.float32))
        (self.place / f"dump_tensor_data/{name}.pt").write_bytes(pt(tensor))
        figures = {"Max": x.max(), "Min": x.min(), "Mean": x.mean(), "Norm": np.sqrt((x * x).sum())}
        head = {"type": "torch.Tensor", "dtype": f"torch.{self.kind}", "shape": list(x.shape), "requires_grad": False}
        return {**head, **{key: float(value) for key, value in figures.items()}, "data_name": f"{name}.pt"}
