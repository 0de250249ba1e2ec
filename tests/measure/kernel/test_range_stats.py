"""What a block holds at the limits of its type, held against plain Python; blocks merge to the whole."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.measure.kernel.range_stats import extremes_of, merge_extremes
from npucmp.model import Extremes
from npucmp.model.dtypes import lookup

HELD_AS = {  # name in the table → the type in memory
    **{name: np.dtype(name) for name in ("bool", "float16", "float32", "float64", "complex64", "complex128")},
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")},
}
FLOATS = [name for name in HELD_AS if lookup(name).kind == "f"]


def counted(values, largest):
    """The same by a loop over Python floats."""
    finite = [value for value in values if math.isfinite(value)]

    def first(test):
        return next((place for place, value in enumerate(values) if test(value)), -1)

    return Extremes(
        elements=len(values),
        nan=sum(map(math.isnan, values)),
        posinf=values.count(math.inf),
        neginf=values.count(-math.inf),
        high=values.count(largest),
        low=values.count(-largest) if largest is not None else 0,
        zeros=values.count(0),
        first_nan=first(math.isnan),
        first_inf=first(math.isinf),
        first_limit=first(lambda value: abs(value) == largest),
        minimum=min(finite, default=math.nan),
        maximum=max(finite, default=math.nan),
    )


def same(a, b):
    return all(x == y or (x != x and y != y) for x, y in zip(a, b))


@st.composite
def blocks(draw):
    """(name, array): any bits, with the special values of a type more often than by chance."""
    name = draw(st.sampled_from(sorted(HELD_AS)))
    dtype = HELD_AS[name]
    if dtype.kind == "b":
        return name, np.array(draw(st.lists(st.booleans(), max_size=20)), bool)
    bits = draw(st.binary(max_size=20 * dtype.itemsize))
    array = np.frombuffer(bits[: len(bits) // dtype.itemsize * dtype.itemsize], dtype).copy()
    if lookup(name).kind == "f":
        largest = lookup(name).largest
        special = [math.nan, 0.0, -0.0, largest, -largest] + [math.inf, -math.inf] * (name != "float8_e4m3fn")
        for place in range(len(array)):
            array[place] = draw(st.sampled_from([array[place], *special]))
    return name, array


@given(blocks())
def test_as_counted_in_plain_python(block):
    name, array = block
    row = lookup(name)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        values = [float(value) for value in (np.abs(array.astype(complex)) if row.kind == "c" else array)]
    assert same(extremes_of(array, row), counted(values, row.largest if row.kind == "f" else None))


@given(blocks(), st.lists(st.integers(0, 20), max_size=3))
def test_blocks_merge_to_the_whole(block, cuts):
    name, array = block
    places = [0, *sorted(min(cut, len(array)) for cut in cuts), len(array)]
    found = Extremes()
    for start, end in zip(places, places[1:]):
        found = merge_extremes(found, extremes_of(array[start:end], lookup(name), start))
    assert same(found, extremes_of(array, lookup(name)))


@pytest.mark.parametrize("name", FLOATS)
def test_the_largest_value_is_a_limit_and_the_one_below_is_not(name):
    dtype, largest = HELD_AS[name], lookup(name).largest
    below = largest * (1 - 2 * lookup(name).round_off)
    found = extremes_of(np.array([below, largest, 1, -largest, -largest], dtype), lookup(name))
    assert (found.high, found.low, found.first_limit, found.maximum) == (1, 2, 1, largest)
    assert extremes_of(np.array([below, -below], dtype), lookup(name)).first_limit == -1


def test_integers_and_complex_numbers_have_no_limit():
    ends = np.iinfo(np.int32)
    found = extremes_of(np.array([ends.min, 0, ends.max], np.int32), lookup("int32"))
    assert (found.high, found.low, found.zeros, found.minimum, found.maximum) == (0, 0, 1, ends.min, ends.max)
    found = extremes_of(
        np.array([3 + 4j, complex(math.nan, 1), complex(1, math.inf)], np.complex64), lookup("complex64")
    )
    assert (found.nan, found.posinf, found.high, found.minimum, found.maximum) == (1, 1, 0, 5, 5)


def test_nothing_finite_has_no_minimum():
    found = extremes_of(np.array([math.nan, -math.inf], np.float16), lookup("float16"), start=10)
    assert (found.first_nan, found.first_inf, found.neginf) == (10, 11, 1)
    assert math.isnan(found.minimum) and math.isnan(found.largest)
