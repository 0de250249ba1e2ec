"""Rules of several ranks: what must be the same on all of them."""

import numpy as np
import pytest

from tests.health.calls import call, linear, normal, symptoms, weight

X, OTHER = normal(8, 16), normal(8, 16)
WEIGHTS = [normal(16, 16) for _ in range(4)]
NORMS = [normal(16) for _ in range(2)]


def rank(x=X, weights=WEIGHTS, norms=NORMS, more=0):
    calls = [linear(x, normal(8, 16), one) for one in weights]
    calls += [call("layer_norm", [normal(8, 16), (16,), weight(one)], [normal(8, 16)]) for one in norms]
    return calls + [call("Torch.add", [x, x], [x + x])] * more


def changed(some, *at):
    return [one + 1 if n in at else one for n, one in enumerate(some)]


ALL = range(4)
MUST = [  # rule, severity, ranks
    ("rank.weights_differ", "error", (rank(), rank(weights=changed(WEIGHTS, 2)))),
    ("rank.weights_differ", "hint", (rank(), rank(weights=changed(WEIGHTS, *ALL)))),
    ("rank.norms_differ", "error", (rank(), rank(weights=changed(WEIGHTS, *ALL), norms=changed(NORMS, 1)))),
    ("rank.same_batch", "warning", (rank(), rank())),
    ("rank.operators", "hint", (rank(more=2), rank())),
]


def name(value):
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize("rule, severity, ranks", MUST, ids=name)
def test_must_fire(tmp_path, rule, severity, ranks):
    found = symptoms(tmp_path, rule, ranks, ranks=True)
    assert [(one.rule, one.severity) for one in found] == [(rule, severity)]
    assert "rank" in found[0].because


def test_a_type_that_differs_is_not_compared(tmp_path):
    half = [one.astype(np.float16) for one in WEIGHTS]
    assert symptoms(tmp_path, "rank.weights_differ", (rank(), rank(weights=half)), ranks=True) == []
