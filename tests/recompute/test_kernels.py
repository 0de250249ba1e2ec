"""Kernels that are not torch's own are clean; the same with a fault inside are guilty."""

import numpy as np
import pytest

from npucmp.model import ReplayVerdict
from tests.recompute import kernels
from tests.recompute.craft import Dump

pytest.importorskip("torch")

F32 = np.float32


def normal(*shape, mean=0.0, seed=1):
    return (np.random.default_rng(seed).normal(size=shape) + mean).astype(F32)


def linear(x, w, b, **how):
    return (kernels.matmul(x, w.T, **how) + b).astype(F32)


X, W, B = normal(24, 96, mean=0.5), normal(40, 96, seed=2), normal(40, seed=3)
G, H = 1 + normal(96, seed=4) / 10, normal(96, seed=5)
Q, K, V = (normal(2, 4, 24, 16, seed=seed) for seed in (6, 7, 8))
IMAGE, FILTERS = normal(2, 5, 9, 9, seed=9), normal(6, 5, 3, 3, seed=10)
TILE = np.where(np.indices((24, 40)).sum(0) < 6, 1.01, 1)
CALLS = {
    "linear in order": ("Functional.linear", (X, W, B), {}, linear(X, W, B)),
    "linear in blocks": ("Functional.linear", (X, W, B), {}, linear(X, W, B, block=16)),
    "matmul of positive": ("Torch.matmul", (np.abs(X), np.abs(W.T)), {}, kernels.matmul(np.abs(X), np.abs(W.T))),
    "sum": ("Torch.sum", (X, -1), {}, kernels.sum_in_order(X)),
    "mean": ("Tensor.mean", (X,), {"dim": -1}, (kernels.sum_in_order(X) / F32(96)).astype(F32)),
    "softmax": ("Functional.softmax", (X * 4,), {"dim": -1}, kernels.softmax(X * 4)),
    "layer_norm": ("Functional.layer_norm", (X + 3, [96], G, H, 1e-5), {}, kernels.layer_norm(X + 3, G, H)),
    "silu": ("Functional.silu", (X * 3,), {}, kernels.silu(X * 3)),
    "attention": ("Functional.scaled_dot_product_attention", (Q, K, V), {}, kernels.attention(Q, K, V)),
    "conv2d": ("Functional.conv2d", (IMAGE, FILTERS, None, 1, 1), {}, kernels.conv2d(IMAGE, FILTERS)),
    "scaled": ("Tensor.__mul__", (X, 0.1), {}, X * F32(0.1)),
    "cumsum": ("Tensor.cumsum", (X, -1), {}, np.cumsum(X, -1, dtype=F32)),
    "tanh": ("Torch.tanh", (X,), {}, np.tanh(X.astype(float)).astype(F32)),
}
FAULTS = {
    "fp16 sums": ("Functional.linear", (X, W, B), {}, linear(X, W, B, into=np.float16)),
    "products in HF32": ("Functional.linear", (X, W, B), {}, linear(kernels.hf32(X), kernels.hf32(W), B)),
    "bias left out": ("Functional.linear", (X, W, B), {}, kernels.matmul(X, W.T)),
    "last k dropped": ("Functional.linear", (X, W, B), {}, linear(X[:, :-1], W[:, :-1], B)),
    "exp in fp16": ("Functional.softmax", (X,), {"dim": -1}, kernels.softmax(X, lambda x: np.exp(x.astype("f2")))),
    "other eps": ("Functional.layer_norm", (X, [96], G, H, 1e-5), {}, kernels.layer_norm(X, G, H, 1e-3)),
    "gelu of 1.5e-7": ("Functional.gelu", (X * 3,), {}, kernels.gelu(X * 3) * F32(1.00001)),
    "scaled by 1.00001": ("Tensor.__add__", (X, X * 2), {}, X * F32(3.00003)),
    "a tile": ("Torch.matmul", (X, W.T), {}, TILE * kernels.matmul(X, W.T)),
    "through bfloat16": ("Torch.tanh", (X,), {}, kernels.bfloat16(np.tanh(X))),
    "one bit of a copy": ("Torch.abs", (X,), {}, np.nextafter(np.abs(X), F32(9))),
    "mask of the other side": ("Functional.relu", (X,), {}, np.minimum(X, 0)),
}  # fmt: skip


@pytest.fixture(scope="module", params=["clean", "faults"])
def replayed(request, tmp_path_factory):
    """All calls of a table in one dump, so that torch is imported once."""
    calls = CALLS if request.param == "clean" else FAULTS
    dump = Dump(tmp_path_factory.mktemp(request.param))
    for number, (name, args, kwargs, out) in enumerate(calls.values()):
        dump.add(f"{name}.{number}.forward", args, [np.asarray(out, F32)], kwargs)
    return request.param, dict(zip(calls, dump.rows()))


def test_verdicts(replayed):
    what, rows = replayed
    wanted = ReplayVerdict.CLEAN if what == "clean" else ReplayVerdict.GUILTY
    assert {name: row for name, row in rows.items() if row.verdict is not wanted} == {}


def test_clean_ratios_leave_room(replayed):
    """The limits are 3 and 8."""
    what, rows = replayed
    if what == "clean":
        assert max(row.rms_ratio for row in rows.values()) < 2
        assert max(row.max_ratio for row in rows.values()) < 5


def test_integers_and_copies_are_exact(tmp_path):
    ids = np.array([[3, 1], [0, 2]])
    table = normal(4, 8)
    dump = Dump(tmp_path)
    dump.add("Functional.embedding.0.forward", (ids, table), [table[ids]])
    dump.add("Torch.where.0.forward", (X > 0, X, X * 0), [np.where(X > 0, X, F32(0))])
    dump.add("Tensor.__eq__.0.forward", (ids, 1), [ids == 1])
    dump.add("Tensor.__getitem__.0.forward", (X, {"type": "slice", "value": [1, 9, 2]}), [X[1:9:2]])
    dump.add("Torch.max.0.forward", (X, -1), [X.max(-1), X.argmax(-1)])
    wrong = ids.copy()
    wrong[0, 0] += 1
    dump.add("Tensor.__add__.9.forward", (ids, 1), [wrong])
    rows = dump.rows()
    assert [row.verdict.value for row in rows] == ["CLEAN"] * 6 + ["GUILTY"]
    assert {row.budget for row in rows} == {"exact"}


def test_in_place_and_recorded_too_late(tmp_path):
    """An input that was recorded after the call equals the output, though the call changes it."""
    y = normal(24, 96, seed=3)
    dump = Dump(tmp_path).add("Tensor.__iadd__.0.forward", (X, y), [(X + y).astype(F32)])
    dump.add("Tensor.add_.1.forward", ((X + y).astype(F32), y), [(X + y).astype(F32)])
    before, after = dump.rows()
    assert before.verdict is ReplayVerdict.CLEAN
    assert (after.verdict, after.status) == (ReplayVerdict.UNKNOWN, "overwritten")


def test_dropout_takes_its_mask_from_the_output(tmp_path):
    x = normal(64, 64)
    kept = np.random.default_rng(1).random(x.shape) < 0.9
    dump = Dump(tmp_path).add("Functional.dropout.0.forward", (x, 0.1, True), [np.where(kept, x / F32(0.9), F32(0))])
    dump.add("Functional.dropout.1.forward", (x,), [np.where(kept, x, F32(0))], {"p": 0.1, "training": True})
    dump.add("Functional.dropout.2.forward", (x, 0.5, True), [np.where(kept, x * F32(2), F32(0))])
    dump.add("Functional.dropout.3.forward", (x, 0.5, False), [x])
    dump.add("Torch.rand.0.forward", ([64],), [x])
    found = [(row.verdict.value, row.status) for row in dump.rows()]
    assert found == [("CLEAN", "replayed"), ("GUILTY", "replayed"), ("UNKNOWN", "random"), ("CLEAN", "replayed"),
                     ("UNKNOWN", "random")]  # fmt: skip
