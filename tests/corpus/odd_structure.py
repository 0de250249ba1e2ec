"""Disturb the structure of a pair of dumps: operators, tensors, shapes, types, order and files; for odd_values.py."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from pathlib import Path
from typing import Any, Callable

import numpy as np

Tree = dict[str, Any]
TYPES = (
    "torch.float32",
    "torch.bfloat16",
    "torch.float16",
    "torch.int64",
    "torch.bool",
    "torch.float8_e4m3fn",
    "odd",
    "",
)
NAMES = ("linear", "softmax", "add", "matmul", "layer_norm", "conv2d", "odd name", "copy_", "all_reduce")
PLACES = ("input_args", "input", "output", "input_kwargs", "parameters")
SCALARS: tuple[Any, ...] = (None, {"type": "int", "value": 1}, {"type": "slice", "value": [None, 1, None]}, {}, [], "x")


def disturb(sides: tuple[Path, Path], chance: random.Random) -> list[str]:
    """Disturb one side, or both in the same way; return what was done."""
    seed = chance.random()
    some = chance.choice([sides[:1], sides[1:], sides])
    return [word for side in some for word in _disturb(side, random.Random(seed))]


def _disturb(side: Path, chance: random.Random) -> list[str]:
    files = [side] if side.is_file() else sorted(one for one in side.rglob("*") if one.is_file())
    ranks = sorted(one for one in side.rglob("rank*") if one.is_dir())
    if len(ranks) > 1 and chance.random() < 0.1:
        shutil.rmtree(ranks.pop(chance.randrange(len(ranks))))
        return ["without a rank"]
    trees = [one for one in files if one.name == "dump.json"]
    weights = [one for one in files if one.suffix == ".safetensors"]
    values = [one for one in files if one.suffix in (".npy", ".pt", ".bin", ".safetensors")]
    done = []
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        if trees and chance.random() < 0.7:
            file = chance.choice(trees)
            tree = json.loads(file.read_text())
            done.append(_change(tree["data"], chance))
            _replace(file, json.dumps(tree).encode())
        elif weights and chance.random() < 0.8:
            done.append(_change_weights(chance.choice(weights), chance))
        elif len(values) > 1:
            done.append(chance.choice((_remove, _exchange, _reshape))(values, chance))
            values, weights = ([one for one in some if one.exists()] for some in (values, weights))
        elif others := [one for one in files if one.suffix == ".json" and one.exists() and one.name != "dump.json"]:
            done.append(_remove(others, chance))
    return done


def _replace(file: Path, data: bytes) -> None:
    file.unlink()  # a link may share it
    file.write_bytes(data)


def _remove(files: list[Path], chance: random.Random) -> str:
    file = chance.choice(files)
    file.unlink()
    return f"without {file.name}"


def _exchange(files: list[Path], chance: random.Random) -> str:
    one, other = chance.sample(files, 2)
    first, second = one.read_bytes(), other.read_bytes()
    _replace(one, second)
    _replace(other, first)
    return f"{one.name} and {other.name} exchanged"


def _reshape(files: list[Path], chance: random.Random) -> str:
    arrays = [one for one in files if one.suffix == ".npy"]
    if not arrays:
        return _exchange(files, chance)
    file = chance.choice(arrays)
    values = np.load(file)
    changes: list[Callable[[Any], Any]] = [
        np.ravel, np.transpose, np.atleast_3d, lambda one: one[..., :0], lambda one: one[:1], lambda one: one[None],
        lambda one: one.astype(np.float16), lambda one: one.astype(np.int8), lambda one: np.float64(0.5),
    ]  # fmt: skip
    file.unlink()
    with np.errstate(all="ignore"):
        np.save(file, chance.choice(changes)(np.atleast_1d(values)))
    return f"{file.name} in another shape or type"


def _change_weights(file: Path, chance: random.Random) -> str:
    """Change the tensors in the header of safetensors."""
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    tree: Tree = json.loads(data[8:end])
    names = [name for name in tree if name != "__metadata__"]
    if not names:
        return "nothing"
    name, other = chance.choice(names), chance.choice(names)
    way = chance.randrange(5)
    if way == 0:
        del tree[name]
    elif way == 1:
        tree[name], tree[other] = tree[other], tree[name]
    elif way == 2:
        tree[chance.choice(("x", f"model.{name}", name.replace("0", "1"), name.replace("weight", "bias")))] = tree.pop(
            name
        )
    elif way == 3:
        tree[name]["shape"] = tree[name]["shape"][::-1]
    else:
        tree[name]["shape"] = [math.prod(tree[name]["shape"]), 1]
    head = json.dumps(tree).encode()
    _replace(file, len(head).to_bytes(8, "little") + head + data[end:])
    return f"{name} changed ({way})"


def _change(data: Tree, chance: random.Random) -> str:
    """Change the operators of dump.json, or a tensor of one."""
    names = list(data)
    if not names:
        return "nothing"
    name = chance.choice(names)
    way = chance.randrange(9)
    if way == 0:
        del data[name]
        return f"without {name}"
    if way == 1:
        other = chance.choice(names)
        data[name], data[other] = data[other], data[name]
        return f"{name} and {other} exchanged"
    if way == 2:
        data[f"{name.rpartition('.')[0]}.{chance.randrange(99)}.forward"] = data[name]
        return f"{name} twice"
    if way in (3, 4):
        if way == 3:
            chance.shuffle(names)
        new = re.sub(r"^(\w+)\.\w+", lambda found: f"{found[1]}.{chance.choice(NAMES)}", name)
        items = [(new if one == name and way == 4 else one, data[one]) for one in names]
        data.clear()
        data.update(items)
        return f"{name} is {new}" if way == 4 else "another order"
    return _change_tensor(name, data[name], chance)


def _change_tensor(name: str, record: Any, chance: random.Random) -> str:
    places = [place for place in PLACES if isinstance(record, dict) and record.get(place)]
    if not places:
        return "nothing"
    place = chance.choice(places)
    held = record[place]
    keys: list[Any] = [*range(len(held))] if isinstance(held, list) else [*held]
    key = chance.choice(keys)
    tensor = held[key]
    way = chance.randrange(8)
    if way == 0:
        del held[key]
    elif way == 1:
        held[key] = chance.choice(SCALARS)
    elif way == 2:
        record[place] = chance.choice(SCALARS)
    elif way == 3 and isinstance(held, list):
        held.append(tensor)
    elif isinstance(tensor, dict) and isinstance(tensor.get("shape"), list):
        shape = tensor["shape"]
        if way == 4:
            tensor["dtype"] = chance.choice(TYPES)
        elif way == 5:
            tensor.pop(chance.choice([*tensor]))
        else:
            tensor["shape"] = chance.choice(
                [
                    shape[::-1],
                    shape[:-1],
                    [*shape, 1],
                    [0, *shape],
                    [1 << 40, 1 << 40],
                    [-1],
                    [1.5],
                    [math.prod(shape)],
                    "2x3",
                ]
            )
    return f"{name} {place} {key}"
