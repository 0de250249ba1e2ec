"""Which runs work with products that keep 11 bits, and which have one such product, which is a fault."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from npucmp.judge.products import ROUNDED, MatrixProduct, OperandFigures, are_reduced, merge_votes, votes_of
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Measurement
from tests.localise.rules.craft import case
from tests.synthetic import with_statistics, write_run

EVERY = "all"


def eleven_bits(x):
    """To the nearest of 11 significant bits, as units of HF32 and TF32 round a float32."""
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(fraction * 2**11), exponent - 11)


class Network:
    """Records of a chain of products with a branch at its side; products whose number is in `reduced` keep 11 bits,
    `noise` is the relative error of each operator's rounding, `faults` that of single products by number."""

    def __init__(self, reduced=(), noise=0.0, faults=(), seed=0, width=48, bits=24):
        self.reduced, self.noise, self.faults, self.bits = reduced, noise, dict(faults), bits
        self.chance, self.errors = np.random.default_rng(seed), np.random.default_rng(seed + 999)
        self.width, self.run, self.products = width, {}, 0

    def drawn(self, *shape, size=1.0):
        return self.held(size * self.chance.standard_normal(shape))

    def held(self, x):
        fraction, exponent = np.frexp(x.astype(np.float32).astype(np.float64))
        return np.ldexp(np.round(fraction * 2**self.bits), exponent - self.bits).astype(np.float32)

    def off(self, y, error=0.0):
        return (y * (1 + max(error, self.noise) * self.errors.standard_normal(y.shape))).astype(np.float32)

    def multiplied(self, a, b):
        number, self.products = self.products, self.products + 1
        rounded = eleven_bits if self.reduced == EVERY or number in self.reduced else np.float64
        return self.off(rounded(a) @ rounded(b), self.faults.get(number, 0.0))

    def linear(self, x, n):
        w = self.drawn(self.width, self.width, size=self.width**-0.5)
        y = self.multiplied(x, w.T)
        self.run[f"Functional.linear.{n}.forward"] = {"in": [x, w], "out": [y]}
        return y, w

    def chain(self, count, act="relu", branch=False, backward=False):
        x = start = self.drawn(64, self.width)
        kept = []
        for n in range(count):
            y, w = self.linear(x, n)
            kept.append((x, w, y))
            if act == "relu":
                x = np.maximum(y, 0)
                self.run[f"Functional.relu.{n}.forward"] = {"in": [y], "out": [x]}
            elif act == "tanh":
                x = self.off(np.tanh(y))
                self.run[f"Torch.tanh.{n}.forward"] = {"in": [y], "out": [x]}
            else:
                before, x = x, self.off(x + y)
                self.run[f"Tensor.__add__.{n}.forward"] = {"in": [before, y], "out": [x]}
        if branch:
            self.linear(start, count)
        if backward:
            g = self.drawn(*x.shape)
            for n in reversed(range(count)):
                x, w, y = kept[n]
                if act == "relu":
                    came, g = g, g * (y > 0)
                    self.run[f"Functional.relu.{n}.backward"] = {"in": [came], "out": [g]}
                gx, gw = self.multiplied(g, w), self.multiplied(g.T, x)
                self.run[f"Functional.linear.{n}.backward"] = {"in": [g], "out": [gx, gw]}
                g = gx
        return self.run


def compared(tmp_path, target, golden, change=lambda run: run):
    paths = [write_run(tmp_path / name, change(run)) for name, run in (("target", target), ("golden", golden))]
    return npucmp.compare(*paths)


def is_reduced(report):
    return any("HF32" in note for one in report.comparisons for note in one.notes)


def first(report):
    return [(root.pair.operator.name, root.cause.value) for root in report.roots[:1]]


ACTS = ("relu", "tanh", "residual")


@pytest.mark.few(8)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("count", range(2, 7))
@pytest.mark.parametrize("backward", [False, True])
def test_a_run_that_is_reduced_from_its_first_product_on_agrees(tmp_path, count, act, backward):
    report = compared(
        tmp_path,
        Network(EVERY, seed=count).chain(count, act, backward=backward),
        Network(seed=count).chain(count, act, backward=backward),
    )
    assert is_reduced(report) and report.exit_status == 0


@pytest.mark.few(12)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("count, at", [(n, at) for n in range(1, 7) for at in sorted({0, n // 2, n - 1})])
def test_one_reduced_product_is_a_fault_wherever_it_stands(tmp_path, count, at, act):
    target, golden = Network({at}, seed=count).chain(count, act), Network(seed=count).chain(count, act)
    report = compared(tmp_path, target, golden)
    assert not is_reduced(report) and first(report) == [(f"Functional.linear.{at}.forward", "BORN")]


def test_one_reduced_backward_product_is_a_fault(tmp_path):
    target, golden = (Network(reduced).chain(3, "tanh", backward=True) for reduced in ((5,), ()))
    report = compared(tmp_path, target, golden)
    assert not is_reduced(report) and first(report) == [("Functional.linear.1.backward", "BORN")]


@pytest.mark.parametrize("at", [0, 3])
def test_a_side_branch_in_float32_makes_one_reduced_product_a_fault(tmp_path, at):
    """at: of the chain, or of the branch itself, which reads the input of the network."""
    report = compared(tmp_path, Network({at}).chain(3, branch=True), Network().chain(3, branch=True))
    assert not is_reduced(report) and first(report) == [(f"Functional.linear.{at}.forward", "BORN")]


def test_a_side_branch_that_is_reduced_too_belongs_to_the_run(tmp_path):
    report = compared(tmp_path, Network(EVERY).chain(1, branch=True), Network().chain(1, branch=True))
    assert is_reduced(report) and report.exit_status == 0


@pytest.mark.parametrize("noise", [1e-7, 4e-7])
def test_noise_of_float32_is_no_reduced_product(tmp_path, noise):
    report = compared(tmp_path, Network(noise=noise).chain(12, "residual"), Network().chain(12, "residual"))
    assert not is_reduced(report) and report.exit_status == 0


def test_one_reduced_product_among_noise_is_a_fault(tmp_path):
    report = compared(tmp_path, Network({0}, noise=1e-7).chain(5), Network().chain(5))
    assert not is_reduced(report) and first(report) == [("Functional.linear.0.forward", "BORN")]


@pytest.mark.parametrize("at", [1, 3])
def test_a_wrong_product_of_a_reduced_run_does_not_hide_its_precision(tmp_path, at):
    """It adds more than 11 bits do, and says nothing of them."""
    target = Network(EVERY, faults={at: 0.05}).chain(5, branch=True)
    report = compared(tmp_path, target, Network().chain(5, branch=True))
    assert is_reduced(report) and first(report) == [(f"Functional.linear.{at}.forward", "BORN")]


@pytest.mark.parametrize("left_out", ["in", "out"])
def test_runs_of_which_one_side_of_operators_was_dumped(tmp_path, left_out):
    runs = Network(EVERY).chain(4, "tanh"), Network().chain(4, "tanh")
    report = compared(tmp_path, *runs, lambda run: {name: {**one, left_out: []} for name, one in run.items()})
    assert is_reduced(report)


@pytest.mark.parametrize("left_out", ["in", "out"])
@pytest.mark.parametrize("at", [0, 2])
def test_one_reduced_product_of_which_one_side_was_dumped(tmp_path, left_out, at):
    runs = Network({at}).chain(4, "tanh", branch=True), Network().chain(4, "tanh", branch=True)
    report = compared(tmp_path, *runs, lambda run: {name: {**one, left_out: []} for name, one in run.items()})
    assert not is_reduced(report) and report.exit_status == 1


@pytest.mark.parametrize("reduced", [EVERY, {1}])
def test_operands_of_11_bits_do_not_show_it(tmp_path, reduced):
    """Products of 16-bit values are exact in either unit: they speak neither for nor against it."""
    target, golden = Network(reduced, bits=8).chain(1, branch=True), Network(bits=8).chain(1, branch=True)
    report = compared(tmp_path, target, golden)
    assert not is_reduced(report) and report.exit_status == 0


@pytest.mark.parametrize("reduced, found", [(EVERY, True), ({0}, False)])
def test_statistics_tell_it_of_products_that_read_the_same(tmp_path, reduced, found):
    def run(reduced):
        network = Network(reduced, width=64)
        x = network.drawn(64, 64)
        for n in range(6):
            network.linear(x, n)
        return network.run

    paths = [
        with_statistics(write_run(tmp_path / name, run(some)), alone=True)
        for name, some in (("target", reduced), ("golden", ()))
    ]
    assert (npucmp.compare(*paths).roots == ()) is found


def operand(error, is_long=True):
    return OperandFigures(1.0, error, 256, is_long)


WROTE = OperandFigures(4.0, 0.0, 256)  # of 16 terms of size 1


@pytest.mark.parametrize(
    "read, wrote, sign",
    [
        ((0.0, 0.0), 2.9e-4, 1),
        ((2.9e-4, 0.0), 4.1e-4, 1),
        ((2.9e-4, 0.0), 2.9e-4, -1),
        ((1e-7, 1e-7), 2e-7, -1),
        ((0.0, 0.0), 0.0, -1),
        ((1e-2, 0.0), 1e-2, 0),
        ((0.0, 0.0), 1e-2, 0),
        ((1e250, 0.0), 1e250, 0),
        ((np.inf, 0.0), np.inf, 0),
        ((0.0, 0.0), np.nan, 0),
    ],
)
def test_what_a_product_adds_tells(read, wrote, sign):
    assert np.sign(MatrixProduct((operand(read[0]), operand(read[1])), WROTE._replace(error=wrote), 16).vote) == sign


def test_the_more_a_product_read_the_less_its_vote_counts():
    votes = [
        MatrixProduct((operand(read), operand(0.0)), WROTE._replace(error=np.hypot(read, 2.9e-4)), 16).vote
        for read in (0.0, 1e-4, 2e-4, 3e-4, 4e-4)
    ]
    assert votes[0] == 1.0 and votes == sorted(votes, reverse=True) and votes[-1] > 0.0


def test_terms_of_one_sign_leave_less_of_it():
    """The sum of 16 positive terms is four times as large as that of terms of either sign, its error is not."""
    positive = WROTE._replace(rms=16.0)
    pair = operand(0.0), operand(0.0)
    assert MatrixProduct(pair, positive._replace(error=2.9e-4 / 4), 16).vote == 1.0
    assert MatrixProduct(pair, positive._replace(error=2.9e-4), 16).vote == 0.0


EXACT = 2 * ROUNDED * ROUNDED  # the square that the rounding of both operands of 16 terms of size 1 adds


@pytest.mark.parametrize(
    "are_long, read, wrote, rms, expected",
    [
        ((True, False), 0.0, ROUNDED / 2, 4.0, 0.0),  # a quarter of the expected square
        ((False, True), 0.0, ROUNDED / 2, 4.0, 0.0),
        ((True, True), 0.0, 2 * ROUNDED, 4.0, 0.0),  # twice the expected square
        ((True, True), 2 * ROUNDED, np.sqrt(3 * EXACT), 4.0, 0.0),  # read twice the expected square
        ((True, True), 0.0, 1.0, 4.0 * np.sqrt(EXACT), 0.0),  # an error as large as the result
        ((True, True), 0.0, 0.99, 4.0 * np.sqrt(EXACT), 1.0),
    ],
)
def test_a_product_at_a_limit_gives_no_vote(are_long, read, wrote, rms, expected):
    pair = operand(read, are_long[0]), operand(0.0, are_long[1])
    assert MatrixProduct(pair, OperandFigures(rms, wrote, 256), 16).vote == expected


def test_operands_of_few_bits_and_few_elements_tell_nothing():
    short = operand(0.0, is_long=False)
    assert MatrixProduct((short, short), WROTE._replace(error=2.9e-4), 16).vote == 0.0
    few = WROTE._replace(error=2.9e-4, elements=4)
    assert MatrixProduct((operand(0.0), operand(0.0)), few, 16).vote == 0.0


@pytest.mark.parametrize(
    "some, said",
    [
        ([{}], False),
        ([{"a": 1.0}], False),
        ([{"a": 1.0, "b": 0.0}], False),
        ([{"a": 1.0, "b": 1.0, "x": -0.51}], False),
        ([{"a": 1.0, "b": 1.0}], True),
        ([{"a": 1.0, "b": 0.1}], True),
        ([{"a": 1.0, "b": 0.2, "c": -0.2}], False),  # what passes on the error of a fault may seem to add to it
        ([{"a": 1.0}, {"a": 1.0}], False),  # of two ranks
        ([{"a": 1.0}, {"b": 1.0}], True),
        ([{"a": 1.0, "b": 1.0, "c": 1.0, "x": -1.0}], True),
        ([{"a": 1.0, "b": 1.0, "x": -1.0}], False),
        ([{"a": 1.0, "b": 1.0}, {"a": -1.0, "b": -1.0}], False),  # in one step alone
        ([{"a": 1.0, "b": 1.0}, {"a": -0.2, "b": -0.2}], True),
    ],
)
def test_nearly_all_products_that_tell_decide(some, said):
    assert are_reduced(merge_votes(some)) is said


FORMS = {  # of the same products: the first operand, the second, the result
    "linear": ((64, 64), (16, 64), (64, 16)),
    "matmul": ((4, 16, 64), (4, 64, 16), (4, 16, 16)),
    "conv2d": ((4, 64, 4, 4), (16, 64, 1, 1), (4, 16, 4, 4)),
    "conv1d": ((4, 16, 64), (1, 64, 16), (4, 16, 16)),  # as TensorFlow stores it
    "conv_transpose2d": ((4, 64, 4, 4), (64, 16, 1, 1), (4, 16, 4, 4)),
}


@pytest.mark.parametrize("op", FORMS)
def test_the_terms_of_a_product_follow_from_its_shapes(op):
    chance, (a, b, y) = np.random.default_rng(4), FORMS[op]
    x, w = chance.standard_normal((64, 64)), chance.standard_normal((64, 16))
    held = [one.astype(np.float32) for one in (x, w)]
    exact, reduced = held[0].astype(np.float64) @ held[1], eleven_bits(held[0]) @ eleven_bits(held[1])
    read = [(np.resize(one, shape),) * 2 for one, shape in zip(held, (a, b))]
    for wrote, vote in ((reduced, 1.0), (exact * (1 + 1e-7), -1.0)):
        result = [one.astype(np.float32).reshape(y) for one in (wrote, exact)]
        node = case(op, read, result).node
        findings = zip((*node.inputs, *node.outputs), (*read, result))
        votes = votes_of([Measurement(one.pair, moments_of(*sides)) for one, sides in findings])
        assert votes == {f"{op}.0": pytest.approx(vote, abs=1e-3)}


def moments_of(x, y):
    return measure_block(x.reshape(-1), y.reshape(-1), bars_for("float32", "float32", 0.0, 0.0))
