"""Large operators: in blocks, their noise on a sample, products by a sample of rows and columns."""

import numpy as np
import pytest

from npucmp.model import ReplayVerdict
from tests.recompute import kernels
from tests.recompute.craft import Dump

pytest.importorskip("torch")

F32 = np.float32


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


X = normal(6, 100, 512)  # beyond LARGE, and not a number of whole blocks
G, H = normal(512, seed=2), normal(512, seed=3)
A, W, B = normal(1300, 1100, seed=4), normal(1000, 1100, seed=5), normal(1000, seed=6)


def near(x):
    """Rounded after noise of half a unit: a kernel of its own."""
    x = np.asarray(x, float)
    return (x * (1 + 2.0**-25 * np.random.default_rng(9).normal(size=x.shape))).astype(F32)


def softmax(x):
    weights = np.exp(x.astype(float) - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def product():
    return (A.astype(float) @ W.T.astype(float) + B).astype(F32)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Each call right, and with a fault in a few places."""
    dump = Dump(tmp_path_factory.mktemp("scale"))
    y, out = near(softmax(X)), product()
    wrong, tile, gradient = y.copy(), out.copy(), near(softmax(X) * (X - (softmax(X) * X).sum(-1, keepdims=True)))
    wrong[3, 17, 100:116] *= F32(1.001)
    tile[640:656, 320:336] *= F32(1.02)
    bad = gradient.copy()
    bad[5, 99, 511] *= F32(1.01)
    dump.add("Functional.softmax.0.forward", [X], [y], {"dim": -1})
    dump.add("Functional.softmax.1.forward", [X, 2], [wrong])
    dump.add("Functional.layer_norm.0.forward", [X, [512], G, H, 1e-5], [kernels.layer_norm(X, G, H)])
    dump.add("Functional.layer_norm.1.forward", [X, [512], G, H, 1e-5], [kernels.layer_norm(X, G, H, 1e-4)])
    dump.add("Tensor.__add__.0.forward", [X, G], [X + G])
    dump.add("Tensor.__add__.1.forward", [X, G], [(X + G + np.where(X > 3.9, 1e-4, 0)).astype(F32)])
    dump.add("Functional.linear.0.forward", [A, W, B], [out])
    dump.add("Functional.linear.1.forward", [A, W, B], [tile])
    dump.add("Functional.softmax.0.backward", [X], [gradient])
    dump.add("Functional.softmax.2.forward", [X], [y], {"dim": -1})
    dump.add("Functional.softmax.2.backward", [X], [bad])
    return dict(zip(dump.data, dump.rows()))


def test_verdicts(rows):
    guilty = {name for name, row in rows.items() if row.verdict is not ReplayVerdict.CLEAN}
    assert guilty == {
        "Functional.softmax.1.forward", "Functional.layer_norm.1.forward", "Tensor.__add__.1.forward",
        "Functional.linear.1.forward", "Functional.softmax.2.backward",
    }  # fmt: skip


def test_where_it_is(rows):
    """The largest error, at its place in the whole tensor."""
    at = np.unravel_index(rows["Functional.softmax.1.forward"].max_abs_index, X.shape)
    assert at[:2] == (3, 17) and 100 <= at[2] < 116
    assert rows["Functional.softmax.1.forward"].where == "[3, 17, 100:116]"
    assert rows["Functional.layer_norm.1.forward"].where == ""
    row, column = np.unravel_index(rows["Functional.linear.1.forward"].max_abs_index, (1300, 1000))
    assert 640 <= row < 656 and 320 <= column < 336


def test_a_sample_is_told(rows):
    assert rows["Functional.linear.0.forward"].sampled == "1/252"
    assert rows["Functional.softmax.0.forward"].sampled == ""


def test_figures_of_blocks_are_those_of_the_whole(tmp_path, monkeypatch):
    x = normal(*X.shape, seed=20)  # no seed of a trial
    dump = Dump(tmp_path).add("Tensor.__mul__.0.forward", [x, 0.1], [near(x.astype(float) * float(F32(0.1)))])
    blocks = dump.row()
    monkeypatch.setattr("npucmp.recompute.replayed_rows.LARGE", 1 << 40)
    from npucmp import replay

    (whole,) = replay(tmp_path).rows
    for name in ("rel_l2", "mere", "mare", "rmse", "max_abs_err", "bias"):
        assert getattr(blocks, name) == pytest.approx(getattr(whole, name), rel=1e-9), name
    assert blocks.max_abs_index == whole.max_abs_index
    assert blocks.rms_ratio == pytest.approx(whole.rms_ratio, rel=0.05)


@pytest.mark.parametrize("name", ["Functional.linear", "Torch.matmul"])
def test_a_square_weight_is_shared_by_all_rows(name, tmp_path):
    """It has as many rows as the input."""
    x, w = normal(512, 512, seed=7), normal(512, 512, seed=8)
    out = (x.astype(float) @ (w.T if "linear" in name else w)).astype(F32)
    wrong = out.copy()
    wrong[300:316, 16:32] *= F32(1.01)
    dump = Dump(tmp_path).add(f"{name}.0.forward", [x, w], [out]).add(f"{name}.1.forward", [x, w], [wrong])
    right, bad = dump.rows()
    assert (right.status, right.verdict, bad.verdict) == ("replayed", ReplayVerdict.CLEAN, ReplayVerdict.GUILTY)
    assert right.rms_ratio < 1 and bad.where.startswith("[30")
