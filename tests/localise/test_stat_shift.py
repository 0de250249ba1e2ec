"""The shifts of many rows at once are those of each row."""

import math
import random

import pytest

from npucmp.localise.stat_shift import level, movement, movements
from npucmp.localise.thresholds import OTHER_NODE
from npucmp.model import Finding, Measurement, Operator, Pair, Statistics, TensorRef, Verdict

SHAPES = [(), (0,), (3,), (64, 64), (1 << 20, 1 << 12)]


def drawn_finding(draw):
    """A row of statistics, of which one in three is odd: no figure, NaN, infinity, zeros, integers, no tensor."""

    def statistics():
        largest = draw.choice([1.0, 1e-3, 3e4])
        found = Statistics(largest, -largest * draw.random(), largest * draw.uniform(-0.1, 0.1), 8 * largest)
        if draw.random() < 0.1:
            odd = {draw.choice(found._fields): draw.choice([None, math.nan, math.inf, -math.inf, 0.0])}
            found = found._replace(**odd)
        return found

    golden = statistics()
    target = golden if draw.random() < 0.2 else statistics()
    if draw.random() < 0.5 and None not in golden:
        target = Statistics(*(figure * (1 + draw.choice([0.0, 1e-7, 1e-3])) for figure in golden))
    dtype, shape = draw.choice(["float32", "float32", "bfloat16", "int32"]), draw.choice(SHAPES)
    other = shape if draw.random() < 0.9 else (5, 5)
    tensors = [
        TensorRef("output:0", dtype, size, statistics=one, rounding=draw.choice([0.0, 1e-6]))
        for size, one in ((other, target), (shape, golden))
    ]
    operator = Operator("add.0", "add", "add", "forward", 0, tuple(tensors))
    pair = Pair(0, "output:0", operator, operator, *(one if draw.random() < 0.97 else None for one in tensors))
    measurement = Measurement(pair, bound=0.0, statistics=(target, golden), shapes_differ=other != shape)
    return Finding(measurement, Verdict.UNKNOWN, "", rule=OTHER_NODE if draw.random() < 0.05 else "")


@pytest.mark.parametrize("seed", range(3))
def test_shifts_of_many_rows_are_those_of_each(seed):
    draw = random.Random(seed)
    findings = [drawn_finding(draw) for _ in range(300)]
    found, shifted = movements(findings), 0
    for at, finding in enumerate(findings):
        moved = movement(finding)
        own = (*level(finding), moved.unit) if moved is not None else (0.0, 0.0, 0.0)
        assert tuple(column[at] for column in found) == own, finding
        shifted += own[0] > 0.0
    assert shifted > 60


def test_a_tensor_without_a_common_figure_has_no_shift():
    known, nothing = Statistics(1.0, -1.0, 0.1, 8.0), Statistics(None, None, None, None)
    for figures, expected in [(known, True), (nothing, False), (nothing._replace(norm=8.0), True)]:
        tensors = [TensorRef("output:0", "float32", (64,), statistics=one) for one in (figures, known)]
        operator = Operator("add.0", "add", "add", "forward", 0, tuple(tensors))
        pair = Pair(0, "output:0", operator, operator, *tensors)
        finding = Finding(Measurement(pair, bound=0.0, statistics=(figures, known)), Verdict.UNKNOWN, "")
        assert (movement(finding) is not None) is expected
