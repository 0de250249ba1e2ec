"""Layer norms of crafted rows, of which some are constant up to rounding."""

import numpy as np

from npucmp.dump.limits import ANYWHERE
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


# the mean of a row of 3 is off by at most 8 · 2^-24 · 3, and √eps is 3.2e-3: their quotient is 4.5e-4
SMALL, LARGE = (NOISE / np.sqrt(np.mean(NOISE[2] ** 2)) * np.float32(one) for one in (4.4e-4, 4.7e-4))


def test_a_difference_of_the_inputs_moves_a_constant_row(tmp_path):
    """Both runs have one constant with a difference of 1e-4."""
    moved = CONSTANT + np.float32(1e-4) * (NOISE != 0)
    noise = NOISE * 2e-2
    found = settled(tmp_path, {"input:0": (moved, CONSTANT), "output:0": output(noise)})
    assert found == {"input:0": None, "output:0": 0.0}
    assert settled(tmp_path, {"input:0": CONSTANT, "output:0": output(noise)})["output:0"] is None


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
