"""Gradients of choices."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule, spelled, without_values

RULE = rule("non_smooth")

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
READ = [(noisy(X, 1e-4), X)]
FLIPPED = np.where(np.arange(Y.size).reshape(Y.shape) % 1000 == 7, 0.0, Y)
ONE = np.where(np.arange(Y.size).reshape(Y.shape) == 7, 0.0, Y)
UNEVEN = np.where(np.arange(Y.size).reshape(Y.shape) % 5 == 0, 1e-4 * Y, Y)
MANY = np.where(np.arange(Y.size).reshape(Y.shape) % 5 == 0, 0.0, np.where(ONE == 0, 0.0, UNEVEN))
SPREAD = noisy(Y, 0.03)
SMALL = normal(4, 4)
TWO = SMALL.copy()
TWO[0, 0] = 0


class TestNonSmooth(RuleContract):
    name = "non_smooth"
    fires = {
        **spelled("relu", lambda op: case(op, READ, (FLIPPED, Y), phase="backward")),
        "of a graph, by its type": case("ReluGrad", READ, (FLIPPED, Y), phase=""),
        "of max-pooling": case("MaxPoolGradWithArgmax", READ, (FLIPPED, Y), phase=""),
        "a module of which nobody knows the inside": case(
            "Block", READ, (SPREAD, Y), phase="backward", path="Module.block"
        ),
        "errors of what the forward read": case(
            "relu", [(noisy(X, 1e-5), X)], (FLIPPED, Y), [("input:0", (noisy(X, 1e-4), X))], phase="backward"
        ),
        "one element, where nothing was recorded of what it reads": case(
            "MaxPoolGrad", [], (ONE, Y), phase="", input_error=1e-7
        ),
        "one element of few": case("relu", [(noisy(SMALL, 1e-5), SMALL)], (TWO, SMALL), phase="backward"),
    }
    silent = {
        **spelled("relu", lambda op: case(op, READ, (SPREAD, Y), phase="backward")),
        "a module whose class is the operator itself": case(
            "ReLU", READ, (SPREAD, Y), phase="backward", path="Module.act"
        ),
        "a few elements of a small module whose class is the operator itself": case(
            "ReLU",
            [(noisy(SMALL, 1e-7), SMALL)],
            (np.where(np.arange(16).reshape(4, 4) % 3, SMALL, 0), SMALL),
            phase="backward",
            path="Module.act",
        ),
        "forward": case("relu", READ, (FLIPPED, Y)),
        "more than that": case("relu", READ, (noisy(Y, 0.3), Y), phase="backward"),
        "smooth": case("tanh", READ, (FLIPPED, Y), phase="backward"),
        "a smooth layer": case("Linear", READ, (FLIPPED, Y), phase="backward", path="Module.fc"),
        "one factor, where nothing was recorded of what it reads": case(
            "MaxPoolGrad", [], (1.01 * FLIPPED, FLIPPED), phase="", input_error=1e-7
        ),
        "errors of the gradient alone, which flip nothing": case(
            "relu",
            [(noisy(X, 1e-3), X)],
            (FLIPPED, Y),
            [("input:0", (noisy(X, 1e-7), X))],
            phase="backward",
            round_off=1e-8,
        ),
        "many small elements beside one that flipped": case("relu", READ, (MANY, UNEVEN), phase="backward"),
        "nothing came in": case("relu", [(X, X)], (FLIPPED, Y), phase="backward"),
    }


def incoming(count, *offsets):
    """An incoming gradient with these errors."""
    return [ones(count, *offsets)]


def gradient(wrote, read=(), saved=(), op="relu", **more):
    return case(
        op, list(read), wrote, [(f"output:{at}", one) for at, one in enumerate(saved)], phase="backward", **more
    )


def saved(error):
    return ones(4, *[error, -error] * 2)


LIMIT = 8 * 2.0**-24


@pytest.mark.parametrize("forward, share", [
    ([], 2.0**-6), ([2.0**-12], 2.0**-12), ([2.0**-12, 2.0**-10], 2.0**-10), ([0.0], LIMIT),
    ([2.0**-4], 2.0**-6),
    ([np.nan], 2.0**-6),
])  # fmt: skip
def test_the_errors_of_the_forward_decide_how_many_elements_flip(forward, share):
    """An error e flips 16 e of them at most. That of the incoming gradient counts if the forward is unknown."""
    one = gradient(ones(10000), saved=[saved(error) for error in forward], op="max", input_error=2.0**-6)
    assert RULE.bound(one) == max(4 * sqrt(share), sqrt(2) / 100)
    if forward:
        one.node.extra_inputs[0] = one.node.extra_inputs[0]._replace(error=None)
        assert RULE.bound(one) == 4 * sqrt(2.0**-6)


def test_the_errors_of_its_forward_decide_what_flips_inside_a_module():
    one = gradient(ones(10000), saved=[saved(2.0**-12)], op="Block", path="Module.block", input_error=2.0**-6)
    assert RULE.bound(one) == 4 * sqrt(2.0**-12)


@pytest.mark.parametrize("error, wrong, is_explained", [
    (2.0**-14, 1, True), (2.0**-14, 1024, True),  # one flip is expected in 1,024 elements
    (2.0**-18, 1024, True), (2.0**-19, 1024, False),
    (2.0**-19, 128, True), (2.0**-19, 129, False),
    (2.0**-24, 128, True), (2.0**-25, 1, False),
])  # fmt: skip
def test_what_cannot_flip_inside_a_module_explains_nothing(error, wrong, is_explained):
    """A likely flip, or a possible one that two rows of many hold."""
    golden = np.ones((16, 64))
    target = golden.copy()
    target.reshape(-1)[:wrong] = 0.9
    one = gradient((target, golden), [saved(error)], op="Block", path="Module.block", input_error=error)
    assert RULE.applies(one) == is_explained
    assert RULE.applies(replace(one, flipped_inside=True))
    one.node.beside = [
        gradient((np.where(np.arange(64)[:, None] == 3, 0.5, np.ones((64, 8))), np.ones((64, 8)))).finding
    ]
    assert RULE.applies(one) == (error >= 2.0**-24)


@pytest.mark.parametrize("golden, bound", [([3.0, -4.0], 0.8), ([4.0, 3.0], 0.8), ([0.0, 0.0], 0.0)])
def test_two_elements_may_flip_in_any_tensor(golden, bound):
    golden = np.array(golden)
    one = gradient((golden, golden), op="max", input_error=1e-12)
    assert RULE.bound(one) == pytest.approx(max(sqrt(2) * bound, 4e-6))
    assert RULE.bound(replace(one, finding=without_values(one.finding))) == 4e-6


@pytest.mark.parametrize("op, offsets, may_be", [
    ("relu", [-0.5] * 3, False), ("relu", [-0.99], False), ("relu", [-1.0], True),
    ("relu", [-0.5, -0.5, 1.0], True),
    ("relu", [-0.5] * 4, True), ("max", [-0.5], True),
])  # fmt: skip
def test_a_mask_of_a_rectifier_makes_a_whole_element_zero(op, offsets, may_be):
    one = gradient(ones(64, *offsets), op=op, input_error=2.0**-10)
    assert RULE.applies(one) == may_be


@pytest.mark.parametrize("count, error, forward, is_one", [
    (4, 2.0**-10, None, True), (5, 2.0**-10, None, False), (5, 2.0**-9, None, True),
    (6, 2.0**-9, None, False),
    (5, 2.0**-6, 2.0**-10, True), (6, 2.0**-6, 2.0**-10, False), (64, np.inf, None, True),
])  # fmt: skip
def test_as_many_elements_are_off_as_flip(count, error, forward, is_one):
    """16 e of 64 elements and 3 more, and what growth by 8 makes of the incoming error: one element for 2^-6."""
    one = gradient(ones(64, *[-1.0] * count), saved=[] if forward is None else [saved(forward)], input_error=error)
    assert RULE.applies(one) == is_one
    assert RULE.applies(replace(one, finding=without_values(one.finding)))


@pytest.mark.parametrize("read, off, is_sparse", [
    (0, 4, True), (0, 5, False), (1, 6, True), (1, 7, False), (2, 8, True), (2, 9, False),
])  # fmt: skip
@pytest.mark.parametrize("arrived, size", [(0.1, 1.0), (0.01, 0.1), (0.001, 0.01), (0.0011, 0.05)])
def test_twice_as_many_elements_as_were_read_are_far_off_in_each_decade(read, off, is_sparse, arrived, size):
    """One element is off by three times the value, so that the sum of all errors is no limit."""
    one = gradient(
        ones(64, -3.0, *[-1.001 * size] * (off - 1)), incoming(64, *[1.001 * arrived] * read), input_error=2.0**-10
    )
    assert RULE.applies(one) == is_sparse
    assumed = gradient(ones(64, -3.0, *[-1.001 * size] * (off - 1)), input_error=2.0**-10)
    assert RULE.applies(assumed)
    assumed.node.assumed_inputs = one.node.inputs
    assert RULE.applies(assumed) == is_sparse


@pytest.mark.parametrize("error, size, is_sparse", [
    (2.0**-10, 0.009, True), (2.0**-10, 0.011, False), (1.5e-3, 0.09, True), (1.5e-3, 0.11, False),
    (1e-30, 0.009, False),
])  # fmt: skip
def test_errors_of_the_size_that_came_in_may_be_anywhere(error, size, is_sparse):
    """Up to ten times the incoming error, by decades."""
    one = gradient(ones(64, -3.0, *[size] * 9), incoming(64), input_error=error)
    assert RULE.applies(one) == is_sparse


def test_elements_that_are_off_by_decades_more_than_the_value_count_as_whole():
    one = gradient(ones(64, -40.0, *[15.0] * 5), incoming(64, 0.5), input_error=2.0**-10)
    assert RULE.applies(one)
    assert RULE.applies(gradient(ones(64, -1.0), incoming(64), input_error=1e-30))


def test_a_module_is_judged_by_its_size_alone():
    one = gradient(ones(64, *[-1.0] * 9), incoming(64), op="Block", path="Module.block", input_error=2.0**-10)
    assert RULE.applies(one) and not RULE.applies(replace(one, input_error=0.0))
    mask = (*ones(64, *[-1.0] * 9), "int64")
    mask = gradient(mask, incoming(64), op="Block", path="Module.block", input_error=0.1)
    assert not RULE.applies(mask)


def test_inputs_without_values_show_no_decades():
    one = gradient(ones(64, -3.0, *[-1.0] * 8), incoming(64), input_error=2.0**-10)
    assert not RULE.applies(one)
    one.node.inputs[0] = without_values(one.node.inputs[0])
    assert RULE.applies(one)


@pytest.mark.parametrize("arrived, is_sparse", [(0.11, True), (0.09, False)])
def test_an_element_that_is_wrong_was_read_a_decade_less_wrong_at_most(arrived, is_sparse):
    one = gradient(ones(64, -3.0, *[-1.0] * 5), incoming(64, arrived), input_error=2.0**-10)
    assert RULE.applies(one) == is_sparse


def test_numbers_whose_squares_overflow_show_no_count():
    huge = np.full(64, 1e200)
    assert RULE.applies(gradient((huge * 3, huge), input_error=1e-3))
    assert RULE.applies(gradient((np.ones(64), np.zeros(64)), input_error=np.inf))
