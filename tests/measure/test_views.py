"""Golden tensors against views of the target's, and gradients of broadcast operands."""

import numpy as np

from npucmp.dump.limits import ANYWHERE
from npucmp.measure import views
from npucmp.measure.views import Views
from tests.measure.craft import paired, stored

CHANCE = np.random.default_rng(5)
X = CHANCE.standard_normal((4, 6))
VIEWS = Views(ANYWHERE)


def error(folder, target, golden, part=None, **more):
    return VIEWS.rel_l2(paired(stored(folder, target), stored(folder, golden), **more), part)


def test_what_is_no_view_has_no_error(tmp_path):
    assert error(tmp_path, X, X[:3]) is None and error(tmp_path, X.reshape(6, 4), X.reshape(2, 12)) is None
    assert error(tmp_path, X[0], X[0, :3]) is None
    one = paired(stored(tmp_path, X.T.copy()), stored(tmp_path, X))
    for side in ("target", "golden"):
        tensor = getattr(one, side)
        for other in (None, tensor._replace(file=""), tensor._replace(file=f"{tmp_path}/none.npy")):
            assert VIEWS.rel_l2(one._replace(**{side: other})) is None


WHOLE = CHANCE.standard_normal((3, 4, 6))


def test_a_tensor_is_summed_up_to_a_number_of_elements(tmp_path, monkeypatch):
    sides = stored(tmp_path, WHOLE.sum(axis=(0, 1))), stored(tmp_path, WHOLE)
    monkeypatch.setattr(views, "MOST", WHOLE.size)
    assert VIEWS.sum_error(*sides) is not None
    monkeypatch.setattr(views, "MOST", WHOLE.size - 1)
    assert VIEWS.sum_error(*sides) is None
    monkeypatch.undo()
    assert VIEWS.sum_error(sides[0], sides[1]._replace(file=f"{tmp_path}/none.npy")) is None
