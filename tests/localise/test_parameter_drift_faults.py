"""What the parameters of one step together show: a wrong update, a common factor, a tie that broke."""

import pytest

from npucmp.localise.parameter_drift import Updates
from npucmp.model import Statistics, Verdict
from tests.localise.step_craft import Op, Tensor, layer, step

ROUND_OFF = 2.0**-24
GRADIENT, DRIFT = 0.01, 0.5 * 0.1  # the error of a gradient, and the drift of a parameter that it explains
WEIGHT = Tensor("", (8, 8))


def network(*parameters, gradient=GRADIENT, others=()):
    """One layer for each parameter, all with the same error of their gradients."""
    ops = [layer(at, one._replace(content=one.content or at + 1), gradients=(((8, 8), gradient),))
           for at, one in enumerate(parameters)]  # fmt: skip
    return step(*(op for one in ops for op in one), *others)


def decided(*now, before=WEIGHT, gradient=GRADIENT, others=()):
    """Updates after a step with these parameters, and the finding of the last one."""
    updates = Updates(network(*[before] * len(now), gradient=gradient))
    found = network(*now, gradient=gradient, others=others)
    updates.decide(found)
    return updates, [one for one in found if one.pair.slot == "input:1"][len(now) - 1]


def is_wrong(*now, **more):
    """Whether the update is wrong: then no parameter has a bound, here that of a last one that agrees."""
    updates, last = decided(*now, WEIGHT, **more)
    return updates.bound(last) == 0.0


BEYOND, WITHIN = WEIGHT._replace(error=DRIFT + 1e-6), WEIGHT._replace(error=DRIFT - 1e-6)
OTHER_STEP = Op("mul", (Tensor("input:0", (3, 3), 9.0),))


@pytest.mark.parametrize(
    "parameters, wrong",
    [
        ([BEYOND] * 3, True),
        ([BEYOND] * 2, False),
        ([WITHIN] * 5, False),
        ([BEYOND] * 2 + [WITHIN] * 2, False),
        ([BEYOND] * 3 + [WITHIN] * 27, True),  # a tenth of the parameters that differ
        ([BEYOND] * 3 + [WITHIN] * 28, False),
        ([BEYOND] * 4 + [WITHIN] * 28, True),
        ([BEYOND] * 3 + [WEIGHT] * 40, True),
        ([BEYOND._replace(verdict=Verdict.UNKNOWN)] * 3, False),
        ([BEYOND._replace(error=DRIFT)] * 3, False),
    ],
)
def test_three_parameters_beyond_their_bounds_show_a_wrong_update(parameters, wrong):
    """And a tenth of those that differ."""
    assert is_wrong(*parameters) is wrong


def test_other_tensors_show_no_wrong_update():
    """Inputs that are no parameters, and parameters that the step before does not have."""
    assert not is_wrong(BEYOND, BEYOND, others=[OTHER_STEP] * 4)
    assert not is_wrong(BEYOND, BEYOND, others=layer(90, BEYOND) + layer(91, BEYOND))


def test_a_decision_does_not_depend_on_the_one_before():
    updates, last = decided(*[BEYOND] * 3, WEIGHT)
    assert updates.bound(last) == 0.0
    for _ in range(2):
        updates.decide(network(*[WITHIN] * 4))
        assert updates.bound(last) == pytest.approx(DRIFT)
        updates.decide(network(*[BEYOND] * 3, WEIGHT))
        assert updates.bound(last) == 0.0


# with this gradient no sign is likely to change: 16 · 1e-5 · 64 is 0.01
SMALL, MOVED = 1e-5, WEIGHT._replace(high=2.25, error=1e-3)
ON_AVERAGE = 16 * SMALL * 0.25 + ROUND_OFF


@pytest.mark.parametrize(
    "mean_abs, gradient, count, wrong",
    [
        (ON_AVERAGE * 1.01, SMALL, 3, True),
        (ON_AVERAGE * 1.01, SMALL, 2, False),
        (ON_AVERAGE * 0.99, SMALL, 3, False),
        # where a sign may change, three elements of 64 are off by a step: 0.0117
        (16 * 1e-3 * 0.25 + 3 / 64 * 0.25, 1e-3, 3, False),
        (16 * 1e-3 * 0.25 + 3 / 64 * 0.25 + 1e-5, 1e-3, 3, True),
    ],
)
def test_three_parameters_whose_elements_are_off_on_average_show_a_wrong_update(mean_abs, gradient, count, wrong):
    """By a share of 16 e of a step, although each is within its bound."""
    assert is_wrong(*[MOVED._replace(mean_abs=mean_abs)] * count, gradient=gradient) is wrong


def test_either_sign_of_a_wrong_update_is_counted_by_itself():
    off = MOVED._replace(mean_abs=ON_AVERAGE * 1.01)
    beyond = MOVED._replace(error=0.9)
    assert is_wrong(beyond, beyond, beyond, gradient=SMALL) and not is_wrong(off, off, beyond, gradient=SMALL)


@pytest.mark.parametrize(
    "moved, usual",
    [((), 0.0), ((0.01,), 0.01), ((0.01, 0.02), 0.01), ((0.03, 0.01, 0.02), 0.02), ((0.0, 0.0, 0.03), 0.0)],
)
@pytest.mark.parametrize("side", ["high", "low"])
def test_a_parameter_moves_as_most_parameters_do(moved, usual, side):
    """The last one stayed, and its gradient is noise: its step is the median of all, the larger one of two."""
    sign = 1 if side == "high" else -1
    updates, last = decided(*[WEIGHT._replace(**{side: sign * (2.0 + one)}) for one in moved], WEIGHT, gradient=1.0)
    assert updates.bound(last) == pytest.approx(8 * usual)


# One factor in all parameters


def scaled(gain, error=1e-3, **more):
    return WEIGHT._replace(gain=gain, error=error, **more)


def factor(*parameters, others=()):
    own = [one._replace(rms=one.rms + at / 1024) for at, one in enumerate(parameters)]  # no two are one tensor
    return decided(*own, others=others)[0].factor


UP, DOWN, NOISE = scaled(1e-3), scaled(-1e-3), scaled(1e-5)


@pytest.mark.parametrize(
    "parameters, expected",
    [
        ([UP] * 3, 1e-3),  # eight deviations each: 1e-3 · √64 / 1e-3
        ([DOWN] * 3, -1e-3),
        ([UP] * 2, 0.0),
        ([scaled(1e-3), scaled(2e-3), scaled(3e-3)], 2e-3),
        ([scaled(1e-3), scaled(2e-3), scaled(3e-3), scaled(4e-3)], 3e-3),
        # eight deviations of the sum, √n times as many as those of one: 4.62 each of three
        ([scaled(1e-3, 1.72e-3)] * 3, 1e-3),
        ([scaled(1e-3, 1.74e-3)] * 3, 0.0),
        ([scaled(2.0**-10, 2.0**-9)] * 4, 2.0**-10),
        ([scaled(1e-3, 2.01e-3)] * 4, 0.0),
        ([UP] * 9 + [scaled(-1e-4)], 1e-3),  # nine of ten have one sign
        ([UP] * 8 + [scaled(-1e-4)], 0.0),
        ([DOWN] * 9 + [scaled(1e-4)], -1e-3),
        ([DOWN] * 8 + [scaled(1e-4)], 0.0),
        ([UP] * 2 + [scaled(1e-3, shape=(3, 5))], 0.0),
        ([UP] * 2 + [scaled(1e-3, 5e-4, shape=(4, 4))], 1e-3),
        ([UP] * 2 + [scaled(1e-3, mismatched=1)], 0.0),
        ([UP] * 2 + [scaled(1e-3, dtypes=("bfloat16", "float32"))], 0.0),
        ([UP] * 2 + [scaled(1e-3, statistics=(Statistics(2.0, -2.0, 0.0, 8.0),) * 2)], 0.0),
        ([UP] * 2 + [scaled(0.0)], 0.0),
        ([UP] * 2 + [WEIGHT], 0.0),
        # another parameter: it differs by about its own size, and not by a factor
        ([UP] * 2 + [scaled(0.8, 0.9)], 0.0),
        ([UP] * 2 + [scaled(0.82, 0.9)], 1e-3),
        ([UP] * 2 + [scaled(0.5, 0.89)], 1e-3),
        ([scaled(4.7e-7, 4.7e-7)] * 3, 0.0),  # rounding: eight round-offs of float32 are 4.77e-7
        ([scaled(2.0**-21, 2.0**-21)] * 4, 0.0),
        ([scaled(4.8e-7, 4.8e-7)] * 3, 4.8e-7),
    ],
)
def test_one_factor_of_all_parameters(parameters, expected):
    assert factor(*parameters) == pytest.approx(expected, rel=1e-6)


def test_each_tensor_counts_once():
    """Three calls that read one parameter are no three parameters."""
    assert decided(*[UP] * 5)[0].factor == 0.0


def test_inputs_and_running_statistics_have_no_factor_of_the_update():
    def norm(gain):
        slots = [Tensor(f"input:{at}", (64,), 1e-3, 1 + at / 9, gain=gain) for at in range(5)]
        return Op("batch_norm", tuple(slots), "batch_norm.0")

    updates = Updates(step(*layer(0, WEIGHT), norm(0.0)))
    updates.decide(step(*layer(0, UP), norm(1e-3)))
    assert updates.factor == pytest.approx(1e-3)  # the weight, and the scale and shift of the norm
    assert factor(UP, UP, others=[norm(0.0)._replace(kind="mul")]) == 0.0


def test_a_common_factor_leaves_no_bound():
    updates, last = decided(*(one._replace(rms=1 + at / 9) for at, one in enumerate([UP] * 3)), WEIGHT)
    assert updates.factor and updates.bound(last) == 0.0


# Parameters that share a tensor


def tied(*contents, kind="linear"):
    """Layers that read tensors with these contents, of the golden and the target."""
    slot = "input:1" if kind == "linear" else "output:1"
    return step(*(Op(kind, (Tensor(slot, content=golden, target_content=target),), f"{kind}.{at}")
                  for at, (golden, target) in enumerate(contents)))  # fmt: skip


@pytest.mark.parametrize(
    "before, now, untied",
    [
        (((5, 6), (5, 6)), ((7, 8), (7, 9)), ["linear.1.forward", "linear.0.forward"]),
        (((5, 6), (5, 6)), ((7, 8), (7, 8)), ["", ""]),
        (((5, 6), (5, 4)), ((7, 8), (7, 9)), ["", ""]),  # the target had two before
        (((5, 6), (4, 6)), ((7, 8), (7, 9)), ["", ""]),
        (((5, 6), (5, 6)), ((7, 8), (3, 9)), ["", ""]),  # they are two in the golden too
        (((5, 6),), ((7, 8), (7, 9)), ["", ""]),  # the step before does not have one of them
        (
            ((5, 6), (5, 6), (5, 6)),
            ((7, 8), (7, 8), (7, 9)),
            ["linear.2.forward", "linear.2.forward", "linear.0.forward"],
        ),
    ],
)
def test_an_operator_that_shares_a_parameter_in_the_golden_alone(before, now, untied):
    updates, found = Updates(tied(*before)), tied(*now)
    assert [updates.untied(one) for one in found] == [""] * len(found)
    updates.decide(found)
    assert [updates.untied(one) for one in found] == untied


@pytest.mark.parametrize("lacks", [{"low": float("nan")}, {"shape": (0,)}])
def test_a_parameter_of_unknown_content_shares_nothing(lacks):
    tensors = [Tensor("input:1", content=5, target_content=at, **lacks) for at in (6, 6, 8, 9)]
    ops = [Op("linear", (one,), f"linear.{at % 2}") for at, one in enumerate(tensors)]
    updates, found = Updates(step(*ops[:2])), step(*ops[2:])
    updates.decide(found)
    assert [updates.untied(one) for one in found] == ["", ""]
