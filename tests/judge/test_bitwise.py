"""The verdict on repeated runs without any tolerance, of crafted measurements; tests/measure/test_bitwise.py reads
files."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.judge.bitwise import judge_bits, same
from npucmp.model import Device, Measurement, Moments, Operator, Pair, Payload, Side, TensorRef, Verdict

OPERATOR = Operator("add.0", "add", "add", "forward", 0, ())
MOMENTS = Moments(8, Side(minimum=1.0, maximum=2.0), Side(minimum=1.0, maximum=2.0), 8, equal=6)


def pair(dtypes=("float32", "float32"), shape=(8,), operator=OPERATOR, **sides):
    target, golden = (TensorRef("output:0", dtype, shape) for dtype in dtypes)
    return Pair(0, "output:0", operator, operator, target, golden, note="no such operator")._replace(**sides)


def require(measurement, verdict, error, metric, words):
    """Require the facts of a finding."""
    found = judge_bits(measurement)
    assert (found.measurement, found.verdict, found.metric) == (measurement, verdict, metric)
    assert repr(found.error) == repr(error) and words in found.because


def stored(folder, name, values, device=None, shape=None, **more):
    (folder / name).write_bytes(values.tobytes())
    payload = Payload(str(folder / name), values.dtype.name, shape or values.shape, 0, device=device, **more)
    return TensorRef("output:0", values.dtype.name, payload.shape, payload.path, payload=payload)


ONES = np.ones(4, np.float32)


@pytest.mark.parametrize(
    "golden, differing",
    [
        ([1.0, -1e9, -1e9, 1.0], 0),
        ([1.0, -1e10, -1e9, 1.0], 1),
        ([1.0, -1e10, -2e9, 1.0], 2),
    ],
)
def test_masks_of_unequal_values_differ(tmp_path, golden, differing):
    """No compared value differs; the payload of a NaN may, beside masks."""
    values = [np.array(one, np.float32) for one in ([1.0, -1e9, -1e9, 1.0], golden)]
    sides = [stored(tmp_path, name, one) for name, one in zip("xy", values)]
    one = Measurement(pair(target=sides[0], golden=sides[1]), MOMENTS._replace(masked=2))
    if differing:
        words = f"{differing} of 8 elements differ, all of them masks"
        require(one, Verdict.DIVERGED, math.nan, "exact_ratio", words)
        unmasked = one._replace(moments=MOMENTS)
        require(unmasked, Verdict.MATCH, 0.0, "", "the same values; 2 differ")
    else:
        require(one, Verdict.MATCH, 0.0, "", "the same values; 2 differ")


def test_a_file_that_is_gone_by_then_is_unreadable(tmp_path):
    sides = [stored(tmp_path, name, ONES) for name in "xy"]
    (tmp_path / "y").unlink()
    one = Measurement(pair(target=sides[0], golden=sides[1]), MOMENTS._replace(masked=2))
    require(one, Verdict.UNREADABLE, None, "", "no such file")


BLOCKS = Device("NC1HWC0", (1, 1, 2, 2, 16), "NCHW")


@pytest.mark.parametrize(
    "target, golden, is_padded",
    [
        ({"device": BLOCKS}, {"device": BLOCKS}, True),
        ({}, {"device": BLOCKS}, False),
        ({"device": BLOCKS}, {}, False),
        ({}, {}, False),
        ({"device": BLOCKS}, {"device": BLOCKS._replace(origin="NHWC")}, False),
        ({"device": BLOCKS, "strides": (9,)}, {"device": BLOCKS}, False),
    ],
)
def test_padding_of_one_layout_explains_equal_values_of_other_bytes(tmp_path, target, golden, is_padded):
    values = np.zeros(64, np.float32)
    sides = [stored(tmp_path, name, values, shape=(1, 2, 2, 2), **one) for name, one in zip("xy", (target, golden))]
    one = Measurement(pair(target=sides[0], golden=sides[1]), MOMENTS._replace(equal=8))
    assert ("uninitialised padding" in judge_bits(one).because) is is_padded
    require(one, Verdict.MATCH, 0.0, "", "the same")
    unread = sides[0]._replace(payload=None, file=f"{tmp_path}/none", encoding="npy")
    assert "padding" not in judge_bits(one._replace(pair=pair(target=unread, golden=sides[1]))).because
    assert "padding" not in judge_bits(one._replace(pair=pair(target=sides[0], golden=unread))).because


@pytest.mark.parametrize(
    "values, is_same",
    [([1.0, 1, 1, 1], True), ([1.0, 1, 1, 2], False), ([1.0, 1, 1, math.nan], False), ([1.0, 1, 1], None)],
)
def test_two_tensors_of_a_slot_are_the_same_if_it_is_known(tmp_path, values, is_same):
    sides = [stored(tmp_path, name, np.array(one, np.float32)) for name, one in (("x", ONES), ("y", values))]
    assert same(*sides, pair()) is is_same
    unknown = TensorRef("output:0", "float32", (4,))
    assert same(sides[0], unknown, pair()) is None
