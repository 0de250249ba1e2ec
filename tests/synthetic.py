"""Writes small msprobe dumps from numpy arrays, so that a test can plant what it wants."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np


def tensor(array, name):
    """The record of one tensor as msprobe writes it for MindSpore, whose payloads are .npy."""
    return {
        "type": "mindspore.Tensor",
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "data_name": f"{name}.npy",
    }


def write_run(folder, operators, step=0, rank=None, **top):
    """operators: {name: {"in": [arrays or scalars], "out": [arrays], "kwargs": {name: array or scalar},
    "param": {name: array}}} in execution order."""
    place = Path(folder, f"step{step}", "proc1" if rank is None else f"rank{rank}")
    data = place / "dump_tensor_data"
    data.mkdir(parents=True)
    records = {}
    for name, operator in operators.items():
        backward = ".backward" in name
        record = {
            "input" if backward else "input_args": [
                _leaf(data, name, "input", i, x) for i, x in enumerate(operator.get("in", []))
            ],
            "output": [_leaf(data, name, "output", i, x) for i, x in enumerate(operator.get("out", []))],
        }
        if not backward:
            given = operator.get("kwargs", {})
            record["input_kwargs"] = {key: _leaf(data, name, "input", key, x) for key, x in given.items()}
        if "param" in operator:
            record["parameters"] = {
                key: _leaf(data, name, "parameters", key, x) for key, x in operator["param"].items()
            }
        records[name] = record
    dump = {"task": "tensor", "level": "L1", "framework": "mindspore", "dump_data_dir": "x", **top, "data": records}
    place.joinpath("dump.json").write_text(json.dumps(dump, indent=1))
    return Path(folder)


def with_statistics(folder, alone=False):
    """The same dump with statistics, in float32 as msprobe has them; alone: without the values."""
    for file in Path(folder).rglob("dump.json"):
        dump = json.loads(file.read_text())
        for leaf in [leaf for record in dump["data"].values() for leaf in _all_leaves(record)]:
            x = np.load(file.parent / "dump_tensor_data" / leaf["data_name"])
            figures = x.max(), x.min(), x.mean(), np.sqrt(np.square(x).sum())
            leaf.update(zip(("Max", "Min", "Mean", "Norm"), map(float, figures)))
            if alone:
                del leaf["data_name"]
        file.write_text(json.dumps({**dump, "task": "statistics" if alone else "tensor"}))
    return Path(folder)


def with_checksums(folder):
    """The same dump without its values, but with their CRC-32, as msprobe's summary_mode md5 has it."""
    for file in Path(folder).rglob("dump.json"):
        dump = json.loads(file.read_text())
        for leaf in (leaf for record in dump["data"].values() for key in record for leaf in record[key]):
            if "data_name" in leaf:
                values = np.load(file.parent / "dump_tensor_data" / leaf.pop("data_name"))
                leaf["md5"] = f"{zlib.crc32(values.tobytes()):08x}"
        file.write_text(json.dumps({**dump, "task": "statistics"}))
    return Path(folder)


def _leaf(data, name, role, key, value):
    if isinstance(value, list):
        return [_leaf(data, name, role, f"{key}.{i}", one) for i, one in enumerate(value)]
    if not isinstance(value, np.ndarray):
        return {"type": type(value).__name__, "value": value}
    file = f"{name}.{role}.{key}"
    np.save(data / f"{file}.npy", value)
    return tensor(value, file)


def chain(faults=(), noise=0.0, seed=0, steps=6, dtype=np.float32, nan_at=None):
    """A chain of operators y = tanh(x w): each reads the output of the one before.

    faults: {index: factor on that output}; noise: relative rounding-like noise on every output.
    """
    random, faults = np.random.default_rng(7), dict(faults)
    jitter = np.random.default_rng(seed)
    x = random.standard_normal((8, 16)).astype(dtype)
    operators = {}
    for i in range(steps):
        weight = random.standard_normal((16, 16)).astype(dtype) / 4
        y = np.tanh(x.astype(np.float64) @ weight.astype(np.float64))
        y = (y * faults.get(i, 1.0) * (1 + noise * jitter.standard_normal(y.shape))).astype(dtype)
        if nan_at == i:
            y[1, 2] = np.nan
        operators[f"Functional.linear.{i}.forward"] = {"in": [x, weight, 1e-5], "out": [y]}
        x = y
    return operators


def xor_of(values):
    """The XOR of the 64-bit words of an array, as msprobe's summary_mode xor spells it."""
    data = np.ascontiguousarray(values).tobytes()
    words = np.frombuffer(data + bytes(-len(data) % 8), "<u8")
    return f"0x{int(np.bitwise_xor.reduce(words)):016x}"


def with_xor(folder, figures=False):
    """The same dump with XOR checksums in the place of its values; a 0-d tensor has its value there, as
    mindstudio-probe 26.2 writes it. figures: with the four figures too."""
    for file in Path(folder).rglob("dump.json"):
        dump = json.loads(file.read_text())
        leaves = [leaf for record in dump["data"].values() for key in record for leaf in _leaves_of(record[key])]
        for leaf in leaves:
            values = np.load(file.parent / "dump_tensor_data" / leaf.pop("data_name"))
            leaf["md5"] = xor_of(values) if values.shape else values.item()
            if figures and values.size:
                wide = values.astype(np.float64)
                leaf.update(Max=wide.max(), Min=wide.min(), Mean=wide.mean(), Norm=np.sqrt((wide**2).sum()))
        file.write_text(json.dumps({**dump, "task": "statistics"}))
    return Path(folder)


def _all_leaves(branch):
    """The tensors in a record, at any depth."""
    if isinstance(branch, dict) and "data_name" in branch:
        return [branch]
    below = branch.values() if isinstance(branch, dict) else branch if isinstance(branch, list) else ()
    return [leaf for one in below for leaf in _all_leaves(one)]


def _leaves_of(branch):
    """The tensors below a key of a record."""
    return [leaf for leaf in (branch.values() if isinstance(branch, dict) else branch) if "data_name" in leaf]
