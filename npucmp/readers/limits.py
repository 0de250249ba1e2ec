"""How much a file may ask for. Checked before anything is allocated or read.

The numbers are far above what real dumps need and far below what hurts: a header is a few hundred bytes, a
file of torch.save has about ten members, its pickle about forty opcodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npucmp.errors import DumpError


@dataclass(frozen=True)
class Limits:
    """One reader call's budget; sizes in bytes. tensor_bytes bounds the logical size, expanded views included."""

    header_bytes: int = 1 << 20
    npy_header_bytes: int = 1 << 16
    members: int = 10_000
    pickle_bytes: int = 4 << 20
    pickle_opcodes: int = 100_000
    pickle_depth: int = 64
    protobuf_fields: int = 100_000
    text_bytes: int = 16 << 20
    ndim: int = 64
    tensor_bytes: int = 1 << 44


DEFAULT = Limits()


def payload_bytes(path: object, shape: Sequence[object], itemsize: int, limits: Limits = DEFAULT) -> int:
    """Bytes of a C-contiguous tensor, in Python integers: numpy would wrap around or try to allocate."""
    if len(shape) > limits.ndim:
        raise DumpError(path, f"{len(shape)} dimensions, more than {limits.ndim}")
    size = itemsize
    for dim in shape:
        if not isinstance(dim, int) or isinstance(dim, bool):
            raise DumpError(path, f"a dimension is not an integer but {type(dim).__name__}")
        if dim < 0:
            raise DumpError(path, "a dimension is negative")
        if dim > limits.tensor_bytes:
            raise DumpError(path, f"a dimension is larger than {limits.tensor_bytes}")
        size *= dim
    if size > limits.tensor_bytes:
        raise DumpError(path, f"a tensor of more than {limits.tensor_bytes} bytes")
    return size
