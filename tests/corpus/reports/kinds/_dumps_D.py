"""A small msprobe writer and numpy layers with their gradients, for cases about records of backward passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.corpus.trace import Tensor
from tests.corpus.writers.msprobe import MINDSPORE, npy, pt, statistics

FORMATS = ("pt", "pt", "npy", "statistics")
Records = "dict[str, dict[str, Any]]"


class Typed(NamedTuple):
    """Values and the type in which they are stored."""

    values: np.ndarray
    dtype: str = "float32"


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values rounded to a type, as float32."""
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    wide = np.array(values, np.float32, order="C")
    if dtype == "float32":
        return wide
    bits = wide.view(np.uint32)
    up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)


def write(folder: Path, records: dict[str, dict[str, Any]], form: str, level: str = "L1", rank: str = "rank") -> None:
    """Write the records of one step. A record maps the keys of dump.json to lists of Typed, numbers and None, or to
    dicts of them; form: "pt", "npy" (MindSpore) or "statistics"."""
    mint, place = form == "npy", folder / "step0" / rank
    values = form != "statistics"
    (place / "dump_tensor_data" if values else place).mkdir(parents=True)

    def leaf(item: Any, name: str) -> Any:
        if item is None:
            return None
        if not isinstance(item, Typed):
            return {"type": type(item).__name__, "value": item}
        tensor = Tensor(np.array(item.values, order="C"), item.dtype, 0)
        found = {
            "type": "mindspore.Tensor" if mint else "torch.Tensor",
            "dtype": MINDSPORE[item.dtype] if mint else f"torch.{item.dtype}",
            "shape": list(item.values.shape),
            **statistics(tensor),
        }
        if values:
            found["data_name"] = f"{name}.{'npy' if mint else 'pt'}"
            place.joinpath("dump_tensor_data", found["data_name"]).write_bytes(npy(tensor) if mint else pt(tensor))
        return found

    data: dict[str, Any] = {}
    for name, record in records.items():
        data[name] = {}
        for key, items in record.items():
            role = {"input_args": "input", "input_kwargs": "input"}.get(key, key)
            if ".parameters_grad" in name:
                data[name][key] = [leaf(items, f"{name}.{key}")]
            elif isinstance(items, dict):
                data[name][key] = {word: leaf(item, f"{name}.{role}.{word}") for word, item in items.items()}
            else:
                data[name][key] = [leaf(item, f"{name}.{role}.{at}") for at, item in enumerate(items)]
    top = {"task": "tensor" if values else "statistics", "level": level, "dump_data_dir": "dump_tensor_data"}
    top |= {"framework": "mindspore" if mint else "pytorch", "data": data}
    place.joinpath("dump.json").write_text(json.dumps(top), "utf-8")


class Device:
    """Arithmetic of one side: float64 with a relative error of a few float32 roundings, stored in a type."""

    def __init__(self, seed: int, dtype: str = "float32") -> None:
        self._random, self.dtype = np.random.default_rng(seed), dtype

    def store(self, values: np.ndarray, dtype: str = "") -> np.ndarray:
        """Round a result of this device to its type."""
        noise = 1.0 + 4e-8 * self._random.standard_normal(np.shape(values))
        return rounded(values * noise, dtype or self.dtype)


def unary(kind: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An elementwise function and its derivative."""
    x = x.astype(np.float64)
    if kind == "tanh":
        return np.tanh(x), 1.0 - np.tanh(x) ** 2
    sigmoid = 1.0 / (1.0 + np.exp(-x))
    if kind == "sigmoid":
        return sigmoid, sigmoid * (1.0 - sigmoid)
    if kind == "silu":
        return x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid))
    scaled = np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)
    inner = np.tanh(scaled)
    slope = np.sqrt(2.0 / np.pi) * (1.0 + 3 * 0.044715 * x**2)
    return 0.5 * x * (1.0 + inner), 0.5 * (1.0 + inner) + 0.5 * x * (1.0 - inner**2) * slope


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_gradient(gradient: np.ndarray, y: np.ndarray) -> np.ndarray:
    product = gradient.astype(np.float64) * y
    return product - y * product.sum(-1, keepdims=True)
