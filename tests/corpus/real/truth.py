"""Where two dumps of one network first differ, bit for bit: confirms that a planted fault is where the table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Optional

import torch

STATISTICS = ("Max", "Min", "Mean", "Norm", "md5")


class Place(NamedTuple):
    """The first operator that differs. enclosing: modules that it runs in, and whose inputs differ too."""

    step: int
    rank: Optional[int]
    operator: str
    inputs_agree: bool
    enclosing: tuple[str, ...] = ()


def _tensors(item: Any, slot: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The tensors of a record, whatever they are nested in, each with where it stands."""
    if isinstance(item, dict):
        if item.get("type") == "torch.Tensor":
            yield slot, item
            return
        for key, value in item.items():
            yield from _tensors(value, f"{slot}.{key}")
    elif isinstance(item, list):
        for place, value in enumerate(item):
            yield from _tensors(value, f"{slot}.{place}")


def _equal(target: Path, golden: Path, one: dict[str, Any], other: dict[str, Any]) -> bool:
    if one.get("shape") != other.get("shape") or one.get("dtype") != other.get("dtype"):
        return False
    if "data_name" not in one or "data_name" not in other:
        return all(str(one.get(key)) == str(other.get(key)) for key in STATISTICS)
    left, right = (
        torch.load(folder / "dump_tensor_data" / item["data_name"]).detach().contiguous()
        for folder, item in ((target, one), (golden, other))
    )
    return left.dtype == right.dtype and left.shape == right.shape and _bytes(left) == _bytes(right)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _differing(target: Path, golden: Path, one: dict[str, Any], other: dict[str, Any], side: str) -> bool:
    """Whether any tensor on that side of a record differs; parameters are read."""

    def chosen(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
        keys = [key for key in record if key.startswith("output") == (side == "output")]
        return {slot: item for key in keys for slot, item in _tensors(record[key], key)}

    left, right = chosen(one), chosen(other)
    return any(slot in right and not _equal(target, golden, item, right[slot]) for slot, item in left.items())


def _records(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "dump.json").read_text())["data"])


def _first_of_rank(target: Path, golden: Path, expected: str) -> Optional[tuple[str, bool, tuple[str, ...]]]:
    """Of one rank of one step: the operator, whether its inputs agree, and the modules that are entered before it."""
    ours, theirs = _records(target), _records(golden)
    enclosing: list[str] = []
    shifted = {name.split(".")[1] for name in set(ours) ^ set(theirs)}  # a call less: the indices behind it moved
    for name, record in ours.items():
        if name.split(".")[1] in shifted or name.endswith("parameters_grad"):
            continue
        reads = _differing(target, golden, record, theirs[name], "input")
        if name.startswith("Module.") and name != expected:
            if reads and ".forward." in name:
                enclosing.append(name)
            continue  # a module's record stands where it begins, what it wrote belongs behind what runs in it
        if reads or _differing(target, golden, record, theirs[name], "output"):
            return name, not reads, tuple(enclosing)
    return None


def first_difference(target: Path, golden: Path, expected: str, rank: Optional[int] = None) -> Optional[Place]:
    """The first place, step by step; of all ranks, or of the given one. None if nothing differs."""
    for step in sorted(target.glob("step*"), key=lambda path: int(path.name[4:])):
        for ours in sorted(step.iterdir()):
            number = int(ours.name[4:]) if ours.name.startswith("rank") else None
            if rank is not None and number != rank:
                continue
            theirs = golden / step.name / ours.name if number is not None else next((golden / step.name).iterdir())
            found = _first_of_rank(ours, theirs, expected)
            if found is not None:
                return Place(int(step.name[4:]), number, *found)
    return None


def difference(target: Path, golden: Path) -> tuple[int, int]:
    """How many tensors differ in bits, of how many that both have."""
    total = differing = 0
    for step in sorted(target.glob("step*")):
        for ours in sorted(step.iterdir()):
            rank = ours.name if ours.name.startswith("rank") else next((golden / step.name).iterdir()).name
            theirs = golden / step.name / rank
            left, right = (dict(_tensors(_records(folder))) for folder in (ours, theirs))
            both = [slot for slot in left if slot in right]
            total += len(both)
            differing += sum(not _equal(ours, theirs, left[slot], right[slot]) for slot in both)
    return differing, total


def operators(folder: Path) -> set[str]:
    """Names of everything recorded, in all steps and ranks."""
    return {name for path in folder.glob("step*/*/dump.json") for name in _records(path.parent)}
