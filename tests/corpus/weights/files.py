"""Files of checkpoints: safetensors with an index, torch.save of a state dict or of Megatron's file, npz, distcp.

A stored tensor is (values in float32 or codes, name of its type).
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

import ml_dtypes
import numpy as np

from tests.corpus.writers import msprobe

SAFE = {
    "float32": "F32",
    "int32": "I32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float64": "F64",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
}
NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64,
         "int8": np.int8, "int32": np.int32, "int64": np.int64, "float8_e4m3fn": ml_dtypes.float8_e4m3fn}  # fmt: skip
TORCH = {"float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "float64": "Double", "int8": "Char",
         "int32": "Int", "int64": "Long"}  # fmt: skip


class Stored(NamedTuple):
    """A tensor of a checkpoint: its values and the type in which a file holds them."""

    values: np.ndarray
    dtype: str = "float32"

    @property
    def raw(self) -> bytes:
        with np.errstate(invalid="ignore"):
            return np.ascontiguousarray(self.values).astype(NUMPY[self.dtype]).tobytes()

    def like(self, values: np.ndarray) -> Stored:
        return Stored(values, self.dtype)


Tensors = Mapping[str, Stored]


def safetensors(path: Path, tensors: Tensors) -> None:
    """One file."""
    header, data, at = {}, [], 0
    for name, one in tensors.items():
        raw = one.raw
        header[name] = {"dtype": SAFE[one.dtype], "shape": [*one.values.shape], "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def sharded(folder: Path, tensors: Tensors, files: int) -> None:
    """Several files and their index."""
    names = [*tensors]
    index = {}
    for at in range(files):
        file = f"model-{at + 1:05}-of-{files:05}.safetensors"
        own = names[at * len(names) // files : (at + 1) * len(names) // files]
        safetensors(folder / file, {name: tensors[name] for name in own})
        index.update(dict.fromkeys(own, file))
    folder.joinpath("model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def torch_save(path: Path, tensors: Tensors, megatron: dict[str, Any] | None = None, more: bytes = b"N") -> None:
    """A state dict; `megatron`: below the key "model", beside the arguments and `more`, which is pickled."""
    state, members = _state_dict(tensors, 0)
    if megatron is not None:
        state = _dictionary({"args": _namespace(megatron), "model": state, "rng_state": more})
    path.write_bytes(_archive(state, members))


def torch_nested(path: Path, states: Mapping[str, Tensors]) -> None:
    """State dicts below keys, as the chunks of an interleaved pipeline, which Megatron saves below model0, model1 …"""
    entries, members = {}, []
    for name, tensors in states.items():
        entries[name], own = _state_dict(tensors, len(members))
        members += own
    path.write_bytes(_archive(_dictionary(entries), members))


def _state_dict(tensors: Tensors, first: int) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    body = {name: _tensor(one, first + at) for at, (name, one) in enumerate(tensors.items())}
    return _dictionary(body), [
        (f"archive/data/{first + at}".encode(), one.raw) for at, one in enumerate(tensors.values())
    ]


def _dictionary(entries: Mapping[str, bytes]) -> bytes:
    return b"}(" + b"".join(pickled_text(name) + one for name, one in entries.items()) + b"u"


def _archive(state: bytes, members: Sequence[tuple[bytes, bytes]]) -> bytes:
    start = [(b"archive/data.pkl", b"\x80\x02" + state + b"."), (b"archive/byteorder", b"little")]
    return msprobe.stored_zip([*start, *members, (b"archive/version", b"3\n")])


def torch_tensor(one: Stored) -> bytes:
    """torch.save of one tensor, as a chunk of a distributed checkpoint."""
    members = [
        (b"archive/data.pkl", b"\x80\x02" + _tensor(one, 0) + b"."),
        (b"archive/byteorder", b"little"),
        (b"archive/data/0", one.raw),
        (b"archive/version", b"3\n"),
    ]
    return msprobe.stored_zip(members)


def pickled_text(text: str) -> bytes:
    """Text in a pickle."""
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def distributed(folder: Path, chunks: Mapping[str, Sequence[tuple[Sequence[int], Stored]]],
                sizes: Mapping[str, Sequence[int]]) -> None:  # fmt: skip
    """torch.distributed.checkpoint: the chunks of each tensor by their offsets, on one rank after another, and the
    whole sizes that the table states."""
    folder.mkdir(parents=True, exist_ok=True)
    data: dict[str, bytes] = {}
    storage, stated = b"", b""
    for name, own in chunks.items():
        for number, (offsets, one) in enumerate(own):
            file, raw = f"__{number}_0.distcp", torch_tensor(one)
            key = {"fqn": pickled_text(name), "offset": _size(offsets), "index": _integer(number)}
            place = {"relative_path": pickled_text(file), "offset": _integer(len(data.get(file, b"")))}
            place["length"] = _integer(len(raw))
            storage += pickled_object("MetadataIndex", key) + pickled_object("_StorageInfo", place)
            data[file] = data.get(file, b"") + raw
    for name, size in sizes.items():
        stated += pickled_text(name) + pickled_object("TensorStorageMetadata", {"size": _size(size)})
    table = {"state_dict_metadata": b"}(" + stated + b"u", "storage_data": b"}(" + storage + b"u"}
    (folder / ".metadata").write_bytes(b"\x80\x02" + pickled_object("Metadata", table) + b".")
    for file, raw in data.items():
        (folder / file).write_bytes(raw)


def pickled_object(name: str, state: Mapping[str, bytes]) -> bytes:
    """An object of a class of torch.distributed.checkpoint with this state, in a pickle."""
    return f"ctorch.distributed.checkpoint.metadata\n{name}\n".encode() + b")\x81" + _dictionary(state) + b"b"


def _size(values: Sequence[int]) -> bytes:
    return b"ctorch\nSize\n" + _integers(values) + b"\x85R"


def _namespace(values: dict[str, Any]) -> bytes:
    return b"cargparse\nNamespace\n)\x81" + _dictionary({name: _integer(one) for name, one in values.items()}) + b"b"


def _integer(value: int) -> bytes:
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little")
    return b"\x8b" + struct.pack("<I", len(raw)) + raw  # LONG4


def _integers(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_integer, values)) + b"t"


def _tensor(one: Stored, number: int) -> bytes:
    shape = one.values.shape
    strides = tuple(int(np.prod(shape[at + 1 :])) for at in range(len(shape)))
    kind = f"ctorch\n{TORCH[one.dtype]}Storage\n".encode()
    place = pickled_text(str(number)) + pickled_text("cpu") + b"J" + struct.pack("<i", one.values.size)
    storage = b"(" + pickled_text("storage") + kind + place + b"tQ"
    rest = b"K\x00" + _integers(shape) + _integers(strides) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + rest + b"tR"


def npz(path: Path, tensors: Tensors) -> None:
    """numpy.savez, which has no bfloat16: its values are stored as float32."""
    own = {
        name: Stored(one.values, "float32" if one.dtype == "bfloat16" else one.dtype) for name, one in tensors.items()
    }
    np.savez(path, **{name: one.values.astype(NUMPY[one.dtype]) for name, one in own.items()})
