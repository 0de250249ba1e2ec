"""Two codings of one network: one product for three, two multiplications for one. Whose partner is whose?"""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align import align
from npucmp.align.content_match import MOST, content
from npucmp.align.order import match
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Operator, TensorRef
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


# The similarity of two operators


class Saved:
    """Tensors whose values are in files, or that have a record alone."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def tensor(self, one, slot, shape=(4, 4)):
        if isinstance(one, Statistics):
            return TensorRef(slot, "float32", shape, statistics=one)
        if isinstance(one, str):
            return TensorRef(slot, "float32", shape, checksum=one, statistics=Statistics(3.0, -1.0, 0.5, 8.0))
        if one is None:
            return TensorRef(slot, "float32", shape)
        self.count += 1
        np.save(self.folder / f"{self.count}.npy", one)
        return TensorRef(slot, one.dtype.name, one.shape, str(self.folder / f"{self.count}.npy"), "npy")

    def operator(self, kind="exp", phase="forward", **tensors):
        """Tensors by slot, as input_0."""
        refs = tuple(self.tensor(one, slot.replace("_", ":")) for slot, one in tensors.items())
        return Operator(f"{kind}.0", kind, kind, phase, 0, refs)

    def alike(self, one, other, slot="input_0", kind="exp"):
        """The similarity of two operators that have one tensor each."""
        pair = (self.operator(kind, **{slot: each}) for each in (one, other))
        return alike(*pair)


def alike(one, other):
    found = content([one], [other], ANYWHERE)
    return float(found.like[0, 0]), bool(found.other[0, 0]), bool(found.same_weights[0, 0])


@pytest.fixture
def saved(tmp_path):
    return Saved(tmp_path)


def vector(*values, dtype=np.float32):
    return np.array([*values, *[0] * (4 - len(values))], dtype)


SIXTEEN = vector(16)


@pytest.mark.parametrize("value, like, differs, same_weight", [
    (16, 1.0, False, True), (15, 0.75, False, True), (14.9, 0.725, True, True), (14.1, 0.525, True, True),
    (14, 0.5, True, False), (12, 0.0, True, False), (-16, 0.0, True, False),
])  # fmt: skip
def test_the_similarity_falls_with_the_distance_to_zero_at_a_quarter(saved, value, like, differs, same_weight):
    """Data beyond a sixteenth differ; parameters within an eighth are the same."""
    for one, other in ((SIXTEEN, vector(value)), (vector(value), SIXTEEN)):
        if value > 0:
            assert saved.alike(one, other) == (pytest.approx(like), differs, False)
        assert saved.alike(one, other, "output_0")[1:] == (False, False)
        for slot, kind in (("param_weight", "exp"), ("input_1", "linear")):
            assert saved.alike(one, other, slot, kind) == (pytest.approx(like), False, same_weight)
        assert saved.alike(one, other, "input_0", "linear")[1:] == (differs, False)


def test_a_gradient_reads_no_parameters(saved):
    pair = [saved.operator("linear", "backward", input_1=one) for one in (SIXTEEN, vector(3))]
    assert alike(*pair) == (0.0, True, False)


@pytest.mark.parametrize("recorded, like", [
    (Statistics(2.0, -1.0, 0.5, 8.0), 1.0),
    (Statistics(2.0, -1.0, 0.5, 8.0 + 4 * 0.03 * 3.04 / 2), 0.5),  # the root mean square of 16 elements is norm / 4
    (Statistics(2.0, -1.0, 0.6, 8.0), 0.0),
])  # fmt: skip
def test_recorded_statistics_are_nearer_to_each_other(saved, recorded, like):
    assert saved.alike(Statistics(2.0, -1.0, 0.5, 8.0), recorded)[0] == pytest.approx(like, abs=0.01)


def test_equal_checksums_are_equal_tensors(saved):
    assert saved.alike("12ab", "12ab") == (1.0, False, False)
    assert saved.alike("12ab", "12ac") == (0.0, True, False)
    assert saved.alike("0x12ab34cd56789012", "0x12ab34cd56789012") == (1.0, False, False)
    assert saved.alike("0x0", "0x0") == (0.0, False, False)  # that of any constant, whatever the statistics are


@pytest.mark.parametrize("change", [{"max": None}, {"norm": None}, {"mean": np.inf}, {"min": np.nan}, {"min": 2.0}])
def test_statistics_that_are_incomplete_or_of_a_constant_are_no_sample(saved, change):
    recorded = Statistics(2.0, -1.0, 0.5, 8.0)._replace(**change)
    assert saved.alike(recorded, recorded) == saved.alike(None, None) == (0.0, False, False)


def test_statistics_of_an_empty_tensor_are_a_sample(saved):
    tensor = saved.tensor(Statistics(2.0, -1.0, 0.5, 8.0), "input:0", (0, 4))
    operator = saved.operator()._replace(tensors=(tensor,))
    assert alike(operator, operator)[0] == 1.0


def test_all_tensors_of_the_operator_with_more_of_them_count(saved):
    one = saved.operator(input_0=SIXTEEN, input_1=None, output_0=SIXTEEN)
    three = saved.operator(input_0=SIXTEEN, input_1=vector(3, 4), input_2=vector(1), output_0=vector(12))
    assert alike(one, one)[0] == 1.0
    assert alike(one, three)[0] == alike(three, one)[0] == 1 / 4
    found = content([one, three], [three, saved.operator(), one], ANYWHERE)
    np.testing.assert_allclose(found.like, [[1 / 4, 0.0, 1.0], [1.0, 0.0, 1 / 4]])
    assert not found.other.any()


def test_tensors_of_other_slots_shapes_or_records_are_not_compared(saved):
    one = saved.operator(input_0=SIXTEEN)
    others = [saved.operator(input_1=SIXTEEN), saved.operator(input_0=SIXTEEN.reshape(2, 2)),
              saved.operator(input_0=Statistics(16.0, 0.0, 4.0, 16.0))]  # fmt: skip
    found = content([one], others, ANYWHERE)
    assert not found.like.any() and not found.other.any()


@pytest.mark.parametrize("more, is_read", [(0, True), (1, False)])
def test_a_stretch_of_too_many_tensors_is_not_read(saved, more, is_read):
    assert MOST == 4096
    read = saved.operator(**{"param:w": SIXTEEN, "input_0": vector(2)})
    many = tuple(TensorRef(f"input:{at}", "float32", (4,)) for at in range(1, 4096 - 3 + more))
    found = content(
        [read], [read._replace(tensors=(*read.tensors[:1], *many)), saved.operator(output_0=SIXTEEN)], ANYWHERE
    )
    assert found.like.shape == found.other.shape == found.same_weights.shape == (1, 2)
    assert bool(found.like.any()) is bool(found.same_weights.any()) is is_read


# Samples of values


@pytest.mark.parametrize("size, same, others", [
    (64, [], [0, 1, 63]), (100, [64, 99], [0, 63]), (127, [64, 126], [0, 63]), (128, [1, 127], [0, 126]),
    (2048, [1, 15, 1009, 1024, 2047], [0, 16, 1008]),  # every 16th of the first 1024
])  # fmt: skip
def test_a_sample_is_64_of_the_first_values(saved, size, same, others):
    values = np.zeros(size, np.float32)
    values[others] = 5.0
    for place in {*same, *others}:
        changed = values.copy()
        changed[place] += 5.0
        assert (saved.alike(values, changed)[0] == 1.0) is (place in same)


def test_numbers_that_are_not_finite_count_as_zero(saved):
    values = np.array([np.nan, np.inf, -np.inf, 1.0, 2.0], np.float32)
    assert saved.alike(values, np.array([0, 0, 0, 1, 2], np.float32))[0] == 1.0


@pytest.mark.parametrize("values, is_sample", [
    (vector(1000, 1000, 1000, 999), False), (vector(1000, 1000, 1000, 998.9), True),  # within a thousandth
    (vector(-1000, -1000, -1000, -999), False), (np.zeros(4), False), (vector(1, 2, 3, dtype=np.complex64), False),
    (np.float32([1, 2, 3]), False), (np.float32([1, 2, 3, 4]), True), (np.array([1, 2, 3, 4]), True),
])  # fmt: skip
def test_constants_complex_numbers_and_few_values_are_no_sample(saved, values, is_sample):
    assert saved.alike(values, values)[0] == float(is_sample)


@pytest.mark.parametrize("length, is_read", [(1 << 16, True), ((1 << 16) + 1, False)])
def test_a_tensor_that_is_not_in_one_piece_is_read_up_to_1_mib(saved, length, is_read):
    values = np.random.default_rng(1).standard_normal((2, length)).astype(np.float32)
    assert saved.alike(values, values)[0] == pytest.approx(1.0)
    assert saved.alike(*2 * [np.asfortranarray(values)])[0] == pytest.approx(float(is_read))


@pytest.mark.parametrize("change", [{"problem": "cut"}, {"shape": (2, 2)}, {"file": "/none.npy"}])
def test_the_record_of_a_tensor_that_cannot_be_read_is_its_sample(saved, change):
    tensor = saved.operator(input_0=SIXTEEN).tensors[0]._replace(**change)
    operator = saved.operator()._replace(tensors=(tensor,))
    assert alike(operator, operator)[0] == 0.0
    operator = saved.operator()._replace(tensors=(tensor._replace(statistics=Statistics(2.0, -1.0, 0.5, 8.0)),))
    assert alike(operator, operator)[0] == 1.0
