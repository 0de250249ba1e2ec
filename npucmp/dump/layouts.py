"""Memory layouts of Ascend devices: convert stored arrays to logical tensors, by pure functions of arrays.

    layout                    stored axes                              logical axes
    NC1HWC0, NC1HWC0_C04      N C1 H W C0                 (C04: C0=4)   C = C1*C0
    NDC1HWC0                  N D C1 H W C0                             C = C1*C0
    FRACTAL_Z                 C1*H*W No Ni C0                           C = C1*C0, N = No*Ni
    FRACTAL_Z_3D              D*C1*H*W No Ni C0                         C = C1*C0, N = No*Ni
    FRACTAL_Z_3D_TRANSPOSE    D*N1*H*W Co Ci N0                         N = N1*N0, C = Co*Ci
    FRACTAL_Z_C04             K1 No Ni C0                               K = K1*C0 = H*W*4, C up to 4, N = No*Ni
    C1HWNCoC0                 C1 H W N Co C0, zero unless co = c0       C = C1*C0
    FRACTAL_NZ                … W1 H1 H0 W0                             H = H1*H0, W = W1*W0 of each matrix
    FRACTAL_ZZ                … H1 W1 H0 W0                             H = H1*H0, W = W1*W0 of each matrix
    NCHW, HWCN, NDHWC …       the axes of the name

A split logical axis is padded to whole blocks. The block sizes (C0 is 4, 8, 16 or 32, Ni, Ci and H0 are 16) are
read from the stored shape: they depend on the chip as well as on the element type.

A FRACTAL_Z with groups holds bundles of E groups. A bundle is a plain FRACTAL_Z of E*N by E*C (N, C of one group)
with the weights of its groups along the diagonal; E is the smallest number that fills whole blocks, at most the group
count.

Source: the transfers and shape rules of GE (base/formats of the public hicann/ge).
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from npucmp.errors import UnsupportedError

Array = NDArray[Any]
Shape = tuple[int, ...]

_PLAIN_4D = ("NCHW", "NHWC", "HWCN", "CHWN")
_PLAIN_5D = ("NCDHW", "NDHWC", "DHWCN", "DHWNC")
_MATRIX = ("FRACTAL_NZ", "FRACTAL_ZZ")

# Stored axes by letter: a lower-case letter is the position inside a block of the axis of its capital. The last
# lower-case axis has C0 elements, the one before it N0. If an axis occurs twice, only its diagonal holds values.
_AXES = {
    "NC1HWC0": "NCHWc",
    "NC1HWC0_C04": "NCHWc",
    "NDC1HWC0": "NDCHWc",
    "FRACTAL_Z": "CHWNnc",
    "FRACTAL_Z_3D": "DCHWNnc",
    "FRACTAL_Z_3D_TRANSPOSE": "DNHWCcn",
    "FRACTAL_Z_C04": "KNnk",
    "C1HWNCoC0": "CHWNcc",
    "FRACTAL_NZ": "BWHhw",
    "FRACTAL_ZZ": "BHWhw",
    **{order: order for order in (*_PLAIN_4D, *_PLAIN_5D)},
}
_MERGED = {"FRACTAL_Z": 3, "FRACTAL_Z_3D": 4, "FRACTAL_Z_3D_TRANSPOSE": 4}  # leading axes that are stored as one

LAYOUTS = frozenset(_AXES)
DEVICE_LAYOUTS = frozenset(layout for layout, axes in _AXES.items() if layout != axes)  # not in plain C order


def origins(layout: str) -> tuple[str, ...]:
    """Return the orders of logical axes that a layout converts to; () for a layout without a conversion.

    ("ND",) means any order: the axes of a stack of matrices have no other names.
    """
    if layout not in LAYOUTS:
        return ()
    if layout in _MATRIX:
        return ("ND",)
    return _PLAIN_5D if "D" in _AXES[layout] else _PLAIN_4D


def stored_shape(layout: str, origin: str, shape: Shape, c0: int = 16, groups: int = 1, n0: int = 16) -> Shape:
    """Return the shape in which a device stores a logical `shape` whose axes are named by `origin`.

    Groups of 0 and 1 mean none; only weight layouts depend on groups. C0 of NC1HWC0_C04 is always 4. Raises
    UnsupportedError for a layout or origin without a conversion, and for a shape that the layout cannot hold.
    """
    return _spellings(layout, origin, shape, c0, groups, n0)[0]


def fits(stored: Shape, layout: str, origin: str, shape: Shape, groups: int = 1) -> bool:
    """Return whether a logical `shape` is stored as `stored`, with the block sizes taken from `stored`.

    Never raises; False for a layout, origin or shape without a conversion.
    """
    if len(stored) < 4:
        return False
    c0, n0 = max(1, stored[-1]), max(1, stored[-2])  # a block size of 0 then does not match
    try:
        return tuple(stored) in _spellings(layout, origin, shape, c0, groups, n0)
    except UnsupportedError:
        return False


def to_logical(values: Array, layout: str, origin: str, shape: Shape, groups: int = 1) -> Array:
    """Return the tensor of `shape`, its axes in the order of `origin`, without padding.

    `values` has the stored shape and any dtype, which is kept; the leading axes of FRACTAL_Z and FRACTAL_Z_3D may also
    be separate. The result may be a view, otherwise it is the only copy; FRACTAL_Z_C04 copies with C padded to 4. An
    empty shape gives an empty array. Raises UnsupportedError for a layout or origin without a conversion and for a
    stored shape that does not match `shape`.
    """
    _require(layout, origin)
    shape = tuple(shape)
    if not fits(values.shape, layout, origin, shape, groups):
        raise UnsupportedError(
            f"{layout} values of the stored shape {values.shape} do not fit the shape {shape} in {origin or 'ND'} order"
            + (f" with {groups} groups" if groups > 1 else "")
        )
    if 0 in shape:
        return np.empty(shape, values.dtype)
    c0, n0 = values.shape[-1], values.shape[-2]
    if layout == "FRACTAL_Z" and groups > 1:
        return _join_groups(values, origin, shape, groups)
    plan = _plan(layout, origin, shape)
    found = _join_blocks(values.reshape(_dims(plan, c0, n0)), plan)
    if layout == "FRACTAL_Z_C04":
        size = dict(zip(origin, shape))
        found = found.reshape(size["N"], size["H"], size["W"], 4)[..., : size["C"]]
        return _reorder(found, "NHWC", origin)
    return found.reshape(shape)


class _LayoutPlan(NamedTuple):
    """Stored axes, logical axes in the requested order, and the sizes of the logical axes."""

    axes: str
    order: str
    sizes: Shape


def _require(layout: str, origin: str) -> None:
    if layout not in LAYOUTS:
        raise UnsupportedError(f"the layout {layout} has no conversion")
    if layout not in _MATRIX and origin not in origins(layout):
        known = ", ".join(origins(layout))
        raise UnsupportedError(f"the layout {layout} has no conversion to {origin!r}", f"it has conversions to {known}")


def _plan(layout: str, origin: str, shape: Shape) -> _LayoutPlan:
    axes = _AXES[layout]
    if layout in _MATRIX:
        return _LayoutPlan(axes, "BHW", (math.prod(shape[:-2]), *((1, 1, *shape)[-2:])))
    if layout == "FRACTAL_Z_C04":
        size = dict(zip(origin, shape))
        return _LayoutPlan(axes, "NK", (size["N"], size["H"] * size["W"] * 4))
    return _LayoutPlan(axes, origin, shape)


def _dims(plan: _LayoutPlan, c0: int, n0: int) -> Shape:
    """Return the size of every stored axis."""
    size = dict(zip(plan.order, plan.sizes))
    block = {axis: n for axis, n in zip(plan.axes[-2:], (n0, c0)) if axis.islower()}
    return tuple(block.get(axis) or -(-size[axis] // block.get(axis.lower(), 1)) for axis in plan.axes)


def _spellings(layout: str, origin: str, shape: Shape, c0: int, groups: int, n0: int) -> list[Shape]:
    """Return the stored shapes in use for a layout, the usual one first."""
    _require(layout, origin)
    shape = tuple(shape)
    if layout not in _MATRIX and len(shape) != len(origin):
        raise UnsupportedError(f"the shape {shape} in {origin} order")
    if any(dim < 0 for dim in shape):
        raise UnsupportedError(f"the shape {shape}: it has a negative size")
    if layout in _MATRIX:
        return [(*shape[:-2], *_dims(_plan(layout, origin, shape), c0, n0)[1:])]
    if layout == "FRACTAL_Z_C04" and shape[origin.index("C")] > 4:
        raise UnsupportedError(f"the shape {shape} in {layout}: more than 4 channels")
    if groups > 1 and layout == "FRACTAL_Z":
        dims = _grouped_dims(origin, shape, c0, groups, n0)
    elif groups > 1 and layout.startswith("FRACTAL_Z"):
        raise UnsupportedError(f"the layout {layout} with {groups} groups has no conversion")
    else:
        dims = _dims(_plan(layout, origin, shape), 4 if layout == "NC1HWC0_C04" else c0, n0)
    merged = _MERGED.get(layout, 1)
    return [(math.prod(dims[:merged]), *dims[merged:]), dims]


def _join_blocks(stored: Array, plan: _LayoutPlan) -> Array:
    """Join blocks and drop padding. The result has the shape `plan.sizes`, and is a view only without blocks."""
    axes = plan.axes
    if axes[-1] == axes[-2]:
        stored, axes = np.diagonal(stored, axis1=-2, axis2=-1), axes[:-1]
    order = "".join(axis for letter in plan.order for axis in (letter, letter.lower()) if axis in axes)
    stored = _reorder(stored, axes, order)
    if order.isupper():
        return stored
    made = np.empty(plan.sizes, stored.dtype)
    block = dict(zip(order, stored.shape))
    parts = [_parts(size, block.get(letter.lower())) for letter, size in zip(plan.order, plan.sizes)]
    for combined in itertools.product(*parts):
        into = made[tuple(part.into for part in combined)]
        into = into.reshape([n for part in combined for n in part.shape])  # splits axes, so the result is a view
        into[...] = stored[tuple(index for part in combined for index in part.source)]
    return made


def _reorder(values: Array, axes: str, order: str) -> Array:
    found: Array = values.transpose([axes.index(axis) for axis in order])
    return found


class _Part(NamedTuple):
    """One part of a logical axis: its place in the result, its place in the stored axes, and its stored shape."""

    into: slice
    source: tuple[slice, ...]
    shape: Shape


def _parts(size: int, block: Optional[int]) -> list[_Part]:
    """Split a logical axis into its whole blocks and the partial block after them."""
    if block is None:
        return [_Part(slice(size), (slice(size),), (size,))]
    whole, rest = divmod(size, block)
    parts = [_Part(slice(whole * block), (slice(whole), slice(block)), (whole, block))]
    if rest:
        parts.append(_Part(slice(whole * block, size), (slice(whole, whole + 1), slice(rest)), (1, rest)))
    return parts


def _bundle(n: int, c: int, groups: int, c0: int, n0: int) -> int:
    """Return how many groups of n by c weights are stored as one: lcm(c, c0) / c is c0 / gcd(c, c0)."""
    return min(math.lcm(c0 // math.gcd(c, c0), n0 // math.gcd(n, n0)), groups)


def _grouped_dims(origin: str, shape: Shape, c0: int, groups: int, n0: int) -> Shape:
    """Return the stored axes of a FRACTAL_Z with groups; bundles follow each other along C1."""
    size = dict(zip(origin, shape))
    n, rest = divmod(size["N"], groups)
    if rest:
        raise UnsupportedError(f"the shape {shape} in {origin} order: N is not a multiple of {groups} groups")
    bundle = _bundle(n, size["C"], groups, c0, n0)
    sizes = (bundle * n, bundle * size["C"], size["H"], size["W"])
    c1, *dims = _dims(_LayoutPlan(_AXES["FRACTAL_Z"], "NCHW", sizes), c0, n0)
    return (-(-groups // bundle) * c1, *dims)


def _join_groups(values: Array, origin: str, shape: Shape, groups: int) -> Array:
    """Return the weights of all groups, from a FRACTAL_Z of matching shape."""
    c0, n0 = values.shape[-1], values.shape[-2]
    size = dict(zip(origin, shape))
    n, c = size["N"] // groups, size["C"]
    bundle = _bundle(n, c, groups, c0, n0)
    c1 = -(-bundle * c // c0)
    first, h, w, blocks, _, _ = _grouped_dims(origin, shape, c0, groups, n0)
    stored = values.reshape(first, h, w, blocks * n0, c0)
    group = np.arange(groups)[:, None, None]
    row = group % bundle * n + np.arange(n)[:, None]  # in the bundle: groups, n, 1
    column = group % bundle * c + np.arange(c)  # groups, 1, c
    found: Array = stored[group // bundle * c1 + column // c0, :, :, row, column % c0]  # groups, n, c, h, w
    return _reorder(found.reshape(groups * n, c, h, w), "NCHW", origin)
