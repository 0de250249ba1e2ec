"""In which logical shape two tensors are compared, and that the values then really are those of the network."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from npucmp.align.axis_order import settle_axes
from npucmp.measure.pairs import measure
from npucmp.model import Device, Operator, Pair, Payload, Statistics, TensorRef, Verdict
from tests.dump.readers import craft_cann as craft

ACTIVATION, WEIGHT, MATRIX = "NC1HWC0", "FRACTAL_Z", "FRACTAL_NZ"


def stored(layout, shape, logical=None, order="", path="x", groups=1) -> TensorRef:
    """A tensor in a device's layout; without `logical` its header had no original shape."""
    device = Device(layout, shape, order, groups)
    logical = logical or shape
    return TensorRef(
        "output:0", "float32", logical, path, layout=layout, payload=Payload(path, "float32", logical, 0, device=device)
    )


def plain(shape, layout="", path="y") -> TensorRef:
    return TensorRef("output:0", "float32", shape, path, layout=layout, payload=Payload(path, "float32", shape, 0))


def pair(target, golden) -> Pair:
    one, other = (Operator(name, "", name, "", 0, ()) for name in ("a", "b"))
    return Pair(0, "output:0", one if target else None, other if golden else None, target, golden)


def settled(*pairs) -> list:
    """(shape, order of axes) of target and golden of every pair; the order is "" where none is undone."""
    return [tuple(_seen(one) for one in (found.target, found.golden) if one) for found in settle_axes(pairs)]


def _seen(tensor):
    device = tensor.payload.device
    return tensor.shape, device.origin if device else ""


LAST, FIRST, SQUARE = (2, 8, 12, 20), (2, 20, 8, 12), (2, 16, 16, 16)  # channels last, channels first, who knows
FIVE, EVEN, KERNEL = (ACTIVATION, (2, 2, 8, 12, 16)), (ACTIVATION, (2, 1, 16, 16, 16)), (WEIGHT, (9, 2, 16, 16))
SINGLE = [
    ("by the partner's shape", stored(*FIVE), plain(LAST), LAST, "NHWC"),
    ("by the partner's other order", stored(*FIVE), plain(FIRST), FIRST, "NCHW"),
    ("by its own shape", stored(*FIVE, LAST), None, LAST, "NHWC"),
    ("the partner's before its own", stored(*FIVE, FIRST), plain(LAST), LAST, "NHWC"),
    ("its own where the partner's does not fit", stored(*FIVE, FIRST), plain((7,)), FIRST, "NCHW"),
    ("a weight", stored(*KERNEL), plain((3, 3, 3, 20)), (3, 3, 3, 20), "HWCN"),
    ("a weight, N first", stored(*KERNEL), plain((20, 3, 3, 3)), (20, 3, 3, 3), "NCHW"),
    ("a matrix", stored(MATRIX, (2, 1, 16, 16)), plain((10, 20)), (10, 20), "ND"),
    ("a known order", stored(*EVEN, SQUARE, "NHWC"), plain(SQUARE), SQUARE, "NHWC"),
    ("an order that nothing tells", stored(*EVEN), plain(SQUARE), SQUARE, "NCHW"),
    ("NCHW against NHWC", plain(FIRST, "NCHW"), plain(LAST, "NHWC"), LAST, "NHWC"),
    ("HWCN against NCHW", plain((3, 3, 4, 20), "HWCN"), plain((20, 4, 3, 3), "NCHW"), (20, 4, 3, 3), "NCHW"),
]  # fmt: skip


@pytest.mark.parametrize("target, golden, shape, order", [row[1:] for row in SINGLE], ids=[row[0] for row in SINGLE])
def test_one_pair(target, golden, shape, order):
    assert settled(pair(target, golden))[0][0] == (shape, order)


def test_either_side_may_be_the_device():
    target, golden = settled(pair(plain((2, 8, 12, 20)), stored(ACTIVATION, (2, 2, 8, 12, 16))))[0]
    assert target == (golden[0], "") and golden == ((2, 8, 12, 20), "NHWC")


def test_only_one_side_moves():
    nchw, nhwc = ((2, 20, 8, 12), "NCHW"), ((2, 8, 12, 20), "NHWC")
    here, there = stored(ACTIVATION, (2, 2, 8, 12, 16), *nchw), stored(ACTIVATION, (2, 2, 8, 12, 16), *nhwc)
    assert settled(pair(plain(*nchw), plain(*nhwc))) == [(nhwc, (nhwc[0], ""))]
    assert settled(pair(here, plain(*nhwc))) == [(nhwc, (nhwc[0], ""))]
    assert settled(pair(plain(*nhwc), here)) == [((nhwc[0], ""), nhwc)]
    assert settled(pair(here, there)) == [(nhwc, nhwc)]


def test_the_layout_of_a_plain_partner_tells_the_order():
    assert settled(pair(plain((2, 4, 4, 4), "NCHW"), plain((2, 4, 4, 4), "NHWC")))[0][0] == ((2, 4, 4, 4), "NHWC")
    one = pair(stored(ACTIVATION, (2, 1, 16, 16, 16)), plain((2, 16, 16, 16), "NHWC"))
    assert settled(one)[0][0] == ((2, 16, 16, 16), "NHWC")


def test_two_devices_meet_in_the_shape_that_one_of_them_knows():
    known, unknown = (
        stored(ACTIVATION, (2, 2, 8, 12, 16), (2, 8, 12, 20), "NHWC"),
        stored(ACTIVATION, (2, 2, 8, 12, 16)),
    )
    assert settled(pair(unknown, known)) == [(((2, 8, 12, 20), "NHWC"),) * 2]
    assert settled(pair(known, unknown)) == [(((2, 8, 12, 20), "NHWC"),) * 2]


def test_a_stored_shape_is_no_shape_of_the_partner():
    """The golden's logical shape is unknown; its stored one would fit the blocks of the target."""
    known, unknown = stored(ACTIVATION, (2, 1, 1, 16, 16), (2, 1, 16, 10), "NHWC"), stored(MATRIX, (2, 1, 16, 16))
    assert settled(pair(known, unknown))[0][0] == ((2, 1, 16, 10), "NHWC")
    assert settled(pair(unknown, known))[0][1] == ((2, 1, 16, 10), "NHWC")
    assert settled(pair(known, plain((2, 1, 16, 16))))[0][0] == ((2, 1, 16, 16), "NHWC")


AMBIGUOUS = pair(stored(ACTIVATION, (2, 1, 16, 16, 16)), plain((2, 16, 16, 16)))
CLEAR = {
    "NHWC": pair(stored(ACTIVATION, (2, 1, 16, 16, 16)), plain((2, 16, 16, 3))),
    "NCHW": pair(stored(ACTIVATION, (2, 1, 16, 16, 16)), plain((2, 3, 16, 16))),
}


@pytest.mark.parametrize(
    "others, order", [(["NHWC"], "NHWC"), (["NCHW"], "NCHW"), (["NHWC", "NHWC", "NCHW"], "NHWC")], ids=str
)
def test_the_others_decide_what_a_shape_leaves_open(others, order):
    assert settled(AMBIGUOUS, *(CLEAR[one] for one in others))[0][0] == ((2, 16, 16, 16), order)
    assert settled(*(CLEAR[one] for one in others), AMBIGUOUS)[-1][0] == ((2, 16, 16, 16), order)


def test_weights_do_not_decide_for_activations():
    weight = pair(stored(WEIGHT, (9, 1, 16, 16)), plain((16, 3, 3, 3)))  # NHWC or NCHW, no witness
    clear = pair(stored(WEIGHT, (9, 1, 16, 16)), plain((3, 3, 3, 16)))
    assert settled(AMBIGUOUS, weight, clear)[0][0] == ((2, 16, 16, 16), "NCHW")


UNTOUCHED = [
    ("plain tensors", pair(plain((2, 3)), plain((2, 3)))),
    ("the same plain layout", pair(plain((2, 8, 8, 3), "NHWC"), plain((2, 8, 8, 3), "NHWC"))),
    ("no values", pair(TensorRef("output:0", "float32", (2, 3), layout=ACTIVATION), plain((2, 3)))),
    ("an unknown layout", pair(plain((2, 3), "FRACTAL_DECONV"), plain((3, 2)))),
    (
        "a plain golden of a device's layout",
        pair(plain((2, 8, 12, 20), "NHWC"), TensorRef("output:0", "float32", (9,))),
    ),
    ("plain layouts that do not fit", pair(plain((2, 20, 8, 12), "NCHW"), plain((5, 5), "ND"))),
]


@pytest.mark.parametrize("one", [row[1] for row in UNTOUCHED], ids=[row[0] for row in UNTOUCHED])
def test_nothing_to_do(one):
    assert settle_axes([one])[0] is one


def test_a_shape_that_nothing_tells_is_read_as_it_lies_but_not_compared_with_another():
    alone = settle_axes([pair(stored(ACTIVATION, (2, 1, 4, 4, 16)), None)])[0].target
    assert (alone.shape, alone.payload.device, alone.problem) == ((2, 1, 4, 4, 16), None, "")
    unlike = settle_axes([pair(stored(ACTIVATION, (2, 1, 4, 4, 16)), plain((5, 5)))])[0].target
    assert unlike.problem == (
        "layout NC1HWC0 of stored shape [2, 1, 4, 4, 16] cannot hold shape [5, 5], and no record gives its own shape"
    )
    same = settle_axes([pair(*(stored(ACTIVATION, (2, 1, 4, 4, 16), path=path) for path in "xy"))])[0]
    assert (same.target.payload.device, same.golden.payload.device) == (None, None)


def raw(tmp_path, name, values) -> str:
    path = tmp_path / name
    path.write_bytes(np.ascontiguousarray(values, np.float32).tobytes())
    return str(path)


def five(nhwc) -> np.ndarray:
    """NC1HWC0 of an NHWC array, the padding full of rubbish."""
    n, h, w, c = nhwc.shape
    padded = np.full((n, h, w, -(-c // 16) * 16), np.nan, np.float32)
    padded[..., :c] = nhwc
    return padded.reshape(n, h, w, -1, 16).transpose(0, 3, 1, 2, 4)


@pytest.mark.parametrize("golden_order", [(0, 1, 2, 3), (0, 3, 1, 2)], ids=["NHWC", "NCHW"])
def test_values_compare(tmp_path, golden_order):
    x = np.random.default_rng(1).standard_normal((2, 5, 6, 20)).astype(np.float32)
    other = x.transpose(golden_order)
    target = stored(ACTIVATION, five(x).shape, path=raw(tmp_path, "x", five(x)))
    golden = plain(other.shape, path=raw(tmp_path, "y", other))
    moments = measure(settle_axes([pair(target, golden)])[0]).moments
    assert (moments.elements, moments.equal, moments.target.nan) == (x.size, x.size, 0)


def test_plain_orders_compare(tmp_path):
    x = np.random.default_rng(1).standard_normal((2, 5, 6, 20)).astype(np.float32)
    target = plain((2, 20, 5, 6), "NCHW", raw(tmp_path, "x", x.transpose(0, 3, 1, 2)))
    golden = plain(x.shape, "NHWC", raw(tmp_path, "y", x))
    assert measure(settle_axes([pair(target, golden)])[0]).moments.equal == x.size


def test_the_wrong_order_would_not_compare(tmp_path):
    """The votes matter: the same bytes read as NCHW are other values."""
    x = np.random.default_rng(1).standard_normal((2, 16, 16, 16)).astype(np.float32)
    target = stored(ACTIVATION, five(x).shape, path=raw(tmp_path, "x", five(x)))
    one = pair(target, plain(x.shape, path=raw(tmp_path, "y", x)))
    assert measure(settle_axes([one, CLEAR["NHWC"]])[0]).moments.equal == x.size
    assert measure(settle_axes([one, CLEAR["NCHW"]])[0]).moments.equal < x.size


# ---- statistics of stored tensors ----

HEADER = "Input/Output,Index,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Nan Count,l2norm"


def statistics_row(role, format, stored_shape, values, factor=1.0):
    """What a device records of values in its own layout: zeros pad them up to whole blocks."""
    padded = np.zeros(np.prod(stored_shape), np.float32)
    padded[: values.size] = factor * values.reshape(-1)
    figures = padded.max(), padded.min(), padded.mean(dtype=np.float64), 0, np.linalg.norm(padded.astype(np.float64))
    return ",".join([role, "0", "DT_FLOAT", format, "x".join(map(str, stored_shape)), *map(repr, map(float, figures))])


def compared_statistics(tmp_path, format, stored_shape, logical, factor=1.0, positive=False):
    """The verdict on the output of an operator: statistics of the target's device against values of the golden."""
    x, y = (np.random.default_rng(seed).standard_normal(logical).astype(np.float32) for seed in (1, 2))
    y = np.abs(y) + 1 if positive else y
    rows = [statistics_row("Input", format, stored_shape, x), statistics_row("Output", format, stored_shape, y, factor)]
    name = f"Relu.a.1.2.{craft.TIME}"
    craft.save(tmp_path / "golden", **{name: craft.v2([craft.tensor(x)], [craft.tensor(y)])})
    craft.save(tmp_path / "target", **{f"{name}.csv": "\n".join([HEADER, *rows, ""]).encode()})
    result = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    return next(one for one in result.findings if one.pair.slot == "output:0"), result.roots


STATISTICS_PAIRS = [
    ("NC1HWC0", (2, 2, 16, 16, 16), (2, 16, 16, 24)),  # with padding
    ("NC1HWC0", (2, 2, 16, 16, 16), (2, 32, 16, 16)),
    ("FRACTAL_NZ", (2, 1, 16, 16), (10, 20)),
    ("NCHW", (2, 20, 8, 12), (2, 8, 12, 20)),
]


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("format, stored_shape, logical", STATISTICS_PAIRS)
def test_statistics_of_a_stored_tensor_are_those_of_its_logical_shape(
    tmp_path, format, stored_shape, logical, positive
):
    finding, roots = compared_statistics(tmp_path, format, stored_shape, logical, positive=positive)
    assert (finding.verdict, roots) == (Verdict.UNKNOWN, ())


@pytest.mark.parametrize("format, stored_shape, logical", STATISTICS_PAIRS)
def test_other_statistics_of_a_stored_tensor_prove_a_difference(tmp_path, format, stored_shape, logical):
    finding, _ = compared_statistics(tmp_path, format, stored_shape, logical, factor=1.5)
    assert finding.verdict is Verdict.DIVERGED


def test_a_layout_that_cannot_hold_a_shape_is_another_shape(tmp_path):
    finding, _ = compared_statistics(tmp_path, "NC1HWC0", (2, 2, 16, 16, 16), (2, 16, 16, 14))
    assert finding.verdict is Verdict.SHAPE


@pytest.mark.parametrize("channels, ratio", [(16, 1), (8, 2), (4, 4)])
@pytest.mark.parametrize("extreme", [0.0, 1.0, -1.0])
def test_statistics_lose_the_zeros_of_padding(channels, ratio, extreme):
    """An extreme of 0 may be padding, of which a layout of 16 channels for as many has none."""
    one = TensorRef("output:0", "float32", (2, 1, 5, 5, 16), layout="NC1HWC0",
                    statistics=Statistics(extreme, extreme, 0.25, 3.0))  # fmt: skip
    other = TensorRef("output:0", "float32", (2, channels, 5, 5))
    for turned in (False, True):
        sides = (other, one) if turned else (one, other)
        (found,) = settle_axes([Pair(0, "output:0", None, None, *sides)])
        found = found.golden if turned else found.target
        known = None if ratio > 1 and extreme == 0 else extreme
        assert found.shape == other.shape and found.statistics == Statistics(known, known, 0.25 * ratio, 3.0)
