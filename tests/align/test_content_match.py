"""Two codings of one network: one product for three, two multiplications for one. Whose partner is whose?"""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align import align
from npucmp.align.order import match
from npucmp.model import TensorRef
from npucmp.model.dump import Statistics
from tests.align.craft import Call, a_run, api, both_phases, network, outcome, run_of

WIDE, NARROW = (4, 24), (4, 8)


def product(tag, rows):
    return Call(tag, "Functional.linear", (NARROW, (rows, 8), (rows,)), ((4, rows),))


def linear_layers(*middle):
    """Layers around what is coded in two ways; the products after it have the shapes of those in it."""
    return [product("in", 8), *middle, *(product(f"out {n}", 8) for n in range(2))]


def alone(*tags):
    return both_phases(*tags)


def aligned(target_calls, golden_calls):
    (target, a), (golden, b) = run_of(target_calls), run_of(golden_calls)
    return outcome(align(target, golden), a, b)


def test_one_product_for_three_is_the_partner_of_none():
    relu = Call("relu", "Torch.relu", (NARROW,), (NARROW,))
    one = linear_layers(relu, product("qkv", 24), relu._replace(tag="after"))
    three = linear_layers(relu, *(product(name, 8) for name in "qkv"), relu._replace(tag="after"))
    assert aligned(one, three) == ([], alone("qkv"), alone(*"qkv"))
    assert aligned(three, one) == ([], alone(*"qkv"), alone("qkv"))


def test_as_many_sums_of_other_shapes_in_another_coding_are_no_partners():
    def coded(width, *more):
        sums = [Call(f"{width} {n}", "Torch.add", ((4, width), (4, width)), ((4, width),)) for n in range(2)]
        return [*network(1), *more, *sums, *network(1)]

    slices = Call("slice", "Tensor.__getitem__", (WIDE,), (NARROW,))
    wrong, only_target, only_golden = aligned(coded(24, slices), coded(8))
    assert wrong == [] and only_target == alone("24 0", "24 1", "slice") and only_golden == alone("8 0", "8 1")


@pytest.mark.parametrize("at", [0, 7, 14])
def test_a_shape_that_a_fault_changed_has_its_partner(at):
    calls = network(3)
    last = calls[at].outputs[0][-1]
    faulty = [*calls[:at], calls[at]._replace(outputs=((5, last),)), *calls[at + 1 :]]
    assert aligned(faulty, calls) == ([], [], [])


# Content


def statistics(values) -> Statistics:
    return Statistics(*(float(f) for f in (values.max(), values.min(), values.mean(), np.sqrt((values**2).sum()))))


class Keeper:
    """Makes tensors that hold values, in one way of keeping them."""

    def __init__(self, way, folder):
        self.way, self.folder, self.count = way, folder, 0

    def tensor(self, slot, values) -> TensorRef:
        values = np.asarray(values, np.float32)
        found = TensorRef(slot, "float32", values.shape)
        if self.way == "statistics":
            return found._replace(statistics=statistics(values))
        if self.way == "checksum":
            return found._replace(checksum=str(hash(values.tobytes())))
        self.count += 1
        file = self.folder / f"{self.count}.npy"
        np.save(file, values.T.copy().T if self.way == "strided" else values)
        return found._replace(file=str(file), encoding="npy")

    def run(self, *calls):
        """Of (api, inputs, output): forward calls, numbered by api."""
        operators = []
        for order, (name, inputs, output) in enumerate(calls):
            index = sum(one[0] == name for one in calls[:order])
            slots = [*((f"input:{n}", one) for n, one in enumerate(inputs)), ("output:0", output)]
            tensors = tuple(self.tensor(slot, values) for slot, values in slots)
            operators.append(api(name, index, "forward", order)._replace(tensors=tensors))
        return a_run(operators)


@pytest.fixture(params=["values", "strided", "statistics", "checksum"])
def keeper(request, tmp_path):
    return Keeper(request.param, tmp_path)


def drawn(seed, *shape):
    return np.random.RandomState(seed).standard_normal(shape or (6, 5)).astype(np.float32)


def partners(target, golden):
    return [(one.target.name[:-8], one.golden.name[:-8]) for one in match(target.operators, golden.operators, [])]


X, Y, Z, S = drawn(1), drawn(2), drawn(3), drawn(4)


def test_of_two_products_the_one_that_reads_the_same_is_the_partner(keeper):
    """SiLU in two operators: x · sigmoid(x), then · y. Golden: SiLU, · y. The first is nearer by its name."""
    split = keeper.run(
        ("sigmoid", [X], S), ("Tensor.__mul__", [X, S], X * S), ("Tensor.__mul__", [X * S, Y], X * S * Y)
    )
    whole = keeper.run(("silu", [X], X * S), ("Tensor.__mul__", [X * S, Y], X * S * Y))
    assert partners(split, whole) == [("Tensor.__mul__.1", "Tensor.__mul__.0")]
    assert partners(whole, split) == [("Tensor.__mul__.0", "Tensor.__mul__.1")]


def test_weights_tell_products_of_one_shape_apart(keeper):
    """The first of three products is left out on one side; they read the same and have the same shapes."""
    weights = [drawn(seed, 5, 5) for seed in (7, 8, 9)]
    golden = keeper.run(*(("linear", [X, w], X @ w.T) for w in weights))
    for kept in ((1, 2), (0, 2), (0, 1)):
        target = keeper.run(*(("linear", [X, weights[n]], X @ weights[n].T) for n in kept))
        assert partners(target, golden) == [(f"linear.{k}", f"linear.{n}") for k, n in enumerate(kept)]


def test_a_faulty_weight_has_its_partner(keeper):
    weights = [drawn(seed, 5, 5) for seed in (7, 8, 9)]
    golden = keeper.run(*(("linear", [X, w], X @ w.T) for w in weights))
    faulty = keeper.run(("linear", [X, weights[1]], X @ weights[1].T), ("linear", [X, 3 * weights[2]], X @ weights[0]))
    assert partners(faulty, golden) == [("linear.0", "linear.1"), ("linear.1", "linear.2")]


def test_partial_sums_of_another_order_have_no_partner(keeper):
    """Z + (X + Y) and (Z + X) + Y: no sum of the one reads what a sum of the other reads."""
    one = keeper.run(("exp", [X], X), ("add", [X, Y], X + Y), ("neg", [Z], Z), ("add", [Z, X + Y], X + Y + Z))
    other = keeper.run(("exp", [X], X), ("add", [Z, X], Z + X), ("add", [Z + X, Y], X + Y + Z))
    assert partners(one, other) == [("exp.0", "exp.0")]


def test_other_data_between_partners_is_what_a_fault_looks_like(keeper):
    """An operator more at the start; the sum at the end reads other data, and is judged."""
    calls = [("exp", [X], X), ("linear", [X, Y], Y), ("relu", [Y], Z), ("add", [Z, X], Z + X), ("tanh", [Z], Z)]
    faulty = [("neg", [X], X), *calls[:3], ("add", [S, X], S + X), *calls[4:]]
    assert partners(keeper.run(*faulty), keeper.run(*calls)) == [
        (f"{name}.0", f"{name}.0") for name in ("exp", "linear", "relu", "add", "tanh")
    ]


@pytest.mark.parametrize("nothing", [np.zeros((6, 5)), np.full((6, 5), np.nan), np.full((6, 5), 3.0), np.ones(2)])
def test_what_says_nothing(tmp_path, nothing):
    keeper = Keeper("values", tmp_path)
    calls = [("linear", [nothing, drawn(7, 5, 5)], X), ("linear", [nothing, drawn(8, 5, 5)], X)]
    assert partners(keeper.run(calls[1]), keeper.run(*calls)) == [("linear.0", "linear.1")]


@pytest.mark.parametrize("how", ["gone", "cut", "another shape"])
def test_what_cannot_be_read_says_nothing(tmp_path, how):
    keeper = Keeper("values", tmp_path)
    target, golden = keeper.run(("exp", [X], Y)), keeper.run(("exp", [X], Y), ("exp", [Y], Z))
    for file in tmp_path.glob("*.npy"):
        if how == "gone":
            file.unlink()
        elif how == "cut":
            file.write_bytes(file.read_bytes()[:140])
        else:
            np.save(file, X[:2])
    assert len(partners(target, golden)) == 1


def test_a_checksum_with_a_lone_surrogate_is_a_checksum(tmp_path):
    def run(*outputs):
        shapes = tuple(TensorRef("output:0", "float32", (6, 5), checksum=one) for one in outputs)
        calls = [api(f"Torch.{name}", 0, "forward", order) for order, name in enumerate("ab"[: len(outputs)])]
        return a_run([call._replace(tensors=(one,)) for call, one in zip(calls, shapes)])

    target, golden = run("\ud800"), run("\ud800", "\ud801")
    assert partners(target, golden) == [("Torch.a.0", "Torch.a.0")]
