"""The factor by which an operator enlarges an error, and the terms of a sum, by the sizes of golden tensors."""

import math

import pytest

from npucmp.flow.operators import nodes_of
from npucmp.localise.conditioning import Scale, Terms, amplification, scale_of, terms
from npucmp.model import Statistics
from tests.localise.step_craft import Op, Tensor, step


def scale(slot_or_tensor, **of_moments):
    """The scale of one tensor; `of_moments` changes what was measured."""
    (found,) = step(Op("relu", (slot_or_tensor,)))
    if of_moments:
        measured = found.measurement._replace(moments=found.measurement.moments._replace(**of_moments))
        found = found._replace(measurement=measured)
    return scale_of(found)


UNKNOWN = (0.0, 0.0, 0.0, 0)
ONE = Tensor("output:0", (4, 4), rms=5.0, low=-6.0, high=4.0)
NORM = Statistics(6.0, -8.0, 3.0, 20.0)  # rms 5 of 16 elements


@pytest.mark.parametrize(
    "tensor, moments, expected",
    [
        (ONE, {}, Scale(5.0, 5.0, 6.0, 16)),
        (ONE._replace(high=7.0), {}, Scale(5.0, 5.0, 7.0, 16)),
        (ONE._replace(low=-1.0, high=2.0), {}, Scale(5.0, 5.0, 5.0, 16)),  # an element has the mean size
        (ONE._replace(total=16 * 3.0), {}, Scale(5.0, 4.0, 6.0, 16)),
        (ONE._replace(total=-16 * 4.0), {}, Scale(5.0, 3.0, 6.0, 16)),
        (ONE._replace(total=16 * 6.0), {}, Scale(5.0, 0.0, 6.0, 16)),
        (ONE._replace(low=math.nan, high=math.nan), {}, Scale(5.0, 5.0, 5.0, 16)),
        # the elements that a mask leaves, of which only the maximum is known
        (ONE._replace(total=16 * 3.0), {"masked": 8, "compared": 8, "yy": 32.0}, Scale(2.0, 2.0, 4.0, 16)),
        (ONE._replace(high=-7.0), {"masked": 8, "compared": 8, "yy": 32.0}, Scale(2.0, 2.0, 7.0, 16)),
        (ONE, {"masked": 16, "compared": 0, "yy": 0.0}, Scale(0.0, 0.0, 4.0, 16)),
        (ONE._replace(shape=(1,), rms=3.0, low=3.0, high=3.0), {}, Scale(3.0, 3.0, 3.0, 1)),
        (ONE._replace(shape=(0, 4)), {}, UNKNOWN),
        (ONE._replace(statistics=(None, NORM)), {}, Scale(5.0, 4.0, 8.0, 16)),
        (ONE._replace(statistics=(None, NORM._replace(max=9.0))), {}, Scale(5.0, 4.0, 9.0, 16)),
        (ONE._replace(statistics=(None, NORM._replace(max=None, min=None))), {}, Scale(5.0, 4.0, 5.0, 16)),
        (ONE._replace(statistics=(None, NORM._replace(mean=None))), {}, Scale(5.0, 5.0, 8.0, 16)),
        (ONE._replace(statistics=(None, NORM._replace(mean=7.0))), {}, Scale(5.0, 0.0, 8.0, 16)),
        (ONE._replace(statistics=(NORM, NORM._replace(norm=None))), {}, UNKNOWN),
        (ONE._replace(statistics=(NORM, None)), {}, UNKNOWN),
        (ONE._replace(shape=(2**62,), statistics=(NORM, NORM)), {}, UNKNOWN),  # no memory holds as many
    ],
)
def test_the_size_of_the_golden_values(tensor, moments, expected):
    assert scale(tensor, **moments) == pytest.approx(expected)


def test_without_a_golden_tensor_no_size_is_known():
    (found,) = step(Op("relu", (ONE,)))
    pair = found.pair._replace(golden=None)
    assert scale_of(found._replace(measurement=found.measurement._replace(pair=pair))) == UNKNOWN


# Condition numbers


def sized(slot, rms, largest=0.0, *, shape=(4, 4), mean=0.0):
    count = math.prod(shape)
    return Tensor(slot, shape, rms=rms, low=-largest, high=0.0, total=mean * count)


def factor(kind, x, y, phase="forward", arguments=None):
    """The amplification of an operator with these tensors; of a backward, by those of its forward."""
    own = Op(kind, (x, y), "f.0", "forward", (arguments or {},) * 2)
    gradient = Op(kind, (sized("input:0", 77.0), sized("output:0", 99.0)), "f.0", "backward", own.arguments)
    nodes = nodes_of(step(own, gradient))
    return amplification(nodes[phase == "backward"])


X, Y = sized("input:0", 3.0, 12.0), sized("output:0", 0.5, 2.0)
OFFSET = sized("input:0", 5.0, 12.0, mean=4.0)  # a deviation of 3


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize(
    "kind, x, y, expected",
    [
        ("relu", X, Y, 1.0),
        ("matmul", X, Y, 1.0),
        ("exp", X, Y, 12.0),
        ("softmax", X, Y, 12.0),
        ("exp", sized("input:0", 0.3, 0.9), Y, 1.0),
        ("layer_norm", OFFSET, Y, 5.0 / 3.0),
        ("layer_norm", sized("input:0", 5.0, mean=5.0), Y, 1.0),
        ("var", OFFSET, Y, 2 * 5.0 / 3.0),
        ("std", OFFSET, Y, 5.0 / 3.0),
        ("log", X, Y, 2.0),
        ("log", X, sized("output:0", 4.0), 1.0),
        ("div", X, Y, 4.0),
        ("reciprocal", X, Y, 6.0),
        ("tan", X, Y, 12.0 * 5.0 / 0.5),
        ("pow", X, Y, 1.0),
        ("exp", sized("input:0", 0.0), Y, 1.0),
        ("exp", X, sized("output:0", 0.0), 1.0),
        ("exp", X._replace(low=-math.inf), Y, 1.0),
        ("exp", X._replace(slot="param:x"), Y, 1.0),
        ("exp", X, Y._replace(slot="input:1"), 1.0),
        ("exp", X._replace(shape=(0,)), Y, 1.0),
    ],
)
def test_the_factor_by_which_an_operator_enlarges_an_error(kind, x, y, expected, phase):
    assert factor(kind, x, y, phase) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["silu", "sigmoid", "softplus"])
def test_a_bounded_slope_enlarges_an_error_by_the_ratio_of_sizes(kind):
    """Only its gradient may saturate, as that of exp."""
    assert factor(kind, X, Y) == pytest.approx(6.0)
    assert factor(kind, X, Y, "backward") == pytest.approx(12.0)


@pytest.mark.parametrize(
    "kind, shape, phase, expected",
    [
        ("getitem", (4, 1), "forward", 3.0 / 0.5 * 2.0),
        ("getitem", (4, 4), "forward", 1.0),  # no element is missing
        ("getitem", (4, 1), "backward", 1.0),
        ("gather", (4, 1), "forward", 1.0),
    ],
)
def test_a_slice_may_hold_all_of_an_error(kind, shape, phase, expected):
    assert factor(kind, X, sized("output:0", 0.5, shape=shape), phase) == pytest.approx(expected)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({"input:1": 8}, 8.0),
        ({"input:1": -3.5}, 3.5),
        ({"input:1": 2, "other": 5}, 5.0),
        ({"input:1": 0.5}, 1.0),
        ({"input:1": 2.0**24, "other": 4}, 4.0),  # no digit of float32 would be left
        ({"input:1": 2.0**24 - 1}, 2.0**24 - 1),
        ({"input:1": True, "other": "9"}, 1.0),
        ({"input:1": math.nan}, 1.0),
        ({}, 1.0),
    ],
)
def test_a_power_enlarges_an_error_by_its_exponent(arguments, expected):
    assert factor("pow", X, Y, arguments=arguments) == pytest.approx(expected)


def test_the_first_operand_with_elements_counts():
    own = Op("exp", (sized("input:0", 1.0, shape=(0,)), X._replace(slot="input:1"), OFFSET._replace(slot="input:2"),
                     Y._replace(slot="output:0", shape=(0,)), Y._replace(slot="output:1")))  # fmt: skip
    (node,) = nodes_of(step(own))
    assert amplification(node) == pytest.approx(12.0)


# The terms of a sum


def found(kind, reads, wrote, *, phase="forward", saved=None, before=None, name="f.0"):
    """(size, number) of the terms of the last output of an operator. Tensors are (shape, rms); `saved` are those of
    the forward of a backward, its output last; `before` is the output of the operator before."""

    def named(role, tensors):
        return tuple(Tensor(f"{role}:{at}", shape, rms=rms, low=-rms, high=rms)
                     for at, (shape, rms) in enumerate(tensors))  # fmt: skip

    own = Op(kind, (*named("input", reads), *named("output", [wrote])), name, phase)
    others = [Op("relu", named("output", [before]), "before.0", phase)] if before else []
    others += [Op(kind, (*named("input", saved[:-1]), *named("output", saved[-1:])), name)] if saved else []
    node = nodes_of(step(*others, own))[-1]
    return tuple(terms(node, node.outputs[-1]))


NONE = (0.0, 0.0)


@pytest.mark.parametrize(
    "kind, reads, wrote, expected",
    [
        ("sum", [((4, 8), 3.0)], ((4,), 1.0), (3.0, 8.0)),
        ("add", [((4, 8), 3.0), ((4, 8), 5.0)], ((4, 8), 1.0), (5.0, 2.0)),
        ("add", [((4, 8), 5.0), ((8,), 3.0)], ((4, 8), 1.0), (5.0, 1.25)),
        ("all_reduce", [((4, 8), 3.0)], ((4, 8), 1.0), (3.0, 1.0)),
        ("sum", [((8,), 3.0)], ((4, 8), 1.0), (3.0, 1.0)),  # no sum has less than one term
        ("sum", [((2**12, 2**13), 3.0)], ((1,), 1.0), (3.0, 2.0**24)),  # nor more than 2^24
        ("sum", [], ((4,), 1.0), NONE),
        ("sum", [((0,), 3.0)], ((4,), 1.0), NONE),
        ("sum", [((4, 8), 3.0)], ((0,), 1.0), NONE),
        ("relu", [((4, 8), 3.0)], ((4,), 1.0), NONE),
        ("matmul", [((4, 9), 3.0), ((9, 5), 2.0)], ((4, 5), 1.0), (6.0, 9.0)),
        ("linear", [((4, 9), 3.0), ((9, 5), 2.0), ((5,), 7.0)], ((4, 5), 1.0), (6.0, 9.0)),
        ("linear", [((4, 9), 3.0), ((9, 5), 2.0), ((20,), 7.0), ((5,), 7.0)], ((4, 5), 1.0), NONE),
        ("linear", [((4, 9), 3.0), ((9, 5), 2.0), ((1,), 7.0)], ((4, 5), 1.0), (6.0, 9.0)),
        ("linear", [((6, 6), 3.0), ((6, 6), 2.0), ((6, 6), 7.0)], ((6, 6), 1.0), NONE),  # none is a bias
        ("linear", [((6, 6), 3.0), ((6, 6), 2.0), ((35,), 7.0)], ((6, 6), 1.0), (6.0, 6.0)),
        ("matmul", [((4, 9), 3.0)], ((4, 5), 1.0), NONE),
        ("matmul", [((1,), 3.0), ((9, 5), 2.0)], ((9, 5), 1.0), NONE),
    ],
)
def test_the_terms_of_a_sum_and_of_a_product(kind, reads, wrote, expected):
    assert found(kind, reads, wrote) == pytest.approx(expected)


@pytest.mark.parametrize(
    "kind, before, wrote, expected",
    [
        ("sum", ((4, 8), 3.0), ((4,), 1.0), (3.0, 8.0)),
        ("sum", ((4,), 3.0), ((4,), 1.0), (3.0, 1.0)),
        ("sum", ((3,), 3.0), ((4,), 1.0), NONE),  # the output before is not what was summed
    ],
)
def test_without_recorded_inputs_the_output_before_is_read(kind, before, wrote, expected):
    assert found(kind, [], wrote, before=before) == pytest.approx(expected)


def test_a_sum_over_ranks_reads_what_arrives():
    node = nodes_of(step(Op("all_reduce", (Tensor("input:0", (4,), rms=2.0), Tensor("output:0", (4,))))))[0]
    node.extra_inputs = list(step(Op("relu", (Tensor("input:0", (4,), rms=9.0), Tensor("input:1", (4,))))))
    assert tuple(terms(node, node.outputs[0])) == (2.0, 1.0)
    node.has_remote_inputs = True
    assert tuple(terms(node, node.outputs[0])) == (9.0, 3.0)


LINEAR, NORM_SAVED = [((4, 9), 7.0), ((9, 5), 2.0), ((4, 5), 1.0)], [((4, 8), 2.0), ((8,), 1.0), ((4, 8), 1.0)]
BIASED = [*LINEAR[:2], ((5,), 1.0), LINEAR[2]]
GRADIENTS = [  # kind, incoming gradients, gradient, tensors of the forward (its output last), terms
    # an operand that was broadcast
    ("add", [((4, 8), 3.0)], ((8,), 1.0), None, (3.0, 4.0)),
    ("add", [((4, 8), 3.0), ((2, 8), 5.0)], ((8,), 1.0), None, (5.0, 2.0)),  # the larger spread: 7.1 of 6
    ("add", [((4, 8), 3.0), ((2, 8), 4.0)], ((8,), 1.0), None, (3.0, 4.0)),
    ("add", [((8,), 3.0)], ((8,), 1.0), None, NONE),
    ("exp", [((4, 8), 3.0)], ((8,), 1.0), None, NONE),
    ("relu", [((4, 8), 3.0)], ((8,), 1.0), None, NONE),
    ("tanh", [((4, 8), 3.0)], ((8,), 1.0), None, NONE),
    ("dropout", [((4, 8), 3.0)], ((8,), 1.0), None, (3.0, 4.0)),
    # values of size one are among the inputs of a norm's gradient in a graph
    ("layer_norm", [((4, 8), 3.0), ((4, 8), 0.5)], ((8,), 1.0), None, (0.5, 4.0)),
    ("layer_norm", [((4, 8), 3.0), ((4, 8), 0.5)], ((8,), 1.0), NORM_SAVED, (3.0, 4.0)),
    # an operand of a product: (m, k) × (k, n) has √(mk · kn / mn) terms
    ("linear", [((4, 5), 3.0)], ((4, 9), 1.0), LINEAR, (6.0, 5.0)),
    ("linear", [((4, 5), 3.0)], ((9, 5), 1.0), LINEAR, (21.0, 4.0)),
    ("linear", [((4, 5), 3.0)], ((5,), 1.0), BIASED, (21.0, 12.0)),
    ("linear", [((4, 5), 3.0)], ((7, 7), 1.0), LINEAR, NONE),
    ("linear", [((4, 5), 3.0), ((2, 5), 9.0)], ((4, 9), 1.0), LINEAR, (6.0, 5.0)),
    ("linear", [((4, 5), 3.0)], ((4, 9), 1.0), [((4, 9), 7.0), ((1,), 2.0), ((4, 5), 1.0)], NONE),
    ("linear", [], ((4, 9), 1.0), LINEAR, NONE),
    ("mul", [((4, 5), 3.0)], ((4, 5), 1.0), [((4, 5), 7.0), ((4, 5), 2.0), ((4, 5), 1.0)], NONE),
    # a filter sums over the positions of the batch: one channel of the incoming gradient
    ("conv2d", [((2, 6, 4, 4), 3.0)], ((6, 3, 5, 5), 1.0),
     [((2, 3, 8, 8), 7.0), ((6, 3, 5, 5), 2.0), ((2, 6, 4, 4), 1.0)], (21.0, 2 * 16.0)),
    ("conv2d", [((2, 6, 8, 8), 3.0)], ((6, 3, 5, 5), 1.0),
     [((2, 3, 4, 4), 7.0), ((6, 3, 5, 5), 2.0), ((2, 6, 8, 8), 1.0)], (21.0, 2 * 16.0)),
    ("conv2d", [((2, 6, 8, 8), 3.0)], ((2, 3, 4, 4), 1.0),
     [((2, 3, 4, 4), 7.0), ((6, 3, 5, 5), 2.0), ((2, 6, 8, 8), 1.0)], (6.0, (768 * 450 / 96) ** 0.5)),
    ("conv1d", [((2, 6, 4), 3.0)], ((6, 3, 5), 1.0), [((2, 3, 8), 7.0), ((6, 3, 5), 2.0), ((2, 6, 4), 1.0)],
     (21.0, 8.0)),
    # without its forward, a gradient of a product reads the operands itself: the smallest of the pairs
    ("matmul", [((4, 9), 3.0), ((4, 5), 2.0)], ((9, 5), 1.0), None, (6.0, 4.0)),
    ("matmul", [((4, 9), 3.0), ((4, 5), 2.0), ((9, 5), 0.1)], ((9, 5), 1.0), None, (0.2, 20**0.5)),
    ("matmul", [((4, 9), 3.0), ((1,), 2.0)], ((9, 5), 1.0), None, NONE),
    ("matmul", [((4, 9), 3.0), ((4, 5), 2.0)], ((5,), 1.0), None, (3.0, 7.2)),  # of a bias
]  # fmt: skip


@pytest.mark.parametrize("kind, reads, wrote, saved, expected", GRADIENTS)
def test_the_terms_of_a_gradient(kind, reads, wrote, saved, expected):
    assert found(kind, reads, wrote, phase="backward", saved=saved) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["dropout", "masked_fill", "clone"])
def test_a_gradient_that_follows_the_one_before_is_no_sum(kind):
    """Without recorded inputs, the incoming gradient is the output of the operator before."""
    assert found(kind, [], ((8,), 1.0), phase="backward", before=((4, 8), 3.0)) == NONE
    assert found("add", [], ((8,), 1.0), phase="backward", before=((4, 8), 3.0)) == (3.0, 4.0)


Y44 = ((4, 4), 0.25)
SOFTMAX = [((4, 4), 7.0), Y44]
CENTRED = [  # kind, incoming gradients, gradient, tensors of the forward (its output last), terms
    # softmax: y · (g - Σ g·y)
    ("softmax", [((4, 4), 8.0)], ((4, 4), 0.4), SOFTMAX, (2.0, 3.0)),
    ("softmax", [((4, 4), 8.0)], ((4, 4), 0.5), SOFTMAX, NONE),  # four times the sum is no cancellation
    ("softmax", [((4, 4), 8.0)], ((4, 4), 0.01), [((4, 4), 7.0), ((3, 4), 0.25)], NONE),
    ("softmax", [((3, 4), 8.0)], ((4, 4), 0.4), SOFTMAX, NONE),
    ("softmax", [], ((4, 4), 0.4), SOFTMAX, NONE),
    ("softmax", [((4, 4), 8.0), Y44], ((4, 4), 0.4), None, (2.0, 3.0)),
    ("softmax", [((4, 4), 8.0), Y44, ((4, 4), 1.0)], ((4, 4), 0.01), None, (0.25, 3.0)),
    ("softmax", [((4, 4), 8.0)], ((4, 4), 0.4), None, NONE),
    ("relu", [((4, 4), 8.0)], ((4, 4), 0.4), SOFTMAX, NONE),
    # norms: g · w / σ
    ("layer_norm", [((4, 4), 8.0)], ((4, 4), 0.4), [((4, 4), 2.0), Y44], (4.0, 3.0)),
    ("layer_norm", [((4, 4), 8.0)], ((4, 4), 0.4), [((4, 4), 2.0), ((4,), 3.0), ((4,), 1.0), Y44], (12.0, 3.0)),
    ("layer_norm", [((4, 4), 8.0)], ((4, 4), 0.4), [((4, 4), 2.0), ((1,), 3.0), Y44], (4.0, 3.0)),
    ("layer_norm", [((4, 4), 8.0)], ((4, 4), 0.4), [((4, 4), 0.0), Y44], NONE),
    ("layer_norm", [((4, 4), 8.0), ((4, 4), 2.0), ((4,), 3.0)], ((4, 4), 0.1), None, (0.75, 3.0)),
]  # fmt: skip


@pytest.mark.parametrize("kind, reads, wrote, saved, expected", CENTRED)
def test_the_terms_of_a_gradient_from_which_means_are_subtracted(kind, reads, wrote, saved, expected):
    assert found(kind, reads, wrote, phase="backward", saved=saved) == pytest.approx(expected)


@pytest.mark.parametrize("mean, expected", [(0.0, 5.0), (4.0, 3.0), (5.0, 5.0)])
def test_a_norm_divides_by_the_deviation(mean, expected):
    """By the rms of equal values."""
    x = Tensor("input:0", (4, 4), rms=5.0, total=16 * mean)
    forward = Op("layer_norm", (x, Tensor("output:0", (4, 4))), "f.0")
    own = Op(
        "layer_norm", (Tensor("input:0", (4, 4), rms=60.0), Tensor("output:0", (4, 4), rms=1.0)), "f.0", "backward"
    )
    node = nodes_of(step(forward, own))[-1]
    assert tuple(terms(node, node.outputs[0])) == pytest.approx((60.0 / expected, 3.0))


def test_the_size_and_the_rounding_of_a_sum_of_random_signs():
    """0.42 u √(K/3 · r² + K/2 · Q) for the sum r and the sum of squares Q of K terms."""
    assert Terms(3.0, 16.0).spread == 12.0
    expected = 0.42 * 2.0**-8 * math.sqrt(16 * (5.0**2 / 3 + 16 * 9.0 / 2))
    assert Terms(3.0, 16.0).random_walk_error(5.0, 2.0**-8) == pytest.approx(expected, rel=0.02)
