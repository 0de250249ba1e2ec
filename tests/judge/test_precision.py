"""The precision of values, by their bits, counted here from the values; whole numbers beside floats; terms of sums."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from npucmp.judge.precision import (
    LinearFit,
    Precision,
    coarser_round_off,
    is_counted,
    is_mixed,
    is_quantised,
    linear_fit,
    narrower_dtype,
    round_off_of,
    rounded_to,
    stored_round_off,
    terms_summed,
)
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Measurement, Moments, Operator, Pair, Side, TensorRef

FLOAT16, BFLOAT16, SINGLE = 2.0**-11, 2.0**-8, 2.0**-24  # unit round-off


def side(values) -> Side:
    """The facts on numbers of at most 24 significant bits, from the integers of their significands."""
    parts = [math.frexp(abs(one)) for one in values if one]
    whole = [(int(part * 2**24), exponent - 24) for part, exponent in parts]
    last = [one & -one for one, _ in whole]
    return Side(
        minimum=min(values),
        maximum=max(values),
        bits=max(((one // low).bit_length() for (one, _), low in zip(whole, last)), default=0),
        last_bit=min((low * 2.0**place for (_, place), low in zip(whole, last)), default=math.inf),
        nonzero=float(len(whole)),
        full_8=float(sum(one >> 16 & 1 for one, _ in whole)),
        full_11=float(sum(one >> 13 & 1 for one, _ in whole)),
    )


def held(target, golden=None, dtypes=("float32", "float32"), **change) -> Measurement:
    """Facts on values that both runs have; `change` replaces facts of both sides."""
    both = [np.asarray(one, np.float64).tolist() for one in (target, target if golden is None else golden)]
    x, y = (side(one)._replace(**change) for one in both)
    squares = [sum(value * value for value in one) for one in both]
    moments = Moments(len(both[0]), x, y, len(both[0]), xx=squares[0], yy=squares[1])
    return Measurement(pair_of(*dtypes), moments)


DRAWN = np.random.default_rng(3).standard_normal(64)
FINE = DRAWN.astype(np.float32)
HALF, BRAIN = DRAWN.astype(np.float16).astype(np.float32), DRAWN.astype(ml_dtypes.bfloat16).astype(np.float32)
LAST_8, LAST_11 = 1 + 2.0**-7, 1 + 2.0**-10  # use the 8th and the 11th significant bit


@pytest.mark.parametrize(
    "target, golden, round_off",
    [
        (BRAIN, BRAIN, BFLOAT16),
        (HALF, HALF, FLOAT16),
        (BRAIN, HALF, 0.0),  # a number of bfloat16 seldom uses the last place of float16
        (FINE, FINE, 0.0),
        (FINE, BRAIN, 0.0),
        (BRAIN, FINE, 0.0),
        (np.zeros(64), BRAIN, 0.0),
        (BRAIN, np.zeros(64), 0.0),
        (np.full(64, 0.1875), np.full(64, 0.1875), 0.0),
        (np.arange(1.0, 256.0), np.arange(1.0, 256.0), 0.0),
        (np.arange(1.0, 256.0) / 128, np.arange(1.0, 256.0) / 128, 0.0),  # multiples of one step
        (BRAIN * 2.0**40, BRAIN * 2.0**40, BFLOAT16),  # beyond float16
        (HALF * 2.0**40, HALF * 2.0**40, 0.0),  # beyond it, and with more bits than bfloat16
    ],
)
def test_values_that_a_16_bit_type_rounded_have_its_round_off(target, golden, round_off):
    assert stored_round_off(held(target, golden)) == round_off


@pytest.mark.parametrize("least, both, round_off", [(7, False, 0.0), (8, True, BFLOAT16), (9, True, BFLOAT16)])
def test_an_eighth_of_rounded_values_uses_the_last_place(least, both, round_off):
    """64 values, `least` of them with 8 bits; all others are powers of two."""
    values = [*([LAST_8 * 4] * least), *([1.0] * (64 - least))]
    finest = held(values, last_bit=2.0**-9)
    assert stored_round_off(finest) == round_off
    half = [*([LAST_11 * 4] * least), *([1.0] * (64 - least))]
    assert stored_round_off(held(half, last_bit=2.0**-13)) == (FLOAT16 if both else 0.0)


@pytest.mark.parametrize("squares, round_off", [(4.0, 0.0), (4.01, BFLOAT16), (3.9, 0.0)])
def test_the_spacing_of_usual_values_exceeds_twice_the_finest_spacing(squares, round_off):
    """The root mean square 1 has the spacing 2^-7 in bfloat16; the finest is 2^-8."""
    one = held([LAST_8] * 4, last_bit=2.0**-8)
    moments = one.moments._replace(xx=squares, yy=squares)
    assert stored_round_off(one._replace(moments=moments)) == round_off
    assert stored_round_off(one._replace(moments=moments._replace(xx=3.9))) == 0.0
    assert stored_round_off(one._replace(moments=moments._replace(yy=3.9))) == 0.0


@pytest.mark.parametrize(
    "size, last_bit, round_off",
    [(2.0**23, 1.0, 0.0), (2.0**24, 1.0, BFLOAT16), (2.0**23, 0.5, BFLOAT16), (2.0**10, 2.0, 0.0)],
)
def test_whole_numbers_that_float32_holds_exactly_show_no_rounding(size, last_bit, round_off):
    one = held([size * LAST_8] * 4, last_bit=last_bit)
    usual = one._replace(moments=one.moments._replace(xx=4 * size * size, yy=4 * size * size))
    assert stored_round_off(usual) == round_off


@pytest.mark.parametrize(
    "change, round_off",
    [
        ({"maximum": 65504.0}, FLOAT16),
        ({"maximum": 65536.0}, 0.0),
        ({"minimum": -65536.0}, 0.0),
        ({"last_bit": 2.0**-24}, FLOAT16),  # the smallest subnormal number
        ({"last_bit": 2.0**-25}, 0.0),
        ({"bits": 9}, FLOAT16),
        ({"bits": 8}, BFLOAT16),
        ({"bits": 12}, 0.0),
        ({"bits": 0}, 0.0),
    ],
)
def test_a_type_holds_values_within_its_range_and_bits(change, round_off):
    values = [LAST_11 * 2.0**17, LAST_11, LAST_11, LAST_11]  # squares that bound nothing
    one = held(values, **{"last_bit": 2.0**-10, "maximum": 2.0, "minimum": 1.0, "full_8": 4.0, **change})
    assert stored_round_off(one) == round_off
    for only in ("target", "golden"):
        moments = one.moments._replace(**{only: held(values).moments.target})
        assert stored_round_off(one._replace(moments=moments)) == 0.0  # beyond 65504


def test_a_mask_is_no_value_of_the_type():
    assert stored_round_off(held(HALF, minimum=-3.4028234663852886e38)) == FLOAT16


@pytest.mark.parametrize("function, known", [(stored_round_off, FLOAT16), (rounded_to, "float16")])
def test_float32_and_float64_values_of_both_runs_alone_look_rounded(function, known):
    golden = HALF if function is stored_round_off else FINE
    one = held(HALF, golden)
    for types in (("float32", "float32"), ("float32", "float64"), ("float64", "float64")):
        assert function(held(HALF, golden, types)) == known
    for types in (("float16", "float32"), ("float32", "int32")):
        assert not function(held(HALF, golden, types))
    assert not function(one._replace(moments=None))
    assert not any(function(one._replace(pair=one.pair._replace(**{side: None}))) for side in ("target", "golden"))


def test_the_values_of_the_target_alone_show_a_type():
    assert rounded_to(held(BRAIN, FINE)) == "bfloat16"
    assert rounded_to(held(np.append(BRAIN, 0.0), FINE)) == "bfloat16"
    assert rounded_to(held(HALF, FINE)) == rounded_to(held(HALF, np.append(HALF[1:], FINE[0]))) == "float16"
    assert not rounded_to(held(np.append(HALF[1:], FINE[0]), FINE))  # one value is another number
    assert rounded_to(held(BRAIN, HALF)) == "bfloat16" and not rounded_to(held(BRAIN, BRAIN))
    assert not rounded_to(held(np.full(64, 0.1875), FINE)) and not rounded_to(held(np.zeros(64), FINE))


COUNTED = {
    "bfloat16 cannot hold them": (np.arange(513.0, 1024.0), BFLOAT16),
    "bfloat16 cannot hold the largest": (np.array([0.0, 257.0]), BFLOAT16),
    "float16 can, but its steps are finer": (np.arange(1.0, 512.0), FLOAT16),
    "also those below 0": (-np.arange(1.0, 512.0), FLOAT16),
    "nine bits at the largest place": (np.array([511.0, 1023.0]), FLOAT16),
}
ROUNDED = {
    "a mask of whole numbers needs few bits": (np.array([0.0, 1.0, 200.0]), FLOAT16),
    "all whole numbers of eight bits are numbers of bfloat16": (np.arange(129.0, 256.0), BFLOAT16),
    "steps as coarse as 1 come from rounding": (np.array([1024.0, 1023.0]), FLOAT16),
    "below 0 too": (np.array([-1024.0, 1023.0]), FLOAT16),
    "halves are no whole numbers": (np.arange(0.5, 400.0), FLOAT16),
}


@pytest.mark.parametrize("values, round_off", [*COUNTED.values(), *ROUNDED.values()], ids=[*COUNTED, *ROUNDED])
def test_whole_numbers_that_were_counted(values, round_off):
    expected = any(values is one for one, _ in COUNTED.values())
    assert is_counted(held(values), round_off) == expected


def test_both_sides_are_counts():
    """The other side may be a mask, or hold halves."""
    for count, round_off in ((np.arange(1.0, 512.0), FLOAT16), (np.arange(513.0, 1024.0), BFLOAT16)):
        for other in ([1.0, 200.0], [0.5, 300.0], [1.0, 1024.0]):
            assert not is_counted(held(count, other), round_off) and not is_counted(held(other, count), round_off)
    assert not is_counted(Measurement(pair_of("float32", "float32")), FLOAT16)
    assert not is_counted(held(np.arange(513.0, 1024.0)), 0.0)


X = np.random.default_rng(2).standard_normal(500)
STEPS = np.round(X / 0.01)


def pair_of(target, golden) -> Pair:
    operator = Operator("quantise.0", "quantise", "quantise", "forward", 0, ())
    return Pair(0, "output:0", operator, operator, *(TensorRef("output:0", one, X.shape) for one in (target, golden)))


def mixed(target, golden, types=("int8", "float32")) -> Measurement:
    moments = measure_block(*(np.asarray(one, np.float64) for one in (target, golden)), BARS)
    return Measurement(pair_of(*types), moments)


BARS = bars_for("float64", "float64", 0.0, 0.0)


@pytest.mark.parametrize(
    "measurement, counts",
    [
        (mixed(STEPS, X), True),
        (mixed(X, STEPS, ("float32", "int32")), True),
        (mixed(STEPS, X, ("int64", "float32")), False),  # wider than a sum of products
        (mixed(STEPS, X, ("float32", "float32")), False),
        (mixed(STEPS, X, ("int8", "int8")), False),
        (mixed(np.round(X), X), False),  # off by less than one step
        (mixed(np.round(100 * X), np.round(100 * X) + np.eye(1, 500)[0] * 9), False),  # the numbers themselves
        (mixed(STEPS[::-1], X), False),  # no scale relates the two
        (mixed(np.where(X > 0, 1.0, 0.0), np.where(X > 0, 1.5, 0.0)), False),  # a difference below one step
        (mixed(np.full(500, 7.0), X), True),
        (mixed(STEPS, np.where(X > 2, np.nan, X)), True),  # unknown: sums of NaN do not decide
        (mixed(STEPS + 2.0**40, X, ("int32", "float32")), True),  # the spread is below the rounding of the sums
        (mixed(STEPS, X * 1e200, ("int32", "float64")), True),  # the squares exceed float64
        (Measurement(pair_of("int8", "float32")), False),
    ],
)
def test_whole_numbers_that_may_count_the_steps_of_floats(measurement, counts):
    assert is_quantised(measurement) is counts


def test_the_linear_map_of_floats_to_whole_numbers():
    for measurement in (mixed(STEPS, X), mixed(X, STEPS, ("float32", "int8"))):
        fit = linear_fit(measurement)
        assert fit.correlation == pytest.approx(np.corrcoef(STEPS, X)[0, 1]) and not fit.is_identity
        assert fit.left == pytest.approx(1 / 12, rel=0.2) and not fit.is_far  # rounding to the nearest
    whole = np.round(100 * X)
    assert linear_fit(mixed(whole, whole)).is_identity and not linear_fit(mixed(whole, 2 * whole)).is_identity
    constant = linear_fit(mixed(np.full(500, 7.0), X))
    assert (constant.correlation, constant.left, constant.is_identity) == (0.0, 0.0, False)
    assert linear_fit(mixed(STEPS[::-1], X)).is_far
    for unknown in (mixed(STEPS, np.where(X > 2, np.nan, X)), mixed(STEPS + 2.0**40, X), mixed(STEPS, X * 1e200)):
        assert linear_fit(unknown) is None
    assert linear_fit(Measurement(pair_of("int8", "float32")._replace(target=None), mixed(STEPS, X).moments)) is None


@pytest.mark.parametrize(
    "correlation, left, is_far",
    [(0.29, 0.34, True), (0.31, 0.34, False), (0.3, 0.34, False), (0.29, 4 / 12, False), (-1.0, 0.34, True)],
)
def test_a_fit_is_far_if_it_explains_little_and_leaves_more_than_rounding(correlation, left, is_far):
    assert LinearFit(correlation, left, False).is_far is is_far


@pytest.mark.parametrize("scale, is_identity", [(1.0, True), (1.09, True), (1.11, False), (0.91, True), (0.89, False)])
def test_numbers_are_compared_themselves_if_most_are_equal_and_the_scale_is_1(scale, is_identity):
    """Four of seven numbers are equal; the others have all the size."""
    whole, floats = np.array([0.0, 0, 0, 0, 100, -100, 0]), np.array([0.0, 0, 0, 0, 100 / scale, -100 / scale, 0])
    assert linear_fit(mixed(whole, floats)).is_identity is is_identity


@pytest.mark.parametrize("equal, of, is_identity", [(1, 3, False), (2, 4, False), (3, 5, True)])
def test_more_than_half_of_the_numbers_are_equal_if_they_are_compared_themselves(equal, of, is_identity):
    whole = np.array([*([0.0] * equal), 100, -100][:of])
    assert linear_fit(mixed(whole, whole * 1.001)).is_identity is is_identity


@pytest.mark.parametrize("change", [{"mismatched": 1}, {"masked": 2}, {"compared": 0}])
def test_sums_without_all_elements_fit_nothing(change):
    one = mixed(STEPS, X)
    assert linear_fit(one._replace(moments=one.moments._replace(**change))) is linear_fit(Measurement(one.pair)) is None


def test_the_fit_of_constants():
    """A constant has no slope; what is left of whole numbers is their variance."""
    floats, whole = mixed(STEPS, np.full(500, 7.0)), mixed(np.full(500, 7.0), np.full(500, 7.0))
    assert linear_fit(floats)[:2] == (0.0, pytest.approx(np.var(STEPS)))
    assert linear_fit(whole) == (0.0, 0.0, False)
    falling = linear_fit(mixed(-STEPS, X))
    assert falling.correlation == pytest.approx(-1, abs=1e-3) and falling.left == pytest.approx(np.var(STEPS))


@pytest.mark.parametrize("off, counts", [(1.0, False), (1.5, True)])
def test_steps_differ_from_floats_by_more_than_one(off, counts):
    floats = np.array([1.0, 4.0, 9.0, 2.0])
    assert is_quantised(mixed(floats + np.array([0, -off, off / 2, off]), floats)) is counts


def one_sided(target, golden):
    """A pair of types, of which one may be missing."""
    pair = pair_of(target or "float32", golden or "float32")
    return pair._replace(**{name: None for name, one in (("target", target), ("golden", golden)) if one is None})


@pytest.mark.parametrize(
    "target, golden, mixed",
    [
        ("int8", "float32", True),
        ("bfloat16", "uint8", True),
        ("bool", "float16", True),
        ("float32", "float32", False),
        ("int8", "int64", False),
        ("int8", "complex64", False),
        ("odd word", "float32", False),
        ("float32", None, False),
        (None, "int8", False),
    ],
)
def test_whole_numbers_beside_floats_are_mixed(target, golden, mixed):
    assert is_mixed(one_sided(target, golden)) is mixed


@pytest.mark.parametrize(
    "target, golden, round_off, narrower",
    [
        ("float32", "bfloat16", BFLOAT16, "bfloat16"),
        ("bfloat16", "float32", BFLOAT16, "bfloat16"),
        ("float16", "int64", FLOAT16, "float16"),
        ("int64", "int8", 0.0, "int64"),
        ("odd word", "float32", SINGLE, "float32"),
        ("float16", None, FLOAT16, "float16"),
        (None, "float16", FLOAT16, "float16"),
    ],
)
def test_the_coarser_type_of_a_pair(target, golden, round_off, narrower):
    pair = one_sided(target, golden)
    assert (round_off_of(pair), narrower_dtype(pair)) == (round_off, narrower)


def test_the_coarsest_of_several_types():
    assert coarser_round_off("float32", "bfloat16", "float64", "int8") == BFLOAT16
    assert (
        coarser_round_off("int8")
        == Precision().round_off
        == coarser_round_off()
        == coarser_round_off("int8", "odd word")
        == 0.0
    )
    assert round_off_of(pair_of("float32", "float32")._replace(target=None, golden=None)) == 0.0


@pytest.mark.parametrize(
    "op_type, phase, read, output, terms",
    [
        ("matmul", "forward", {"input:0": (8, 32), "input:1": (32, 2)}, (8, 2), 32.0),
        ("linear", "forward", {"input:0": (8, 32), "input:1": (2, 32), "input:2": (2,)}, (8, 2), 32.0),
        ("linear", "forward", {"input:0": (8, 32), "param:weight": (2, 32), "param:bias": (2,)}, (8, 2), 32.0),
        ("conv2d", "forward", {"input:0": (1, 3, 8, 8), "param:weight": (4, 3, 5, 5)}, (1, 4, 8, 8), 75.0),
        ("rnn", "forward", {"param:a": (4, 8), "param:b": (4, 16), "param:c": (64,)}, (9,), 16.0),
        ("linear", "forward", {"input:0": (8, 32)}, (8, 2), 16.0),
        ("sum", "forward", {"input:0": (8, 32)}, (8,), 32.0),
        ("sum", "forward", {"input:0": (9, 7), "input:1": (3,)}, (4, 2), 7.0),  # the largest, whole steps
        ("add", "forward", {"input:0": (8,), "input:1": (8,)}, (8,), 1.0),
        ("sum", "forward", {}, (8,), 1.0),
        ("linear", "forward", {}, (8, 2), 1.0),
        ("sum", "forward", {"input:0": (8, 32)}, (), 1.0),
        ("sum", "forward", {"input:0": (8, 32)}, (0, 3), 1.0),
        ("linear", "backward", {"input:0": (8, 32)}, (32, 4), 8.0),
        ("linear", "backward", {"input:0": (8, 30)}, (32,), 7.0),
        ("mul", "backward", {"input:0": (8, 32)}, (), 256.0),
        ("linear", "backward", {"input:0": (2, 8, 32)}, (2, 8, 4), 1.0),  # three axes are no parameter
        ("conv2d", "backward", {"input:0": (2, 8, 4, 4)}, (8, 3, 5, 5), 32.0),
        ("linear", "backward", {}, (32, 4), 1.0),
        ("linear", "backward", {"input:0": (8, 32), "param:weight": (32, 4)}, (32, 4), 8.0),
    ],
)
def test_the_terms_of_an_output_follow_from_shapes(op_type, phase, read, output, terms):
    tensors = [TensorRef(slot, "float32", shape) for slot, shape in {**read, "output:0": output}.items()]
    operator = Operator("one", op_type, op_type, phase, 0, tuple(tensors))
    assert terms_summed(operator, tensors[-1]) == terms
    assert terms_summed(operator, tensors[-1].in_slot("input:0")) == 1.0


def test_a_shape_that_no_memory_holds_has_bounded_terms():
    big = TensorRef("input:0", "float32", (10**400,)), TensorRef("param:weight", "float32", (2, 10**400))
    one = TensorRef("output:0", "float32", (1,))
    for op_type, tensors in (("sum", big[:1]), ("linear", big)):
        assert terms_summed(Operator("one", op_type, op_type, "forward", 0, (*tensors, one)), one) == 2.0**62
