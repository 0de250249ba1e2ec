"""Writes dumps of msprobe: tensors, statistics or checksums; levels L1 and mix; of PyTorch or of MindSpore's mint.

    step{N}/rank{M}/dump.json · stack.json · construct.json · dump_tensor_data/{operator}.{input|output}.{n}.{pt|npy}

    .pt   a zip, members stored: archive/data.pkl, archive/byteorder, archive/data/0 (aligned), archive/version
          data.pkl: _rebuild_tensor_v2(storage, offset, shape, strides, False, OrderedDict())

Records as mindstudio-probe 26.2 writes them, without what npucmp does not read: requires_grad, and the statistics that
stand beside values too.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.spelling import SPELLINGS
from tests.corpus.trace import Record, Run, Tensor

STORAGES = {
    "float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage", "float64": "DoubleStorage",
    "int64": "LongStorage", "bool": "BoolStorage", "int32": "IntStorage", "complex64": "ComplexFloatStorage",
}  # fmt: skip
MINDSPORE = {"float32": "Float32", "float16": "Float16", "float64": "Float64", "int64": "Int64", "bool": "Bool"}
MINDSPORE.update({"int32": "Int32", "complex64": "Complex64"})
MINDSPORE["bfloat16"] = "BFloat16"  # its values are stored as float32


class Style(NamedTuple):
    """task: "tensor", "statistics", "md5" or "xor"; level: "L1" or "mix"; mint: as MindSpore's; complete: statistics
    and requires_grad stand beside values too, as msprobe's own compare reads them."""

    task: str = "tensor"
    level: str = "L1"
    mint: bool = False
    complete: bool = False


def write(folder: Path, runs: Sequence[Run], style: Style = Style()) -> None:
    """One dump of all runs."""
    for run in runs:
        place = folder / f"step{run.step}" / ("proc1000" if run.rank is None else f"rank{run.rank}")
        _Writer(place, run, style).write()


def names(run: Run, style: Style = Style()) -> dict[Record, str]:
    """What a dump of this run calls each of its operators."""
    return {record: _name(record, style) for record in run.records}


def _name(record: Record, style: Style) -> str:
    if record.kind == "Module":
        return f"{'Cell' if style.mint else 'Module'}.{record.scope}.{record.class_name}.{record.phase}.{record.call}"
    row = SPELLINGS[record.kind]
    return f"{row.mint if style.mint else row.pytorch}.{record.call}.{record.phase}"


class Group(tuple):  # type: ignore[type-arg]
    """An argument that is a group of ranks."""


class _Writer:
    def __init__(self, place: Path, run: Run, style: Style):
        self.place, self.run, self.style = place, run, style
        self.data = place / "dump_tensor_data"
        self._bytes: dict[Any, bytes] = {}
        self._told: dict[Any, dict[str, Any]] = {}

    def write(self) -> None:
        values = self.style.task == "tensor"
        (self.data if values else self.place).mkdir(parents=True)
        kept = [r for r in self.run.records if r.kind != "Module" or self.style.level == "mix"]
        data = {_name(record, self.style): self._record(record) for record in kept}
        top = {
            "task": "tensor" if values else "statistics",
            "level": self.style.level,
            "framework": "mindspore" if self.style.mint else "pytorch",
            "dump_data_dir": "dump_tensor_data" if values else None,
            "data": data,
        }
        self.place.joinpath("dump.json").write_text(json.dumps(top))
        stacks = {
            str(k): [[_name(r, self.style)], [r.line]] for k, r in enumerate(kept) if r.line and r.phase == "forward"
        }
        self.place.joinpath("stack.json").write_text(json.dumps(stacks))
        self.place.joinpath("construct.json").write_text(json.dumps(self._construct(kept)))

    def _construct(self, kept: list[Record]) -> dict[str, Optional[str]]:
        if self.style.level != "mix":
            return {}
        modules = {(r.scope, r.phase): _name(r, self.style) for r in kept if r.kind == "Module"}
        found = {}
        for r in kept:
            scope = r.scope.rpartition(".")[0] if r.kind == "Module" else r.scope
            while scope and (scope, r.phase) not in modules:
                scope = scope.rpartition(".")[0]
            found[_name(r, self.style)] = modules.get((scope, r.phase))
        return found

    def _record(self, record: Record) -> dict[str, Any]:
        name = _name(record, self.style)
        if record.phase == "parameters_grad":
            return {k.rpartition(".")[2]: [self._item(v, f"{name}.{k}")] for k, v in record.parameters.items()}
        found: dict[str, Any] = {}
        backward = record.phase == "backward"
        if record.given:
            inputs: Sequence[Any] = [list(record.inputs)] if record.kind == "cat" and not backward else record.inputs
            found["input" if backward else "input_args"] = [
                self._item(item, f"{name}.input.{k}") for k, item in enumerate(inputs)
            ]
            if not backward:
                found["input_kwargs"] = {k: self._item(v, f"{name}.input.{k}") for k, v in record.keywords.items()}
        if record.told:
            found["output"] = [self._item(item, f"{name}.output.{k}") for k, item in enumerate(record.outputs)]
        if record.kind == "Module" and not backward:
            found["parameters"] = {
                k.rpartition(".")[2]: self._item(v, f"{name}.parameters.{k.rpartition('.')[2]}")
                for k, v in record.parameters.items()
            }
        return found

    def _item(self, item: Any, name: str) -> Any:
        if item is None:
            return None
        if isinstance(item, Tensor):
            return self._tensor(item, name)
        if isinstance(item, Group):
            return {"type": "torch.ProcessGroup", "group_ranks": [*item], "group_id": f"{zlib.crc32(bytes(item)):08x}"}
        if isinstance(item, (list, tuple)):
            return [self._item(one, f"{name}.{k}") for k, one in enumerate(item)]
        if isinstance(item, np.ndarray):
            item = item.tolist() if item.size < 4 else str(item.shape)
        return {"type": type(item).__name__, "value": item}

    def _tensor(self, tensor: Tensor, name: str) -> dict[str, Any]:
        mint = self.style.mint
        found: dict[str, Any] = {
            "type": "mindspore.Tensor" if mint else "torch.Tensor",
            "dtype": MINDSPORE[tensor.dtype] if mint else f"torch.{tensor.dtype}",
            "shape": list(tensor.values.shape),
        }
        same = (tensor.key, tensor.values.shape, id(tensor.values))
        if self.style.complete:
            found["requires_grad"] = tensor.needs_grad
            if self.style.task == "tensor":
                found.update(self._told.setdefault(same, statistics(tensor)))
        if self.style.task == "tensor":
            found["data_name"] = f"{name}.{'npy' if mint else 'pt'}"
            if same not in self._bytes:
                self._bytes[same] = npy(tensor) if mint else pt(tensor)
            self.data.joinpath(found["data_name"]).write_bytes(self._bytes[same])
            return found
        if same not in self._told:
            self._told[same] = statistics(tensor)
            if self.style.task == "md5":
                self._told[same]["md5"] = f"{zlib.crc32(raw(tensor)):08x}"
            elif self.style.task == "xor":
                self._told[same]["md5"] = xor(raw(tensor))
        return {**found, **self._told[same]}


def statistics(tensor: Tensor) -> dict[str, Any]:
    """Max, Min, Mean and Norm as msprobe records them; None for what it leaves out."""
    values = tensor.values
    if not values.size:
        return {"Max": None, "Min": None, "Mean": None, "Norm": None}
    if tensor.dtype == "complex64":
        return {"Max": None, "Min": None, "Mean": None, "Norm": None}
    if tensor.dtype in ("int64", "int32", "bool"):
        kind: Any = bool if tensor.dtype == "bool" else int
        return {"Max": kind(values.max()), "Min": kind(values.min()), "Mean": None, "Norm": None}
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        figures = wide.max(), wide.min(), wide.mean(), np.sqrt((wide * wide).sum())
        if not values.ndim:
            figures = (figures[0],) * 4
        return dict(zip(("Max", "Min", "Mean", "Norm"), (float(np.float32(f)) for f in figures)))


def xor(content: bytes) -> str:
    """The XOR of 64-bit words, the last one filled up with zeros."""
    words = np.frombuffer(content + bytes(-len(content) % 8), "<u8")
    return f"0x{int(np.bitwise_xor.reduce(words)):016x}"


def raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor in its own type."""
    values = tensor.values
    if tensor.dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype(
        {
            "float16": "<f2", "float32": "<f4", "float64": "<f8", "int64": "<i8", "int32": "<i4", "bool": "|b1",
            "complex64": "<c8",
        }[tensor.dtype]
    ).tobytes()  # fmt: skip


def npy(tensor: Tensor) -> bytes:
    """A .npy file; of bfloat16 the float32 that numpy has for it."""
    buffer = io.BytesIO()
    np.save(buffer, tensor.values.astype(np.float16) if tensor.dtype == "float16" else tensor.values)
    return buffer.getvalue()


def pt(tensor: Tensor) -> bytes:
    """A file of torch.save."""
    return stored_zip(
        [
            (b"archive/data.pkl", b"\x80\x02" + rebuilt(tensor.dtype, tensor.values.shape) + b"."),
            (b"archive/byteorder", b"little"),
            (b"archive/data/0", raw(tensor)),
            (b"archive/version", b"3\n"),
        ]
    )


def stored_zip(members: Sequence[tuple[bytes, bytes]], align: int = 64) -> bytes:
    """A zip file whose members are stored, each aligned as torch.save does it."""
    out, directory = bytearray(), bytearray()
    for name, content in members:
        at = len(out)
        pad = -(at + 30 + len(name) + 4) % align
        extra = b"FB" + struct.pack("<H", pad) + b"Z" * pad if align > 1 else b""
        sizes = struct.pack("<III", zlib.crc32(content), len(content), len(content))
        out += b"PK\x03\x04" + struct.pack("<HHHHH", 0, 0, 0, 0, 33) + sizes
        out += struct.pack("<HH", len(name), len(extra)) + name + extra + content
        directory += b"PK\x01\x02" + struct.pack("<HHHHHH", 0, 0, 0, 0, 0, 33) + sizes
        directory += struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, at) + name
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(out), 0)
    return bytes(out + directory + b"PK\x05\x06" + end)


_HEAD = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n"


def rebuilt(dtype: str, shape: tuple[int, ...], storage: int = 0) -> bytes:
    """The opcodes that rebuild a tensor of the storage of that number."""
    strides = [1]
    for n in reversed(shape[1:]):
        strides.append(strides[-1] * n)
    count = 1
    for n in shape:
        count *= n
    key = str(storage).encode()
    place = b"\nX" + struct.pack("<I", len(key)) + key + b"X\x03\x00\x00\x00cpu" + _number(count) + b"tQK\x00"
    kept = strides[::-1] if shape else []
    numbers = b"(" + b"".join(map(_number, shape)) + b"t(" + b"".join(map(_number, kept)) + b"t"
    return _HEAD + STORAGES[dtype].encode() + place + numbers + b"\x89ccollections\nOrderedDict\n)RtR"


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)
