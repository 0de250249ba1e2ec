"""Statistics of tensors that are read side by side: one that cannot be read costs no other."""

import math

import numpy as np
import pytest

from npucmp.measure import tensor_stats
from npucmp.measure.tensor_stats import StatsTask, TensorStats, figures_of, from_record, work_through
from npucmp.model import Statistics, TensorRef
from npucmp.model.moments import Extremes


def saved(folder, name, values):
    file = folder / f"{name}.npy"
    np.save(file, np.asarray(values, np.float32))
    return TensorRef("input:0", "float32", np.shape(values), str(file), "npy")


def test_tensors_of_several_shapes_and_files_that_end_early(tmp_path):
    small, large = saved(tmp_path, "small", [1.0, 2.0]), saved(tmp_path, "large", [[3.0, 4.0], [5.0, -6.0]])
    broken = saved(tmp_path, "broken", np.ones(5000))
    with open(broken.file, "r+b") as file:
        file.truncate(1000)
    for tensors in ((small, large), (large, small, broken), (broken, small), (small._replace(problem="odd"), large)):
        found = figures_of(StatsTask(tensors))
        assert found.bytes_read == sum(16 if one is large else 8 if one is small else 0 for one in tensors)
        assert len(found.figures) == len(tensors) and not found.found
        for one, figures in zip(tensors, found.figures):
            assert bool(figures.problem) is (one is broken or one.problem == "odd")
            assert one is not small or (figures.minimum, figures.maximum, figures.mean) == (1.0, 2.0, 1.5)
            assert one is not large or (figures.minimum, figures.maximum, figures.largest) == (-6.0, 5.0, 6.0)
        assert [one.figures for one in work_through([StatsTask(tensors)])] == [found.figures]
    assert figures_of(StatsTask((broken,))).figures[0].problem and not figures_of(StatsTask(())).figures


def extremes(low, high, zeros=0, nan=0, elements=4):
    return Extremes(elements=elements, minimum=low, maximum=high, zeros=zeros, nan=nan)


@pytest.mark.parametrize(
    "known, constant, zeros, is_zero",
    [
        (TensorStats(), None, None, False),
        (TensorStats(extremes(1.0, 1.0), counted=True), 1.0, 0.0, False),
        (TensorStats(extremes(0.0, 0.0, 4), counted=True), 0.0, 1.0, True),
        (TensorStats(extremes(0.0, 0.0)), 0.0, 1.0, True),  # recorded: a tensor of zeros is known
        (TensorStats(extremes(-1.0, 1.0, 1), counted=True), None, 0.25, False),
        (TensorStats(extremes(-1.0, 1.0, 1)), None, None, False),
        (TensorStats(extremes(1.0, 1.0, nan=1), counted=True), None, 0.0, False),
        (TensorStats(extremes(math.inf, -math.inf, elements=0), counted=True), None, None, False),
    ],
)
def test_constants_and_zeros(known, constant, zeros, is_zero):
    assert (known.constant, known.zeros, known.is_zero) == (constant, zeros, is_zero)


@pytest.mark.parametrize(
    "mean, rms, std", [(None, 1.0, None), (1.0, None, None), (0.0, 0.0, 0.0), (3.0, 5.0, 4.0), (1.0, 1.0, 0.0),
                       (1.1, 1.0, 0.0), (0.0, 1e200, 1e200)]
)  # fmt: skip
def test_the_standard_deviation(mean, rms, std):
    assert TensorStats(extremes(0.0, 1.0), mean, rms).std == pytest.approx(std)


@pytest.mark.parametrize(
    "statistics, shape, mean, rms",
    [
        (Statistics(2.0, -1.0, 0.5, 6.0), (3, 3), 0.5, 2.0),
        (Statistics(2.0, -1.0, 0.5), (3, 3), 0.5, None),
        (Statistics(norm=6.0), (3, 3), None, 2.0),
        (Statistics(2.0, -1.0, 0.5, 6.0), (0, 3), 0.5, None),
        (Statistics(2.0, -1.0, math.nan, math.inf), (9,), None, None),
        (None, (9,), None, None),
    ],
)
def test_a_record_has_figures_without_values(statistics, shape, mean, rms):
    found = from_record(TensorRef("input:0", "float32", shape, statistics=statistics, checksum="AB"))
    assert (found.mean, found.rms, found.bits, found.counted) == (mean, rms, "ab", False)
    known = statistics is not None and statistics.max is not None
    assert (found.minimum, found.maximum) == ((-1.0, 2.0) if known else (None, None)) or math.isnan(found.minimum)
    assert from_record(TensorRef("input:0", "float32", shape, checksum="0x12")).bits == ""


TINY = {"float16": 2.0**-14, "float32": 2.0**-126, "float64": 2.0**-1022}


@pytest.mark.parametrize("dtype, counted", [("float16", True), ("float32", False), ("float64", False)])
def test_subnormal_values_of_a_narrow_type_are_counted(tmp_path, dtype, counted):
    values = np.array([0.0, TINY[dtype], TINY[dtype] / 2, -TINY[dtype] / 4, 1.0], dtype)
    np.save(tmp_path / "x.npy", values)
    one = TensorRef("input:0", dtype, (5,), str(tmp_path / "x.npy"), "npy")
    assert figures_of(StatsTask((one,))).figures[0].subnormal == (2 if counted else None)


def test_figures_cover_the_finite_values(tmp_path):
    one = figures_of(StatsTask((saved(tmp_path, "x", [3.0, -4.0, math.nan, math.inf, 0.0]),))).figures[0]
    assert (one.mean, one.rms, one.mean_abs) == pytest.approx((-1 / 3, math.sqrt(25 / 3), 7 / 3))
    assert one.counted and one.subnormal is None and len(one.bits) == 32
    lost = figures_of(StatsTask((saved(tmp_path, "y", [math.nan] * 3),))).figures[0]
    assert (lost.mean, lost.rms, lost.counted) == (None, None, True)


def test_the_first_position_of_several_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_stats, "READ", 2)
    monkeypatch.setattr(tensor_stats, "LEAST", 1)
    values = [1.0, math.nan, math.inf, math.nan, math.inf, 5.0]
    found = figures_of(StatsTask((saved(tmp_path, "x", values),))).figures[0]
    assert (found.extremes.first_nan, found.extremes.first_inf, found.extremes.nan, found.maximum) == (1, 2, 2, 5.0)
