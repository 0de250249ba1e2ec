"""Read checkpoints of torch.distributed.checkpoint: a table of tensors and files of their chunks.

    .metadata       a pickle of Metadata: state_dict_metadata {name: size and chunks}, storage_data {chunk: place}
    __{N}_{M}.distcp  chunks one behind the other, each written by torch.save

A chunk is found by name and offsets. The chunks of a tensor are joined along the axes of their offsets, and have to
fill the size that the table states. A tensor that the table states and no chunk holds is a tensor that cannot be read.
Nothing is executed (opaque_pickle.py); objects other than tensors are not read. Source: torch/distributed/checkpoint
(metadata.py, filesystem.py).
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from typing import Any, Iterator, NamedTuple, Optional, Sequence, Union

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import joined
from npucmp.dump.readers.inert_pickle import PickledTensor, RefusedPickle, unpickle
from npucmp.dump.readers.opaque_pickle import OPAQUE_OPCODES, OpaqueObject
from npucmp.dump.readers.safe_open import FileSlice, open_regular
from npucmp.dump.readers.torch_pt import read_object
from npucmp.dump.readers.weight_payloads import stack_entries
from npucmp.errors import DumpError, UnsupportedError
from npucmp.model import Payload, TensorRef

TABLE = ".metadata"
_BYTES = "table_bytes"  # the limit of the size of the table
_PREFIXES = ("state_dict.", "app.model.")  # of the keys of wrappers that save a model beside an optimizer
_OTHERS = ("optimizer.", "optim.", "app.optim", "rng_state", "opt_param_scheduler", "scheduler.", "chained_")
_STACKED = re.compile(r"\.layers\.(?=[a-z])")


class _Chunk(NamedTuple):
    """A chunk of a tensor: where it begins in the tensor, and its place in a file."""

    offsets: tuple[int, ...]
    path: str
    start: int
    length: int


def distributed_tensors(folder: str, context: ReadContext) -> Iterator[tuple[str, TensorRef]]:
    """Yield the tensors in a folder by name; two keys may have one name. Raises DumpError if the table cannot be
    read."""
    path = os.path.join(folder, TABLE)
    with open_regular(path, context) as file:
        file.limits.require(path, _BYTES, file.size, "has {:,} bytes")
        try:
            value, _ = unpickle(file.read(0, file.size), 0, file.limits, OPAQUE_OPCODES)
        except RefusedPickle as refused:
            raise DumpError(path, str(refused)) from None
    state = value.state if isinstance(value, OpaqueObject) and isinstance(value.state, dict) else {}
    sizes = _stated_sizes(state.get("state_dict_metadata"))
    chunks: dict[str, list[_Chunk]] = {name: [] for name, size in sizes.items() if size is not None}
    for name, chunk in _chunks(state.get("storage_data"), folder, path):
        chunks.setdefault(name, []).append(chunk)
    for name, own in chunks.items():
        if name.startswith(_OTHERS):
            continue
        try:
            one = _tensor(name, own, name in sizes, sizes.get(name), context)
        except (DumpError, ValueError) as error:
            because = getattr(error, "because", str(error))
            one = TensorRef("output:0", "", (), own[0].path if own else path, problem=because, label=name)
        if one is not None:
            yield from _unstacked(_bare(name), one)


def _unstacked(name: str, one: TensorRef) -> Iterator[tuple[str, TensorRef]]:
    """Yield a tensor by name; of the layers of Megatron, which stand along the first axis, one after another."""
    if _STACKED.search(name) is None or one.payload is None or not one.shape:
        yield name, one
        return
    try:
        entries = [*stack_entries(one.payload)]
    except UnsupportedError as error:
        yield name, one._replace(payload=None, problem=str(error))
        return
    for layer, payload in enumerate(entries):
        own = _STACKED.sub(f".layers.{layer}.", name)
        yield own, one._replace(payload=payload, shape=payload.shape, label=own)


def _bare(name: str) -> str:
    """Return a name without the key of the model, unless that is how transformers calls it."""
    prefix = next((one for one in _PREFIXES if name.startswith(one)), "")
    return name[len(prefix) :]


def _stated_sizes(table: object) -> dict[str, Optional[tuple[int, ...]]]:
    """Return the size of each tensor that a table states; None for an object that is no tensor."""
    found: dict[str, Optional[tuple[int, ...]]] = {}
    for name, one in table.items() if isinstance(table, dict) else ():
        size = one.state.get("size") if isinstance(one, OpaqueObject) and isinstance(one.state, dict) else None
        found[str(name)] = None if size is None else _sizes(size)
    return found


def _chunks(storage: object, folder: str, path: str) -> Iterator[tuple[str, _Chunk]]:
    """Yield the name and place of each chunk of a table."""
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


def _tensor(
    name: str, chunks: Sequence[_Chunk], is_stated: bool, size: Optional[tuple[int, ...]], context: ReadContext
) -> Optional[TensorRef]:
    """Return a tensor of its chunks; None for an object that is no tensor. Raises ValueError if they do not fill the
    stated size."""
    parts = [(chunk.offsets, _payload(chunk, context)) for chunk in chunks]
    known = [(offsets or (0,) * len(payload.shape), payload) for offsets, payload in parts if payload is not None]
    if not known and size is None:
        return None
    if not is_stated or len(known) != len(chunks) or not known:
        raise ValueError("the table states no size of it" if known else "no chunk holds it")
    if len({len(axes) for offsets, payload in known for axes in (offsets, payload.shape)}) > 1:
        raise ValueError("chunks of unequal numbers of axes")
    whole = _joined([one for one in known if 0 not in one[1].shape] or known[:1], 0)
    if size is not None and whole.shape != size:
        raise ValueError(f"its chunks have the shape {[*whole.shape]}, the table states {[*size]}")
    return TensorRef("output:0", whole.dtype, whole.shape, chunks[0].path, "torch_pt", label=name, payload=whole)


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
    """Return the chunks of a grid as one payload. Raises ValueError if they do not fill one from its first element."""
    if len(parts[0][0]) == axis:
        if len(parts) > 1:
            raise ValueError("chunks that overlap")
        return parts[0][1]
    rows: dict[int, list[tuple[tuple[int, ...], Payload]]] = defaultdict(list)
    for offsets, payload in parts:
        rows[offsets[axis]].append((offsets, payload))
    pieces: list[Payload] = []
    at = 0
    for start in sorted(rows):
        one = _joined(rows[start], axis + 1)
        if start != at:
            raise ValueError(f"chunks that leave a gap at {at} of axis {axis}")
        shapes = {(*piece.shape[:axis], *piece.shape[axis + 1 :]) for piece in (one, *pieces[:1])}
        if len(shapes) > 1:
            raise ValueError(f"chunks of unequal shapes side by side along axis {axis}")
        at += one.shape[axis]
        pieces.append(one)
    return joined(pieces, axis)
