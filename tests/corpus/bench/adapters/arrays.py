"""Reads msprobe's dumps with numpy alone, for adapters of rules that know arrays and no dumps."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Optional

import numpy as np

from tests.corpus.bench.adapters import Accusation

TYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "float64": "<f8", "int64": "<i8", "bool": "|b1"}
FIGURES = ("Max", "Min", "Mean", "Norm")


class Item(NamedTuple):
    """A recorded tensor; values is None where only statistics or a checksum were recorded."""

    operator: str
    slot: str
    shape: tuple[int, ...]
    values: Optional[np.ndarray]
    figures: tuple[Any, ...]
    checksum: str


class Place(NamedTuple):
    """The folders of one step and rank on both sides."""

    step: int
    target: Path
    golden: Path


def places(target: Path, golden: Path) -> Iterator[Place]:
    """Steps and ranks that both have; a golden of one card for every rank."""
    for folder in sorted(target.glob("step*/*"), key=lambda one: (int(one.parent.name[4:]), one.name)):
        there = golden / folder.parent.name
        other = there / folder.name
        if not other.is_dir():
            other = next(iter(sorted(there.iterdir())))
        yield Place(int(folder.parent.name[4:]), folder, other)


def items(folder: Path) -> Iterator[Item]:
    """The tensors of a dump.json, in the order of execution in which it has them."""
    for operator, record in json.loads(folder.joinpath("dump.json").read_text())["data"].items():
        for role, content in record.items():
            yield from _items(folder, operator, role, content)


def _items(folder: Path, operator: str, slot: str, content: Any) -> Iterator[Item]:
    if isinstance(content, list):
        for k, one in enumerate(content):
            yield from _items(folder, operator, f"{slot}.{k}", one)
    elif isinstance(content, dict) and "dtype" in content:
        name = content.get("data_name")
        values = _read(folder / "dump_tensor_data" / name, content) if name else None
        figures = tuple(content.get(key) for key in FIGURES)
        yield Item(operator, slot, tuple(content["shape"]), values, figures, content.get("md5", ""))
    elif isinstance(content, dict) and "type" not in content:
        for key, one in content.items():
            yield from _items(folder, operator, f"{slot}.{key}", one)


def _read(path: Path, content: dict[str, Any]) -> np.ndarray:
    if path.suffix == ".npy":
        return np.asarray(np.load(path, allow_pickle=False), np.float64)
    with zipfile.ZipFile(path) as archive:
        raw = archive.read("archive/data/0")
    dtype = content["dtype"].rpartition(".")[2]
    values = np.frombuffer(raw, TYPES[dtype])
    if dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.reshape(content["shape"]).astype(np.float64)


def first_beyond(target: Path, golden: Path, differ: Callable[[Item, Item], bool]) -> list[Accusation]:
    """Operators of a tensor that differs from the golden's of the same name, slot and shape, in order of execution; of
    several ranks those at the same place of their dumps one after the other."""
    found: list[tuple[int, int, str]] = []
    for place in places(target, golden):
        there = {(one.operator, one.slot): one for one in items(place.golden)}
        for number, one in enumerate(items(place.target)):
            other = there.get((one.operator, one.slot))
            if other is not None and other.shape == one.shape and differ(one, other):
                found.append((place.step, number, one.operator))
    found.sort(key=lambda one: one[:2])
    return list(dict.fromkeys(Accusation(operator, step) for step, _, operator in found))
