"""Formulas of PyTorch's calls that compute nothing: views, indices, joins, choices. Results are equal to the last bit.

One formula makes their gradients: the call on the numbers of the elements shows where each element came from.
An index outside the tensor is refused here: numpy would raise, or count from the end.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.arguments import RefusedRecord
from npucmp.recompute.call_inputs import (
    CallInputs,
    Node,
    arrays_in,
    axes_of,
    axis,
    is_float,
    map_arrays,
    reduced,
    tensor,
)
from npucmp.recompute.noisy_ops import Steps

PADDED = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def copy_formula(function: Callable[..., Any]) -> Any:
    """Return forward and backward of a call that copies elements of its float tensors, or writes zeros."""

    def backward(m: Steps, g: CallInputs, *args: Any, **kwargs: Any) -> list[Node]:
        """Apply the call to element numbers from 1. A number in the result is the place that was read; 0 is no
        place."""
        read = arrays_in([args, kwargs])
        starts, count = [], 0
        for one in read:
            starts.append(count)
            count += one.size if is_float(one) else 0
        numbers = iter([_numbered(one, at) if is_float(one) else one for one, at in zip(read, starts)])
        again, options = map_arrays([list(args), kwargs], lambda one: next(numbers))
        made = function(m, g, *again, **options)
        results = [*made] if isinstance(made, (list, tuple)) else [made]
        places, gradients = [], []
        for one, dy in zip(results, [*g.gradients, *([None] * len(results))]):
            if dy is None:
                continue
            if dy.size != one.size:
                raise RefusedRecord(f"gradient shape {list(dy.shape)}, not {list(one.shape)}"[:80])
            places.append(np.ravel(one).astype(np.int64))
            gradients.append(np.ravel(dy))
        if not places:
            raise RefusedRecord("the dump has no gradient of its results")
        m.room((count,))
        at, dy = np.concatenate(places), np.concatenate(gradients)
        found = _scattered(m, at, dy, count)
        split = [found[start : start + one.size].reshape(one.shape) if is_float(one) else None
                 for one, start in zip(read, starts)]  # fmt: skip
        return [split, [one for one in split if one is not None]]

    return (lambda m, g, *args, **kwargs: function(m, g, *args, **kwargs)), backward


def _numbered(one: Array, start: int) -> Array:
    return np.arange(start + 1, start + 1 + one.size, dtype=np.float64).reshape(one.shape)


def _scattered(m: Steps, at: Array, dy: Array, count: int) -> Array:
    """Return the value at each of `count` places, numbered from 1. Values at the same place are added."""
    written = at > 0
    at, dy = at[written] - 1, dy[written]
    if at.size and np.bincount(at, minlength=1).max() > 1:
        found: Array = m.contract(lambda one: np.bincount(at, weights=one, minlength=count), dy, coarse=True)
        return found
    made = np.zeros(count, dtype=dy.dtype)
    made[at] = dy
    return made


def identity(m: Steps, g: CallInputs, input: Array, *sizes: Any, **options: Any) -> Any:
    """Return the same elements in the same order, in the recorded shape."""
    x, shape = tensor(input), g.shape()
    if x.size != math.prod(shape):
        raise RefusedRecord(f"the shape {list(x.shape)} does not fit {list(shape)}"[:160])
    return x.reshape(shape)


def reshape(m: Steps, g: CallInputs, input: Array, *sizes: Any, **options: Any) -> Any:
    """The same, for a call that names the shape; one of the sizes may be -1."""
    wanted = sizes[0] if sizes and isinstance(sizes[0], tuple) else sizes
    shape = g.shape()
    if all(isinstance(one, int) for one in wanted) and wanted and (
        len(wanted) != len(shape) or any(one not in (-1, size) for one, size in zip(wanted, shape))
    ):  # fmt: skip
        raise RefusedRecord(f"the shape {list(wanted)} is not the recorded {list(shape)}"[:160])
    return identity(m, g, input)


def permute(m: Steps, g: CallInputs, input: Array, *dims: Any) -> Any:
    argsort = dims[0] if len(dims) == 1 and isinstance(dims[0], tuple) else dims
    axes = [axis(one, input.ndim) for one in argsort]
    if sorted(axes) != [*range(input.ndim)]:
        raise RefusedRecord(f"{list(argsort)} does not permute {input.ndim} axes"[:80])
    return input.transpose(axes)


def transpose(m: Steps, g: CallInputs, input: Array, dim0: int, dim1: int) -> Any:
    return np.swapaxes(input, axis(dim0, input.ndim), axis(dim1, input.ndim))


def matrix_transpose(m: Steps, g: CallInputs, input: Array) -> Any:
    return input.T


def movedim(m: Steps, g: CallInputs, input: Array, source: Any, destination: Any) -> Any:
    return np.moveaxis(input, source, destination)


def expand(m: Steps, g: CallInputs, input: Array, *sizes: Any, implicit: bool = False) -> Any:
    m.room(g.shape())
    return np.broadcast_to(input, g.shape())


def repeat(m: Steps, g: CallInputs, input: Array, *sizes: Any) -> Any:
    times = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple) else sizes
    if not all(isinstance(one, int) and one >= 0 for one in times):
        raise RefusedRecord("invalid numbers of repeats")
    _require(g, m, math.prod(times) * input.size)
    return np.tile(input, times)


def _require(g: CallInputs, m: Steps, size: int) -> None:
    """Raise RefusedRecord if the size of a result differs from the recorded size."""
    if size != math.prod(g.shape()):
        raise RefusedRecord(f"the result has {size} elements, the recorded shape is {list(g.shape())}"[:160])
    m.room(g.shape())


def repeat_interleave(
    m: Steps, g: CallInputs, input: Array, repeats: Any, dim: Any = None, output_size: Any = None
) -> Any:
    if isinstance(repeats, np.ndarray) and repeats.size and repeats.min() < 0:
        raise RefusedRecord("negative repeats")
    x = input.reshape(-1) if dim is None else input
    at = 0 if dim is None else axis(dim, x.ndim)
    times = int(np.sum(repeats)) if isinstance(repeats, np.ndarray) and repeats.size > 1 else x.shape[at] * int(repeats)
    _require(g, m, x.size // max(1, x.shape[at]) * times)
    return np.repeat(x, repeats, axis=at)


def narrow(m: Steps, g: CallInputs, input: Array, dim: int, start: int, length: int) -> Any:
    at = axis(dim, input.ndim)
    start = start + input.shape[at] if start < 0 else start
    if not 0 <= start <= start + length <= input.shape[at]:
        raise RefusedRecord("a slice exceeds the axis")
    return input[(slice(None),) * at + (slice(start, start + length),)]


def select(m: Steps, g: CallInputs, input: Array, dim: int, index: int) -> Any:
    at = axis(dim, input.ndim)
    if not -input.shape[at] <= index < input.shape[at]:
        raise RefusedRecord("an index exceeds the axis")
    return np.take(input, index, axis=at)


def chunks(m: Steps, g: CallInputs, input: Array, chunks: int, dim: int = 0) -> Any:
    at = axis(dim, input.ndim)
    size = -(-input.shape[at] // chunks)
    return _cut(input, at, [*range(size, input.shape[at], size)] if size else [])


def _cut(x: Array, at: int, places: Sequence[int]) -> list[Array]:
    if len(places) > 4096:
        raise RefusedRecord("more than 4096 parts")
    return [*np.split(x, places, axis=at)]


def split(m: Steps, g: CallInputs, input: Array, split_size: Any, dim: int = 0) -> Any:
    at = axis(dim, input.ndim)
    if isinstance(split_size, tuple):
        if sum(split_size) != input.shape[at] or min(split_size, default=0) < 0:
            raise RefusedRecord("parts do not sum to the axis")
        return _cut(input, at, [int(one) for one in np.cumsum(split_size)[:-1]])
    if not isinstance(split_size, int) or split_size < 1:
        raise RefusedRecord("invalid size of parts")
    return _cut(input, at, [*range(split_size, input.shape[at], split_size)])


def unbind(m: Steps, g: CallInputs, input: Array, dim: int = 0) -> Any:
    at = axis(dim, input.ndim)
    if input.shape[at] > 4096:
        raise RefusedRecord("more than 4096 parts")
    return [np.take(input, one, axis=at) for one in range(input.shape[at])]


def roll(m: Steps, g: CallInputs, input: Array, shifts: Any, dims: Any = None) -> Any:
    return np.roll(input, shifts, axis=dims)


def flip(m: Steps, g: CallInputs, input: Array, *dims: Any) -> Any:
    return np.flip(input, dims[0] if len(dims) == 1 else dims)


def tril(m: Steps, g: CallInputs, input: Array, diagonal: int = 0) -> Any:
    return np.tril(input, diagonal)


def triu(m: Steps, g: CallInputs, input: Array, diagonal: int = 0) -> Any:
    return np.triu(input, diagonal)


def _inside(index: Any, size: int) -> Array:
    found = tensor(index, "the index")
    if found.dtype.kind not in "iu" or (found.size and not (found.min() >= 0 and found.max() < size)):
        raise RefusedRecord(f"an index is outside an axis of {size}")
    return found


def gather(m: Steps, g: CallInputs, input: Array, dim: int, index: Array, sparse_grad: bool = False) -> Any:
    at = axis(dim, input.ndim)
    index = _inside(index, input.shape[at])
    if index.ndim != input.ndim:
        raise RefusedRecord("index and input differ in rank")
    cut = tuple(slice(None) if one == at else slice(0, n) for one, n in enumerate(index.shape))
    return np.take_along_axis(input[cut], index, axis=at)


def index_select(m: Steps, g: CallInputs, input: Array, dim: int, index: Array) -> Any:
    at = axis(dim, input.ndim)
    return np.take(input, _inside(index, input.shape[at]).reshape(-1), axis=at)


def embedding(
    m: Steps, g: CallInputs, input: Array, weight: Array, padding_idx: Any = None, max_norm: Any = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    """Return rows of the weight. With max_norm, the call changed the weight before it was recorded."""
    return np.take(weight, _inside(input, weight.shape[0]), axis=0)


def embedding_back(
    m: Steps, g: CallInputs, input: Array, weight: Array, padding_idx: Any = None, max_norm: Any = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> list[Node]:  # fmt: skip
    """Return the gradient. The padding row gets none."""
    if scale_grad_by_freq or sparse:
        raise RefusedRecord("the gradient is sparse or scaled by frequency")
    numbers = np.arange(1, weight.size + 1, dtype=np.int64).reshape(weight.shape)
    if padding_idx is not None:
        numbers[padding_idx] = 0
    at = numbers[_inside(input, weight.shape[0])]
    dy = g.dy
    if dy.size != at.size:
        raise RefusedRecord(f"gradient shape {list(dy.shape)}, not {list(at.shape)}"[:80])
    found = _scattered(m, at.reshape(-1), dy.reshape(-1), weight.size).reshape(weight.shape)
    return [[None, found], [found]]


def item(m: Steps, g: CallInputs, input: Array, index: Any) -> Any:
    """Index by slices, numbers and tensors, which numpy and torch treat alike."""
    indices = index if isinstance(index, tuple) else (index,)
    return input[tuple(one if not isinstance(one, np.ndarray) or one.ndim or one.dtype == bool else int(one)
                       for one in indices)]  # fmt: skip


def concat(m: Steps, g: CallInputs, tensors: Any, dim: int = 0) -> Any:
    if not isinstance(tensors, tuple) or not tensors:
        raise RefusedRecord("its first argument is no list of tensors")
    arrays = [tensor(one) for one in tensors]
    arrays = [one for one in arrays if one.ndim != 1 or one.size] or arrays[:1]  # an empty vector fits any shape
    _require(g, m, sum(one.size for one in arrays))
    return np.concatenate(arrays, axis=axis(dim, arrays[0].ndim))


def stack(m: Steps, g: CallInputs, tensors: Any, dim: int = 0) -> Any:
    if not isinstance(tensors, tuple) or not tensors:
        raise RefusedRecord("its first argument is no list of tensors")
    arrays = [tensor(one) for one in tensors]
    _require(g, m, sum(one.size for one in arrays))
    return np.stack(arrays, axis=axis(dim, arrays[0].ndim + 1))


def padded(m: Steps, g: CallInputs, input: Array, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    sides = pad if isinstance(pad, tuple) else ()
    if not sides or len(sides) % 2 or len(sides) > 2 * input.ndim or not all(isinstance(one, int) for one in sides):
        raise RefusedRecord(f"invalid padding {pad!r:.40}")
    pairs = [(0, 0)] * (input.ndim - len(sides) // 2) + [*zip(sides[::2], sides[1::2])][::-1]
    x = input[tuple(slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(input.shape, pairs))]
    pairs = [(max(0, a), max(0, b)) for a, b in pairs]
    _require(g, m, math.prod(n + a + b for n, (a, b) in zip(x.shape, pairs)))
    options = {"constant_values": value or 0} if mode == "constant" else {}
    if mode not in PADDED:
        raise RefusedRecord(f"unknown padding mode {mode!r:.20}")
    return np.pad(x, pairs, mode=PADDED[mode], **options)  # type: ignore[call-overload]


def padded_back(m: Steps, g: CallInputs, input: Array, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    return copy_formula(padded)[1](m, g, input, pad, mode)


def pixel_shuffle(m: Steps, g: CallInputs, input: Array, upscale_factor: int) -> Any:
    *rest, c, h, w = input.shape
    r = upscale_factor
    if r < 1 or c % (r * r):
        raise RefusedRecord(f"{r} does not divide {c} channels")
    x = input.reshape(*rest, c // (r * r), r, r, h, w)
    n = len(rest)
    return x.transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2).reshape(*rest, c // (r * r), h * r, w * r)


def interpolate(
    m: Steps, g: CallInputs, input: Array, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: Any = None, recompute_scale_factor: Any = None, antialias: bool = False,
) -> Any:  # fmt: skip
    """Interpolate by nearest elements; their places are computed in the type of the input.
    Other modes use weights that devices round differently."""
    if mode not in ("nearest", "nearest-exact"):
        raise RefusedRecord(f"interpolation by {mode!r:.20} requires torch")
    rank, shape = input.ndim - 2, g.shape()
    if size is not None and (size if isinstance(size, tuple) else (size,) * rank) != shape[2:]:
        raise RefusedRecord(f"a result of {size!r:.40}, recorded is {list(shape)}"[:160])
    factors = scale_factor if isinstance(scale_factor, tuple) else (scale_factor,) * rank
    found = input
    for at, (before, after, factor) in enumerate(zip(input.shape[2:], shape[2:], factors)):
        if before == after and input.dtype != np.float32:  # some kernels copy such an axis
            continue
        step = before / after if factor is None or recompute_scale_factor else 1.0 / factor
        places = np.arange(after) + (0.5 if mode == "nearest-exact" else 0.0)
        places = (places.astype(input.dtype) * input.dtype.type(step)) if is_float(input) else places * step
        found = np.take(found, np.minimum(places.astype(np.int64), before - 1), axis=2 + at)
    return found


def one_hot(m: Steps, g: CallInputs, input: Array, num_classes: int = -1) -> Any:
    classes = g.shape()[-1]
    m.room(g.shape())
    return (_inside(input, classes)[..., None] == np.arange(classes)).astype(np.int64)


# sums by index


def index_add(m: Steps, g: CallInputs, input: Array, dim: int, index: Array, source: Array, alpha: float = 1) -> Any:
    at = axis(dim, input.ndim)
    index = _inside(index, input.shape[at]).reshape(-1)

    def added(x: Array, more: Array) -> Array:
        made = np.moveaxis(x, at, 0).copy()
        np.add.at(made, index, np.moveaxis(more, at, 0))
        return np.moveaxis(made, 0, at)

    return m.contract(added, input, source if alpha == 1 else m.mul(source, alpha), coarse=True)


def index_add_back(
    m: Steps, g: CallInputs, input: Array, dim: int, index: Array, source: Array, alpha: float = 1
) -> list[Node]:
    at = axis(dim, input.ndim)
    taken = np.take(g.dy, _inside(index, input.shape[at]).reshape(-1), axis=at)
    taken = taken if alpha == 1 else m.mul(taken, alpha)
    return [[g.dy, None, taken], [g.dy, taken]]


def _scatter_places(input: Array, dim: int, index: Array) -> tuple[Any, ...]:
    """Return the place in the input of each element of a scatter index."""
    at = axis(dim, input.ndim)
    index = _inside(index, input.shape[at])
    places: list[Any] = list(np.ogrid[tuple(slice(n) for n in index.shape)])
    places[at] = index
    return tuple(places)


def scatter_add(m: Steps, g: CallInputs, input: Array, dim: int, index: Array, src: Array) -> Any:
    places, cut = _scatter_places(input, dim, index), tuple(slice(n) for n in index.shape)

    def added(x: Array, more: Array) -> Array:
        made = x.copy()
        np.add.at(made, places, more[cut])
        return np.asarray(made)

    return m.contract(added, input, src, coarse=True)


def scatter_add_back(m: Steps, g: CallInputs, input: Array, dim: int, index: Array, src: Array) -> list[Node]:
    """Return the gradients. PyTorch refuses a source that is larger than the index."""
    if src.shape != index.shape:
        raise RefusedRecord("source and index differ in shape")
    return [[g.dy, None, g.dy[_scatter_places(input, dim, index)]]]


def index_fill(m: Steps, g: CallInputs, input: Array, dim: int, index: Array, value: Any) -> Any:
    at = axis(dim, input.ndim)
    made = np.moveaxis(input, at, 0).copy()
    made[_inside(index, input.shape[at]).reshape(-1)] = value
    return np.moveaxis(made, 0, at)


def index_fill_back(m: Steps, g: CallInputs, input: Array, dim: int, index: Array, value: Any) -> list[Node]:
    """Return the gradients: 0 where the value was written. A tensor value gets the sum of the gradients there."""
    at = axis(dim, input.ndim)
    known = np.unique(_inside(index, input.shape[at]))
    made = np.moveaxis(g.dy, at, 0).copy()
    to_value = None if not is_float(value) else m.sum(made[known]).reshape(value.shape)
    made[known] = 0.0
    return [[np.moveaxis(made, 0, at), None, to_value]]


# choices


def extreme(name: str) -> Any:
    """Return forward and backward of max or min: of all elements, of each row with its index, or of two tensors."""
    beats = np.maximum if name == "max" else np.minimum

    def forward(
        m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, other: Any = None
    ) -> Any:
        if other is not None or isinstance(dim, np.ndarray):
            return beats(input, dim if other is None else other)
        if dim is None:
            return np.asarray(getattr(input, name)())
        at = axis(dim, input.ndim)
        best = getattr(input, name)(axis=at, keepdims=True)
        places = _places(g, input, best, at, 1, f"arg{name}")
        return [one if keepdim else one.squeeze(at) for one in (best, places)]

    def backward(
        m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, other: Any = None
    ) -> Any:
        if other is not None or isinstance(dim, np.ndarray):
            second = dim if other is None else other
            best = beats(input, second)
            halves = [np.where(input == second, g.dy / 2, np.where(one == best, g.dy, 0.0)) for one in (input, second)]
            return [[reduced(m, half, one) for half, one in zip(halves, (input, second))]]
        if dim is None:
            return _shared(m, g, input, getattr(input, name)(), None)
        at = axis(dim, input.ndim)
        _, places = forward(m, g, input, dim, True)
        made = np.zeros(input.shape)
        np.put_along_axis(made, places, g.dy if g.dy.ndim == input.ndim else np.expand_dims(g.dy, at), at)
        return [[made]]

    return forward, backward


def _places(g: CallInputs, x: Array, best: Array, at: int, result: Optional[int], name: str) -> Array:
    """Return the indices of the extremes. A recorded index is used if its element equals the extreme."""
    own = np.expand_dims(getattr(x, name)(axis=at), at)
    recorded = g.recorded.get(result) if result is not None else None
    if recorded is None or recorded.size != own.size:
        return own
    recorded = recorded.reshape(own.shape).astype(np.int64)
    fits = (recorded >= 0) & (recorded < x.shape[at])
    right = fits & (np.take_along_axis(x, np.where(fits, recorded, 0), at) == best)
    return np.asarray(np.where(right, recorded, own))


def _shared(m: Steps, g: CallInputs, x: Array, best: Array, dim: Any) -> list[Node]:
    """Return the gradient. Equal extremes share it."""
    axes = axes_of(dim, x.ndim)
    dy = np.expand_dims(g.dy, axes) if g.dy.ndim < x.ndim else g.dy
    best = np.expand_dims(best, axes) if np.ndim(best) < x.ndim else best
    chosen = x == best
    return [[np.where(chosen, m.div(dy, chosen.sum(axis=axes, keepdims=True)), 0.0)]]


def extreme_over(name: str) -> Any:
    """Return forward and backward of amax or amin."""

    def forward(m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False) -> Any:
        return np.asarray(getattr(input, name)(axis=axes_of(dim, input.ndim), keepdims=keepdim))

    def backward(m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False) -> list[Node]:
        return _shared(m, g, input, forward(m, g, input, dim, keepdim), dim)

    return forward, backward


def place_of_extreme(name: str) -> Any:
    """Return forward and backward of argmax or argmin."""

    def forward(m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False) -> Any:
        x = input.reshape(-1) if dim is None else input
        at = 0 if dim is None else axis(dim, x.ndim)
        found = _places(g, x, getattr(x, name)(axis=at, keepdims=True), at, 0, f"arg{name}")
        return found if keepdim and dim is not None else found.squeeze(at)

    return forward, None


def _sorted_elements(
    g: CallInputs, x: Array, at: int, count: int, descending: bool, result: int
) -> tuple[Array, Array]:
    """Return the first `count` elements in order, and their indices. Recorded indices are used if they have the same
    values."""
    keys = -x if descending else x
    own = np.take(np.argsort(keys, axis=at, kind="stable"), np.arange(count), axis=at)
    best = np.take_along_axis(x, own, at)
    recorded = g.recorded.get(result)
    if recorded is None or recorded.size != own.size:
        return best, own
    recorded = recorded.reshape(own.shape).astype(np.int64)
    fits = (recorded >= 0) & (recorded < x.shape[at])
    alike = np.take_along_axis(x, np.where(fits, recorded, 0), at) == best
    sort = np.sort(recorded, axis=at)
    once = (np.diff(sort, axis=at) > 0).all(axis=at, keepdims=True)
    right = (fits & alike).all(axis=at, keepdims=True) & once
    return best, np.where(right, recorded, own)


def topk(
    m: Steps, g: CallInputs, input: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    at = axis(dim, input.ndim)
    if not 0 <= k <= input.shape[at]:
        raise RefusedRecord(f"k {k} does not fit an axis of {input.shape[at]}")
    if not sorted:
        g.doubt("its results are unsorted")
    return [*_sorted_elements(g, input, at, k, largest, 1)]


def sort(m: Steps, g: CallInputs, input: Array, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    at = axis(dim, input.ndim)
    return [*_sorted_elements(g, input, at, input.shape[at], descending, 1)]


def argsort(
    m: Steps, g: CallInputs, input: Array, dim: int = -1, descending: bool = False, stable: bool = False
) -> Any:
    at = axis(dim, input.ndim)
    return _sorted_elements(g, input, at, input.shape[at], descending, 0)[1]


def selection_back(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the backward that writes gradients of values at the recorded indices."""

    def backward(m: Steps, g: CallInputs, input: Array, *args: Any, **kwargs: Any) -> list[Node]:
        values, places = forward(m, g, input, *args, **kwargs)
        place = 0 if forward is sort else 1
        at = axis(kwargs.get("dim", args[place] if len(args) > place else -1), input.ndim)
        made = np.zeros(input.shape)
        np.put_along_axis(made, places, g.dy.reshape(values.shape), at)
        return [[made]]

    return backward


def all_or_any(name: str) -> Any:
    """Return forward and backward of all or any."""

    def forward(m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False) -> Any:
        return np.asarray(getattr(input != 0, name)(axis=axes_of(dim, input.ndim), keepdims=keepdim))

    return forward, None
