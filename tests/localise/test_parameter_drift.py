"""How far an earlier step may have moved a parameter."""

import math

import numpy as np
import pytest

from npucmp.localise.parameter_drift import Updates
from npucmp.model import Statistics
from tests.localise.rules.craft import case
from tests.localise.step_craft import Op, Tensor, layer, step

random = np.random.default_rng(6)
X, W, B = random.standard_normal((8, 16)), random.standard_normal((16, 16)), random.standard_normal(16)
ROUND_OFF = 2.0**-24


def biased(bias, read=X, error=0.0):
    """A linear layer with that bias on both sides, or with an error of all its elements in the target's."""
    return case("linear", [(read, X), (W, W), ((1 + error) * bias, bias)], (X @ W, X @ W)).node


def bound(before, bias):
    """The bound of the bias in the step after `before`."""
    return Updates([*before.inputs, *before.outputs]).bound(biased(bias).inputs[2])


NOISY = X * (1 + 1e-6 * random.standard_normal(X.shape))
STEPS = [1e-3, 1e-2, 0.3]


@pytest.mark.parametrize("step", STEPS)
def test_a_bias_without_a_recorded_gradient_moved_by_some_steps_at_most(step):
    """Its gradient may be noise, as errors are known: 8 steps by the golden's figures, and no more than a half."""
    length = math.sqrt(16) * step / np.linalg.norm(B + step)
    sums = abs(np.linalg.norm(B + step) - np.linalg.norm(B)), 4 * step
    expected = min(0.5, 8 * length * max(step, *sums) / step)
    assert bound(biased(B, NOISY), B + step) == pytest.approx(expected)
    assert bound(biased(B, NOISY, 1e-7), B + step) == pytest.approx(expected + 2 * 1e-7, rel=1e-6)


def test_a_bias_whose_step_is_unknown_moved_by_a_half_at_most():
    """Here it has another number of elements, so that its figures show no step."""
    assert bound(biased(B, NOISY), np.resize(B, 17)) == 0.5


def test_a_parameter_that_stayed_did_not_move_apart():
    """Its error may be twice that of the step before."""
    assert bound(biased(B, NOISY), B) == 0.0
    assert bound(biased(B, NOISY, 1e-7), B) == pytest.approx(2 * 1e-7)


def test_only_a_step_with_exact_gradients_moves_a_parameter_by_no_more_than_a_rounding():
    """Without any gradient, the one of a bias may be noise."""
    own = biased(B)
    exact = case("linear", [(X @ W, X @ W)], (X, X), phase="backward", name="linear.0").node
    findings = [*own.inputs, *own.outputs]
    behind = [one._replace(measurement=one.measurement._replace(pair=one.pair._replace(order=1)))
              for one in (*exact.inputs, *exact.outputs)]  # fmt: skip
    now = biased(B + 1.0).inputs[2]
    assert Updates(findings).bound(now) == 0.5
    assert Updates([*findings, *behind]).bound(now) == pytest.approx(ROUND_OFF)


def test_a_parameter_that_the_earlier_step_does_not_have_has_no_bound():
    before = case("linear", [(NOISY, X), (W, W)], (X @ W, X @ W)).node
    assert bound(before, B + 0.1) == 0.0


# Figures alone: a weight of 64 elements whose size is 1, so that a step of the optimizer is that of an element

W1 = Tensor("", (8, 8))
MOVED = W1._replace(high=2.25)  # the largest element moved by a quarter
STEP, STAYED = 0.25, 0.0


def weight_bound(gradient, now=W1, before=W1, later=(), **more):
    """The bound of the weight of a layer, with that error of its gradient in the step before."""
    gradients = () if gradient is None else (((8, 8), gradient),)
    updates = Updates(step(*layer(0, before, gradients=gradients, **more)))
    found = step(*layer(0, now), *later)
    return updates.bound(found[1])


@pytest.mark.parametrize(
    "gradient, now, expected",
    [
        (0.0, W1, 0.0),
        (0.01, W1, 0.5 * 0.01**0.5),  # changed signs: half of √e
        (0.25, W1, 0.5 * 0.5),
        (0.999, W1, 0.5 * 0.999**0.5),
        (1.0, W1, STAYED),  # noise: as far as the golden moved
        (1.0, W1._replace(high=2.01), 8 * 0.01),
        (1.0, W1._replace(high=1.99), 8 * 0.01),
        (1.0, W1._replace(low=-2.01), 8 * 0.01),
        (1.0, W1._replace(low=-1.99), 8 * 0.01),
        (1.0, W1._replace(rms=1.001), 8 * 0.008 / 1.001),  # the norm is 8 times the size of an element
        (1.0, W1._replace(total=0.08), 0.08),  # of the sum, as if its elements moved at random
        (1.0, W1._replace(high=2.01, low=-2.02), 8 * 0.02),
        (1.0, W1._replace(high=3.0), 0.5),
        (1.1, W1._replace(high=3.0), 8.0),  # a gradient that is off by more than itself has no such bound
        (0.999, W1._replace(high=2.0001), 0.5 * 0.999**0.5),
        (0.0, W1._replace(high=2.0001), ROUND_OFF),  # an update rounds what it writes
        (0.0, W1._replace(high=2.0001, dtypes=("bfloat16", "float32")), 2.0**-8),
        (0.0, W1._replace(high=2.0001, dtypes=("float32", "bfloat16")), 2.0**-8),
        (1.0, W1._replace(shape=(8, 4)), 0.5),  # another number of elements shows no step
        (1.1, W1._replace(shape=(8, 4)), math.inf),
        (1.1, W1._replace(nan=1), math.inf),
        (1.1, W1._replace(rms=0.0), math.inf),
    ],
)
def test_the_error_of_the_gradient_bounds_the_drift_of_a_parameter(gradient, now, expected):
    assert weight_bound(gradient, now) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("gradient", [0.0, 0.01, 1.0])
def test_twice_the_error_of_the_step_before_is_added(gradient):
    before = W1._replace(error=0.001)
    assert weight_bound(gradient, before=before) == pytest.approx(weight_bound(gradient) + 0.002)


@pytest.mark.parametrize(
    "elements, gradient, one_sign",
    [(64, 0.1 / 1024, True), (64, 0.9e-4, False), (56, 1.1e-4, False), (56, 1.2e-4, True), (64, 0.0, False)],
)
def test_one_sign_may_change_where_a_tenth_of_the_parameters_have_one(elements, gradient, one_sign):
    """An error e changes a share of 16 e of the signs; one element is off by two steps then."""
    before = Tensor("", (8, elements // 8))
    updates = Updates(step(*layer(0, before, gradients=((before.shape, gradient),))))
    for moved, off in ((0.1, 0.2), (0.25, 0.5), (0.4, 0.5)):  # two steps, but no more than a half
        now = step(*layer(0, before._replace(high=2.0 + moved)))[1]
        signs = off / math.sqrt(elements) if one_sign else 0.0
        assert updates.bound(now) == pytest.approx(max(0.5 * math.sqrt(gradient), signs, ROUND_OFF))


def test_the_largest_error_of_fitting_gradients_counts():
    """By the backward of the call; without one of that shape, the largest of any backward."""
    gradients = ((8, 8), 0.01), ((8, 8), 0.04), ((8,), 0.25), ((2, 8), 1.0)
    own = layer(0, W1, gradients=gradients)
    assert Updates(step(*own)).bound(step(*layer(0, W1))[1]) == pytest.approx(0.5 * 0.2)
    before = [*layer(0, W1), *layer(1, W1, gradients=gradients[:1]), *layer(2, W1, gradients=gradients[1:2])]
    assert Updates(step(*before)).bound(step(*layer(0, W1))[1]) == pytest.approx(0.5 * 0.2)


def test_an_input_of_a_graph_has_the_gradient_of_its_shape():
    """A graph does not always mark parameters; such a gradient counts as noise at most."""
    for error, expected in ((0.04, 0.5 * 0.2), (5.0, 8 * 0.01)):
        before = Op("mul", (Tensor("input:0", (4, 4)),), "mul.0")
        gradient = Op("mul", (Tensor("output:0", (4, 4), error),), "mul.1", "backward")
        now = step(Op("mul", (Tensor("input:0", (4, 4), high=2.01),), "mul.0"))[0]
        assert Updates(step(before, gradient)).bound(now) == pytest.approx(expected)
        other = gradient._replace(tensors=(Tensor("output:0", (5, 5), error),))
        assert Updates(step(before, other)).bound(now) == pytest.approx(ROUND_OFF)


def usual(*errors, of_gradient=True):
    """The bound of a weight without a gradient of its own shape, beside inputs with these errors."""
    others = [Op("mul", (Tensor("input:0", (3, 3), error),)) for error in errors]
    gradient = [Op("mul", (Tensor("output:0", (5, 5)),), "mul.9", "backward")] if of_gradient else []
    ops = [Op("add", (Tensor("param:weight", dtypes=("float16", "float16")),), "add.0"), *others, *gradient]
    updates = Updates(step(*ops))
    return updates, updates.bound(step(ops[0])[0])


def test_a_gradient_that_was_not_recorded_has_a_usual_error():
    """That of nine tenths of the tensors, and no less than one rounding to the coarsest usual type."""
    updates, found = usual(*[0.04] * 10, *[0.0] * 0)
    assert found == pytest.approx(0.5 * 0.2) and updates.unproven == pytest.approx(0.5 * 0.2)
    updates, found = usual(0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.5)  # of 11 with two zeros: the tenth
    assert updates.unproven == pytest.approx(0.5 * 0.08**0.5)
    updates, found = usual(*[1e-6] * 5)
    assert updates.unproven == pytest.approx(0.5 * 1e-3) and found == pytest.approx(0.5 * 2**-5.5)
    updates, found = usual(0.0)
    assert updates.unproven == found == 0.0
    updates, found = usual(*[math.inf] * 3, *[0.01] * 20)  # unknown sizes do not count
    assert updates.unproven == pytest.approx(0.5 * 0.1)


BIAS = Tensor("", (8,), high=2.25)


@pytest.mark.parametrize(
    "kind, error, of_gradient, bias, expected",
    [
        ("linear", 1e-6, True, BIAS, 0.5),  # any error is known
        ("linear", 0.0, False, BIAS, 0.5),  # no gradient at all is known
        ("linear", 0.0, True, BIAS, ROUND_OFF),
        ("layer_norm", 1e-6, True, BIAS, None),
        ("linear", 1e-6, True, BIAS._replace(shape=(8, 1)), None),
    ],
)
def test_the_gradient_of_a_bias_of_a_product_may_be_noise(kind, error, of_gradient, bias, expected):
    gradient = [Op("mul", (Tensor("output:0", (5, 5)),), "mul.9", "backward")] if of_gradient else []
    tensors = Tensor("input:0", (2, 8), error), Tensor("input:1", (8, 8)), bias._replace(slot="input:2", high=2.0)
    updates = Updates(step(Op(kind, tensors, "own"), *gradient))
    now = step(Op(kind, (*tensors[:2], bias._replace(slot="input:2")), "own"))[2]
    found = updates.bound(now)
    assert found == pytest.approx(expected) if expected is not None else found < 0.1


def test_calls_that_share_a_parameter_have_one_gradient():
    """The sum of the gradients of all; other parameters keep theirs."""
    same, other = W1._replace(content=7), W1._replace(content=8)
    for contents, expected in (((same, same), 0.2), ((same, other), 0.1)):
        ops = [
            *layer(0, contents[0], gradients=(((8, 8), 0.01),)),
            *layer(1, contents[1], gradients=(((8, 8), 0.04),)),
        ]
        updates = Updates(step(*ops))
        own, second = (one for one in step(*ops) if one.pair.slot == "input:1")
        assert updates.bound(own) == pytest.approx(0.5 * expected)
        assert updates.bound(second) == pytest.approx(0.5 * 0.2)


NORM = Statistics(2.0, -2.0, 0.0, 8.0)


@pytest.mark.parametrize("gradient, expected", [(0.0, 0.04), (0.09, 0.09)])
def test_statistics_of_a_gradient_prove_at_least_the_usual_error(gradient, expected):
    """They may agree by chance."""
    recorded = Tensor("output:0", error=gradient, statistics=(NORM, NORM))
    ops = [*layer(0, W1), Op("linear", (recorded,), "linear.0", "backward")]
    ops += [Op("mul", (Tensor("input:0", (3, 3), 0.04),)) for _ in range(30)]
    found = Updates(step(*ops)).bound(step(*layer(0, W1))[1])
    assert found == pytest.approx(0.5 * math.sqrt(expected))


def test_recorded_statistics_show_the_step():
    """All four of them; a step without one is unknown."""
    before = W1._replace(statistics=(NORM, NORM))
    updates = Updates(step(*layer(0, before, gradients=(((8, 8), 1.5),))))
    for now, expected in (
        (NORM, 0.0),
        (NORM._replace(max=2.01), 8 * 0.01),
        (NORM._replace(min=-2.02), 8 * 0.02),
        (NORM._replace(mean=0.01), 8 * 0.08),
        (NORM._replace(norm=8.08), 8 * 0.08 * 8 / 8.08),
        (NORM._replace(mean=None), math.inf),
        (NORM._replace(max=math.nan), math.inf),
        (NORM._replace(max=math.inf), math.inf),
    ):
        found = step(*layer(0, W1._replace(statistics=(NORM._replace(max=9.0, norm=12.0), now))))[1]
        assert updates.bound(found) == pytest.approx(expected)


def test_a_running_statistic_averages_the_errors_that_are_read():
    """Its operator overwrites it; eight times the error of the inputs, relative to its own size."""

    def of(error, read, rms=1.0):
        tensors = [Tensor("input:0", (2, 8), read, 4.0), *(Tensor(f"input:{at}", (8,)) for at in (1, 2, 3, 4))]
        tensors[1] = tensors[1]._replace(error=error, rms=rms)
        tensors[4] = tensors[4]._replace(error=0.25)
        return step(Op("batch_norm", tuple(tensors), "batch_norm.0"))

    now = of(0.0, 0.0)[1]
    assert Updates(of(0.0, 0.01)).bound(now) == pytest.approx(8 * 0.01 * 4)
    assert Updates(of(0.001, 0.01)).bound(now) == pytest.approx(0.002 + 8 * 0.01 * 4)
    assert Updates(of(0.001, 0.0)).bound(now) == pytest.approx(0.002)
    assert Updates(of(0.0, 0.01)).bound(of(0.0, 0.0, 2.0)[1]) == pytest.approx(8 * 0.01 * 2)
    assert Updates(of(0.0, 0.01)).bound(of(0.0, 0.0, 0.0)[1]) == math.inf
    assert Updates(of(0.0, 0.0)).bound(of(0.0, 0.0, 0.0)[1]) == 0.0


def test_the_first_step_has_no_step_before():
    assert Updates().are_first and not Updates().faulty and Updates().unproven == 0.0
    updates = Updates(step(*layer(0, W1)), faulty=True)
    assert updates.faulty and not updates.are_first
    assert Updates().bound(step(*layer(0, W1))[1]) == 0.0


# What noise does not cause


ON_AVERAGE = 0.25 * (16 / 64 + 3 / 64) + ROUND_OFF


@pytest.mark.parametrize("more, is_spread", [(-1e-9, False), (0.0, False), (1e-9, True)])
def test_elements_that_are_off_on_average_are_no_noise(more, is_spread):
    """The limit is 16 e of a step, three elements of 64 by a step, and one round-off."""
    found = weight_bound(1 / 64, MOVED._replace(mean_abs=ON_AVERAGE + more))
    assert found == pytest.approx(ROUND_OFF if is_spread else 0.5 / 8)


@pytest.mark.parametrize(
    "before, now, is_spread",
    [
        (W1._replace(error=0.01), MOVED._replace(mean_abs=0.0717), False),  # twice the error before is added
        (W1._replace(error=0.01), MOVED._replace(mean_abs=0.0719), True),
        (W1, MOVED._replace(mean_abs=0.0517, dtypes=("bfloat16",) * 2), False),
        (W1, MOVED._replace(mean_abs=0.0517 + 2**-8 + 0.001, dtypes=("bfloat16",) * 2), True),
        (W1._replace(rms=4.0), W1._replace(rms=4.0, high=2.25, mean_abs=0.05), False),  # the step is absolute
        (W1._replace(rms=4.0), W1._replace(rms=4.0, high=2.25, mean_abs=0.06), True),
        (W1, MOVED._replace(mean_abs=9.0, mismatched=1), False),
        (W1._replace(shape=(64,)), MOVED._replace(shape=(64,), mean_abs=9.0), False),  # sums that cancel
        (W1, W1._replace(mean_abs=9.0), False),  # no step
        (W1, W1._replace(statistics=(NORM, NORM._replace(max=3.0))), False),
    ],
)
def test_a_mean_error_counts_beyond_what_is_known(before, now, is_spread):
    updates = Updates(step(*layer(0, before, gradients=((before.shape, 0.01),))))
    found = updates.bound(step(*layer(0, now))[1]) - 2 * before.error
    assert (found < 0.01) is is_spread


@pytest.mark.parametrize("gradient, is_spread", [(0.01, True), (0.9, True), (1.0, False)])
def test_noise_alone_moves_all_elements(gradient, is_spread):
    now = MOVED._replace(mean_abs=9.0)
    assert (weight_bound(gradient, now) == pytest.approx(ROUND_OFF)) is is_spread


@pytest.mark.parametrize(
    "gain, error, is_scaled",
    [
        (0.0901, 0.1, True),
        (0.0899, 0.1, False),
        (-0.0901, 0.1, True),
        (-0.95, 1.0, False),  # nothing is left
        (0.0, 0.1, False),
    ],
)
def test_a_factor_is_no_noise(gain, error, is_scaled):
    """Nine tenths of the error: the bound is that of a usual error, here half of √0.04."""
    others = [Op("mul", (Tensor("input:0", (3, 3), 0.04),)) for _ in range(30)]
    updates = Updates(step(*layer(0, W1, gradients=(((8, 8), 1.0),)), *others))
    found = updates.bound(step(*layer(0, MOVED._replace(gain=gain, error=error)))[1])
    assert found == pytest.approx(0.5 * 0.2 if is_scaled else 0.5)


@pytest.mark.parametrize("elements, is_scaled", [(2, False), (3, False), (4, False), (8, True)])
def test_few_elements_may_lie_along_the_values_by_chance(elements, is_scaled):
    """A random direction has a cosine above √(1 - 0.001^(2/(n-1))) once in a thousand: 0.95 of 4, 0.93 of 8 elements
    and nine tenths are below 0.94."""
    share = 0.94 if elements > 2 else 1.0  # two elements are too few in any case
    shape = (elements, 1)
    others = [Op("mul", (Tensor("input:0", (3, 3), 0.04),)) for _ in range(30)]
    updates = Updates(step(*layer(0, Tensor("", shape), gradients=((shape, 1.0),)), *others))
    found = updates.bound(step(*layer(0, Tensor("", shape, 0.1, high=2.25, gain=share * 0.1)))[1])
    chance = math.sqrt(1 - 0.001 ** (2 / (elements - 1))) if elements > 1 else 1.0
    assert (share > chance) is is_scaled or elements == 2
    assert found == pytest.approx(0.5 * 0.2 if is_scaled else 0.5)


@pytest.mark.parametrize(
    "target, is_scaled",
    [
        (Statistics(2.2, -2.2, 0.0, 8.8), True),
        (Statistics(2.2, -2.2, 0.0, 8.73), True),  # 0.1 and 0.091
        (Statistics(2.2, -2.2, 0.0, 8.72), False),
        (Statistics(2.2, -2.0, 0.0, 8.8), False),
        (Statistics(2.2, None, 0.0, 8.8), False),
        (Statistics(0.0, 0.0, 0.0, 0.0), False),
        (Statistics(0.3, -0.3, 0.0, 1.2), True),
        (Statistics(0.16, -0.16, 0.0, 0.64), False),
    ],
)
def test_recorded_figures_show_a_factor(target, is_scaled):
    """Norm and extremes have it alike, up to a tenth."""
    others = [Op("mul", (Tensor("input:0", (3, 3), 0.04),)) for _ in range(30)]
    before = W1._replace(statistics=(NORM, NORM._replace(max=1.75)))
    updates = Updates(step(*layer(0, before, gradients=(((8, 8), 1.0),)), *others))
    found = updates.bound(step(*layer(0, W1._replace(statistics=(target, NORM))))[1])
    assert found == pytest.approx(0.5 * 0.2 if is_scaled else 0.5)
