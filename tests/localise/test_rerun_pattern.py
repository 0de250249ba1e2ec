"""The words for the places of differing elements, and their frequent causes."""

import math

import numpy as np
import pytest

from npucmp.localise.rerun.pattern import by_rounding, differing_elements, pattern
from npucmp.measure.bitwise import BitDifferences
from npucmp.model import Device, Measurement, Moments, Operator, Pair, Payload, TensorRef
from npucmp.model.cause import sentences
from tests.align.weights.craft import Files

FAR = {"sum_dd": 1.0, "yy": 1.0}  # no rounding


def measured(shape, device=None, dtype="float32", **moments):
    payload = Payload("absent", dtype, shape, 0, device=device)
    tensor = TensorRef("output:0", dtype, shape, payload=payload)
    op = Operator("f.0", "f", "f", "forward", 0, (tensor,))
    count = math.prod(shape)
    return Measurement(Pair(0, "output:0", op, op, tensor, tensor), Moments(count, compared=count, **(moments or FAR)))


def words(shape, places, device=None, are_kept=True, **moments):
    """The evidence for these differing elements; their places are not kept if they are too many."""
    places = np.unique(places)
    found = BitDifferences(len(places), int(places[0]), int(places[-1]) + 1, places if are_kept else None)
    return sentences(pattern(measured(shape, device, **moments), found))


def grid(*shape):
    return np.arange(math.prod(shape)).reshape(shape)


SCATTERED = "the differing elements are scattered"
TILE = "; hint: a tile computed by another core, or in another order"
COLUMN_HINT = "; hint: sums over the other axes, in another order"
MEMORY = "; hint: memory overwritten, or copied before it was written"
PIECE = "; hint: memory overwritten"
G, CUBE, LONG = grid(64, 96), grid(8, 24, 32), grid(10, 4096)


def apart(rows, each, shape=(64, 96)):
    """So many elements of each of the first rows, in other columns of each row."""
    return np.concatenate([grid(*shape)[row, (17 * row + 11 * np.arange(each)) % shape[1]] for row in range(rows)])


def one_block(length, first=2048, more=""):
    return f"one block of {length:,} elements from {first:,} on, a multiple of 2,048{MEMORY}{more}"


BLOCKS = [
    ((64, 96), np.arange(2048, 4096), one_block(2048)),
    ((64, 96), np.arange(2048, 2048 + 1844), one_block(1844)),  # nine tenths of a block
    ((64, 96), np.arange(2048, 2048 + 1843), f"one piece, from [21, 32] to [40, 50]{PIECE}"),
    ((64, 96), np.arange(2047, 4096), f"one piece, from [21, 31] to [42, 63]{PIECE}"),
    ((64, 96), np.arange(0, 2048), one_block(2048, 0)),
    ((64, 96), np.arange(4096, 6144), one_block(2048, 4096)),
    ((64, 96), [*range(2048, 3892), 4097], one_block(2050)),  # 1,845 of 2,050
    ((4, 4096), np.arange(4096, 8192),
     one_block(4096, 4096, ", or 1 rows of the last axis computed in another order")),
    ((64, 64), np.arange(2048, 4096 - 64),
     one_block(1984, 2048, ", or 31 rows of the last axis computed in another order")),
    ((64, 64), np.arange(2048, 4096 - 65), one_block(1983)),
    ((4096, 3), np.arange(2048, 2048 + 1848), one_block(1848)),
    ((10, 4096), LONG[[1, 3], :2048], f"2 blocks of 2,048 elements, from 4,096, 12,288 on{MEMORY}"),
    ((10, 4096), LONG[[1, 3, 5, 7, 9], :2048],
     "5 blocks of 2,048 elements, from 4,096, 12,288, 20,480 … on" + MEMORY),
    ((10, 4096), np.r_[LONG[[1, 3, 5, 7], :1843].ravel(), LONG[9, :1844]],  # nine tenths of five blocks are 9,216
     "5 blocks of 2,048 elements, from 4,096, 12,288, 20,480 … on" + MEMORY),
    ((10, 4096), LONG[[1, 3, 5, 7, 9], :1843], SCATTERED),
    ((10, 4096), np.arange(4097, 6144), f"one piece, from [1, 1] to [1, 2047]{PIECE}"),
    ((10, 4096), LONG[[1, 3, 5, 7, 8, 9], :2048], SCATTERED),  # of 20 blocks, five are a quarter
    ((10, 4096), np.r_[LONG[1, 1:1844], LONG[3, 0:1844]],
     f"2 blocks of 2,048 elements, from 4,096, 12,288 on{MEMORY}"),
    ((10, 4096), np.r_[LONG[1, 1:1844], LONG[3, 0:1843]],
     "in 2 of 10 rows of the last axis only (1, 3), 45% of their elements" + TILE),
]  # fmt: skip
PIECES = [
    ((64, 96), np.arange(1000, 1300), f"one piece, from [10, 40] to [13, 51]{PIECE}"),
    ((64, 96), np.arange(1000, 1008), f"one piece, from [10, 40] to [10, 47]{PIECE}"),
    ((64, 96), np.arange(1000, 1007), "all in the part [10:11, 40:47]"),
    ((64, 96), [*range(1000, 1008), 1009], f"one piece, from [10, 40] to [10, 49]{PIECE}"),  # nine of ten
    ((64, 96), [*range(1000, 1007), 1009], "in 1 of 64 rows of the last axis only (10), 8% of their elements" + TILE),
    ((64, 96), np.arange(96, 200), f"one piece, from [1, 0] to [2, 7]{PIECE}"),
    ((64, 96), np.arange(100, 196), f"one piece, from [1, 4] to [2, 3]{PIECE}"),
    ((64, 96), np.arange(96, 288), f"in 2 of 64 rows of the last axis only (1, 2), all of their elements{TILE}"),
    ((64, 96), np.arange(6100, 6144), "the tail from [63, 52] on; hint: memory beyond the result, or a tail block "
     "computed separately"),
    ((64, 96), np.arange(6100, 6143), f"one piece, from [63, 52] to [63, 94]{PIECE}"),
    ((6144,), np.arange(5000, 5010), f"one piece, from [5000] to [5009]{PIECE}"),
]  # fmt: skip
LINES = [
    ((64, 96), G[[5, 9]], f"in 2 of 64 rows of the last axis only (5, 9), all of their elements{TILE}"),
    ((64, 96), G[[1, 3, 5, 7]], f"in 4 of 64 rows of the last axis only (1, 3, 5 …), all of their elements{TILE}"),
    ((64, 96), G[1:][np.arange(63) != 30],
     f"in 62 of 64 rows of the last axis only (1, 2, 3 …), all of their elements{TILE}"),
    ((64, 96), G[5, ::2], f"in 1 of 64 rows of the last axis only (5), 50% of their elements{TILE}"),
    ((64, 96), G[:, [3, 5]], f"in 2 of 96 columns of the last axis only (3, 5), all of their elements{COLUMN_HINT}"),
    ((64, 96), G[::2, 3], f"in 1 of 96 columns of the last axis only (3), 50% of their elements{COLUMN_HINT}"),
    ((64, 96), apart(16, 8), f"in 16 of 64 rows of the last axis only (0, 1, 2 …), 8% of their elements{TILE}"),
    ((64, 96), apart(17, 8), SCATTERED),
    ((64, 96), apart(16, 8)[:-1], SCATTERED),
    ((64, 96), [7, 2000, 3333, 6000], SCATTERED),
    ((8, 24, 32), CUBE[2, :, ::3], f"in 1 of 8 slices of axis 0 only (2), 34% of their elements{TILE}"),
    ((8, 24, 32), CUBE[:, 3, ::3], f"in 1 of 24 slices of axis 1 only (3), 34% of their elements{TILE}"),
    ((8, 24, 32), CUBE[:, [3, 4]], f"in 2 of 24 slices of axis 1 only (3, 4), all of their elements{TILE}"),
    ((8, 24, 32), CUBE[2, 3::4],
     f"in 6 of 192 rows of the last axis only (51, 55, 59 …), all of their elements{TILE}"),
    # three whole slices are fewer lines than many whole rows; one slice in part costs eight lines more
    ((8, 24, 32), CUBE[[1, 4, 6]], f"in 3 of 8 slices of axis 0 only (1, 4, 6), all of their elements{TILE}"),
    ((8, 24, 32), CUBE[2, 1:17:2],
     f"in 8 of 192 rows of the last axis only (49, 51, 53 …), all of their elements{TILE}"),
    ((8, 24, 32), CUBE[2, 1:21:2], f"in 1 of 8 slices of axis 0 only (2), 42% of their elements{TILE}"),
    ((4, 8, 1), grid(4, 8, 1)[1, ::2], SCATTERED),
    ((4, 16, 1), grid(4, 16, 1)[1, ::2], f"in 1 of 4 slices of axis 0 only (1), 50% of their elements{TILE}"),
    ((4, 1, 8), np.arange(8, 16), f"in 1 of 4 rows of the last axis only (1), all of their elements{TILE}"),
    ((32, 1, 1), np.arange(0, 32, 2), SCATTERED),
    ((32, 1), np.arange(0, 32, 2), SCATTERED),
    ((1, 32), np.arange(0, 32, 2), SCATTERED),
    ((32,), np.arange(0, 32, 2), SCATTERED),
    ((2, 2), [0, 1], SCATTERED),  # one of two rows differs by chance too
    ((16,), np.arange(14), ""),  # so do 14 of 16 elements in one piece
    ((16,), np.arange(6, 14), f"one piece, from [6] to [13]{PIECE}"),
    ((2, 3), [4], SCATTERED),
]  # fmt: skip


@pytest.mark.parametrize("shape, places, expected", [*BLOCKS, *PIECES, *LINES])
def test_the_pattern_of_differing_elements(shape, places, expected):
    assert words(shape, places) == expected


@pytest.mark.parametrize(
    "shape, places, expected",
    [
        ((64, 96), np.arange(2048, 4096), one_block(2048)),
        ((64, 96), np.arange(1000, 1300), f"one piece, from [10, 40] to [13, 51]{PIECE}"),
        ((64, 96), G[[5, 9]], SCATTERED),
        ((10, 4096), LONG[[1, 3], :2048], SCATTERED),
    ],
)
def test_places_that_are_not_kept_have_a_beginning_and_an_end(shape, places, expected):
    assert words(shape, places, are_kept=False) == expected


N, C1, H, W, C0 = 2, 4, 8, 10, 16
DEVICE = Device("NC1HWC0", (N, C1, H, W, C0), "NCHW")
STORED = grid(N, C1 * C0, H, W).reshape(N, C1, C0, H, W).transpose(0, 1, 3, 4, 2)  # the logical place of each element


@pytest.mark.parametrize(
    "places, expected",
    [
        (
            STORED.ravel()[4096:6144],
            "one block of 2,048 elements from 4,096 on in memory (NC1HWC0), a multiple of 2,048" + MEMORY,
        ),
        (
            STORED.ravel()[0:1900],
            "one block of 1,900 elements from 0 on in memory (NC1HWC0), a multiple of 2,048" + MEMORY,
        ),
        (STORED[:, 2, ::2], f"in 1 of 4 blocks of C0=16 channels only (2), 50% of their elements{TILE}"),
        (STORED[:, [1, 3]], f"in 2 of 4 blocks of C0=16 channels only (1, 3), all of their elements{TILE}"),
        (
            STORED[1, :, :, :, 3].ravel()[::2],
            "in 4 of 64 slices of axis 1 only (3, 19, 35 …), 25% of their elements" + TILE,
        ),
    ],
)
def test_patterns_in_the_memory_of_a_device(places, expected):
    assert words((N, C1 * C0, H, W), places, DEVICE) == expected


def test_blocks_of_channels_need_whole_blocks_and_their_axis():
    """With 60 channels the last block has padding."""
    places = grid(N, 60, H, W)[:, 32:48, ::2]
    device = DEVICE._replace(shape=(N, C1, H, W, C0))
    assert "blocks of C0" not in words((N, 60, H, W), places, device)
    assert "blocks of C0" not in words((N, 60, H, W), places, are_kept=False)
    one = Payload("absent", "float32", (N, 64, H, W), 0, device=DEVICE._replace(origin="ND"))
    assert one.device is not None and len(one.device.origin) != len(one.shape)


def test_two_blocks_of_a_device_are_named_in_its_memory():
    shape = 2, 4, 32, 40, 16
    stored = grid(2, 64, 32, 40).reshape(2, 4, 16, 32, 40).transpose(0, 1, 3, 4, 2).ravel()
    places = np.r_[stored[4096:6144], stored[40960:43008]]
    found = words((2, 64, 32, 40), places, Device("NC1HWC0", shape, "NCHW"))
    assert found == "2 blocks of 2,048 elements in memory (NC1HWC0), from 4,096, 40,960 on" + MEMORY
    assert words((2, 64, 32, 40), places, Device("NC1HWC0", shape, "NCHW"), are_kept=False) == SCATTERED


# Rounding


HINT = "hint: rounding of sums accumulated in another order (atomic additions, split reductions)"
UNIT = 8 * 2.0**-24  # the largest rounding of float32


def off(times, differing=16, elements=16, yy=16.0, **more):
    """Moments whose differing elements are off by so many limits of the size of an element."""
    size = times * UNIT
    return {"sum_dd": differing * size**2 * yy / elements, "yy": yy, **more}


@pytest.mark.parametrize(
    "moments, found",
    [
        (off(0.999), True),
        (off(1.001), False),
        (off(0.999, yy=64.0), True),
        (off(1.001, yy=64.0), False),
        (off(0.0), False),
        ({"sum_dd": 1e-30, "yy": 0.0}, False),
        (off(0.5, mismatched=1), False),
    ],
)
def test_differences_as_small_as_rounding_are_a_hint(moments, found):
    """All elements differ."""
    assert words((4, 4), np.arange(16), **moments) == (HINT if found else "")


@pytest.mark.parametrize("times, found", [(0.999, True), (1.001, False)])
def test_the_size_of_rounding_is_that_of_the_elements_that_differ(times, found):
    moments = off(times, differing=2)
    assert words((4, 4), [3, 8], **moments) == (f"{SCATTERED}; {HINT}" if found else SCATTERED)
    one = measured((4, 4), **moments)
    assert bool(by_rounding(one.moments, one.pair, 2)) is found


def test_a_single_element_may_be_a_rounding():
    for times, found in ((0.999, True), (1.001, False)):
        assert words((1,), [0], **off(times, 1, 1, 1.0)) == (HINT if found else "")


def test_a_coarser_type_has_larger_roundings():
    for dtype, found in (("bfloat16", True), ("float32", False)):
        one = measured((4, 4), dtype=dtype, **off(1000.0))
        assert bool(by_rounding(one.moments, one.pair, 16)) is found


# What has no pattern


def test_without_values_there_is_no_pattern():
    one, found = measured((4, 4)), BitDifferences(16, 0, 16, None)
    lost = one.pair.golden._replace(payload=None, problem="lost")
    for golden in (None, lost, lost._replace(problem="")):
        assert pattern(one._replace(pair=one.pair._replace(golden=golden)), found) == ()
    assert pattern(one._replace(moments=None), found) == ()


def test_the_elements_that_differ(tmp_path):
    files = Files(tmp_path)
    one = measured((4,))
    x, y = files([1.0, 2.0, 3.0, 4.0]), files([1.0, 5.0, 3.0, 5.0])
    pair = one.pair._replace(target=x, golden=y)
    found = differing_elements(one._replace(pair=pair))
    assert (found.number, found.first, found.end, [*found.places]) == (2, 1, 4, [1, 3])
    for change in (
        {"target": None},
        {"golden": None},
        {"golden": x},
        {"golden": x._replace(problem="x", payload=None)},
    ):
        assert differing_elements(one._replace(pair=pair._replace(**change))) is None
    assert differing_elements(one._replace(pair=pair, moments=None)) is None
