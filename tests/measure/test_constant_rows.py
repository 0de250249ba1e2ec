"""Layer norms of crafted rows, of which some are constant up to rounding."""

import math

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.measure import constant_rows
from npucmp.measure.constant_rows import with_constant_rows
from npucmp.measure.pairs import measure
from npucmp.model import Operator, Pair
from tests.measure.craft import stored

CHANCE = np.random.default_rng(5)
WIDTH, EPS = 8, 1e-5
ROWS = CHANCE.standard_normal((5, WIDTH)).astype(np.float32)
CONSTANT = np.where(np.arange(5)[:, None] == 2, np.float32(3.0), ROWS)  # one row
NOISE = np.zeros((5, WIDTH), np.float32)
NOISE[2] = CHANCE.standard_normal(WIDTH)  # in the constant row
OTHER = np.zeros((5, WIDTH), np.float32)
OTHER[0] = 1.0  # in another row


def norm(x):
    x = x.astype(np.float64)
    return ((x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPS)).astype(np.float32)


def settled(folder, tensors, op_type="layer_norm", phase="forward", arguments=None):
    """The errors of other rows by slot; a tensor is an array, or one for each run."""
    operator = Operator("norm.0", op_type, op_type, phase, 0, (), arguments=arguments or {})
    found = []
    for slot, one in tensors.items():
        refs = [stored(folder, values, slot) for values in (one if isinstance(one, tuple) else (one, one))]
        found.append(measure(Pair(0, slot, operator, operator, *refs)))
    result = with_constant_rows(found, ANYWHERE)
    assert [one._replace(settled=None) for one in result] == found
    return {one.pair.slot: one.settled for one in result}


def output(noise, x=CONSTANT):
    return norm(x) + noise, norm(x)


def of_others(off, x=CONSTANT):
    """rel_l2 of all rows but the constant one."""
    rest = np.delete(norm(x).astype(np.float64), 2, axis=0)
    return pytest.approx(np.linalg.norm(np.delete(off.astype(np.float64), 2, axis=0)) / np.linalg.norm(rest), rel=1e-5)


# the mean of a row of 3 is off by at most 8 · 2^-24 · 3, and √eps is 3.2e-3: their quotient is 4.5e-4
SMALL, LARGE = (NOISE / np.sqrt(np.mean(NOISE[2] ** 2)) * np.float32(one) for one in (4.4e-4, 4.7e-4))


@pytest.mark.parametrize(
    "x, noise, expected",
    [
        (CONSTANT, SMALL, 0.0),
        (CONSTANT, SMALL + OTHER * 1e-2, of_others(OTHER * 1e-2)),
        (CONSTANT, LARGE, None),  # more than rounding explains
        (ROWS, SMALL, None),  # no row is constant
        (CONSTANT, OTHER * 1e-2, of_others(OTHER * 1e-2)),
        (CONSTANT, NOISE * 0.0, None),  # nothing differs
        (CONSTANT, NOISE * 1e-9, None),
    ],
)
def test_rows_that_are_not_constant_settle_the_error(tmp_path, x, noise, expected):
    found = settled(tmp_path, {"input:0": x, "output:0": output(noise, x)})
    assert found == {"input:0": None, "output:0": expected}


@pytest.mark.parametrize(
    "more",
    [
        {"op_type": "rms_norm"},
        {"op_type": "batch_norm"},
        {"phase": "backward"},
    ],
)
def test_other_operators_have_no_constant_rows(tmp_path, more):
    assert settled(tmp_path, {"input:0": CONSTANT, "output:0": output(SMALL)}, **more)["output:0"] is None


@pytest.mark.parametrize(
    "tensors",
    [
        {"output:0": output(SMALL)},
        {"input:0": CONSTANT.reshape(1, 5, WIDTH), "output:0": output(SMALL)},
        {"input:1": CONSTANT[0], "output:0": output(SMALL)},
        {"input:0": CONSTANT, "output:0": output(SMALL + np.where(NOISE != 0, np.nan, 0.0).astype(np.float32))},
    ],
)
def test_an_input_of_the_shape_of_the_output_is_needed(tmp_path, tensors):
    assert settled(tmp_path, tensors)["output:0"] is None


def test_the_weight_bounds_the_output(tmp_path):
    """A weight of 100 makes the rounding of a constant row 100 times as large; a bias does not."""
    noise = NOISE * 2e-2
    weight, bias = np.full(WIDTH, 100, np.float32), np.full(WIDTH, 100, np.float32)
    tensors = {"input:0": CONSTANT, "output:0": output(noise)}
    assert settled(tmp_path, tensors)["output:0"] is None
    assert settled(tmp_path, {**tensors, "input:weight": weight})["output:0"] == 0.0
    assert settled(tmp_path, {**tensors, "input:bias": bias})["output:0"] is None
    assert settled(tmp_path, {**tensors, "input:bias": bias, "input:weight": weight})["output:0"] == 0.0
    assert settled(tmp_path, {**tensors, "input:1": np.ones(3, np.float32) * 100})["output:0"] is None


def test_the_shape_of_the_weight_is_that_of_a_row(tmp_path):
    """Both halves of a row of 16 are constant, and the row is not."""
    x = np.concatenate([ROWS, ROWS[::-1] + 1]).reshape(5, 2, WIDTH).copy()
    x[2, 0], x[2, 1] = 3.0, -3.0
    noise = np.zeros_like(x)
    noise[2, 0] = 3e-4
    flat = norm(x.reshape(5, 2 * WIDTH)).reshape(x.shape)
    tensors = {"input:0": x, "output:0": (flat + noise, flat)}
    assert settled(tmp_path, {**tensors, "input:weight": np.ones((2, WIDTH), np.float32)})["output:0"] is None
    assert settled(tmp_path, {**tensors, "input:weight": np.ones(WIDTH, np.float32)})["output:0"] == 0.0


@pytest.mark.parametrize(
    "arguments, explained",
    [
        ({}, False),
        ({"input:4": 1e-9}, True),
        ({"input:1": "8", "input:4": 1e-9}, True),
        ({"input:1": 1.0, "input:4": 1e-9}, True),
        ({"input:1": 0.0, "input:4": 1e-9}, True),
        ({"input:4": 0.0}, False),
        ({"input:4": 0.5}, False),
        ({"input:1": 8}, False),
    ],
)
def test_a_smaller_eps_of_the_operator_explains_more(tmp_path, arguments, explained):
    found = settled(tmp_path, {"input:0": CONSTANT, "output:0": output(NOISE * 2e-2)}, arguments=arguments)
    assert (found["output:0"] == 0.0) is explained


def test_a_difference_of_the_inputs_moves_a_constant_row(tmp_path):
    """Both runs have one constant with a difference of 1e-4."""
    moved = CONSTANT + np.float32(1e-4) * (NOISE != 0)
    noise = NOISE * 2e-2
    found = settled(tmp_path, {"input:0": (moved, CONSTANT), "output:0": output(noise)})
    assert found == {"input:0": None, "output:0": 0.0}
    assert settled(tmp_path, {"input:0": CONSTANT, "output:0": output(noise)})["output:0"] is None


def test_rows_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(constant_rows, "READ", 2 * WIDTH + 1)
    found = settled(tmp_path, {"input:0": CONSTANT, "output:0": output(SMALL + OTHER * 1e-2)})
    assert found["output:0"] == of_others(OTHER * 1e-2)
    monkeypatch.setattr(constant_rows, "READ", 1)
    found = settled(tmp_path, {"input:0": CONSTANT, "output:0": output(SMALL + OTHER * 1e-2)})
    assert found["output:0"] == of_others(OTHER * 1e-2)


def test_rows_that_are_all_constant_leave_no_error(tmp_path):
    x = np.full((5, WIDTH), 3.0, np.float32)
    everywhere = (CHANCE.standard_normal((5, WIDTH)) * 2e-4).astype(np.float32)
    assert settled(tmp_path, {"input:0": x, "output:0": output(everywhere, x)})["output:0"] == 0.0
    zeros = CONSTANT.copy(), np.zeros((5, WIDTH), np.float32)  # the golden wrote zeros
    found = settled(tmp_path, {"input:0": CONSTANT, "output:0": (zeros[0] * (NOISE == 0), zeros[1])})
    assert found["output:0"] == math.inf


def test_a_file_that_is_gone_settles_nothing(tmp_path):
    operator = Operator("norm.0", "layer_norm", "layer_norm", "forward", 0, ())
    found = []
    for slot, both in (("input:0", (CONSTANT, CONSTANT)), ("output:0", output(SMALL))):
        refs = [stored(tmp_path, values, slot) for values in both]
        found.append(measure(Pair(0, slot, operator, operator, *refs)))
    for change in ({"file": f"{tmp_path}/none.npy"}, {"file": ""}):
        pair = found[0].pair._replace(golden=found[0].pair.golden._replace(**change))
        again = with_constant_rows([found[0]._replace(pair=pair), found[1]], ANYWHERE)
        assert again[1].settled is None
    other = found[1].pair._replace(order=1)  # another operator
    assert with_constant_rows([found[0], found[1]._replace(pair=other)], ANYWHERE)[1].settled is None
    assert with_constant_rows(found, ANYWHERE)[1].settled == 0.0 and with_constant_rows([], ANYWHERE) == []


UNIT = 2.0**-24


def shape_of_row(width):
    """Plus and minus 1 in turn: a row without mean whose deviation is 1."""
    return np.where(np.arange(width) % 2, 1.0, -1.0)


def shift(width, size, moved):
    """How far the mean of a constant row may be off."""
    return UNIT * size * max(8.0, width / 2.0, 8.0 * math.sqrt(width) / 16.0) + 2.0 * moved


def settled_row(folder, width, size, deviation, moved, off):
    """The error of a norm that reads one row and writes zeros, which are off by `off` in the target."""
    golden = (size + deviation * shape_of_row(width))[None].astype(np.float32)
    target = (golden + np.float32(moved)).astype(np.float32)
    wrote = np.full((1, width), off, np.float32), np.zeros((1, width), np.float32)
    return settled(folder, {"input:0": (target, golden), "output:0": wrote})["output:0"]


@pytest.mark.parametrize("share, is_explained", [(0.97, True), (1.03, False)])
@pytest.mark.parametrize(
    "width, size, deviation, moved",
    [(8, 3.0, 0.0, 0.0), (8, 0.0, 0.0, 1e-4), (8, 4.0, 1.4e-5, 0.0), (8, 4.0, 1e-5, 2e-6), (2048, 1.0, 1e-5, 0.0)],
)
def test_a_constant_row_differs_by_at_most_the_rounding_of_mean_and_variance(
    tmp_path, width, size, deviation, moved, share, is_explained
):
    off = shift(width, size, moved)
    least, most = math.sqrt(EPS), math.sqrt(EPS + deviation**2 + off * size)
    bound = off / least + deviation * (1.0 / least - 1.0 / most)
    found = settled_row(tmp_path, width, size, deviation, moved, share * bound)
    assert found == (0.0 if is_explained else None)


@pytest.mark.parametrize("share, is_constant", [(0.95, True), (1.05, False)])
@pytest.mark.parametrize("width, size, moved", [(8, 64.0, 0.0), (8, 64.0, 1e-4), (1024, 64.0, 0.0), (4096, 64.0, 0.0)])
def test_a_row_is_constant_if_it_deviates_by_8_times_the_rounding_of_its_sum(
    tmp_path, width, size, moved, share, is_constant
):
    limit = 8.0 * (8.0 * UNIT * size * max(1.0, math.sqrt(width) / 16.0) + 2.0 * moved)
    found = settled_row(tmp_path, width, size, share * limit, moved, 1e-5)
    assert found == (0.0 if is_constant else None)


@pytest.mark.parametrize("steps, is_settled", [(3, False), (4, False), (5, True)])
def test_an_output_within_8_round_offs_needs_no_explanation(tmp_path, steps, is_settled):
    x, wrote = np.full((2, WIDTH), 3.0, np.float32), np.ones((2, WIDTH), np.float32)
    tensors = {"input:0": x, "output:0": (wrote + np.float32(steps * 2.0**-23), wrote)}
    assert (settled(tmp_path, tensors)["output:0"] == 0.0) is is_settled


def test_a_row_of_zeros_is_constant(tmp_path):
    """Padding that both runs leave as it is."""
    x = np.where(np.arange(5)[:, None] == 2, np.float32(0.0), ROWS)
    found = settled(tmp_path, {"input:0": x, "output:0": output(OTHER * 1e-2, x)})
    assert found["output:0"] == of_others(OTHER * 1e-2, x)
