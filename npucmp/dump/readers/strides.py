"""Arithmetic on (shape, strides), both in elements, strides never negative. No numpy."""

from __future__ import annotations

from collections.abc import Sequence

Dims = tuple[int, ...]


def c_strides(shape: Sequence[int]) -> Dims:
    """Return the strides of a C-contiguous tensor: the last index is the fastest."""
    strides, step = [], 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def fortran_strides(shape: Sequence[int]) -> Dims:
    """Return the strides of a Fortran-contiguous tensor: the first index is the fastest."""
    return c_strides(shape[::-1])[::-1]


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last one of a view, inclusive; 0 for an empty view."""
    if 0 in shape:
        return 0
    return 1 + sum((dim - 1) * stride for dim, stride in zip(shape, strides))


def merge_dimensions(shape: Sequence[int], strides: Sequence[int]) -> tuple[Dims, Dims]:
    """Return shape and strides of the same elements in the same order with as few dimensions as possible; () if 0-d.

    A dimension of size 1 is dropped; neighbours merge if the outer stride is one full run of the inner dimension.
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
    """Return the strides in the form of Payload: empty for a C-contiguous tensor."""
    if 0 in shape or tuple(strides) == c_strides(shape) or merge_dimensions(shape, strides)[1] in ((), (1,)):
        return ()
    return tuple(strides)
