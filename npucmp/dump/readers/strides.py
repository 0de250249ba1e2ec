"""Arithmetic on (shape, strides), both in elements, strides never negative. No numpy."""

from __future__ import annotations

from collections.abc import Sequence

Dims = tuple[int, ...]


def c_strides(shape: Sequence[int]) -> Dims:
    """Strides of a C-contiguous tensor: the last index runs fastest."""
    strides, step = [], 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def fortran_strides(shape: Sequence[int]) -> Dims:
    """Strides of a Fortran-contiguous tensor: the first index runs fastest."""
    return c_strides(shape[::-1])[::-1]


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one of a view, both included; 0 for an empty one."""
    if 0 in shape:
        return 0
    return 1 + sum((dim - 1) * stride for dim, stride in zip(shape, strides))


def joined(shape: Sequence[int], strides: Sequence[int]) -> tuple[Dims, Dims]:
    """The same elements in the same order with as few dimensions as possible; a 0-d tensor has none left.

    A dimension of size 1 goes; neighbours merge when the outer step is one full run of the inner one.
    """
    dims: list[int] = []
    steps: list[int] = []
    for dim, stride in zip(shape, strides):
        if dim == 1:
            continue
        if dims and steps[-1] == stride * dim:
            dims[-1] *= dim
            steps[-1] = stride
        else:
            dims.append(dim)
            steps.append(stride)
    return tuple(dims), tuple(steps)


def compact(shape: Sequence[int], strides: Sequence[int]) -> Dims:
    """The strides as Payload wants them: empty for a C-contiguous tensor."""
    if 0 in shape or tuple(strides) == c_strides(shape) or joined(shape, strides)[1] in ((), (1,)):
        return ()
    return tuple(strides)
