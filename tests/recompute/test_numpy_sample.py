"""Large products by a sample in numpy: results and gradients, right and wrong; and what a sample may decide.

Inner names are asked: what is large is made small here.
"""

import numpy as np
import pytest

from npucmp import compare, open_runs
from npucmp.dump.formats import ANYWHERE, calls_of
from npucmp.model import Cause, ReplayVerdict
from npucmp.recompute import sampled_products
from npucmp.recompute.engine import OperatorEngine
from npucmp.recompute.task import ReplaySettings, tasks_of
from tests.recompute.craft import Dump, pair

F32 = np.float32


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(sampled_products, "HEAVY", 1000.0)


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


def rows_of(folder):
    (run,) = open_runs(folder)
    engine = OperatorEngine("numpy")
    tasks = tasks_of(run, calls_of(run, ANYWHERE))
    found = ((task.operator.name, engine.replay(task, ANYWHERE, ReplaySettings())) for task in tasks)
    return {(name, row.slot): row for name, rows in found for row in rows}


def turned(one):
    return np.swapaxes(one, -1, -2)


X, W, B = normal(3, 32, 48), normal(80, 48, seed=2), normal(80, seed=3)
FLAT = X.reshape(-1, 48)
Q, K = normal(4, 32, 48), normal(4, 48, 64, seed=4)
LINEAR, DY = (X @ W.T + B).astype(F32), normal(3, 32, 80, seed=5)
PRODUCT, DZ = Q @ K, normal(4, 32, 64, seed=6)
FLAT_DY = DY.reshape(-1, 80)
CALLS = (
    ("Functional.linear", [X, W, B], LINEAR, DY, [DY @ W, FLAT_DY.T @ FLAT]),
    ("Functional.linear", [FLAT, W], FLAT @ W.T, FLAT_DY, [FLAT_DY @ W, turned(FLAT_DY.T @ FLAT)]),
    ("Torch.matmul", [FLAT, W.T.copy()], FLAT @ W.T, FLAT_DY, [FLAT_DY @ W, FLAT.T @ FLAT_DY]),
    ("Torch.bmm", [Q, K], PRODUCT, DZ, [DZ @ turned(K), turned(Q) @ DZ]),
)


def spoilt(one):
    """A tile of the last matrix that is wrong."""
    found = np.array(one, F32)
    found[..., 16:32, :32] *= F32(1.05)
    return found


@pytest.mark.parametrize("at", range(len(CALLS)))
@pytest.mark.parametrize("spoil, verdict", [(np.asarray, ReplayVerdict.CLEAN), (spoilt, ReplayVerdict.GUILTY)])
def test_products_and_their_gradients(at, spoil, verdict, tmp_path):
    name, args, out, dy, gradients = CALLS[at]
    dump = Dump(tmp_path).add(f"{name}.0.forward", args, [spoil(out)])
    dump.add(f"{name}.0.backward", [dy], [spoil(one) for one in gradients])
    found = rows_of(dump.write())
    assert [row.verdict for row in found.values()] == [verdict] * 3
    assert all(row.sampled.startswith("1/2") for row in found.values())


def test_the_gradient_that_came_in_is_no_gradient_of_a_product(tmp_path):
    """A linear of three dimensions hands it on."""
    square = normal(48, 48, seed=7)
    dump = Dump(tmp_path).add("Functional.linear.0.forward", [X, square], [X @ square.T])
    dump.add("Functional.linear.0.backward", [X], [X])
    dump.add("Functional.linear.1.forward", [X, square], [X @ square.T])
    dump.add("Functional.linear.1.backward", [X], [normal(*X.shape, seed=8)])
    rows = rows_of(dump.write())
    handed, other = (rows[f"Functional.linear.{at}.backward", "output:0"] for at in range(2))
    assert handed.verdict is ReplayVerdict.CLEAN and "holds the incoming gradient" in handed.explanation
    assert other.status == "another autograd node"


UNSEEN = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [96, 48]}  # neither values nor statistics


def test_a_sample_accuses(tmp_path):
    record = "Functional.linear.0.forward", [FLAT, W]
    report = compare(*pair(tmp_path, [(*record, [spoilt(FLAT @ W.T)], {})], [(*record, [FLAT @ W.T], {})]))
    assert [root.cause for root in report.roots] == [Cause.BORN]
    assert "1/256 of its elements were recomputed" in report.roots[0].because


def test_a_sample_acquits_nobody(tmp_path):
    name = "Functional.linear.0.forward"
    right, other = FLAT @ W.T, (FLAT * F32(0.9)) @ W.T
    dumps = pair(tmp_path, [(name, [FLAT, W], [right], {})], [(name, [UNSEEN, W], [other], {})])
    assert [root.cause for root in compare(*dumps).roots] == [Cause.UNKNOWN]
