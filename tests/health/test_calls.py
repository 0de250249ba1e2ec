"""Rules of activations, modes and losses: each must fire on calls that have its fault, and must not on others."""

import math

import numpy as np
import pytest

from tests.health.calls import BACKWARD, call, classes, entropy, linear, normal, random, scalar, symptoms, weight

X = normal(8, 16)
ALIVE = np.maximum(normal(8, 100), 0)
ONE_DEAD = np.where(np.arange(100) == 3, 0, ALIVE)
HALF_DEAD = ALIVE * (np.arange(100) < 50)
IMAGE = np.maximum(normal(8, 8, 4, 4), 0)
DEAD_CHANNELS = IMAGE * (np.arange(8) > 1).reshape(1, 8, 1, 1)
LOGITS, LABELS = normal(8, 10), classes(8, 10)
SOFT = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
SAME = np.tile(normal(1, 10), (8, 1))
DROPPED = np.where(random.random((64, 64)) < 0.5, 0, 2 * normal(64, 64) + 10).astype("float32")
FULL = normal(64, 64) + 10
BUFFERS = normal(16), 1 + abs(normal(16))
UNUSED = np.zeros(16, "float32"), np.ones(16, "float32")
HALF = X.astype("float16")


def relu(out):
    return call("relu", [normal(*out.shape)], [out])


def dropout(out=DROPPED, x=FULL, p=0.5, training=True):
    return call("dropout", [x, p, training, False], [out])


def norm(mean, var, training=True, x=X):
    return call("batch_norm", [x, mean, var, weight(normal(16)), weight(normal(16)), training, 0.1, 1e-5], [x])


def softmax(rows):
    return call("softmax", [normal(2, *rows.shape)], [np.stack([rows, rows]).astype("float32")])


def depth(*sizes):
    return [linear(X, normal(8, 16, size=size)) for size in sizes]


def saturating(name, size):
    return call(f"Torch.{name}", [normal(32, 32, size=size)], [normal(32, 32)])


def sigmoid_before(name):
    written = (1 / (1 + np.exp(-LOGITS))).astype("float32")
    return [call("Torch.sigmoid", [LOGITS], [written]), entropy(written, SOFT, name=name)]


def scales(*values):
    return tuple([entropy(LOGITS, LABELS, back=value)] for value in values)


INF = np.where(np.arange(16) == 3, np.inf, X)
MUST = [  # rule, severity, calls
    ("relu.dead", "error", [relu(0 * ALIVE)]),
    ("relu.dead", "error", ([relu(ALIVE)], [relu(0 * ALIVE)])),
    ("relu.dead_channels", "warning", [relu(DEAD_CHANNELS)]),
    ("relu.dead_channels", "warning", [relu(ALIVE * (np.arange(100) < 20))]),
    ("activation.saturated", "warning", [saturating("sigmoid", 20), linear(X, X)]),
    ("activation.saturated", "warning", [saturating("tanh", 12), linear(X, X)]),
    ("tensor.zero", "warning", [linear(X, np.zeros((8, 4), "float32"))]),
    ("tensor.zero", "hint", [linear(X, np.zeros((8, 4), "float32"), np.zeros((4, 16), "float32"))]),
    ("tensor.constant", "warning", [linear(X, np.full((8, 4), 0.5, "float32"))]),
    ("tensor.jump", "warning", [call("mul", [X, X], [1000 * X])]),
    ("activation.growth", "warning", depth(1, 10, 1000, 1e5)),
    ("activation.scale", "warning", [linear(X, normal(8, 16, size=3))]),
    ("activation.mean", "warning", [linear(X, normal(8, 16, at=5))]),
    ("output.same_for_all", "error", ([entropy(SAME, LABELS)], [entropy(SAME, LABELS)])),
    ("output.same_for_all", "error", [entropy(SAME, LABELS)]),
    ("output.same_for_all", "hint", [entropy(0 * SAME, LABELS)]),
    ("output.ignores_input", "hint", [linear(X, X), linear(X, SAME), linear(SAME, SAME[:, ::-1])]),
    ("attention.collapsed", "warning", [softmax(np.eye(8)[random.permutation(8)])]),
    ("batchnorm.drift", "hint", [norm(*BUFFERS, training=False, x=X + 7)]),
    ("divide.zero", "error", [call("Torch.div", [X, np.where(np.arange(16) == 3, 0, abs(X))], [INF])]),
    ("overflow.summary", "error", [call("mul", [X, X], [INF]), call("mul", [INF, INF], [INF])]),
    ("dropout.in_eval", "warning", [dropout()]),
    ("dropout.in_eval", "warning", [call("dropout", [FULL], [DROPPED])]),
    ("dropout.off_in_training", "hint", [dropout(FULL, training=False), BACKWARD]),
    ("dropout.share", "warning", [dropout(p=0.9), BACKWARD]),
    ("dropout.high", "hint", [dropout(p=0.8), BACKWARD]),
    ("batchnorm.train_in_eval", "warning", [norm(*BUFFERS)]),
    ("batchnorm.eval_in_training", "warning", [norm(*BUFFERS, training=False), BACKWARD]),
    ("batchnorm.never_updated", "warning", [norm(*UNUSED, training=False)]),
    ("batchnorm.statistics_stand", "error", ([norm(*BUFFERS), BACKWARD],) * 2),
    ("batchnorm.one_value", "error", [norm(*BUFFERS, x=normal(1, 16)), BACKWARD]),
    ("loss.nonfinite", "error", [entropy(LOGITS, LABELS, math.nan)]),
    ("loss.zero", "hint", [entropy(LOGITS, LABELS, 0)]),
    ("loss.negated", "error", [entropy(LOGITS, LABELS, back=-1)]),
    ("loss.negative", "error", [entropy(LOGITS, LABELS, -0.5)]),
    ("loss.above_chance", "warning", [entropy(LOGITS, LABELS, 5.0)]),
    ("loss.above_chance", "warning", [entropy(normal(8, 8), np.arange(8) // 2, 5.0)]),
    ("loss.softmax_twice", "warning", [entropy(SOFT, LABELS)]),
    ("loss.sigmoid_twice", "warning", sigmoid_before("binary_cross_entropy_with_logits")),
    ("loss.not_log_probabilities", "error", [entropy(LOGITS, LABELS, name="nll_loss")]),
    ("loss.not_log_probabilities", "error", [entropy(-abs(LOGITS), LABELS, name="nll_loss")]),
    ("loss.one_class", "error", [entropy(normal(8, 1), 0 * LABELS)]),
    ("loss.sum", "hint", [entropy(LOGITS, LABELS, reduction="sum")]),
    ("loss.broadcast", "warning", [entropy(normal(8), normal(8, 1), name="mse_loss")]),
    ("loss.parts", "warning", [call("Torch.add", [scalar(1e-4), scalar(2)], [scalar(2)])]),
    ("lossscale.falls", "warning", scales(65536, 32768, 16384)),
    ("lossscale.falls", "error", scales(4, 1)),
    ("lossscale.missing", "warning", [entropy(LOGITS, LABELS), call("mul", [HALF], [HALF], "backward")]),
    ("float16.headroom", "hint", [call("mul", [HALF], [np.where(HALF.max() == HALF, 40000, HALF).astype("float16")])]),
]
MUST_NOT = [
    ("relu.dead", [relu(ALIVE), relu(HALF_DEAD)]),
    ("relu.dead_channels", [relu(ALIVE), relu(ONE_DEAD), relu(HALF_DEAD), relu(IMAGE), relu(0 * IMAGE)]),
    ("activation.saturated", [saturating("sigmoid", 4), saturating("tanh", 3), linear(X, X)]),
    ("activation.saturated", [linear(X, X), saturating("sigmoid", 20)]),  # the last word of an evaluation
    ("tensor.zero", [linear(0 * X, 0 * X), linear(X, X), relu(0 * ALIVE), call("Torch.cumsum", [X], [0 * X])]),
    ("tensor.constant", [linear(X, X), call("Torch.full", [(8, 4), 0.5], [np.full((8, 4), 0.5, "float32")])]),
    ("tensor.jump", [call("mul", [X, X], [50 * X])]),
    ("activation.growth", [*depth(1, 10, 100, 1000), linear(X, 0 * X)]),
    ("activation.growth", depth(1, 1e5, 1e5)),
    ("activation.scale", [linear(X, normal(8, 16))]),
    ("activation.mean", [linear(X, normal(8, 16))]),
    ("output.same_for_all", ([entropy(0 * SAME, LABELS)], [entropy(LOGITS, LABELS)])),
    ("output.same_for_all", [entropy(normal(1, 10), LABELS[:1])]),
    ("output.ignores_input", [linear(X, X), linear(X, SAME), linear(SAME, X)]),  # queries of a decoder
    ("output.ignores_input", [linear(SAME, SAME), linear(SAME, SAME)]),  # so is the input
    ("attention.collapsed", [softmax(np.full((8, 8), 1 / 8)), softmax(SOFT[:, :8] / SOFT[:, :8].sum(1)[:, None])]),
    ("batchnorm.drift", [norm(*BUFFERS, training=False), norm(*BUFFERS, training=False, x=X + 7)]),  # the first tells
    ("divide.zero", [call("Torch.div", [X, abs(X) + 1], [X]), call("mul", [X, 0 * X], [INF])]),
    ("overflow.summary", [call("Torch.masked_fill", [X, X > 0, -math.inf], [np.where(X > 0, -np.inf, X)])]),
    ("dropout.in_eval", [dropout(FULL, training=False), dropout(FULL, p=0.0)]),
    ("dropout.off_in_training", [dropout(), dropout(FULL, p=0.0, training=False), BACKWARD]),
    ("dropout.share", [dropout(), dropout(FULL, p=0.5), dropout(FULL, p=0.9, training=False), BACKWARD]),
    ("dropout.high", [dropout(), dropout(p=0.8, training=False), BACKWARD]),
    ("batchnorm.train_in_eval", [norm(*BUFFERS, training=False), norm(None, None)]),
    ("batchnorm.eval_in_training", [norm(*BUFFERS), BACKWARD]),
    ("batchnorm.never_updated", [norm(*BUFFERS, training=False), norm(*UNUSED), BACKWARD]),
    ("batchnorm.statistics_stand", ([norm(*BUFFERS), BACKWARD], [norm(normal(16), BUFFERS[1]), BACKWARD])),
    ("batchnorm.statistics_stand", ([norm(*BUFFERS, training=False), BACKWARD],) * 2),
    ("batchnorm.one_value", [norm(*BUFFERS), norm(*BUFFERS, training=False, x=normal(1, 16)), BACKWARD]),
    ("loss.nonfinite", [entropy(LOGITS, LABELS)]),
    ("loss.zero", [entropy(LOGITS, LABELS)]),
    ("loss.negated", [entropy(LOGITS, LABELS, back=65536)]),
    ("loss.negated", [entropy(LOGITS, LABELS), entropy(LOGITS, LABELS, back=-1)]),  # adversaries
    ("loss.negative", [entropy(LOGITS, LABELS), entropy(X, X, -2, name="mse_loss")]),
    ("loss.above_chance", [entropy(LOGITS, LABELS, 2.9), entropy(LOGITS, LABELS, 20, reduction="sum")]),
    ("loss.above_chance", ([entropy(LOGITS, LABELS)], [entropy(LOGITS, LABELS, 9)])),  # later steps
    ("loss.above_chance", [entropy(normal(8, 8), np.roll(np.arange(8), 4), 9)]),  # pairs of a batch
    ("loss.softmax_twice", [entropy(LOGITS, LABELS), entropy(abs(LOGITS), LABELS)]),
    ("loss.softmax_twice", [entropy(SOFT, LABELS, name="nll_loss")]),
    ("loss.sigmoid_twice", sigmoid_before("binary_cross_entropy")),
    ("loss.sigmoid_twice", [entropy(SOFT, SOFT, name="binary_cross_entropy_with_logits")]),
    ("loss.not_log_probabilities", [entropy(np.log(SOFT), LABELS, name="nll_loss"), entropy(LOGITS, LABELS)]),
    ("loss.one_class", [entropy(LOGITS, LABELS), entropy(normal(8, 1), normal(8, 1), name="mse_loss")]),
    ("loss.sum", [entropy(LOGITS, LABELS, reduction="mean"), entropy(LOGITS, LABELS)]),
    ("loss.broadcast", [entropy(normal(8, 1), normal(8, 1), name="mse_loss"), entropy(LOGITS, LABELS)]),
    ("loss.broadcast", [entropy(normal(8, 4), normal(4), name="mse_loss")]),  # one target for all: no pairs
    ("loss.parts", [call("Torch.add", [scalar(0.1), scalar(2)], [scalar(2)])]),
    ("lossscale.falls", scales(65536, 32768, 65536)),
    ("lossscale.falls", scales(1, 1, 1)),
    ("lossscale.missing", [entropy(LOGITS, LABELS, back=1024), call("mul", [HALF], [HALF], "backward")]),
    ("lossscale.missing", [entropy(LOGITS, LABELS), call("mul", [X], [X], "backward")]),
    ("float16.headroom", [call("mul", [HALF], [HALF]), call("mul", [X], [X + 4e4])]),
]
OF_STATISTICS = {"relu.dead", "tensor.zero", "activation.growth", "batchnorm.statistics_stand", "loss.softmax_twice",
                 "loss.above_chance", "batchnorm.never_updated", "loss.one_class", "lossscale.falls"}  # fmt: skip


def name(value):
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize("rule, severity, calls", MUST, ids=name)
def test_must_fire(tmp_path, rule, severity, calls):
    found = symptoms(tmp_path, rule, calls)
    assert [(one.rule, one.severity) for one in found] == [(rule, severity)]
    assert found[0].because and found[0].says


@pytest.mark.parametrize("rule, calls", MUST_NOT, ids=name)
def test_must_not_fire(tmp_path, rule, calls):
    assert symptoms(tmp_path, rule, calls) == []


@pytest.mark.parametrize("rule, severity, calls", [one for one in MUST if one[0] in OF_STATISTICS], ids=name)
def test_statistics_suffice(tmp_path, rule, severity, calls):
    found = symptoms(tmp_path, rule, calls, values=False)
    assert [(one.rule, one.severity) for one in found] == [(rule, severity)]


@pytest.mark.parametrize("rule, calls", [one for one in MUST_NOT if one[0] in OF_STATISTICS], ids=name)
def test_statistics_do_not_make_it_fire(tmp_path, rule, calls):
    assert symptoms(tmp_path, rule, calls, values=False) == []
