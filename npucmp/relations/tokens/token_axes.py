"""The axes of tokens of a tensor: (batch, sequence), (sequence, batch), one axis of packed tokens, perhaps after heads.

A run has one shape of tokens, that of most of its activations: (3, 7) for tensors of shape (3, 7, 16), (18,) for
(18, 16). A token of a tensor stands in a lane at a place. A lane is a request of a batch, or all of a packed run.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple, Optional

from npucmp.dump.readers.strides import c_strides
from npucmp.model import Run, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import op_type_of, reads_heads_first
from npucmp.model.roles import is_activation

Dims = tuple[int, ...]
FEWEST = 0.2  # share of activations: chosen: attention has many by head, a network of images hardly any of rows
_LAYOUTS = {"BNSD": True, "BSND": False}  # arguments: definition: of torch_npu and MindSpore
_MOST_AXES = 2  # axes: definition: batch and sequence


class TokenShape(NamedTuple):
    """The shape of the tokens of one run. `is_turned`: the sequence stands before the batch. `behind_heads`: whether
    the sequence stands behind the heads, as the layout of attention says; None if no record says it."""

    sizes: Dims
    is_turned: bool = False
    behind_heads: Optional[bool] = None

    @property
    def size(self) -> int:
        return math.prod(self.sizes)

    @property
    def has_batch(self) -> bool:
        """Whether tokens have two axes, none of which has length 1."""
        return len(self.sizes) == _MOST_AXES and min(self.sizes) > 1

    @property
    def lanes(self) -> int:
        return self.sizes[1 if self.is_turned else 0] if self.has_batch else 1

    @property
    def places(self) -> int:
        return self.size // max(1, self.lanes)


class TokenAxes(NamedTuple):
    """The tokens of a tensor: numbers of lanes and places, their strides in elements, and the shape and strides of the
    values of a token."""

    lanes: int
    places: int
    lane_stride: int
    place_stride: int
    rest: Dims
    rest_strides: Dims

    @property
    def width(self) -> int:
        """The number of values of a token."""
        return math.prod(self.rest)


def token_shape(run: Run, ranks: int = 1) -> Optional[TokenShape]:
    """The shape of tokens of most activations of a run; None if few have such a shape, as in a network of images. If
    `ranks` of a side share packed tokens between gathered activations, it is the shape of the gathered ones."""
    every = sum(is_float(tensor) and is_activation(tensor) and len(tensor.shape) > 1
                for operator in run.operators for tensor in operator.tensors)  # fmt: skip
    shapes = [
        tensor.shape[:-1]
        for operator in run.operators
        for tensor in operator.tensors
        if is_float(tensor) and is_activation(tensor) and 1 < len(tensor.shape) <= 1 + _MOST_AXES
    ]
    found = Counter(shape for shape in shapes if 0 not in shape)
    best = max(found, key=lambda shape: (found[shape], len(shape)), default=())
    if not found or found[best] < FEWEST * every:
        return None
    gathered = (ranks * best[0],)
    sizes = gathered if len(best) == 1 and found[gathered] >= FEWEST * every else best
    return TokenShape(sizes, behind_heads=_is_behind_heads(run))


def _is_behind_heads(run: Run) -> Optional[bool]:
    """Whether the sequence stands behind the heads in the tensors that attention reads; None if no record says it."""
    for operator in run.operators:
        layouts = {
            _LAYOUTS[value] for value in operator.arguments.values() if isinstance(value, str) and value in _LAYOUTS
        }
        if reads_heads_first(operator.op_type):
            layouts.add(True)  # (batch, heads, sequence, width), by its signature
        if len(layouts) == 1 and op_type_of(operator).name == "attention":
            return layouts.pop()
    return None


def is_float(tensor: TensorRef) -> bool:
    kind = lookup(tensor.dtype)
    return kind is not None and kind.kind == "f"


def token_axes(shape: Dims, strides: Dims, tokens: TokenShape) -> Optional[TokenAxes]:
    """The tokens of a tensor of this shape; None if it has no axes of tokens. `strides` may be () for C order."""
    strides = strides or c_strides(shape)
    lead = tokens.sizes
    places = _of_one_axis(shape) if len(lead) == 1 else ((0, 1), (0, 2))
    found = [axes for axes in dict.fromkeys(places) if _fits(shape, axes, lead)]
    if len(found) > 1 and len(shape) > len(lead) + 1:  # as many heads as tokens
        if tokens.behind_heads is None:
            return None
        found = found[-1:] if tokens.behind_heads else found
    if found:
        return _axes(shape, strides, found[0], tokens)
    if len(lead) == 1 or not shape:
        return None
    if shape[0] == tokens.size:
        return _axes((*lead, *shape[1:]), (lead[1] * strides[0], strides[0], *strides[1:]), (0, 1), tokens)
    return token_axes(shape[1:], strides[1:], tokens) if shape[:2] == (1, tokens.size) else None


def _of_one_axis(shape: Dims) -> tuple[tuple[int, ...], ...]:
    """The axes that may be that of packed tokens: the first, one behind axes of length 1, one behind the heads."""
    ones = next((at for at, size in enumerate(shape) if size != 1), len(shape))
    return ((0,), (ones,), (ones + 1,)) if len(shape) > ones + 2 else ((0,), (ones,))


def _fits(shape: Dims, axes: tuple[int, ...], lead: Dims) -> bool:
    # (batch, heads, sequence, width) has four axes; (batch, x, sequence) may be anything
    if axes == (0, 2) and len(shape) != 4:
        return False
    return all(at < len(shape) and shape[at] == size for at, size in zip(axes, lead))


def _axes(shape: Dims, strides: Dims, axes: tuple[int, ...], tokens: TokenShape) -> TokenAxes:
    rest = [
        at for at in range(len(shape)) if at not in axes and not (len(axes) == 1 and at < axes[0] and shape[at] == 1)
    ]
    own, steps = [shape[at] for at in rest], [strides[at] for at in rest]
    if tokens.has_batch:
        lane, place = axes[::-1] if tokens.is_turned else axes
        return TokenAxes(shape[lane], shape[place], strides[lane], strides[place], tuple(own), tuple(steps))
    long = next((at for at in axes if shape[at] != 1), axes[-1])
    return TokenAxes(1, shape[long], 0, strides[long], tuple(own), tuple(steps))
