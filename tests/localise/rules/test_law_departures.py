"""The departures of both sides from each law of an operator, and the tolerance of rounding."""

from __future__ import annotations

from math import inf, nan, sqrt
from types import SimpleNamespace

import numpy as np
import pytest

from npucmp.localise.rules import Rulebook
from npucmp.localise.rules.laws import Departure, departures
from tests.localise.rules.craft import case

F16, BF16, F32, F64 = 2.0**-11, 2.0**-8, 2.0**-24, 2.0**-53
TINY16 = 2.0**-14  # the smallest normal number of float16
X = np.array([[-1.0, 3.0], [-1.0, 3.0]])  # rms √5, standard deviation 2
KEPT = np.array([[-1.0, 1.0], [-1.0, 1.0]])


def same(values, *types):
    return (np.asarray(values, float), np.asarray(values, float), *types)


def figures(one, law=0, count=3):
    """(target, golden, tolerance) of one law."""
    return pytest.approx([*departures(one)][law][:count], rel=1e-9, abs=1e-20)


def laws(one):
    return [found.words for found in departures(one)]


@pytest.mark.parametrize("golden, target, is_broken", [
    (0.0, 2.0, True), (1.0, 2.5, True), (1.0, 1.9, False), (1.5, 2.0, False), (0.0, 1.0, False), (0.0, 0.5, False),
])  # fmt: skip
def test_a_law_is_broken_if_the_target_alone_exceeds_the_tolerance(golden, target, is_broken):
    assert Departure(target, golden, 1.0, "").is_broken == is_broken


MEANS, ROWS, BELOW, ABOVE = "the mean deviates", "rows sum", "is below", "is above"
SPREAD, MOVED, PICKED, SUM = "the spread", "extremes or sums", "range of the input", "the sum differs"
ARRIVED = "range of the incoming gradient"
NAMED = {
    "softmax": [ROWS, f"{BELOW} 0", f"{ABOVE} 1"], "relu": [f"{BELOW} 0"], "exp": [f"{BELOW} 0"],
    "tanh": [f"{BELOW} -1", f"{ABOVE} 1"], "log_softmax": [f"{ABOVE} 0"], "mse_loss": [f"{BELOW} 0"],
    "layer_norm": [SPREAD, MEANS], "rms_norm": [SPREAD], "batch_norm": [SPREAD, MEANS],
    "transpose": [MOVED], "cast": [MOVED], "sort": [MOVED], "clone": [], "slice": [MOVED, PICKED],
    "gather": [PICKED], "embedding": [PICKED], "amax": ["the maximum"], "amin": ["the minimum"],
    "mul": [], "linear": [],
}  # fmt: skip
OF_GRADIENTS = {
    "add": [SUM], "mean": [SUM], "transpose": [SUM], "cast": [SUM], "sort": [SUM, ARRIVED], "relu": [ARRIVED],
    "topk": [SUM, ARRIVED], "softmax": [], "tanh": [], "layer_norm": [], "mul": [],
}  # fmt: skip


@pytest.mark.parametrize("phase, op, words", [
    *(("forward", op, words) for op, words in NAMED.items()),
    *(("backward", op, words) for op, words in OF_GRADIENTS.items()),
])  # fmt: skip
def test_each_operator_has_laws_of_its_own(phase, op, words):
    found = laws(case(op, [same(KEPT)], same(KEPT), phase=phase))
    assert len(found) == len(words) and all(one in shown for one, shown in zip(words, found))


@pytest.mark.parametrize("op, phase, count", [
    ("softmax", "forward", 1), ("softmax", "backward", 0), ("tanh", "forward", 0),
    ("transpose", "forward", 0),
    ("add", "backward", 0),
])  # fmt: skip
def test_an_input_keeps_only_the_law_of_rows(op, phase, count):
    one = case(op, [same(KEPT)], same(KEPT / 2), slot="input:0", phase=phase)
    one.node.unequal["input:0"] = SimpleNamespace(size=1.0, tolerance=0.5, words="")
    assert len(laws(one)) == count


def test_tensors_that_no_values_describe_keep_no_law():
    shares = np.full((2, 4), 0.25)
    holed, unreal = np.array(shares), np.full((2, 4), nan)
    holed[0, 0] = nan
    assert laws(case("softmax", [], (shares, shares)))
    assert not laws(case("softmax", [], (shares, shares), node=False))
    assert not laws(case("softmax", [], (holed, shares))) and not laws(case("softmax", [], (unreal, unreal)))
    for finding in (
        lambda one: one._replace(metric="noise"),
        lambda one: one._replace(measurement=one.measurement._replace(moments=None)),
    ):
        one = case("softmax", [], (shares, shares))
        one.finding = finding(one.finding)
        assert not laws(one)


def test_a_collective_departs_as_its_outputs_on_other_ranks_do():
    one = case("all_reduce", [same(KEPT)], same(KEPT))
    one.node.unequal["output:0"] = SimpleNamespace(size=0.5, tolerance=0.25, words="other ranks hold another")
    assert [*departures(one)] == [(0.5, 0.0, 0.25, "other ranks hold another")]
    assert Rulebook().accusation(one).rule == "law"


def rows_room(length, count, u, tiny=0.0):
    """The tolerance of rows with equal elements: outputs, sums, small elements and errors of single elements."""
    return 2 * u + sqrt(length) * min(u, F32) + length * tiny * u + 3 * 2 * u / sqrt(count)


@pytest.mark.parametrize("shape, length", [((2, 4), 4), ((4, 2), 2), ((2, 8, 1), 8), ((8, 2), 8), ((1, 1, 2), 2)])
@pytest.mark.parametrize("dtype, u, tiny", [("float16", F16, TINY16), ("float32", F32, 0.0), ("float64", F64, 0.0)])
def test_rows_sum_to_1_along_the_axis_that_the_golden_shows(shape, length, dtype, u, tiny):
    golden = np.full(shape, 1 / length)
    one = case("softmax", [], (1.25 * golden, golden, dtype))
    assert figures(one) == (0.25, 0.0, rows_room(length, golden.size, u, tiny))
    assert laws(one)[0] == "rows sum to 1.25, in the golden to 1"


def test_the_golden_departs_from_sums_of_rows_too():
    golden = np.array([[0.5, 0.75], [0.5, 0.75]])
    room = 2 * F32 + sqrt(2) * F32 + 6 * F32 * sqrt(1.625) / 2.5
    assert figures(case("softmax", [], (2 * golden, golden))) == (1.5, 0.25, room)
    assert figures(case("softmax", [], same(np.zeros((2, 2)))), count=2) == (1.0, 1.0)


@pytest.mark.parametrize("value", [nan, inf])
def test_rows_that_are_not_finite_on_both_sides_do_not_count(value):
    golden = np.array([[value, value], [0.5, 0.5]])
    assert figures(case("softmax", [], (1.5 * golden, golden)), count=2) == (0.5, 0.0)
    one = np.array([value, 0.5])
    assert figures(case("softmax", [], (1.5 * one, one)), count=2) == (0.5, 0.0)


@pytest.mark.parametrize("values, types", [(1.0, ()), ([[1.0]], ()), ([0.5, 0.5], ("float32", "unheard"))])
def test_tensors_without_rows_or_of_an_unknown_type_have_no_sums_of_rows(values, types):
    assert not any(ROWS in words for words in laws(case("softmax", [], same(values, *types))))


@pytest.mark.parametrize("op, target, golden, law, found, words", [
    ("relu", [-0.5, 1.0], [0.0, 1.0], 0, (0.5, 0.0, 8 * F32), "an element is -0.5, but no output … is below 0"),
    ("relu", [0.0, 9.0], [-0.25, 4.0], 0, (0.0, 0.25, 32 * F32), "an element is 0,"),
    ("sigmoid", [0.5, 1.5], [0.5, 0.5], 0, (0.0, 0.0, 4 * F32), "below 0"),
    ("sigmoid", [0.5, 1.5], [0.5, 0.5], 1, (0.5, 0.0, 8 * F32), "an element is 1.5, but no output … is above 1"),
    ("tanh", [-1.5, 0.5], [-0.5, 0.5], 0, (0.5, 0.0, 8 * F32), "is -1.5, but no output … is below -1"),
    ("tanh", [-1.5, 0.5], [-0.5, 1.25], 1, (0.0, 0.25, 10 * F32), "above 1"),
    ("log_softmax", [-9.0, 0.5], [-2.0, 0.25], 0, (0.5, 0.25, 16 * F32), "is 0.5, but no output … is above 0"),
])  # fmt: skip
def test_elements_lie_within_the_range_of_the_operator(op, target, golden, law, found, words):
    one = case(op, [same([16.0, 1.0])], (target, golden))
    assert figures(one, law) == found and words in laws(one)[law].replace("of this operator", "…")


def test_the_range_of_a_loss_has_the_rounding_of_its_logits():
    assert figures(case("cross_entropy", [same([16.0, -32.0])], ([-0.5], [0.0]))) == (0.5, 0.0, 8 * 32 * F32)


@pytest.mark.parametrize("own, round_off, u", [
    ("float32", None, F32), ("bfloat16", None, BF16), ("float32", BF16, BF16),
    ("bfloat16", F32, BF16), ("float64", 0.0, F64),
])  # fmt: skip
def test_the_tolerance_has_the_coarsest_precision_of_the_tensor(own, round_off, u):
    assert figures(case("relu", [], ([0.0, 1.0], [0.0, 0.5], own), round_off=round_off)) == (0.0, 0.0, 4 * u)


NORM_ROOM = 8 * F32 + 8 * sqrt(5) / 2 * sqrt(2) * F32  # with the condition number √5 / 2 of what it reads


def test_a_norm_has_spread_1_and_mean_0():
    one = case("layer_norm", [same(X)], (1.5 * KEPT + 0.5, KEPT))
    assert figures(one) == (sqrt(2.5) - 1, 0.0, NORM_ROOM) and figures(one, 1) == (0.5, 0.0, NORM_ROOM)
    assert "the spread is 1.58114 times" in laws(one)[0] and "in the golden 1 times" in laws(one)[0]
    assert "the mean deviates by 5.00e-01" in laws(one)[1] and "in the golden by 0.00e+00" in laws(one)[1]
    other = case("layer_norm", [same(X)], (KEPT, 2 * KEPT - 0.5))
    assert figures(other) == (0.0, sqrt(4.25) - 1, NORM_ROOM)
    assert figures(other, 1) == (0.0, 0.5 / sqrt(4.25), NORM_ROOM)


@pytest.mark.parametrize("error, count", [(0.0, 2), (0.1, 2), (0.101, 1), (inf, 1)])
def test_inputs_with_a_large_error_leave_the_mean_of_a_norm_alone(error, count):
    found = laws(case("layer_norm", [same(X)], same(KEPT), input_error=error))
    assert len(found) == count and MEANS in found[-1]


def test_a_norm_of_zeros_has_a_spread_alone():
    zeros = same(np.zeros((2, 2)))
    room = 8 * F32 + 8 * sqrt(2) * F32
    assert figures(case("layer_norm", [same(X)], zeros)) == (1.0, 1.0, room)
    assert len(laws(case("layer_norm", [same(X)], zeros))) == 1
    nothing = case("layer_norm", [same(X), same([0.0, 0.0])], zeros)
    assert figures(nothing) == (1.0, 1.0, room)


TWOS, THREES, UNEVEN = same([2.0, 2.0]), same([3.0, 3.0]), same([1.0, 3.0])
HALVES = (np.array([2.0, 2.0]), np.array([3.0, 3.0]))  # the target's weight is another
BIASED = 2 * KEPT + 3


@pytest.mark.parametrize("op, read, wrote, spread, mean", [
    ("layer_norm", [TWOS], (3 * KEPT, 2 * KEPT), 0.5, 0.0),
    ("layer_norm", [TWOS, THREES], (BIASED + 1, BIASED), sqrt(20 / 13) - 1, 1 / sqrt(13)),
    ("layer_norm", [THREES, TWOS], (BIASED + 1, BIASED), sqrt(20 / 13) - 1, 1 / sqrt(13)),
    ("layer_norm", [same([7.0, 7.0]), TWOS, THREES], (BIASED + 1, BIASED), sqrt(20 / 13) - 1, 1 / sqrt(13)),
    ("layer_norm", [HALVES], (3 * KEPT, 3 * KEPT), 0.5, 0.0),
    ("batch_norm", [UNEVEN], (2 * sqrt(5) * KEPT, sqrt(5) * KEPT), 1.0, 0.0),
    ("batch_norm", [same([0.0, 0.0]), UNEVEN], (2 * KEPT + 2, KEPT + 2), sqrt(8 / 5) - 1, 0.0),
    ("batch_norm", [UNEVEN, same([9.0, 9.0]), same([9.0, 9.0]), same([0.0, 0.0])],
     (2 * sqrt(5) * KEPT, sqrt(5) * KEPT), 1.0, 0.0),
])  # fmt: skip
def test_weights_and_biases_give_a_norm_its_spread_and_mean(op, read, wrote, spread, mean):
    """Each pair of parameters may be the weight and the bias; that of the golden is taken."""
    one = case(op, [same(X), *read], wrote, input_error=0.0)
    found = [*departures(one)]
    assert [one.target for one in found] == pytest.approx([spread, mean], abs=1e-12)
    assert [one.golden for one in found] == pytest.approx([0.0, 0.0], abs=1e-12)


FLAT = same([1.0, 1.0])


@pytest.mark.parametrize("op, read, count", [
    ("layer_norm", [UNEVEN], 0), ("layer_norm", [([1.0, 1.0], [1.0, 3.0])], 0),
    ("layer_norm", [([1.0, 3.0], [1.0, 1.0])], 0),
    ("layer_norm", [FLAT, UNEVEN], 0), ("layer_norm", [FLAT, FLAT, FLAT], 2), ("batch_norm", [FLAT] * 4, 2),
    ("batch_norm", [UNEVEN] * 5, 0), ("rms_norm", [FLAT], 1), ("rms_norm", [UNEVEN], 0),
])  # fmt: skip
def test_a_norm_with_weights_that_differ_within_a_row_has_no_law(op, read, count):
    """A batch norm has one weight for the elements that it normalises together."""
    one = case(op, [same(X), *read], same(KEPT), input_error=0.0)
    for at, finding in enumerate(one.node.inputs[1:], 1):
        pair = finding.pair._replace(slot=f"param:{at}")
        one.node.inputs[at] = finding._replace(measurement=finding.measurement._replace(pair=pair))
    assert len(laws(one)) == count


def test_an_argument_of_a_norm_is_no_parameter():
    shape = {"input:1": [2]}
    for arguments, count in (((shape, shape), 2), (({}, shape), 0)):
        assert (
            len(laws(case("layer_norm", [same(X), UNEVEN], same(KEPT), arguments=arguments, input_error=0.0))) == count
        )


def test_a_parameter_without_values_leaves_a_norm_without_laws():
    one = case("layer_norm", [same(X), FLAT], same(KEPT))
    weight = one.node.inputs[1]
    one.node.inputs[1] = weight._replace(measurement=weight.measurement._replace(moments=None))
    assert not laws(one)


@pytest.mark.parametrize("dtype, u", [("float16", F16), ("float64", F64)])
@pytest.mark.parametrize("shape, length", [((2, 2), 2), ((1, 4), 4), ((4, 1), 4), ((4,), 4)])
def test_the_tolerance_of_a_norm_grows_with_its_longest_axis(dtype, u, shape, length):
    one = case("rms_norm", [same(X, dtype)], same(KEPT.reshape(shape), dtype))
    assert figures(one) == (0.0, 0.0, 8 * u + 8 * sqrt(length) * min(u, F32))
    alone = case("rms_norm", [same(1.0, dtype)], same(1.0, dtype))
    assert figures(alone) == (0.0, 0.0, 8 * u + 8 * min(u, F32))
