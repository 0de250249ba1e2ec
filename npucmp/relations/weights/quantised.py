"""Codes times their scale: a scale of a tensor, of each row, or of blocks of rows and columns.

The size of a block comes from the configuration, else from the shapes: 128 where it fits (DeepSeek's checkpoints), else
the power of two that fits, else an equal division.
"""

from __future__ import annotations

from typing import Optional

from npucmp.dump.readers.strides import c_strides
from npucmp.dump.readers.weight_payloads import scaled
from npucmp.errors import UnsupportedError
from npucmp.model import Payload, TensorRef

_POWERS = 16  # powers of two: chosen: blocks are shorter than 65,536 elements
USUAL = 128  # elements of a block: definition: weight_block_size of DeepSeek-V3


def scaled_matrix(codes: Payload, scale: TensorRef, stated: Optional[tuple[int, int]]) -> Payload:
    """Return codes (rows, columns) or (rows,) times a scale. Raises UnsupportedError for a scale of another shape."""
    found = scale.payload
    if found is None or scale.problem:
        raise UnsupportedError(f"a scale that cannot be read: {scale.problem or 'without values'}")
    if len(codes.shape) != 2:
        raise UnsupportedError(f"codes of shape {list(codes.shape)} with a scale")
    rows, columns = codes.shape
    shape = found.shape
    if all(size == 1 for size in shape):
        grid = found._replace(shape=(1, 1), strides=())
    elif shape in ((rows,), (rows, 1)):
        grid = found._replace(shape=(rows, 1), strides=())
    elif len(shape) == 2:
        grid = found
    else:
        raise UnsupportedError(f"a scale of shape {list(shape)} of codes of shape {list(codes.shape)}")
    if found.strides and grid.shape != shape:
        raise UnsupportedError(f"a strided scale of shape {list(shape)}")
    block = tuple(
        block_of(size, count, one) for size, count, one in zip((rows, columns), grid.shape, stated or (None, None))
    )
    grid = grid._replace(strides=grid.strides or c_strides(grid.shape))
    return scaled(codes, grid, (block[0], block[1]))


def block_of(size: int, count: int, stated: Optional[int] = None) -> int:
    """Return the length of a block if `size` places have `count` scales. Raises UnsupportedError if none fits."""
    if count == size:
        return 1
    if count == 1:
        return max(1, size)
    powers = [1 << at for at in range(1, _POWERS)]
    for length in (stated, USUAL, *powers, size // count if count and size % count == 0 else None):
        if length and -(-size // length) == count:
            return length
    raise UnsupportedError(f"{count} scales of {size} places")
