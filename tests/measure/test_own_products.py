"""The distance of a recorded product from the product of its recorded operands."""

import numpy as np

from npucmp.dump.limits import ANYWHERE
from npucmp.measure.own_products import own_product
from tests.measure.craft import stored

CHANCE = np.random.default_rng(5)
A, B, VECTOR = CHANCE.standard_normal((6, 10)), CHANCE.standard_normal((10, 4)), CHANCE.standard_normal(4)
Y = A @ B


def found(folder, a, b, y, *addends):
    a, b, y, *others = (stored(folder, np.asarray(one)) for one in (a, b, y, *addends))
    return own_product((a, b), others, y, ANYWHERE)


def test_other_tensors_are_no_product(tmp_path):
    assert found(tmp_path, A, B, Y.T) is None
    assert found(tmp_path, A, B[:9], Y) is None
    assert found(tmp_path, A[:0], B, Y[:0]) is None
    assert found(tmp_path, A * 0, B, Y * 0) is None
    sides = [stored(tmp_path, one) for one in (A, B, Y)]
    gone = sides[1]._replace(file=f"{tmp_path}/none.npy")
    assert own_product((sides[0], gone), (), sides[2], ANYWHERE) is None
