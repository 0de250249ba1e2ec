"""Rules of inputs and labels: each must fire on data that has its fault, and must not on other data."""

import numpy as np
import pytest

from tests.health.calls import BACKWARD, call, classes, entropy, linear, normal, random, symptoms, weight

X = normal(8, 16)
PIXELS = random.integers(0, 256, (8, 3, 8, 8)).astype("float32")
LOGITS, LABELS = normal(8, 10), classes(8, 10)
TABLE = normal(200, 4)
TOKENS = random.integers(1, 200, (8, 16))
TWICE = np.concatenate([X[:6], X[:2]])
MASK = np.array([[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
MANY, EVEN = normal(600, 10), classes(600, 10)


def read(x, moves=0.0):
    """A network that reads x; its weight moves from step to step."""
    return [linear(x, normal(len(x), 4), np.full((4, x.shape[1]), 0.1 + moves, "float32")), BACKWARD]


def trained(x, moves=0.0):
    """The same, whose output wants a gradient."""
    return call("linear", [x, weight(np.full((4, x.shape[1]), 0.1 + moves, "float32"))], [weight(normal(len(x), 4))])


def padded(x):
    """What reads the data first is no layer."""
    return call("pad", [x, [1, 1]], [np.pad(x, ((0, 0), (1, 1)))])


def conv(x, inputs=3):
    return call("conv2d", [x, weight(normal(4, inputs, 3, 3))], [normal(8, 4, 6, 6)])


def embed(tokens, table=TABLE):
    return call("embedding", [tokens, weight(table)], [normal(*tokens.shape, 4)])


def labels(some, logits=LOGITS, **more):
    return [entropy(logits, np.asarray(some), **more)]


def steps_of(*some, logits=LOGITS):
    return tuple(labels(one, logits) for one in some)


def uneven(count=600):
    return np.where(np.arange(count) < 0.9 * count, 0, np.arange(count) % 10)


def ignored(some, at=-100):
    found = np.array(some)
    found[:2] = at
    return found


OTHER, ALIKE = normal(8, 16), np.tile(X[:1], (8, 1))

MUST = [  # rule, severity, calls
    ("input.nonfinite", "error", read(np.where(X.max() == X, np.nan, X))),
    ("input.constant", "warning", read(0 * X)),
    ("input.constant", "warning", [embed(0 * TOKENS + 7)]),
    ("input.same_samples", "warning", read(np.tile(X[:1], (8, 1)))),
    ("input.same_samples", "warning", [embed(np.tile(TOKENS[:1], (8, 1)))]),
    ("input.duplicates", "hint", read(TWICE)),
    ("input.repeated", "warning", (read(X), read(X, 0.1))),
    ("input.repeated", "warning", ([padded(X), *read(X)], [padded(X), *read(X, 0.1)])),
    ("input.constant", "warning", [call("Tensor.__getitem__", [0 * X, [1]], [0 * X[1]])]),
    ("input.constant", "warning", [trained(X), trained(0 * X + 3)]),
    (
        "input.same_samples",
        "warning",
        ([trained(X), trained(ALIKE)], [trained(OTHER), trained(2 * ALIKE)]),
    ),
    ("input.raw_pixels", "warning", [conv(PIXELS)]),
    ("input.raw_pixels", "warning", [conv(PIXELS.transpose(0, 2, 3, 1), 8)]),
    ("input.scale", "hint", read(100 * X)),
    ("input.scale", "hint", read(X + 50)),
    ("input.scale", "hint", read(1e-5 * X)),
    ("input.feature_scales", "hint", read(X * np.where(np.arange(16), 1, 1e4).astype("float32"))),
    ("input.outlier", "hint", read(np.where(np.arange(20000).reshape(2, 10000) == 7, 1e4, normal(2, 10000)))),
    ("input.layout", "hint", [conv(normal(8, 32, 32, 3), 32)]),
    ("input.padding", "hint", [embed(np.where(np.arange(16) < 15, 0, TOKENS))]),
    ("input.mask_empty", "warning", [embed(TOKENS), call("Tensor.to", [MASK], [MASK.astype("float32")])]),
    ("label.single", "warning", labels([3] * 8)),
    ("label.single", "warning", steps_of([1] * 8, [1] * 8, [1] * 8, logits=normal(8, 2))),
    ("label.sorted", "hint", labels(np.sort(classes(32, 10)), normal(32, 10))),
    ("label.sorted", "hint", steps_of(classes(12, 2), classes(12, 2) + 2, logits=normal(12, 4))),
    ("label.range", "error", labels([10, 1, 2, 3, 4, 5, 6, 7])),
    ("label.range", "error", labels([-1, 1, 2, 3, 4, 5, 6, 7])),
    ("label.range", "error", labels(ignored([10, 1, 12, 3, 4, 5, 6, 7]))),
    ("label.none", "error", labels([-100] * 8)),
    ("label.none", "error", labels([255] * 8, ignore_index=255)),
    ("label.imbalance", "hint", labels(uneven(), MANY)),
]


def name(value):
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize("rule, severity, calls", MUST, ids=name)
def test_must_fire(tmp_path, rule, severity, calls):
    assert [(one.rule, one.severity) for one in symptoms(tmp_path, rule, calls)] == [(rule, severity)]


def test_labels_of_statistics_may_be_ignored(tmp_path):
    """Their smallest is -100, and nothing tells the next."""
    assert symptoms(tmp_path / "a", "label.range", labels(ignored(LABELS)), values=False) == []
    assert symptoms(tmp_path / "b", "label.range", labels([10, 1, 2, 3]), values=False)


def test_a_test_of_overfitting_is_expected(tmp_path):
    (tmp_path / "own.toml").write_text("[expect]\nrepeated_input = true\n")
    calls = (read(X), read(X, 0.1))
    assert symptoms(tmp_path / "dump", "input.repeated", calls, rules=tmp_path / "own.toml") == []
