"""Pairs of .npy files, statistics and checksums → Measurements."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from npucmp.measure.pairs import measure
from npucmp.measure.recorded_stats import lower_bounds
from npucmp.model import Operator, Pair, Statistics, TensorRef

OPERATOR = Operator("add.0", "add", "add", "forward", 0, ())


def tensor(folder, name, values, **said) -> TensorRef:
    """Writes the values; the record says the same as the file unless told otherwise."""
    values = np.asarray(values)
    file = str(folder / f"{name}.npy")
    np.save(file, values)
    return TensorRef("output:0", values.dtype.name, values.shape, file, "npy", label=name)._replace(**said)


def recorded(shape=(2, 3), dtype="float32", **more) -> TensorRef:
    return TensorRef("output:0", dtype, shape, **more)


def pair(target, golden) -> Pair:
    return Pair(0, "output:0", OPERATOR if target else None, OPERATOR if golden else None, target, golden)


def compare(folder, x, y, **said):
    return measure(pair(tensor(folder, "x", x, **said), tensor(folder, "y", y)))


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "said, words",
    [
        ({"shape": (3, 2)}, "target: the file holds shape [2, 3], the dump says [3, 2]"),
        ({"shape": ()}, "target: the file holds shape [2, 3], the dump says []"),
        ({"dtype": "float64"}, "target: the file holds float32, the dump says float64"),
        ({"dtype": "int32"}, "target: the file holds float32, the dump says int32"),
        ({"problem": "refused: outside"}, "target: refused: outside"),
        ({"file": "/nowhere/at/all.npy"}, "target: "),
        ({"file": "/nowhere/a\0b.npy"}, "target: "),
        ({"file": "/nowhere/\ud800.npy"}, "target: "),
        ({"encoding": "hdf9"}, "target: files of encoding 'hdf9' cannot be read"),
        ({"encoding": ""}, "target: "),
        ({"encoding": "torch_pt"}, "target: "),
    ],
)
def test_trouble_with_one_side_is_a_problem(tmp_path, said, words):
    found = compare(tmp_path, ARRAY, ARRAY, **said)
    assert found.problem.startswith(words) and found.moments is None
    one_sided = measure(pair(None, tensor(tmp_path, "y", ARRAY, **said)))
    assert one_sided.problem.startswith(words.replace("target", "golden"))


@pytest.mark.parametrize(
    "stored, said", [("float32", "bfloat16"), ("float32", "float8_e4m3fn"), ("float32", "odd word")]
)
def test_stored_wider_than_recorded(tmp_path, stored, said):
    found = compare(tmp_path, ARRAY.astype(stored), ARRAY, dtype=said)
    assert (found.problem, found.moments.equal) == ("", 6)


@pytest.mark.parametrize("lowest, is_known", [(-65504.0, False), (-1e4, False), (-12.0, True)])
def test_masks_of_two_types_prove_no_difference(lowest, is_known):
    """Attention scores in float16 and float32: "minus infinity" is another number, and decides mean and norm."""
    target = Statistics(3.0, lowest, lowest / 2, -lowest * 4)
    golden = Statistics(3.0, -3.4028234663852886e38, -1.7e38, 2.7e38)
    x, y = recorded((8, 8), "float16", statistics=target), recorded((8, 8), statistics=golden)
    assert (measure(pair(x, y)).bound or 0.0) == pytest.approx(5.04 if is_known else 0.0, rel=0.01)


def statistics(values) -> Statistics:
    return Statistics(
        max(values), min(values), math.fsum(values) / len(values), math.sqrt(math.fsum(v * v for v in values))
    )


VALUE = st.floats(-1e6, 1e6, allow_subnormal=False).filter(lambda v: v == 0 or abs(v) > 1e-6)


@given(st.lists(st.tuples(VALUE, VALUE), min_size=1, max_size=30))
@example([(1.0, 1.0), (1.0, -1.0)])
@example([(2.0, 1.0)] * 30)
@example([(1.0, 1.0)] * 29 + [(2.0, 1.0)])
def test_lower_bound_is_below_the_truth(values):
    x, y = zip(*values)
    golden = math.sqrt(math.fsum(b * b for b in y))
    distance = math.sqrt(math.fsum((a - b) ** 2 for a, b in values))
    truth = distance / golden if golden else (math.inf if distance else 0.0)
    rounding = 1e-15 * len(x) * max(map(abs, x + y)) / golden if golden else 0.0  # of the statistics themselves
    for recorded_of_golden in (statistics(y), statistics(y)._replace(norm=None)):
        (bound,) = lower_bounds([statistics(x)], [recorded_of_golden], [len(x)], [0.0])
        assert bound <= truth * (1 + 1e-12) + rounding


def test_memory_does_not_grow_with_the_tensor(tmp_path):
    values = np.arange(2**23, dtype=np.float32)  # 32 MB a side
    sides = tensor(tmp_path, "x", values), tensor(tmp_path, "y", values[::-1])
    del values
    tracemalloc.start()
    try:
        found = measure(pair(*sides))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.bytes_read == 64 * 2**20 and found.moments.elements == 2**23
    assert peak < 30 * 2**20
