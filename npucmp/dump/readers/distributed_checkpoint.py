"""Read checkpoints of torch.distributed.checkpoint: a table of tensors and files of their chunks.

    .metadata       a pickle of Metadata: state_dict_metadata {name: size and chunks}, storage_data {chunk: place}
    __{N}_{M}.distcp  chunks one behind the other, each written by torch.save

A chunk is found by name and offsets. The chunks of a tensor are joined along the axes in which their offsets differ.
Nothing is executed (opaque_pickle.py); objects other than tensors are not read. Source: torch/distributed/checkpoint
(metadata.py, filesystem.py).
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from typing import Any, Iterator, Mapping, NamedTuple, Sequence, Union

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import JOIN, joined
from npucmp.dump.readers.inert_pickle import PickledTensor, RefusedPickle, unpickle
from npucmp.dump.readers.opaque_pickle import OPAQUE_OPCODES, OpaqueObject
from npucmp.dump.readers.safe_open import FileSlice, open_regular
from npucmp.dump.readers.torch_pt import read_object
from npucmp.dump.readers.weight_payloads import selected
from npucmp.errors import DumpError
from npucmp.model import Payload, TensorRef

TABLE = ".metadata"
_BYTES = "table_bytes"  # the limit of the size of the table
_PREFIXES = ("model.", "state_dict.", "app.model.")  # of the keys of wrappers that save a model beside an optimizer
_OTHERS = ("optimizer.", "optim.", "rng_state", "opt_param_scheduler", "scheduler.", "chained_")
_STACKED = re.compile(r"\.layers\.(?=[a-z])")


class _Chunk(NamedTuple):
    """A chunk of a tensor: where it begins in the tensor, and its place in a file."""

    offsets: tuple[int, ...]
    path: str
    start: int
    length: int


def distributed_tensors(folder: str, context: ReadContext) -> dict[str, TensorRef]:
    """Return the tensors in a folder by name. Raises DumpError if the table cannot be read."""
    path = os.path.join(folder, TABLE)
    with open_regular(path, context) as file:
        file.limits.require(path, _BYTES, file.size, "has {:,} bytes")
        try:
            value, _ = unpickle(file.read(0, file.size), 0, file.limits, OPAQUE_OPCODES)
        except RefusedPickle as refused:
            raise DumpError(path, str(refused)) from None
    chunks: dict[str, list[_Chunk]] = defaultdict(list)
    for name, chunk in _chunks(value, folder, path):
        chunks[name].append(chunk)
    found = {_bare(name): _tensor(name, own, context) for name, own in chunks.items() if not name.startswith(_OTHERS)}
    return dict(_unstacked({name: one for name, one in found.items() if one is not None}))


def _unstacked(tensors: Mapping[str, TensorRef]) -> Iterator[tuple[str, TensorRef]]:
    """Yield tensors by name; of the layers of Megatron, which stand along the first axis, one after another."""
    for name, one in tensors.items():
        if _STACKED.search(name) is None or one.payload is None or not one.shape:
            yield name, one
            continue
        for layer in range(one.shape[0]):
            payload = _entry(one.payload, layer)
            own = _STACKED.sub(f".layers.{layer}.", name)
            yield own, one._replace(payload=payload, shape=payload.shape, label=own)


def _entry(payload: Payload, at: int) -> Payload:
    """Return the entry of a payload at a place of its first axis, without that axis."""
    if payload.made_by != JOIN:
        return selected(payload, at)
    if payload.axis:
        return joined([_entry(part, at) for part in payload.parts], payload.axis - 1)
    for part in payload.parts:
        if at < part.shape[0]:
            return _entry(part, at)
        at -= part.shape[0]
    raise ValueError("a layer beyond the last chunk")


def _bare(name: str) -> str:
    """Return a name without the key of the model, unless that is how transformers calls it."""
    prefix = next((one for one in _PREFIXES[1:] if name.startswith(one)), "")
    return name[len(prefix) :]


def _chunks(table: object, folder: str, path: str) -> Iterator[tuple[str, _Chunk]]:
    """Yield the name and place of each chunk of a table."""
    state = table.state if isinstance(table, OpaqueObject) else None
    storage = state.get("storage_data") if isinstance(state, dict) else None
    if not isinstance(storage, dict):
        raise DumpError(path, "no table of torch.distributed.checkpoint: it has no storage_data")
    for key, place in storage.items():
        index, where = (one.state if isinstance(one, OpaqueObject) else None for one in (key, place))
        if not isinstance(index, dict) or not isinstance(where, dict):
            continue
        name, file = index.get("fqn"), where.get("relative_path")
        start, length = where.get("offset"), where.get("length")
        if not isinstance(name, str) or not isinstance(file, str) or os.path.basename(file) != file:
            raise DumpError(path, "a chunk without a name, or in another folder")
        if type(start) is not int or type(length) is not int or start < 0 or length < 0:
            raise DumpError(path, f"an impossible place of {name!a:.60}")
        yield name, _Chunk(_sizes(index.get("offset")), os.path.join(folder, file), start, length)


def _sizes(value: object) -> tuple[int, ...]:
    """Return the offsets in a torch.Size; () without one."""
    inner: Any = value.arguments[0] if isinstance(value, OpaqueObject) and value.arguments else value
    if not isinstance(inner, (tuple, list)) or not all(type(one) is int and one >= 0 for one in inner):
        return ()
    return tuple(inner)


def _tensor(name: str, chunks: Sequence[_Chunk], context: ReadContext) -> Union[TensorRef, None]:
    """Return a tensor of its chunks; None for an object that is no tensor."""
    first = chunks[0].path
    try:
        parts = [(chunk.offsets, _payload(chunk, context)) for chunk in chunks]
    except DumpError as error:
        return TensorRef("output:0", "", (), first, "torch_pt", problem=error.because, label=name)
    known = [(offsets, payload) for offsets, payload in parts if payload is not None]
    if not known:
        return None
    try:
        whole = _joined(known, 0)
    except ValueError as error:
        return TensorRef("output:0", "", (), first, "torch_pt", problem=str(error), label=name)
    return TensorRef("output:0", whole.dtype, whole.shape, first, "torch_pt", label=name, payload=whole)


def _payload(chunk: _Chunk, context: ReadContext) -> Union[Payload, None]:
    """Return the payload of a chunk; None if it holds no tensor."""
    with open_regular(chunk.path, context) as file:
        if chunk.start + chunk.length > file.size:
            raise DumpError(chunk.path, f"ended early: {file.size} bytes, a chunk ends at {chunk.start + chunk.length}")
        part: Any = FileSlice(file, chunk.start, chunk.length)
        value, payload_of = read_object(part, OPAQUE_OPCODES)
        if not isinstance(value, PickledTensor):
            return None
        try:
            found = payload_of(value)
        except RefusedPickle as refused:
            raise DumpError(chunk.path, str(refused)) from None
    return found._replace(offset=found.offset + chunk.start)


def _joined(parts: Sequence[tuple[tuple[int, ...], Payload]], axis: int) -> Payload:
    """Return the chunks of a grid as one payload. Raises ValueError if they do not fill one."""
    if len(parts) == 1:
        return parts[0][1]
    if any(len(offsets) <= axis for offsets, _ in parts):
        raise ValueError("chunks that overlap")
    rows: dict[int, list[tuple[tuple[int, ...], Payload]]] = defaultdict(list)
    for offsets, payload in parts:
        rows[offsets[axis]].append((offsets, payload))
    pieces, at = [], 0
    for start in sorted(rows):
        one = _joined(rows[start], axis + 1)
        if start != at:
            raise ValueError(f"chunks that leave a gap at {at} of axis {axis}")
        at += one.shape[axis]
        pieces.append(one)
    return joined(pieces, axis) if len(pieces) > 1 else pieces[0]
