"""Dumps in the form of msprobe (PyTorch or MindSpore's Cells) and of MindSpore's kernels."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.composed.arrangements import PAD
from tests.corpus.composed.dialects import FUNCTIONS, module_of
from tests.corpus.composed.forward import Forward
from tests.corpus.composed.values import Array, Meta, Record, Value, Weight
from tests.corpus.trace import Tensor
from tests.corpus.writers.mindspore import DTYPES
from tests.corpus.writers.msprobe import MINDSPORE, Group, npy, pt, statistics
from tests.corpus.writers.naming import escaped

TIME = 1_767_225_600_000_000  # µs


class Leaf(NamedTuple):
    """A tensor that a dump holds: its slot, its values, what it shows, and the row numbers of its tokens."""

    slot: str
    values: Array
    dtype: str
    item: Any
    rows: Array


class Entry(NamedTuple):
    """A record of a step and rank by its name: arguments as a tree of leaves and plain values."""

    name: str
    record: Record
    inputs: list[Any]
    keywords: dict[str, Any]
    outputs: list[Any]


class Dump:
    """The entries of each step and rank of a side."""

    def __init__(self, network: str, forward: Forward) -> None:
        self.network, self.forward, self.style = network, forward, forward.style
        self.arrangement, self.requests = forward.arrangement, forward.requests
        self._known: dict[Any, Array] = {}
        self._kept: list[Any] = []

    def entries(self, step: int, rank: int, inputs: bool = True) -> Iterator[Entry]:
        """The records of a step and rank, in the order of execution; `inputs`: with what they read."""
        counts: Counter[str] = Counter()
        for record in self.forward.records:
            if self.style.names == "kernels" and record.operator == "module":
                continue
            name = self._name(record, counts)
            read = self._arguments(record) if inputs else []
            named: Mapping[str, Any] = record.keywords if inputs else {}
            if inputs and record.operator in ("all_reduce", "all_gather", "reduce_scatter"):
                named = {"group": Group(range(self.arrangement.ranks))}
            yield Entry(
                name,
                record,
                [self._item(item, f"input.{at}", step, rank) for at, item in enumerate(read)],
                {key: self._item(item, f"input.{key}", step, rank) for key, item in named.items()},
                [self._item(item, f"output.{at}", step, rank) for at, item in enumerate(record.outputs)],
            )

    def names(self, places: Sequence[str]) -> set[str]:
        """The names of the records that cover one of these places."""
        counts: Counter[str] = Counter()
        named = set()
        for record in self.forward.records:
            if self.style.names == "kernels" and record.operator == "module":
                continue
            name = self._name(record, counts)
            if {*record.covers} & {*places}:
                named.add(escaped(name) if self.style.names == "kernels" else name)
        return named

    def _arguments(self, record: Record) -> list[Any]:
        inputs = [*record.inputs]
        if record.operator in ("all_gather", "reduce_scatter") and self.style.names != "kernels":
            inputs.insert(0, record.outputs[0]._replace(parts=[0 * part for part in record.outputs[0].parts]))
        return inputs

    def _name(self, record: Record, counts: Counter[str]) -> str:
        names = self.style.names
        if record.operator == "module":
            path, kind = module_of(names, self.network, record.place)
            return f"{'Cell' if names == 'mindformers' else 'Module'}.{path}.{kind}.forward.0"
        spelled = FUNCTIONS[record.operator]
        if names == "kernels":
            path, kind = module_of(names, self.network, record.place)
            parts = path.split(".")
            stem = "/".join(["Default", "network-Net", *parts[:-1], f"{parts[-1]}-{kind}", spelled[2]])
            counts[stem] += 1
            return f"{stem}-op{counts[stem] - 1}"
        word = spelled[1 if names == "mindformers" else 0]
        counts[word] += 1
        return f"{word}.{counts[word] - 1}.forward"

    # values of a step and rank

    def _item(self, item: Any, slot: str, step: int, rank: int) -> Any:
        if isinstance(item, list):
            return [self._item(inner, f"{slot}.{at}", step, rank) for at, inner in enumerate(item)]
        if not isinstance(item, (Value, Weight, Meta)):
            return item
        own = rank if self.arrangement.tp > 1 else 0
        rows = self._rows(item, step, rank)
        if isinstance(item, Weight):
            return Leaf(slot, item.parts[own], self.forward.dtype, item, rows[:0])
        if isinstance(item, Meta):
            return self._meta(item.kind, slot, step, rank)
        part = rank if item.spread == "part" or self.arrangement.tp == 1 else 0
        key = (id(item.parts[own]), item.heads, item.spread, step, part)
        if key not in self._known:
            self._kept.append(item.parts[own])  # its identity stays its own
            self._known[key] = np.ascontiguousarray(self._shown(item.parts[own][rows], item.heads))
        values = self._known[key]
        is_float = values.dtype.kind == "f"
        return Leaf(slot, values, self.forward.dtype if is_float else str(values.dtype), item, rows)

    def _rows(self, item: Any, step: int, rank: int) -> Array:
        if isinstance(item, Value) and item.spread == "part":
            return np.array_split(self.arrangement.rows(step, 0).reshape(-1), self.arrangement.tp)[rank]
        if isinstance(item, Value) and item.spread == "all":
            return np.concatenate(self.arrangement.steps[step])
        rows = self.arrangement.rows(step, rank)
        return rows.reshape(-1) if self.style.names == "kernels" else rows

    def _shown(self, values: Array, heads: int) -> Array:
        if not heads:
            return values
        split = values.reshape(*values.shape[:-1], heads, -1)
        return split.swapaxes(1, 2) if split.ndim == 4 else split

    def _meta(self, kind: str, slot: str, step: int, rank: int) -> Any:
        requests = self.requests
        rows = self.arrangement.rows(step, rank)
        real = requests.real[rows]
        if kind == "ids":
            return Leaf(slot, np.where(real, requests.ids[rows], PAD), "int64", Meta(kind), rows)
        if kind == "positions":
            is_left = self.arrangement.is_left(requests)
            values = np.where(real, requests.positions[rows], 1) if is_left else requests.positions[rows]
            return Leaf(slot, values, "int64", Meta(kind), rows)
        if kind in ("attention_mask", "causal", "masked"):
            if rows.ndim == 1:
                return None
            if kind == "attention_mask":
                return Leaf(slot, real.astype(np.int64), "int64", Meta(kind), rows)
            sees = np.tril(np.ones((rows.shape[1],) * 2, bool)) & real[:, None, None, :]
            sees |= ~sees.any(-1, keepdims=True)
            return Leaf(slot, sees if kind == "causal" else ~sees, "bool", Meta(kind), rows)
        starts = [0, *(np.nonzero(np.diff(requests.requests[rows]))[0] + 1).tolist(), len(rows)]
        if kind == "actual_seq_qlen":
            return starts[1:]
        return Leaf(slot, np.array(starts, np.int32), "int32", Meta(kind), rows)


def write(folder: Path, dump: Dump, level: str = "mix") -> None:
    """All steps and ranks of a side."""
    files: dict[tuple[int, str], bytes] = {}
    for step in range(len(dump.arrangement.steps)):
        for rank in range(dump.arrangement.ranks):
            entries = [*dump.entries(step, rank)]
            if dump.style.names == "kernels":
                _write_kernels(folder, entries, step, rank)
                continue
            own = f"rank{rank}" if dump.arrangement.ranks > 1 else "rank"
            _write_msprobe(folder / f"step{step}" / own, entries, dump.style.names == "mindformers", level, files)
    if dump.style.names == "kernels":
        for rank in range(dump.arrangement.ranks):
            order = [entry.name for entry in dump.entries(0, rank)]
            place = folder / f"rank_{rank}" / "execution_order"
            place.mkdir(parents=True)
            text = "\n".join(["NodeExecutionOrder-FullNameWithScope", *order, ""])
            (place / "ms_execution_order_graph_0.csv").write_text(text)


def _write_msprobe(
    place: Path, entries: list[Entry], is_mindspore: bool, level: str, files: dict[tuple[int, str], bytes]
) -> None:
    folder = place / "dump_tensor_data"
    folder.mkdir(parents=True)

    def told(item: Any, name: str) -> Any:
        if isinstance(item, list):
            return [told(inner, name) for inner in item]
        if isinstance(item, Group):
            return {"type": "torch.ProcessGroup", "group_ranks": [*item], "group_id": f"group_{len(item)}"}
        if item is None:
            return None
        if not isinstance(item, Leaf):
            return {"type": type(item).__name__, "value": item}
        tensor = Tensor(item.values, item.dtype, 0)
        ending = "npy" if is_mindspore else "pt"
        key = (id(item.values), item.dtype)
        content = files.get(key) or (npy(tensor) if is_mindspore else pt(tensor))
        if not isinstance(item.item, Meta):  # an array that lives as long as the dump
            files[key] = content
        file = f"{name}.{item.slot}.{ending}"
        folder.joinpath(file).write_bytes(content)
        return {
            "type": "mindspore.Tensor" if is_mindspore else "torch.Tensor",
            "dtype": MINDSPORE[item.dtype] if is_mindspore else f"torch.{item.dtype}",
            "shape": [*item.values.shape], **statistics(tensor), "requires_grad": False, "data_name": file,
        }  # fmt: skip

    data = {
        entry.name: {
            "input_args": [told(item, entry.name) for item in entry.inputs],
            "input_kwargs": {key: told(item, entry.name) for key, item in entry.keywords.items()},
            "output": [told(item, entry.name) for item in entry.outputs],
        }
        for entry in entries
    }
    top = {"task": "tensor", "level": level, "framework": "mindspore" if is_mindspore else "pytorch",
           "dump_data_dir": "dump_tensor_data", "data": data}  # fmt: skip
    place.joinpath("dump.json").write_text(json.dumps(top))
    place.joinpath("stack.json").write_text("{}")
    place.joinpath("construct.json").write_text(json.dumps(_parents(entries)))


def _parents(entries: list[Entry]) -> dict[str, Optional[str]]:
    """The module in which each record ran."""
    modules = {
        entry.name.split(".", 1)[1].rsplit(".", 3)[0]: entry.name
        for entry in entries
        if entry.record.operator == "module"
    }
    places = {entry.record.place: entry.name for entry in entries if entry.record.operator == "module"}
    parents: dict[str, Optional[str]] = {}
    for entry in entries:
        if entry.record.operator != "module":
            parents[entry.name] = places.get(entry.record.place)
            continue
        path = entry.name.split(".", 1)[1].rsplit(".", 3)[0].rpartition(".")[0]
        while path and path not in modules:
            path = path.rpartition(".")[0]
        parents[entry.name] = modules.get(path)
    return parents


def _write_kernels(folder: Path, entries: list[Entry], step: int, rank: int) -> None:
    place = folder / f"rank_{rank}" / "Net" / "0" / str(step)
    place.mkdir(parents=True)
    time = TIME + step * 10_000_000
    for entry in entries:
        kind = entry.name.rpartition("/")[2].partition("-")[0]
        for role, items in (("input", [*entry.inputs, *entry.keywords.values()]), ("output", entry.outputs)):
            leaves = [leaf for leaf in items if isinstance(leaf, Leaf)]
            for slot, leaf in enumerate(leaves):
                time += 110
                word = DTYPES[leaf.dtype][0]
                file = f"{kind}.{escaped(entry.name)}.0.0.{time}.{role}.{slot}.DefaultFormat.{word}.npy"
                place.joinpath(file).write_bytes(npy(Tensor(leaf.values, leaf.dtype, 0)))
