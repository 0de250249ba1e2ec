"""In which logical shape two tensors are compared, and that the values then really are those of the network."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from npucmp.align.device_layout import settle_axes
from npucmp.measure.pairs import measure
from npucmp.model import Device, Operator, Pair, Payload, TensorRef, Verdict
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


def test_the_layout_of_a_plain_partner_tells_the_order():
    assert settled(pair(plain((2, 4, 4, 4), "NCHW"), plain((2, 4, 4, 4), "NHWC")))[0][0] == ((2, 4, 4, 4), "NHWC")
    one = pair(stored(ACTIVATION, (2, 1, 16, 16, 16)), plain((2, 16, 16, 16), "NHWC"))
    assert settled(one)[0][0] == ((2, 16, 16, 16), "NHWC")


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


def test_plain_orders_compare(tmp_path):
    x = np.random.default_rng(1).standard_normal((2, 5, 6, 20)).astype(np.float32)
    target = plain((2, 20, 5, 6), "NCHW", raw(tmp_path, "x", x.transpose(0, 3, 1, 2)))
    golden = plain(x.shape, "NHWC", raw(tmp_path, "y", x))
    assert measure(settle_axes([pair(target, golden)])[0]).moments.equal == x.size


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


@pytest.mark.parametrize("format, stored_shape, logical", STATISTICS_PAIRS)
def test_other_statistics_of_a_stored_tensor_prove_a_difference(tmp_path, format, stored_shape, logical):
    finding, _ = compared_statistics(tmp_path, format, stored_shape, logical, factor=1.5)
    assert finding.verdict is Verdict.DIVERGED


def test_a_layout_that_cannot_hold_a_shape_is_another_shape(tmp_path):
    finding, _ = compared_statistics(tmp_path, "NC1HWC0", (2, 2, 16, 16, 16), (2, 16, 16, 14))
    assert finding.verdict is Verdict.SHAPE
