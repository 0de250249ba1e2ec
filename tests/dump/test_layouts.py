"""Layouts against storage that is filled element by element from the formulas of each layout."""

from __future__ import annotations

import math
import tracemalloc
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucmp.dump.layouts import LAYOUTS, fits, origins, stored_shape, to_logical
from npucmp.errors import UnsupportedError

PADDING = -7


def up(size: int, block: int) -> int:
    return (size + block - 1) // block


# One function per layout: sizes of the logical axes → stored shape, and the place of an element in it.


def nc1hwc0(s, c0, n0):
    return (s.n, up(s.c, c0), s.h, s.w, c0), lambda n, c, h, w: (n, c // c0, h, w, c % c0)


def nc1hwc0_c04(s, c0, n0):
    return nc1hwc0(s, 4, n0)


def ndc1hwc0(s, c0, n0):
    return (s.n, s.d, up(s.c, c0), s.h, s.w, c0), lambda n, c, d, h, w: (n, d, c // c0, h, w, c % c0)


def fractal_z(s, c0, n0):
    def place(n, c, h, w):
        return c // c0 * s.h * s.w + h * s.w + w, n // n0, n % n0, c % c0

    return (up(s.c, c0) * s.h * s.w, up(s.n, n0), n0, c0), place


def fractal_z_3d(s, c0, n0):
    c1 = up(s.c, c0)

    def place(n, c, d, h, w):
        return ((d * c1 + c // c0) * s.h + h) * s.w + w, n // n0, n % n0, c % c0

    return (s.d * c1 * s.h * s.w, up(s.n, n0), n0, c0), place


def fractal_z_3d_transpose(s, c0, n0):
    shape, place = fractal_z_3d(SimpleNamespace(n=s.c, c=s.n, d=s.d, h=s.h, w=s.w), c0, n0)
    return shape, lambda n, c, d, h, w: place(n=c, c=n, d=d, h=h, w=w)


def fractal_z_c04(s, c0, n0):
    def place(n, c, h, w):
        column = (h * s.w + w) * 4 + c
        return column // c0, n // n0, n % n0, column % c0

    return (up(4 * s.h * s.w, c0), up(s.n, n0), n0, c0), place


def c1hwncoc0(s, c0, n0):
    return (up(s.c, c0), s.h, s.w, s.n, c0, c0), lambda n, c, h, w: (c // c0, h, w, n, c % c0, c % c0)


FORMULAS = {
    "NC1HWC0": nc1hwc0,
    "NC1HWC0_C04": nc1hwc0_c04,
    "NDC1HWC0": ndc1hwc0,
    "FRACTAL_Z": fractal_z,
    "FRACTAL_Z_3D": fractal_z_3d,
    "FRACTAL_Z_3D_TRANSPOSE": fractal_z_3d_transpose,
    "FRACTAL_Z_C04": fractal_z_c04,
    "C1HWNCoC0": c1hwncoc0,
}
PLAIN = ["NCHW", "NHWC", "HWCN", "CHWN", "NCDHW", "NDHWC", "DHWCN", "DHWNC"]


def plain(layout: str):
    def formula(s, c0, n0):
        names = layout.lower()
        return tuple(getattr(s, name) for name in names), lambda **at: tuple(at[name] for name in names)

    return formula


def matrices(shape, c0, n0, letters):
    """`letters` are the stored axes after those of the stack: blocks of rows and columns, in their order."""
    h, w = (1, 1, *shape)[-2:]
    blocks = {"H": up(h, n0), "W": up(w, c0)}

    def place(index):
        *batch, y, x = index
        block = {"H": y // n0, "W": x // c0}
        return (*batch, *(block[letter] for letter in letters), y % n0, x % c0)

    return (*shape[:-2], *(blocks[letter] for letter in letters), n0, c0), place


def filled(logical, stored, place):
    """Storage of `logical`, padding included; `place` takes an index of it."""
    values = np.full(stored, PADDING).astype(logical.dtype)
    for index in np.ndindex(logical.shape):
        values[place(index)] = logical[index]
    return values


def counted(shape, dtype=np.int32):
    return np.arange(1, 1 + math.prod(shape)).reshape(shape).astype(dtype)


def stored_as(layout, origin, logical, c0, n0=16):
    s = SimpleNamespace(**dict(zip(origin.lower(), logical.shape)))
    shape, place = (FORMULAS.get(layout) or plain(layout))(s, c0, n0)
    return filled(logical, shape, lambda index: place(**dict(zip(origin.lower(), index))))


PAIRS = [(layout, origin) for layout in [*FORMULAS, *PLAIN] for origin in origins(layout)]
BLOCKS = st.tuples(st.sampled_from([4, 8, 16, 32]), st.sampled_from([16, 16, 4]))


@st.composite
def shapes(draw, layout, origin, least=1):
    most = {"N": 18, "C": 4 if layout.endswith("C04") else 34, "D": 2, "H": 3, "W": 3}
    if layout == "FRACTAL_Z_3D_TRANSPOSE":
        most.update(N=34, C=18)
    if layout in PLAIN:
        most.update(N=4, C=4)
    return tuple(draw(st.integers(least, most[axis])) for axis in origin)


def same(found, golden) -> bool:
    return found.shape == golden.shape and found.dtype == golden.dtype and found.tobytes() == golden.tobytes()


def test_every_layout_has_a_formula_here():
    assert {*FORMULAS, *PLAIN, "FRACTAL_NZ", "FRACTAL_ZZ"} == LAYOUTS
    assert [len(origins(layout)) for layout in FORMULAS] == [4] * len(FORMULAS)
    assert origins("FRACTAL_NZ") == origins("FRACTAL_ZZ") == ("ND",)
    assert origins("FRACTAL_ZN_LSTM") == ()


@pytest.mark.few(20)
@pytest.mark.parametrize(("layout", "origin"), PAIRS)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), blocks=BLOCKS)
def test_named_axes(layout, origin, data, blocks):
    logical = counted(data.draw(shapes(layout, origin)))
    stored = stored_as(layout, origin, logical, *blocks)
    assert stored_shape(layout, origin, logical.shape, blocks[0], n0=blocks[1]) == stored.shape
    assert same(to_logical(stored, layout, origin, logical.shape), logical)
    refuses_another_shape(stored, layout, origin, logical.shape)


@pytest.mark.parametrize(("layout", "letters"), [("FRACTAL_NZ", "WH"), ("FRACTAL_ZZ", "HW")])
@given(batch=st.lists(st.integers(1, 3), max_size=2), matrix=st.tuples(*[st.integers(1, 40)] * 2), blocks=BLOCKS)
def test_matrices(layout, letters, batch, matrix, blocks):
    logical = counted((*batch, *matrix))
    shape, place = matrices(logical.shape, *blocks, letters)
    stored = filled(logical, shape, place)
    assert stored_shape(layout, "ND", logical.shape, blocks[0], n0=blocks[1]) == shape
    assert same(to_logical(stored, layout, "any word", logical.shape), logical)
    refuses_another_shape(stored, layout, "ND", logical.shape)


@pytest.mark.parametrize(("layout", "stored"), [("FRACTAL_NZ", (3, 1, 16, 8)), ("FRACTAL_ZZ", (1, 3, 16, 8))])
def test_a_vector_is_a_matrix_of_one_row(layout, stored):
    values = np.full(stored, PADDING)
    values.reshape(3, 16, 8)[:, 0] = np.arange(24).reshape(3, 8)
    assert to_logical(values, layout, "", (20,)).tolist() == list(range(20))
    assert stored_shape(layout, "", (20,), 8) == stored


@pytest.mark.parametrize("layout", ["FRACTAL_NZ", "FRACTAL_ZZ"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_single_element_is_a_matrix(layout, shape):
    values = np.arange(5, 5 + 256).reshape(1, 1, 16, 16)
    assert same(to_logical(values, layout, "ND", shape), np.full(shape, 5))


def refuses_another_shape(stored, layout, origin, shape):
    """The stored shape fits; it does not with a larger dimension, another rank or another logical shape."""
    assert fits(stored.shape, layout, origin, shape)
    for axis in range(stored.ndim - 2):
        other = (*stored.shape[:axis], stored.shape[axis] + 1, *stored.shape[axis + 1 :])
        assert not fits(other, layout, origin, shape)
    assert not any(fits(other, layout, origin, shape) for other in ((1, *stored.shape), stored.shape[1:], ()))
    assert not fits(stored.shape, layout, origin, (*shape, 2))
    with pytest.raises(UnsupportedError) as caught:
        to_logical(stored[:1, ..., None], layout, origin, shape)
    assert all(str(fact) in str(caught.value) for fact in (layout, stored[:1, ..., None].shape, shape))


# Weights in groups, by the formula of GE for the element c of weight n in group g.


def grouped(groups, per, channels, h, w, c0):
    bundle = min(
        math.lcm(math.lcm(channels, c0) // channels, math.lcm(per, 16) // per),
        groups,
    )
    c1 = up(bundle * channels, c0)
    shape = (up(groups, bundle) * c1 * h * w, up(bundle * per, 16), 16, c0)

    def place(index):
        n, c, y, x = index
        g, n = divmod(n, per)
        column, row = g % bundle * channels + c, g % bundle * per + n
        return (g // bundle * c1 + column // c0) * h * w + y * w + x, row // 16, row % 16, column % c0

    return shape, place


@given(
    groups=st.integers(2, 20),
    per=st.integers(1, 5) | st.sampled_from([8, 16, 24]),
    channels=st.integers(1, 5) | st.sampled_from([8, 16, 20]),
    window=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    c0=st.sampled_from([8, 16, 32]),
    origin=st.sampled_from(origins("FRACTAL_Z")),
)
def test_groups(groups, per, channels, window, c0, origin):
    weights = counted((groups * per, channels, *window))
    shape, place = grouped(groups, per, channels, *window, c0)
    stored = filled(weights, shape, place)
    logical = weights.transpose(["NCHW".index(axis) for axis in origin])
    assert stored_shape("FRACTAL_Z", origin, logical.shape, c0, groups) == shape
    assert same(to_logical(stored, "FRACTAL_Z", origin, logical.shape, groups), logical)
    assert not fits((shape[0] + 1, *shape[1:]), "FRACTAL_Z", origin, logical.shape, groups)


@pytest.mark.parametrize(
    ("groups", "per", "channels", "stored"),
    [
        (32, 1, 1, (2 * 9, 1, 16, 16)),  # depthwise: 16 groups fill one block
        (20, 1, 1, (2 * 9, 1, 16, 16)),
        (4, 16, 16, (4 * 9, 1, 16, 16)),
        (2, 1, 1, (9, 1, 16, 16)),
        (6, 8, 12, (2 * 3 * 9, 2, 16, 16)),  # 4 groups fill 3 blocks of C and 2 of N
    ],
)
def test_bundles_worked_out_by_hand(groups, per, channels, stored):
    assert stored_shape("FRACTAL_Z", "NCHW", (groups * per, channels, 3, 3), groups=groups) == stored


def test_groups_of_0_and_1_are_none():
    logical = counted((3, 5, 2, 2))
    stored = stored_as("FRACTAL_Z", "NCHW", logical, 16)
    for groups in (-1, 0, 1):
        assert same(to_logical(stored, "FRACTAL_Z", "NCHW", logical.shape, groups), logical)


def test_groups_that_cannot_be():
    with pytest.raises(UnsupportedError, match="5 groups"):
        stored_shape("FRACTAL_Z", "NCHW", (8, 1, 1, 1), groups=5)
    for layout, origin in (("FRACTAL_Z_C04", "NCHW"), ("FRACTAL_Z_3D", "NCDHW")):
        stored = stored_shape(layout, origin, (2,) * len(origin))
        with pytest.raises(UnsupportedError, match="groups"):
            to_logical(np.zeros(stored), layout, origin, (2,) * len(origin), 2)


def test_groups_mean_nothing_to_activations():
    assert fits((2, 1, 3, 3, 16), "NC1HWC0", "NCHW", (2, 8, 3, 3), groups=4)


@pytest.mark.parametrize(
    ("layout", "origin", "apart"),
    [("FRACTAL_Z", "NCHW", (3, 2, 3)), ("FRACTAL_Z_3D", "NDHWC", (2, 2, 3, 3))],
)
def test_first_axis_spelled_apart(layout, origin, apart):
    logical = counted((17, 20, 2, 3) if layout == "FRACTAL_Z" else (17, 2, 3, 3, 20))
    stored = stored_as(layout, origin, logical, 8 if layout == "FRACTAL_Z" else 16)
    stored = stored.reshape(*apart, *stored.shape[1:])
    assert same(to_logical(stored, layout, origin, logical.shape), logical)


@pytest.mark.few(22)
@pytest.mark.parametrize(("layout", "origin"), [*PAIRS, ("FRACTAL_NZ", "ND"), ("FRACTAL_ZZ", "ND")])
def test_empty_tensors(layout, origin):
    rank = len(origin) if origin != "ND" else 3
    for axis in range(rank):
        shape = tuple(0 if at == axis else 3 for at in range(rank))
        stored = np.zeros(stored_shape(layout, origin, shape), np.int8)
        assert same(to_logical(stored, layout, origin, shape), np.zeros(shape, np.int8))
    if layout == "FRACTAL_Z":
        stored = np.zeros(stored_shape(layout, origin, (0,) * 4, groups=2))
        assert to_logical(stored, layout, origin, (0,) * 4, 2).shape == (0,) * 4


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float16, np.complex128, ml_dtypes.bfloat16, ">i4"])
@pytest.mark.parametrize("layout", ["NC1HWC0", "FRACTAL_Z", "FRACTAL_Z_C04", "C1HWNCoC0", "NHWC"])
def test_any_dtype(layout, dtype):
    logical = counted((5, 3, 2, 2), dtype)
    assert same(to_logical(stored_as(layout, "NCHW", logical, 16), layout, "NCHW", logical.shape), logical)


@pytest.mark.parametrize(
    ("layout", "origin"), [("FRACTAL_ZN_LSTM", "ND"), ("FRACTAL_DECONV", "NCHW"), ("nc1hwc0", "NCHW"), ("", "")]
)
def test_layouts_without_a_conversion(layout, origin):
    with pytest.raises(UnsupportedError, match="no conversion"):
        to_logical(np.zeros((1, 1, 1, 1, 16)), layout, origin, (1, 1, 1, 1))
    with pytest.raises(UnsupportedError, match="no conversion"):
        stored_shape(layout, origin, (1, 1, 1, 1))
    assert not fits((1, 1, 1, 1, 16), layout, origin, (1, 1, 1, 1))


@pytest.mark.parametrize(("layout", "origin"), [("NC1HWC0", "ND"), ("NC1HWC0", "NCDHW"), ("FRACTAL_Z_3D", "NCHW")])
def test_origins_without_a_conversion(layout, origin):
    with pytest.raises(UnsupportedError, match=f"{layout} has no conversion to '{origin}'; it has conversions to"):
        to_logical(np.zeros((1, 1, 1, 1, 16)), layout, origin, (1, 1, 1, 1))
    assert not fits((1, 1, 1, 1, 16), layout, origin, (1, 1, 1, 1))


@pytest.mark.parametrize(
    ("layout", "shape"),
    [("NC1HWC0", (2, 3)), ("FRACTAL_Z", ()), ("FRACTAL_Z_C04", (1, 5, 1, 1)), ("FRACTAL_NZ", (-1, 4))],
)
def test_shapes_that_a_layout_cannot_hold(layout, shape):
    with pytest.raises(UnsupportedError):
        stored_shape(layout, "NCHW", shape)
    assert not fits((1, 1, 16, 16), layout, "NCHW", shape)


def test_blocks_come_from_the_stored_shape():
    assert all(fits((1, 16 // c0, 2, 2, c0), "NC1HWC0", "NCHW", (1, 16, 2, 2)) for c0 in (4, 8, 16))
    assert not fits((1, 1, 2, 2, 0), "NC1HWC0", "NCHW", (1, 16, 2, 2))
    assert not fits((1, 1, 2, 2, 16), "NC1HWC0_C04", "NCHW", (1, 3, 2, 2))
    assert not fits((1, 1, 1, 2, 8, 16), "C1HWNCoC0", "NCHW", (2, 3, 1, 1))


@pytest.mark.parametrize(
    ("layout", "origin", "shape", "groups"),
    [
        ("FRACTAL_NZ", "ND", (3, 500, 700), 1),
        ("NC1HWC0", "NCHW", (8, 3, 100, 100), 1),
        ("FRACTAL_Z", "HWCN", (3, 3, 250, 250), 1),
        ("FRACTAL_Z", "NCHW", (4000, 1, 5, 5), 4000),
        ("FRACTAL_Z", "NCHW", (512, 512, 1, 1), 4),
    ],
)
def test_one_copy_without_the_padding(layout, origin, shape, groups):
    stored = np.zeros(stored_shape(layout, origin, shape, groups=groups), np.float32)
    tracemalloc.start()
    try:
        to_logical(stored, layout, origin, shape, groups)
        assert tracemalloc.get_traced_memory()[1] < math.prod(shape) * 4 + 300_000
    finally:
        tracemalloc.stop()
