"""Laws of operators that move, pick, send or forward elements, and of their gradients."""

from __future__ import annotations

from math import inf, nan, sqrt

import numpy as np
import pytest

from npucmp.localise.rules import Rulebook
from npucmp.localise.rules.laws import departures
from tests.localise.rules.craft import case

F16, BF16, F32, F64 = 2.0**-11, 2.0**-8, 2.0**-24, 2.0**-53


def same(values, *types):
    return (np.asarray(values, float), np.asarray(values, float), *types)


def figures(one, law=-1):
    """(target, golden, tolerance) of one law; None if there is none."""
    found = [*departures(one)]
    return pytest.approx(found[law][:3], rel=1e-9, abs=1e-20) if found else None


ENDS = same([-1.0, 2.0])


@pytest.mark.parametrize("target, golden, found", [
    ([-1.0, 2.0], [0.0, 2.0], (0.0, 0.0)), ([-1.5, 2.0], [0.0, 2.0], (0.25, 0.0)),
    ([0.0, 3.0], [0.0, 2.0], (0.5, 0.0)), ([0.0, 0.0], [-2.0, 2.0], (0.0, 0.5)),
    ([0.0, 0.0], [0.0, 4.0], (0.0, 0.5)),
])  # fmt: skip
@pytest.mark.parametrize("read, wrote, u", [((), (), F32), (("bfloat16",), (), BF16), ((), ("float16",), F16)])
def test_picked_elements_lie_within_the_range_of_the_input(target, golden, found, read, wrote, u):
    one = case("gather", [(*ENDS, *read), same([0, 1], "int64")], (target, golden, *wrote))
    assert figures(one) == (*found, 2 * u)
    assert next(departures(one)).words == f"elements exceed the range of the input by {found[0]:.2e} of the largest"


READ, ZEROS = [same([-1.0, 2.0])], same([0.0, 0.0])
MORE = [*READ, same([1.0, 1.0])]


@pytest.mark.parametrize("op, arguments", [("gather", {}), ("transpose", {}), ("amax", {}), ("dropout", {"p": 0.5})])
@pytest.mark.parametrize("read, wrote, is_known", [
    (READ, ENDS, True), ([], ENDS, False), (READ, ZEROS, False), (READ, same([1, 2], "int64"), False),
    ([(np.array([nan, 1.0]), np.ones(2))], ENDS, False), ([(np.ones(2), np.array([nan, 1.0]))], ENDS, False),
    ([same([inf, 1.0])], ENDS, False), ([(np.ones(2), np.array([-inf, 1.0]))], ENDS, False),
    ([same([1, 2], "int64")], ENDS, False), ([*READ, same([0, 7], "int64")], ENDS, True),
])  # fmt: skip
def test_a_law_of_inputs_needs_floats_that_are_finite_and_not_all_zero(op, arguments, read, wrote, is_known):
    assert (figures(case(op, read, wrote, arguments=(arguments,) * 2)) is not None) == is_known


@pytest.mark.parametrize("op, is_known", [("gather", False), ("transpose", False), ("dropout", False), ("amax", True)])
def test_only_extremes_are_those_of_several_inputs(op, is_known):
    assert (figures(case(op, MORE, ENDS, arguments=({"p": 0.5},) * 2)) is not None) == is_known
    unmeasured = case("amax", MORE, ENDS)
    finding = unmeasured.node.inputs[1]
    unmeasured.node.inputs[1] = finding._replace(measurement=finding.measurement._replace(moments=None))
    assert figures(unmeasured) is None
    absent = case("amax", MORE, ENDS)
    pair = absent.node.inputs[1].pair._replace(target=None)
    absent.node.inputs[1] = finding._replace(measurement=finding.measurement._replace(pair=pair))
    assert figures(absent) is None


@pytest.mark.parametrize("source, wrote, size", [
    ([-2, 1, 1, 0], [-2.5, 1, 1, 0], 0.25), ([-1, 1, 2, 0], [-1, 1, 2.5, 0], 0.25),  # an extreme
    ([2, -1, 1, -1], [2, 1, 1, -1], 2 / (2 * sqrt(7))),  # the sum
    ([2, -2, 1, -1], [2, -2, 0, 0], 1 - sqrt(8 / 10)),  # the norm
    ([2, -1, 1, -1], [1, -1, -1, 2], 0.0), ([0, 0, 0, 0], [0, 1, 0, 0], 1.0),
    ([0, 0, 0, 0], [0, 0, 0, 0], 0.0),
    ([1e-200, 0, 0, 0], [1, 0, 0, 0], 1.0),  # its squares are 0
])  # fmt: skip
def test_moved_elements_keep_extremes_sums_and_norm(source, wrote, size):
    right = np.array([1.0, -2.0, 4.0, 0.5])
    read, moved = np.array(source, float), np.array(wrote, float)
    one = case("transpose", [(read, right, "float32")], (moved, right[::-1], "float32"))
    assert figures(one) == (size, 0.0, 2 * F32)
    assert next(departures(one)).words == f"extremes or sums differ from those of the input by {size:.2e}"
    assert figures(case("transpose", [(right, right)], (right, 2 * right))) == (0.0, 1.0, 2 * F32)


def test_parts_of_a_tensor_do_not_keep_its_sum():
    assert figures(case("transpose", [same([1.0, 2.0, 3.0])], same([1.0, 3.0]))) is None


@pytest.mark.parametrize("op, target, golden, found, words", [
    ("amax", [1.5], [2.0], (0.25, 0.0), "the maximum element is 1.5, that of the inputs 2"),
    ("amax", [2.5], [4.0], (0.125, 0.5), "the maximum element is 2.5, that of the inputs 2"),
    ("amin", [-1.5], [-1.0], (0.5, 0.0), "the minimum element is -1.5, that of the inputs -1"),
    ("amin", [0.0], [-2.0], (0.5, 0.5), "the minimum element is 0, that of the inputs -1"),
])  # fmt: skip
def test_the_largest_or_smallest_element_is_that_of_the_inputs(op, target, golden, found, words):
    one = case(op, [same([-1.0, 0.5]), same([0.5, 2.0], "bfloat16")], (target, golden))
    assert figures(one) == (*found, 2 * BF16) and [law.words for law in departures(one)] == [words]


@pytest.mark.parametrize("arguments, factor", [
    ({"p": 0.5}, 2), ({"p": 0.75}, 4), ({"p": 0.5, "training": True, "seed": 3}, 2),
    ({"p": 0.5, "q": 1.0}, 2),
    ({"p": 0.5, "q": 0.0}, 2), ({"p": 1.0}, 0), ({"p": 0.0}, 0), ({}, 0), ({"p": 0.5, "q": 0.25}, 0),
    ({"p": 1}, 0),
])  # fmt: skip
def test_dropout_enlarges_no_element_more_than_its_probability_does(arguments, factor):
    one = case(
        "dropout",
        [same([-1.0, 0.5], "bfloat16")],
        ([-factor - 1.0, 0.0], [0.0, factor + 0.5]),
        arguments=(arguments,) * 2,
    )
    if not factor:
        assert figures(one) is None
        return
    assert figures(one) == (1 / (factor + 0.5), 0.5 / (factor + 0.5), 2 * F32)
    assert next(departures(one)).words == f"an element is {factor + 1}, but no kept element exceeds {factor}"
    fewer = case("dropout", [same([-1.0, 0.5])], ([-factor, 0.0], [0.0, factor / 2]), arguments=(arguments,) * 2)
    assert figures(fewer) == (0.0, 0.0, 2 * F32)


SENT = np.arange(64.0) + 1


@pytest.mark.parametrize("sent, wrote, u", [
    ((), (), F64), (("bfloat16",), (), BF16), ((), ("bfloat16",), BF16), (("bfloat16", "float32"), (), BF16),
    (("float32", "bfloat16"), (), F64),
])  # fmt: skip
def test_a_rank_receives_what_another_sent(sent, wrote, u):
    one = case("recv", [], (1.5 * SENT, SENT, *wrote), [("input:0", same([1.0])), ("output:0", (SENT, SENT, *sent))])
    assert figures(one) == (0.5, 0.0, 2 * u)
    assert next(departures(one)).words == "extremes or sums differ from those of the sent tensor by 5.00e-01"


def test_what_no_rank_sent_has_no_law():
    assert figures(case("recv", [], (1.5 * SENT, SENT), [("input:0", same(SENT + 1))])) is None
    assert figures(case("recv", [], same([1.0, 2.0]), [("input:0", same([1.0, 2.0]))])) is None  # few simple numbers
    assert figures(case("recv", [], (1.5 * SENT, SENT))) is None
    assert figures(case("recv", [], (1.5 * SENT, SENT), [("input:0", same(SENT))], node=False)) is None
    unmeasured = case("recv", [], (1.5 * SENT, SENT), [("input:0", same(SENT))])
    sent = unmeasured.node.extra_inputs[0]
    unmeasured.node.extra_inputs[0] = sent._replace(measurement=sent.measurement._replace(moments=None))
    assert figures(unmeasured) is None


def sum_room(unit, terms, arrived, total, size):
    """The tolerance of K terms: three deviations of the elements, their sum, and its rounding."""
    added = sqrt(max(1, terms))
    return 2 * (unit * (3 * added + abs(total) / size) + min(unit, F32) * added * arrived / size)


@pytest.mark.parametrize("source, wrote, sums, room", [
    # (target, golden) of both; distance of the sums by size
    (([3, -4], [3, -4]), ([3, -3.5], [3, -4]), (0.1, 0.0), (F32, 1, 5, -1, 5)),
    (([3, -4], [3, -4]), ([3, -4], [3, 0]), (0.0, 4 / 3), (F32, 1, 5, -1, 3)),
    (([1, 1, 1, 1], [1, 1, 1, 1]), ([3], [4]), (0.5, 0.0), (F32, 4, 2, 4, 2)),
    (([2], [4]), ([1, 1], [2, 2.5]), (0.0, 0.5 / 4), (F32, 0.5, 4, 4, 4)),
    (([6, -8], [3, -4]), ([6, 8], [3, -4]), (16 / 10, 0.0), (F32, 1, 5, -1, 5)),
    (([0.5, 0.5], [3, -4]), ([3, -3], [3, -4]), (1 / 5, 0.0), (F32, 1, 5, -1, 5)),
])  # fmt: skip
@pytest.mark.parametrize("dtype, unit", [("float32", F32), ("float16", F16), ("float64", F64)])
def test_a_gradient_keeps_the_sum_of_the_incoming_one(source, wrote, sums, room, dtype, unit):
    read, own = ([np.array(one, float) for one in sides] for sides in (source, wrote))
    one = case("add", [(*read, dtype)], (*own, dtype), phase="backward")
    size = room[-1] if len(source[1]) >= len(wrote[1]) else sqrt(min(16.0, 10.25))
    y = abs(sum(wrote[1]) - sum(source[1])) / size
    assert figures(one) == (sums[0], y, sum_room(unit, *room[1:-1], size))
    assert (
        next(departures(one)).words
        == f"the sum differs from that of the incoming gradient by {sums[0]:.2e} of its size"
    )


@pytest.mark.parametrize("added, unit", [(0.0, F16), (1.0, F16), (1.5, BF16)])
def test_added_elements_have_the_precision_of_the_run(added, unit):
    """A square of 1 in 1024 is what rounding to float16 changes."""
    one = case("add", [same([32.0, 0.0], "float16")], same([32.0, added], "float16"), phase="backward", round_off=BF16)
    size = 32.0
    assert figures(one) == (added / size, added / size, sum_room(unit, 1, 32, 32, size))


@pytest.mark.parametrize("read, wrote, u", [("bfloat16", "float16", BF16), ("float16", "bfloat16", BF16)])
def test_a_sum_has_the_coarser_type_of_both_gradients(read, wrote, u):
    one = case("add", [same([3.0, -4.0], read)], same([3.0, -4.0], wrote), phase="backward")
    assert figures(one) == (0.0, 0.0, sum_room(u, 1, 5, -1, 5))


def test_the_incoming_gradient_is_the_tensor_whose_sum_the_golden_keeps():
    read = [same([9.0, 9.0]), same([3.0, -4.0]), ZEROS, same([7.0, 9.0])]
    wrote = ([3.0, -3.5], [3.0, -4.0])
    one = case("MaxPoolGrad", read, wrote, phase="")
    assert figures(one) == (0.1, 0.0, sum_room(F32, 1, 5, -1, 5))
    assert figures(case("AddN", read, wrote, phase="backward")) is None  # it adds gradients
    assert figures(case("AddN", [ZEROS], wrote, phase="backward")) is None
    assert figures(case("AddN", read[1:2], wrote, phase="backward")) is not None


FORWARDED = same([-3.0, 2.0])


@pytest.mark.parametrize("target, golden, found", [
    ([0.0, 2.0], [0.0, 2.0], (0.0, 0.0)), ([0.0, 3.0], [0.0, 2.0], (0.5, 0.0)),
    ([-4.0, 2.0], [0.0, 2.0], (0.5, 0.0)),
    ([-3.0, 0.0], [-3.0, 0.0], (0.0, 0.0)), ([0.0, 5.0], [-3.0, 0.0], (1.0, 0.0)),
    ([0.0, 2.0], [-4.0, 2.0], (0.0, 0.25)), ([0.0, 2.0], [-3.0, 4.0], (0.0, 0.5)),
    ([0.0, 9.0], [0.0, 1.0], None), ([0.0, 9.0], [0.0, 0.0], None),
])  # fmt: skip
def test_a_gradient_of_a_rectifier_forwards_an_extreme_and_nothing_beyond(target, golden, found):
    one = case("relu", [same([-7.0, 7.0]), FORWARDED], (target, golden), phase="backward")
    assert figures(one) == (found and (*found, 2 * F32))
    if found:
        words = f"elements exceed the range of the incoming gradient by {found[0]:.2e} of the largest"
        assert next(departures(one)).words == words


@pytest.mark.parametrize("read, wrote, beyond", [
    ([0.0, 1.0 + F16], [0.0, 1.0], 0.0), ([0.0, 1.0 + 2 * F16], [0.0, 1.0], None),
    ([0.0, 1.0 - F16], [0.0, 1.0], F16),
    ([-F16, 2.0], [0.0, 1.0], None), ([-2 * F16, 2.0], [-F16, 1.0], 0.0),
])  # fmt: skip
@pytest.mark.parametrize("types", [("float16", "float32"), ("float32", "float16")])
def test_a_forwarded_extreme_is_equal_up_to_rounding_and_larger_than_that(read, wrote, beyond, types):
    one = case("relu", [same(read, types[0])], same(wrote, types[1]), phase="backward")
    assert figures(one) == (None if beyond is None else (beyond, beyond, 2 * F16))


@pytest.mark.parametrize("low, high, words", [
    (-1.5, 1.25, "is -1.5, but no output of this operator is below -1; rounding explains up to 4.8e-07"),
    (-1.25, 1.5, "is 1.5, but no output of this operator is above 1; rounding explains up to 4.8e-07"),
])  # fmt: skip
def test_the_law_with_the_largest_departure_is_named(low, high, words):
    one = case("tanh", [same([9.0, 9.0])], ([low, high], [-1.0, 1.0]))
    finding = Rulebook().accusation(one, "law")
    assert finding.verdict.value == "diverged" and finding.because.endswith(words)
